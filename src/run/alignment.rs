//! The words of an alignment: which two runs, how the operation is found, what counts, and what came of it.
//!
//! Plain values. How a verdict is reached is in `analyze::align`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    AlignmentId, RunId, UnknownWord,
    whole::{maybe_whole, object, objects},
    words,
};

words! {
    /// What is said of a check, and of the whole, which never warns.
    #[schema(as = AlignmentVerdict)]
    Verdict {
        Pass = "pass",
        Warn = "warn",
        Fail = "fail",
        /// The captures do not decide it; the checks say why, and what to do.
        Inconclusive = "inconclusive",
    }
}

words! {
    /// Where an alignment stands. `failed`: the runs could not be read, and the message says why; a verdict of `fail` is a success.
    AlignmentState {
        Queued = "queued",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
    }
}

impl AlignmentState {
    /// Says whether it has ended: its state will not change again.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

words! {
    /// How strictly names of kernels are compared.
    #[schema(as = NameLevel)]
    Level {
        /// Template arguments and parameters included.
        Exact = "exact",
        /// The function alone.
        Base = "base",
        /// The function without tile sizes and architecture.
        Family = "family",
    }
}

/// What is to be aligned. `mock` and `e2e` are required; of `range`, `operator` and `kernels` at most one is given, and without
/// any the mock's sequence of kernels is looked for in the other timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AlignmentSpec {
    /// Run of the layer alone.
    pub mock: RunId,
    /// Run of the whole model.
    pub e2e: RunId,
    /// The operation is what ranges of this name launch, `RANGE` or `RANGE@DOMAIN`; `*` stands for anything.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 500, pattern = "[^*@ ]", example = "decoder.self_attn")]
    pub range: Option<String>,
    /// The operation is what the operator at this module path launches; `*` stands for anything.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 500, pattern = "[^*@ ]", example = "decoder.layers.*.self_attn")]
    pub operator: Option<String>,
    /// The operation is kernels with one of these in their names.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub kernels: Vec<String>,
    /// Stage that counts, `prefill` or `decode`, or which ranges are one: `prefill=forward@vllm`; all but the warm-up when absent.
    #[serde(default)]
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^(prefill|decode|decode_all|[^=]*[^=\s][^=]*=[^@][\s\S]*)$",
        example = "decode"
    )]
    pub stage: Option<String>,
    /// Only what lies in ranges of these names counts.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub within: Vec<String>,
    /// Nothing in ranges of these names counts.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub without: Vec<String>,
    /// Instances (one layer in one forward) that must count on each side; with fewer nothing is decided.
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1, maximum = 1000000)]
    pub forwards: Option<u32>,
    /// Single thresholds in place of the defaults.
    #[serde(default, deserialize_with = "object")]
    pub thresholds: ThresholdChanges,
    /// Known differences.
    #[serde(default, deserialize_with = "objects")]
    #[schema(max_items = 100)]
    pub waivers: Vec<Waiver>,
    /// An earlier alignment; the report tells which verdicts changed since.
    #[serde(default)]
    pub previous: Option<AlignmentId>,
}

/// Thresholds that go over the defaults, each explained in `conf/alignment.toml`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ThresholdChanges {
    /// How strictly names are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Level>,
    /// Share of the operation's time from which a kernel is critical, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub critical_pct: Option<f64>,
    /// So is each of the smallest set that covers this share, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub critical_set_pct: Option<f64>,
    /// Difference of kernels per instance, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub count_pct: Option<f64>,
    /// Instances whose order the other side has too, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub sequence_pct: Option<f64>,
    /// Time in kernels that both sides launch, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub matched_time_pct: Option<f64>,
    /// Difference of latencies, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub latency_pct: Option<f64>,
    /// Ratio of latencies beyond which something else is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub triage_ratio: Option<f64>,
    /// Share of the operation's time on either side from which a kernel's time decides, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub kernel_share_pct: Option<f64>,
    /// Difference of the mean time of such a kernel, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub kernel_time_pct: Option<f64>,
    /// Launches whose kernels a whole capture holds, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub complete_pct: Option<f64>,
    /// Difference of clocks and throttled time, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub clock_pct: Option<f64>,
    /// Difference of distinct experts that a layer hits, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub experts_pct: Option<f64>,
}

/// A known difference: kernels that no check of names, counts, geometry and order looks at. Their time still counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Waiver {
    /// Part of a kernel's full name, `*` for anything.
    #[schema(min_length = 1, max_length = 500, pattern = "[^* ]", example = "CatArrayBatchedCopy")]
    pub pattern: String,
    #[schema(min_length = 1, max_length = 500, pattern = "[^* ]", example = "the mock keeps its cache in one piece")]
    pub reason: String,
    #[schema(min_length = 1, max_length = 500, pattern = "[^* ]", example = "one copy a step, 2 us")]
    pub impact: String,
    /// Last day on which it applies, `YYYY-MM-DD`.
    #[schema(pattern = "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$", example = "2027-03-31")]
    pub expires: String,
}

/// One check as a list shows it; its evidence is in the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CheckSummary {
    #[schema(example = "latency")]
    pub id: String,
    pub verdict: Verdict,
    pub observed: String,
    pub threshold: String,
    /// Whether an inconclusive one keeps the whole from passing.
    pub decisive: bool,
    /// What to do where it did not pass.
    pub advice: Option<String>,
}
