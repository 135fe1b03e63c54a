//! Savings that the findings of a run promise, with the times of its stages.
//!
//! Plain values, stored with the run's point in its series, so that a later run shows which of them
//! it realised. They are upper bounds, never predictions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::finding::{Finding, Saving};

/// An upper bound of the time that a finding's advice saves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    /// Rule of the finding.
    pub finding: String,
    pub stage: String,
    /// Milliseconds per repeat.
    pub ms: f64,
}

/// The promises of a run, and what its stages took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Savings {
    /// Milliseconds per repeat, by stage.
    #[serde(default)]
    pub stages: BTreeMap<String, f64>,
    /// Errors of these times, by stage; a stage with a single repeat has none.
    #[serde(default)]
    pub errors: BTreeMap<String, TimeError>,
    #[serde(default)]
    pub promises: Vec<Promise>,
}

/// The error of a mean time over repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TimeError {
    pub std_error_ms: f64,
    /// Degrees of freedom.
    pub freedom: f64,
}

impl Promise {
    /// The promises of findings, in their order.
    pub fn of(findings: &[Finding]) -> Vec<Self> {
        let promise = |it: &Finding| {
            let Saving { stage, ms, .. } = it.max_saving.as_deref()?;
            Some(Self { finding: it.id.clone(), stage: stage.clone(), ms: (*ms)? })
        };
        findings.iter().filter_map(promise).collect()
    }
}
