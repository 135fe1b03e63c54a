//! L2 flush for a part of a model that runs alone.
//!
//! Alone, a part finds its weights in the L2 cache since its last step; inside a model the weights
//! of all other layers have replaced them.

use candle_core::{
    CudaDevice, DType, Device, Result, Tensor,
    cuda_backend::{
        WrapErr, cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    },
};

/// Bytes read as a multiple of the cache size: the device need not replace the oldest data.
const CACHE_MULTIPLE: usize = 4;
/// Number of concurrent sums, so that the whole GPU reads.
const ROWS: usize = 8192;

/// Data that is read to replace the contents of the cache.
pub struct L2Flush(Tensor);

impl L2Flush {
    pub fn new(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let cache = stream.context().attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).w()?;
        let elements = usize::try_from(cache).unwrap_or(0) * CACHE_MULTIPLE / size_of::<f32>();
        Tensor::zeros(
            (ROWS, elements.div_ceil(ROWS).max(1)),
            DType::F32,
            &Device::Cuda(device.clone()),
        )
        .map(Self)
    }

    /// Reads the data, in order with all other work of the stream, and so replaces the cache's
    /// contents.
    pub fn flush(&self) -> Result<()> {
        self.0.sum(1).map(drop)
    }
}
