//! A limit for CI: stages and latencies of a comparison that are slower by at least a percentage.
//!
//! Compares one pair of runs. A gate uses the noise between the runs of a series.

use llmprof_analyze::{
    compare::{Change, ChangeVerdict, ComparabilityCheck},
    requests::LatencyMetric,
    series::gate::GateVerdict,
    stages::DECODE,
};

use super::{RunDiff, overview, request_latencies};
use crate::format::figure;

/// Compared latencies, outside every stage. The time per token is compared if the runs have
/// different numbers of decode steps.
pub(super) const PER_TOKEN: &str = "per token";
pub(super) const WHOLE_REPEAT: &str = "whole repeat";

/// The verdict on a limit, with its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowerVerdict {
    pub verdict: GateVerdict,
    pub reasons: Vec<String>,
    /// Latencies that neither run has.
    pub dropped: Vec<String>,
}

impl RunDiff {
    /// Judges whole stages, latencies and the whole repeat, but not parts of stages.
    ///
    /// A pass needs a verdict on each, and noise in which the limit would have been found. A
    /// latency that neither run has is dropped, if something else was measured.
    pub fn judge_slower(&self, limit_pct: f64) -> SlowerVerdict {
        let has = |name: &str| self.diff.stages.iter().any(|it| it.name == name);
        let of_requests = [LatencyMetric::OutputToken, LatencyMetric::EndToEnd];
        let [per_token, end_to_end] = of_requests.map(request_latencies::name);
        let same = [
            (PER_TOKEN, [DECODE, per_token.as_str()]),
            (WHOLE_REPEAT, [WHOLE_REPEAT, end_to_end.as_str()]),
        ];
        let dropped = same
            .into_iter()
            .filter(|(name, others)| !has(name) && !others.iter().any(|it| has(it)))
            .map(|(name, _)| format!("{name}: not measured in either run; dropped"))
            .collect();
        let of = |verdict, reasons| SlowerVerdict { verdict, reasons, dropped };
        if !self.diff.comparable {
            let reasons = self.diff.checks.iter().filter_map(ComparabilityCheck::obstacle);
            return of(GateVerdict::Inconclusive, reasons.collect());
        }
        let rows =
            || self.diff.stages.iter().filter(|it| it.stage.is_empty() || it.stage == it.name);
        let slower: Vec<String> = rows()
            .filter(|it| it.verdict == ChangeVerdict::Slower && reaches(it, limit_pct))
            .map(overview::sentence)
            .collect();
        if !slower.is_empty() {
            return of(GateVerdict::Regression, slower);
        }
        let mut open: Vec<String> = rows().filter_map(|it| open_reason(it, limit_pct)).collect();
        if rows().next().is_none() {
            open.push(overview::NO_TIMES.into());
        }
        let verdict = if open.is_empty() { GateVerdict::Passed } else { GateVerdict::Inconclusive };
        of(verdict, open)
    }
}

/// True for a change of at least the limit; a time that was 0 has no percentage.
fn reaches(it: &Change, limit_pct: f64) -> bool {
    it.change_pct.is_none_or(|pct| pct >= limit_pct)
}

/// The reason why a row that is not slower does not exclude a change by the limit.
fn open_reason(it: &Change, limit_pct: f64) -> Option<String> {
    let reason = match it.verdict {
        ChangeVerdict::Faster | ChangeVerdict::Slower => return None,
        ChangeVerdict::WithinNoise => {
            let limit_ms = it.a.map_or(0.0, |a| a.ms) * limit_pct / 100.0;
            match it.detectable_ms {
                Some(detectable_ms) if detectable_ms <= limit_ms => return None,
                Some(detectable_ms) => {
                    format!(
                        "the noise hides {} ms: {} ms would be found",
                        figure(limit_ms),
                        figure(detectable_ms)
                    )
                }
                None => "the smallest detectable change is unknown".into(),
            }
        }
        ChangeVerdict::Unknown
        | ChangeVerdict::NotComparable
        | ChangeVerdict::OnlyInA
        | ChangeVerdict::OnlyInB => it.reason.clone(),
    };
    Some(format!("{}: {reason}", it.name))
}
