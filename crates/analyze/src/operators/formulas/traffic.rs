//! Bytes of operators that only move and scale elements: norms, rotary embeddings, activations.
//!
//! No convention counts their FLOPs, which are 0. The inputs follow the schemas:
//! `csrc/torch_bindings.cpp` of vLLM, `sgl-kernel/csrc/common_extension.cc` of SGLang,
//! `flashinfer/norm.py` and `flashinfer/rope.py`, `aiter/ops/rmsnorm.py` and `aiter/ops/rope.py`,
//! and `native_functions.yaml` of PyTorch.

use llmprof_core::trace::framework::OperatorSignature;

use super::{Counts, shape, times};
use crate::operators::kinds::base;

/// A form of norms: its inputs by how the call uses them.
struct Norm {
    names: &'static [&'static str],
    /// Activations that are read or written.
    once: &'static [usize],
    /// Activations that are read, and written in place.
    twice: &'static [usize],
    /// Weights and biases, which may be absent.
    weights: &'static [usize],
    /// Results that are not inputs, like the first activation.
    results: u64,
}

static NORMS: [Norm; 7] = [
    Norm {
        names: &["aten::layer_norm", "aten::native_layer_norm"],
        once: &[0],
        twice: &[],
        weights: &[2, 3],
        results: 1,
    },
    Norm {
        names: &["aten::rms_norm", "aten::_fused_rms_norm"],
        once: &[0],
        twice: &[],
        weights: &[2],
        results: 1,
    },
    Norm {
        names: &[
            "_C::rms_norm",
            "sgl_kernel::rmsnorm",
            "sgl_kernel::gemma_rmsnorm",
            "flashinfer::rmsnorm",
            "flashinfer::gemma_rmsnorm",
            "aiter::rmsnorm",
            "aiter::rms_norm_cu",
        ],
        once: &[0, 1],
        twice: &[],
        weights: &[2],
        results: 0,
    },
    Norm {
        names: &[
            "_C::fused_add_rms_norm",
            "sgl_kernel::fused_add_rmsnorm",
            "sgl_kernel::gemma_fused_add_rmsnorm",
            "flashinfer::fused_add_rmsnorm",
            "flashinfer::gemma_fused_add_rmsnorm",
            "aiter::fused_add_rms_norm_cu",
        ],
        once: &[],
        twice: &[0, 1],
        weights: &[2],
        results: 0,
    },
    Norm {
        names: &["aiter::rms_norm", "aiter::rmsnorm2d_fwd", "vllm::rocm_aiter_rms_norm"],
        once: &[0],
        twice: &[],
        weights: &[1],
        results: 1,
    },
    Norm {
        names: &[
            "aiter::add_rmsnorm",
            "aiter::rmsnorm2d_fwd_with_add",
            "aiter::rmsnorm2d_fwd_with_add_ck",
        ],
        once: &[0, 1, 2, 3],
        twice: &[],
        weights: &[4],
        results: 0,
    },
    Norm {
        names: &["vllm::rocm_aiter_rmsnorm2d_fwd_with_add"],
        once: &[0, 1],
        twice: &[],
        weights: &[2],
        results: 2,
    },
];

/// Bytes of a norm, without the statistics of its rows.
pub fn norm(of: &OperatorSignature) -> Option<Counts> {
    let form = NORMS.iter().find(|it| it.names.contains(&of.name.as_str()))?;
    let first = *form.once.first().or(form.twice.first())?;
    let (sides, elements) = (shape(of, first)?, times(shape(of, first)?)?);
    let is_like = |at: &usize| shape(of, *at).and_then(times) == Some(elements);
    let fits = |at: &usize| shape(of, *at).is_none_or(|weight| sides.ends_with(weight));
    if !form.once.iter().chain(form.twice).all(is_like) || !form.weights.iter().all(fits) {
        return None;
    }
    let moved = Counts::default().inputs(of, form.once, 1)?.inputs(of, form.twice, 2)?;
    Some(moved.inputs(of, form.weights, 1)?.elements(times(&[elements, form.results])?, first))
}

/// A form of rotary embeddings.
struct Rotary {
    names: &'static [&'static str],
    /// Heads of queries and keys, read or written as a whole.
    once: &'static [usize],
    /// Heads that are rotated in place; keys may be absent.
    in_place: &'static [usize],
    positions: usize,
    /// Sines and cosines, a row for each position.
    tables: &'static [usize],
    /// Number of inputs that may be tensors. Further ones are of a call that also fills a cache.
    inputs: usize,
}

/// Input `head_size` of rotations in place.
const HEAD_SIZE: usize = 3;

static ROTARIES: [Rotary; 3] = [
    Rotary {
        names: &["_C::rotary_embedding", "sgl_kernel::rotary_embedding"],
        once: &[],
        in_place: &[1, 2],
        positions: 0,
        tables: &[4],
        inputs: 5,
    },
    Rotary {
        names: &[
            "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
            "flashinfer::apply_rope_pos_ids_cos_sin_cache",
        ],
        once: &[0, 1, 2, 3],
        in_place: &[],
        positions: 5,
        tables: &[4],
        inputs: 6,
    },
    Rotary {
        names: &["aiter::rope_cached_positions_2c_fwd_impl"],
        once: &[0, 1, 2, 3],
        in_place: &[],
        positions: 6,
        tables: &[4, 5],
        inputs: 7,
    },
];

/// Bytes of a rotary embedding: heads, positions, and the rows of its tables.
pub fn rotary(of: &OperatorSignature) -> Option<Counts> {
    let form = ROTARIES.iter().find(|it| it.names.contains(&of.name.as_str()))?;
    let positions = times(shape(of, form.positions)?)?;
    let is_of_positions = |at: &usize| {
        let elements = shape(of, *at).and_then(times);
        elements.is_some_and(|it| it.checked_rem(positions) == Some(0))
    };
    let heads = || form.once.iter().chain(form.in_place);
    let has = |at: usize| shape(of, at).is_some();
    // Only the keys of a rotation in place may be absent.
    let is_whole = heads().take(form.once.len().max(1)).all(|at| has(*at));
    let is_filling = (form.inputs..of.shapes.len()).any(has);
    if !is_whole || is_filling || !heads().filter(|at| has(**at)).all(is_of_positions) {
        return None;
    }
    let mut moved = Counts::default().inputs(of, form.once, 1)?.inputs(of, &[form.positions], 1)?;
    let mut width = 0;
    for at in form.tables {
        let (columns, rows) = shape(of, *at)?.split_last()?;
        moved = moved.elements(times(&[positions.min(times(rows)?), *columns])?, *at);
        width = *columns;
    }
    for at in form.in_place {
        let Some(sides) = shape(of, *at) else { continue };
        let head: u64 = of.values.get(HEAD_SIZE)?.parse().ok()?;
        let elements = times(sides)?;
        if width > head || elements.checked_rem(head) != Some(0) {
            return None;
        }
        // The rest of each head is neither read nor written.
        moved = moved.elements(times(&[2, elements / head, width])?, *at);
    }
    Some(moved)
}

/// Bytes of an activation with a gate: `[.., n]` from `[.., 2n]`.
pub fn activation(of: &OperatorSignature) -> Option<Counts> {
    let name = base(&of.name);
    if !name.ends_with("_and_mul") && name != "mul_and_silu" {
        return None;
    }
    let ((n, rows), (both, same)) = (shape(of, 0)?.split_last()?, shape(of, 1)?.split_last()?);
    let is_valid = n.checked_mul(2) == Some(*both) && rows == same;
    if is_valid { Counts::default().inputs(of, &[0, 1], 1) } else { None }
}

/// Bytes of the sum over the experts of each token: `[t, k, n]` to `[t, n]`.
pub fn sum_of_experts(of: &OperatorSignature) -> Option<Counts> {
    if !["moe_sum", "moe_sum_reduce"].contains(&base(&of.name)) {
        return None;
    }
    let [tokens, _, n] = *shape(of, 0)? else { return None };
    let [same, columns] = *shape(of, 1)? else { return None };
    let is_valid = tokens == same && n == columns;
    if is_valid { Counts::default().inputs(of, &[0, 1], 1) } else { None }
}
