//! FLOPs and bytes of a framework's operators, from the shapes, types and values of their inputs.
//!
//! A multiply-add is two FLOPs; attention counts both products over all pairs of positions; if it
//! is called as causal, over the pairs of a query and the keys that it attends to. Pairs that a
//! mask hides count, since its values are not recorded. Norms, rotary embeddings and activations
//! have bytes alone. Bytes count operands and result, each once by its own type; experts and
//! `_grouped_mm` of rows in groups (2-D by 3-D) have none. An operator without a formula here has
//! neither FLOPs nor bytes.

mod attention;
mod engine_attention;
mod experts;
mod matrices;
mod traffic;

use llmprof_core::trace::framework::OperatorSignature;

use self::engine_attention::attention_of_step;
pub use self::{
    engine_attention::{StepAttention, StepKeys, cache_size},
    matrices::{is_linear, product_shape},
};

/// FLOPs above which a call is a mistake of the trace: an hour of the fastest device.
const MAX_FLOPS: u64 = 1 << 62;

/// Work of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperatorWork {
    pub flops: u64,
    /// 0 if the type of the elements or the part of the operands that is read is unknown.
    pub bytes: u64,
}

impl OperatorWork {
    /// The work, unless it is a mistake of the trace.
    fn possible(self) -> Option<Self> {
        (self.flops <= MAX_FLOPS && self.bytes <= MAX_FLOPS).then_some(self)
    }
}

/// Work of the calls with one signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureWork {
    /// The same in each call.
    Fixed(OperatorWork),
    /// It follows from the keys of the step in which a call runs.
    OfStep(StepAttention),
    /// Attention to a part of the step's keys: neither it, nor a call around it, nor attention next
    /// to it has work.
    PartOfKeys,
}

/// Work of the calls with a signature; `None` without a formula, or if the shapes do not fit it.
/// `cache_size`: bytes of an element of the KV cache, if known.
pub fn signature_work(of: &OperatorSignature, cache_size: Option<u64>) -> Option<SignatureWork> {
    attention_of_step(of, cache_size).or_else(|| work(of).map(SignatureWork::Fixed))
}

/// Type of the first tensor of a signature, in the words of the other tables.
pub fn dtype(of: &OperatorSignature) -> Option<&'static str> {
    let first = of.shapes.iter().position(|it| !it.is_empty())?;
    element(of.types.get(first)?).map(|(name, _)| name)
}

/// Name and bytes of an element type as PyTorch writes it.
fn element(text: &str) -> Option<(&'static str, u64)> {
    Some(match text {
        "c10::BFloat16" => ("bf16", 2),
        "c10::Half" => ("f16", 2),
        "float" => ("f32", 4),
        "double" => ("f64", 8),
        "long int" | "long" => ("i64", 8),
        "int" => ("i32", 4),
        "signed char" => ("i8", 1),
        "unsigned char" => ("u8", 1),
        "bool" => ("bool", 1),
        it if it.starts_with("c10::Float8") => ("f8", 1),
        _ => return None,
    })
}

/// Bytes of an element of an input.
fn size(of: &OperatorSignature, input: usize) -> Option<u64> {
    element(of.types.get(input)?).map(|it| it.1)
}

/// Shape of an input that is a tensor.
fn shape(of: &OperatorSignature, input: usize) -> Option<&[u64]> {
    of.shapes.get(input).map(Vec::as_slice).filter(|it| !it.is_empty())
}

/// FLOPs of a call, and the elements that it moves, each with the input whose type they have.
#[derive(Debug, Default)]
struct Counts {
    flops: u64,
    moved: Vec<(u64, usize)>,
}

impl Counts {
    const fn flops(flops: u64) -> Self {
        Self { flops, moved: Vec::new() }
    }

    /// Adds inputs that the call reads or writes `count` times. An optional one may be absent.
    fn inputs(mut self, of: &OperatorSignature, inputs: &[usize], count: u64) -> Option<Self> {
        for at in inputs {
            if let Some(sides) = shape(of, *at) {
                self = self.elements(times(&[times(sides)?, count])?, *at);
            }
        }
        Some(self)
    }

    /// Adds elements of the type of an input.
    fn elements(mut self, count: u64, like: usize) -> Self {
        self.moved.push((count, like));
        self
    }

    /// Bytes of all elements; 0 if the type of some is unknown.
    fn bytes(&self, of: &OperatorSignature) -> Option<u64> {
        let mut bytes = 0_u64;
        for (count, like) in &self.moved {
            let Some(size) = size(of, *like) else { return Some(0) };
            bytes = bytes.checked_add(count.checked_mul(size)?)?;
        }
        Some(bytes)
    }
}

/// Work of a call by its signature alone; `None` without a formula, or if the shapes do not fit it.
fn work(of: &OperatorSignature) -> Option<OperatorWork> {
    let formulas: [fn(&OperatorSignature) -> Option<Counts>; 7] = [
        matrices::counts,
        attention::counts,
        experts::counts,
        traffic::norm,
        traffic::rotary,
        traffic::activation,
        traffic::sum_of_experts,
    ];
    let counts = formulas.iter().find_map(|formula| formula(of))?;
    OperatorWork { flops: counts.flops, bytes: counts.bytes(of)? }.possible()
}

fn times(sides: &[u64]) -> Option<u64> {
    sides.iter().try_fold(1_u64, |all, side| all.checked_mul(*side))
}

fn sum(parts: &[u64]) -> Option<u64> {
    parts.iter().try_fold(0_u64, |all, part| all.checked_add(*part))
}

#[cfg(test)]
mod tests;
