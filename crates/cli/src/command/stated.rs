//! Options that state the model of a capture.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use llmprof_core::domain::stated_model::{ModelStatement, StatedModel};

use super::models;

/// The model of a capture and the sizes of its inputs, for floors, costs and MFU.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model of the capture")]
pub struct StatedOptions {
    /// The model that ran: its published config.json, or the name of a configured model
    #[arg(long, value_name = "FILE|NAME")]
    model_config: Option<String>,
    /// Prompt tokens of each sequence
    #[arg(long, value_name = "N", requires = "model_config")]
    prompt_tokens: Option<String>,
    /// Decode steps of one repeat [default: those of the capture]
    #[arg(long, value_name = "N", requires = "model_config")]
    new_tokens: Option<String>,
    /// Sequences computed at the same time [default: 1]
    #[arg(long, value_name = "N", requires = "model_config")]
    batch: Option<String>,
    /// Dtype: f32, f16 or bf16 [default: the model's]
    #[arg(long, requires = "model_config")]
    dtype: Option<String>,
    /// Folder of configured models [default: the setting server.models]
    #[arg(long, value_name = "DIR", requires = "model_config")]
    models: Option<PathBuf>,
}

impl StatedOptions {
    /// The stated model; `None` where no option is given.
    pub fn resolve(&self) -> Result<Option<StatedModel>> {
        let Some(config) = &self.model_config else { return Ok(None) };
        let path = Path::new(config);
        let text = match path.is_file() {
            true => fs::read_to_string(path).with_context(|| format!("cannot read {config}"))?,
            false => config.clone(),
        };
        let models = models(self.models.as_deref())?.models;
        let statement = ModelStatement {
            model_config: Some(text),
            prompt_tokens: self.prompt_tokens.clone(),
            new_tokens: self.new_tokens.clone(),
            batch: self.batch.clone(),
            dtype: self.dtype.clone(),
        };
        Ok(statement.resolve(&models)?)
    }
}
