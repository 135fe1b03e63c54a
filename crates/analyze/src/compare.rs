//! Changes from one run to another, and whether they exceed noise.
//!
//! A verdict is given only if the runs are comparable. Pure arithmetic over the figures of two
//! reports.

pub mod claims;
pub mod ledger;
mod measured;
pub mod student;

use std::collections::BTreeMap;

use llmprof_core::domain::digits::figure;
use serde::{Deserialize, Serialize};

use self::measured::unknown_noise;
pub use self::measured::{Measured, repeats_to_halve};
use super::stats::{Spread, percent};
use crate::compare::student::{ALPHA, Difference, Estimate};

/// Accepted variation of device times between runs, percent, if no earlier runs show it: clocks
/// that differ by less count as equal.
pub const RUN_DRIFT_PCT: f64 = 5.0;

/// The rule of verdicts, for reports.
pub const RULE: &str = "\
    A change is significant if Welch's t-test finds it at alpha 0.05. Host times are tested by \
    their repeats, kernels by their own calls, steps of an engine and stages of its requests by \
    their instances, latencies by the loads of a run or the requests of its one load; if earlier \
    runs are given, all also by the variation between those runs. Without earlier runs a change by \
    at most 5 % that is tested by calls, instances or requests gets no verdict: they do not show \
    the variation between runs. Within noise gives the smallest change that would have been found \
    with probability 0.8. Of the operators or kernels that are called slower or faster, at most \
    5 % are expected to be unchanged (Benjamini and Hochberg); about 5 of 100 unchanged stages are \
    significant by chance.";

/// One fact about both runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ComparabilityCheck {
    #[cfg_attr(feature = "schema", schema(example = "device"))]
    pub what: String,
    /// `null` if unknown.
    pub a: Option<String>,
    pub b: Option<String>,
    /// `null` if unknown on a side.
    pub same: Option<bool>,
    /// Prevents the runs from being compared.
    pub forbids: bool,
}

/// The effect of a fact on the comparability of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictEffect {
    /// Does not prevent it.
    Never,
    /// Prevents it if the two differ.
    WhereDifferent,
    /// Prevents it if the two differ, or if one is unknown.
    UnlessSame,
}

impl ComparabilityCheck {
    /// Compares a fact.
    pub fn of(what: &str, a: Option<String>, b: Option<String>, decides: VerdictEffect) -> Self {
        let same = a.as_ref().zip(b.as_ref()).map(|(a, b)| a == b);
        let forbids = match decides {
            VerdictEffect::Never => false,
            VerdictEffect::WhereDifferent => same == Some(false),
            VerdictEffect::UnlessSame => same != Some(true),
        };
        Self { what: what.into(), forbids, a, b, same }
    }

    /// Compares figures that may differ by `tolerance_pct` of the first.
    pub fn near(
        what: &str,
        unit: &str,
        (a, b): (Option<f64>, Option<f64>),
        tolerance_pct: f64,
    ) -> Self {
        let off = a.zip(b).and_then(|(a, b)| percent((a - b).abs(), a.abs()));
        let same = off.map(|off| off <= tolerance_pct);
        let text = |value: Option<f64>| value.map(|value| format!("{value:.0} {unit}"));
        Self { what: what.into(), a: text(a), b: text(b), same, forbids: same == Some(false) }
    }

    /// The reason why it prevents the runs from being compared, if it does.
    pub fn obstacle(&self) -> Option<String> {
        let unknown = |of: &str| format!("{} of {of} is unknown", self.what);
        self.forbids.then(|| match (&self.a, &self.b) {
            (Some(_), Some(_)) => format!("different {}", self.what),
            (Some(_), None) => unknown("run B"),
            (None, Some(_)) => unknown("run A"),
            (None, None) => unknown("both runs"),
        })
    }
}

/// The verdict on a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schema(as = Verdict))]
pub enum ChangeVerdict {
    Faster,
    Slower,
    WithinNoise,
    /// The noise is unknown, or the variation between runs is.
    Unknown,
    /// The runs differ in a fact, or lack one, that a verdict needs.
    NotComparable,
    OnlyInA,
    OnlyInB,
}

impl ChangeVerdict {
    /// The text for reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::WithinNoise => "within noise",
            Self::Unknown => "noise unknown",
            Self::NotComparable => "not comparable",
            Self::OnlyInA => "only in A",
            Self::OnlyInB => "only in B",
        }
    }
}

/// One figure in both runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Change {
    /// Empty outside every stage.
    pub stage: String,
    /// The stage, the operator's path or the kernel's name.
    pub name: String,
    pub a: Option<Measured>,
    pub b: Option<Measured>,
    /// `b - a`; a missing side counts as 0.
    pub change_ms: f64,
    /// Change in percent of `a`.
    pub change_pct: Option<f64>,
    pub verdict: ChangeVerdict,
    /// Reason of the verdict.
    #[serde(default)]
    pub reason: String,
    /// Probability of such a change if nothing changed, by Welch's test; `null` without a test.
    #[serde(default)]
    pub p_value: Option<f64>,
    /// Smallest change that would be found with probability 0.8 at alpha 0.05; set if the verdict
    /// is within noise.
    #[serde(default)]
    pub detectable_ms: Option<f64>,
    /// Repeats on each side (calls, outside every stage) that would halve it; `null` if more
    /// repeats would not.
    #[serde(default)]
    pub repeats_to_halve: Option<u64>,
}

/// Changes from run A to run B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Diff {
    /// Verdicts are given.
    pub comparable: bool,
    pub checks: Vec<ComparabilityCheck>,
    /// The rule of verdicts.
    pub rule: String,
    /// Stages, latencies and parts of stages; largest change first, here and below.
    pub stages: Vec<Change>,
    pub operators: Vec<Change>,
    pub kernels: Vec<Change>,
}

/// Figures of one run by stage and name.
pub type RunFigures = BTreeMap<(String, String), Measured>;

/// One run's figures.
#[derive(Debug, Clone, Default)]
pub struct ComparedRun {
    pub stages: RunFigures,
    pub operators: RunFigures,
    pub kernels: RunFigures,
}

/// Compares two runs. `history` are earlier runs of the same kind as A, whose variation is the
/// noise between runs.
pub fn diff(
    checks: Vec<ComparabilityCheck>,
    a: &ComparedRun,
    b: &ComparedRun,
    history: &[ComparedRun],
) -> Diff {
    let obstacles: Vec<String> = checks.iter().filter_map(ComparabilityCheck::obstacle).collect();
    let all = |of: fn(&ComparedRun) -> &RunFigures, drift_pct: f64, are_many: bool| {
        let unit = if are_many { "calls" } else { "instances" };
        let history: Vec<&RunFigures> = history.iter().map(of).collect();
        let (obstacles, history) = (obstacles.as_slice(), history.as_slice());
        let of_each = VerdictBasis { obstacles, history, drift_pct, unit, max_p: ALPHA };
        let rows = changes(of(a), of(b), &of_each);
        if !are_many {
            return rows;
        }
        let max_p = max_p_of(rows.iter().filter_map(|it| it.p_value).collect());
        changes(of(a), of(b), &VerdictBasis { max_p, ..of_each })
    };
    Diff {
        stages: all(|side| &side.stages, 0.0, false),
        operators: all(|side| &side.operators, 0.0, true),
        kernels: all(|side| &side.kernels, RUN_DRIFT_PCT, true),
        rule: RULE.into(),
        comparable: obstacles.is_empty(),
        checks,
    }
}

/// The greatest p-value of a table at which at most [`ALPHA`] of the significant rows are expected
/// to be unchanged: Benjamini, Hochberg, JRSS B 57(1), 1995. 0 if no row is significant.
fn max_p_of(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    let (rows, ranks) = (all.len() as f64, 1..);
    let is_below = |(rank, p): &(u32, f64)| *p <= ALPHA * f64::from(*rank) / rows;
    ranks.zip(all).filter(is_below).last().map_or(0.0, |(_, p)| p)
}

fn changes(a: &RunFigures, b: &RunFigures, judge: &VerdictBasis) -> Vec<Change> {
    let mut names: Vec<&(String, String)> =
        a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))).collect();
    names.sort();
    let mut changes: Vec<Change> = names
        .into_iter()
        .map(|key| judge.change(key, a.get(key).copied(), b.get(key).copied()))
        .collect();
    changes.sort_by(|x, y| y.change_ms.abs().total_cmp(&x.change_ms.abs()));
    changes
}

/// The basis of the verdicts of one table.
struct VerdictBasis<'a> {
    /// Reasons why the runs are not comparable.
    obstacles: &'a [String],
    history: &'a [&'a RunFigures],
    /// Accepted variation between runs without history, percent; of instances [`RUN_DRIFT_PCT`].
    drift_pct: f64,
    /// Values of one run.
    unit: &'static str,
    /// Greatest p-value of a significant row.
    max_p: f64,
}

/// A verdict with its figures.
struct JudgedChange {
    verdict: ChangeVerdict,
    reason: String,
    p_value: Option<f64>,
    detectable_ms: Option<f64>,
    repeats_to_halve: Option<u64>,
}

impl JudgedChange {
    fn without_test(verdict: ChangeVerdict, reason: String) -> Self {
        Self { verdict, reason, p_value: None, detectable_ms: None, repeats_to_halve: None }
    }
}

impl VerdictBasis<'_> {
    fn change(&self, key: &(String, String), a: Option<Measured>, b: Option<Measured>) -> Change {
        let of = |side: Option<Measured>| side.map_or(0.0, |side| side.ms);
        let change_ms = of(b) - of(a);
        let judged = match (a, b) {
            (Some(a), Some(b)) => self.judge(key, &a, &b),
            (Some(_), None) => {
                JudgedChange::without_test(ChangeVerdict::OnlyInA, "absent in run B".into())
            }
            (None, _) => {
                JudgedChange::without_test(ChangeVerdict::OnlyInB, "absent in run A".into())
            }
        };
        Change {
            stage: key.0.clone(),
            name: key.1.clone(),
            change_ms,
            change_pct: a.zip(b).and_then(|(a, _)| percent(change_ms, a.ms)),
            verdict: judged.verdict,
            reason: judged.reason,
            p_value: judged.p_value,
            detectable_ms: judged.detectable_ms,
            repeats_to_halve: judged.repeats_to_halve,
            a,
            b,
        }
    }

    fn judge(&self, key: &(String, String), a: &Measured, b: &Measured) -> JudgedChange {
        if !self.obstacles.is_empty() {
            return JudgedChange::without_test(
                ChangeVerdict::NotComparable,
                self.obstacles.join("; "),
            );
        }
        let (Some(x), Some(y)) = (a.estimate(), b.estimate()) else {
            return JudgedChange::without_test(ChangeVerdict::Unknown, unknown_noise(a, b));
        };
        let within = Difference::of(&x, &y);
        let between = self
            .between(key, a.ms)
            .map(|run| Difference { mean: within.mean, ..Difference::of(&run, &run) });
        let by_runs = between.filter(|it| it.std_error > within.std_error);
        let drift_pct = a.repeats.and(b.repeats).map_or(RUN_DRIFT_PCT, |_| self.drift_pct);
        let drift_ms = if between.is_none() { a.ms.abs() * drift_pct / 100.0 } else { 0.0 };
        let test = by_runs.unwrap_or(within);
        let p = test.p();
        let apart = format!("{} ms apart ({})", figure(test.mean.abs()), p_text(p));
        let calls = match a.calls.zip(b.calls) {
            Some((x, y)) if x != y && a.repeats == b.repeats => {
                format!("; {}: {x} in A, {y} in B", self.unit)
            }
            _ => String::new(),
        };
        if p >= ALPHA || p > self.max_p {
            let chance = if p < ALPHA { ", as one of so many rows is by chance" } else { "" };
            let apart = format!("{apart}{chance}{calls}");
            return self.within_noise((a, b), &test, by_runs.is_some(), drift_ms, apart);
        }
        let (verdict, reason) = if test.mean.abs() <= drift_ms {
            let reason = format!(
                "{apart}, beyond the variation in one run, but runs may differ by {drift_pct} % if \
                 no earlier runs show their variation{calls}"
            );
            (ChangeVerdict::Unknown, reason)
        } else {
            let verdict =
                if test.mean < 0.0 { ChangeVerdict::Faster } else { ChangeVerdict::Slower };
            (verdict, format!("{apart}, beyond noise{calls}"))
        };
        JudgedChange { p_value: Some(p), ..JudgedChange::without_test(verdict, reason) }
    }

    fn within_noise(
        &self,
        sides: (&Measured, &Measured),
        test: &Difference,
        by_runs: bool,
        drift_ms: f64,
        apart: String,
    ) -> JudgedChange {
        let (a, b) = sides;
        let detectable = test.detectable().max(drift_ms);
        let repeats =
            if by_runs || detectable > test.detectable() { None } else { repeats_to_halve(a, b) };
        let halve = match repeats {
            Some(repeats) => {
                format!(
                    "{repeats} {} on each side would find half of it",
                    if a.repeats.is_some() { "repeats" } else { self.unit }
                )
            }
            None if by_runs => {
                "runs differ by more than repeats do, so more repeats would not lower it".to_owned()
            }
            None => "earlier runs of the same kind would lower it".to_owned(),
        };
        let pct = percent(detectable, a.ms.abs())
            .map_or(String::new(), |pct| format!(", {} %", figure(pct)));
        let reason =
            format!("{apart}; smallest detectable change {} ms{pct}; {halve}", figure(detectable));
        JudgedChange {
            p_value: Some(test.p()),
            detectable_ms: Some(detectable),
            repeats_to_halve: repeats,
            ..JudgedChange::without_test(ChangeVerdict::WithinNoise, reason)
        }
    }

    /// A run's figure with the spread between runs as its error; `None` if fewer than two runs have
    /// it.
    fn between(&self, key: &(String, String), a: f64) -> Option<Estimate> {
        let earlier = self.history.iter().filter_map(|run| Some(run.get(key)?.ms));
        let spread = Spread::of(earlier.chain([a]))?;
        Some(Estimate { mean: a, std_error: spread.std?, freedom: f64::from(spread.n) - 1.0 })
    }
}

fn p_text(p: f64) -> String {
    if p < 0.001 { "p < 0.001".into() } else { format!("p = {p:.3}") }
}

#[cfg(test)]
mod tests;
