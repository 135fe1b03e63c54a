//! Two-dimensional convolution.

use candle_core::{Result, Tensor};
use candle_nn::Init;

use crate::{module_scope::Site, record::Op};

/// A square convolution over `[batch, channels, height, width]`.
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    padding: usize,
    stride: usize,
    op: Op,
}

/// Shape of a convolution: channels in and out, kernel side, padding, stride.
#[derive(Debug, Clone, Copy)]
pub struct ConvShape {
    pub inputs: usize,
    pub outputs: usize,
    pub kernel: usize,
    pub padding: usize,
    pub stride: usize,
}

impl Conv2d {
    /// Builds from `weight` `[outputs, inputs, kernel, kernel]`, and `bias` if requested.
    pub fn new(site: &Site, shape: ConvShape, bias: bool) -> Result<Self> {
        let ConvShape { inputs, outputs, kernel, padding, stride } = shape;
        let init =
            Init::Randn { mean: 0.0, stdev: ((inputs * kernel * kernel) as f64).sqrt().recip() };
        let weight = site.get((outputs, inputs, kernel, kernel), "weight", init)?;
        let bias = bias.then(|| site.get(outputs, "bias", Init::Const(0.0))).transpose()?;
        Ok(Self { weight, bias, padding, stride, op: site.op("conv") })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, inputs, height, width) = x.dims4()?;
        let (outputs, _, kernel, _) = self.weight.dims4()?;
        let side =
            |pixels: usize| ((pixels + 2 * self.padding).saturating_sub(kernel)) / self.stride + 1;
        let flops =
            2 * (batch * outputs * side(height) * side(width) * inputs * kernel * kernel) as u64;
        let mut operands = vec![x, &self.weight];
        operands.extend(&self.bias);
        self.op.call(&operands, flops, || {
            let y = x.conv2d(&self.weight, self.padding, self.stride, 1, 1)?;
            match &self.bias {
                Some(bias) => y.broadcast_add(&bias.reshape((1, outputs, 1, 1))?),
                None => Ok(y),
            }
        })
    }
}
