//! Static cost of a model on given inputs: compute, memory traffic and storage derived from the
//! architecture alone.
//!
//! Independent of any device or measurement. Rows use the paths and kinds of the runner's operators
//! with layers rolled up, so that required work can be compared with measured work. [`CONVENTIONS`]
//! lists the counting conventions, which the runner shares.

mod by_module;
mod decoder;
mod inputs;
mod prompts;
mod tally;
mod vision;

use serde::{Deserialize, Serialize};

use self::tally::{CostStage, CostTally, narrow};
pub use self::{
    by_module::{CostOfModule, by_module},
    inputs::{InputNeeds, InputsProblem, PLACEHOLDER, needs, views},
    prompts::Prompts,
};
use llmprof_core::{domain::model::ModelSpec, trace::event::ImageViews};

/// Counting conventions of [`Cost`], printed in reports.
pub const CONVENTIONS: [&str; 7] = [
    "A multiply-add counts as two FLOPs; matrix products and convolutions are counted, \
     elementwise work is not.",
    "Causal attention counts the visible query-key pairs: T(T+1)/2 for a prompt of T.",
    "A mixture of experts counts the experts that each token is routed to, the shared experts and \
     the router.",
    "lm_head runs once per sampled position: in prefill for the last position of each sequence.",
    "Bytes are those of operands and results, once per call, without reuse through caches between \
     calls.",
    "Weights of routed experts are read once per forward and distinct expert: the expected number \
     for an even router, and the maximum.",
    "Vision is counted per view as executed, including SAM's window padding; it is part of \
     prefill.",
];

/// Inputs of one pass.
#[derive(Debug, Clone, Copy)]
pub struct CostInputs<'a> {
    /// Views of each image, of all prompts.
    pub images: &'a [ImageViews],
    pub prompts: Prompts,
    /// Decode steps after prefill.
    pub new_tokens: u64,
    /// Bytes of one weight and of one cached element.
    pub element_bytes: u64,
}

/// Bytes moved by the calls of one stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Traffic {
    pub calls: u64,
    /// Weights read; for routed experts the expected number with an even router.
    pub weight_bytes: u64,
    /// Weights read when no two tokens choose the same expert.
    pub max_weight_bytes: u64,
    /// Activations read and written.
    pub activation_bytes: u64,
    /// Keys and values read from the cache.
    pub kv_read_bytes: u64,
    /// Keys and values written to the cache.
    pub kv_written_bytes: u64,
    /// Sum of the above, with the expected weights.
    pub bytes: u64,
    /// The largest result of a single call: the peak activation.
    pub output_bytes: u64,
}

/// Static cost of one operator, summed over its instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModuleCost {
    /// Operator path, as in the operator tables; `*` stands for every layer.
    #[cfg_attr(feature = "schema", schema(example = "decoder.layers.*.mlp.experts"))]
    pub path: String,
    /// Operator kind, as in the operator tables; empty for parameters that no operator uses.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = "experts"))]
    pub op: String,
    pub parameters: u64,
    /// Stored bytes of the weights.
    #[serde(default)]
    pub weight_bytes: u64,
    pub prefill_flops: u64,
    /// FLOPs of all decode steps.
    pub decode_flops: u64,
    #[serde(default)]
    pub prefill: Traffic,
    /// All decode steps together.
    #[serde(default)]
    pub decode: Traffic,
}

/// Distinct routed experts that one layer reads in one forward.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExpertCost {
    pub layers: u64,
    pub experts: u64,
    pub top_k: u64,
    /// Expected with an even router, for the whole prompt at once, rounded to three decimals.
    pub prefill_expected: f64,
    pub max_prefill: u64,
    /// Maximum of one decode step, which routes one token of each sequence.
    pub decode: u64,
}

/// Static cost of one pass: parameters, FLOPs and bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Cost {
    pub parameters: u64,
    /// Parameters used by one decoded token: routed experts only, lm_head included, embedding table
    /// excluded.
    pub active_parameters: u64,
    pub weight_bytes: u64,
    /// Weight bytes read by one decoded token.
    pub active_weight_bytes: u64,
    /// Bytes of keys and values cached per position.
    pub kv_bytes_per_token: u64,
    /// Bytes of keys and values at the end of prefill.
    #[serde(default)]
    pub kv_bytes_after_prefill: u64,
    /// Bytes of keys and values at the end of decode.
    pub kv_bytes: u64,
    /// FLOPs of prefill, vision included.
    pub prefill_flops: u64,
    /// Part of `prefill_flops`.
    pub vision_flops: u64,
    /// FLOPs of all decode steps.
    pub decode_flops: u64,
    /// Traffic of prefill, vision included.
    #[serde(default)]
    pub prefill: Traffic,
    /// Traffic of all decode steps.
    #[serde(default)]
    pub decode: Traffic,
    pub decode_steps: u64,
    /// Prompt positions of all sequences, images included.
    pub prompt_tokens: u64,
    /// Routed experts; `null` for a dense model.
    #[serde(default)]
    pub experts: Option<ExpertCost>,
    /// One row per operator.
    pub modules: Vec<ModuleCost>,
}

/// Computes the static cost of `model` for `work`.
pub fn cost(model: &ModelSpec, work: &CostInputs) -> Cost {
    let mut tally = CostTally::new(work.element_bytes);
    if let Some(vision) = &model.vision {
        vision::count(&mut tally, vision, model.decoder.hidden, work.images);
    }
    let active_parameters = decoder::count(&mut tally, &model.decoder, work);
    let element = u128::from(work.element_bytes);
    let (parameters, per_token) =
        (tally.all_parameters(), decoder::kv_elements_per_token(&model.decoder) * element);
    let prompt = work.prompts.positions;
    let steps = u128::from(work.prompts.sequences) * u128::from(work.new_tokens);
    Cost {
        parameters: narrow(parameters),
        active_parameters: narrow(active_parameters),
        weight_bytes: narrow(parameters * element),
        active_weight_bytes: narrow(active_parameters * element),
        kv_bytes_per_token: narrow(per_token),
        kv_bytes_after_prefill: narrow(per_token * prompt),
        kv_bytes: narrow(per_token * (prompt + steps)),
        prefill_flops: narrow(tally.flops(CostStage::Prefill, "")),
        vision_flops: narrow(tally.flops(CostStage::Prefill, "vision.")),
        decode_flops: narrow(tally.flops(CostStage::Decode, "")),
        prefill: tally.traffic(CostStage::Prefill),
        decode: tally.traffic(CostStage::Decode),
        decode_steps: work.new_tokens,
        prompt_tokens: narrow(prompt),
        experts: experts(model, work),
        modules: tally.into_modules(),
    }
}

fn experts(model: &ModelSpec, work: &CostInputs) -> Option<ExpertCost> {
    let moe = model.decoder.moe.as_ref()?;
    let (experts, top_k) = (moe.experts as u64, moe.top_k as u64);
    let tokens = work.prompts.positions;
    Some(ExpertCost {
        layers: model.decoder.layers.saturating_sub(moe.first_layer) as u64,
        experts,
        top_k,
        prefill_expected: (decoder::distinct(moe, tokens) * 1e3).round() / 1e3,
        max_prefill: experts.min(narrow(tokens.saturating_mul(top_k.into()))),
        decode: experts.min(work.prompts.sequences.saturating_mul(top_k)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deepseek_ocr() -> ModelSpec {
        toml::from_str(include_str!("../../../../conf/models/deepseek-ocr.toml")).unwrap()
    }

    fn page(wide: u32, high: u32) -> ImageViews {
        let crop_px = if wide * high > 0 { 640 } else { 0 };
        ImageViews {
            width: 0,
            height: 0,
            global_px: 1024,
            crop_px,
            crops_wide: wide,
            crops_high: high,
            tokens: 0,
        }
    }

    fn of(images: &[ImageViews], prompt_tokens: u64, new_tokens: u64) -> Cost {
        let prompts = Prompts::equal(prompt_tokens, 1);
        let inputs = CostInputs { images, prompts, new_tokens, element_bytes: 2 };
        cost(&deepseek_ocr(), &inputs)
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
        // Norms have parameters but no matrix products.
        let norms = 12 * 2 * 1280 + 1280;
        let attention = 12 * 2 * 2 * 101 * 1280;
        assert_eq!(cost.decode_flops, 2 * (cost.active_parameters - norms) + attention);
    }

    #[test]
    fn vision_is_part_of_prefill_and_crops_add_to_it() {
        let (none, whole, crops) =
            (of(&[], 300, 0), of(&[page(0, 0)], 300, 0), of(&[page(2, 3)], 300, 0));
        assert_eq!(none.vision_flops, 0);
        assert_eq!(whole.prefill_flops - none.prefill_flops, whole.vision_flops);
        let (global, six) = (whole.vision_flops, crops.vision_flops - whole.vision_flops);
        assert_eq!(six % 6, 0);
        assert!(six / 6 < global, "a crop is smaller than the page");
    }

    #[test]
    fn sams_first_block_counts_its_padded_windows() {
        // One 1024 view: 64 x 64 patches, padded to 70 x 70 for windows of 14.
        let mut tally = CostTally::new(2);
        vision::sam_block(&mut tally, &deepseek_ocr().vision.unwrap().sam, (1, 64), false);
        let (padded, plain, width) = (70 * 70, 64 * 64, 768);
        let products = 2 * padded * width * (3 * width + width);
        let scores = 2 * 2 * padded * 14 * 14 * width;
        let positions = 2 * 2 * padded * 14 * width;
        assert_eq!(
            tally.flops(CostStage::Prefill, ""),
            products + scores + positions + 2 * 2 * plain * width * 3072
        );
    }

    #[test]
    fn a_decode_step_moves_its_active_weights_and_its_context_once() {
        let cost = of(&[], 100, 1);
        // A step also reads one row of the embedding table, which is not part of the active
        // weights.
        assert_eq!(cost.decode.weight_bytes, cost.active_weight_bytes + 1280 * 2);
        assert_eq!(cost.decode.max_weight_bytes, cost.decode.weight_bytes);
        assert_eq!(
            (cost.decode.kv_read_bytes, cost.decode.kv_written_bytes),
            (101 * 61_440, 61_440)
        );
        assert_eq!(cost.kv_bytes, cost.prefill.kv_written_bytes + cost.decode.kv_written_bytes);
    }

    #[test]
    fn a_prompt_reads_the_experts_that_an_even_router_hits_and_at_most_all() {
        let (short, long) = (of(&[], 4, 0), of(&[], 914, 0));
        let experts = |cost: &Cost| {
            cost.modules.iter().find(|it| it.op == "experts").unwrap().prefill.clone()
        };
        let one = 11 * 3 * 1280 * 896 * 2;
        assert_eq!(experts(&short).max_weight_bytes, (4 * 6 + 2) * one);
        assert!(
            experts(&short).weight_bytes < experts(&short).max_weight_bytes,
            "tokens share some of their choices"
        );
        assert_eq!(experts(&long).max_weight_bytes, (64 + 2) * one);
        assert_eq!(
            long.experts.map(|it| (it.experts, it.max_prefill, it.decode)),
            Some((64, 64, 6))
        );
    }

    #[test]
    fn the_largest_activation_of_prefill_is_that_of_vision_on_a_large_page() {
        let cost = of(&[page(0, 0)], 300, 1);
        let largest = cost.modules.iter().max_by_key(|it| it.prefill.output_bytes).unwrap();
        assert_eq!(
            (largest.path.as_str(), largest.prefill.output_bytes),
            ("vision.sam.blocks.*.mlp.lin1", 64 * 64 * 3072 * 2)
        );
        assert_eq!(cost.prefill.output_bytes, largest.prefill.output_bytes);
    }

    #[test]
    fn a_batch_reads_its_weights_once_and_computes_each_sequence() {
        let model: ModelSpec =
            toml::from_str(include_str!("../../../../conf/models/qwen3-0.6b.toml")).unwrap();
        let of = |batch| {
            let inputs = CostInputs {
                images: &[],
                prompts: Prompts::equal(100, batch),
                new_tokens: 3,
                element_bytes: 2,
            };
            cost(&model, &inputs)
        };
        let (one, four) = (of(1), of(4));
        assert_eq!(
            [four.prefill_flops, four.decode_flops, four.kv_bytes, four.decode.kv_read_bytes],
            [one.prefill_flops, one.decode_flops, one.kv_bytes, one.decode.kv_read_bytes]
                .map(|it| 4 * it)
        );
        // The embedding reads one row of weights per token.
        let rows = 1024 * 2;
        assert_eq!(four.prefill.weight_bytes - one.prefill.weight_bytes, 300 * rows);
        assert_eq!(four.decode.weight_bytes - one.decode.weight_bytes, 9 * rows);
        assert_eq!(four.weight_bytes, one.weight_bytes);
    }

    #[test]
    fn a_batch_of_different_lengths_costs_its_sequences_apart_but_for_the_weights() {
        let model: ModelSpec =
            toml::from_str(include_str!("../../../../conf/models/qwen3-0.6b.toml")).unwrap();
        let of = |lengths: &[u64]| {
            let prompts = Prompts::of(lengths);
            cost(&model, &CostInputs { images: &[], prompts, new_tokens: 3, element_bytes: 2 })
        };
        let (both, long, short) = (of(&[100, 7]), of(&[100]), of(&[7]));
        let sums = |it: &Cost| {
            [
                it.prefill_flops,
                it.decode_flops,
                it.kv_bytes,
                it.decode.kv_read_bytes,
                it.prompt_tokens,
            ]
        };
        let (long, short) = (sums(&long), sums(&short));
        let apart: Vec<u64> = long.iter().zip(short).map(|(a, b)| a + b).collect();
        assert_eq!(sums(&both), apart[..]);
        assert_eq!(Prompts::of(&[5, 5, 5]), Prompts::equal(5, 3));
    }

    #[test]
    fn a_batch_hits_more_experts_and_at_most_all() {
        let of = |batch| {
            let inputs = CostInputs {
                images: &[],
                prompts: Prompts::equal(1, batch),
                new_tokens: 1,
                element_bytes: 2,
            };
            cost(&deepseek_ocr(), &inputs).experts.unwrap().decode
        };
        assert_eq!([of(1), of(4), of(64)], [6, 24, 64]);
    }

    #[test]
    fn absurd_dimensions_overflow_nothing() {
        let mut model = deepseek_ocr();
        (model.decoder.hidden, model.decoder.layers, model.decoder.vocab) =
            (1 << 20, 1024, 1 << 24);
        let cost = cost(
            &model,
            &CostInputs {
                images: &[],
                prompts: Prompts::equal(1 << 40, 1 << 8),
                new_tokens: 1 << 40,
                element_bytes: 4,
            },
        );
        assert_eq!(cost.decode_flops, u64::MAX);
    }
}
