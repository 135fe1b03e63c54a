//! The rules that turn figures into findings: each states its evidence and a remedy, and none
//! fires without evidence.
//!
//! A rule is an entry ([`Rule`]) in the table of its file, next to the function that finds it. What
//! does not depend on the evidence is in the catalogue of findings.

mod capture;
mod collectives;
mod counters;
mod dominance;
mod experts;
mod gemms;
mod host;
mod kernels;
pub mod language_model;
pub mod ledger;
mod power;
mod reference;
mod repeats;
mod rule;
mod sampled;
mod saving;
mod short_recording;
mod stage_time;
mod stated;
mod steps;
mod synchronised_launches;
mod untimed;

pub use self::{
    reference::why_no_kernels,
    rule::Rule,
    saving::MIN_SAVING_PCT,
    short_recording::find_short_recording,
    steps::{excluded, with_engine},
};
use llmprof_core::{domain::finding::Finding, trace::Trace};

use super::{Analysis, host_cpu};

/// Every rule, in the order in which findings of one severity are listed.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    [
        capture::RULES,
        short_recording::RULES,
        untimed::RULES,
        repeats::RULES,
        host::RULES,
        host_cpu::RULES,
        dominance::RULES,
        experts::RULES,
        reference::RULES,
        stated::RULES,
        steps::RULES,
        stage_time::RULES,
        collectives::RULES,
        ledger::RULES,
        counters::RULES,
        sampled::RULES,
        kernels::RULES,
        gemms::RULES,
        power::RULES,
    ]
    .into_iter()
    .flatten()
}

/// Applies every rule; worst first, in the rules' order within a severity.
pub fn findings(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let mut found: Vec<Finding> = rules().flat_map(|rule| rule.apply(analysis, trace)).collect();
    found = synchronised_launches::with_remedy(found, trace);
    found = language_model::with_remedies(found, analysis, trace);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    ledger::largest_first(&mut found);
    found
}

#[cfg(test)]
mod tests;
