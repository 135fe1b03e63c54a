//! A captured CUDA graph: captured once, replayed any number of times.
//!
//! Values that change between replays are in the GPU's memory; nothing captured may depend on the
//! host. Captured kernels write to memory allocated before the capture: allocations would be nodes
//! between the kernels.

use std::cell::RefCell;

use candle_core::{
    CudaDevice, DType, Device, Error, Result, Shape, Tensor,
    cuda_backend::cudarc::driver::{
        CudaGraph,
        sys::{CUgraphInstantiate_flags, CUstreamCaptureMode},
    },
};

/// Elements of each dtype for a captured step; the graph allocates any excess.
const ELEMENTS: usize = 4 << 20;
/// Alignment of tensors in elements: 256 bytes for the smallest dtype.
const ALIGNMENT: usize = 128;

thread_local! {
    /// Memory of the current capture.
    static CAPTURING: RefCell<Option<GraphMemory>> = const { RefCell::new(None) };
}

/// Memory of captured kernels, by dtype, and the number of used elements.
#[derive(Clone)]
struct GraphMemory(Vec<(Tensor, usize)>);

impl GraphMemory {
    fn new(device: &CudaDevice) -> Result<Self> {
        let zeros = |dtype| {
            Tensor::zeros(ELEMENTS, dtype, &Device::Cuda(device.clone())).map(|tensor| (tensor, 0))
        };
        [DType::BF16, DType::F16, DType::F32, DType::U32]
            .into_iter()
            .map(zeros)
            .collect::<Result<_>>()
            .map(Self)
    }
}

/// Returns whether launches are captured instead of run.
pub fn is_capturing() -> bool {
    CAPTURING.with_borrow(Option::is_some)
}

/// A part of the graph's memory, during a capture.
pub fn captured_memory(shape: &Shape, dtype: DType) -> Result<Option<Tensor>> {
    CAPTURING.with_borrow_mut(|capturing| {
        let part = capturing
            .as_mut()
            .and_then(|memory| memory.0.iter_mut().find(|(tensor, _)| tensor.dtype() == dtype));
        let Some((memory, used)) = part else { return Ok(None) };
        let (first, count) = (*used, shape.elem_count());
        if first + count > ELEMENTS {
            return Ok(None);
        }
        *used = (first + count).next_multiple_of(ALIGNMENT);
        memory.narrow(0, first, count)?.reshape(shape).map(Some)
    })
}

/// A graph, ready to replay.
pub struct CapturedGraph {
    graph: CudaGraph,
    /// Lives as long as the graph that writes to it.
    _memory: GraphMemory,
}

impl CapturedGraph {
    /// Captures the launches of `compute`, without running them.
    pub fn capture<R>(
        device: &CudaDevice,
        compute: impl FnOnce() -> Result<R>,
    ) -> Result<(Self, R)> {
        let memory = GraphMemory::new(device)?;
        let stream = device.cuda_stream();
        stream.synchronize().map_err(|e| failed("synchronise with the GPU", e))?;
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(|e| failed("start the capture", e))?;
        CAPTURING.set(Some(memory.clone()));
        let computed = compute();
        CAPTURING.set(None);
        // Ended on errors too: a capturing stream would refuse all other work.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        let computed = computed?;
        let graph = graph.map_err(|e| failed("end the capture", e))?;
        let graph = graph.ok_or_else(|| Error::Msg("the graph is empty".to_owned()))?;
        graph.upload().map_err(|e| failed("upload the graph", e))?;
        Ok((Self { graph, _memory: memory }, computed))
    }

    /// Launches the graph, after all earlier launches.
    pub fn replay(&self) -> Result<()> {
        self.graph.launch().map_err(|e| failed("launch the graph", e))
    }
}

fn failed(action: &str, error: impl std::fmt::Display) -> Error {
    Error::Msg(format!("CUDA graph: cannot {action}: {error}"))
}
