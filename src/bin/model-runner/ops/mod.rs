//! The operators that models are made of: candle's own computation, recorded as it happens.
//!
//! Each is built at a [`crate::site::Site`] and records one call per forward. Nothing here knows a model, a stage or a clock.

mod attention;
mod conv;
mod linear;
mod norm;
mod pointwise;

pub use attention::{Matmul, Rope, Softmax};
pub use conv::{Conv2d, ConvShape};
pub use linear::{Embedding, Linear};
pub use norm::{LayerNorm, LayerNorm2d, RmsNorm};
pub use pointwise::{Activation, ArgMax, Function, Pointwise};

/// FLOPs of `batch` products of `m` x `k` by `k` x `n`, a multiply-add as two.
pub fn matmul_flops(batch: usize, m: usize, k: usize, n: usize) -> u64 {
    2 * batch as u64 * m as u64 * k as u64 * n as u64
}
