//! What happens while the model runs: stage ranges, operator calls, experts hit.
//!
//! Each is an NVTX range and an event at once. Events stay in memory until the caller drains them between repeats, so that
//! nothing is formatted or written inside a timed stage. One thread only: the model is driven from one.

use std::{
    cell::{Cell, RefCell},
    io::{self, Write},
    rc::Rc,
};

use candle_core::{DType, Tensor};
use llmprof::trace::event::{Event, Experts, OPERATOR_DOMAIN, OperatorCall, STAGE_DOMAIN, StageRange};
use nix::time::{ClockId, clock_gettime};

use crate::nvtx::{Domain, Name};

/// Nanoseconds of `CLOCK_MONOTONIC`, which all events are timed by.
pub fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux always has a monotonic clock");
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}

/// Where ranges and operator calls go. Clones share one buffer.
#[derive(Clone)]
pub struct Recorder(Rc<Inner>);

struct Inner {
    stages: Domain,
    operators: Domain,
    warmup: Cell<bool>,
    repeat: Cell<u32>,
    step: Cell<Option<u32>>,
    /// Innermost of `prefill` and `decode_all`.
    stage: Cell<&'static str>,
    names: RefCell<Vec<(&'static str, Name)>>,
    entries: RefCell<Vec<Entry>>,
    /// Operand shapes of all calls in `entries`, each as its rank and its dimensions.
    shapes: RefCell<Vec<u64>>,
}

/// An operator's identity, made once when the model is built.
pub struct OpName {
    path: String,
    kind: &'static str,
    nvtx: Name,
}

enum Entry {
    Range(StageRange),
    Call(Call),
    Experts(Experts),
}

struct Call {
    name: Rc<OpName>,
    start_ns: i64,
    end_ns: i64,
    warmup: bool,
    repeat: u32,
    stage: &'static str,
    operands: usize,
    dtype: DType,
    flops: u64,
    bytes: u64,
}

impl Recorder {
    /// Makes a recorder whose ranges also go to the profiler that is attached, if any.
    pub fn new() -> Self {
        Self::with(Domain::create(STAGE_DOMAIN), Domain::create(OPERATOR_DOMAIN))
    }

    /// Makes a recorder that no profiler hears.
    #[cfg(test)]
    pub fn silent() -> Self {
        Self::with(Domain::NONE, Domain::NONE)
    }

    fn with(stages: Domain, operators: Domain) -> Self {
        Self(Rc::new(Inner {
            stages,
            operators,
            warmup: Cell::new(false),
            repeat: Cell::new(0),
            step: Cell::new(None),
            stage: Cell::new(""),
            names: RefCell::default(),
            entries: RefCell::default(),
            shapes: RefCell::default(),
        }))
    }

    /// Says which repeat the following events belong to.
    pub fn begin_repeat(&self, warmup: bool, repeat: u32) {
        self.0.warmup.set(warmup);
        self.0.repeat.set(repeat);
    }

    /// Opens a range of the stage domain; it closes when the guard drops.
    pub fn range(&self, name: &'static str) -> StageGuard {
        self.open(name, None)
    }

    /// Opens the range of one decode step.
    pub fn decode_step(&self, step: u32) -> StageGuard {
        self.open("decode_step", Some(step))
    }

    fn open(&self, name: &'static str, step: Option<u32>) -> StageGuard {
        let inner = &*self.0;
        let outer = (inner.stage.get(), inner.step.get());
        if matches!(name, "prefill" | "decode_all") {
            inner.stage.set(name);
        }
        if step.is_some() {
            inner.step.set(step);
        }
        inner.stages.push(self.stage_name(name));
        StageGuard { recorder: self.clone(), name, step, outer, start_ns: now_ns() }
    }

    fn stage_name(&self, name: &'static str) -> Name {
        let mut names = self.0.names.borrow_mut();
        match names.iter().find(|(known, _)| *known == name) {
            Some((_, registered)) => *registered,
            None => {
                let registered = self.0.stages.register(name);
                names.push((name, registered));
                registered
            }
        }
    }

    /// Names an operator, once, when the model is built.
    pub fn operator(&self, path: impl Into<String>, kind: &'static str) -> Op {
        let path = path.into();
        let nvtx = self.0.operators.register(&path);
        Op { recorder: self.clone(), name: Rc::new(OpName { path, kind, nvtx }) }
    }

    /// Notes how many distinct experts a layer routed to in one forward.
    pub fn experts(&self, layer: usize, distinct: usize, total: usize) {
        let inner = &*self.0;
        inner.entries.borrow_mut().push(Entry::Experts(Experts {
            layer: layer as u32,
            stage: inner.stage.get().to_owned(),
            warmup: inner.warmup.get(),
            repeat: inner.repeat.get(),
            step: inner.step.get(),
            distinct: distinct as u32,
            total: total as u32,
        }));
    }

    /// Takes everything recorded since the last drain, in the order in which it closed.
    pub fn drain(&self) -> Vec<Event> {
        let shapes = std::mem::take(&mut *self.0.shapes.borrow_mut());
        let mut shapes = shapes.into_iter();
        let mut shape = || -> Vec<u64> {
            let rank = shapes.next().unwrap_or(0) as usize;
            shapes.by_ref().take(rank).collect()
        };
        let entries = std::mem::take(&mut *self.0.entries.borrow_mut());
        let event = |entry| match entry {
            Entry::Range(range) => Event::Range(range),
            Entry::Experts(experts) => Event::Experts(experts),
            Entry::Call(call) => Event::Op(OperatorCall {
                path: call.name.path.clone(),
                op: call.name.kind.to_owned(),
                start_ns: call.start_ns,
                end_ns: call.end_ns,
                warmup: call.warmup,
                repeat: call.repeat,
                stage: call.stage.to_owned(),
                shapes: (0..call.operands).map(|_| shape()).collect(),
                dtype: call.dtype.as_str().to_owned(),
                flops: call.flops,
                bytes: call.bytes,
            }),
        };
        entries.into_iter().map(event).collect()
    }
}

/// Writes events as lines of JSON.
pub fn write_events(out: &mut impl Write, events: &[Event]) -> io::Result<()> {
    for event in events {
        serde_json::to_writer(&mut *out, event)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// An open range of the stage domain.
#[must_use = "the range closes when this drops"]
pub struct StageGuard {
    recorder: Recorder,
    name: &'static str,
    step: Option<u32>,
    outer: (&'static str, Option<u32>),
    start_ns: i64,
}

impl Drop for StageGuard {
    fn drop(&mut self) {
        let end_ns = now_ns();
        let inner = &*self.recorder.0;
        inner.stages.pop();
        inner.stage.set(self.outer.0);
        inner.step.set(self.outer.1);
        inner.entries.borrow_mut().push(Entry::Range(StageRange {
            name: self.name.to_owned(),
            start_ns: self.start_ns,
            end_ns,
            warmup: inner.warmup.get(),
            repeat: inner.repeat.get(),
            step: self.step,
        }));
    }
}

/// One operator of the model, ready to record its calls.
#[derive(Clone)]
pub struct Op {
    recorder: Recorder,
    name: Rc<OpName>,
}

impl Op {
    /// Runs `compute` as one call. Its bytes are those of the operands and of the result, each once.
    pub fn call(
        &self,
        operands: &[&Tensor],
        flops: u64,
        compute: impl FnOnce() -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Tensor> {
        self.call_reading(operands, operands.iter().map(|t| tensor_bytes(t)).sum(), flops, compute)
    }

    /// Like [`Op::call`], for an operator that reads only `read` bytes of its operands.
    pub fn call_reading(
        &self,
        operands: &[&Tensor],
        read: u64,
        flops: u64,
        compute: impl FnOnce() -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Tensor> {
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
        self.push(open.start_ns, end_ns, operands.len(), output.dtype(), flops, read + tensor_bytes(output));
        result
    }

    /// Opens the operator as a scope that encloses others; it closes when the guard drops.
    pub fn enter(&self) -> ScopeGuard<'_> {
        let open = self.open();
        ScopeGuard { op: self, start_ns: open.start_ns, _range: open.range }
    }

    fn open(&self) -> Open {
        self.recorder.0.operators.push(self.name.nvtx);
        Open { start_ns: now_ns(), range: Pop(self.recorder.0.operators) }
    }

    fn push(&self, start_ns: i64, end_ns: i64, operands: usize, dtype: DType, flops: u64, bytes: u64) {
        let inner = &*self.recorder.0;
        let (warmup, repeat, stage) = (inner.warmup.get(), inner.repeat.get(), inner.stage.get());
        let name = self.name.clone();
        let call = Call { name, start_ns, end_ns, warmup, repeat, stage, operands, dtype, flops, bytes };
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
        self.op.push(self.start_ns, now_ns(), 0, DType::F32, 0, 0);
    }
}

fn tensor_bytes(tensor: &Tensor) -> u64 {
    (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn events_nest_by_time_and_know_their_stage() -> anyhow::Result<()> {
        let recorder = Recorder::silent();
        let (module, double) = (recorder.operator("m", "module"), recorder.operator("m.double", "elementwise"));
        let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
        recorder.begin_repeat(true, 4);
        {
            let _stage = recorder.range("prefill");
            let _scope = module.enter();
            double.call(&[&x], 7, || &x * 2.0)?;
            recorder.experts(3, 2, 8);
        }
        let events = recorder.drain();
        let [Event::Op(call), Event::Experts(experts), Event::Op(scope), Event::Range(stage)] = &events[..] else {
            panic!("unexpected events: {events:?}");
        };
        assert!(stage.start_ns <= scope.start_ns && scope.start_ns <= call.start_ns);
        assert!(call.end_ns <= scope.end_ns && scope.end_ns <= stage.end_ns);
        assert_eq!((call.stage.as_str(), call.warmup, call.repeat), ("prefill", true, 4));
        assert_eq!((&call.shapes[..], call.flops, call.bytes), (&[vec![2, 3]][..], 7, 48));
        assert_eq!((experts.distinct, experts.total, experts.stage.as_str()), (2, 8, "prefill"));
        assert!(recorder.drain().is_empty(), "a drain takes everything");
        Ok(())
    }

    #[test]
    fn the_stage_is_what_it_was_once_a_range_closes() {
        let recorder = Recorder::silent();
        let outer = recorder.range("decode_all");
        drop(recorder.decode_step(5));
        assert_eq!((recorder.0.stage.get(), recorder.0.step.get()), ("decode_all", None));
        drop(outer);
        assert_eq!(recorder.0.stage.get(), "");
    }
}
