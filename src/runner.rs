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
    /// `cpu` or `cuda:INDEX`.
    pub device: String,
    pub warmup: u32,
    pub repeats: u32,
    pub max_new_tokens: u32,
    /// Decode by replaying a captured CUDA graph, where the device can.
    pub decode_graph: bool,
    /// Measure the device's own ceilings (matrix product, copy) after the last repeat.
    pub ceilings: bool,
}

/// One line of JSON on the runner's standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// `load`, `warmup`, `measure` or `ceilings`.
    pub phase: String,
    pub done: u64,
    pub total: u64,
}

/// The request could not be honoured: the last line of standard error says why, in one line.
pub const EXIT_BAD_INPUT: i32 = 2;

/// Events and ranges, one JSON object a line ([`crate::trace::event::Event`]).
pub const EVENTS: &str = "events.jsonl";
/// One line per measured repeat: `{"repeat", "tokens", "text"}`.
pub const PREDICTIONS: &str = "predictions.jsonl";
