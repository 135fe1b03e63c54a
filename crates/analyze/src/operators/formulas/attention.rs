//! Attention of PyTorch, whose signature has the keys.

use llmprof_core::trace::framework::OperatorSignature;

use super::{Counts, shape, sum, times};
use crate::operators::kinds::base;

/// Places of batch, heads, positions and width in the shapes of queries, keys and values.
fn sides(name: &str) -> Option<[usize; 4]> {
    Some(match base(name) {
        "scaled_dot_product_attention"
        | "_scaled_dot_product_attention_math"
        | "_scaled_dot_product_flash_attention"
        | "_scaled_dot_product_efficient_attention"
        | "_scaled_dot_product_cudnn_attention"
        | "_cudnn_attention_forward"
        | "_scaled_dot_product_fused_attention_overrideable" => [0, 1, 2, 3],
        // Positions come before heads.
        "_flash_attention_forward" | "_efficient_attention_forward" => [0, 2, 1, 3],
        _ => return None,
    })
}

/// FLOPs and bytes of both products of attention.
pub fn counts(of: &OperatorSignature) -> Option<Counts> {
    let sides = sides(&of.name)?;
    let input = |at: usize| -> Option<[u64; 4]> {
        let shape = shape(of, at).filter(|it| it.len() == 4)?;
        Some(sides.map(|at| shape[at]))
    };
    let ([batch, heads, queries, width], [same, key_heads, keys, key_width], value) =
        (input(0)?, input(1)?, input(2)?);
    let is_valid = batch == same
        && width == key_width
        && value[0] == batch
        && value[1] == key_heads
        && value[2] == keys
        && key_heads > 0
        && heads % key_heads == 0;
    if !is_valid {
        return None;
    }
    let pairs = causal(of).pairs(queries, keys)?;
    let flops = times(&[2, batch, heads, pairs, width.checked_add(value[3])?])?;
    let result = times(&[batch, heads, queries, value[3]])?;
    Some(Counts::flops(flops).inputs(of, &[0, 1, 2], 1)?.elements(result, 0))
}

/// The keys that a query attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attended {
    All,
    /// The first query attends to the first key, each further one to one key more.
    FromFirst,
    /// The last query attends to all keys, each one before it to one key less.
    ToLast,
}

impl Attended {
    /// Pairs of a query and a key.
    pub fn pairs(self, queries: u64, keys: u64) -> Option<u64> {
        let triangle = |side: u64| Some(times(&[side, side.checked_add(1)?])? / 2);
        let all = times(&[queries, keys]);
        match self {
            Self::All => all,
            Self::FromFirst if queries <= keys => triangle(queries),
            Self::FromFirst => sum(&[triangle(keys)?, times(&[queries - keys, keys])?]),
            Self::ToLast if queries <= keys => {
                all?.checked_sub(triangle(queries.saturating_sub(1))?)
            }
            Self::ToLast => triangle(keys),
        }
    }
}

/// The keys attended to, by the values of a call; all if these were not recorded.
fn causal(of: &OperatorSignature) -> Attended {
    let (at, causal) = match base(&of.name) {
        "scaled_dot_product_attention"
        | "_scaled_dot_product_attention_math"
        | "_scaled_dot_product_fused_attention_overrideable" => (5, Attended::FromFirst),
        "_scaled_dot_product_flash_attention" => (4, Attended::FromFirst),
        "_scaled_dot_product_efficient_attention" | "_scaled_dot_product_cudnn_attention" => {
            (6, Attended::FromFirst)
        }
        "_cudnn_attention_forward" => (10, Attended::FromFirst),
        "_flash_attention_forward" => (8, Attended::ToLast),
        "_efficient_attention_forward" => (9, Attended::ToLast),
        _ => return Attended::All,
    };
    match of.values.get(at).map(String::as_str) {
        Some("True") => causal,
        // Types of masks: from the upper left, and to the lower right.
        Some("1") => Attended::FromFirst,
        Some("2") => Attended::ToLast,
        _ => Attended::All,
    }
}
