//! Normalisations: RMSNorm and LayerNorm.
//!
//! A norm may include the residual sum before it, which is then written once and not read again.

use candle_core::{Result, Tensor};
use candle_nn::Init;

use crate::{module_scope::Site, record::Op};

/// RMSNorm, `x / rms(x) * weight`, or LayerNorm, `(x - mean) / std * weight + bias`, over the last
/// dimension.
pub struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f32,
    op: Op,
}

impl Norm {
    pub fn rms(site: &Site, width: usize, eps: f64) -> Result<Self> {
        Ok(Self {
            weight: site.get(width, "weight", Init::Const(1.0))?,
            bias: None,
            eps: eps as f32,
            op: site.op("norm"),
        })
    }

    pub fn layer(site: &Site, width: usize, eps: f64) -> Result<Self> {
        Ok(Self {
            bias: Some(site.get(width, "bias", Init::Const(0.0))?),
            ..Self::rms(site, width, eps)?
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut operands = vec![x, &self.weight];
        operands.extend(&self.bias);
        self.op.call(&operands, 0, || Ok(self.compute(x, None)?.1))
    }

    /// `x + delta`, and its norm.
    pub fn forward_sum(&self, x: &Tensor, delta: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut operands = vec![x, delta, &self.weight];
        operands.extend(&self.bias);
        self.op.call(&operands, 0, || self.compute(x, Some(delta)))
    }

    #[cfg(feature = "cuda")]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The sum and its norm, not recorded: for operators that contain a norm.
    pub fn compute(&self, x: &Tensor, delta: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        gpu_kernel!(norm(x, delta, &self.weight, self.bias.as_ref(), self.eps));
        let x = delta.map_or_else(|| x.contiguous(), |delta| x + delta)?;
        let normed = match &self.bias {
            None => candle_nn::ops::rms_norm(&x, &self.weight, self.eps)?,
            Some(bias) => candle_nn::ops::layer_norm(&x, &self.weight, bias, self.eps)?,
        };
        Ok((x, normed))
    }
}
