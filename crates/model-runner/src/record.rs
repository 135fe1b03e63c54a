//! The recorder of a run: stage ranges, operator calls, experts hit.
//!
//! Each is an event, and an NVTX range if the request asks for it. Events stay in memory until the
//! caller drains them between repeats, so that nothing is formatted or written inside a timed
//! stage. Single-threaded, as is the model.

use std::{
    cell::{Cell, RefCell},
    io::{self, Write},
    rc::Rc,
};

use llmprof_core::trace::event::{
    Event, Experts, MemoryUse, OPERATOR_DOMAIN, STAGE_DOMAIN, StageRange,
};
use nix::time::{ClockId, clock_gettime};

mod call;
mod memory;
mod operator;

#[cfg(any(feature = "cuda", test))]
pub use call::CapturedCalls;
#[cfg(any(feature = "cuda", test))]
use call::RecordedCalls;
use call::{RecordedCall, Replay};
pub use memory::MemoryCounter;
use memory::{MemoryCalls, MemoryGuard};
pub use operator::{Op, OperatorOutput, OperatorWork};

#[cfg(feature = "cuda")]
use crate::gpu::GpuMark;
use crate::nvtx::{NvtxDomain, NvtxName};

/// Nanoseconds of `CLOCK_MONOTONIC`, the clock of all events.
pub fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux always has a monotonic clock");
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}

/// The recorder of ranges and operator calls. Clones share one buffer.
#[derive(Clone)]
pub struct Recorder(Rc<RecorderState>);

struct RecorderState {
    stages: NvtxDomain,
    operators: NvtxDomain,
    warmup: Cell<bool>,
    repeat: Cell<u32>,
    step: Cell<Option<u32>>,
    /// Innermost open range of `prefill` and `decode_all`.
    stage: Cell<&'static str>,
    names: RefCell<Vec<(&'static str, NvtxName)>>,
    entries: RefCell<Vec<RecordEntry>>,
    /// Operand shapes of all calls in `entries`, each as its rank and its dimensions.
    shapes: RefCell<Vec<u64>>,
    /// Operators are recorded.
    operators_on: Cell<bool>,
    /// Operators are NVTX ranges, too.
    operator_ranges: Cell<bool>,
    /// Device memory of the calls that are open, in a repeat that records it.
    memory: RefCell<Option<MemoryCalls>>,
    /// Neither events nor NVTX ranges are recorded: the work is outside all stages.
    quiet: Cell<bool>,
    /// Times ranges on the GPU as well.
    #[cfg(feature = "cuda")]
    timer: RefCell<Option<crate::gpu::GpuTimer>>,
}

/// An operator's identity, created once when the model is built.
pub struct OpName {
    path: String,
    kind: &'static str,
    nvtx: NvtxName,
}

/// A position in the GPU's work; none without a GPU.
#[cfg(not(feature = "cuda"))]
type GpuMark = std::convert::Infallible;

/// Nanoseconds between two positions that the GPU has passed.
fn between(marks: &(GpuMark, GpuMark)) -> Option<i64> {
    #[cfg(feature = "cuda")]
    return marks.0.until(&marks.1);
    #[cfg(not(feature = "cuda"))]
    match marks.0 {}
}

enum RecordEntry {
    Range(StageRange, Option<(GpuMark, GpuMark)>),
    Call(RecordedCall),
    Experts(Experts),
    Memory(MemoryUse),
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "recorded by a GPU"))]
    Replay(Replay),
}

impl Recorder {
    /// A recorder whose ranges also go to the attached profiler, if any.
    pub fn new() -> Self {
        Self::with(NvtxDomain::create(STAGE_DOMAIN), NvtxDomain::create(OPERATOR_DOMAIN))
    }

    /// A recorder without a profiler.
    #[cfg(test)]
    pub fn silent() -> Self {
        Self::with(NvtxDomain::NONE, NvtxDomain::NONE)
    }

    fn with(stages: NvtxDomain, operators: NvtxDomain) -> Self {
        Self(Rc::new(RecorderState {
            stages,
            operators,
            warmup: Cell::new(false),
            repeat: Cell::new(0),
            step: Cell::new(None),
            stage: Cell::new(""),
            names: RefCell::default(),
            entries: RefCell::default(),
            shapes: RefCell::default(),
            operators_on: Cell::new(true),
            operator_ranges: Cell::new(true),
            memory: RefCell::default(),
            quiet: Cell::new(false),
            #[cfg(feature = "cuda")]
            timer: RefCell::default(),
        }))
    }

    /// Sets the repeat of the following events.
    pub fn start_repeat(&self, warmup: bool, repeat: u32) {
        self.0.warmup.set(warmup);
        self.0.repeat.set(repeat);
    }

    /// Records operators from now on, with `ranges` as NVTX ranges too, or only stages.
    pub fn record_operators(&self, on: bool, ranges: bool) {
        self.0.operators_on.set(on);
        self.0.operator_ranges.set(ranges);
    }

    /// Returns true if operators are recorded now.
    fn records_operators(&self) -> bool {
        self.0.operators_on.get() && !self.0.quiet.get()
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
        if !inner.quiet.get() {
            inner.stages.push(self.stage_name(name));
        }
        StageGuard {
            recorder: self.clone(),
            name,
            step,
            outer,
            start_ns: now_ns(),
            start: self.mark(),
            _memory: self.memory_of_range(name),
        }
    }

    fn stage_name(&self, name: &'static str) -> NvtxName {
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

    /// Registers an operator, once, when the model is built.
    pub fn operator(&self, path: impl Into<String>, kind: &'static str) -> Op {
        let path = path.into();
        let nvtx = self.0.operators.register(&path);
        Op::new(self.clone(), OpName { path, kind, nvtx })
    }

    /// Records the number of distinct experts of a layer in the current forward.
    pub fn experts(&self, layer: usize, distinct: usize, total: usize) {
        self.experts_of(self.0.stage.get(), self.0.step.get(), layer, distinct, total);
    }

    /// Records the number of distinct experts of a layer in an earlier forward of this repeat.
    pub fn experts_of(
        &self,
        stage: &'static str,
        step: Option<u32>,
        layer: usize,
        distinct: usize,
        total: usize,
    ) {
        let inner = &*self.0;
        if inner.quiet.get() {
            return;
        }
        inner.entries.borrow_mut().push(RecordEntry::Experts(Experts {
            layer: layer as u32,
            stage: stage.to_owned(),
            warmup: inner.warmup.get(),
            repeat: inner.repeat.get(),
            step,
            distinct: distinct as u32,
            total: total as u32,
        }));
    }

    /// Times ranges by `timer` as well, from now on.
    #[cfg(feature = "cuda")]
    pub fn time_by(&self, timer: crate::gpu::GpuTimer) {
        self.0.timer.replace(Some(timer));
    }

    /// The current position in the GPU's work, if it is timed.
    fn mark(&self) -> Option<GpuMark> {
        #[cfg(feature = "cuda")]
        return self
            .0
            .timer
            .borrow()
            .as_ref()
            .filter(|_| !self.0.quiet.get())
            .and_then(crate::gpu::GpuTimer::mark);
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// Runs `compute` without recording it.
    pub fn without_recording<R>(&self, compute: impl FnOnce() -> R) -> R {
        let before = self.0.quiet.replace(true);
        let computed = compute();
        self.0.quiet.set(before);
        computed
    }

    /// Runs `compute` and returns its calls, to be recorded at each [`Recorder::replayed`]. Its
    /// operators are NVTX ranges: they identify the nodes of a captured graph.
    #[cfg(any(feature = "cuda", test))]
    pub fn captured<R>(&self, compute: impl FnOnce() -> R) -> (R, CapturedCalls) {
        let inner = &*self.0;
        let (entries, shapes) = (inner.entries.take(), inner.shapes.take());
        let ranges = inner.operator_ranges.replace(true);
        let computed = compute();
        inner.operator_ranges.set(ranges);
        let calls = inner.entries.replace(entries).into_iter();
        let calls = calls
            .filter_map(|entry| if let RecordEntry::Call(call) = entry { Some(call) } else { None })
            .collect();
        let captured =
            CapturedCalls(Rc::new(RecordedCalls { calls, shapes: inner.shapes.replace(shapes) }));
        (computed, captured)
    }

    /// Records one replay of `captured`, with a text `moved` positions longer than at its capture.
    #[cfg(any(feature = "cuda", test))]
    pub fn replayed(&self, captured: &CapturedCalls, moved: u64) {
        let inner = &*self.0;
        if inner.quiet.get() {
            return;
        }
        inner.entries.borrow_mut().push(RecordEntry::Replay(Replay {
            captured: captured.clone(),
            t_ns: now_ns(),
            warmup: inner.warmup.get(),
            repeat: inner.repeat.get(),
            stage: inner.stage.get(),
            moved,
        }));
    }

    /// Takes everything recorded since the last drain, in the order of its end.
    pub fn drain(&self) -> Vec<Event> {
        let shapes = std::mem::take(&mut *self.0.shapes.borrow_mut());
        let mut shapes = shapes.into_iter();
        let mut events = Vec::new();
        for entry in std::mem::take(&mut *self.0.entries.borrow_mut()) {
            match entry {
                RecordEntry::Range(range, marks) => {
                    events.push(Event::Range(StageRange {
                        device_ns: marks.as_ref().and_then(between),
                        ..range
                    }));
                }
                RecordEntry::Experts(experts) => events.push(Event::Experts(experts)),
                RecordEntry::Memory(memory) => events.push(Event::Memory(memory)),
                RecordEntry::Call(call) => events.push(call.event(&mut shapes, false)),
                RecordEntry::Replay(replay) => replay.push_events(&mut events),
            }
        }
        events
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
    start: Option<GpuMark>,
    _memory: Option<MemoryGuard>,
}

impl Drop for StageGuard {
    fn drop(&mut self) {
        let end_ns = now_ns();
        let inner = &*self.recorder.0;
        let marks = self.start.take().zip(self.recorder.mark());
        inner.stage.set(self.outer.0);
        inner.step.set(self.outer.1);
        if inner.quiet.get() {
            return;
        }
        inner.stages.pop();
        let range = StageRange {
            name: self.name.to_owned(),
            start_ns: self.start_ns,
            end_ns,
            device_ns: None,
            warmup: inner.warmup.get(),
            repeat: inner.repeat.get(),
            step: self.step,
        };
        inner.entries.borrow_mut().push(RecordEntry::Range(range, marks));
    }
}

#[cfg(test)]
mod tests;
