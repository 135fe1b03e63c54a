//! CUDA events: times on the device, read once all is done; and the host kept one step ahead of the GPU.
//!
//! A mark costs the host and the GPU about a microsecond each, and waits for nothing.

use std::sync::Arc;

use candle_core::{
    CudaDevice, Result,
    cuda_backend::{
        WrapErr,
        cudarc::driver::{CudaEvent, CudaStream, sys::CUevent_flags},
    },
};

/// Marks places in the work of one stream.
pub struct Timer(Arc<CudaStream>);

/// A place in the work of a stream.
pub struct Mark(CudaEvent);

/// Lets the host launch one step while the GPU is busy with the one before, and no further.
pub struct Pace {
    stream: Arc<CudaStream>,
    before: Option<CudaEvent>,
}

impl Pace {
    pub fn new(device: &CudaDevice) -> Self {
        Self { stream: device.cuda_stream(), before: None }
    }

    /// Says that a step was launched, and waits until the one before it is done.
    pub fn launched(&mut self) -> Result<()> {
        let now = self.stream.record_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING)).w()?;
        self.before.replace(now).map_or(Ok(()), |before| before.synchronize().w())
    }
}

impl Timer {
    pub fn new(device: &CudaDevice) -> Self {
        Self(device.cuda_stream())
    }

    /// Marks where the stream is now; `None` if it cannot be told.
    pub fn mark(&self) -> Option<Mark> {
        self.0.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).ok().map(Mark)
    }
}

impl Mark {
    /// Nanoseconds on the device until it reached `end`; `None` while it has not.
    pub fn until(&self, end: &Self) -> Option<i64> {
        let ms = self.0.elapsed_ms(&end.0).ok()?;
        Some((f64::from(ms) * 1e6).round() as i64)
    }
}
