//! `llmprof cost`: what a model needs for given inputs, only from its architecture.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, ValueEnum};
use llmprof_core::domain::{dtype::Dtype, json_numbers::Within, settings};
use llmprof_report::cost::{CostRequest, DEPTH, model_cost};
use llmprof_service::artifact::inputs;

use super::client::terminal;

/// Print the costs of a model: parameters, FLOPs, bytes moved, activations, keys and values
///
/// Counted per operator and stage, without running anything and without a GPU. The prompt's length
/// comes from --inputs or --prompt-tokens. With both, images come from --inputs and the length from
/// --prompt-tokens.
#[derive(Debug, Args)]
pub struct CostOptions {
    /// Name of a bundled model, or of one in the folder of models
    #[arg(long, value_name = "NAME")]
    model: String,
    /// Manifest with a prompt and images, which lie in its folder
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Prompt positions, images' positions included
    #[arg(long, value_name = "N", value_parser = Within::<1, 16_777_216>::text::<u64>)]
    prompt_tokens: Option<u64>,
    /// Tokens made after prefill
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = Within::<0, 16_777_216>::text::<u64>)]
    new_tokens: u64,
    /// Sequences of these inputs, computed at the same time
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = Within::<1, 1024>::text::<u32>)]
    batch: u32,
    /// Dtype: f32, f16 or bf16 [default: the model's]
    #[arg(long)]
    dtype: Option<Dtype>,
    /// Depth of module paths in the table by module: 1 is vision and decoder, 2 SAM, CLIP and the
    /// projector
    #[arg(long, value_name = "N", default_value_t = DEPTH as u8,
        value_parser = Within::<1, 16>::text::<u8>)]
    depth: u8,
    /// One row per layer, not per kind of layer
    #[arg(long)]
    per_layer: bool,
    /// Folder of models [default: the setting server.models]
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = CostFormat::Md)]
    format: CostFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CostFormat {
    Json,
    Md,
    Csv,
}

pub fn run(options: &CostOptions) -> Result<()> {
    let found = super::models(options.models.as_deref())?;
    let models = &found.models;
    let model = models.get(&options.model).ok_or_else(|| {
        if let Some(reason) = found.rejection(&options.model) {
            return anyhow!("model {} cannot be used: {reason}", options.model);
        }
        let names = models.keys().map(String::as_str);
        let hint = settings::nearest(&options.model, names.clone())
            .map(|near| format!("did you mean {near}?"));
        let hint =
            hint.unwrap_or_else(|| format!("there are {}", names.collect::<Vec<_>>().join(", ")));
        anyhow!("there is no model {}; {hint}", options.model)
    })?;
    let inputs = options.inputs.as_deref().map(read).transpose()?;
    let name = options.inputs.as_ref().map(|path| path.display().to_string());
    let sample = inputs.as_ref().and_then(|it| it.samples.first());
    let images: Vec<(u32, u32)> =
        sample.iter().flat_map(|it| &it.images).map(|it| (it.width, it.height)).collect();
    let answer = model_cost(&CostRequest {
        model,
        inputs: name.as_deref(),
        samples: inputs.as_ref().map_or(0, |it| it.samples.len()),
        prompt: sample.map(|it| it.prompt.as_str()),
        images: &images,
        prompt_tokens: options.prompt_tokens,
        new_tokens: options.new_tokens,
        batch: options.batch.into(),
        dtype: options.dtype,
        depth: options.depth.into(),
        per_layer: options.per_layer,
    })?;
    let text = match options.format {
        CostFormat::Json => answer.json(),
        CostFormat::Md => answer.markdown(),
        CostFormat::Csv => answer.csv(),
    };
    Ok(terminal::print(&text)?)
}

fn read(path: &Path) -> Result<inputs::Inputs> {
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str()).context("--inputs names no file")?;
    inputs::read(folder, name).with_context(|| format!("cannot use {}", path.display()))
}
