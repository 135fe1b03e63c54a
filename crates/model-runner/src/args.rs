//! The command line: a request file from `llmprof`, or the same request as options.
//!
//! Reads the files that describe a model; builds nothing.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Parser, Subcommand};
use llmprof_core::domain::{
    dtype::Dtype,
    model::{ModelError, ModelSpec, PRESETS, hf},
    runner::RunnerRequest,
};

/// Runs one model, or one part of it, on one input, repeatedly, and writes timed events.
///
/// Writes DIR/events.jsonl (stages, operators, outputs, on the monotonic clock) and
/// DIR/predictions.jsonl (tokens, and text if there is a tokenizer next to the weights). Stages and
/// operators are NVTX ranges too, in the domains `LLM` and `LLM.op`, for an attached profiler.
/// Progress goes to standard output as JSON lines, the log to standard error (RUST_LOG sets its
/// level).
///
/// Exit codes: 0 success; 2 invalid request, with the reason in the last line of standard error; 1
/// any other error.
#[derive(Debug, Parser)]
#[command(
    name = "model-runner",
    version,
    max_term_width = 120,
    after_help = "\
Examples:
  model-runner run --model deepseek-ocr-tiny --image page.png --out out
  model-runner run --model DeepSeek-OCR/config.json --weights DeepSeek-OCR --image page.png \\
    --device cuda:0 --dtype bf16 --out out
  model-runner run --target deepseek-ocr:decoder.layers.3.self_attn --prompt-tokens 918 \\
    --device cuda:0 --out out
  model-runner bench --model deepseek-ocr --prompt-tokens 918 --max-new-tokens 64 --device cuda:0
  nsys profile -t nvtx,osrt model-runner run --model deepseek-ocr-tiny --image page.png --out out

Without a command, `run` is executed."
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Warm up, measure, write events.
    Run(Box<RunOptions>),
    /// Warm up, measure, print the times of the stages as JSON.
    Bench(Box<WorkloadOptions>),
    /// Print the features of this build as JSON.
    Features,
}

#[derive(Debug, clap::Args)]
pub struct RunOptions {
    /// Request as JSON; replaces every option except --out.
    #[arg(long, value_name = "FILE", conflicts_with = "WorkloadOptions")]
    request: Option<PathBuf>,
    #[command(flatten)]
    workload: WorkloadOptions,
    /// Run each stage back to back for this time after the last repeat, untimed, to sample the
    /// device's power.
    #[arg(long, value_name = "MS", default_value_t = 0, conflicts_with = "request")]
    steady_ms: u32,
    /// Measure the device's ceilings as well.
    #[arg(long)]
    ceilings: bool,
    /// Operators as NVTX ranges as well as events; a profiler takes about a microsecond for each.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        conflicts_with = "request"
    )]
    operator_ranges: bool,
    /// Output folder, created if missing.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// The model or part to run, its input, and the number of repeats.
#[derive(Debug, clap::Args)]
pub struct WorkloadOptions {
    #[arg(long, value_name = "NAME|FILE", help = model_help())]
    model: Option<String>,
    /// Run only this part of a model, built separately: deepseek-ocr:decoder.layers.3.self_attn,
    /// ...mlp, :vision.sam.blocks.2.
    #[arg(long, value_name = "MODEL:PATH", conflicts_with = "model")]
    target: Option<String>,
    /// Build the target's whole layer, extract the part, and verify that its outputs equal the
    /// separately built part's.
    #[arg(long, requires = "target")]
    extracted: bool,
    /// On a GPU: flush the L2 cache before a prefill and between decode steps of the part, as the
    /// rest of the model would, except in executions back to back.
    #[arg(long, requires = "target")]
    cold_cache: bool,
    /// Folder with *.safetensors and optionally tokenizer.json; synthetic weights if omitted.
    #[arg(long, value_name = "DIR")]
    weights: Option<PathBuf>,
    /// An image; may be repeated. `<image>` in the prompt marks the position of each.
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    #[arg(long, default_value = "Free OCR.")]
    prompt: String,
    /// Synthetic prompt of N tokens, for weights without a tokenizer, whose tokens are bytes.
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "prompt",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    prompt_tokens: Option<u32>,
    /// Seed of synthetic weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// f32, f16 or bf16; the model's default for the device if omitted.
    #[arg(long)]
    dtype: Option<Dtype>,
    /// cpu or cuda:INDEX.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Warm-up repeats, not measured.
    #[arg(long, default_value_t = 1)]
    warmup: u32,
    /// Measured repeats.
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Tokens to generate after the first.
    #[arg(long, default_value_t = 16)]
    max_new_tokens: u32,
    /// Sequences generated together, each from the prompt.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "target")]
    batch: u32,
    /// Decode by replaying a captured CUDA graph; the default on a CUDA device.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    decode_graph: Option<bool>,
}

/// An invalid command line.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "cannot read {path}: {source}; put the folder of the weights there, or a file with its path"
    )]
    Weights { path: PathBuf, source: io::Error },
    #[error("invalid request {path}: {reason}")]
    Request { path: PathBuf, reason: String },
    #[error("nothing to run: give --model, --target or --request")]
    Nothing,
    #[error(
        "invalid --target {0}; expected MODEL:PATH, as in deepseek-ocr:decoder.layers.3.self_attn"
    )]
    Target(String),
    #[error("unknown model {model}; expected a preset ({}), or a .toml or .json file", presets())]
    UnknownModel { model: String },
    #[error("{model}: {source}")]
    Model { model: String, source: ModelError },
}

fn model_help() -> String {
    format!("Preset ({}), a model's .toml, or a Hugging Face config.json", presets())
}

fn presets() -> String {
    PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Parses the command line; the command `run` is the default.
pub fn parse() -> Args {
    let mut given: Vec<_> = std::env::args_os().collect();
    let option = given.get(1).is_some_and(|first| first.as_encoded_bytes().starts_with(b"--"));
    if option && !["--help", "--version"].iter().any(|alone| given[1] == *alone) {
        given.insert(1, "run".into());
    }
    Args::parse_from(given)
}

impl RunOptions {
    /// The request, from its file or from the options.
    pub fn request(&self) -> Result<RunnerRequest, ArgsError> {
        match &self.request {
            Some(path) => {
                let invalid = |reason: String| ArgsError::Request { path: path.clone(), reason };
                let request: RunnerRequest =
                    serde_json::from_str(&read(path)?).map_err(|e| invalid(e.to_string()))?;
                let request = request.below(path.parent().unwrap_or(Path::new("")));
                let weights = request.weights.as_deref().map(weights_folder).transpose()?;
                Ok(RunnerRequest { weights, ..request })
            }
            None => Ok(RunnerRequest {
                steady_ms: self.steady_ms,
                ceilings: self.ceilings,
                operator_ranges: self.operator_ranges,
                ..self.workload.request()?
            }),
        }
    }
}

impl WorkloadOptions {
    /// The request in the options.
    pub fn request(&self) -> Result<RunnerRequest, ArgsError> {
        let (model, target) = match (&self.model, &self.target) {
            (Some(model), _) => (model.as_str(), None),
            (None, Some(target)) => match target.rsplit_once(':') {
                Some((model, path)) => (model, Some(path.to_owned())),
                None => return Err(ArgsError::Target(target.clone())),
            },
            (None, None) => return Err(ArgsError::Nothing),
        };
        let model = read_model(model)?;
        let dtype = self.dtype.unwrap_or_else(|| model.default_dtype(self.device == "cpu"));
        Ok(RunnerRequest {
            weights: self.weights.clone().or(model.weights.clone()),
            model,
            seed: self.seed,
            prompt: self.prompt_tokens.map_or_else(|| self.prompt.clone(), synthetic_prompt),
            images: self.image.clone(),
            further_samples: Vec::new(),
            batch: self.batch,
            dtype,
            device: self.device.clone(),
            gpu: None,
            warmup: self.warmup,
            repeats: self.repeats,
            max_new_tokens: self.max_new_tokens,
            cache_tokens: None,
            decode_graph: self.decode_graph.unwrap_or(self.device != "cpu"),
            steady_ms: 0,
            ceilings: false,
            target,
            prompt_tokens: None,
            extracted: self.extracted,
            cold_cache: self.cold_cache,
            operators: true,
            operator_ranges: true,
            predictions: true,
            memory: false,
        })
    }
}

/// A prompt of `tokens - 1` letters, which are `tokens` tokens with BOS; no letter is repeated in a
/// row.
fn synthetic_prompt(tokens: u32) -> String {
    (1..tokens).map(|i| char::from(b'a' + (i * 7 % 26) as u8)).collect()
}

/// The folder of the weights that a request names: `path`, or the content of the file there.
fn weights_folder(path: &Path) -> Result<PathBuf, ArgsError> {
    if path.is_dir() {
        return Ok(path.to_owned());
    }
    let folder = fs::read_to_string(path)
        .map_err(|source| ArgsError::Weights { path: path.to_owned(), source })?;
    Ok(folder.trim_end().into())
}

fn read(path: &Path) -> Result<String, ArgsError> {
    fs::read_to_string(path).map_err(|source| ArgsError::Read { path: path.to_owned(), source })
}

fn read_model(model: &str) -> Result<ModelSpec, ArgsError> {
    let preset = PRESETS.iter().find(|(name, _)| *name == model);
    let path = Path::new(model);
    let stem =
        path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let parsed = match (preset, path.extension().and_then(|e| e.to_str())) {
        (Some((name, text)), _) => parse_toml(name, text),
        (None, Some("toml")) => parse_toml(&stem, &read(path)?),
        (None, Some("json")) => hf::parse_config(&stem, &read(path)?),
        _ => return Err(ArgsError::UnknownModel { model: model.to_owned() }),
    };
    parsed.map_err(|source| ArgsError::Model { model: model.to_owned(), source })
}

fn parse_toml(name: &str, text: &str) -> Result<ModelSpec, ModelError> {
    let spec: ModelSpec =
        toml::from_str(text).map_err(|e| ModelError::Parse(e.message().to_owned()))?;
    Ok(ModelSpec { name: name.to_owned(), ..spec })
}
