//! Fields of one object of a config.json, and the dimensions that all families share.

use serde_json::Value;

use super::super::{DecoderSpec, ModelError, RopeScaling};
use crate::domain::dtype::Dtype;

/// Reader of one object of the config.
pub struct ConfigFields<'a>(&'a Value);

impl<'a> ConfigFields<'a> {
    pub fn of(value: &'a Value) -> Self {
        Self(value)
    }

    /// The field, unless it is absent or null.
    fn value(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub fn at(&self, name: &str) -> Option<ConfigFields<'a>> {
        self.value(name).map(ConfigFields)
    }

    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.value(name).and_then(Value::as_str)
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        self.value(name).and_then(Value::as_f64)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.value(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A token, or the first of several.
    fn token(&self, name: &str) -> Option<u32> {
        let value = self.value(name)?;
        value
            .as_array()
            .and_then(|tokens| tokens.first())
            .unwrap_or(value)
            .as_u64()?
            .try_into()
            .ok()
    }

    pub fn size(&self, name: &str) -> Result<usize, ModelError> {
        let value = self.value(name).ok_or_else(|| ModelError::Missing(name.to_owned()))?;
        as_size(value).ok_or_else(|| ModelError::Parse(format!("{name} is {value}, not a size")))
    }

    pub fn size_or(&self, name: &str, default: usize) -> Result<usize, ModelError> {
        if self.value(name).is_none() { Ok(default) } else { self.size(name) }
    }

    pub fn sizes(&self, name: &str) -> Result<Vec<usize>, ModelError> {
        let values = self
            .value(name)
            .and_then(Value::as_array)
            .ok_or_else(|| ModelError::Missing(name.to_owned()))?;
        let sizes: Option<Vec<usize>> = values.iter().map(as_size).collect();
        sizes.ok_or_else(|| ModelError::Parse(format!("{name} is not a list of sizes")))
    }

    pub fn reject_true(&self, names: &[&str]) -> Result<(), ModelError> {
        match names.iter().find(|name| self.flag(name)) {
            Some(name) => Err(ModelError::Unsupported((*name).to_owned())),
            None => Ok(()),
        }
    }

    /// Rejects a text or a list of texts other than `only`; the field may be absent.
    pub fn reject_other(&self, name: &str, only: &str) -> Result<(), ModelError> {
        let Some(value) = self.value(name) else { return Ok(()) };
        let one = std::slice::from_ref(value);
        match value
            .as_array()
            .map_or(one, Vec::as_slice)
            .iter()
            .find(|text| text.as_str() != Some(only))
        {
            Some(other) => Err(ModelError::Unsupported(format!("{name} {other}"))),
            None => Ok(()),
        }
    }

    /// Rejects a factor other than 1, which is the default.
    pub fn reject_scale(&self, name: &str) -> Result<(), ModelError> {
        match self.value(name).filter(|value| value.as_f64() != Some(1.0)) {
            Some(other) => Err(ModelError::Unsupported(format!("{name} {other}"))),
            None => Ok(()),
        }
    }

    pub fn dtype_name(&self) -> Option<&'a str> {
        self.text("torch_dtype").or(self.text("dtype"))
    }

    /// The dtype of the weights, bf16 if it is absent; others are rejected by name.
    pub fn dtype(&self) -> Result<Dtype, ModelError> {
        match self.dtype_name().map(|it| it.trim_start_matches("torch.")) {
            Some("float32" | "float") => Ok(Dtype::F32),
            Some("float16" | "half") => Ok(Dtype::F16),
            None | Some("bfloat16") => Ok(Dtype::Bf16),
            Some(other) => Err(ModelError::Unsupported(format!("torch_dtype {other:?}"))),
        }
    }

    /// Rejects objects and sizes above 0 that the work of a decoder would depend on.
    pub fn reject_present(&self, names: &[&str]) -> Result<(), ModelError> {
        let present = |name: &&&str| match self.value(name) {
            Some(Value::Number(number)) => number.as_f64().is_some_and(|it| it > 0.0),
            Some(Value::Object(fields)) => !fields.is_empty(),
            _ => false,
        };
        match names.iter().find(present) {
            Some(name) => Err(ModelError::Unsupported((*name).to_owned())),
            None => Ok(()),
        }
    }

    /// Rejects architectures that are not a decoder with a head: of drafts, embeddings, classes.
    pub fn reject_other_architectures(&self) -> Result<(), ModelError> {
        let named = self.value("architectures").and_then(Value::as_array);
        let names = named.into_iter().flatten().filter_map(Value::as_str);
        match names.into_iter().find(|it| !it.to_lowercase().ends_with("forcausallm")) {
            Some(name) => Err(ModelError::Unsupported(format!("the architecture {name}"))),
            None => Ok(()),
        }
    }

    pub fn architecture(&self) -> String {
        let named = self.0.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
        format!("{}, from its config.json", named.unwrap_or("A decoder"))
    }

    /// The dimensions that every decoder's config names the same.
    pub fn decoder(&self) -> Result<DecoderSpec, ModelError> {
        self.reject_other("hidden_act", "silu")?;
        self.reject_other("layer_types", "full_attention")?;
        self.reject_scale("partial_rotary_factor")?;
        // Layers that predict further tokens, and low-rank keys and values.
        self.reject_present(&["num_nextn_predict_layers", "kv_lora_rank", "q_lora_rank"])?;
        // Newer configs have scaling and theta in one object, older ones in separate fields.
        let rope = self.at("rope_parameters").or(self.at("rope_scaling"));
        let theta =
            self.number("rope_theta").or(rope.as_ref().and_then(|rope| rope.number("rope_theta")));
        let (hidden, heads) = (self.size("hidden_size")?, self.size("num_attention_heads")?);
        Ok(DecoderSpec {
            hidden,
            layers: self.size("num_hidden_layers")?,
            heads,
            kv_heads: self.size_or("num_key_value_heads", heads)?,
            // Some configs contain 0 or null for hidden / heads.
            head_dim: match self.size_or("head_dim", 0)? {
                0 => hidden / heads.max(1),
                dim => dim,
            },
            intermediate: self.size("intermediate_size")?,
            vocab: self.size("vocab_size")?,
            max_positions: self.size("max_position_embeddings")?,
            rope_theta: theta.unwrap_or(10_000.0),
            rope_scaling: rope.map(|rope| rope.rope_scaling()).transpose()?.flatten(),
            rms_norm_eps: self.number("rms_norm_eps").unwrap_or(1e-6),
            tied_embeddings: self.flag("tie_word_embeddings"),
            qkv_bias: false,
            qk_norm: false,
            bos_token: self.token("bos_token_id").unwrap_or(0),
            eos_token: self.token("eos_token_id"),
            moe: None,
        })
    }

    /// This object as a scaling of rotary positions, if it is one; unsupported types are rejected
    /// by name.
    fn rope_scaling(&self) -> Result<Option<RopeScaling>, ModelError> {
        self.reject_scale("partial_rotary_factor")?;
        let number = |name: &str| {
            self.number(name)
                .ok_or_else(|| ModelError::Missing(format!("{name} of its rope scaling")))
        };
        match self.text("rope_type").or(self.text("type")) {
            None | Some("default") => Ok(None),
            Some("llama3") => Ok(Some(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_positions: self.size("original_max_position_embeddings")?,
            })),
            Some(other) => Err(ModelError::Unsupported(format!("rope scaling {other:?}"))),
        }
    }
}

fn as_size(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|size| size.try_into().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decoder(more: Value) -> Result<DecoderSpec, String> {
        let mut config = json!({ "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "vocab_size": 300, "num_attention_heads": 4,
            "max_position_embeddings": 131072 });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ConfigFields::of(&config).decoder().map_err(|error| error.to_string())
    }

    #[test]
    fn a_scaling_is_read_in_its_older_and_its_newer_form() {
        let llama3 = json!({ "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 });
        let older = decoder(json!({ "rope_theta": 500000.0, "rope_scaling": llama3 })).unwrap();
        let mut newer = llama3.clone();
        newer["rope_theta"] = json!(500000.0);
        assert_eq!(decoder(json!({ "rope_parameters": newer })).unwrap(), older);
        let scaling = RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192,
        };
        assert_eq!((older.rope_theta, older.rope_scaling), (500_000.0, Some(scaling)));
    }

    #[test]
    fn unscaled_positions_have_no_scaling() {
        for unscaled in [
            json!({}),
            json!({ "rope_scaling": null }),
            json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 10000.0 } }),
        ] {
            let decoder = decoder(unscaled).unwrap();
            assert_eq!((decoder.rope_theta, decoder.rope_scaling), (10_000.0, None));
        }
    }

    #[test]
    fn unsupported_features_are_rejected_by_name() {
        for (more, named) in [
            (json!({ "rope_scaling": { "type": "yarn", "factor": 4.0 } }), "yarn"),
            (json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0 } }), "linear"),
            (json!({ "rope_parameters": { "rope_type": "dynamic", "factor": 2.0 } }), "dynamic"),
            (
                json!({ "rope_parameters": { "rope_type": "llama3", "low_freq_factor": 1.0 } }),
                "factor of its rope scaling",
            ),
            (
                json!({ "rope_parameters":
                    { "rope_type": "default", "partial_rotary_factor": 0.5 } }),
                "partial_rotary_factor 0.5",
            ),
            (json!({ "partial_rotary_factor": 0.25 }), "partial_rotary_factor 0.25"),
            (json!({ "hidden_act": "gelu" }), "hidden_act \"gelu\""),
            (
                json!({ "layer_types": ["full_attention", "sliding_attention"] }),
                "layer_types \"sliding_attention\"",
            ),
        ] {
            let error = decoder(more).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
