//! Model architectures: the dimensions in `conf/models/*.toml`.
//!
//! Plain values without weights. The runner builds models from them, `analyze::cost` counts FLOPs
//! and bytes.

pub mod hf;
mod parameters;
pub mod parts;
mod presets;
mod rope;
mod validate;

use serde::{Deserialize, Serialize};

pub use self::{presets::PRESETS, rope::RopeScaling};
use crate::domain::dtype::Dtype;

/// An invalid model description.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("cannot parse the model's description: {0}")]
    Parse(String),
    #[error("the model's description lacks {0}")]
    Missing(String),
    #[error("the model has {0}, which is not supported")]
    Unsupported(String),
    #[error(
        "the model's weights are quantised ({0}); bytes and peak rates of this format are not \
         supported yet. To use the unquantised model instead, remove that key from config.json"
    )]
    Quantised(String),
    #[error("impossible dimensions: {0}")]
    Impossible(String),
}

/// One configured model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Name in requests; the file's stem.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = "deepseek-ocr-tiny"))]
    pub name: String,
    /// Description in one line.
    pub description: String,
    /// Default dtype on a GPU.
    pub dtype: Dtype,
    /// Default dtype on the CPU, which does not support bf16.
    pub cpu_dtype: Dtype,
    /// Folder with safetensors and tokenizer.json; synthetic weights when absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub weights: Option<std::path::PathBuf>,
    pub decoder: DecoderSpec,
    /// Image encoder; absent for text-only models.
    #[serde(default)]
    pub vision: Option<VisionSpec>,
}

/// A decoder-only transformer: RMSNorm, RoPE, grouped-query attention, SwiGLU or mixture of
/// experts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DecoderSpec {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    /// Key and value heads; equal to `heads` for plain multi-head attention.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width of the dense SwiGLU.
    pub intermediate: usize,
    pub vocab: usize,
    pub max_positions: usize,
    pub rope_theta: f64,
    /// Scaling of rotary frequencies for a longer context; none when absent.
    #[serde(default)]
    pub rope_scaling: Option<RopeScaling>,
    pub rms_norm_eps: f64,
    /// lm_head shares the embedding's weights.
    #[serde(default)]
    pub tied_embeddings: bool,
    /// The query, key and value projections have biases (Qwen2).
    #[serde(default)]
    pub qkv_bias: bool,
    /// Each head's queries and keys are normalised before their rotation (Qwen3).
    #[serde(default)]
    pub qk_norm: bool,
    pub bos_token: u32,
    #[serde(default)]
    pub eos_token: Option<u32>,
    /// Layers from `moe.first_layer` on are mixtures of experts.
    #[serde(default)]
    pub moe: Option<MoeSpec>,
}

/// A mixture of experts: softmax router, greedy top-k, shared experts fused into one SwiGLU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MoeSpec {
    pub first_layer: usize,
    pub experts: usize,
    pub top_k: usize,
    /// Width of one routed expert.
    pub intermediate: usize,
    /// Shared experts; their fused width is `shared * intermediate`.
    pub shared: usize,
    /// The selected weights are scaled to sum to one.
    #[serde(default)]
    pub norm_topk: bool,
}

/// DeepSeek-OCR's image encoder: SAM ViT-B, then CLIP-L over SAM's features, then a projector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct VisionSpec {
    /// Token of one image position in the prompt.
    pub image_token: u32,
    /// Side of the global view, pixels.
    pub global_px: usize,
    /// Side of a local crop, pixels; smaller images are not cropped.
    pub crop_px: usize,
    /// Number of crops: `min_crops..=max_crops`; `max_crops = 0` turns cropping off.
    pub min_crops: usize,
    pub max_crops: usize,
    pub sam: SamSpec,
    pub clip: ClipSpec,
}

/// SAM's image encoder (ViT with windowed attention and decomposed relative positions), neck and
/// two strided convolutions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SamSpec {
    pub patch: usize,
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub mlp: usize,
    pub window: usize,
    /// Layers with attention over the whole image.
    pub global_layers: Vec<usize>,
    /// Image side of the position tables, pixels.
    pub image_px: usize,
    /// Channels after the neck.
    pub neck: usize,
    /// Channels after each strided 3x3 convolution.
    pub downsample: [usize; 2],
}

/// CLIP's vision transformer, fed with SAM's features instead of its own patches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClipSpec {
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub mlp: usize,
    /// Side of the position table's grid: 16 for 257 positions.
    pub grid: usize,
}

impl ModelSpec {
    /// Dtype on the CPU or a GPU if a request states none.
    pub fn default_dtype(&self, on_cpu: bool) -> Dtype {
        if on_cpu { self.cpu_dtype } else { self.dtype }
    }
}

impl VisionSpec {
    /// Side of the grid of image tokens for a square view of `px` pixels: `ceil((px / patch) / 4)`.
    pub fn grid(&self, px: usize) -> usize {
        (px / self.sam.patch).div_ceil(4)
    }

    /// Image tokens of a page cut into `wide` x `high` crops (0 x 0 without crops): rows end in a
    /// newline, views in a separator.
    pub fn tokens(&self, wide: usize, high: usize) -> usize {
        let global = self.grid(self.global_px);
        let crop = self.grid(self.crop_px);
        let crops = if wide * high > 1 { (crop * wide + 1) * crop * high } else { 0 };
        (global + 1) * global + 1 + crops
    }
}
