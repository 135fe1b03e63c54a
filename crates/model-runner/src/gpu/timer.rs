//! CUDA events: times on the device, read after the work; and a host that stays one step ahead of
//! the GPU.
//!
//! A mark takes about a microsecond on the host and on the GPU, and does not block.

use std::sync::Arc;

use candle_core::{
    CudaDevice, Result,
    cuda_backend::{
        WrapErr,
        cudarc::driver::{CudaEvent, CudaStream, sys::CUevent_flags},
    },
};

/// Marks positions in the work of one stream.
pub struct GpuTimer(Arc<CudaStream>);

/// A position in the work of a stream.
pub struct GpuMark(CudaEvent);

/// Limits the host to launching one step while the GPU runs the one before.
pub struct StepPacer {
    stream: Arc<CudaStream>,
    before: Option<CudaEvent>,
}

impl StepPacer {
    pub fn new(device: &CudaDevice) -> Self {
        Self { stream: device.cuda_stream(), before: None }
    }

    /// Records a launched step, and waits for the one before it.
    pub fn launched(&mut self) -> Result<()> {
        let now = self.stream.record_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING)).w()?;
        self.before.replace(now).map_or(Ok(()), |before| before.synchronize().w())
    }
}

impl GpuTimer {
    pub fn new(device: &CudaDevice) -> Self {
        Self(device.cuda_stream())
    }

    /// Marks the current position of the stream; `None` if that fails.
    pub fn mark(&self) -> Option<GpuMark> {
        self.0.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).ok().map(GpuMark)
    }
}

impl GpuMark {
    /// Nanoseconds on the device until `end`; `None` before it is reached.
    pub fn until(&self, end: &Self) -> Option<i64> {
        let ms = self.0.elapsed_ms(&end.0).ok()?;
        Some((f64::from(ms) * 1e6).round() as i64)
    }
}
