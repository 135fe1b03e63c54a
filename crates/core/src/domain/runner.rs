//! Interface between `llmprof` and `model-runner`: request, progress lines, exit codes, file names.
//!
//! Plain values. The runner's events are in [`crate::trace::event`].

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::domain::{
    dtype::Dtype,
    model::ModelSpec,
    profiling::{Profiling, RunnerPass},
};

/// Request file of `model-runner run --request FILE --out DIR`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunnerRequest {
    pub model: ModelSpec,
    /// Folder with `*.safetensors` and optionally `tokenizer.json`, or a file that contains the
    /// path of that folder; in a request file relative to its folder. Synthetic weights from `seed`
    /// when absent.
    pub weights: Option<PathBuf>,
    pub seed: u64,
    pub prompt: String,
    /// Paths of the images, in order; in a file relative to its folder.
    pub images: Vec<PathBuf>,
    /// Samples after the first, which is `prompt` with `images`; only for whole models. Each is
    /// warmed up and measured like the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_samples: Vec<RunnerSample>,
    /// Sequences generated together; only for whole models. A batch of one measures each sample
    /// separately; a larger one has the samples in order, again from the first after the last.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub batch: u32,
    pub dtype: Dtype,
    /// `cpu` or `cuda:INDEX`, as the runner sees it.
    pub device: String,
    /// UUID of the GPU or instance that every pass is confined to; then `device` is `cuda:0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    pub warmup: u32,
    pub repeats: u32,
    pub max_new_tokens: u32,
    /// New tokens that the KV cache has room for, if that is more than are generated: grids of
    /// attention kernels follow the room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_tokens: Option<u32>,
    /// Decode by replaying a captured CUDA graph, if the device supports it.
    pub decode_graph: bool,
    /// Time for which each stage runs back to back after the last repeat, for power readings,
    /// milliseconds; 0 skips it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub steady_ms: u32,
    /// Measure the device's own ceilings (matrix product, copy) after the last repeat.
    pub ceilings: bool,
    /// Module path of the only part to run, `decoder.layers.3.self_attn`; the whole model when
    /// absent.
    #[serde(default)]
    pub target: Option<String>,
    /// Prompt length in place of the inputs', in tokens; only for parts of a decoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    /// Build the part's whole layer and extract the part, instead of building only the part.
    #[serde(default)]
    pub extracted: bool,
    /// Flush the GPU's L2 cache before a prefill and between decode steps of a part, as the rest of
    /// the model would. The stage `decode_all` includes the flushes; its steps, and executions back
    /// to back, do not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cold_cache: bool,
    /// Record operators, as events.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub operators: bool,
    /// Record them as NVTX ranges, too; operators of captured graphs always are.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub operator_ranges: bool,
    /// Store the generated texts.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub predictions: bool,
    /// Execute the first sample once more after all others, to record the memory of a GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

/// A prompt with its images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunnerSample {
    pub prompt: String,
    pub images: Vec<PathBuf>,
}

impl RunnerRequest {
    /// Number of measurements: one per sample, or one of a batch.
    pub fn samples(&self) -> u32 {
        if self.batch == 1 { 1 + self.further_samples.len() as u32 } else { 1 }
    }

    /// The request as its settings define a pass: what it records.
    pub fn of_pass(&self, pass: RunnerPass, settings: &Profiling) -> Self {
        let operator_ranges = settings.operators_are_ranges(pass);
        let settings = &settings.runner;
        Self {
            operators: settings.operators.contains(&pass),
            operator_ranges,
            predictions: settings.predictions.contains(&pass),
            memory: settings.memory && pass == RunnerPass::Baseline,
            ..self.clone()
        }
    }

    /// The request with the first sample only; of a batch with all, which it reads together.
    pub fn first_sample(&self) -> Self {
        match self.batch {
            1 => Self { further_samples: Vec::new(), ..self.clone() },
            _ => self.clone(),
        }
    }

    /// The request with at most `most` new tokens. The KV cache keeps its size, so that the kernels
    /// are the same as in the whole request.
    pub fn with_new_tokens(&self, most: u32) -> Self {
        let is_shorter = most < self.max_new_tokens;
        Self {
            max_new_tokens: self.max_new_tokens.min(most),
            cache_tokens: is_shorter.then_some(self.cache_room()).or(self.cache_tokens),
            ..self.clone()
        }
    }

    /// New tokens that the KV cache has room for.
    pub fn cache_room(&self) -> u32 {
        self.cache_tokens.unwrap_or(0).max(self.max_new_tokens)
    }

    /// The request with its paths relative to `folder`, which shares a part of its path with them.
    pub fn relative_to(&self, folder: &Path) -> Self {
        self.with_paths(|image| relative(folder, image))
    }

    /// The request with its relative paths joined to `folder`.
    pub fn below(&self, folder: &Path) -> Self {
        self.with_paths(|image| folder.join(image))
    }

    fn with_paths(&self, change: impl Fn(&Path) -> PathBuf) -> Self {
        let changed = |images: &[PathBuf]| images.iter().map(|image| change(image)).collect();
        let further = self.further_samples.iter().map(|sample| RunnerSample {
            prompt: sample.prompt.clone(),
            images: changed(&sample.images),
        });
        let weights = self.weights.as_deref().map(&change);
        // The model's own path is of the host; the one of the request counts.
        let of_model = self.model.weights.as_ref().and(weights.clone());
        Self {
            model: ModelSpec { weights: of_model, ..self.model.clone() },
            weights,
            images: changed(&self.images),
            further_samples: further.collect(),
            ..self.clone()
        }
    }
}

/// The path from `folder` to `path`; `path` itself if either is relative or they share nothing but
/// the root.
fn relative(folder: &Path, path: &Path) -> PathBuf {
    let shared = folder.components().zip(path.components()).take_while(|(a, b)| a == b).count();
    if !folder.is_absolute() || shared < 2 {
        return path.to_owned();
    }
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(path.components().skip(shared)).collect()
}

const fn yes() -> bool {
    true
}

const fn is_yes(value: &bool) -> bool {
    *value
}

fn is_zero(ms: &u32) -> bool {
    *ms == 0
}

const fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

/// One line of JSON on the runner's standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// `load`, `warmup`, `measure`, `steady`, `memory` or `ceilings`.
    pub phase: String,
    pub done: u64,
    pub total: u64,
    /// Index of the sample, from 0; absent if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<u32>,
}

/// Output of `model-runner features`, one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// True if it was built with the feature `cuda`.
    pub cuda: bool,
    pub version: String,
}

/// Exit code for an invalid request; the last line of standard error is the reason.
pub const EXIT_BAD_INPUT: i32 = 2;

/// Events and ranges, one JSON object per line ([`crate::trace::event::Event`]).
pub const EVENTS: &str = "events.jsonl";
/// One line per measured repeat: `{"repeat", "tokens", "text"}`.
pub const PREDICTIONS: &str = "predictions.jsonl";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_a_common_folder_is_relative() {
        let way = |folder: &str, path: &str| relative(Path::new(folder), Path::new(path));
        assert_eq!(way("/runs/a", "/runs/a/inputs/1.png"), Path::new("inputs/1.png"));
        assert_eq!(way("/runs/a/mock/nsys", "/runs/a/b.png"), Path::new("../../b.png"));
        assert_eq!(way("/runs/a", "/srv/b.png"), Path::new("/srv/b.png"));
        assert_eq!(way("runs/a", "/runs/a/b.png"), Path::new("/runs/a/b.png"));
    }
}
