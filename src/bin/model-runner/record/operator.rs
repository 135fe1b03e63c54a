//! One operator's calls: a range and an entry of the recorder each.
//!
//! Counts what a caller says of a call's work; looks at no tensor but for its size.

use std::{cell::Cell, rc::Rc};

use candle_core::{DType, Result, Tensor};

use super::{Call, Entry, OpName, Recorder, now_ns};
use crate::nvtx::Domain;

/// What one call does.
#[derive(Debug, Clone, Default)]
pub struct Work {
    pub flops: u64,
    /// Bytes of operands that are read.
    pub read: u64,
    /// FLOPs and bytes that are added for each position that the text is longer: what a captured call does at its replay.
    pub per_position: (u64, u64),
    /// Bytes that are known only once the GPU has been asked: read when the call is told.
    pub late: Option<Rc<Cell<u64>>>,
}
/// What an operator gives.
pub trait Outcome {
    fn bytes(&self) -> u64;
    fn dtype(&self) -> DType;
}

impl Outcome for Tensor {
    fn bytes(&self) -> u64 {
        tensor_bytes(self)
    }

    fn dtype(&self) -> DType {
        self.dtype()
    }
}

impl Outcome for (Tensor, Tensor) {
    fn bytes(&self) -> u64 {
        tensor_bytes(&self.0) + tensor_bytes(&self.1)
    }

    fn dtype(&self) -> DType {
        self.0.dtype()
    }
}
/// One operator of the model, ready to record its calls.
#[derive(Clone)]
pub struct Op {
    recorder: Recorder,
    name: Rc<OpName>,
}

impl Op {
    pub(super) fn new(recorder: Recorder, name: OpName) -> Self {
        Self { recorder, name: Rc::new(name) }
    }

    /// Runs `compute` as one call. Its bytes are those of the operands and of the result, each once.
    pub fn call<R: Outcome>(&self, operands: &[&Tensor], flops: u64, compute: impl FnOnce() -> Result<R>) -> Result<R> {
        let read = operands.iter().map(|t| tensor_bytes(t)).sum();
        self.call_doing(operands, Work { flops, read, ..Work::default() }, compute)
    }

    /// Like [`Op::call`], for an operator that reads other bytes than all of its operands.
    pub fn call_doing<R: Outcome>(&self, operands: &[&Tensor], work: Work, compute: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.recorder.0.quiet.get() {
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
        let work = Work { read: work.read + output.bytes(), ..work };
        self.push(open.start_ns, end_ns, operands.len(), output.dtype(), work);
        result
    }

    /// Opens the operator as a scope that encloses others; it closes when the guard drops.
    pub fn enter(&self) -> Option<ScopeGuard<'_>> {
        if self.recorder.0.quiet.get() {
            return None;
        }
        let open = self.open();
        Some(ScopeGuard { op: self, start_ns: open.start_ns, _range: open.range })
    }

    fn open(&self) -> Open {
        self.recorder.0.operators.push(self.name.nvtx);
        Open { start_ns: now_ns(), range: Pop(self.recorder.0.operators) }
    }

    fn push(&self, start_ns: i64, end_ns: i64, operands: usize, dtype: DType, work: Work) {
        let inner = &*self.recorder.0;
        let (warmup, repeat, stage) = (inner.warmup.get(), inner.repeat.get(), inner.stage.get());
        let name = self.name.clone();
        let call = Call { name, start_ns, end_ns, warmup, repeat, stage, operands, dtype, work };
        inner.entries.borrow_mut().push(Entry::Call(call));
    }
}

struct Open {
    start_ns: i64,
    range: Pop,
}

/// Closes the NVTX range of an operator, whatever way the call ends.
struct Pop(Domain);

impl Drop for Pop {
    fn drop(&mut self) {
        self.0.pop();
    }
}

/// An open scope of the operator domain.
#[must_use = "the scope closes when this drops"]
pub struct ScopeGuard<'a> {
    op: &'a Op,
    start_ns: i64,
    _range: Pop,
}

impl Drop for ScopeGuard<'_> {
    fn drop(&mut self) {
        self.op.push(self.start_ns, now_ns(), 0, DType::F32, Work::default());
    }
}

fn tensor_bytes(tensor: &Tensor) -> u64 {
    (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
}
