//! The model that a command or an imported capture runs, as its operator or sender states it.
//!
//! Plain values. With them, `analyze` counts the FLOPs and bytes of one repeat of a program that
//! llmprof did not write, or the time of a decode step by the number of steps alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::{
    dtype::Dtype,
    json_numbers::Within,
    model::{ModelError, ModelSpec, hf},
    settings::nearest,
};

/// Maximum number of tokens of a sequence.
pub const MAX_TOKENS: i64 = 1 << 24;
/// Maximum number of sequences.
pub const MAX_BATCH: i64 = 1 << 16;

/// A model and the sizes of its inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StatedModel {
    pub model: ModelSpec,
    /// Prompt tokens of each sequence.
    #[cfg_attr(feature = "schema", schema(example = 512))]
    pub prompt_tokens: u64,
    /// Decode steps of one repeat; `null`: those that the capture has.
    pub new_tokens: Option<u64>,
    /// Sequences computed at the same time.
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub batch: u64,
    pub dtype: Dtype,
}

/// The same as texts: fields of a form, options, or a command's settings with its parameters filled
/// in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelStatement {
    /// Name of a configured model, or the text of a published `config.json`.
    pub model_config: Option<String>,
    #[serde(deserialize_with = "text_or_number")]
    pub prompt_tokens: Option<String>,
    #[serde(deserialize_with = "text_or_number")]
    pub new_tokens: Option<String>,
    #[serde(deserialize_with = "text_or_number")]
    pub batch: Option<String>,
    pub dtype: Option<String>,
}

/// Reads a number as its text.
fn text_or_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Number(u64),
        Text(String),
    }
    Ok(Some(match Given::deserialize(from)? {
        Given::Number(number) => number.to_string(),
        Given::Text(text) => text,
    }))
}

/// A statement about a capture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CaptureStatement {
    pub model: Option<StatedModel>,
    /// Decode steps of one repeat, stated without a model.
    pub steps: Option<u64>,
}

/// A statement that names no model, or impossible sizes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatementError {
    #[error(
        "{0}: given without model_config; add model_config (for a capture, new_tokens is accepted \
         without it if no other field is given)"
    )]
    WithoutModel(&'static str),
    #[error("prompt_tokens: missing; the costs of a model depend on its prompt's length")]
    WithoutPrompt,
    #[error("model_config: no model {name:?} is configured{hint}")]
    UnknownModel { name: String, hint: String },
    #[error("model_config: {0}")]
    Config(String),
    #[error(
        "model_config: {0}; without model_config, the report has no floors, costs and MFU of a \
         model"
    )]
    Quantised(String),
    #[error("dtype: missing; config.json has no torch_dtype: state f32, f16 or bf16")]
    WithoutDtype,
    #[error("{0}")]
    Number(String),
    #[error("dtype: {text:?}; expected f32, f16 or bf16")]
    Dtype { text: String },
    #[error(
        "prompt_tokens and new_tokens: {needed} positions exceed the model's context of {limit}"
    )]
    Context { needed: u64, limit: u64 },
}

impl ModelStatement {
    /// Names of the fields.
    pub const FIELDS: [&str; 5] = ["model_config", "prompt_tokens", "new_tokens", "batch", "dtype"];

    /// The field of this name.
    pub fn field(&mut self, name: &str) -> Option<&mut Option<String>> {
        match name {
            "model_config" => Some(&mut self.model_config),
            "prompt_tokens" => Some(&mut self.prompt_tokens),
            "new_tokens" => Some(&mut self.new_tokens),
            "batch" => Some(&mut self.batch),
            "dtype" => Some(&mut self.dtype),
            _ => None,
        }
    }

    /// The fields that are given, by name.
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let texts =
            [&self.model_config, &self.prompt_tokens, &self.new_tokens, &self.batch, &self.dtype];
        let given = Self::FIELDS.into_iter().zip(texts);
        given.filter_map(|(name, text)| Some((name, text.as_deref()?)))
    }

    /// Resolves the statement about a capture. The steps of its decodes need no model: a decode
    /// over its steps is the time of a step.
    pub fn of_capture(
        &self,
        models: &BTreeMap<String, ModelSpec>,
    ) -> Result<CaptureStatement, StatementError> {
        match &self.new_tokens {
            Some(text) if self.texts().count() == 1 => {
                let steps: u64 = Within::<1, MAX_TOKENS>::named("new_tokens", text)
                    .map_err(StatementError::Number)?;
                Ok(CaptureStatement { model: None, steps: Some(steps) })
            }
            _ => Ok(CaptureStatement { model: self.resolve(models)?, steps: None }),
        }
    }

    /// Resolves the statement with the configured models; `None` if nothing is stated.
    pub fn resolve(
        &self,
        models: &BTreeMap<String, ModelSpec>,
    ) -> Result<Option<StatedModel>, StatementError> {
        let Some(config) = &self.model_config else {
            let given = self.texts().next();
            return given.map_or(Ok(None), |(name, _)| Err(StatementError::WithoutModel(name)));
        };
        let model = model_of(config, models)?;
        let prompt = self.prompt_tokens.as_deref().ok_or(StatementError::WithoutPrompt)?;
        let prompt_tokens: u64 = Within::<1, MAX_TOKENS>::named("prompt_tokens", prompt)
            .map_err(StatementError::Number)?;
        let new_tokens = self.new_tokens.as_deref();
        let new_tokens: Option<u64> = new_tokens
            .map(|text| Within::<0, MAX_TOKENS>::named("new_tokens", text))
            .transpose()
            .map_err(StatementError::Number)?;
        let batch = self.batch.as_deref();
        let batch: Option<u64> = batch
            .map(|text| Within::<1, MAX_BATCH>::named("batch", text))
            .transpose()
            .map_err(StatementError::Number)?;
        let dtype = match self.dtype.as_deref() {
            Some(text) => {
                text.parse().map_err(|_| StatementError::Dtype { text: shortened(text) })?
            }
            None if is_config(config) && !hf::states_dtype(config) => {
                return Err(StatementError::WithoutDtype);
            }
            None => model.dtype,
        };
        let needed = prompt_tokens + new_tokens.unwrap_or(0);
        let limit = model.decoder.max_positions as u64;
        if needed > limit {
            return Err(StatementError::Context { needed, limit });
        }
        let batch = batch.unwrap_or(1);
        Ok(Some(StatedModel { model, prompt_tokens, new_tokens, batch, dtype }))
    }
}

/// True for the text of a `config.json`, false for the name of a model.
fn is_config(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// The model of a name or of the text of a `config.json`, without this host's folders.
fn model_of(
    config: &str,
    models: &BTreeMap<String, ModelSpec>,
) -> Result<ModelSpec, StatementError> {
    let model = if is_config(config) {
        hf::parse_config("config.json", config).map_err(|error| match error {
            ModelError::Quantised(_) => StatementError::Quantised(error.to_string()),
            _ => StatementError::Config(error.to_string()),
        })?
    } else {
        models.get(config).cloned().ok_or_else(|| {
            let near = nearest(config, models.keys().map(String::as_str));
            let hint = near.map_or_else(
                || "; expected its name or the text of a config.json".to_owned(),
                |near| format!("; did you mean {near}?"),
            );
            StatementError::UnknownModel { name: shortened(config), hint }
        })?
    };
    Ok(ModelSpec { weights: None, ..model })
}

/// The start of a text from outside.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::PRESETS;

    fn models() -> BTreeMap<String, ModelSpec> {
        let model =
            |(name, text): &(&str, &str)| ((*name).to_owned(), toml::from_str(text).unwrap());
        PRESETS.iter().map(model).collect()
    }

    fn statement(fields: &[(&str, &str)]) -> ModelStatement {
        let mut statement = ModelStatement::default();
        for (name, text) in fields {
            *statement.field(name).unwrap() = Some((*text).to_owned());
        }
        statement
    }

    fn resolve(fields: &[(&str, &str)]) -> Result<Option<StatedModel>, String> {
        statement(fields).resolve(&models()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_configured_model_has_its_dtype_and_one_sequence() {
        let stated = resolve(&[("model_config", "qwen3-0.6b"), ("prompt_tokens", "512")]);
        let stated = stated.unwrap().unwrap();
        assert_eq!(
            (stated.prompt_tokens, stated.new_tokens, stated.batch, stated.dtype),
            (512, None, 1, Dtype::Bf16)
        );
        assert_eq!(stated.model.decoder.layers, 28);
    }

    #[test]
    fn a_published_config_is_a_model() {
        let config = r#" {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "vocab_size": 300, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 128}"#;
        let fields = [
            ("model_config", config),
            ("prompt_tokens", "100"),
            ("new_tokens", "28"),
            ("batch", "4"),
            ("dtype", "f16"),
        ];
        let stated = resolve(&fields).unwrap().unwrap();
        assert_eq!((stated.model.decoder.kv_heads, stated.batch), (2, 4));
        let long = [("model_config", config), ("prompt_tokens", "100"), ("new_tokens", "29")];
        let long = [&long[..], &[("dtype", "f16")]].concat();
        assert!(resolve(&long).unwrap_err().contains("129 positions exceed"));
        assert!(resolve(&fields[..2]).unwrap_err().contains("dtype: missing"));
        let quantised =
            config.replacen('{', r#"{"quantization_config": {"quant_method": "fp8"}, "#, 1);
        let error = resolve(&[("model_config", &quantised), ("prompt_tokens", "1")]).unwrap_err();
        assert!(error.contains("quantised (quantization_config: fp8)"), "{error}");
        assert!(error.contains("without model_config"), "{error}");
    }

    #[test]
    fn nothing_stated_is_nothing_and_half_a_statement_is_refused() {
        assert_eq!(resolve(&[]), Ok(None));
        let refused = |fields: &[(&str, &str)], part: &str| {
            let error = resolve(fields).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        refused(&[("batch", "2")], "batch: given without model_config");
        refused(&[("model_config", "qwen3-0.6b")], "prompt_tokens: missing");
        refused(
            &[("model_config", "qwen3-0.7b"), ("prompt_tokens", "1")],
            "did you mean qwen3-0.6b",
        );
        refused(&[("model_config", "{}"), ("prompt_tokens", "1")], "model_config: the model has");
        let with =
            |field, text| [("model_config", "qwen3-0.6b"), ("prompt_tokens", "1"), (field, text)];
        refused(&with("batch", "0"), "batch: 0 is not between 1 and 65536");
        refused(&with("new_tokens", "-1"), "new_tokens: -1 is not between 0 and 16777216");
        refused(&with("new_tokens", "99999999999999999999"), "new_tokens");
        refused(&with("dtype", "fp8"), "expected f32, f16 or bf16");
    }

    #[test]
    fn a_capture_takes_the_steps_of_a_decode_without_a_model() {
        let of = |fields: &[(&str, &str)]| {
            statement(fields).of_capture(&models()).map_err(|error| error.to_string())
        };
        let alone = of(&[("new_tokens", "24")]).unwrap();
        assert_eq!(alone, CaptureStatement { model: None, steps: Some(24) });
        assert_eq!(of(&[]).unwrap(), CaptureStatement::default());
        let model = [("model_config", "qwen3-0.6b"), ("prompt_tokens", "1"), ("new_tokens", "24")];
        let stated = of(&model).unwrap();
        assert_eq!((stated.model.unwrap().new_tokens, stated.steps), (Some(24), None));
        for (fields, part) in [
            (&[("new_tokens", "0")][..], "new_tokens: 0 is not between 1 and 16777216"),
            (&[("new_tokens", "many")], "new_tokens"),
            (&[("new_tokens", "24"), ("batch", "2")], "given without model_config"),
            (&[("new_tokens", "24"), ("prompt_tokens", "2")], "given without model_config"),
            (&[("batch", "2")], "for a capture, new_tokens is accepted"),
        ] {
            let error = of(fields).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let command = resolve(&[("new_tokens", "24")]).unwrap_err();
        assert!(command.starts_with("new_tokens: given without model_config"), "{command}");
    }

    #[test]
    fn the_weights_folder_of_this_host_is_not_part_of_it() {
        let mut models = models();
        models.get_mut("qwen3-0.6b").unwrap().weights = Some("/srv/weights".into());
        let fields = statement(&[("model_config", "qwen3-0.6b"), ("prompt_tokens", "1")]);
        assert_eq!(fields.resolve(&models).unwrap().unwrap().model.weights, None);
    }
}
