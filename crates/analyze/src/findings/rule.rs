//! One rule as data, and its application.
//!
//! Contains no rule: those are in the tables next to their functions.

use llmprof_core::{
    domain::finding::{Finding, catalogue::FindingId},
    trace::Trace,
};

use super::saving::is_worth;
use crate::Analysis;

/// One rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub id: FindingId,
    /// Finds the evidence; a function may serve several rules.
    pub find: fn(&Analysis, &Trace) -> Vec<Finding>,
}

impl Rule {
    /// The rule's findings whose advice saves enough.
    pub fn apply(&self, analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
        let mut found = (self.find)(analysis, trace);
        found.retain(|finding| finding.id == self.id && is_worth(finding));
        found
    }
}
