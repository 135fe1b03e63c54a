//! One rule as data, and its application.
//!
//! Contains no rule: those are in the tables next to their functions.

use llmprof_core::{
    domain::finding::{Finding, Severity},
    trace::Trace,
};

use crate::Analysis;

/// One rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub id: &'static str,
    pub severity: Severity,
    /// The evidence that makes it fire.
    pub fires_on: &'static str,
    /// The remedy, for findings without advice of their own.
    pub advice: &'static str,
    /// Upper bound of the time saved by following the advice; `None` if unknown.
    pub max_saving: Option<&'static str>,
    /// Finds the evidence; a function may serve several rules.
    pub find: fn(&Analysis, &Trace) -> Vec<Finding>,
}

impl Rule {
    /// The rule's findings, with its severity and with its advice where they have none.
    pub fn apply(&self, analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
        let mut found = (self.find)(analysis, trace);
        found.retain(|finding| finding.id == self.id);
        for finding in &mut found {
            finding.severity = self.severity;
            finding.advice.get_or_insert_with(|| self.advice.into());
        }
        found
    }
}
