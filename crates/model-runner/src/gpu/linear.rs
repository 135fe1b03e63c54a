//! Products with weights: with one vector by kernels of this project, as in decoding, where the
//! bandwidth of the weights is the bound; with several rows by cuBLAS.

use std::ffi::c_void;

use candle_core::{
    D, DType, Error, Result, Tensor,
    cuda_backend::cudarc::cublas::{
        result::gemm_strided_batched_ex,
        sys::{cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType},
    },
};

use super::{
    device_of, empty,
    kernels::{KernelArg, LaunchGrid, launch, pointer},
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

/// `x W^T` of `x` `[rows, inputs]` and `weight` `[outputs, inputs]`: candle's call of cuBLAS, into
/// memory of [`empty`].
pub fn product(x: &Tensor, weight: &Tensor) -> Result<Option<Tensor>> {
    let (&[rows, inputs], &[outputs, _]) = (x.dims(), weight.dims()) else { return Ok(None) };
    let Some(device) = device_of(x, &[x, weight]) else { return Ok(None) };
    let dtype = match x.dtype() {
        DType::BF16 => cudaDataType::CUDA_R_16BF,
        DType::F16 => cudaDataType::CUDA_R_16F,
        DType::F32 => cudaDataType::CUDA_R_32F,
        _ => return Ok(None),
    };
    let out = empty((rows, outputs), x.dtype(), device)?;
    let (one, zero) = (1f32, 0f32);
    let (m, n, k) = (outputs as i32, rows as i32, inputs as i32);
    let stride = |count: usize| count as i64;
    // SAFETY: the matrices have these sizes, row by row; cuBLAS has columns, so the operands are
    // exchanged.
    unsafe {
        gemm_strided_batched_ex(
            *device.cublas_handle().handle(),
            cublasOperation_t::CUBLAS_OP_T,
            cublasOperation_t::CUBLAS_OP_N,
            m,
            n,
            k,
            (&raw const one).cast(),
            pointer(weight)? as *const c_void,
            dtype,
            k,
            stride(outputs * inputs),
            pointer(x)? as *const c_void,
            dtype,
            k,
            stride(rows * inputs),
            (&raw const zero).cast(),
            pointer(&out)? as *mut c_void,
            dtype,
            m,
            stride(rows * outputs),
            1,
            cublasComputeType_t::CUBLAS_COMPUTE_32F,
            cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
        )
    }
    .map_err(|error| Error::Msg(format!("cuBLAS, [{rows}, {inputs}] by {outputs}: {error:?}")))?;
    Ok(Some(out))
}
