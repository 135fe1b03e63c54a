//! The thread that launches the work of a stage, while a GPU idles because nothing is launched.

use std::{cmp::Reverse, collections::BTreeMap};

use llmprof_core::{
    domain::units::Nanos,
    trace::{
        host_cpu::SampledFunction,
        interval::Interval,
        timeline::{Timeline, pid_of, process_of, tid_of},
    },
};

use super::{CoreTaker, GapFunction, HostStage, cores::Cores, names::Names};
use crate::{
    stats::percent,
    timeline::{
        capture::Capture,
        gpu::{GpuCell, LaneEvent},
    },
};

/// Times of one stage, nanoseconds.
#[derive(Default)]
struct StageSums {
    idle_ns: i64,
    on_core_ns: i64,
    off_core_ns: i64,
    unknown_ns: i64,
    taken: BTreeMap<i64, i64>,
    samples: u64,
    functions: BTreeMap<SampledFunction, u64>,
}

/// Sums of all stages of a capture; takes its idle gaps one at a time.
pub struct HostGaps<'a> {
    trace: &'a Timeline,
    cores: &'a Cores,
    stages: Vec<StageSums>,
}

/// Rows of the launching threads, by stage.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GapTables {
    pub stages: Vec<HostStage>,
    pub takers: Vec<CoreTaker>,
    pub functions: Vec<GapFunction>,
}

impl GapTables {
    /// Adds the rows of other stages.
    pub fn append(&mut self, other: Self) {
        self.stages.extend(other.stages);
        self.takers.extend(other.takers);
        self.functions.extend(other.functions);
    }
}

impl<'a> HostGaps<'a> {
    /// `None` for a capture without switches and samples, or with switches that are not proven.
    pub fn of(capture: &Capture<'a>, cores: Option<&'a Cores>) -> Option<Self> {
        let cores = cores.filter(|it| it.is_proven())?;
        let stages = capture.stages.labels.iter().map(|_| StageSums::default()).collect();
        Some(Self { trace: capture.trace, cores, stages })
    }

    pub fn add(&mut self, cells: &[GpuCell], event: &LaneEvent) {
        if let LaneEvent::Gap(gap) = event {
            let sums = &mut self.stages[cells[gap.cell].label];
            gap.each_host_part(|thread, part| sums.add(self.cores, thread, part));
        }
    }

    pub fn finish(self, capture: &Capture) -> GapTables {
        let mut tables = GapTables::default();
        let names = Names::of(self.trace);
        for (stage, sums) in capture.stages.labels.iter().zip(self.stages) {
            if sums.idle_ns > 0 {
                sums.add_to(&mut tables, stage, self.cores.has_switches(), &names);
            }
        }
        tables
    }
}

impl StageSums {
    fn add(&mut self, cores: &Cores, thread: i64, part: Interval) {
        self.idle_ns = self.idle_ns.saturating_add(part.1 - part.0);
        let time = cores.divide(thread, part);
        self.on_core_ns = self.on_core_ns.saturating_add(time.on_core_ns);
        self.unknown_ns = self.unknown_ns.saturating_add(time.unknown_ns);
        for off in &time.off_core {
            self.off_core_ns = self.off_core_ns.saturating_add(off.span.1 - off.span.0);
            cores.on_core(off.core, off.span, |other, ns| {
                if other != thread {
                    *self.taken.entry(other).or_default() += ns;
                }
            });
        }
        for function in cores.sampled(thread, part) {
            self.samples += 1;
            if let Some(function) = function {
                *self.functions.entry(function).or_default() += 1;
            }
        }
    }

    fn add_to(self, tables: &mut GapTables, stage: &str, has_switches: bool, names: &Names) {
        let ms = |ns: i64| has_switches.then(|| Nanos(ns).as_ms());
        let taken_ns = self.taken.values().sum();
        tables.stages.push(HostStage {
            stage: stage.into(),
            idle_host_ms: Nanos(self.idle_ns).as_ms(),
            on_core_ms: ms(self.on_core_ns),
            off_core_ms: ms(self.off_core_ns),
            taken_ms: ms(taken_ns),
            unknown_ms: ms(self.unknown_ns),
            samples: self.samples,
        });
        let mut takers: Vec<(i64, i64)> = self.taken.into_iter().collect();
        takers.sort_by_key(|it| (-it.1, it.0));
        tables.takers.extend(takers.into_iter().map(|(thread, ns)| CoreTaker {
            stage: stage.into(),
            process: pid_of(thread),
            process_name: names.process(process_of(thread)),
            thread: tid_of(thread),
            thread_name: names.thread(thread),
            total_ms: Nanos(ns).as_ms(),
            share_pct: percent(ns as f64, self.off_core_ns as f64),
        }));
        let mut functions: Vec<(SampledFunction, u64)> = self.functions.into_iter().collect();
        functions.sort_by_key(|it| (Reverse(it.1), it.0));
        tables.functions.extend(functions.into_iter().map(|(function, samples)| GapFunction {
            stage: stage.into(),
            function: names.function(function),
            module: names.module(function),
            samples,
            share_pct: percent(samples as f64, self.samples as f64),
        }));
    }
}
