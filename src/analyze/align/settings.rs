//! What an alignment is asked: thresholds with their defaults, the operation to look at, and waivers.
//!
//! Read from text alone; files are for whoever calls.

use serde::Deserialize;

/// How strictly names of kernels are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Template arguments and parameters included.
    Exact,
    /// The function alone.
    Base,
    /// The function without tile sizes and architecture.
    Family,
}

/// From where on something counts; `conf/alignment.toml` explains each.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    pub names: Level,
    pub critical_pct: f64,
    pub critical_set_pct: f64,
    pub count_pct: f64,
    pub sequence_pct: f64,
    pub matched_time_pct: f64,
    pub latency_pct: f64,
    pub triage_ratio: f64,
    pub complete_pct: f64,
    pub clock_pct: f64,
    pub experts_pct: f64,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("not readable as TOML: {0}")]
    Toml(#[from] toml::de::Error),
    #[error("{0} must be a number from 0 on")]
    Range(&'static str),
    #[error("the waiver for {0:?} expires at {1:?}: write YYYY-MM-DD")]
    Expiry(String, String),
    #[error("a waiver needs a pattern, a reason and an impact that are not empty")]
    Empty,
}

const DEFAULTS: &str = include_str!("../../../conf/alignment.toml");

impl Default for Thresholds {
    fn default() -> Self {
        toml::from_str(DEFAULTS).expect("the defaults are embedded: a test reads them")
    }
}

impl Thresholds {
    /// The defaults with the values that `text` names in their place.
    pub fn with(text: &str) -> Result<Self, SettingsError> {
        let mut table: toml::Table = toml::from_str(DEFAULTS)?;
        table.extend(toml::from_str::<toml::Table>(text)?);
        let read: Self = table.try_into()?;
        let numbers = [
            ("critical_pct", read.critical_pct),
            ("critical_set_pct", read.critical_set_pct),
            ("count_pct", read.count_pct),
            ("sequence_pct", read.sequence_pct),
            ("matched_time_pct", read.matched_time_pct),
            ("latency_pct", read.latency_pct),
            ("triage_ratio", read.triage_ratio),
            ("complete_pct", read.complete_pct),
            ("clock_pct", read.clock_pct),
            ("experts_pct", read.experts_pct),
        ];
        match numbers.iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
            Some((name, _)) => Err(SettingsError::Range(name)),
            None => Ok(read),
        }
    }
}

/// A known difference: kernels that no check of names, counts, geometry and order looks at. Their time still counts.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiver {
    /// Part of a kernel's full name, `*` for anything.
    pub pattern: String,
    pub reason: String,
    pub impact: String,
    /// Last day on which it applies, `YYYY-MM-DD`.
    pub expires: String,
}

/// Reads `[[waiver]]` tables.
pub fn waivers(text: &str) -> Result<Vec<Waiver>, SettingsError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        waiver: Vec<Waiver>,
    }
    let file: File = toml::from_str(text)?;
    for it in &file.waiver {
        if [&it.pattern, &it.reason, &it.impact].iter().any(|text| text.trim_matches(['*', ' ']).is_empty()) {
            return Err(SettingsError::Empty);
        }
        let day = it.expires.as_bytes();
        let digits = |from: usize, to: usize| it.expires.get(from..to).and_then(|text| text.parse::<u32>().ok());
        let good = day.len() == 10 && day[4] == b'-' && day[7] == b'-' && digits(0, 4).is_some();
        let good = good
            && digits(5, 7).is_some_and(|it| (1..=12).contains(&it))
            && digits(8, 10).is_some_and(|it| (1..=31).contains(&it));
        if !good {
            return Err(SettingsError::Expiry(it.pattern.clone(), it.expires.clone()));
        }
    }
    Ok(file.waiver)
}

/// Which kernels are the operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Launched in ranges of this name (`*` for anything), perhaps of one domain.
    Range { name: String, domain: Option<String> },
    /// Launched by the operator at this module path (`*` for anything).
    Operator(String),
    /// Those with one of these parts in their names, cut where they repeat.
    Kernels(Vec<String>),
    /// All that the mock launches in the stage, looked for in the other timeline.
    Sequence,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub operation: Operation,
    /// Stage that counts; all but the warm-up without.
    pub stage: Option<String>,
    pub thresholds: Thresholds,
    pub waivers: Vec<Waiver>,
    /// `YYYY-MM-DD`, for waivers.
    pub today: String,
}
