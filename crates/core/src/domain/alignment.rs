//! Alignments: the request (two runs, an operation, thresholds, waivers), states and verdicts.
//!
//! Plain values. `analyze::align` computes the verdicts.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::domain::{
    ids::{AlignmentId, RunId},
    json_numbers::{Within, object, objects},
    named_values::named_values,
    units::{capitalised, quantity},
};

named_values! {
    /// Verdict of a check or of a whole alignment; the latter is never `warn`.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[cfg_attr(feature = "schema", schema(as = AlignmentVerdict))]
    Verdict {
        Pass = "pass",
        Warn = "warn",
        Fail = "fail",
        /// The captures do not decide it; the checks contain the reason and the remedy.
        Inconclusive = "inconclusive",
    }
}

named_values! {
    /// State of an alignment. `failed`: the runs could not be read, for the reason in the message;
    /// an alignment with the verdict `fail` has succeeded.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    AlignmentState {
        Queued = "queued",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
    }
}

impl AlignmentState {
    /// True once the alignment has ended: the state does not change again.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

named_values! {
    /// Strictness of the comparison of kernel names.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[cfg_attr(feature = "schema", schema(as = NameLevel))]
    Level {
        /// Template arguments and parameters included.
        Exact = "exact",
        /// Only the function.
        Base = "base",
        /// The function without tile sizes and architecture.
        Family = "family",
    }
}

/// A side of an alignment, named alike in tables, pages and sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlignedSide {
    /// The part alone: the field `mock`.
    Mock,
    /// The same part inside the whole model: the field `e2e`.
    WholeModel,
}

impl AlignedSide {
    /// Both, in the order of tables.
    pub const BOTH: [Self; 2] = [Self::Mock, Self::WholeModel];

    /// The name in a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mock => "mock",
            Self::WholeModel => "whole model",
        }
    }

    /// The name at the head of a column or in front of a fact.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Mock => "Mock",
            Self::WholeModel => "Whole model",
        }
    }
}

/// One figure of each side in a sentence: `17 in the mock and 18 in the whole model`.
pub fn of_sides([mock, whole]: [impl Display; 2]) -> String {
    let [of_mock, of_whole] = AlignedSide::BOTH.map(AlignedSide::name);
    format!("{mock} in the {of_mock} and {whole} in the {of_whole}")
}

/// Request of an alignment. `mock` and `e2e` are required, and at most one of `range`, `operator`
/// and `kernels`; without any, the mock's sequence of kernels is searched in the other timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AlignmentSpec {
    /// Run of the layer alone.
    pub mock: RunId,
    /// Run of the whole model.
    pub e2e: RunId,
    /// Ranges whose launches are the operation: `RANGE` or `RANGE@DOMAIN`; `*` matches any text.
    #[serde(default)]
    #[cfg_attr(
        feature = "schema",
        schema(
            min_length = 1,
            max_length = 500,
            pattern = "[^*@ ]",
            example = "decoder.self_attn"
        )
    )]
    pub range: Option<String>,
    /// Module path of the operator whose launches are the operation; `*` matches any text.
    #[serde(default)]
    #[cfg_attr(
        feature = "schema",
        schema(
            min_length = 1,
            max_length = 500,
            pattern = "[^*@ ]",
            example = "decoder.layers.*.self_attn"
        )
    )]
    pub operator: Option<String>,
    /// Parts of kernel names; the kernels that match one are the operation.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 32))]
    pub kernels: Vec<String>,
    /// Stage to compare, `prefill` or `decode`, or a definition by ranges: `prefill=forward@vllm`;
    /// all but the warm-up when absent.
    #[serde(default)]
    #[cfg_attr(
        feature = "schema",
        schema(
            min_length = 1,
            max_length = 500,
            pattern = r"^(prefill|decode|decode_all|[^=]*[^=\s][^=]*=[^@][\s\S]*)$",
            example = "decode"
        )
    )]
    pub stage: Option<String>,
    /// Names of the only ranges to look at.
    #[serde(default, alias = "within")]
    #[cfg_attr(feature = "schema", schema(max_items = 32))]
    pub include_ranges: Vec<String>,
    /// Names of ranges to leave out.
    #[serde(default, alias = "without")]
    #[cfg_attr(feature = "schema", schema(max_items = 32))]
    pub exclude_ranges: Vec<String>,
    /// Required instances (one layer in one forward) on each side; with fewer, the verdict is
    /// inconclusive.
    #[serde(default, deserialize_with = "Within::<1, 1_000_000>::optional")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000000))]
    pub forwards: Option<u32>,
    /// Thresholds that replace the defaults one by one.
    #[serde(default, deserialize_with = "object")]
    pub thresholds: ThresholdChanges,
    /// Known differences.
    #[serde(default, deserialize_with = "objects")]
    #[cfg_attr(feature = "schema", schema(max_items = 100))]
    pub waivers: Vec<Waiver>,
    /// An earlier alignment; the report lists the verdicts that have changed since.
    #[serde(default)]
    pub previous: Option<AlignmentId>,
}

/// Changes of the default thresholds, each explained in `conf/alignment.toml`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ThresholdChanges {
    /// Strictness of the comparison of names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Level>,
    /// Share of the operation's time from which a kernel is critical, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub critical_pct: Option<f64>,
    /// Share of the operation's time that critical kernels cover together, percent: the longest
    /// kernels up to this share are critical, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub critical_set_pct: Option<f64>,
    /// Difference of kernels per instance, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub count_pct: Option<f64>,
    /// Instances whose order of kernels also occurs on the other side, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub sequence_pct: Option<f64>,
    /// Time in kernels that both sides launch, percent, and in the mock's usual sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub matched_time_pct: Option<f64>,
    /// Difference of latencies, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub latency_pct: Option<f64>,
    /// Ratio of the longer latency to the shorter one beyond which the two sides do not run the
    /// same work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1))]
    pub triage_ratio: Option<f64>,
    /// Share of the operation's time on either side from which a kernel's time is compared,
    /// percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub kernel_share_pct: Option<f64>,
    /// Difference of the mean time of such a kernel, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub kernel_time_pct: Option<f64>,
    /// Launches whose kernels a complete capture contains, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub complete_pct: Option<f64>,
    /// Difference of clocks and throttled time, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub clock_pct: Option<f64>,
    /// Difference of distinct experts that a layer hits, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub experts_pct: Option<f64>,
}

/// A known difference: kernels that the checks of names, counts, launch configurations and order
/// ignore. Their time still counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Waiver {
    /// Part of a kernel's full name; `*` matches any text.
    #[cfg_attr(
        feature = "schema",
        schema(
            min_length = 1,
            max_length = 500,
            pattern = "[^* ]",
            example = "CatArrayBatchedCopy"
        )
    )]
    pub pattern: String,
    #[cfg_attr(
        feature = "schema",
        schema(
            min_length = 1,
            max_length = 500,
            pattern = "[^* ]",
            example = "the mock keeps its cache in one piece"
        )
    )]
    pub reason: String,
    #[cfg_attr(
        feature = "schema",
        schema(
            min_length = 1,
            max_length = 500,
            pattern = "[^* ]",
            example = "one copy a step, 2 us"
        )
    )]
    pub impact: String,
    /// Last day on which it applies, `YYYY-MM-DD`.
    #[cfg_attr(
        feature = "schema",
        schema(
            pattern = "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$",
            example = "2027-03-31"
        )
    )]
    pub expires: String,
}

/// Summary of one check; its evidence is in the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckSummary {
    #[cfg_attr(feature = "schema", schema(example = "latency"))]
    pub id: String,
    pub verdict: Verdict,
    pub observed: String,
    pub threshold: String,
    /// True if an inconclusive result prevents a pass of the alignment.
    pub decisive: bool,
    /// Recommended action if it did not pass.
    pub advice: Option<String>,
}

/// Returns whether all other checks depend on the check `id`.
pub fn is_precondition(id: &str) -> bool {
    ["complete", "isolation"].contains(&id)
}

/// The checks that decide a verdict other than pass: those that fail, or those that are
/// inconclusive; only preconditions if one of them is.
pub fn decisive(verdict: Verdict, checks: &[CheckSummary]) -> Vec<&CheckSummary> {
    let is_blocked =
        checks.iter().any(|it| is_precondition(&it.id) && it.verdict == Verdict::Inconclusive);
    let decides =
        |it: &&CheckSummary| it.decisive && it.verdict == verdict && verdict != Verdict::Pass;
    let checks = checks.iter().filter(decides);
    checks.filter(|it| !is_blocked || is_precondition(&it.id)).collect()
}

/// The verdict as a clause in lower case, also used in findings.
pub const fn conclusion(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass | Verdict::Warn => "the mock matches the whole model",
        Verdict::Fail => "the mock does not match the whole model",
        Verdict::Inconclusive => {
            "the captures do not show whether the mock matches the whole model"
        }
    }
}

/// The verdict in a sentence, with the observation that decides it and its remedy.
pub fn answer(verdict: Verdict, checks: &[CheckSummary]) -> String {
    let decisive = decisive(verdict, checks);
    let observed = decisive.first().map_or("", |it| it.observed.as_str());
    let advice = decisive.iter().find_map(|it| it.advice.as_deref()).unwrap_or_default();
    let reason = match verdict {
        Verdict::Pass | Verdict::Warn => {
            let passed = checks.iter().filter(|it| it.verdict != Verdict::Inconclusive).count();
            let warned = checks.iter().filter(|it| it.verdict == Verdict::Warn).count();
            let warned = match warned {
                0 => String::new(),
                count => format!(", {count} of them with a warning"),
            };
            format!("{} passed{warned}.", quantity(passed as u64, "check"))
        }
        Verdict::Fail => {
            let ids: Vec<&str> = decisive.iter().map(|it| it.id.as_str()).collect();
            format!("{observed} (failed: {}). {advice}", ids.join(", "))
        }
        Verdict::Inconclusive => format!("{observed}. {advice}"),
    };
    format!("{}: {}", capitalised(conclusion(verdict)), reason.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(id: &str, verdict: Verdict) -> CheckSummary {
        CheckSummary {
            id: id.into(),
            verdict,
            observed: format!("seen by {id}"),
            threshold: String::new(),
            decisive: true,
            advice: (verdict != Verdict::Pass).then(|| format!("Repair {id}.")),
        }
    }

    #[test]
    fn an_answer_has_the_deciding_observation_and_its_remedy() {
        use Verdict::{Fail, Inconclusive, Pass, Warn};
        let answer = |verdict, checks: &[(&str, Verdict)]| {
            let checks: Vec<_> = checks.iter().map(|(id, verdict)| check(id, *verdict)).collect();
            answer(verdict, &checks)
        };
        assert_eq!(
            answer(Pass, &[("complete", Pass), ("names", Warn), ("clocks", Inconclusive)]),
            "The mock matches the whole model: 2 checks passed, 1 of them with a warning."
        );
        assert_eq!(
            answer(Fail, &[("complete", Pass), ("names", Fail), ("counts", Fail)]),
            "The mock does not match the whole model: seen by names (failed: names, counts). \
             Repair names."
        );
        let blocked = [("complete", Inconclusive), ("isolation", Pass), ("names", Inconclusive)];
        assert_eq!(
            answer(Inconclusive, &blocked),
            "The captures do not show whether the mock matches the whole model: seen by \
             complete. Repair complete."
        );
    }
}
