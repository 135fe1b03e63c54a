//! A timeline with its stages, in which each kernel, copy and graph is joined to the call that
//! launched it, and to the stage open at the start of that call.

use std::sync::Arc;

use llmprof_core::trace::{
    call_index::{CallIndex, NO_CALL},
    kernel::TracedKernel,
    packed::PackedRows,
    runtime_call::CallKind,
    timeline::{ApiCall, GraphLaunch, MemoryOp, Timeline, process_of},
};
use rayon::prelude::*;

use crate::{
    kernels::{OUTSIDE, WARMUP},
    timeline::{
        framework_nests::FrameworkIndex,
        open_ranges::{EXCLUDED, NONE, OpenStages, StepInside},
        running::each_running,
    },
};

/// A launch's call, and the stage instance open at the start of the call; each may be [`NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    /// Index into the calls of the timeline.
    pub call: u32,
    /// Index into the instances of [`Capture::stages`].
    pub instance: u32,
}

impl Join {
    /// True if the timeline has the call.
    #[inline]
    pub fn has_call(self) -> bool {
        self.call != NO_CALL
    }
}

/// By kernel, copy or graph of a timeline.
#[derive(Debug, Default)]
struct Joins(PackedRows<2>);

impl Joins {
    #[inline]
    fn of([call, instance]: [i64; 2]) -> Join {
        Join { call: call as u32, instance: instance as u32 }
    }

    #[inline]
    fn iter(&self) -> impl ExactSizeIterator<Item = Join> + Clone + '_ {
        self.0.iter().map(Self::of)
    }

    fn get(&self, at: usize) -> Join {
        Self::of(self.0.get(at))
    }
}

/// One timeline and the launches of its kernels, copies and whole-traced graphs.
pub struct Capture<'a> {
    pub trace: &'a Timeline,
    pub stages: OpenStages,
    kernels: Arc<Joins>,
    copies: Arc<Joins>,
    graphs: Arc<Joins>,
    /// Operators of a framework; `None` for a timeline without their calls.
    pub framework: Option<Arc<FrameworkIndex>>,
    /// Label of work launched outside all stages.
    outside: &'static str,
}

impl<'a> Capture<'a> {
    pub fn of(trace: &'a Timeline) -> Self {
        let (stages, index) =
            rayon::join(|| OpenStages::of(trace, WARMUP), || CallIndex::of(&trace.cuda_calls));
        let join = |ids: &mut dyn Iterator<Item = (i64, i64)>| -> PackedRows<2> {
            let (mut lookup, mut calls) = (index.lookup(), trace.cuda_calls.reader());
            let mut open = stages.cursor();
            let joined = ids.map(|(process, correlation)| {
                let call = lookup.find(process, correlation);
                let instance = if call == NO_CALL {
                    // Without a launching call, the included range is unknown.
                    if trace.rules.include_ranges.is_empty() { NONE } else { EXCLUDED }
                } else {
                    open.at_call(&calls.get(call))
                };
                [call.into(), instance.into()]
            });
            joined.collect()
        };
        let parts: Vec<_> = trace.kernels.parts(rayon::current_num_threads()).collect();
        let join_part =
            |kernels| join(&mut Iterator::map(kernels, |it: TracedKernel| it.launch_id()));
        let parts: Vec<PackedRows<2>> = parts.into_par_iter().map(join_part).collect();
        let mut kernels = PackedRows::default();
        parts.into_iter().for_each(|part| kernels.append(part));
        let copies = trace.copies.iter().map(MemoryOp::launch_id);
        let copies = Arc::new(Joins(join(&mut { copies })));
        let graphs = trace.graphs.iter().map(GraphLaunch::launch_id);
        let graphs = Arc::new(Joins(join(&mut { graphs })));
        let kernels = Arc::new(Joins(kernels));
        let mut capture =
            Self { trace, stages, kernels, copies, graphs, framework: None, outside: "" };
        if !trace.framework.is_empty() || !trace.graph_captures.graphs.is_empty() {
            capture.framework = Some(Arc::new(FrameworkIndex::of(&capture)));
        }
        capture
    }

    /// Takes steps out of their decodes, and joins all work to its stage again.
    pub fn take_out(&mut self, steps: &[StepInside]) {
        self.stages.take_out(steps);
        let joined = |joins: &Joins| -> Arc<Joins> {
            let mut calls = self.trace.cuda_calls.reader();
            let mut open = self.stages.cursor();
            let join = |it: Join| -> [i64; 2] {
                // Work without a call has no stage instance.
                if !it.has_call() {
                    return [it.call.into(), it.instance.into()];
                }
                [it.call.into(), open.at_call(&calls.get(it.call)).into()]
            };
            Arc::new(Joins(joins.iter().map(join).collect()))
        };
        let all = [&self.kernels, &self.copies, &self.graphs].map(|it| joined(it));
        [self.kernels, self.copies, self.graphs] = all;
    }

    /// The same with a label for work launched outside all stages, which has none by default.
    pub fn with_outside(self, outside: &'static str) -> Self {
        Self { outside, ..self }
    }

    /// The same capture under the present labels of the stages, without operators of a framework.
    pub fn as_recorded(&self) -> Self {
        Self {
            trace: self.trace,
            stages: self.stages.clone(),
            kernels: self.kernels.clone(),
            copies: self.copies.clone(),
            graphs: self.graphs.clone(),
            framework: None,
            outside: "",
        }
    }

    /// The same timeline under other stages. `instance` maps the present instance, the process and
    /// the start of each piece of work to its instance in `stages`.
    pub fn restaged(&self, stages: OpenStages, instance: impl Fn(u32, i64, i64) -> u32) -> Self {
        let trace = self.trace;
        let joins = |joins: &Joins, work: &mut dyn Iterator<Item = (i64, i64)>| {
            let join = |(join, (place, start_ns)): (Join, (i64, i64))| {
                let instance = instance(join.instance, process_of(place), start_ns);
                [join.call.into(), instance.into()]
            };
            Arc::new(Joins(joins.iter().zip(work).map(join).collect()))
        };
        let mut kernels = trace.kernels.iter().map(|it| (it.global_pid, it.start_ns));
        let mut copies = trace.copies.iter().map(|it| (it.global_pid, it.start_ns));
        let mut graphs = trace.graphs.iter().map(|it| (it.global_pid, it.start_ns));
        Self {
            trace,
            kernels: joins(&self.kernels, &mut kernels),
            copies: joins(&self.copies, &mut copies),
            graphs: joins(&self.graphs, &mut graphs),
            stages,
            framework: self.framework.clone(),
            outside: self.outside,
        }
    }

    /// All kernels in the order of the timeline.
    #[inline]
    pub fn kernels(&self) -> impl Iterator<Item = (TracedKernel<'a>, Join)> + Clone + '_ {
        self.trace.kernels.iter().zip(self.kernels.iter())
    }

    /// The same, each kernel after its index into the timeline's kinds of launches.
    #[inline]
    pub fn kernels_by_kind(
        &self,
    ) -> impl Iterator<Item = ((u32, TracedKernel<'a>), Join)> + Clone + '_ {
        self.trace.kernels.with_kinds().zip(self.kernels.iter())
    }

    pub fn copies(&self) -> impl Iterator<Item = (&'a MemoryOp, Join)> + Clone + '_ {
        self.trace.copies.iter().zip(self.copies.iter())
    }

    /// Launches of whole-traced graphs.
    pub fn graphs(&self) -> impl Iterator<Item = (&'a GraphLaunch, Join)> + Clone + '_ {
        self.trace.graphs.iter().zip(self.graphs.iter())
    }

    pub fn kernel(&self, at: usize) -> (TracedKernel<'a>, Join) {
        (self.trace.kernels.get(at), self.kernels.get(at))
    }

    pub fn copy(&self, at: usize) -> (&'a MemoryOp, Join) {
        (&self.trace.copies[at], self.copies.get(at))
    }

    pub fn graph(&self, at: usize) -> (&'a GraphLaunch, Join) {
        (&self.trace.graphs[at], self.graphs.get(at))
    }

    /// The joins of all kernels.
    pub fn kernel_joins(&self) -> impl Iterator<Item = Join> + Clone + '_ {
        self.kernels.iter()
    }

    pub fn copy_joins(&self) -> impl Iterator<Item = Join> + Clone + '_ {
        self.copies.iter()
    }

    pub fn graph_joins(&self) -> impl Iterator<Item = Join> + Clone + '_ {
        self.graphs.iter()
    }

    /// Reads the launches of one kind that run, each with the index of its call and the instance of
    /// a stage open at its start.
    pub fn each_running(&self, wanted: CallKind, mut read: impl FnMut(usize, &ApiCall, u32)) {
        let mut open = self.stages.cursor();
        each_running(self.trace, wanted, |at, call| read(at, call, open.at_call(call)));
    }

    /// The stage label of an instance; [`Self::outside`] outside all stages.
    pub fn stage(&self, instance: u32) -> &str {
        self.stage_label(self.stage_number(instance))
    }

    /// The same of work by its join; `None` if its call is not recorded.
    pub fn stage_of(&self, join: Join) -> Option<&str> {
        join.has_call().then(|| self.stage(join.instance))
    }

    /// Stage number for tables: 0 outside all stages, else label index plus one; the last number is
    /// for work outside the included ranges.
    #[inline]
    pub fn stage_number(&self, instance: u32) -> usize {
        match instance {
            EXCLUDED => self.stages.labels.len() + 1,
            _ => self.stages.instances.get(instance as usize).map_or(0, |it| it.label + 1),
        }
    }

    /// The label of a stage number.
    pub fn stage_label(&self, number: usize) -> &str {
        match number.checked_sub(1) {
            None => self.outside,
            Some(label) => self.stages.labels.get(label).map_or(OUTSIDE, String::as_str),
        }
    }

    /// Count of stage numbers.
    pub fn stage_count(&self) -> usize {
        self.stages.labels.len() + 2
    }
}
