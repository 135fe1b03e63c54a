//! Kernels on each row or element: norms, biases with activations, embeddings, windows, synthetic
//! weights.
//!
//! Each returns `None` if it has no kernel for its arguments.

use candle_core::{CudaDevice, D, DType, Result, Shape, Tensor};

use super::{
    device_of, empty,
    kernels::{KernelArg, LaunchGrid, launch},
};

/// `stdev`-scaled values of `seed`, equal to [`crate::weights`] on the host.
pub fn synthesise(
    device: &CudaDevice,
    shape: &Shape,
    dtype: DType,
    seed: u64,
    mean: f32,
    scale: f32,
) -> Result<Option<Tensor>> {
    if !matches!(dtype, DType::BF16 | DType::F16 | DType::F32) {
        return Ok(None);
    }
    let out = empty(shape, dtype, device)?;
    let count = shape.elem_count();
    let grid = LaunchGrid::new((count.div_ceil(256).clamp(1, 1 << 14), 1), 256);
    let args = &mut [
        KernelArg::tensor(&out)?,
        KernelArg::Long(count as u64),
        KernelArg::Long(seed),
        KernelArg::Float(mean),
        KernelArg::Float(scale),
    ];
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
    let args = &mut [
        KernelArg::tensor(tokens)?,
        KernelArg::tensor(table)?,
        KernelArg::tensor(&out)?,
        KernelArg::int(width),
    ];
    launch(
        device,
        "embed",
        Some(table.dtype()),
        LaunchGrid::new((tokens.elem_count(), 1), 128),
        args,
    )?;
    Ok(Some(out))
}

/// RMSNorm, or LayerNorm if there is a `bias`, of `x + delta`; returns the sum too.
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
    // A row is kept in shared memory; wider rows use candle's kernels.
    if width > 1 << 15 {
        return Ok(None);
    }
    let sum = if delta.is_some() { empty(x.shape(), dtype, device)? } else { x.clone() };
    let out = empty(x.shape(), dtype, device)?;
    let threads = (width * dtype.size_in_bytes() / 16).next_multiple_of(32).clamp(32, 512);
    let grid = LaunchGrid::new((x.elem_count() / width, 1), threads).shared(width * 4);
    let args = &mut [
        KernelArg::tensor(x)?,
        KernelArg::optional(delta)?,
        KernelArg::tensor(weight)?,
        KernelArg::optional(bias)?,
        KernelArg::tensor(&sum)?,
        KernelArg::tensor(&out)?,
        KernelArg::int(width),
        KernelArg::Float(eps),
    ];
    launch(
        device,
        if bias.is_some() { "layer_norm" } else { "rms_norm" },
        Some(dtype),
        grid,
        args,
    )?;
    Ok(Some((sum, out)))
}

/// `function(x + bias + residual)`; the residual repeats over leading dimensions that it lacks.
/// Functions have the kernel's numbers, 0 for none.
pub fn bias(
    x: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    function: i32,
) -> Result<Option<Tensor>> {
    let mut tensors = vec![x];
    tensors.extend(bias);
    tensors.extend(residual);
    let Some(device) = device_of(x, &tensors) else { return Ok(None) };
    let (dtype, count) = (x.dtype(), x.elem_count());
    let out = empty(x.shape(), dtype, device)?;
    let args = &mut [
        KernelArg::tensor(x)?,
        KernelArg::optional(bias)?,
        KernelArg::optional(residual)?,
        KernelArg::tensor(&out)?,
        KernelArg::Long(count as u64),
        KernelArg::Long(residual.map_or(count, Tensor::elem_count) as u64),
        KernelArg::int(x.dim(D::Minus1)?),
        KernelArg::Int(function),
    ];
    launch(device, "bias", Some(dtype), LaunchGrid::over(count, 16 / dtype.size_in_bytes()), args)?;
    Ok(Some(out))
}

/// `silu(gate) * up` of `x` `[.., 2 * width]`, gates first.
pub fn swiglu(x: &Tensor) -> Result<Option<Tensor>> {
    let mut shape = x.dims().to_vec();
    let Some(last) = shape.last_mut() else { return Ok(None) };
    *last /= 2;
    let (dtype, width) = (x.dtype(), *last);
    let Some(device) =
        device_of(x, &[x]).filter(|_| width.is_multiple_of(16 / dtype.size_in_bytes()))
    else {
        return Ok(None);
    };
    let out = empty(shape, dtype, device)?;
    let count = out.elem_count();
    let args = &mut [
        KernelArg::tensor(x)?,
        KernelArg::tensor(&out)?,
        KernelArg::Long(count as u64),
        KernelArg::int(width),
    ];
    launch(
        device,
        "swiglu",
        Some(dtype),
        LaunchGrid::over(count, 16 / dtype.size_in_bytes()),
        args,
    )?;
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

/// Windows joined as `[batch, side, side, width]`.
pub fn join_windows(x: &Tensor, side: usize) -> Result<Option<Tensor>> {
    let (count, window, _, width) = x.dims4()?;
    let Some(device) = device_of(x, &[x]) else { return Ok(None) };
    let across = side.div_ceil(window);
    let out = empty((count / (across * across), side, side, width), x.dtype(), device)?;
    windows(device, "window_join", x, &out, side, window)?;
    Ok(Some(out))
}

fn windows(
    device: &CudaDevice,
    name: &'static str,
    from: &Tensor,
    to: &Tensor,
    side: usize,
    window: usize,
) -> Result<()> {
    let (width, dtype) = (from.dim(D::Minus1)?, from.dtype());
    let (whole, cut) = if name == "window_partition" { (from, to) } else { (to, from) };
    debug_assert_eq!(whole.dims()[1], side);
    let threads = (width * dtype.size_in_bytes() / 16).next_multiple_of(32).clamp(32, 256);
    let args = &mut [
        KernelArg::tensor(from)?,
        KernelArg::tensor(to)?,
        KernelArg::int(side),
        KernelArg::int(window),
        KernelArg::int(width),
    ];
    launch(device, name, Some(dtype), LaunchGrid::new((cut.elem_count() / width, 1), threads), args)
}
