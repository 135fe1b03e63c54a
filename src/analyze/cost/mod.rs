//! What a model must compute and keep for given inputs, from its architecture alone: no device, no measurement.
//!
//! Conventions, the same as those of the runner's operator records: matrix products and convolutions, a multiply-add as two;
//! elementwise work, norms, softmax and rotations are not counted. Attention scores are full rectangles (queries x keys), as
//! executed. A mixture counts the experts that a token is routed to. lm_head runs once per sampled position: in prefill for the
//! last one only. SAM's windows are counted with their padding.

mod decoder;
mod vision;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{model::ModelSpec, trace::event::ImageViews};

/// The conventions of [`Cost`], for readers of a report.
pub const CONVENTIONS: [&str; 5] = [
    "A multiply-add counts as two FLOPs; matrix products and convolutions are counted, elementwise work is not.",
    "Attention scores are counted as full rectangles of queries by keys, as executed.",
    "A mixture of experts counts the experts that each token is routed to, the shared ones and the router.",
    "lm_head runs once per sampled position: in prefill for the last position only.",
    "Vision is counted per view as executed, SAM's window padding included, and is part of prefill.",
];

/// What one pass over the inputs is made of.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// How each image is cut into views.
    pub images: &'a [ImageViews],
    /// Prompt positions, those of images included.
    pub prompt_tokens: u64,
    /// Decode steps after prefill.
    pub new_tokens: u64,
    /// Bytes of one weight and of one cached element.
    pub element_bytes: u64,
}

/// Static cost of one module, all its instances together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModuleCost {
    /// Module path; `*` stands for every layer or expert.
    #[schema(example = "decoder.layers.*.mlp.experts.*")]
    pub path: String,
    pub parameters: u64,
    pub prefill_flops: u64,
    /// FLOPs of all decode steps.
    pub decode_flops: u64,
}

/// Static cost of one pass: parameters, FLOPs and bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cost {
    pub parameters: u64,
    /// Parameters that one decoded token touches: the routed experts only, lm_head included, the embedding table not.
    pub active_parameters: u64,
    pub weight_bytes: u64,
    /// Weights that one decoded token reads.
    pub active_weight_bytes: u64,
    /// Keys and values that one position keeps.
    pub kv_bytes_per_token: u64,
    /// Keys and values at the end of decode.
    pub kv_bytes: u64,
    /// Vision included.
    pub prefill_flops: u64,
    /// Part of `prefill_flops`.
    pub vision_flops: u64,
    /// FLOPs of all decode steps.
    pub decode_flops: u64,
    pub decode_steps: u64,
    /// Prompt positions, those of images included.
    pub prompt_tokens: u64,
    pub modules: Vec<ModuleCost>,
}

/// Counts what `model` must do for `work`.
pub fn cost(model: &ModelSpec, work: &Workload) -> Cost {
    let mut tally = Tally::default();
    if let Some(vision) = &model.vision {
        vision::count(&mut tally, vision, model.decoder.hidden as u64, work.images);
    }
    let vision_flops = tally.rows().map(|row| row.prefill_flops).sum();
    let active_parameters = decoder::count(&mut tally, &model.decoder, work);
    let kv_bytes_per_token = decoder::kv_elements_per_token(&model.decoder) * work.element_bytes;

    let parameters = tally.rows().map(|row| row.parameters).sum::<u64>();
    Cost {
        parameters,
        active_parameters,
        weight_bytes: parameters * work.element_bytes,
        active_weight_bytes: active_parameters * work.element_bytes,
        kv_bytes_per_token,
        kv_bytes: kv_bytes_per_token * (work.prompt_tokens + work.new_tokens),
        prefill_flops: tally.rows().map(|row| row.prefill_flops).sum(),
        vision_flops,
        decode_flops: tally.rows().map(|row| row.decode_flops).sum(),
        decode_steps: work.new_tokens,
        prompt_tokens: work.prompt_tokens,
        modules: tally.into_modules(),
    }
}

/// FLOPs of an `m` x `k` by `k` x `n` product.
fn matmul(m: u64, k: u64, n: u64) -> u64 {
    2 * m * k * n
}

/// Sums per module path, in the order in which paths first came up.
#[derive(Default)]
struct Tally {
    order: BTreeMap<&'static str, usize>,
    modules: Vec<ModuleCost>,
}

impl Tally {
    fn at(&mut self, path: &'static str) -> &mut ModuleCost {
        let index = *self.order.entry(path).or_insert_with(|| {
            self.modules.push(ModuleCost { path: path.into(), ..ModuleCost::default() });
            self.modules.len() - 1
        });
        &mut self.modules[index]
    }

    fn parameters(&mut self, path: &'static str, count: u64) {
        self.at(path).parameters += count;
    }

    fn prefill(&mut self, path: &'static str, flops: u64) {
        self.at(path).prefill_flops += flops;
    }

    fn decode(&mut self, path: &'static str, flops: u64) {
        self.at(path).decode_flops += flops;
    }

    fn rows(&self) -> impl Iterator<Item = &ModuleCost> {
        self.modules.iter()
    }

    fn into_modules(self) -> Vec<ModuleCost> {
        self.modules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deepseek_ocr() -> ModelSpec {
        toml::from_str(include_str!("../../../conf/models/deepseek-ocr.toml")).unwrap()
    }

    fn page(wide: u32, high: u32) -> ImageViews {
        let crop_px = if wide * high > 0 { 640 } else { 0 };
        ImageViews { width: 0, height: 0, global_px: 1024, crop_px, crops_wide: wide, crops_high: high, tokens: 0 }
    }

    fn of(images: &[ImageViews], prompt_tokens: u64, new_tokens: u64) -> Cost {
        cost(&deepseek_ocr(), &Workload { images, prompt_tokens, new_tokens, element_bytes: 2 })
    }

    #[test]
    fn the_true_size_model_has_its_published_parameters() {
        let cost = of(&[], 1, 0);
        assert_eq!(cost.parameters, 3_336_106_240);
        assert_eq!(cost.active_parameters, 574_127_360);
        assert_eq!(cost.kv_bytes_per_token, 61_440);
    }

    #[test]
    fn a_decoded_token_multiplies_its_active_weights_and_its_context() {
        let cost = of(&[], 100, 1);
        // Norms hold parameters and multiply no matrices.
        let norms = 12 * 2 * 1280 + 1280;
        let attention = 12 * 2 * 2 * 101 * 1280;
        assert_eq!(cost.decode_flops, 2 * (cost.active_parameters - norms) + attention);
    }

    #[test]
    fn vision_is_part_of_prefill_and_crops_add_to_it() {
        let (none, whole, crops) = (of(&[], 300, 0), of(&[page(0, 0)], 300, 0), of(&[page(2, 3)], 300, 0));
        assert_eq!(none.vision_flops, 0);
        assert_eq!(whole.prefill_flops - none.prefill_flops, whole.vision_flops);
        let (global, six) = (whole.vision_flops, crops.vision_flops - whole.vision_flops);
        assert_eq!(six % 6, 0);
        assert!(six / 6 < global, "a crop is smaller than the page");
    }

    #[test]
    fn sams_first_block_counts_its_padded_windows() {
        // One 1024 view: 64 x 64 patches, padded to 70 x 70 for windows of 14.
        let mut tally = Tally::default();
        vision::sam_block(&mut tally, &deepseek_ocr().vision.unwrap().sam, 64, false);
        let flops: u64 = tally.rows().map(|row| row.prefill_flops).sum();
        let (padded, plain, width) = (70 * 70, 64 * 64, 768);
        let products = 2 * padded * width * (3 * width + width);
        let scores = 2 * 2 * padded * 14 * 14 * width;
        let positions = 2 * 2 * padded * 14 * width;
        assert_eq!(flops, products + scores + positions + 2 * 2 * plain * width * 3072);
    }
}
