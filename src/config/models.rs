//! The models of this host: the bundled ones, and over them those of a folder.
//!
//! A model that cannot be used is left out with the reason, and takes no other with it.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ConfigError, entries, read};
use crate::model::{ModelError, ModelSpec, PRESETS, hf};

/// Configured models by name.
pub type Models = BTreeMap<String, ModelSpec>;

/// A model of the folder that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedModel {
    #[schema(example = "mistral-7b-v0.1")]
    pub name: String,
    /// In one line.
    #[schema(example = "the model has a sliding_window of 4096 in a context of 32768, which the runner cannot build")]
    pub reason: String,
}

/// What there is on this host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FoundModels {
    pub models: Models,
    pub refused: Vec<RefusedModel>,
}

/// Reads the bundled models, and over them those of `folder`: `NAME.toml`, and folders `NAME/` with a published `config.json`,
/// whose weights are used when they lie beside it. Fails where the folder itself cannot be read.
pub fn models(folder: Option<&Path>) -> Result<FoundModels, ConfigError> {
    let mut found = FoundModels::default();
    for (name, text) in PRESETS {
        found.models.insert((*name).to_owned(), model(name, text)?);
    }
    for path in folder.map(entries).transpose()?.unwrap_or_default() {
        let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = stem.unwrap_or_default().to_string_lossy().into_owned();
        match in_folder(&name, &path) {
            Ok(None) => {}
            Ok(Some(model)) => drop(found.models.insert(name, model)),
            Err(error) => {
                // One that was meant to replace a bundled model is not answered with that.
                found.models.remove(&name);
                found.refused.push(RefusedModel { reason: reason(&error), name });
            }
        }
    }
    Ok(found)
}

impl FoundModels {
    /// Why the model `name` cannot be used, if it is there.
    pub fn why_refused(&self, name: &str) -> Option<&str> {
        why_refused(&self.refused, name)
    }
}

/// Why the model `name` cannot be used, if it is among `refused`.
pub fn why_refused<'a>(refused: &'a [RefusedModel], name: &str) -> Option<&'a str> {
    refused.iter().find(|model| model.name == name).map(|model| model.reason.as_str())
}

/// The model in `path`; `None` where it is something else.
fn in_folder(name: &str, path: &Path) -> Result<Option<ModelSpec>, ConfigError> {
    let published = path.join("config.json");
    if path.extension().is_some_and(|extension| extension == "toml") && !path.is_dir() {
        return model(name, &read(path)?).map(Some);
    }
    if !published.is_file() {
        return Ok(None);
    }
    let model = hf::parse_config(name, &read(&published)?).map_err(|source| refused(name, source))?;
    let weights = entries(path)?.iter().any(|file| file.extension().is_some_and(|it| it == "safetensors"));
    Ok(Some(ModelSpec { weights: weights.then(|| path.to_owned()), ..model }))
}

fn model(name: &str, text: &str) -> Result<ModelSpec, ConfigError> {
    let model: ModelSpec =
        toml::from_str(text).map_err(|error| ConfigError::Model { name: name.into(), message: error.to_string() })?;
    model.validate().map_err(|source| refused(name, source))?;
    Ok(ModelSpec { name: name.to_owned(), ..model })
}

fn refused(name: &str, source: ModelError) -> ConfigError {
    ConfigError::Model { name: name.to_owned(), message: source.to_string() }
}

/// The reason in one line, without the name and without a path of this host.
fn reason(error: &ConfigError) -> String {
    let text = match error {
        ConfigError::Model { message, .. } => message.clone(),
        ConfigError::Read { source, .. } => format!("its file cannot be read: {source}"),
        other => crate::chain(other),
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MISTRAL: &str = r#"{"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32000}"#;

    fn published(folder: &Path, name: &str, config: &str) {
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("config.json"), config).unwrap();
    }

    #[test]
    fn one_unusable_model_is_refused_alone_and_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        published(dir.path(), "mistral-7b-v0.1", MISTRAL);
        published(dir.path(), "wide", &MISTRAL.replace("\"sliding_window\": 4096", "\"sliding_window\": 32768"));
        fs::write(dir.path().join("broken.toml"), "decoder = 1").unwrap();
        fs::write(dir.path().join("notes.txt"), "no model").unwrap();
        let found = models(Some(dir.path())).unwrap();
        let names: Vec<_> = found.models.keys().map(String::as_str).collect();
        assert_eq!(names, ["deepseek-ocr", "deepseek-ocr-tiny", "llama-tiny", "qwen3-0.6b", "wide"]);
        assert_eq!(found.refused.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["broken", "mistral-7b-v0.1"]);
        let why = found.why_refused("mistral-7b-v0.1").unwrap();
        assert_eq!(why, "the model has a sliding_window of 4096 in a context of 32768, which the runner cannot build");
        assert!(found.refused.iter().all(|it| it.reason.lines().count() == 1));
    }

    #[test]
    fn a_refused_model_is_not_replaced_by_the_bundled_one_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("llama-tiny.toml"), "decoder = 1").unwrap();
        let found = models(Some(dir.path())).unwrap();
        assert!(!found.models.contains_key("llama-tiny") && found.why_refused("llama-tiny").is_some());
    }
}
