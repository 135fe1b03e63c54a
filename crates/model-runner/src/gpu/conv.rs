//! Rows of a matrix for a convolution, which candle then multiplies by the weights.

use candle_core::{Result, Tensor};

use super::{
    device_of, empty,
    kernels::{KernelArg, LaunchGrid, launch},
};
use crate::ops::ConvShape;

const THREADS: usize = 128;

/// The patch below each output of a convolution over channels-last `x` `[batch, height, width,
/// inputs]`, as rows `[batch * out_height * out_width, kernel * kernel * inputs]`.
pub fn conv_rows(x: &Tensor, shape: &ConvShape) -> Result<Option<Tensor>> {
    let (batch, height, width, channels) = x.dims4()?;
    let Some(device) = device_of(x, &[x]) else { return Ok(None) };
    let &ConvShape { kernel, padding, stride, .. } = shape;
    let (out_height, out_width) = (shape.outputs_along(height), shape.outputs_along(width));
    let rows = batch * out_height * out_width;
    let out = empty((rows, kernel * kernel * channels), x.dtype(), device)?;
    let args = &mut [
        KernelArg::tensor(x)?,
        KernelArg::tensor(&out)?,
        KernelArg::int(height),
        KernelArg::int(width),
        KernelArg::int(channels),
        KernelArg::int(kernel),
        KernelArg::int(padding),
        KernelArg::int(stride),
        KernelArg::int(out_height),
        KernelArg::int(out_width),
    ];
    launch(device, "conv_rows", Some(x.dtype()), LaunchGrid::new((rows, 1), THREADS), args)?;
    Ok(Some(out))
}

/// The square patches of planes `x` `[batch, channels, height, width]`, as rows
/// `[patches, channels * patch * patch]`.
pub fn patch_rows(x: &Tensor, patch: usize) -> Result<Option<Tensor>> {
    let (batch, channels, height, width) = x.dims4()?;
    let whole = [height, width].iter().all(|side| side.is_multiple_of(patch))
        && (patch * x.dtype().size_in_bytes()).is_multiple_of(16);
    let Some(device) = device_of(x, &[x]).filter(|_| whole) else { return Ok(None) };
    let patches = batch * (height / patch) * (width / patch);
    let out = empty((patches, channels * patch * patch), x.dtype(), device)?;
    let args = &mut [
        KernelArg::tensor(x)?,
        KernelArg::tensor(&out)?,
        KernelArg::int(height),
        KernelArg::int(width),
        KernelArg::int(channels),
        KernelArg::int(patch),
    ];
    launch(device, "patch_rows", Some(x.dtype()), LaunchGrid::new((patches, 1), THREADS), args)?;
    Ok(Some(out))
}
