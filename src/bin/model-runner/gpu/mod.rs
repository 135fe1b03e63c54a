//! What the model asks of a GPU beyond candle: kernels of our own, a stream that can be captured, what memory was used.
//!
//! Compiled with the feature `cuda` only. Kernels take and give candle's tensors; whatever has no kernel here runs by candle's.

mod arrange;
mod attention;
mod evict;
mod experts;
mod graph;
mod kernels;
mod linear;
mod memory;
mod sample;
#[cfg(test)]
mod tests;
mod timer;

pub use arrange::{bias, embed, join_windows, norm, partition_windows, swiglu, synthesise};
pub use attention::{AttendMany, RopeArgs, View, attend_many, attend_one, rope};
pub use evict::Others;
pub use experts::{ExpertsArgs, RouteArgs, experts, route};
pub use graph::{Graph, is_capturing};
pub use linear::{gated, gemv};
pub use memory::{free_bytes, peak_bytes};
pub use sample::{advance, sample};
pub use timer::{Mark, Pace, Timer};

use candle_core::{
    CudaDevice, DType, Device, Result, Tensor,
    cuda_backend::cudarc::driver::{CudaContext, DriverError},
};

/// Opens GPU `index` on a stream of its own: the default one cannot be captured.
pub fn open(index: usize) -> std::result::Result<Device, String> {
    let count = CudaContext::device_count().map_err(|error| said(&error))?;
    if index as i64 >= i64::from(count) {
        let names = if count == 1 { "cuda:0".to_owned() } else { format!("cuda:0 to cuda:{}", count - 1) };
        return Err(if count == 0 { "the driver shows no GPU".to_owned() } else { format!("the driver shows {names}") });
    }
    let device = Device::new_cuda_with_stream(index).map_err(|error| error.to_string())?;
    if let Device::Cuda(cuda) = &device {
        // SAFETY: one stream alone is used, so no use of memory can overtake another.
        unsafe { cuda.disable_event_tracking() };
        memory::keep_freed(cuda).map_err(|error| said(&error))?;
        kernels::load(cuda)?;
    }
    Ok(device)
}

fn said(error: &DriverError) -> String {
    format!("the CUDA driver says {error}")
}

/// The device of a tensor whose type has kernels, when all of `tensors` lie as the kernels read them: contiguous, 16-byte rows.
fn device_of<'a>(x: &'a Tensor, tensors: &[&Tensor]) -> Option<&'a CudaDevice> {
    let Device::Cuda(device) = x.device() else { return None };
    let fits = |t: &Tensor| {
        let wide = 16 / t.dtype().size_in_bytes();
        t.is_contiguous() && t.dims().last().is_none_or(|width| width % wide == 0)
    };
    let typed = matches!(x.dtype(), DType::BF16 | DType::F16 | DType::F32);
    (typed && tensors.iter().all(|t| t.dtype() == x.dtype() && fits(t))).then_some(device)
}

/// Memory of this shape that a kernel will fill.
fn empty(shape: impl Into<candle_core::Shape>, dtype: DType, device: &CudaDevice) -> Result<Tensor> {
    let shape = shape.into();
    if let Some(tensor) = graph::captured_memory(&shape, dtype)? {
        return Ok(tensor);
    }
    // SAFETY: every kernel here writes all of its output.
    unsafe { Tensor::empty(shape, dtype, &Device::Cuda(device.clone())) }
}
