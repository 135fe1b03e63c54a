//! Static cost of a model on given inputs: compute, memory traffic and storage derived only from
//! the architecture.
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
    by_module::{CostOfModule, by_layer, by_module},
    inputs::{InputNeeds, InputsProblem, needs, views},
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
    /// Operator path, as in the operator tables; `*` stands for every layer. Per layer it has the
    /// number of the layer, from 0.
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
    /// One row per operator, or per operator and layer.
    pub modules: Vec<ModuleCost>,
}

/// Computes the static cost of `model` for `work`, layers rolled up.
pub fn cost(model: &ModelSpec, work: &CostInputs) -> Cost {
    of_tally(model, work, CostTally::new(work.element_bytes, false))
}

/// The same with the operators of each layer, whose paths have its number in place of `*`.
pub fn cost_per_layer(model: &ModelSpec, work: &CostInputs) -> Cost {
    of_tally(model, work, CostTally::new(work.element_bytes, true))
}

fn of_tally(model: &ModelSpec, work: &CostInputs, mut tally: CostTally) -> Cost {
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
mod tests;
