//! Operators on each element: activations, sums, products.

use candle_core::{D, Result, Tensor};

use crate::{module_scope::Site, record::Op};

/// An activation. The numbers are the kernels'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Activation {
    /// Exact, by the error function.
    Gelu = 1,
    /// `x * sigmoid(1.702 x)`
    QuickGelu = 2,
}

impl Activation {
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Gelu => x.gelu_erf(),
            Self::QuickGelu => x * candle_nn::ops::sigmoid(&(x * 1.702)?)?,
        }
    }
}

/// `silu` of the first half of the last dimension times the second.
pub fn gate(x: &Tensor) -> Result<Tensor> {
    let halves = x.chunk(2, D::Minus1)?;
    halves[0].silu()? * &halves[1]
}

/// A sum of two broadcastable tensors, or any other computation without counted FLOPs.
pub struct Pointwise(Op);

impl Pointwise {
    pub fn new(site: &Site) -> Self {
        Self(site.op("elementwise"))
    }

    pub fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.0.call(&[a, b], 0, || {
            if a.dims().ends_with(b.dims()) {
                gpu_kernel!(bias(a, None, Some(b), 0));
            }
            a.broadcast_add(b)
        })
    }

    /// Anything else over `operands`: a copy, a rearrangement, a fused expression.
    pub fn run(
        &self,
        operands: &[&Tensor],
        compute: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.0.call(operands, 0, compute)
    }
}
