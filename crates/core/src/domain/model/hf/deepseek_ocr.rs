//! DeepSeek-OCR's nested config: a mixture-of-experts decoder and the image encoder of its
//! published code.

use super::{
    super::{ClipSpec, DecoderSpec, ModelError, ModelSpec, MoeSpec, SamSpec, VisionSpec},
    Family,
    fields::ConfigFields,
};
use crate::domain::dtype::Dtype;

/// Token of one image position, from the published processor; absent in config.json.
const IMAGE_TOKEN: u32 = 128_815;

pub const FAMILY: Family = Family { matches, read };

/// Its `model_type` is shared with other models; the nested `language_config` is not.
fn matches(root: &ConfigFields) -> bool {
    root.at("language_config").is_some()
}

fn read(root: &ConfigFields) -> Result<ModelSpec, ModelError> {
    let language = root
        .at("language_config")
        .ok_or_else(|| ModelError::Missing("language_config".to_owned()))?;
    language.reject_true(&["use_mla", "attention_bias"])?;
    if language.text("scoring_func").is_some_and(|f| f != "softmax")
        || language.text("topk_method").is_some_and(|m| m != "greedy")
    {
        return Err(ModelError::Unsupported(
            "a router other than softmax with greedy top-k".to_owned(),
        ));
    }
    language.reject_scale("routed_scaling_factor")?;
    language.reject_scale("moe_layer_freq")?;
    let moe = MoeSpec {
        first_layer: language.size_or("first_k_dense_replace", 0)?,
        experts: language.size("n_routed_experts")?,
        top_k: language.size("num_experts_per_tok")?,
        intermediate: language.size("moe_intermediate_size")?,
        shared: language.size_or("n_shared_experts", 0)?,
        norm_topk: language.flag("norm_topk_prob"),
    };
    let decoder = DecoderSpec { moe: Some(moe), ..language.decoder()? };
    Ok(ModelSpec {
        name: String::new(),
        description: root.architecture(),
        dtype: root.dtype()?,
        cpu_dtype: Dtype::F32,
        weights: None,
        decoder,
        vision: root.at("vision_config").map(|config| vision(&config)).transpose()?,
    })
}

/// The image encoder. Patch, window, neck, view sizes and number of crops are constants of the
/// published code and absent in config.json.
fn vision(config: &ConfigFields) -> Result<VisionSpec, ModelError> {
    let missing = |name: &str| ModelError::Missing(name.to_owned());
    let width = config.at("width").ok_or_else(|| missing("vision_config.width"))?;
    let part = |name| width.at(name).ok_or_else(|| missing(name));
    let (sam, clip) = (part("sam_vit_b")?, part("clip-l-14-224")?);
    let (sam_width, clip_width) = (sam.size("width")?, clip.size("width")?);
    let downsample: [usize; 2] = sam
        .sizes("downsample_channels")?
        .try_into()
        .map_err(|_| ModelError::Unsupported("downsample_channels other than two".to_owned()))?;
    Ok(VisionSpec {
        image_token: IMAGE_TOKEN,
        global_px: 1024,
        crop_px: 640,
        min_crops: 2,
        max_crops: 9,
        sam: SamSpec {
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
        clip: ClipSpec {
            width: clip_width,
            layers: clip.size("layers")?,
            heads: clip.size("heads")?,
            mlp: 4 * clip_width,
            grid: clip.size("image_size")? / clip.size("patch_size")?.max(1),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::*;

    const DEEPSEEK_OCR: &str = r#"{
        "architectures": ["DeepseekOCRForCausalLM"], "model_type": "DeepseekOCR",
        "torch_dtype": "bfloat16",
        "language_config": {"bos_token_id": 0, "eos_token_id": 1, "first_k_dense_replace": 1,
            "hidden_size": 1280, "intermediate_size": 6848, "max_position_embeddings": 8192,
            "moe_intermediate_size": 896, "n_routed_experts": 64, "n_shared_experts": 2,
            "num_attention_heads": 10, "num_experts_per_tok": 6, "num_hidden_layers": 12,
            "num_key_value_heads": 10, "topk_method": "greedy", "use_mla": false,
            "v_head_dim": 0, "vocab_size": 129280},
        "vision_config": {"width": {
            "clip-l-14-224": {"heads": 16, "image_size": 224, "layers": 24, "patch_size": 14,
                "width": 1024},
            "sam_vit_b": {"downsample_channels": [512, 1024], "global_attn_indexes": [2, 5, 8, 11],
                "heads": 12, "layers": 12, "width": 768}}}}"#;

    #[test]
    fn deepseek_ocr_equals_its_preset() -> anyhow::Result<()> {
        let preset: ModelSpec =
            toml::from_str(include_str!("../../../../../../conf/models/deepseek-ocr.toml"))?;
        let read = parse_config("deepseek-ocr", DEEPSEEK_OCR)?;
        assert_eq!(
            (read.decoder, read.vision, read.dtype),
            (preset.decoder, preset.vision, preset.dtype)
        );
        Ok(())
    }

    #[test]
    fn an_unsupported_architecture_is_rejected_by_name() {
        let refused = |from: &str, to: &str| {
            assert!(DEEPSEEK_OCR.contains(from));
            parse_config("x", &DEEPSEEK_OCR.replace(from, to)).expect_err("rejected").to_string()
        };
        assert!(refused(r#""use_mla": false"#, r#""use_mla": true"#).contains("use_mla"));
        assert!(
            refused(r#""topk_method": "greedy""#, r#""topk_method": "noaux_tc""#)
                .contains("router")
        );
        assert!(
            refused(r#""v_head_dim": 0"#, r#""routed_scaling_factor": 2.5"#)
                .contains("routed_scaling_factor 2.5")
        );
        assert!(refused(r#""n_routed_experts": 64,"#, "").contains("n_routed_experts"));
        assert!(
            refused("\"hidden_size\": 1280", "\"hidden_size\": -1").contains("hidden_size is -1")
        );
        // An unknown image encoder is an error, not omitted.
        assert!(refused("\"width\": {\n", "\"layers\": {\n").contains("vision_config.width"));
        assert!(refused("clip-l-14-224", "qwen2-0-5b").contains("clip-l-14-224"));
    }
}
