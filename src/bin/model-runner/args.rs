//! The command line: a request file from `llmprof`, or the same request put together by hand.
//!
//! Reads the files that describe a model; builds nothing.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Parser, Subcommand};
use llmprof::{
    model::{ModelError, ModelSpec, hf},
    run::Dtype,
    runner::RunnerRequest,
};

/// Presets that need no file.
const PRESETS: &[(&str, &str)] = &[
    ("deepseek-ocr", include_str!("../../../conf/models/deepseek-ocr.toml")),
    ("deepseek-ocr-tiny", include_str!("../../../conf/models/deepseek-ocr-tiny.toml")),
];

/// Runs one model on one input, repeatedly, and writes what happened when.
///
/// Writes DIR/events.jsonl (stages, operators, outputs, on the monotonic clock) and DIR/predictions.jsonl (tokens, and text where
/// a tokenizer lies beside the weights). Stages and operators are NVTX ranges too, in the domains `LLM` and `LLM.op`, for any tool
/// that listens. Progress goes to standard output as JSON lines, the log to standard error (RUST_LOG sets its level).
///
/// Exit codes: 0 done; 2 the request cannot be honoured, and the last line of standard error says why; 1 anything else.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 120,
    after_help = "\
Examples:
  model-runner run --model deepseek-ocr-tiny --image page.png --out out
  model-runner run --model DeepSeek-OCR/config.json --weights DeepSeek-OCR --image page.png --device cuda:0 --dtype bf16 --out out
  nsys profile -t nvtx,osrt model-runner run --model deepseek-ocr-tiny --image page.png --out out"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Warm up, measure, write events.
    Run(Box<Run>),
}

#[derive(Debug, clap::Args)]
pub struct Run {
    /// Request as JSON; instead of everything below but --out.
    #[arg(long, value_name = "FILE", required_unless_present = "model", conflicts_with_all = ["model", "weights", "image", "prompt", "seed", "dtype", "device", "warmup", "repeats", "max_new_tokens", "ceilings"])]
    request: Option<PathBuf>,
    /// Preset (deepseek-ocr, deepseek-ocr-tiny), a model's .toml, or a Hugging Face config.json.
    #[arg(long, value_name = "NAME|FILE")]
    model: Option<String>,
    /// Folder with *.safetensors and perhaps tokenizer.json; synthetic weights without.
    #[arg(long, value_name = "DIR")]
    weights: Option<PathBuf>,
    /// An image; may be repeated. `<image>` in the prompt says where each goes.
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    #[arg(long, default_value = "Free OCR.")]
    prompt: String,
    /// Seed of synthetic weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// f32, f16 or bf16; the model's default for the device when absent.
    #[arg(long)]
    dtype: Option<Dtype>,
    /// cpu or cuda:INDEX.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Repeats before those that count.
    #[arg(long, default_value_t = 1)]
    warmup: u32,
    /// Repeats that count.
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Tokens to generate after the first.
    #[arg(long, default_value_t = 16)]
    max_new_tokens: u32,
    /// Measure the device's own ceilings too.
    #[arg(long)]
    ceilings: bool,
    /// Where to write; made when missing.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Why the command line gives no request.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no request: {reason}")]
    Request { path: PathBuf, reason: String },
    #[error("{model} is neither a preset ({}) nor a .toml or .json file", PRESETS.iter().map(|p| p.0).collect::<Vec<_>>().join(", "))]
    UnknownModel { model: String },
    #[error("{model}: {source}")]
    Model { model: String, source: ModelError },
}

impl Run {
    /// The request, from its file or from the options.
    pub fn request(&self) -> Result<RunnerRequest, ArgsError> {
        if let Some(path) = &self.request {
            return serde_json::from_str(&read(path)?)
                .map_err(|e| ArgsError::Request { path: path.clone(), reason: e.to_string() });
        }
        let model = read_model(self.model.as_deref().unwrap_or_default())?;
        let dtype = self.dtype.unwrap_or(if self.device == "cpu" { model.cpu_dtype } else { model.dtype });
        Ok(RunnerRequest {
            weights: self.weights.clone().or(model.weights.clone()),
            model,
            seed: self.seed,
            prompt: self.prompt.clone(),
            images: self.image.clone(),
            dtype,
            device: self.device.clone(),
            warmup: self.warmup,
            repeats: self.repeats,
            max_new_tokens: self.max_new_tokens,
            decode_graph: false,
            ceilings: self.ceilings,
        })
    }
}

fn read(path: &Path) -> Result<String, ArgsError> {
    fs::read_to_string(path).map_err(|source| ArgsError::Read { path: path.to_owned(), source })
}

fn read_model(model: &str) -> Result<ModelSpec, ArgsError> {
    let preset = PRESETS.iter().find(|(name, _)| *name == model);
    let path = Path::new(model);
    let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let parsed = match (preset, path.extension().and_then(|e| e.to_str())) {
        (Some((name, text)), _) => parse_toml(name, text),
        (None, Some("toml")) => parse_toml(&stem, &read(path)?),
        (None, Some("json")) => hf::parse_config(&stem, &read(path)?),
        _ => return Err(ArgsError::UnknownModel { model: model.to_owned() }),
    };
    parsed.map_err(|source| ArgsError::Model { model: model.to_owned(), source })
}

fn parse_toml(name: &str, text: &str) -> Result<ModelSpec, ModelError> {
    let spec: ModelSpec = toml::from_str(text).map_err(|e| ModelError::Parse(e.message().to_owned()))?;
    Ok(ModelSpec { name: name.to_owned(), ..spec })
}
