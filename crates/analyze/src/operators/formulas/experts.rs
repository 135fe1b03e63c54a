//! Fused experts: FLOPs of both products of each pair of a token and a chosen expert. Their bytes
//! are unknown: weights of experts without tokens are not read, and the choice is data.

use llmprof_core::trace::framework::OperatorSignature;

use super::{Counts, element, shape, times};
use crate::operators::kinds::base;

/// Operators with the inputs tokens, weights of gate and up, weights of down, scores and numbers of
/// the chosen experts: `fused_moe.py` of vLLM and of SGLang, `_aiter_ops.py` of vLLM, and
/// `fused_moe.py` of AITER.
const FUSED: [&str; 5] = [
    "inplace_fused_experts",
    "outplace_fused_experts",
    "fused_experts",
    "fused_moe_",
    "rocm_aiter_fused_moe",
];
/// Inputs before the options.
const INPUTS: usize = 5;

/// FLOPs of fused experts.
pub fn counts(of: &OperatorSignature) -> Option<Counts> {
    if !FUSED.contains(&base(&of.name)) || may_leave_out(of) {
        return None;
    }
    let [tokens, hidden] = *shape(of, 0)? else { return None };
    let [experts, up, width] = *shape(of, 1)? else { return None };
    let [same, outputs, inner] = *shape(of, 2)? else { return None };
    let [rows, chosen] = *shape(of, 3)? else { return None };
    let [other_rows, other_chosen] = *shape(of, 4)? else { return None };
    // Packed weights have other sides.
    let is_gated = inner.checked_mul(2) == Some(up);
    let is_valid = [width, outputs] == [hidden; 2]
        && same == experts
        && (is_gated || up == inner)
        && [rows, other_rows] == [tokens; 2]
        && other_chosen == chosen
        && chosen <= experts;
    if !is_valid {
        return None;
    }
    let of_pair = times(&[up, hidden])?.checked_add(times(&[outputs, inner])?)?;
    Some(Counts::flops(times(&[2, tokens, chosen, of_pair])?))
}

/// Input `filter_expert` of SGLang's operators: some chosen experts may be on other devices.
fn filter_expert(name: &str) -> Option<usize> {
    match name {
        "sglang::inplace_fused_experts" => Some(25),
        // After `no_combine`, which the other form lacks.
        "sglang::outplace_fused_experts" => Some(26),
        _ => None,
    }
}

/// True if some of the chosen experts may be on other devices: the call has a map of experts or a
/// count of local tokens, or SGLang's filter.
fn may_leave_out(of: &OperatorSignature) -> bool {
    let is_list = |at: usize| {
        let dtype = of.types.get(at).and_then(|it| element(it));
        shape(of, at).is_some_and(|it| it.len() == 1)
            && dtype.is_some_and(|it| ["i64", "i32", "bool"].contains(&it.0))
    };
    let filter = filter_expert(&of.name).and_then(|at| of.values.get(at));
    let is_filtered = filter.is_none_or(|it| it != "False");
    (of.name.starts_with("sglang::") && is_filtered) || (INPUTS..of.shapes.len()).any(is_list)
}
