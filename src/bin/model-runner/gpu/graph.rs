//! A captured CUDA graph: launched once, replayed as often as wanted.
//!
//! Whatever changes from one replay to the next lies in the GPU's memory; nothing captured may ask the host. What captured kernels
//! write to is the graph's own memory, set aside before: allocations would be nodes between the kernels.

use std::cell::RefCell;

use candle_core::{
    CudaDevice, DType, Device, Error, Result, Shape, Tensor,
    cuda_backend::cudarc::driver::{
        CudaGraph,
        sys::{CUgraphInstantiate_flags, CUstreamCaptureMode},
    },
};

/// Elements of each type that a captured step may write; what is over is allocated by the graph.
const ELEMENTS: usize = 4 << 20;
/// Every tensor begins at a multiple of so many elements: 256 bytes for the smallest type.
const ALIGNMENT: usize = 128;

thread_local! {
    /// Memory for what is captured now.
    static CAPTURING: RefCell<Option<Memory>> = const { RefCell::new(None) };
}

/// Memory that captured kernels write to, by type, and how much of it is given out.
#[derive(Clone)]
struct Memory(Vec<(Tensor, usize)>);

impl Memory {
    fn new(device: &CudaDevice) -> Result<Self> {
        let zeros = |dtype| Tensor::zeros(ELEMENTS, dtype, &Device::Cuda(device.clone())).map(|tensor| (tensor, 0));
        [DType::BF16, DType::F16, DType::F32, DType::U32].into_iter().map(zeros).collect::<Result<_>>().map(Self)
    }
}

/// Says whether what is launched now is captured and does not run.
pub fn is_capturing() -> bool {
    CAPTURING.with_borrow(Option::is_some)
}

/// A part of the graph's memory, while one is captured.
pub fn captured_memory(shape: &Shape, dtype: DType) -> Result<Option<Tensor>> {
    CAPTURING.with_borrow_mut(|capturing| {
        let part = capturing.as_mut().and_then(|memory| memory.0.iter_mut().find(|(tensor, _)| tensor.dtype() == dtype));
        let Some((memory, given)) = part else { return Ok(None) };
        let (first, count) = (*given, shape.elem_count());
        if first + count > ELEMENTS {
            return Ok(None);
        }
        *given = (first + count).next_multiple_of(ALIGNMENT);
        memory.narrow(0, first, count)?.reshape(shape).map(Some)
    })
}

/// A graph, ready to replay.
pub struct Graph {
    graph: CudaGraph,
    /// Lives as long as the graph that writes to it.
    _memory: Memory,
}

impl Graph {
    /// Captures what `compute` launches; nothing of it runs.
    pub fn capture<R>(device: &CudaDevice, compute: impl FnOnce() -> Result<R>) -> Result<(Self, R)> {
        let memory = Memory::new(device)?;
        let stream = device.cuda_stream();
        stream.synchronize().map_err(|e| failed("wait for the GPU", e))?;
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(|e| failed("begin its capture", e))?;
        CAPTURING.set(Some(memory.clone()));
        let computed = compute();
        CAPTURING.set(None);
        // Ended whatever happened: a stream left capturing would refuse all else.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        let computed = computed?;
        let graph = graph.map_err(|e| failed("end its capture", e))?;
        let graph = graph.ok_or_else(|| Error::Msg("the graph is empty".to_owned()))?;
        graph.upload().map_err(|e| failed("upload it", e))?;
        Ok((Self { graph, _memory: memory }, computed))
    }

    /// Runs it once more, after all that was launched before.
    pub fn replay(&self) -> Result<()> {
        self.graph.launch().map_err(|e| failed("launch it", e))
    }
}

fn failed(what: &str, error: impl std::fmt::Display) -> Error {
    Error::Msg(format!("CUDA graph: could not {what}: {error}"))
}
