//! Host times and work of the operators of a framework, from the calls of its profiler.
//!
//! An operator calls others: `aten::linear` calls `aten::addmm`. FLOPs and bytes each count for the
//! innermost call that has them, and only if it launched kernels, so that none counts twice.

mod kernel_work;
mod works;

use std::collections::BTreeMap;

use llmprof_core::trace::{event::OperatorCall, framework::OperatorSignature, timeline::Timeline};

use self::{
    kernel_work::CountedCalls,
    works::{Counted, StepReplays, Works},
};
use super::{
    HostTimeSum, OperatorSums, StageWork,
    call_kinds::CallKey,
    formulas::{OperatorWork, dtype},
    kinds::kind,
    products::{ProductCalls, WeightProduct},
    rolled_paths::collapse,
};
use crate::{
    kernels::{OUTSIDE, is_unmeasured_range},
    stages::{STAGES, Stages},
    stats::percent,
    timeline::{
        capture::Capture,
        framework_nests::{FrameworkIndex, NestItem, ThreadNest},
        interval::covered_ns,
        open_ranges::EXCLUDED,
        withheld::{TimelineFigure, Withheld},
    },
};

/// Sums the operators of a capture that its stages do not leave out. The work of a stage is unknown
/// if it lost kernels.
pub fn framework<'a>(
    capture: &Capture,
    index: &FrameworkIndex,
    stages: &'a Stages,
    withheld: &Withheld,
) -> OperatorSums<'a> {
    let works = Works::of(capture, index);
    let launching = launching(index, capture.trace);
    let counted: Vec<Vec<Counted>> = index
        .threads
        .iter()
        .zip(&launching)
        .map(|(thread, launching)| works.counted(thread, launching, capture.trace))
        .collect();
    let mut sums = FrameworkSums::default();
    let (mut calls, mut lookup) = (CallCache::default(), works.lookup());
    let products = Products::of(capture.trace);
    for (thread, counts) in index.threads.iter().zip(&counted).take(index.hosts) {
        let stage_of = stage_names(thread, capture);
        let own = own_times(thread, capture.trace);
        for (entry, item) in thread.items.iter().enumerate() {
            let stage = stage_of[entry];
            if is_unmeasured_range(stage) {
                continue;
            }
            let call = calls.of(*item, capture.trace);
            let work = counts[entry].part(match counts[entry].any() {
                true => lookup.of_item(*item, thread.thread, capture.trace),
                false => OperatorWork::default(),
            });
            if counts[entry].flops {
                sums.add_product(products.of_item(*item, capture.trace), stage, 1);
            }
            (call.start_ns, call.end_ns) = item.span(capture.trace);
            (call.flops, call.bytes) = (work.flops, work.bytes);
            if call.stage != stage {
                call.stage = stage.to_owned();
            }
            let around = || thread.outer(entry as u32).filter(|it| stage_of[*it as usize] == stage);
            let name = |it: u32| thread.name(capture.trace, it);
            let inside = around().any(|it| name(it) == call.path);
            sums.add(call, own[entry], inside, || {
                let rolled = collapse(&call.path);
                around().any(|it| collapse(name(it)) == rolled)
            });
            if thread.outer(entry as u32).next().is_none() {
                let spans = sums.spans.entry((stage, thread.thread)).or_default();
                spans.push((call.start_ns, call.end_ns));
            }
        }
    }
    replayed(capture, index, (&works, &counted, &products), &mut sums);
    let mut operators = sums.finish(stages);
    let calls = CountedCalls::new(capture, index, &counted, &works);
    let (mut incomplete, uncounted) = calls.uncounted();
    let mut uncounted: Vec<(&str, i64)> = uncounted.into_iter().collect();
    uncounted.sort_by_key(|it| std::cmp::Reverse(it.1));
    operators.uncounted = uncounted.into_iter().map(|it| it.0.to_owned()).collect();
    incomplete.extend(withheld.stages_without(TimelineFigure::Flops).map(str::to_owned));
    for stage in incomplete {
        // The rest of the stage's work is unknown.
        operators.products.remove(&stage);
        operators.work.entry(stage).or_default().flops = 0;
    }
    operators.working_ns = Some(calls.working_kernels());
    operators
}

/// Adds the operators of captured graphs, once for each replay in the stage of the replay. They
/// have no host time.
fn replayed<'a>(
    capture: &'a Capture,
    index: &FrameworkIndex,
    (works, counted, products): (&Works, &[Vec<Counted>], &Products),
    sums: &mut FrameworkSums<'a>,
) {
    let mut calls = CallCache::default();
    for ((graph, number), replays) in replays_by_stage(capture, index, works) {
        // Operators outside every stage have an empty stage.
        let stage = if number == 0 { "" } else { capture.stage_label(number) };
        let at = index.hosts + graph as usize;
        if is_unmeasured_range(stage) {
            continue;
        }
        let count: u64 = replays.values().sum();
        for (item, counts) in index.threads[at].items.iter().zip(&counted[at]) {
            let call = calls.of(*item, capture.trace);
            let work = counts.part(works.of_replays(item.signature(capture.trace), &replays));
            if counts.flops {
                sums.add_product(products.of_item(*item, capture.trace), stage, count);
            }
            (call.flops, call.bytes) = (work.flops, work.bytes);
            if call.stage != stage {
                call.stage = stage.to_owned();
            }
            sums.replayed(call, count);
        }
    }
}

/// Replays by graph and stage number, and by step if work depends on it.
fn replays_by_stage(
    capture: &Capture,
    index: &FrameworkIndex,
    works: &Works,
) -> BTreeMap<(u32, usize), StepReplays> {
    let (mut lookup, mut open) = (works.lookup(), capture.stages.cursor());
    let mut found: BTreeMap<(u32, usize), StepReplays> = BTreeMap::new();
    for it in &index.replays.joined {
        let call = capture.trace.cuda_calls.get(it.call as usize);
        let step = lookup.step(call.global_tid, call.start_ns);
        // Steps that are taken out of a decode change the numbers of instances.
        let number = capture.stage_number(open.at_call(&call));
        let of_stage = found.entry((it.graph, number)).or_default();
        *of_stage.entry(step).or_default() += 1;
    }
    found
}

/// For each thread, true for the entries inside which a kernel was launched.
fn launching(index: &FrameworkIndex, trace: &Timeline) -> Vec<Vec<bool>> {
    // A trace without any kernel is of the CPU, where every call did its work.
    let on_cpu = trace.kernels.is_empty();
    let none = |it: &ThreadNest| vec![on_cpu; it.items.len()];
    let mut launching: Vec<Vec<bool>> = index.threads.iter().map(none).collect();
    index.launching().for_each(|(thread, entry)| launching[thread][entry] = true);
    for (thread, launching) in index.threads.iter().zip(&mut launching) {
        for entry in (0..launching.len()).rev() {
            let parent = thread.nest.entries[entry].1 as usize;
            if launching[entry] && parent < launching.len() {
                launching[parent] = true;
            }
        }
    }
    launching
}

/// The stage of each entry of a thread; empty outside every stage.
fn stage_names<'a>(thread: &ThreadNest, capture: &'a Capture<'a>) -> Vec<&'a str> {
    let mut open = capture.stages.cursor();
    let stage = |item: &NestItem| match open.at(thread.thread, item.span(capture.trace).0) {
        EXCLUDED => OUTSIDE,
        at => capture
            .stages
            .instances
            .get(at as usize)
            .map_or("", |it| capture.stages.labels[it.label].as_str()),
    };
    thread.items.iter().map(stage).collect()
}

/// Host time of each entry without those inside it.
fn own_times(thread: &ThreadNest, trace: &Timeline) -> Vec<i64> {
    let length = |item: &NestItem| {
        let (start, end) = item.span(trace);
        end - start
    };
    let mut own: Vec<i64> = thread.items.iter().map(length).collect();
    for entry in 0..own.len() {
        let parent = thread.nest.entries[entry].1 as usize;
        if parent < own.len() {
            own[parent] -= length(&thread.items[entry]);
        }
    }
    own
}

/// The product of each signature.
struct Products(Vec<Option<WeightProduct>>);

impl Products {
    fn of(trace: &Timeline) -> Self {
        Self(trace.framework.signatures.iter().map(WeightProduct::of).collect())
    }

    fn of_item(&self, item: NestItem, trace: &Timeline) -> Option<&WeightProduct> {
        self.0[item.signature(trace)?].as_ref()
    }
}

/// One call per signature, reused for all calls of it.
#[derive(Default)]
struct CallCache {
    signatures: Vec<Option<OperatorCall>>,
    range: Option<OperatorCall>,
}

impl CallCache {
    fn of(&mut self, item: NestItem, trace: &Timeline) -> &mut OperatorCall {
        let Some(at) = item.signature(trace) else {
            let call = self.range.get_or_insert_with(range_call);
            call.path.clear();
            call.path.push_str(item.name(trace));
            return call;
        };
        self.signatures.resize(trace.framework.signatures.len(), None);
        let new = || match item.is_range(trace) {
            true => OperatorCall { path: item.name(trace).to_owned(), ..range_call() },
            false => call_of(&trace.framework.signatures[at]),
        };
        self.signatures[at].get_or_insert_with(new)
    }
}

fn range_call() -> OperatorCall {
    OperatorCall { op: "range".into(), ..call_of(&OperatorSignature::default()) }
}

fn call_of(signature: &OperatorSignature) -> OperatorCall {
    OperatorCall {
        path: signature.name.clone(),
        op: kind(&signature.name).into(),
        start_ns: 0,
        end_ns: 0,
        thread: 0,
        captured: false,
        warmup: false,
        repeat: 0,
        stage: String::new(),
        shapes: signature.shapes.iter().filter(|it| !it.is_empty()).cloned().collect(),
        dtype: dtype(signature).unwrap_or_default().into(),
        flops: 0,
        bytes: 0,
    }
}

/// Sums under way.
#[derive(Default)]
struct FrameworkSums<'a> {
    by_path: BTreeMap<CallKey<'static>, HostTimeSum>,
    rolled: BTreeMap<CallKey<'static>, HostTimeSum>,
    work: BTreeMap<String, StageWork>,
    products: BTreeMap<String, ProductCalls>,
    /// Outermost calls by stage and thread: stages of several threads may run at once.
    spans: BTreeMap<(&'a str, i64), Vec<(i64, i64)>>,
}

impl FrameworkSums<'_> {
    fn add(
        &mut self,
        call: &OperatorCall,
        own_ns: i64,
        inside: bool,
        inside_rolled: impl Fn() -> bool,
    ) {
        // Calls inside one with work do its work.
        let has_work = call.flops > 0 || call.bytes > 0;
        let working_ns = if has_work { call.end_ns - call.start_ns } else { 0 };
        let own_path = self.by_path.entry(owned_key(call, call.path.clone())).or_default();
        own_path.add(call, (own_ns, inside, working_ns));
        // Only names of modules have numbers.
        let is_plain = !call.path.contains('.');
        let (path, inside) = if is_plain {
            (call.path.clone(), inside)
        } else {
            (collapse(&call.path).into_owned(), inside_rolled())
        };
        let rolled = self.rolled.entry(owned_key(call, path)).or_default();
        rolled.add(call, (own_ns, inside, working_ns));
        // Bytes of a stage are unknown: some operators have no formula.
        if call.flops > 0 {
            let work = self.work.entry(call.stage.clone()).or_default();
            work.flops = work.flops.saturating_add(call.flops);
        }
    }

    fn add_product(&mut self, product: Option<&WeightProduct>, stage: &str, count: u64) {
        let Some(product) = product else { return };
        let of_stage = match self.products.get_mut(stage) {
            Some(known) => known,
            None => self.products.entry(stage.to_owned()).or_default(),
        };
        match of_stage.get_mut(product) {
            Some(calls) => *calls += count,
            None => drop(of_stage.insert(product.clone(), count)),
        }
    }

    /// Adds a call that a graph replayed `count` times, with the work of all replays.
    fn replayed(&mut self, call: &OperatorCall, count: u64) {
        let own_path = self.by_path.entry(owned_key(call, call.path.clone())).or_default();
        own_path.add_replayed(call, count);
        let path = collapse(&call.path).into_owned();
        self.rolled.entry(owned_key(call, path)).or_default().add_replayed(call, count);
        if call.flops > 0 {
            let work = self.work.entry(call.stage.clone()).or_default();
            work.flops = work.flops.saturating_add(call.flops);
        }
    }

    fn finish(mut self, stages: &Stages) -> OperatorSums<'_> {
        let mut covered: BTreeMap<&str, i64> = BTreeMap::new();
        for ((stage, _), spans) in self.spans {
            *covered.entry(stage).or_default() += covered_ns(spans);
        }
        for stage in STAGES {
            if let (Some(ns), Some(ms)) = (covered.get(stage), stages.total_ms(stage)) {
                let work = self.work.entry(stage.to_owned()).or_default();
                work.covered_pct = percent(*ns as f64, ms * 1e6);
            }
        }
        OperatorSums {
            by_path: self.by_path.into_iter().collect(),
            rolled: self.rolled.into_iter().collect(),
            work: self.work,
            working_ns: None,
            products: self.products,
            uncounted: vec![],
            stages,
        }
    }
}

/// The key of a call under `path`.
fn owned_key(call: &OperatorCall, path: String) -> CallKey<'static> {
    CallKey { stage: call.stage.clone().into(), path: path.into(), op: call.op.clone().into() }
}

#[cfg(test)]
pub mod tests;
