//! What `llmprof` and `model-runner` say to each other: the request, the progress lines, the exit codes, the file names.
//!
//! Plain values, open to every module of both binaries. The events that a runner writes are in [`crate::trace::event`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{model::ModelSpec, run::Dtype};

/// The request file handed to `model-runner run --request FILE --out DIR`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunnerRequest {
    pub model: ModelSpec,
    /// Folder with `*.safetensors` and perhaps `tokenizer.json`; synthetic weights from `seed` when absent.
    pub weights: Option<PathBuf>,
    pub seed: u64,
    pub prompt: String,
    /// Absolute paths of the images, in order.
    pub images: Vec<PathBuf>,
    pub dtype: Dtype,
    /// `cpu` or `cuda:INDEX`, as the runner sees it.
    pub device: String,
    /// The GPU, or instance of one, that every pass is confined to; then `device` is `cuda:0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    pub warmup: u32,
    pub repeats: u32,
    pub max_new_tokens: u32,
    /// Decode by replaying a captured CUDA graph, where the device can.
    pub decode_graph: bool,
    /// How long each stage runs back to back after the last repeat, for readings of power, milliseconds; 0: not at all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub steady_ms: u32,
    /// Measure the device's own ceilings (matrix product, copy) after the last repeat.
    pub ceilings: bool,
    /// Module path of the only part to run, `decoder.layers.3.self_attn`; the whole model when absent.
    #[serde(default)]
    pub target: Option<String>,
    /// Positions of the prompt in place of the text's and the images'; of a part of a decoder alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    /// Build the part's whole layer and take it out, instead of building the part alone.
    #[serde(default)]
    pub extracted: bool,
    /// Before a prefill and between decode steps of a part, read other data until the GPU's second-level cache holds nothing of it, as the
    /// rest of the model would; the stage `decode_all` then holds that too, its steps do not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cold_cache: bool,
}

fn is_zero(ms: &u32) -> bool {
    *ms == 0
}

/// One line of JSON on the runner's standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// `load`, `warmup`, `measure`, `steady` or `ceilings`.
    pub phase: String,
    pub done: u64,
    pub total: u64,
}

/// What `model-runner features` prints, as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// Whether it was built for CUDA.
    pub cuda: bool,
    pub version: String,
}

/// The request could not be honoured: the last line of standard error says why, in one line.
pub const EXIT_BAD_INPUT: i32 = 2;

/// Events and ranges, one JSON object a line ([`crate::trace::event::Event`]).
pub const EVENTS: &str = "events.jsonl";
/// One line per measured repeat: `{"repeat", "tokens", "text"}`.
pub const PREDICTIONS: &str = "predictions.jsonl";
