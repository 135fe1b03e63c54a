//! Memory of the GPU: free bytes and peak usage.
//!
//! Freed memory stays with the process: reallocation would take longer than many kernels.

use candle_core::{
    CudaDevice,
    cuda_backend::cudarc::driver::{DriverError, result, sys},
};

/// Free bytes of the GPU's memory.
pub fn free_bytes(device: &CudaDevice) -> Option<u64> {
    device.cuda_stream().context().mem_get_info().ok().map(|(free, _)| free as u64)
}

fn pool(device: &CudaDevice) -> Result<sys::CUmemoryPool, DriverError> {
    // SAFETY: the device is open.
    unsafe { result::device::get_default_mem_pool(device.cuda_stream().context().cu_device()) }
}

/// Keeps freed memory in the allocation pool.
pub fn keep_freed(device: &CudaDevice) -> Result<(), DriverError> {
    let (pool, mut threshold) = (pool(device)?, u64::MAX);
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a 64-bit number.
    unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) }.result()
}

/// Peak bytes of this process on the GPU since the last reset, for tensors and graphs; without the
/// driver's own memory.
pub fn peak_bytes(device: &CudaDevice) -> Option<u64> {
    let high = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    let graphs_high = sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
    sum(device, high, graphs_high)
}

/// The same now, and at most since the last reset.
pub fn used_bytes(device: &CudaDevice) -> Option<(u64, u64)> {
    let used = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    let graphs = sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT;
    Some((sum(device, used, graphs)?, peak_bytes(device)?))
}

/// Resets the peak to the bytes in use. Without effect if the driver refuses.
pub fn reset_peak(device: &CudaDevice) {
    let mut zero = 0u64;
    let high = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    let graphs_high = sys::CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
    let cu_device = device.cuda_stream().context().cu_device();
    let Ok(pool) = pool(device) else { return };
    // SAFETY: both attributes are 64-bit numbers, which can be set to zero.
    unsafe {
        let _ = sys::cuMemPoolSetAttribute(pool, high, (&raw mut zero).cast());
        let _ = sys::cuDeviceSetGraphMemAttribute(cu_device, graphs_high, (&raw mut zero).cast());
    }
}

/// Sum of an attribute of the pool and one of the graphs.
fn sum(
    device: &CudaDevice,
    of_pool: sys::CUmemPool_attribute,
    of_graphs: sys::CUgraphMem_attribute,
) -> Option<u64> {
    let (mut tensors, mut graphs) = (0u64, 0u64);
    let cu_device = device.cuda_stream().context().cu_device();
    // SAFETY: the attributes are 64-bit numbers.
    unsafe {
        sys::cuMemPoolGetAttribute(pool(device).ok()?, of_pool, (&raw mut tensors).cast())
            .result()
            .ok()?;
        sys::cuDeviceGetGraphMemAttribute(cu_device, of_graphs, (&raw mut graphs).cast())
            .result()
            .ok()?;
    }
    Some(tensors + graphs)
}
