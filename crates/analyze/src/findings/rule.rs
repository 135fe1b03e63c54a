//! One rule as data, and its application.
//!
//! Contains no rule: those are in the tables next to their functions.

use llmprof_core::{
    domain::finding::{Finding, catalogue::FindingId},
    trace::Trace,
};

use crate::Analysis;

/// One rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub id: FindingId,
    /// Finds the evidence; a function may serve several rules.
    pub find: fn(&Analysis, &Trace) -> Vec<Finding>,
}

impl Rule {
    /// The rule's findings.
    pub fn apply(&self, analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
        let mut found = (self.find)(analysis, trace);
        found.retain(|finding| finding.id == self.id);
        found
    }
}
