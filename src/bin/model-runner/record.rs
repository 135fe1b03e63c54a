//! What happens while the model runs: stage ranges, operator calls, experts hit.
//!
//! Each is an NVTX range and an event at once. Events stay in memory until the caller drains them between repeats, so that
//! nothing is formatted or written inside a timed stage. One thread only: the model is driven from one.

use std::{
    cell::{Cell, RefCell},
    io::{self, Write},
    rc::Rc,
};

use candle_core::DType;
use llmprof::trace::event::{Event, Experts, OPERATOR_DOMAIN, OperatorCall, STAGE_DOMAIN, StageRange};
use nix::time::{ClockId, clock_gettime};

mod operator;

pub use operator::{Op, Outcome, Work};

#[cfg(feature = "cuda")]
use crate::gpu::Mark;
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
    /// Nothing is recorded and no profiler hears: what runs now belongs to no stage.
    quiet: Cell<bool>,
    /// Times ranges on the GPU as well.
    #[cfg(feature = "cuda")]
    timer: RefCell<Option<crate::gpu::Timer>>,
}

/// An operator's identity, made once when the model is built.
pub struct OpName {
    path: String,
    kind: &'static str,
    nvtx: Name,
}

/// A place in the GPU's work; there is none without a GPU.
#[cfg(not(feature = "cuda"))]
type Mark = std::convert::Infallible;

/// Nanoseconds between two marks that the GPU has passed.
fn between(marks: &(Mark, Mark)) -> Option<i64> {
    #[cfg(feature = "cuda")]
    return marks.0.until(&marks.1);
    #[cfg(not(feature = "cuda"))]
    match marks.0 {}
}

enum Entry {
    Range(StageRange, Option<(Mark, Mark)>),
    Call(Call),
    Experts(Experts),
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "only a GPU replays"))]
    Replay(Replay),
}

#[derive(Clone)]
struct Call {
    name: Rc<OpName>,
    start_ns: i64,
    end_ns: i64,
    warmup: bool,
    repeat: u32,
    stage: &'static str,
    operands: usize,
    dtype: DType,
    work: Work,
}

/// Calls that were recorded while a graph was captured, to be told again at each of its replays.
#[derive(Clone)]
pub struct Captured(Rc<Recorded>);

struct Recorded {
    calls: Vec<Call>,
    shapes: Vec<u64>,
}

struct Replay {
    captured: Captured,
    t_ns: i64,
    warmup: bool,
    repeat: u32,
    stage: &'static str,
    /// Positions that the text is longer than at the capture.
    moved: u64,
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
            quiet: Cell::new(false),
            #[cfg(feature = "cuda")]
            timer: RefCell::default(),
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
        if !inner.quiet.get() {
            inner.stages.push(self.stage_name(name));
        }
        StageGuard { recorder: self.clone(), name, step, outer, start_ns: now_ns(), begin: self.mark() }
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
        Op::new(self.clone(), OpName { path, kind, nvtx })
    }

    /// Notes how many distinct experts a layer routed to in the forward that runs now.
    pub fn experts(&self, layer: usize, distinct: usize, total: usize) {
        self.experts_of(self.0.stage.get(), self.0.step.get(), layer, distinct, total);
    }

    /// Notes how many distinct experts a layer routed to in a forward that ran before, in this repeat.
    pub fn experts_of(&self, stage: &'static str, step: Option<u32>, layer: usize, distinct: usize, total: usize) {
        let inner = &*self.0;
        if inner.quiet.get() {
            return;
        }
        inner.entries.borrow_mut().push(Entry::Experts(Experts {
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
    pub fn time_by(&self, timer: crate::gpu::Timer) {
        self.0.timer.replace(Some(timer));
    }

    /// Where the GPU is in its work, if it is one that is timed.
    fn mark(&self) -> Option<Mark> {
        #[cfg(feature = "cuda")]
        return self.0.timer.borrow().as_ref().filter(|_| !self.0.quiet.get()).and_then(crate::gpu::Timer::mark);
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// Runs `compute` without recording it.
    pub fn quietly<R>(&self, compute: impl FnOnce() -> R) -> R {
        let before = self.0.quiet.replace(true);
        let computed = compute();
        self.0.quiet.set(before);
        computed
    }

    /// Runs `compute` and sets its calls apart, to be told at each [`Recorder::replayed`].
    #[cfg(any(feature = "cuda", test))]
    pub fn captured<R>(&self, compute: impl FnOnce() -> R) -> (R, Captured) {
        let inner = &*self.0;
        let (entries, shapes) = (inner.entries.take(), inner.shapes.take());
        let computed = compute();
        let calls = inner.entries.replace(entries).into_iter();
        let calls = calls.filter_map(|entry| if let Entry::Call(call) = entry { Some(call) } else { None }).collect();
        let captured = Captured(Rc::new(Recorded { calls, shapes: inner.shapes.replace(shapes) }));
        (computed, captured)
    }

    /// Notes that `captured` ran once more, with a text `moved` positions longer than at its capture.
    #[cfg(any(feature = "cuda", test))]
    pub fn replayed(&self, captured: &Captured, moved: u64) {
        let inner = &*self.0;
        if inner.quiet.get() {
            return;
        }
        inner.entries.borrow_mut().push(Entry::Replay(Replay {
            captured: captured.clone(),
            t_ns: now_ns(),
            warmup: inner.warmup.get(),
            repeat: inner.repeat.get(),
            stage: inner.stage.get(),
            moved,
        }));
    }

    /// Takes everything recorded since the last drain, in the order in which it closed.
    pub fn drain(&self) -> Vec<Event> {
        let shapes = std::mem::take(&mut *self.0.shapes.borrow_mut());
        let mut shapes = shapes.into_iter();
        let mut events = Vec::new();
        for entry in std::mem::take(&mut *self.0.entries.borrow_mut()) {
            match entry {
                Entry::Range(range, marks) => {
                    events.push(Event::Range(StageRange { device_ns: marks.as_ref().and_then(between), ..range }));
                }
                Entry::Experts(experts) => events.push(Event::Experts(experts)),
                Entry::Call(call) => events.push(call.event(&mut shapes, false)),
                Entry::Replay(replay) => replay.tell(&mut events),
            }
        }
        events
    }
}

impl Call {
    /// The event of this call, whose operands' shapes come next.
    fn event(self, shapes: &mut impl Iterator<Item = u64>, captured: bool) -> Event {
        let mut shape = || -> Vec<u64> {
            let rank = shapes.next().unwrap_or(0) as usize;
            shapes.by_ref().take(rank).collect()
        };
        Event::Op(OperatorCall {
            path: self.name.path.clone(),
            op: self.name.kind.to_owned(),
            start_ns: self.start_ns,
            end_ns: self.end_ns,
            captured,
            warmup: self.warmup,
            repeat: self.repeat,
            stage: self.stage.to_owned(),
            shapes: (0..self.operands).map(|_| shape()).collect(),
            dtype: self.dtype.as_str().to_owned(),
            flops: self.work.flops,
            bytes: self.work.read + self.work.late.map_or(0, |late| late.get()),
        })
    }
}

impl Replay {
    fn tell(self, events: &mut Vec<Event>) {
        let Recorded { calls, shapes } = &*self.captured.0;
        let mut shapes = shapes.iter().copied();
        for call in calls {
            let (flops, bytes) = call.work.per_position;
            let work = Work {
                flops: call.work.flops + flops * self.moved,
                read: call.work.read + bytes * self.moved,
                ..call.work.clone()
            };
            let (start_ns, end_ns, warmup, repeat, stage) = (self.t_ns, self.t_ns, self.warmup, self.repeat, self.stage);
            events.push(Call { start_ns, end_ns, warmup, repeat, stage, work, ..call.clone() }.event(&mut shapes, true));
        }
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
    begin: Option<Mark>,
}

impl Drop for StageGuard {
    fn drop(&mut self) {
        let end_ns = now_ns();
        let inner = &*self.recorder.0;
        let marks = self.begin.take().zip(self.recorder.mark());
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
        inner.entries.borrow_mut().push(Entry::Range(range, marks));
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

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
