//! Options that state the model of a capture.

use std::{
    collections::BTreeMap,
    path::{MAIN_SEPARATOR, PathBuf},
};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use llmprof_core::domain::stated_model::{CaptureStatement, ModelStatement, StatementError};

use super::{local_file, models};

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
    /// Decode steps of one repeat; accepted without a model, for the time of a step
    /// [default: as many as in the capture]
    #[arg(long, value_name = "N")]
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
    /// The stated model, or the decode steps that are stated without one.
    pub fn resolve(&self) -> Result<CaptureStatement> {
        let model_config = self.model_config.as_deref().map(config_text).transpose()?;
        let models = match &model_config {
            Some(_) => models(self.models.as_deref())?.models,
            None => BTreeMap::new(),
        };
        let statement = ModelStatement {
            model_config,
            prompt_tokens: self.prompt_tokens.clone(),
            new_tokens: self.new_tokens.clone(),
            batch: self.batch.clone(),
            dtype: self.dtype.clone(),
        };
        statement.of_capture(&models).map_err(|error| anyhow!(as_option(&error)))
    }
}

/// An error of a statement that names the options in place of the fields of the API.
fn as_option(error: &StatementError) -> String {
    let text = error.to_string();
    match text.split_once(": ") {
        _ if *error == StatementError::WithoutPrompt => {
            "--prompt-tokens N is needed with --model-config; the costs of a model depend on its \
             prompt's length"
                .into()
        }
        Some((field, why)) if ModelStatement::FIELDS.contains(&field) => {
            format!("--{}: {why}", field.replace('_', "-"))
        }
        _ => text,
    }
}

/// The text of a config.json from its path or its folder, or else the name of a model as it is.
fn config_text(config: &str) -> Result<String> {
    let mut path = PathBuf::from(config);
    if path.is_dir() {
        path.push("config.json");
        if !path.is_file() {
            bail!(
                "--model-config {config}: the folder has no config.json; pass the config.json of \
                 the model"
            );
        }
    }
    let is_path = config.contains(MAIN_SEPARATOR) || config.ends_with(".json");
    if path.is_file() {
        local_file::read_text(&path, local_file::MAX_CONFIG)
    } else if is_path && !config.trim_start().starts_with('{') {
        bail!("--model-config {config}: no such file; pass the config.json of the model")
    } else {
        Ok(config.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_statement_names_the_option() {
        let missing = as_option(&StatementError::WithoutPrompt);
        assert!(missing.starts_with("--prompt-tokens N is needed with --model-config"));
        for (error, shown) in [
            (StatementError::WithoutDtype, "--dtype: missing; "),
            (StatementError::Config("no layers".into()), "--model-config: no layers"),
            (StatementError::Number("odd".into()), "odd"),
        ] {
            let text = as_option(&error);
            assert!(text.starts_with(shown), "{text}");
        }
    }

    #[test]
    fn a_config_is_the_text_of_a_file_or_folder_or_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().display().to_string();
        let error = |config: &str| config_text(config).unwrap_err().to_string();
        assert!(error(&folder).contains("the folder has no config.json; pass"));
        let file = dir.path().join("config.json");
        assert!(error(&file.display().to_string()).contains("no such file; pass"));
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(config_text(&folder).unwrap(), "{}");
        assert_eq!(config_text(&file.display().to_string()).unwrap(), "{}");
        for as_is in ["llama-tiny", r#"{"auto_map": "a/b.json"}"#] {
            assert_eq!(config_text(as_is).unwrap(), as_is);
        }
    }
}
