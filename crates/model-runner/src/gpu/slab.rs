//! Small outputs of kernels as parts of larger allocations.
//!
//! A launch with an allocation and a release of its own is three calls of the driver, and a
//! profiler records each. Small outputs share an allocation instead, which is released when the
//! last of them is. Kernels with large outputs run for longer than the host takes to launch the
//! next one, and an allocation of their own reuses memory that the L2 cache still has.

use std::cell::{Cell, RefCell};

use candle_core::{CudaDevice, DType, Device, Result, Shape, Tensor};

use super::graph;

/// Bytes of a shared allocation, and at most of one output in it.
const SLAB_BYTES: usize = 8 << 20;
const MAX_PART_BYTES: usize = 1 << 20;
/// Alignment of outputs, bytes: as in the driver's own allocations.
const ALIGNMENT: usize = 256;

/// An allocation and the number of its elements in use.
struct Slab {
    memory: Tensor,
    used: usize,
}

thread_local! {
    /// The allocation in use, by dtype.
    static SLABS: RefCell<Vec<Slab>> = const { RefCell::new(Vec::new()) };
    static SHARED: Cell<bool> = const { Cell::new(true) };
}

/// Uninitialised memory of this shape. A captured graph writes to its outputs at each replay, so
/// they share nothing.
pub fn part(shape: Shape, dtype: DType, device: &CudaDevice) -> Result<Tensor> {
    let (count, size) = (shape.elem_count(), dtype.size_in_bytes());
    let device = Device::Cuda(device.clone());
    if !SHARED.get() || graph::is_capturing() || count * size > MAX_PART_BYTES {
        return empty(shape, dtype, &device);
    }
    SLABS.with_borrow_mut(|slabs| {
        let is_same =
            |slab: &Slab| slab.memory.dtype() == dtype && slab.memory.device().same_device(&device);
        let at = match slabs.iter().position(is_same) {
            Some(at) => at,
            None => {
                slabs.push(Slab::new(dtype, &device)?);
                slabs.len() - 1
            }
        };
        if slabs[at].used + count > slabs[at].memory.elem_count() {
            slabs[at] = Slab::new(dtype, &device)?;
        }
        let Slab { memory, used } = &mut slabs[at];
        let first = *used;
        *used = (first + count).next_multiple_of(ALIGNMENT / size);
        memory.narrow(0, first, count)?.reshape(shape)
    })
}

/// Runs `compute` with an allocation for each output, so that the memory of each can be measured.
pub fn without_slabs<R>(compute: impl FnOnce() -> R) -> R {
    SLABS.take();
    SHARED.set(false);
    let computed = compute();
    SHARED.set(true);
    computed
}

impl Slab {
    fn new(dtype: DType, device: &Device) -> Result<Self> {
        Ok(Self { memory: empty(SLAB_BYTES / dtype.size_in_bytes(), dtype, device)?, used: 0 })
    }
}

fn empty(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    // SAFETY: every kernel here writes all of its output.
    unsafe { Tensor::empty(shape, dtype, device) }
}
