//! Normalisations: RMSNorm, LayerNorm, and LayerNorm over the channels of an image.

use candle_core::{Result, Tensor};
use candle_nn::Init;

use crate::{record::Op, site::Site};

/// `x / rms(x) * weight` over the last dimension.
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
    op: Op,
}

impl RmsNorm {
    pub fn new(site: &Site, width: usize, eps: f64) -> Result<Self> {
        Ok(Self { weight: site.get(width, "weight", Init::Const(1.0))?, eps: eps as f32, op: site.op("norm") })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.op.call(&[x, &self.weight], 0, || candle_nn::ops::rms_norm(&x.contiguous()?, &self.weight, self.eps))
    }
}

/// `(x - mean) / std * weight + bias` over the last dimension.
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
    op: Op,
}

impl LayerNorm {
    pub fn new(site: &Site, width: usize, eps: f64) -> Result<Self> {
        let (weight, bias) = (site.get(width, "weight", Init::Const(1.0))?, site.get(width, "bias", Init::Const(0.0))?);
        Ok(Self { weight, bias, eps: eps as f32, op: site.op("norm") })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.op.call(&[x, &self.weight, &self.bias], 0, || {
            candle_nn::ops::layer_norm(&x.contiguous()?, &self.weight, &self.bias, self.eps)
        })
    }
}

/// LayerNorm over the channels of `[batch, channels, height, width]`.
pub struct LayerNorm2d(LayerNorm);

impl LayerNorm2d {
    pub fn new(site: &Site, channels: usize, eps: f64) -> Result<Self> {
        LayerNorm::new(site, channels, eps).map(Self)
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let LayerNorm { weight, bias, eps, op } = &self.0;
        op.call(&[x, weight, bias], 0, || {
            let channels_last = x.permute((0, 2, 3, 1))?.contiguous()?;
            candle_nn::ops::layer_norm(&channels_last, weight, bias, *eps)?.permute((0, 3, 1, 2))?.contiguous()
        })
    }
}
