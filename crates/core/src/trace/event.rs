//! Events that the model runner writes to `events.jsonl`, one JSON object per line.
//!
//! The wire format between the runner and the analysis; times are nanoseconds of `CLOCK_MONOTONIC`.
//! Stages and operators are known without any Nsight tool. The NVTX ranges are the same ones, but
//! for operators in passes that record them only as events.

use std::slice;

use serde::{Deserialize, Serialize};

/// Version of the format; readers reject newer versions.
pub const EVENT_SCHEMA: u32 = 4;

/// NVTX domain of stages: `prefill`, `decode_all`, `decode_step`, `vision`, `sam`, `clip`,
/// `projector`, `warmup`.
pub const STAGE_DOMAIN: &str = "LLM";
/// Name of the range of one decode step.
pub const DECODE_STEP: &str = "decode_step";
/// Range of the stage domain in which a decode step is captured for a graph.
pub const CAPTURE_RANGE: &str = "capture";
/// NVTX domain of operators, each named by its module path.
pub const OPERATOR_DOMAIN: &str = "LLM.op";

/// One line of `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// First line: the configuration that runs.
    Start(Start),
    /// Start of the measured repeats of a sample, of several; before its ranges.
    Sample(SampleStart),
    /// A stage's range, written when it closes.
    Range(StageRange),
    /// One call of an operator, written when it returns.
    Op(OperatorCall),
    /// Distinct experts that one MoE layer routed to in one forward.
    Experts(Experts),
    /// Result of one repeat.
    Output(Output),
    /// A stage repeated back to back, so that slow power readings cover nothing else.
    Steady(Steady),
    /// Device memory during one call of an operator or one range.
    Memory(MemoryUse),
    /// A ceiling measured on this device by the runner.
    Ceiling(Ceiling),
    /// Last line: the runner finished without being killed.
    End(End),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub schema: u32,
    pub t_ns: i64,
    /// Wall clock at `t_ns`, nanoseconds since 1970.
    pub unix_ns: i64,
    pub pid: u32,
    pub model: String,
    /// Module path of the only part that runs; absent for the whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// `synthetic` or `loaded`.
    pub weights: String,
    pub parameters: u64,
    pub weight_bytes: u64,
    pub dtype: String,
    pub device: String,
    pub threads: u32,
    /// Prompt tokens of all sequences of a batch.
    pub prompt_tokens: u64,
    /// Prompt tokens of each sequence of a batch; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<u64>,
    /// Prompt positions occupied by images (part of `prompt_tokens`).
    pub image_tokens: u64,
    /// Views of each image.
    pub images: Vec<ImageViews>,
    /// True when decode replays a captured CUDA graph.
    pub decode_graph: bool,
    /// True if the L2 cache is flushed before a prefill and before each decode step: the stage
    /// `decode_all` includes the flushes; its steps, and executions back to back, do not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cold_cache: bool,
    /// Time from process start to loaded weights, nanoseconds.
    pub load_ns: i64,
}

impl Start {
    /// True if the model ran on the CPU.
    pub fn is_on_cpu(&self) -> bool {
        self.device == "cpu"
    }

    /// Number of sequences that are computed at the same time.
    pub fn batch(&self) -> u64 {
        (self.sequences.len() as u64).max(1)
    }

    /// Prompt tokens of each sequence.
    pub fn prompts(&self) -> &[u64] {
        if self.sequences.is_empty() {
            slice::from_ref(&self.prompt_tokens)
        } else {
            &self.sequences
        }
    }
}

/// A sample of a run with several. `repeat` of its events counts on over all samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleStart {
    /// Index, from 0.
    pub sample: u32,
    /// First measured repeat, and number of them.
    pub first_repeat: u32,
    pub repeats: u32,
    pub prompt_tokens: u64,
    /// Prompt positions occupied by images (part of `prompt_tokens`).
    pub image_tokens: u64,
    /// Views of each image.
    pub images: Vec<ImageViews>,
}

/// Views of one page: a global view, and local crops when the page is larger than a crop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageViews {
    pub width: u32,
    pub height: u32,
    /// Side of the square global view, pixels.
    pub global_px: u32,
    /// Side of a square local crop, pixels; 0 without crops.
    pub crop_px: u32,
    pub crops_wide: u32,
    pub crops_high: u32,
    pub tokens: u64,
}

impl SampleStart {
    /// True if a measured repeat is of this sample.
    pub fn contains(&self, repeat: u32) -> bool {
        (self.first_repeat..self.first_repeat.saturating_add(self.repeats)).contains(&repeat)
    }
}

/// A range of the stage domain. `repeat` counts from 0, separately for warm-up and measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageRange {
    pub name: String,
    pub start_ns: i64,
    pub end_ns: i64,
    /// GPU time of the range, from CUDA events; absent on the CPU. The host closes a range inside a
    /// stage long before the GPU finishes its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_ns: Option<i64>,
    pub warmup: bool,
    pub repeat: u32,
    /// Index of the token for `decode_step`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
}

/// One call of an operator. Calls nest by time: a module's call encloses the calls of its
/// submodules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperatorCall {
    /// Module path, as in the names of the weights: `decoder.layers.3.self_attn.q_proj`.
    pub path: String,
    /// `module` for a scope that only encloses other calls; else linear, matmul, softmax, norm,
    /// conv, embedding, rope, activation, ...
    pub op: String,
    pub start_ns: i64,
    pub end_ns: i64,
    /// Thread of a call in a capture: calls of several threads do not nest. 0 of the runner, which
    /// has one.
    #[serde(skip)]
    pub thread: i64,
    /// True when it ran inside a replayed CUDA graph. The host executes only the replay, so the
    /// times do not measure the call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub captured: bool,
    pub warmup: bool,
    pub repeat: u32,
    /// The innermost of `prefill` and `decode_all`; empty outside both.
    pub stage: String,
    /// Shapes of the operands, activations before weights.
    pub shapes: Vec<Vec<u64>>,
    pub dtype: String,
    /// FLOPs of matrix products and convolutions, a multiply-add counted as two; 0 for other
    /// operators.
    pub flops: u64,
    /// Bytes of operands read and results written, each counted once.
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    pub layer: u32,
    pub stage: String,
    pub warmup: bool,
    pub repeat: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    pub distinct: u32,
    pub total: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Output {
    pub warmup: bool,
    pub repeat: u32,
    /// Generated tokens; in a batch, sequence after sequence.
    pub tokens: Vec<u32>,
    /// SHA-256 over the logits of every position sampled from, as little-endian f32; in a batch,
    /// over the logits of the first sequence.
    pub logits_sha256: String,
}

/// A stage repeated after the last measured repeat. It has no ranges or operators, and its time is
/// not a stage timing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    /// `prefill` or `decode_all`.
    pub stage: String,
    pub start_ns: i64,
    pub end_ns: i64,
    /// Complete runs of the stage between start and end.
    pub instances: u64,
}

/// Bytes in use for tensors and graphs on the device, as its allocator counts them when the host
/// allocates and frees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// The innermost of `prefill` and `decode_all`, or a range around both.
    pub stage: String,
    /// Module path of the operator; empty for the whole range.
    pub path: String,
    /// As in [`OperatorCall`]; empty for a range.
    pub op: String,
    /// In use before, at most during, and after the call, its result included.
    pub before_bytes: u64,
    pub peak_bytes: u64,
    pub after_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// `matmul` (FLOP/s) or `copy` (bytes/s, reads plus writes).
    pub what: String,
    pub dtype: String,
    /// Operand sizes, for judging the figure.
    pub shape: Vec<u64>,
    /// Best of `tries`, per second.
    pub per_second: f64,
    pub tries: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub t_ns: i64,
    /// Peak resident memory of the process, bytes.
    pub peak_rss_bytes: u64,
    /// Peak device memory, bytes; absent on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_device_bytes: Option<u64>,
}
