//! What an alignment is asked: thresholds with their defaults, the operation to look at, and waivers.
//!
//! Read from text alone; files are for whoever calls.

use serde::Deserialize;

pub use crate::run::alignment::{Level, Waiver};
use crate::{
    run::alignment::{AlignmentSpec, ThresholdChanges},
    trace::stage::{BadStage, StageRule, StageRules},
};

/// The stage that is all of what `within` chose.
const ALL: &str = "all within";

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
    pub kernel_share_pct: f64,
    pub kernel_time_pct: f64,
    pub complete_pct: f64,
    pub clock_pct: f64,
    pub experts_pct: f64,
}

/// What cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("range, operator and kernels must name something")]
    Unnamed,
    #[error("only one of range, operator and kernels can be given")]
    Several,
    #[error(transparent)]
    Stage(#[from] BadStage),
    #[error("no stage is called {0:?}: say which ranges are it, as {0}=RANGE[@DOMAIN], or use prefill or decode")]
    NoStage(String),
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
        Self::over(toml::from_str(text)?)
    }

    /// The defaults with `changes` over them.
    pub fn changed(changes: &ThresholdChanges) -> Result<Self, SettingsError> {
        Self::over(toml::Table::try_from(changes).expect("names and numbers make a table"))
    }

    fn over(changes: toml::Table) -> Result<Self, SettingsError> {
        let mut table: toml::Table = toml::from_str(DEFAULTS)?;
        table.extend(changes);
        let read: Self = table.try_into()?;
        let numbers = [
            ("critical_pct", read.critical_pct),
            ("critical_set_pct", read.critical_set_pct),
            ("count_pct", read.count_pct),
            ("sequence_pct", read.sequence_pct),
            ("matched_time_pct", read.matched_time_pct),
            ("latency_pct", read.latency_pct),
            ("triage_ratio", read.triage_ratio),
            ("kernel_share_pct", read.kernel_share_pct),
            ("kernel_time_pct", read.kernel_time_pct),
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

/// Reads `[[waiver]]` tables.
pub fn waivers(text: &str) -> Result<Vec<Waiver>, SettingsError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        waiver: Vec<Waiver>,
    }
    let file: File = toml::from_str(text)?;
    check_waivers(&file.waiver)?;
    Ok(file.waiver)
}

/// Refuses waivers that say too little or never expire.
fn check_waivers(waivers: &[Waiver]) -> Result<(), SettingsError> {
    for it in waivers {
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
    Ok(())
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

impl Operation {
    /// The operation that is named in one of three ways, or not at all.
    pub fn of(range: Option<&str>, operator: Option<&str>, kernels: &[String]) -> Result<Self, SettingsError> {
        let mut given = range.into_iter().chain(operator).chain(kernels.iter().map(String::as_str));
        if given.any(|it| it.trim_matches(['*', ' ', '@']).is_empty()) {
            return Err(SettingsError::Unnamed);
        }
        match (range, operator, kernels) {
            (None, None, []) => Ok(Self::Sequence),
            (Some(range), None, []) => {
                let (name, domain) =
                    range.rsplit_once('@').map_or((range, None), |(name, domain)| (name, Some(domain.to_owned())));
                Ok(Self::Range { name: name.to_owned(), domain })
            }
            (None, Some(path), []) => Ok(Self::Operator(path.to_owned())),
            (None, None, kernels) => Ok(Self::Kernels(kernels.to_vec())),
            _ => Err(SettingsError::Several),
        }
    }
}

/// The stage that counts, and which ranges are one: `prefill`, `decode`, `NAME=RANGE[@DOMAIN]`.
pub fn stage(asked: Option<&str>, within: &[String], without: &[String]) -> Result<(Option<String>, StageRules), SettingsError> {
    let rules = |more| StageRules::with(more, within.to_vec(), without.to_vec());
    let known = match asked {
        Some(rule) if rule.contains('=') => {
            let rule: StageRule = rule.parse()?;
            return Ok((Some(rule.stage.clone()), rules(vec![rule])));
        }
        None if within.is_empty() => return Ok((None, rules(vec![]))),
        None => {
            // Without a stage, all that lies in those ranges is one.
            let rule = |range: &String| StageRule { stage: ALL.to_owned(), range: range.clone(), domain: None };
            return Ok((Some(ALL.to_owned()), rules(within.iter().map(rule).collect())));
        }
        // What people call it, and what it is called here.
        Some("decode") => "decode_all",
        Some(name) => name,
    };
    let rules = rules(vec![]);
    match rules.names().contains(&known) {
        true => Ok((Some(known.to_owned()), rules)),
        false => Err(SettingsError::NoStage(known.to_owned())),
    }
}

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub operation: Operation,
    /// Stage that counts; all but the warm-up without.
    pub stage: Option<String>,
    pub thresholds: Thresholds,
    pub waivers: Vec<Waiver>,
    /// Instances that each side must have at least.
    pub forwards: Option<u32>,
    /// `YYYY-MM-DD`, for waivers.
    pub today: String,
}

impl Question {
    /// What `spec` asks of two runs, and which of their ranges are stages.
    pub fn of(spec: &AlignmentSpec, today: String) -> Result<(Self, StageRules), SettingsError> {
        check_waivers(&spec.waivers)?;
        let (stage, rules) = stage(spec.stage.as_deref(), &spec.within, &spec.without)?;
        let question = Self {
            operation: Operation::of(spec.range.as_deref(), spec.operator.as_deref(), &spec.kernels)?,
            stage,
            thresholds: Thresholds::changed(&spec.thresholds)?,
            waivers: spec.waivers.clone(),
            forwards: spec.forwards,
            today,
        };
        Ok((question, rules))
    }
}
