//! Reads a Hugging Face `config.json` into a [`ModelSpec`]: DeepSeek-OCR's nested form, and dense Llama and Qwen forms.
//!
//! Pure: takes the text. An architecture that the runner could not build is refused, not approximated.

use serde_json::Value;

use super::{Clip, Decoder, ModelError, ModelSpec, Moe, Sam, Vision};
use crate::run::Dtype;

/// Dense decoders that differ only in what [`Decoder`] can say.
const DENSE: &[&str] = &["llama", "mistral", "qwen2", "qwen3"];
/// Token of one image position; the published processor has it, config.json does not.
const DEEPSEEK_OCR_IMAGE_TOKEN: u32 = 128_815;

/// Converts the text of a `config.json`.
pub fn parse_config(name: &str, text: &str) -> Result<ModelSpec, ModelError> {
    let json: Value = serde_json::from_str(text).map_err(|e| ModelError::Parse(e.to_string()))?;
    let root = Fields(&json);
    let kind = root.text("model_type").unwrap_or_default();
    let spec = match (kind, json.get("language_config")) {
        (_, Some(language)) => deepseek_ocr(&root, &Fields(language))?,
        (kind, None) if DENSE.contains(&kind) => dense(kind, &root)?,
        (kind, None) => return Err(ModelError::Unsupported(format!("model_type {kind:?}"))),
    };
    let spec = ModelSpec { name: name.to_owned(), ..spec };
    spec.validate()?;
    Ok(spec)
}

fn dense(kind: &str, root: &Fields) -> Result<ModelSpec, ModelError> {
    root.refuse_true(&["attention_bias", "mlp_bias", "use_sliding_window"])?;
    if kind == "mistral" && root.number("sliding_window").is_some() {
        return Err(ModelError::Unsupported("sliding_window".to_owned()));
    }
    // Neither is in the config: the published code of each family fixes it.
    let decoder = Decoder { qkv_bias: kind == "qwen2", qk_norm: kind == "qwen3", ..decoder(root)? };
    Ok(ModelSpec {
        name: String::new(),
        description: root.architecture(),
        dtype: root.dtype(),
        cpu_dtype: Dtype::F32,
        weights: None,
        decoder,
        vision: None,
    })
}

fn deepseek_ocr(root: &Fields, language: &Fields) -> Result<ModelSpec, ModelError> {
    language.refuse_true(&["use_mla", "attention_bias"])?;
    if language.text("scoring_func").is_some_and(|f| f != "softmax")
        || language.text("topk_method").is_some_and(|m| m != "greedy")
    {
        return Err(ModelError::Unsupported("a router other than softmax with greedy top-k".to_owned()));
    }
    let moe = Moe {
        first_layer: language.size_or("first_k_dense_replace", 0)?,
        experts: language.size("n_routed_experts")?,
        top_k: language.size("num_experts_per_tok")?,
        intermediate: language.size("moe_intermediate_size")?,
        shared: language.size_or("n_shared_experts", 0)?,
        norm_topk: language.flag("norm_topk_prob"),
    };
    let decoder = Decoder { moe: Some(moe), ..decoder(language)? };
    let width = root.at("vision_config").and_then(|v| v.at("width"));
    let vision = match width {
        None => None,
        Some(width) => {
            let part = |name: &'static str| width.at(name).ok_or(ModelError::Missing(name.to_owned()));
            Some(vision(&part("sam_vit_b")?, &part("clip-l-14-224")?)?)
        }
    };
    Ok(ModelSpec {
        name: String::new(),
        description: root.architecture(),
        dtype: root.dtype(),
        cpu_dtype: Dtype::F32,
        weights: None,
        decoder,
        vision,
    })
}

/// What the published code fixes and config.json leaves out: patch, window, neck, view sizes and how many crops.
fn vision(sam: &Fields, clip: &Fields) -> Result<Vision, ModelError> {
    let (sam_width, clip_width) = (sam.size("width")?, clip.size("width")?);
    let downsample: [usize; 2] = sam
        .sizes("downsample_channels")?
        .try_into()
        .map_err(|_| ModelError::Unsupported("downsample_channels other than two".to_owned()))?;
    Ok(Vision {
        image_token: DEEPSEEK_OCR_IMAGE_TOKEN,
        global_px: 1024,
        crop_px: 640,
        min_crops: 2,
        max_crops: 9,
        sam: Sam {
            patch: 16,
            width: sam_width,
            layers: sam.size("layers")?,
            heads: sam.size("heads")?,
            mlp: 4 * sam_width,
            window: 14,
            global_layers: sam.sizes("global_attn_indexes")?,
            image_px: 1024,
            neck: 256,
            downsample,
        },
        clip: Clip {
            width: clip_width,
            layers: clip.size("layers")?,
            heads: clip.size("heads")?,
            mlp: 4 * clip_width,
            grid: clip.size("image_size")? / clip.size("patch_size")?.max(1),
        },
    })
}

fn decoder(from: &Fields) -> Result<Decoder, ModelError> {
    let scaling = from.0.get("rope_scaling").or(from.0.get("rope_parameters")).filter(|v| !v.is_null());
    let scaling_kind = scaling.and_then(|s| s.get("rope_type").or(s.get("type"))).and_then(Value::as_str);
    if scaling_kind.is_some_and(|kind| kind != "default") {
        return Err(ModelError::Unsupported(format!("rope scaling {:?}", scaling_kind.unwrap_or_default())));
    }
    let theta = from.number("rope_theta").or(scaling.and_then(|s| s.get("rope_theta")).and_then(Value::as_f64));
    let (hidden, heads) = (from.size("hidden_size")?, from.size("num_attention_heads")?);
    Ok(Decoder {
        hidden,
        layers: from.size("num_hidden_layers")?,
        heads,
        kv_heads: from.size_or("num_key_value_heads", heads)?,
        // Some configs write 0 or null where the head is simply a share of the width.
        head_dim: match from.size_or("head_dim", 0)? {
            0 => hidden / heads.max(1),
            dim => dim,
        },
        intermediate: from.size("intermediate_size")?,
        vocab: from.size("vocab_size")?,
        max_positions: from.size("max_position_embeddings")?,
        rope_theta: theta.unwrap_or(10_000.0),
        rms_norm_eps: from.number("rms_norm_eps").unwrap_or(1e-6),
        tied_embeddings: from.flag("tie_word_embeddings"),
        qkv_bias: false,
        qk_norm: false,
        bos_token: from.token("bos_token_id").unwrap_or(0),
        eos_token: from.token("eos_token_id"),
        moe: None,
    })
}

/// One object of the config.
struct Fields<'a>(&'a Value);

impl<'a> Fields<'a> {
    fn at(&self, name: &str) -> Option<Fields<'a>> {
        self.0.get(name).map(Fields)
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).and_then(Value::as_str)
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.0.get(name).and_then(Value::as_f64)
    }

    fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A token, or the first of several.
    fn token(&self, name: &str) -> Option<u32> {
        let value = self.0.get(name)?;
        value.as_array().and_then(|tokens| tokens.first()).unwrap_or(value).as_u64()?.try_into().ok()
    }

    fn size(&self, name: &str) -> Result<usize, ModelError> {
        let value = self.0.get(name).filter(|v| !v.is_null()).ok_or_else(|| ModelError::Missing(name.to_owned()))?;
        as_size(value).ok_or_else(|| ModelError::Parse(format!("{name} is {value}, not a size")))
    }

    fn size_or(&self, name: &str, default: usize) -> Result<usize, ModelError> {
        if self.0.get(name).is_none_or(Value::is_null) { Ok(default) } else { self.size(name) }
    }

    fn sizes(&self, name: &str) -> Result<Vec<usize>, ModelError> {
        let values = self.0.get(name).and_then(Value::as_array).ok_or_else(|| ModelError::Missing(name.to_owned()))?;
        let sizes: Option<Vec<usize>> = values.iter().map(as_size).collect();
        sizes.ok_or_else(|| ModelError::Parse(format!("{name} is no list of sizes")))
    }

    fn refuse_true(&self, names: &[&str]) -> Result<(), ModelError> {
        match names.iter().find(|name| self.flag(name)) {
            Some(name) => Err(ModelError::Unsupported(format!("{name}"))),
            None => Ok(()),
        }
    }

    fn dtype(&self) -> Dtype {
        match self.text("torch_dtype").or(self.text("dtype")) {
            Some("float32") => Dtype::F32,
            Some("float16") => Dtype::F16,
            _ => Dtype::Bf16,
        }
    }

    fn architecture(&self) -> String {
        let named = self.0.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
        format!("{}, from its config.json", named.unwrap_or("A decoder"))
    }
}

fn as_size(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|size| size.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEEPSEEK_OCR: &str = r#"{
        "architectures": ["DeepseekOCRForCausalLM"], "model_type": "DeepseekOCR", "torch_dtype": "bfloat16",
        "language_config": {"bos_token_id": 0, "eos_token_id": 1, "first_k_dense_replace": 1, "hidden_size": 1280,
            "intermediate_size": 6848, "max_position_embeddings": 8192, "moe_intermediate_size": 896, "n_routed_experts": 64,
            "n_shared_experts": 2, "num_attention_heads": 10, "num_experts_per_tok": 6, "num_hidden_layers": 12,
            "num_key_value_heads": 10, "topk_method": "greedy", "use_mla": false, "v_head_dim": 0, "vocab_size": 129280},
        "vision_config": {"width": {
            "clip-l-14-224": {"heads": 16, "image_size": 224, "layers": 24, "patch_size": 14, "width": 1024},
            "sam_vit_b": {"downsample_channels": [512, 1024], "global_attn_indexes": [2, 5, 8, 11], "heads": 12, "layers": 12,
                "width": 768}}}}"#;

    #[test]
    fn deepseek_ocr_is_what_the_preset_says() -> anyhow::Result<()> {
        let preset: ModelSpec = toml::from_str(include_str!("../../conf/models/deepseek-ocr.toml"))?;
        let read = parse_config("deepseek-ocr", DEEPSEEK_OCR)?;
        assert_eq!((read.decoder, read.vision, read.dtype), (preset.decoder, preset.vision, preset.dtype));
        Ok(())
    }

    #[test]
    fn a_dense_llama_has_its_grouped_heads_and_tied_head() -> anyhow::Result<()> {
        let spec = parse_config(
            "llama",
            r#"{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128256,
                "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0,
                "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "bos_token_id": 128000, "eos_token_id": [128001, 128008]}"#,
        )?;
        let decoder = spec.decoder;
        assert_eq!((decoder.kv_heads, decoder.head_dim, decoder.eos_token), (8, 64, Some(128001)));
        assert!(decoder.tied_embeddings && decoder.moe.is_none() && spec.vision.is_none());
        Ok(())
    }

    #[test]
    fn each_qwen_has_its_own_attention() -> anyhow::Result<()> {
        let config = |kind: &str| {
            format!(
                r#"{{"model_type": "{kind}", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 300,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 32}}"#
            )
        };
        let (second, third) = (parse_config("q", &config("qwen2"))?.decoder, parse_config("q", &config("qwen3"))?.decoder);
        assert_eq!((second.qkv_bias, second.qk_norm), (true, false));
        assert_eq!((third.qkv_bias, third.qk_norm, third.head_dim), (false, true, 32));
        Ok(())
    }

    #[test]
    fn what_could_not_be_built_is_refused_by_name() {
        let refused = |text: &str| parse_config("x", text).expect_err("refused").to_string();
        assert!(refused(r#"{"model_type": "mamba"}"#).contains("mamba"));
        assert!(refused(&DEEPSEEK_OCR.replace(r#""use_mla": false"#, r#""use_mla": true"#)).contains("use_mla"));
        assert!(refused(&DEEPSEEK_OCR.replace(r#""n_routed_experts": 64,"#, "")).contains("n_routed_experts"));
        assert!(refused(&DEEPSEEK_OCR.replace("\"hidden_size\": 1280", "\"hidden_size\": -1")).contains("hidden_size is -1"));
        assert!(refused("{").contains("EOF"));
    }
}
