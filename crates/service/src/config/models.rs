//! Models of this host: the bundled ones, overridden by a folder's models.
//!
//! An unusable model is left out with its reason and does not affect the others.

use std::{collections::BTreeMap, path::Path};

use llmprof_core::domain::model::{ModelError, ModelSpec, PRESETS, hf};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ConfigError, entries, read};

/// Configured models by name.
pub type Models = BTreeMap<String, ModelSpec>;

/// An unusable model of the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedModel {
    #[schema(example = "mistral-7b-v0.1")]
    pub name: String,
    /// In one line.
    #[schema(example = "the model has a sliding_window of 4096 in a context of 32768, \
                        which is not supported")]
    pub reason: String,
}

/// Usable and rejected models.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FoundModels {
    pub models: Models,
    pub refused: Vec<RefusedModel>,
}

/// Loads the bundled models and the models of `folder`: `NAME.toml`, and folders `NAME/` with a
/// published `config.json` and optional weights next to it. Fails if the folder is unreadable.
pub fn models(folder: Option<&Path>) -> Result<FoundModels, ConfigError> {
    let mut found = FoundModels::default();
    for (name, text) in PRESETS {
        found.models.insert((*name).to_owned(), parse_model(name, text)?);
    }
    for path in folder.map(entries).transpose()?.unwrap_or_default() {
        let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = stem.unwrap_or_default().to_string_lossy().into_owned();
        match load_model(&name, &path) {
            Ok(None) => {}
            Ok(Some(model)) => drop(found.models.insert(name, model)),
            Err(error) => {
                // The bundled model of this name is not a substitute.
                found.models.remove(&name);
                found.refused.push(RefusedModel { reason: one_line(&error), name });
            }
        }
    }
    Ok(found)
}

impl FoundModels {
    /// Returns the reason why the model `name` is unusable, if it is.
    pub fn rejection(&self, name: &str) -> Option<&str> {
        rejection(&self.refused, name)
    }
}

/// Returns the reason of the model `name`, if it is among `refused`.
pub fn rejection<'a>(refused: &'a [RefusedModel], name: &str) -> Option<&'a str> {
    refused.iter().find(|model| model.name == name).map(|model| model.reason.as_str())
}

/// Loads the model at `path`; `None` if it is not a model.
fn load_model(name: &str, path: &Path) -> Result<Option<ModelSpec>, ConfigError> {
    let published = path.join("config.json");
    if path.extension().is_some_and(|extension| extension == "toml") && !path.is_dir() {
        return parse_model(name, &read(path)?).map(Some);
    }
    if !published.is_file() {
        return Ok(None);
    }
    let model =
        hf::parse_config(name, &read(&published)?).map_err(|source| invalid(name, source))?;
    let weights =
        entries(path)?.iter().any(|file| file.extension().is_some_and(|it| it == "safetensors"));
    Ok(Some(ModelSpec { weights: weights.then(|| path.to_owned()), ..model }))
}

fn parse_model(name: &str, text: &str) -> Result<ModelSpec, ConfigError> {
    let model: ModelSpec = toml::from_str(text)
        .map_err(|error| ConfigError::Model { name: name.into(), message: error.to_string() })?;
    model.validate().map_err(|source| invalid(name, source))?;
    Ok(ModelSpec { name: name.to_owned(), ..model })
}

fn invalid(name: &str, source: ModelError) -> ConfigError {
    ConfigError::Model { name: name.to_owned(), message: source.to_string() }
}

/// The reason in one line, without the name and paths of this host.
fn one_line(error: &ConfigError) -> String {
    let text = match error {
        ConfigError::Model { message, .. } => message.clone(),
        ConfigError::Read { source, .. } => format!("cannot read its file: {source}"),
        other => llmprof_core::chain(other),
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MISTRAL: &str = r#"{"architectures": ["MistralForCausalLM"], "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "vocab_size": 32000}"#;

    fn write_published(folder: &Path, name: &str, config: &str) {
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("config.json"), config).unwrap();
    }

    #[test]
    fn one_unusable_model_is_rejected_alone_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        write_published(dir.path(), "mistral-7b-v0.1", MISTRAL);
        write_published(
            dir.path(),
            "wide",
            &MISTRAL.replace("\"sliding_window\": 4096", "\"sliding_window\": 32768"),
        );
        fs::write(dir.path().join("broken.toml"), "decoder = 1").unwrap();
        fs::write(dir.path().join("notes.txt"), "no model").unwrap();
        let found = models(Some(dir.path())).unwrap();
        let names: Vec<_> = found.models.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["deepseek-ocr", "deepseek-ocr-tiny", "llama-tiny", "qwen3-0.6b", "wide"]
        );
        assert_eq!(
            found.refused.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(),
            ["broken", "mistral-7b-v0.1"]
        );
        assert_eq!(
            found.rejection("mistral-7b-v0.1").unwrap(),
            "the model has a sliding_window of 4096 in a context of 32768, which is not supported"
        );
        assert!(found.refused.iter().all(|it| it.reason.lines().count() == 1));
    }

    #[test]
    fn a_rejected_model_is_not_replaced_by_the_bundled_one_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("llama-tiny.toml"), "decoder = 1").unwrap();
        let found = models(Some(dir.path())).unwrap();
        assert!(
            !found.models.contains_key("llama-tiny") && found.rejection("llama-tiny").is_some()
        );
    }
}
