//! The question of an alignment: thresholds with their defaults, the operation, and waivers.
//!
//! Parses text only; the caller reads files.

use serde::Deserialize;

pub use llmprof_core::domain::alignment::{Level, Waiver};
use llmprof_core::{
    domain::alignment::{AlignmentSpec, ThresholdChanges},
    trace::stage::{BadStage, StageRule, StageRules, stage_name},
};

/// The stage of all included ranges.
const ALL: &str = "all within";

/// Thresholds of the checks; `conf/alignment.toml` documents each.
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

/// An invalid question.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("range, operator or kernels is empty; give a name or a pattern")]
    Unnamed,
    #[error("more than one of range, operator and kernels given; choose one")]
    Several,
    #[error(transparent)]
    Stage(#[from] BadStage),
    #[error("unknown stage {0:?}; give its ranges as {0}=RANGE[@DOMAIN], or use prefill or decode")]
    NoStage(String),
    #[error("invalid TOML: {0}")]
    Toml(#[from] toml::de::Error),
    #[error("invalid {name} {value}; expected a number of {min} or more")]
    Range { name: &'static str, value: f64, min: f64 },
    #[error("invalid expiry {1:?} of the waiver for {0:?}; expected YYYY-MM-DD")]
    Expiry(String, String),
    #[error("incomplete waiver; pattern, reason and impact must not be empty")]
    Empty,
}

const DEFAULTS: &str = include_str!("../../../../conf/alignment.toml");

impl Default for Thresholds {
    fn default() -> Self {
        toml::from_str(DEFAULTS).expect("the defaults are embedded: a test reads them")
    }
}

impl Thresholds {
    /// The defaults, overridden by the values in `text`.
    pub fn with(text: &str) -> Result<Self, SettingsError> {
        Self::over(toml::from_str(text)?)
    }

    /// The defaults, overridden by `changes`.
    pub fn changed(changes: &ThresholdChanges) -> Result<Self, SettingsError> {
        Self::over(toml::Table::try_from(changes).expect("names and numbers make a table"))
    }

    fn over(changes: toml::Table) -> Result<Self, SettingsError> {
        let mut table: toml::Table = toml::from_str(DEFAULTS)?;
        table.extend(changes);
        let read: Self = table.try_into()?;
        let numbers = [
            ("critical_pct", read.critical_pct, 0.0),
            ("critical_set_pct", read.critical_set_pct, 0.0),
            ("count_pct", read.count_pct, 0.0),
            ("sequence_pct", read.sequence_pct, 0.0),
            ("matched_time_pct", read.matched_time_pct, 0.0),
            ("latency_pct", read.latency_pct, 0.0),
            // Ratio of the longer side to the shorter one.
            ("triage_ratio", read.triage_ratio, 1.0),
            ("kernel_share_pct", read.kernel_share_pct, 0.0),
            ("kernel_time_pct", read.kernel_time_pct, 0.0),
            ("complete_pct", read.complete_pct, 0.0),
            ("clock_pct", read.clock_pct, 0.0),
            ("experts_pct", read.experts_pct, 0.0),
        ];
        match numbers.into_iter().find(|(_, value, min)| !value.is_finite() || value < min) {
            Some((name, value, min)) => Err(SettingsError::Range { name, value, min }),
            None => Ok(read),
        }
    }
}

/// Reads `[[waiver]]` tables.
pub fn waivers(text: &str) -> Result<Vec<Waiver>, SettingsError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct WaiverFile {
        #[serde(default)]
        waiver: Vec<Waiver>,
    }
    let file: WaiverFile = toml::from_str(text)?;
    check_waivers(&file.waiver)?;
    Ok(file.waiver)
}

/// Refuses waivers that are incomplete or never expire.
fn check_waivers(waivers: &[Waiver]) -> Result<(), SettingsError> {
    for it in waivers {
        if [&it.pattern, &it.reason, &it.impact]
            .iter()
            .any(|text| text.trim_matches(['*', ' ']).is_empty())
        {
            return Err(SettingsError::Empty);
        }
        let day = it.expires.as_bytes();
        let digits = |from: usize, to: usize| {
            it.expires.get(from..to).and_then(|text| text.parse::<u32>().ok())
        };
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

/// The kernels of the operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Launched in ranges of this name (`*` matches any text), optionally of one domain.
    Range { name: String, domain: Option<String> },
    /// Launched by the operator at this module path (`*` matches any text).
    Operator(String),
    /// With one of these patterns in their names, cut at the mock's usual sequence.
    Kernels(Vec<String>),
    /// All kernels of the mock in the stage, searched in the other timeline.
    Sequence,
}

impl Operation {
    /// The operation given in one of three ways, or [`Self::Sequence`].
    pub fn of(
        range: Option<&str>,
        operator: Option<&str>,
        kernels: &[String],
    ) -> Result<Self, SettingsError> {
        let mut given = range.into_iter().chain(operator).chain(kernels.iter().map(String::as_str));
        if given.any(|it| it.trim_matches(['*', ' ', '@']).is_empty()) {
            return Err(SettingsError::Unnamed);
        }
        match (range, operator, kernels) {
            (None, None, []) => Ok(Self::Sequence),
            (Some(range), None, []) => {
                let (name, domain) = range
                    .rsplit_once('@')
                    .map_or((range, None), |(name, domain)| (name, Some(domain.to_owned())));
                Ok(Self::Range { name: name.to_owned(), domain })
            }
            (None, Some(path), []) => Ok(Self::Operator(path.to_owned())),
            (None, None, kernels) => Ok(Self::Kernels(kernels.to_vec())),
            _ => Err(SettingsError::Several),
        }
    }
}

/// The counted stage and the rules of its ranges: `prefill`, `decode`, `NAME=RANGE[@DOMAIN]`.
pub fn stage(
    stage: Option<&str>,
    include: &[String],
    exclude: &[String],
) -> Result<(Option<String>, StageRules), SettingsError> {
    let rules = |more| StageRules::with(more, include.to_vec(), exclude.to_vec());
    let known = match stage {
        Some(rule) if rule.contains('=') => {
            let rule: StageRule = rule.parse()?;
            return Ok((Some(rule.stage_of_work().to_owned()), rules(vec![rule])));
        }
        None if include.is_empty() => return Ok((None, rules(vec![]))),
        None => {
            // Without a stage, everything in the included ranges is one.
            let rule = |range: &String| StageRule {
                stage: ALL.to_owned(),
                range: range.clone(),
                domain: None,
            };
            return Ok((Some(ALL.to_owned()), rules(include.iter().map(rule).collect())));
        }
        Some(name) => stage_name(name),
    };
    let rules = rules(vec![]);
    match rules.names().contains(&known) {
        true => Ok((Some(known.to_owned()), rules)),
        false => Err(SettingsError::NoStage(known.to_owned())),
    }
}

/// The question of an alignment.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub operation: Operation,
    /// The counted stage; everything except the warm-up if `None`.
    pub stage: Option<String>,
    pub thresholds: Thresholds,
    pub waivers: Vec<Waiver>,
    /// Minimum number of instances on each side.
    pub forwards: Option<u32>,
    /// `YYYY-MM-DD`, for waivers.
    pub today: String,
}

impl Question {
    /// The question in `spec`, and the rules of its stages.
    pub fn of(spec: &AlignmentSpec, today: String) -> Result<(Self, StageRules), SettingsError> {
        check_waivers(&spec.waivers)?;
        let (stage, rules) =
            stage(spec.stage.as_deref(), &spec.include_ranges, &spec.exclude_ranges)?;
        let question = Self {
            operation: Operation::of(
                spec.range.as_deref(),
                spec.operator.as_deref(),
                &spec.kernels,
            )?,
            stage,
            thresholds: Thresholds::changed(&spec.thresholds)?,
            waivers: spec.waivers.clone(),
            forwards: spec.forwards,
            today,
        };
        Ok((question, rules))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_below_their_minimum_are_refused_by_name() {
        let defaults: toml::Table = toml::from_str(DEFAULTS).unwrap();
        let numbers = defaults.iter().filter(|(_, value)| !value.is_str());
        let mut checked = 0;
        for (name, _) in numbers {
            let min = if name == "triage_ratio" { 1.0 } else { 0.0 };
            let with = |value: f64| {
                let value = toml::Value::Float(value);
                Thresholds::with(&format!("{name} = {value}"))
            };
            assert!(with(min).is_ok(), "{name}");
            for value in [min - 0.5, f64::NAN, f64::INFINITY] {
                let refused = with(value).unwrap_err().to_string();
                let expected = format!("{name} {value}; expected a number of {min} or more");
                assert_eq!(refused, format!("invalid {expected}"));
            }
            checked += 1;
        }
        assert_eq!(checked, 12);
    }
}
