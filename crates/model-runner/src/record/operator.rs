//! Calls of one operator: a range and an entry of the recorder each.
//!
//! The caller counts a call's work; tensors are only read for their size.

use std::{cell::Cell, rc::Rc};

use candle_core::{DType, Result, Tensor};

use super::{MemoryGuard, OpName, RecordEntry, RecordedCall, Recorder, RecorderState, now_ns};
use crate::nvtx::NvtxDomain;

/// The work of one call.
#[derive(Debug, Clone, Default)]
pub struct OperatorWork {
    pub flops: u64,
    /// Bytes of operands read.
    pub read: u64,
    /// FLOPs and bytes added per position by which the text is longer, in the replay of a captured
    /// call.
    pub per_position: (u64, u64),
    /// Bytes known only after the repeat, from the GPU: added when the events are drained.
    pub deferred: Option<Rc<Cell<u64>>>,
}

/// The output of an operator.
pub trait OperatorOutput {
    fn bytes(&self) -> u64;
    fn dtype(&self) -> DType;
}

impl OperatorOutput for Tensor {
    fn bytes(&self) -> u64 {
        tensor_bytes(self)
    }

    fn dtype(&self) -> DType {
        self.dtype()
    }
}

impl OperatorOutput for (Tensor, Tensor) {
    fn bytes(&self) -> u64 {
        tensor_bytes(&self.0) + tensor_bytes(&self.1)
    }

    fn dtype(&self) -> DType {
        self.0.dtype()
    }
}

/// One operator of the model, which records its calls.
#[derive(Clone)]
pub struct Op {
    recorder: Recorder,
    name: Rc<OpName>,
}

impl Op {
    pub(super) fn new(recorder: Recorder, name: OpName) -> Self {
        Self { recorder, name: Rc::new(name) }
    }

    /// Runs `compute` as one call, which reads all operands and writes the result, each once.
    pub fn call<R: OperatorOutput>(
        &self,
        operands: &[&Tensor],
        flops: u64,
        compute: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let read = operands.iter().map(|t| tensor_bytes(t)).sum();
        self.call_with_work(
            operands,
            OperatorWork { flops, read, ..OperatorWork::default() },
            compute,
        )
    }

    /// Runs `compute` as one call with the given work, for an operator that does not read all of
    /// its operands.
    pub fn call_with_work<R: OperatorOutput>(
        &self,
        operands: &[&Tensor],
        work: OperatorWork,
        compute: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let _memory = self.recorder.memory_of_operator(&self.name);
        if !self.recorder.records_operators() {
            return compute();
        }
        let open = self.open();
        let result = compute();
        let end_ns = now_ns();
        drop(open.range);
        let Ok(output) = &result else { return result };
        let mut shapes = self.recorder.0.shapes.borrow_mut();
        for operand in operands {
            let dims = operand.dims();
            shapes.push(dims.len() as u64);
            shapes.extend(dims.iter().map(|&d| d as u64));
        }
        let work = OperatorWork { read: work.read + output.bytes(), ..work };
        self.push(open.start_ns, end_ns, operands.len(), output.dtype(), work);
        result
    }

    /// Opens the operator as a scope around others; it closes when the guard drops.
    pub fn enter(&self) -> Option<ScopeGuard<'_>> {
        let memory = self.recorder.memory_of_operator(&self.name);
        let open = self.recorder.records_operators().then(|| self.open());
        let used = open.is_some() || memory.is_some();
        used.then_some(ScopeGuard { op: self, open, _memory: memory })
    }

    fn open(&self) -> OpenRange {
        let RecorderState { operators, operator_ranges, .. } = &*self.recorder.0;
        let domain = if operator_ranges.get() { *operators } else { NvtxDomain::NONE };
        domain.push(self.name.nvtx);
        OpenRange { start_ns: now_ns(), range: RangeGuard(domain) }
    }

    fn push(&self, start_ns: i64, end_ns: i64, operands: usize, dtype: DType, work: OperatorWork) {
        let inner = &*self.recorder.0;
        let (warmup, repeat, stage) = (inner.warmup.get(), inner.repeat.get(), inner.stage.get());
        let name = self.name.clone();
        let call =
            RecordedCall { name, start_ns, end_ns, warmup, repeat, stage, operands, dtype, work };
        inner.entries.borrow_mut().push(RecordEntry::Call(call));
    }
}

struct OpenRange {
    start_ns: i64,
    /// Closes the range when it drops.
    range: RangeGuard,
}

/// Closes the NVTX range of an operator, on errors too.
struct RangeGuard(NvtxDomain);

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.0.pop();
    }
}

/// An open scope of the operator domain.
#[must_use = "the scope closes when this drops"]
pub struct ScopeGuard<'a> {
    op: &'a Op,
    /// Absent if operators are not recorded.
    open: Option<OpenRange>,
    _memory: Option<MemoryGuard>,
}

impl Drop for ScopeGuard<'_> {
    fn drop(&mut self) {
        if let Some(open) = &self.open {
            self.op.push(open.start_ns, now_ns(), 0, DType::F32, OperatorWork::default());
        }
    }
}

fn tensor_bytes(tensor: &Tensor) -> u64 {
    (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
}
