//! Dense decoders: Llama, Mistral, Qwen2 and Qwen3.

use super::{
    super::{DecoderSpec, ModelError, ModelSpec},
    Family,
    fields::ConfigFields,
};
use crate::domain::dtype::Dtype;

/// Dense decoders that [`DecoderSpec`] describes.
const MODEL_TYPES: &[&str] = &["llama", "mistral", "qwen2", "qwen3"];

/// Experts and encoders, which a dense decoder lacks.
const OTHER_PARTS: [&str; 6] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "vision_config",
    "audio_config",
    "text_config",
];

pub const FAMILY: Family = Family { matches, read };

fn matches(root: &ConfigFields) -> bool {
    root.text("model_type").is_some_and(|kind| MODEL_TYPES.contains(&kind))
}

fn read(root: &ConfigFields) -> Result<ModelSpec, ModelError> {
    let kind = root.text("model_type").unwrap_or_default();
    root.reject_true(&["attention_bias", "mlp_bias"])?;
    root.reject_other_architectures()?;
    root.reject_present(&OTHER_PARTS)?;
    reject_window(root, kind == "mistral" || root.flag("use_sliding_window"))?;
    // Constants of each family's published code, absent in the config.
    let decoder =
        DecoderSpec { qkv_bias: kind == "qwen2", qk_norm: kind == "qwen3", ..root.decoder()? };
    Ok(ModelSpec {
        name: String::new(),
        description: root.architecture(),
        dtype: root.dtype()?,
        cpu_dtype: Dtype::F32,
        weights: None,
        decoder,
        vision: None,
    })
}

/// Rejects a sliding window shorter than the context; a longer one has no effect.
fn reject_window(root: &ConfigFields, used: bool) -> Result<(), ModelError> {
    let Some(window) = root.number("sliding_window").filter(|_| used) else { return Ok(()) };
    let context = root.size("max_position_embeddings")?;
    if window >= context as f64 {
        return Ok(());
    }
    Err(ModelError::Unsupported(format!("a sliding_window of {window} in a context of {context}")))
}

#[cfg(test)]
mod tests {
    use super::super::{
        super::{PRESETS, RopeScaling},
        *,
    };

    #[test]
    fn a_dense_llama_has_its_grouped_heads_and_tied_head() -> anyhow::Result<()> {
        let spec = parse_config(
            "llama",
            r#"{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
                "num_hidden_layers": 16, "vocab_size": 128256, "num_attention_heads": 32,
                "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0,
                "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "bos_token_id": 128000,
                "eos_token_id": [128001, 128008]}"#,
        )?;
        let decoder = spec.decoder;
        assert_eq!((decoder.kv_heads, decoder.head_dim, decoder.eos_token), (8, 64, Some(128001)));
        assert!(decoder.tied_embeddings && decoder.moe.is_none() && spec.vision.is_none());
        Ok(())
    }

    #[test]
    fn llama_3_2_has_scaled_rotary_positions() -> anyhow::Result<()> {
        let config = r#"{"architectures": ["LlamaForCausalLM"], "attention_bias": false,
            "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
            "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
            "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
            "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
            "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3"},
            "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
            "vocab_size": 128256}"#;
        let decoder = parse_config("llama", config)?.decoder;
        assert!(matches!(decoder.rope_scaling, Some(RopeScaling::Llama3 { factor: 32.0, .. })));
        // Published: 1.24 billion.
        assert_eq!(decoder.parameters(), 1_235_814_400);
        let error = parse_config("llama", &config.replace("\"factor\": 32.0", "\"factor\": 0.0"))
            .expect_err("rejected");
        assert!(error.to_string().contains("decoder.rope_scaling: factor is 0"), "{error}");
        Ok(())
    }

    #[test]
    fn qwen3_equals_its_preset() -> anyhow::Result<()> {
        let (_, text) = PRESETS.iter().find(|(name, _)| *name == "qwen3-0.6b").expect("a preset");
        let preset: ModelSpec = toml::from_str(text)?;
        let read = parse_config(
            "qwen3-0.6b",
            r#"{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
                "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
                "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
                "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
                "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
                "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
                "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
                "use_sliding_window": false, "vocab_size": 151936}"#,
        )?;
        assert_eq!((read.decoder, read.dtype), (preset.decoder, preset.dtype));
        Ok(())
    }

    #[test]
    fn fields_that_change_the_work_are_rejected_by_name() {
        let config = serde_json::json!({ "model_type": "llama", "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 300,
            "num_attention_heads": 4, "max_position_embeddings": 128,
            "architectures": ["LlamaForCausalLM"], "num_local_experts": 0,
            "num_nextn_predict_layers": null, "torch_dtype": "float16" });
        let read = |name: &str, value: serde_json::Value| {
            let mut config = config.clone();
            config[name] = value;
            parse_config("x", &config.to_string()).map_err(|error| error.to_string())
        };
        assert!(read("num_nextn_predict_layers", 0.into()).is_ok());
        for (name, value, named) in [
            ("num_nextn_predict_layers", 1.into(), "num_nextn_predict_layers"),
            ("kv_lora_rank", 512.into(), "kv_lora_rank"),
            ("num_local_experts", 8.into(), "num_local_experts"),
            ("vision_config", serde_json::json!({ "depth": 1 }), "vision_config"),
            ("torch_dtype", "float8_e4m3fn".into(), "torch_dtype \"float8_e4m3fn\""),
            (
                "architectures",
                serde_json::json!(["LlamaForCausalLMEagle3"]),
                "LlamaForCausalLMEagle3",
            ),
            (
                "architectures",
                serde_json::json!(["LlamaForSequenceClassification"]),
                "Classification",
            ),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.contains(named) && error.contains("is not supported"), "{error}");
        }
    }

    #[test]
    fn each_qwen_has_its_own_attention() -> anyhow::Result<()> {
        let config = |kind: &str| {
            format!(
                r#"{{"model_type": "{kind}", "hidden_size": 64, "intermediate_size": 128,
                    "num_hidden_layers": 2, "vocab_size": 300, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 32}}"#
            )
        };
        let (second, third) = (
            parse_config("q", &config("qwen2"))?.decoder,
            parse_config("q", &config("qwen3"))?.decoder,
        );
        assert_eq!((second.qkv_bias, second.qk_norm), (true, false));
        assert_eq!((third.qkv_bias, third.qk_norm, third.head_dim), (false, true, 32));
        Ok(())
    }
}
