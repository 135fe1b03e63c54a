//! GPU features beyond candle: kernels of this project, a capturable stream, memory usage.
//!
//! Compiled with the feature `cuda` only. Kernels take and return candle's tensors; everything
//! without a kernel here runs by candle's.

mod attention;
mod conv;
mod elementwise;
mod experts;
mod graph;
mod kernels;
mod l2_flush;
mod linear;
mod memory;
mod sample;
mod slab;
#[cfg(test)]
mod tests;
mod timer;

use candle_core::{
    CudaDevice, DType, Device, Result, Tensor,
    cuda_backend::cudarc::driver::{CudaContext, DriverError},
};

pub use crate::gpu::{
    elementwise::{bias, embed, join_windows, norm, partition_windows, swiglu, synthesise},
    l2_flush::L2Flush,
};
pub use attention::{AttendMany, MatrixView, RopeArgs, attend_many, attend_one, rope};
pub use conv::{conv_rows, patch_rows};
pub use experts::{ExpertsArgs, RouteArgs, experts, route};
pub use graph::{CapturedGraph, is_capturing};
pub use linear::{gated, gemv, product};
pub use memory::{free_bytes, peak_bytes, reset_peak, used_bytes};
pub use sample::{advance, sample};
pub use slab::without_slabs;
pub use timer::{GpuMark, GpuTimer, StepPacer};

/// Opens GPU `index` on a new stream: the default one cannot be captured.
pub fn open(index: usize) -> std::result::Result<Device, String> {
    let count = CudaContext::device_count().map_err(|error| driver_error(&error))?;
    if index as i64 >= i64::from(count) {
        let names =
            if count == 1 { "cuda:0".to_owned() } else { format!("cuda:0 to cuda:{}", count - 1) };
        return Err(if count == 0 {
            "the driver lists no GPU".to_owned()
        } else {
            format!("the driver lists {names}")
        });
    }
    let device = Device::new_cuda_with_stream(index).map_err(|error| error.to_string())?;
    if let Device::Cuda(cuda) = &device {
        // SAFETY: only one stream is used, so uses of memory are ordered.
        unsafe { cuda.disable_event_tracking() };
        memory::keep_freed(cuda).map_err(|error| driver_error(&error))?;
        kernels::load(cuda)?;
    }
    Ok(device)
}

fn driver_error(error: &DriverError) -> String {
    format!("CUDA driver error: {error}")
}

/// The device of a tensor whose dtype has kernels, if all of `tensors` have the layout of the
/// kernels: contiguous, 16-byte rows.
fn device_of<'a>(x: &'a Tensor, tensors: &[&Tensor]) -> Option<&'a CudaDevice> {
    let Device::Cuda(device) = x.device() else { return None };
    let fits = |t: &Tensor| {
        let wide = 16 / t.dtype().size_in_bytes();
        t.is_contiguous() && t.dims().last().is_none_or(|width| width % wide == 0)
    };
    let typed = matches!(x.dtype(), DType::BF16 | DType::F16 | DType::F32);
    (typed && tensors.iter().all(|t| t.dtype() == x.dtype() && fits(t))).then_some(device)
}

/// Uninitialised memory of this shape, for a kernel to fill.
fn empty(
    shape: impl Into<candle_core::Shape>,
    dtype: DType,
    device: &CudaDevice,
) -> Result<Tensor> {
    let shape = shape.into();
    if let Some(tensor) = graph::captured_memory(&shape, dtype)? {
        return Ok(tensor);
    }
    slab::part(shape, dtype, device)
}
