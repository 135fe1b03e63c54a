//! Two-dimensional convolution, channels last.
//!
//! On a GPU a kernel arranges the patches below the outputs as rows, which are multiplied by the
//! weights; elsewhere candle convolves planes.

use candle_core::{Result, Tensor};
use candle_nn::Init;

use crate::{module_scope::Site, record::Op};

/// A square convolution.
pub struct Conv2d {
    shape: ConvShape,
    /// `[outputs, inputs, kernel, kernel]`
    weight: Tensor,
    /// The same as `[outputs, kernel * kernel * inputs]`.
    #[cfg(feature = "cuda")]
    by_place: Tensor,
    bias: Option<Tensor>,
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

impl ConvShape {
    /// Number of outputs along `pixels` inputs.
    pub fn outputs_along(&self, pixels: usize) -> usize {
        (pixels + 2 * self.padding).saturating_sub(self.kernel) / self.stride + 1
    }
}

impl Conv2d {
    /// Builds from `weight` `[outputs, inputs, kernel, kernel]`, and `bias` if requested.
    pub fn new(site: &Site, shape: ConvShape, bias: bool) -> Result<Self> {
        let ConvShape { inputs, outputs, kernel, .. } = shape;
        let init =
            Init::Randn { mean: 0.0, stdev: ((inputs * kernel * kernel) as f64).sqrt().recip() };
        let weight = site.get((outputs, inputs, kernel, kernel), "weight", init)?;
        let bias = bias.then(|| site.get(outputs, "bias", Init::Const(0.0))).transpose()?;
        Ok(Self {
            shape,
            #[cfg(feature = "cuda")]
            by_place: weight
                .permute((0, 2, 3, 1))?
                .contiguous()?
                .reshape((outputs, kernel * kernel * inputs))?,
            weight,
            bias,
            op: site.op("conv"),
        })
    }

    /// Forward of `x` `[batch, height, width, inputs]`; returns `[batch, height, width, outputs]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, height, width, _) = x.dims4()?;
        let out = self.out(batch, height, width);
        self.call(x, out, || {
            #[cfg(feature = "cuda")]
            if let Some(rows) = crate::gpu::conv_rows(x, &self.shape)? {
                return self.product(&rows, &self.by_place, out);
            }
            self.convolve(&x.permute((0, 3, 1, 2))?.contiguous()?)
        })
    }

    /// Forward of planes `x` `[batch, inputs, height, width]`; returns `[batch, height, width,
    /// outputs]`.
    pub fn forward_planes(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, _, height, width) = x.dims4()?;
        let out = self.out(batch, height, width);
        self.call(x, out, || {
            #[cfg(feature = "cuda")]
            if self.shape.kernel == self.shape.stride
                && self.shape.padding == 0
                && let Some(rows) = crate::gpu::patch_rows(x, self.shape.kernel)?
            {
                return self.product(&rows, &self.weight.flatten_from(1)?, out);
            }
            self.convolve(x)
        })
    }

    fn out(&self, batch: usize, height: usize, width: usize) -> [usize; 4] {
        let along = |pixels| self.shape.outputs_along(pixels);
        [batch, along(height), along(width), self.shape.outputs]
    }

    fn call(
        &self,
        x: &Tensor,
        out: [usize; 4],
        compute: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let ConvShape { inputs, kernel, .. } = self.shape;
        let flops = 2 * (out.iter().product::<usize>() * inputs * kernel * kernel) as u64;
        let mut operands = vec![x, &self.weight];
        operands.extend(&self.bias);
        self.op.call(&operands, flops, compute)
    }

    #[cfg(feature = "cuda")]
    fn product(&self, rows: &Tensor, weight: &Tensor, out: [usize; 4]) -> Result<Tensor> {
        self.finish(super::linear::product(rows, weight)?.reshape(&out[..])?)
    }

    fn convolve(&self, planes: &Tensor) -> Result<Tensor> {
        let ConvShape { padding, stride, .. } = self.shape;
        let y = planes.conv2d(&self.weight, padding, stride, 1, 1)?;
        self.finish(y.permute((0, 2, 3, 1))?.contiguous()?)
    }

    fn finish(&self, y: Tensor) -> Result<Tensor> {
        let Some(bias) = &self.bias else { return Ok(y) };
        gpu_kernel!(bias(&y, Some(bias), None, 0));
        y.broadcast_add(bias)
    }
}
