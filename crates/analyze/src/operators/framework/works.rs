//! Work of each call of a framework's operators: by its signature, or by the step in which it runs.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::trace::timeline::Timeline;

use crate::{
    operators::formulas::{OperatorWork, SignatureWork, StepKeys, cache_size, signature_work},
    timeline::{
        capture::Capture,
        framework_nests::{FrameworkIndex, NestItem, ThreadNest},
        interval::Interval,
        steps::Step,
        steps_at::{StepLookup, StepsAt},
    },
};

/// Ratio of kernel times of one step from which the calls of an operator have different keys.
const UNEVEN: f64 = 1.5;
/// Min part of an operator's steps with uneven calls, one of so many.
const UNEVEN_STEPS: usize = 10;

/// Replays of a graph by their step.
pub type StepReplays = BTreeMap<Option<usize>, u64>;

/// Measures of work that count for a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub flops: bool,
    pub bytes: bool,
}

impl Counted {
    const fn of(work: OperatorWork) -> Self {
        Self { flops: work.flops > 0, bytes: work.bytes > 0 }
    }

    pub const fn any(self) -> bool {
        self.flops || self.bytes
    }

    const fn both(self, other: Self) -> Self {
        Self { flops: self.flops && other.flops, bytes: self.bytes && other.bytes }
    }

    const fn either(self, other: Self) -> Self {
        Self { flops: self.flops || other.flops, bytes: self.bytes || other.bytes }
    }

    const fn without(self, other: Self) -> Self {
        Self { flops: self.flops && !other.flops, bytes: self.bytes && !other.bytes }
    }

    /// The measures of a work that count.
    pub const fn part(self, work: OperatorWork) -> OperatorWork {
        OperatorWork {
            flops: if self.flops { work.flops } else { 0 },
            bytes: if self.bytes { work.bytes } else { 0 },
        }
    }
}

/// Work of the calls of a capture.
pub struct Works {
    of_signature: Vec<Option<SignatureWork>>,
    /// Keys by step; empty if no work depends on steps.
    keys: Vec<Option<StepKeys>>,
    steps: StepsAt,
}

impl Works {
    pub fn of(capture: &Capture, index: &FrameworkIndex) -> Self {
        let signatures = &capture.trace.framework.signatures;
        let cache = cache_size(signatures);
        let of_signature = signatures.iter().map(|it| signature_work(it, cache)).collect();
        let mut works = Self { of_signature, keys: Vec::new(), steps: StepsAt::default() };
        if (0..signatures.len()).any(|at| works.is_of_step(Some(at))) {
            let steps = &capture.stages.steps;
            // The phases of speculation have keys of their own.
            let keys = |it: &Step| {
                let keys = StepKeys::of(it.class, &it.counts);
                keys.filter(|_| it.phases.is_empty())
            };
            works.keys = steps.iter().map(keys).collect();
            let places: Vec<(i64, Interval)> =
                steps.iter().map(|it| (it.place, (it.start_ns, it.end_ns))).collect();
            works.steps = StepsAt::of(&places);
            let uneven = works.uneven(capture, index);
            for (of, work) in signatures.iter().zip(&mut works.of_signature) {
                if uneven.contains(of.name.as_str()) && work.is_some() {
                    *work = Some(SignatureWork::PartOfKeys);
                }
            }
        }
        works
    }

    pub fn lookup(&self) -> WorkLookup<'_> {
        WorkLookup { works: self, steps: self.steps.lookup() }
    }

    /// Work of a call in a step; none without a formula.
    pub fn of_call(&self, signature: Option<usize>, step: Option<usize>) -> OperatorWork {
        match signature.and_then(|at| self.of_signature[at]) {
            Some(SignatureWork::Fixed(work)) => work,
            Some(SignatureWork::OfStep(attention)) => {
                let keys = step.and_then(|at| self.keys.get(at)?.as_ref());
                keys.and_then(|keys| attention.work(keys)).unwrap_or_default()
            }
            Some(SignatureWork::PartOfKeys) | None => OperatorWork::default(),
        }
    }

    /// Work of all replays of a captured call.
    pub fn of_replays(&self, signature: Option<usize>, replays: &StepReplays) -> OperatorWork {
        let mut sum = OperatorWork::default();
        for (step, count) in replays {
            let OperatorWork { flops, bytes } = self.of_call(signature, *step);
            sum.flops = sum.flops.saturating_add(flops.saturating_mul(*count));
            sum.bytes = sum.bytes.saturating_add(bytes.saturating_mul(*count));
        }
        sum
    }

    fn is_of_step(&self, signature: Option<usize>) -> bool {
        let work = signature.and_then(|at| self.of_signature[at]);
        matches!(work, Some(SignatureWork::OfStep(_)))
    }

    fn is_part(&self, signature: Option<usize>) -> bool {
        signature.and_then(|at| self.of_signature[at]) == Some(SignatureWork::PartOfKeys)
    }

    /// For each entry, true if a launching call directly inside attends to a part of the keys.
    fn parts_inside(&self, thread: &ThreadNest, launching: &[bool], trace: &Timeline) -> Vec<bool> {
        let mut inside = vec![false; launching.len()];
        for (entry, item) in thread.items.iter().enumerate() {
            let parent = thread.nest.entries[entry].1 as usize;
            if let Some(parent) = inside.get_mut(parent) {
                *parent |= launching[entry] && self.is_part(item.signature(trace));
            }
        }
        inside
    }

    /// The measures that count for each entry of a thread: the innermost call with a measure that
    /// launched kernels has it.
    pub fn counted(
        &self,
        thread: &ThreadNest,
        launching: &[bool],
        trace: &Timeline,
    ) -> Vec<Counted> {
        let mut lookup = self.lookup();
        let parts_inside = self.parts_inside(thread, launching, trace);
        let mut counts = vec![Counted::default(); launching.len()];
        let mut inside = counts.clone();
        for entry in (0..launching.len()).rev() {
            if !launching[entry] {
                continue;
            }
            let (item, parent) = (thread.items[entry], thread.nest.entries[entry].1 as usize);
            let signature = item.signature(trace);
            let is_of_step = self.is_of_step(signature);
            let own = match item {
                // The calls inside one parent divide the keys.
                _ if is_of_step && parts_inside.get(parent) == Some(&true) => Counted::default(),
                // A captured call runs in several steps.
                NestItem::Captured(_) if is_of_step => Counted { flops: true, bytes: true },
                _ => Counted::of(lookup.of_item(item, thread.thread, trace)),
            };
            counts[entry] = own.without(inside[entry]);
            let is_part = self.is_part(signature);
            let has_part = Counted { flops: is_part, bytes: is_part };
            let around = inside[entry].either(counts[entry]).either(has_part);
            if parent < inside.len() {
                inside[parent] = inside[parent].either(around);
            }
        }
        counts
    }

    /// Names of operators of attention whose calls take different times in one step: some layers
    /// attend to a window, which no signature has.
    fn uneven<'a>(&self, capture: &Capture<'a>, index: &FrameworkIndex) -> BTreeSet<&'a str> {
        let trace = capture.trace;
        let (mut calls, mut steps) = (trace.cuda_calls.reader(), self.steps.lookup());
        // Name, step and kernel time by call.
        let mut sums: HashMap<(u32, u32, u32), (&str, usize, i64)> = HashMap::default();
        for (at, (kernel, join)) in capture.kernels().enumerate().filter(|it| it.1.1.has_call()) {
            let Some((thread, nest, innermost)) = index.innermost(at) else { continue };
            for entry in nest.with_outer(innermost) {
                let item = nest.items[entry as usize];
                if !self.is_of_step(item.signature(trace)) {
                    continue;
                }
                let call = calls.get(join.call);
                let Some(step) = steps.at(call.global_tid, call.start_ns) else { continue };
                let key = (thread, entry, index.replay_of(thread, join.call));
                let sum = sums.entry(key).or_insert((item.name(trace), step, 0));
                sum.2 = sum.2.saturating_add(kernel.ns());
            }
        }
        let mut times: BTreeMap<(&str, usize), Vec<i64>> = BTreeMap::new();
        for (name, step, ns) in sums.into_values() {
            times.entry((name, step)).or_default().push(ns);
        }
        // Steps with uneven calls, and all with several.
        let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for ((name, _), times) in times.into_iter().filter(|it| it.1.len() > 1) {
            let count = counts.entry(name).or_default();
            *count = (count.0 + usize::from(is_uneven(times)), count.1 + 1);
        }
        let found = counts.into_iter().filter(|(_, (uneven, all))| uneven * UNEVEN_STEPS >= *all);
        found.map(|it| it.0).collect()
    }
}

/// True if times differ, apart from a tenth at either end.
fn is_uneven(mut times: Vec<i64>) -> bool {
    times.sort_unstable();
    let ends = times.len() / 10;
    let (low, high) = (times[ends], times[times.len() - 1 - ends]);
    high as f64 > UNEVEN * low as f64
}

/// Looks up the work of calls, fast in order of time.
pub struct WorkLookup<'a> {
    works: &'a Works,
    steps: StepLookup<'a>,
}

impl WorkLookup<'_> {
    /// The step at a time on a thread; `None` if no work depends on steps.
    pub fn step(&mut self, thread: i64, t: i64) -> Option<usize> {
        if self.works.keys.is_empty() { None } else { self.steps.at(thread, t) }
    }

    /// Work of an item of a thread of the host.
    pub fn of_item(&mut self, item: NestItem, thread: i64, trace: &Timeline) -> OperatorWork {
        let signature = item.signature(trace);
        let is_of_step = self.works.is_of_step(signature);
        let step = if is_of_step { self.step(thread, item.span(trace).0) } else { None };
        self.works.of_call(signature, step)
    }

    /// The measures that count for an entry around a kernel. `launch` returns the thread and start
    /// of its launching call: a captured call has no work in a step without known keys.
    pub fn counts(
        &mut self,
        (item, counted): (NestItem, Counted),
        launch: impl FnOnce() -> Option<(i64, i64)>,
        trace: &Timeline,
    ) -> Counted {
        let signature = item.signature(trace);
        if !matches!(item, NestItem::Captured(_)) || !self.works.is_of_step(signature) {
            return counted;
        }
        let step = launch().and_then(|(thread, t)| self.step(thread, t));
        counted.both(Counted::of(self.works.of_call(signature, step)))
    }
}
