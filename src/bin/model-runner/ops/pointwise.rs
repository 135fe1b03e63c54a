//! Operators on each element: activations, sums, products.

use candle_core::{Result, Tensor};

use crate::{record::Op, site::Site};

/// An activation's function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// `x * sigmoid(x)`
    Silu,
    /// Exact, by the error function.
    Gelu,
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
}

/// An activation.
pub struct Activation {
    function: Function,
    op: Op,
}

impl Activation {
    pub fn new(site: &Site, function: Function) -> Self {
        Self { function, op: site.op("activation") }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.op.call(&[x], 0, || match self.function {
            Function::Silu => x.silu(),
            Function::Gelu => x.gelu_erf(),
            Function::QuickGelu => x * candle_nn::ops::sigmoid(&(x * 1.702)?)?,
        })
    }
}

/// A sum or product of two tensors that broadcast to each other, or any other computation without FLOPs of its own.
pub struct Pointwise(Op);

impl Pointwise {
    pub fn new(site: &Site) -> Self {
        Self(site.op("elementwise"))
    }

    pub fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.0.call(&[a, b], 0, || a.broadcast_add(b))
    }

    pub fn mul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.0.call(&[a, b], 0, || a.broadcast_mul(b))
    }

    /// Anything else over `operands`: a copy, a rearrangement, a fused expression.
    pub fn run(&self, operands: &[&Tensor], compute: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        self.0.call(operands, 0, compute)
    }
}

/// The index of the largest value, on the host.
pub struct ArgMax(Op);

impl ArgMax {
    pub fn new(site: &Site) -> Self {
        Self(site.op("argmax"))
    }

    pub fn forward(&self, x: &Tensor) -> Result<u32> {
        // The copy to the host belongs to the call: it is where the device is waited for.
        let mut index = 0;
        self.0.call(&[x], 0, || {
            let largest = x.argmax(candle_core::D::Minus1)?;
            index = largest.to_scalar::<u32>()?;
            Ok(largest)
        })?;
        Ok(index)
    }
}
