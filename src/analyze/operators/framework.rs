//! Host times and work of the operators of a framework, from the calls of its profiler.
//!
//! An operator calls others: `aten::linear` calls `aten::addmm`. The FLOPs of one product are those
//! of the innermost call with a formula, and only if it launched kernels, so that none counts
//! twice.

use std::collections::BTreeMap;

use super::{
    CallKey, HostTimeSum, Operators, StageWork, collapse,
    formulas::{OperatorWork, dtype, kind, work},
    sort,
};
use crate::{
    analyze::{
        kernels::{OUTSIDE, WARMUP},
        stages::{STAGES, Stages},
        stats::percent,
        timeline::{
            framework_nests::{FrameworkNests, NestItem, ThreadNest, outer},
            interval::covered_ns,
            launches::{Cursor, LaunchIndex},
            open_ranges::EXCLUDED,
        },
    },
    trace::{event::OperatorCall, framework::OperatorSignature, nsys::NsysTrace},
};

/// Sums the operators of a capture that its stages do not leave out.
pub fn framework(trace: &NsysTrace, launches: &LaunchIndex, stages: &Stages) -> Operators {
    let nests = FrameworkNests::of(trace);
    let launching = launching(&nests, trace, launches);
    let works: Vec<Option<OperatorWork>> = trace.framework.signatures.iter().map(work).collect();
    let mut sums = FrameworkSums::default();
    let mut calls = CallCache::default();
    for (thread, launching) in nests.threads.iter().zip(&launching) {
        let stage_of = stage_names(thread, &nests, launches);
        let own = own_times(thread, &nests);
        let counts = counted(thread, launching, trace, &works);
        for (entry, item) in thread.items.iter().enumerate() {
            let stage = stage_of[entry];
            if stage == WARMUP {
                continue;
            }
            let (call, flops) = calls.of(*item, trace, &works);
            let flops = if counts[entry] { flops } else { OperatorWork::default() };
            (call.start_ns, call.end_ns) = nests.span(*item);
            (call.flops, call.bytes) = (flops.flops, flops.bytes);
            if call.stage != stage {
                call.stage = stage.to_owned();
            }
            let around = || {
                outer(thread, entry as u32).filter(|it| stage_of[*it as usize] == stage)
            };
            let name = |it: u32| nests.name(thread.items[it as usize]);
            let inside = around().any(|it| name(it) == call.path);
            sums.add(call, own[entry], inside, || {
                let rolled = collapse(&call.path);
                around().any(|it| collapse(name(it)) == rolled)
            });
            if outer(thread, entry as u32).next().is_none() {
                sums.spans.entry(stage).or_default().push((call.start_ns, call.end_ns));
            }
        }
    }
    sums.finish(stages)
}

/// For each thread, whether a kernel was launched inside each entry.
fn launching(nests: &FrameworkNests, trace: &NsysTrace, launches: &LaunchIndex) -> Vec<Vec<bool>> {
    // A trace without any kernel is of the CPU, where every call did its work.
    let on_cpu = trace.kernels.is_empty();
    let none = |it: &ThreadNest| vec![on_cpu; it.items.len()];
    let mut launching: Vec<Vec<bool>> = nests.threads.iter().map(none).collect();
    for (thread, entry) in nests.of_kernels(launches).into_iter().flatten() {
        launching[thread as usize][entry as usize] = true;
    }
    for (thread, launching) in nests.threads.iter().zip(&mut launching) {
        for entry in (0..launching.len()).rev() {
            let parent = thread.nest.entries[entry].1 as usize;
            if launching[entry] && parent < launching.len() {
                launching[parent] = true;
            }
        }
    }
    launching
}

/// The entries whose work counts: the innermost ones with a formula that launched kernels.
fn counted(
    thread: &ThreadNest,
    launching: &[bool],
    trace: &NsysTrace,
    works: &[Option<OperatorWork>],
) -> Vec<bool> {
    let has_work = |item: &NestItem| match item {
        NestItem::Call(at) => {
            works[trace.framework.get(*at as usize).signature as usize].is_some()
        }
        NestItem::Range(_) => false,
    };
    let (mut counts, mut inside) = (vec![false; launching.len()], vec![false; launching.len()]);
    for entry in (0..launching.len()).rev() {
        counts[entry] = !inside[entry] && launching[entry] && has_work(&thread.items[entry]);
        let parent = thread.nest.entries[entry].1 as usize;
        if parent < inside.len() {
            inside[parent] |= counts[entry] || inside[entry];
        }
    }
    counts
}

/// The stage of each entry of a thread; empty outside every stage.
fn stage_names<'a>(
    thread: &ThreadNest,
    nests: &FrameworkNests,
    launches: &'a LaunchIndex,
) -> Vec<&'a str> {
    let mut cursor = Cursor::default();
    let stage = |item: &NestItem| {
        let start = nests.span(*item).0;
        match cursor.at(thread.thread, start, |thread| launches.stages.on(thread)) {
            EXCLUDED => OUTSIDE,
            at => launches
                .stages
                .instances
                .get(at as usize)
                .map_or("", |it| launches.stages.labels[it.label].as_str()),
        }
    };
    thread.items.iter().map(stage).collect()
}

/// Host time of each entry without those inside it.
fn own_times(thread: &ThreadNest, nests: &FrameworkNests) -> Vec<i64> {
    let length = |item: &NestItem| {
        let (start, end) = nests.span(*item);
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

/// One call per signature, reused for all calls of it.
#[derive(Default)]
struct CallCache {
    signatures: Vec<Option<OperatorCall>>,
    range: Option<OperatorCall>,
}

impl CallCache {
    fn of(
        &mut self,
        item: NestItem,
        trace: &NsysTrace,
        works: &[Option<OperatorWork>],
    ) -> (&mut OperatorCall, OperatorWork) {
        match item {
            NestItem::Call(at) => {
                let at = trace.framework.get(at as usize).signature as usize;
                self.signatures.resize(trace.framework.signatures.len(), None);
                let call = self.signatures[at]
                    .get_or_insert_with(|| call_of(&trace.framework.signatures[at]));
                (call, works[at].unwrap_or_default())
            }
            NestItem::Range(at) => {
                let call = self.range.get_or_insert_with(|| OperatorCall {
                    op: "range".into(),
                    ..call_of(&OperatorSignature::default())
                });
                call.path.clone_from(&trace.ranges[at as usize].name);
                (call, OperatorWork::default())
            }
        }
    }
}

fn call_of(signature: &OperatorSignature) -> OperatorCall {
    OperatorCall {
        path: signature.name.clone(),
        op: kind(&signature.name).into(),
        start_ns: 0,
        end_ns: 0,
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
    by_path: BTreeMap<CallKey, HostTimeSum>,
    rolled: BTreeMap<CallKey, HostTimeSum>,
    work: BTreeMap<String, StageWork>,
    /// Outermost calls by stage.
    spans: BTreeMap<&'a str, Vec<(i64, i64)>>,
}

impl FrameworkSums<'_> {
    fn add(
        &mut self,
        call: &OperatorCall,
        own_ns: i64,
        inside: bool,
        inside_rolled: impl Fn() -> bool,
    ) {
        HostTimeSum::add(&mut self.by_path, call.path.clone(), call, Some((own_ns, inside)));
        // Only names of modules have numbers.
        let is_plain = !call.path.contains('.');
        let (path, inside) = if is_plain {
            (call.path.clone(), inside)
        } else {
            (collapse(&call.path), inside_rolled())
        };
        HostTimeSum::add(&mut self.rolled, path, call, Some((own_ns, inside)));
        if call.flops > 0 || call.bytes > 0 {
            let work = self.work.entry(call.stage.clone()).or_default();
            work.flops = work.flops.saturating_add(call.flops);
            work.bytes = work.bytes.saturating_add(call.bytes);
        }
    }

    fn finish(mut self, stages: &Stages) -> Operators {
        let total_ms = |stage: &str| stages.row(stage).map(|row| row.ms.mean * f64::from(row.ms.n));
        for stage in STAGES {
            if let (Some(spans), Some(ms)) = (self.spans.remove(stage), total_ms(stage)) {
                let work = self.work.entry(stage.to_owned()).or_default();
                work.covered_pct = percent(covered_ns(spans.into_iter()) as f64, ms * 1e6);
            }
        }
        let finish = |sums: BTreeMap<CallKey, HostTimeSum>| {
            let record = |(key, sum): (CallKey, HostTimeSum)| {
                let stage_ms = total_ms(&key.stage);
                sum.record(key, stage_ms)
            };
            let mut records: Vec<_> = sums.into_iter().map(record).collect();
            sort(&mut records);
            records
        };
        Operators { by_path: finish(self.by_path), rolled: finish(self.rolled), work: self.work }
    }
}

#[cfg(test)]
mod tests;
