//! One rule as data, and how it is applied.
//!
//! Holds no rule: those are in `rules.rs`.

use crate::{
    analyze::Analysis,
    run::{Finding, Severity},
    trace::Trace,
};

/// One rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub id: &'static str,
    pub severity: Severity,
    /// What must be seen for it to fire.
    pub fires_on: &'static str,
    /// What to do, where the finding does not say it better.
    pub advice: &'static str,
    /// What following the advice saves at most; empty where that cannot be known.
    pub saves: &'static str,
    find: fn(&Analysis, &Trace) -> Vec<Finding>,
}

impl Rule {
    pub const fn new(
        id: &'static str,
        severity: Severity,
        [fires_on, advice, saves]: [&'static str; 3],
        find: fn(&Analysis, &Trace) -> Vec<Finding>,
    ) -> Self {
        Self { id, severity, fires_on, advice, saves, find }
    }

    /// Looks for what the rule fires on. A function may look for what several rules fire on: each takes its own.
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
