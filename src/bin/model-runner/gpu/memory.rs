//! Memory of the GPU: what is free, what was used at most.
//!
//! Freed memory stays with the process: giving it back and asking again would cost more than many kernels.

use candle_core::{
    CudaDevice,
    cuda_backend::cudarc::driver::{DriverError, result, sys},
};

/// Bytes of the GPU's memory that are free.
pub fn free_bytes(device: &CudaDevice) -> Option<u64> {
    device.cuda_stream().context().mem_get_info().ok().map(|(free, _)| free as u64)
}

fn pool(device: &CudaDevice) -> Result<sys::CUmemoryPool, DriverError> {
    // SAFETY: the device is open.
    unsafe { result::device::get_default_mem_pool(device.cuda_stream().context().cu_device()) }
}

/// Keeps freed memory in the pool that allocations come from.
pub fn keep_freed(device: &CudaDevice) -> Result<(), DriverError> {
    let (pool, mut threshold) = (pool(device)?, u64::MAX);
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a 64-bit number.
    unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) }.result()
}

/// Most bytes that this process had of the GPU for tensors and for graphs; the driver's own are not counted.
pub fn peak_bytes(device: &CudaDevice) -> Option<u64> {
    let (mut tensors, mut graphs) = (0u64, 0u64);
    let high = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    let graphs_high = sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
    let cu_device = device.cuda_stream().context().cu_device();
    // SAFETY: both attributes are 64-bit numbers.
    unsafe {
        sys::cuMemPoolGetAttribute(pool(device).ok()?, high, (&raw mut tensors).cast()).result().ok()?;
        sys::cuDeviceGetGraphMemAttribute(cu_device, graphs_high, (&raw mut graphs).cast()).result().ok()?;
    }
    Some(tensors + graphs)
}
