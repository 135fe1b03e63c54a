//! What the rest of a model does to the GPU's second-level cache, for a part that runs alone.
//!
//! Alone, a part finds its weights where its last step left them; inside a model it never does, since all other layers' were read meanwhile.

use candle_core::{
    CudaDevice, DType, Device, Result, Tensor,
    cuda_backend::{WrapErr, cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
};

/// Times the size of the cache that is read: what is replaced is up to the device, and need not be the oldest.
const TIMES: usize = 4;
/// Sums that are made at once, so that all of the GPU reads.
const ROWS: usize = 8192;

/// Data that nothing else reads.
pub struct Others(Tensor);

impl Others {
    pub fn new(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let cache = stream.context().attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).w()?;
        let elements = usize::try_from(cache).unwrap_or(0) * TIMES / size_of::<f32>();
        Tensor::zeros((ROWS, elements.div_ceil(ROWS).max(1)), DType::F32, &Device::Cuda(device.clone())).map(Self)
    }

    /// Reads it, in order with all other work of the stream: what the cache held before is gone.
    pub fn read(&self) -> Result<()> {
        self.0.sum(1).map(drop)
    }
}
