//! Kernels on each row or element: norms, biases with activations, embeddings, windows, synthetic weights.
//!
//! Each gives `None` where it has no kernel for what it is given.

use candle_core::{CudaDevice, D, DType, Result, Shape, Tensor};

use super::{
    device_of, empty,
    kernels::{Arg, Grid, launch},
};

/// `stdev`-scaled values of `seed`: those of [`crate::weights`] on the host.
pub fn synthesise(device: &CudaDevice, shape: &Shape, dtype: DType, seed: u64, mean: f32, scale: f32) -> Result<Option<Tensor>> {
    if !matches!(dtype, DType::BF16 | DType::F16 | DType::F32) {
        return Ok(None);
    }
    let out = empty(shape, dtype, device)?;
    let count = shape.elem_count();
    let grid = Grid::new((count.div_ceil(256).clamp(1, 1 << 14), 1), 256);
    let args = &mut [Arg::tensor(&out)?, Arg::Long(count as u64), Arg::Long(seed), Arg::Float(mean), Arg::Float(scale)];
    launch(device, "synthesise", Some(dtype), grid, args)?;
    Ok(Some(out))
}

/// Rows of `table` by `tokens`.
pub fn embed(tokens: &Tensor, table: &Tensor) -> Result<Option<Tensor>> {
    let Some(device) = device_of(table, &[table]) else { return Ok(None) };
    let width = table.dim(D::Minus1)?;
    let mut shape = tokens.dims().to_vec();
    shape.push(width);
    let out = empty(shape, table.dtype(), device)?;
    let args = &mut [Arg::tensor(tokens)?, Arg::tensor(table)?, Arg::tensor(&out)?, Arg::int(width)];
    launch(device, "embed", Some(table.dtype()), Grid::new((tokens.elem_count(), 1), 128), args)?;
    Ok(Some(out))
}

/// RMSNorm, or LayerNorm where there is a `bias`, of `x + delta`; the sum too.
pub fn norm(
    x: &Tensor,
    delta: Option<&Tensor>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Option<(Tensor, Tensor)>> {
    let mut tensors = vec![x, weight];
    tensors.extend(delta);
    tensors.extend(bias);
    let Some(device) = device_of(x, &tensors) else { return Ok(None) };
    let (dtype, width) = (x.dtype(), x.dim(D::Minus1)?);
    // A row lies in shared memory; past this width candle's kernels take over.
    if width > 1 << 15 {
        return Ok(None);
    }
    let sum = if delta.is_some() { empty(x.shape(), dtype, device)? } else { x.clone() };
    let out = empty(x.shape(), dtype, device)?;
    let threads = (width * dtype.size_in_bytes() / 16).next_multiple_of(32).clamp(32, 512);
    let grid = Grid::new((x.elem_count() / width, 1), threads).shared(width * 4);
    let args = &mut [
        Arg::tensor(x)?,
        Arg::optional(delta)?,
        Arg::tensor(weight)?,
        Arg::optional(bias)?,
        Arg::tensor(&sum)?,
        Arg::tensor(&out)?,
        Arg::int(width),
        Arg::Float(eps),
    ];
    launch(device, if bias.is_some() { "layer_norm" } else { "rms_norm" }, Some(dtype), grid, args)?;
    Ok(Some((sum, out)))
}

/// `function(x + bias + residual)`; functions are numbered as the kernel numbers them, 0 for none.
pub fn bias(x: &Tensor, bias: Option<&Tensor>, residual: Option<&Tensor>, function: i32) -> Result<Option<Tensor>> {
    let mut tensors = vec![x];
    tensors.extend(bias);
    tensors.extend(residual);
    let Some(device) = device_of(x, &tensors) else { return Ok(None) };
    let (dtype, count) = (x.dtype(), x.elem_count());
    let out = empty(x.shape(), dtype, device)?;
    let args = &mut [
        Arg::tensor(x)?,
        Arg::optional(bias)?,
        Arg::optional(residual)?,
        Arg::tensor(&out)?,
        Arg::Long(count as u64),
        Arg::int(x.dim(D::Minus1)?),
        Arg::Int(function),
    ];
    launch(device, "bias", Some(dtype), Grid::over(count, 16 / dtype.size_in_bytes()), args)?;
    Ok(Some(out))
}

/// `silu(gate) * up` of `x` `[.., 2 * width]`, gates first.
pub fn swiglu(x: &Tensor) -> Result<Option<Tensor>> {
    let mut shape = x.dims().to_vec();
    let Some(last) = shape.last_mut() else { return Ok(None) };
    *last /= 2;
    let (dtype, width) = (x.dtype(), *last);
    let Some(device) = device_of(x, &[x]).filter(|_| width.is_multiple_of(16 / dtype.size_in_bytes())) else { return Ok(None) };
    let out = empty(shape, dtype, device)?;
    let count = out.elem_count();
    let args = &mut [Arg::tensor(x)?, Arg::tensor(&out)?, Arg::Long(count as u64), Arg::int(width)];
    launch(device, "swiglu", Some(dtype), Grid::over(count, 16 / dtype.size_in_bytes()), args)?;
    Ok(Some(out))
}

/// `[batch, side, side, width]` as windows `[batch * across^2, window, window, width]`.
pub fn partition_windows(x: &Tensor, window: usize) -> Result<Option<Tensor>> {
    let (batch, side, wide, width) = x.dims4()?;
    let Some(device) = device_of(x, &[x]).filter(|_| side == wide) else { return Ok(None) };
    let across = side.div_ceil(window);
    let out = empty((batch * across * across, window, window, width), x.dtype(), device)?;
    windows(device, "window_partition", x, &out, side, window)?;
    Ok(Some(out))
}

/// Windows put together as `[batch, side, side, width]`.
pub fn join_windows(x: &Tensor, side: usize) -> Result<Option<Tensor>> {
    let (count, window, _, width) = x.dims4()?;
    let Some(device) = device_of(x, &[x]) else { return Ok(None) };
    let across = side.div_ceil(window);
    let out = empty((count / (across * across), side, side, width), x.dtype(), device)?;
    windows(device, "window_join", x, &out, side, window)?;
    Ok(Some(out))
}

fn windows(device: &CudaDevice, name: &'static str, from: &Tensor, to: &Tensor, side: usize, window: usize) -> Result<()> {
    let (width, dtype) = (from.dim(D::Minus1)?, from.dtype());
    let (whole, cut) = if name == "window_partition" { (from, to) } else { (to, from) };
    debug_assert_eq!(whole.dims()[1], side);
    let threads = (width * dtype.size_in_bytes() / 16).next_multiple_of(32).clamp(32, 256);
    let args = &mut [Arg::tensor(from)?, Arg::tensor(to)?, Arg::int(side), Arg::int(window), Arg::int(width)];
    launch(device, name, Some(dtype), Grid::new((cut.elem_count() / width, 1), threads), args)
}
