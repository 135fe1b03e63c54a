//! Products with one vector, as in decoding: bound by the bandwidth of the weights.
//!
//! Several rows are multiplied by cuBLAS, through candle.

use candle_core::{D, Result, Tensor};

use super::{
    device_of, empty,
    kernels::{KernelArg, LaunchGrid, launch},
};

/// Rows of weights per block: a warp each.
const WARPS: usize = 8;

/// `W x + b` of one vector `x` `[.., inputs]`.
pub fn gemv(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Option<Tensor>> {
    let (outputs, inputs) = weight.dims2()?;
    let fits = x.elem_count() == inputs
        && bias.is_none_or(|bias| bias.dtype() == x.dtype() && bias.is_contiguous());
    let Some(device) = device_of(x, &[x, weight]).filter(|_| fits) else { return Ok(None) };
    let mut shape = x.dims().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    let out = empty(shape, x.dtype(), device)?;
    let grid = LaunchGrid::new((outputs.div_ceil(WARPS), 1), WARPS * 32);
    let args = &mut [
        KernelArg::tensor(weight)?,
        KernelArg::tensor(x)?,
        KernelArg::optional(bias)?,
        KernelArg::tensor(&out)?,
        KernelArg::int(outputs),
        KernelArg::int(inputs),
    ];
    launch(device, "gemv", Some(x.dtype()), grid, args)?;
    Ok(Some(out))
}

/// `silu(gate x) * (up x)` of one vector, for the experts `ids`, or for a single one; `weight` is
/// `[.., 2 * width, inputs]`.
pub fn gated(x: &Tensor, weight: &Tensor, ids: Option<&Tensor>) -> Result<Option<Tensor>> {
    let (rows, inputs) = (weight.dim(D::Minus2)?, weight.dim(D::Minus1)?);
    let Some(device) = device_of(x, &[x, weight]).filter(|_| x.elem_count() == inputs) else {
        return Ok(None);
    };
    let (width, slots) = (rows / 2, ids.map_or(1, Tensor::elem_count));
    let out = empty((slots, width), x.dtype(), device)?;
    let grid = LaunchGrid::new((width.div_ceil(WARPS), slots), WARPS * 32);
    let args = &mut [
        KernelArg::tensor(weight)?,
        KernelArg::tensor(x)?,
        KernelArg::optional(ids)?,
        KernelArg::tensor(&out)?,
        KernelArg::int(width),
        KernelArg::int(inputs),
    ];
    launch(device, "expert_up", Some(x.dtype()), grid, args)?;
    Ok(Some(out))
}
