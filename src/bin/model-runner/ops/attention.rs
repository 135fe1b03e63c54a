//! What attention is made of, beside linear layers: batched products, softmax, rotary positions.

use candle_core::{D, DType, Device, Result, Tensor};

use super::matmul_flops;
use crate::{record::Op, site::Site};

/// A batched product of two activations.
pub struct Matmul(Op);

impl Matmul {
    pub fn new(site: &Site) -> Self {
        Self(site.op("matmul"))
    }

    pub fn forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (m, k, n) = (a.dim(D::Minus2)?, a.dim(D::Minus1)?, b.dim(D::Minus1)?);
        let batch = a.elem_count() / (m * k).max(1);
        self.0.call(&[a, b], matmul_flops(batch, m, k, n), || a.matmul(b))
    }
}

/// Softmax over the last dimension.
pub struct Softmax(Op);

impl Softmax {
    pub fn new(site: &Site) -> Self {
        Self(site.op("softmax"))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.call(&[x], 0, || candle_nn::ops::softmax_last_dim(&x.contiguous()?))
    }
}

/// Rotary positions, half-split: element `i` turns with element `i + dim / 2`.
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
    op: Op,
}

impl Rope {
    /// Builds the tables of `positions` angles `position * theta^(-2i / dim)`.
    pub fn new(site: &Site, positions: usize, dim: usize, theta: f64) -> Result<Self> {
        let (cos, sin) = Self::tables(positions, dim, theta, site.dtype(), site.device())?;
        Ok(Self { cos, sin, op: site.op("rope") })
    }

    fn tables(positions: usize, dim: usize, theta: f64, dtype: DType, device: &Device) -> Result<(Tensor, Tensor)> {
        let half = dim / 2;
        let frequencies: Vec<f64> = (0..half).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect();
        let angles = (0..positions).flat_map(|p| frequencies.iter().map(move |f| (p as f64 * f) as f32));
        let angles = Tensor::from_iter(angles, device)?.reshape((positions, half))?;
        Ok((angles.cos()?.to_dtype(dtype)?, angles.sin()?.to_dtype(dtype)?))
    }

    /// Turns `x` `[batch, heads, tokens, dim]`, whose first token stands at `position`.
    pub fn forward(&self, x: &Tensor, position: usize) -> Result<Tensor> {
        let tokens = x.dim(2)?;
        let (cos, sin) = (self.cos.narrow(0, position, tokens)?, self.sin.narrow(0, position, tokens)?);
        self.op.call(&[x, &cos, &sin], 0, || candle_nn::rotary_emb::rope(&x.contiguous()?, &cos, &sin))
    }
}
