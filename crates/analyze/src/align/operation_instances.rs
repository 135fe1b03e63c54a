//! The kernels of one operation in one capture, per instance: isolated by range, by names, or by
//! the other side's sequence.
//!
//! An instance is one layer in one forward. Kernels of replayed graphs belong to the range that was
//! open at their capture, once per replay.

use std::collections::HashMap;

use llmprof_core::trace::{kernel::LaunchKind, range::Range, timeline::Timeline};

use super::{
    launched::CaptureLaunches,
    names::{full_name, glob, has},
    ranged::by_range,
    settings::Operation,
};
use crate::{
    align::segment_by_sequence::{InstanceStart, by_sequence},
    kernels::WARMUP,
    stages::coverage::graph_coverage,
    timeline::{
        capture::Capture,
        device_time::OperatorRule,
        open_ranges::{EXCLUDED, NONE},
    },
};

/// One instance of the operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OperationInstance {
    /// Index into [`IsolatedOperation::sequences`].
    pub sequence: u32,
    /// Time of its kernels, nanoseconds.
    pub ns: i64,
}

/// Launches of one kind in one instance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KindTime {
    /// Index into [`IsolatedOperation::instances`].
    pub instance: u32,
    pub calls: u32,
    pub ns: i64,
}

/// An operation isolated from one capture.
#[derive(Debug, Clone, Default)]
pub struct IsolatedOperation {
    /// The method of isolation, for reports.
    pub isolated_by: String,
    /// Ranges of the operation in the whole capture.
    pub ranges: u64,
    /// Ranges in the counted stage, and how many of these have no kernel there.
    pub counted: u64,
    pub empty: u64,
    /// Uncertainty of the method of isolation.
    pub caveat: Option<String>,
    /// Share of the kernel time outside all instances, percent, if a sequence cuts them.
    pub outside_pct: Option<f64>,
    pub instances: Vec<OperationInstance>,
    /// Distinct sequences of kinds of launches.
    pub sequences: Vec<Vec<u32>>,
    /// By kind of launch, its time in each instance that has it, in their order.
    pub kind_times: HashMap<u32, Vec<KindTime>>,
    pub kernels: u64,
    pub replayed: u64,
    /// Launches of single kernels by the operation, and how many have a recorded kernel.
    pub launched: u64,
    pub recorded: u64,
    /// The same for the whole capture, graphs included.
    pub capture_launches: (u64, u64),
    /// Counted instances of the stage with kernels of the operation.
    pub stage_instances: u64,
    /// Graph launches in the stage, and how many have no kernel.
    pub graphs: u64,
    pub graphs_empty: u64,
}

/// A kernel of an instance: its position in the instance, its kind, its time.
pub type InstanceKernel = (u32, u32, i64);

impl IsolatedOperation {
    /// Adds one instance; `known` numbers its sequence.
    pub fn add(&mut self, mut kernels: Vec<InstanceKernel>, known: &mut HashMap<Vec<u32>, u32>) {
        // Stable: kernels of one call stay in the order in which they ran.
        kernels.sort_by_key(|kernel| kernel.0);
        let ns = kernels.iter().map(|kernel| kernel.2).sum();
        let instance = self.instances.len() as u32;
        for (_, kind, ns) in &kernels {
            let times = self.kind_times.entry(*kind).or_default();
            match times.last_mut().filter(|it| it.instance == instance) {
                Some(it) => (it.calls, it.ns) = (it.calls + 1, it.ns + ns),
                None => times.push(KindTime { instance, calls: 1, ns: *ns }),
            }
        }
        self.kernels += kernels.len() as u64;
        let sequence: Vec<u32> = kernels.into_iter().map(|kernel| kernel.1).collect();
        let next = self.sequences.len() as u32;
        let sequence = *known.entry(sequence).or_insert_with_key(|sequence| {
            self.sequences.push(sequence.clone());
            next
        });
        self.instances.push(OperationInstance { sequence, ns });
    }

    /// The most frequent sequence of the instances; the first of equals.
    pub fn usual(&self) -> &[u32] {
        let mut counts = vec![0u64; self.sequences.len()];
        self.instances.iter().for_each(|it| counts[it.sequence as usize] += 1);
        let usual = (0..counts.len()).max_by_key(|at| (counts[*at], std::cmp::Reverse(*at)));
        usual.map_or(&[], |at| &self.sequences[at])
    }
}

/// Returns whether an instance of a stage is counted.
fn is_counted(capture: &Capture, stage: Option<&str>, instance: u32) -> bool {
    match stage {
        Some(stage) => capture.stage(instance) == stage,
        None if instance == NONE => capture.trace.rules.include_ranges.is_empty(),
        None if instance == EXCLUDED => false,
        None => capture.stage(instance) != WARMUP,
    }
}

/// A capture, and which of its launches have a kernel.
pub struct AlignedCapture<'a> {
    pub capture: Capture<'a>,
    launched: CaptureLaunches,
}

impl<'a> AlignedCapture<'a> {
    pub fn of(trace: &'a Timeline) -> Self {
        let capture = Capture::of(trace);
        let launched = CaptureLaunches::of(&capture);
        Self { capture, launched }
    }
}

/// Isolates `operation` in a capture. `names` numbers each kind of launch; `needle` is the other
/// side's sequence of such numbers.
pub fn isolate(
    AlignedCapture { capture, launched }: &AlignedCapture,
    operation: &Operation,
    stage: Option<&str>,
    names: &[u32],
    needle: Option<&[u32]>,
) -> IsolatedOperation {
    let counted = |instance: u32| is_counted(capture, stage, instance);
    let mut found = match operation {
        Operation::Range { name, domain } => {
            let wanted = |it: &Range| {
                glob(name, &it.name) && domain.as_ref().is_none_or(|domain| *domain == it.domain)
            };
            by_range(capture, launched, &wanted, &counted)
        }
        Operation::Operator(path) => {
            let rule = OperatorRule::of(capture.trace);
            let wanted = |it: &Range| rule.selects(it.label()) && glob(path, &it.name);
            by_range(capture, launched, &wanted, &counted)
        }
        Operation::Kernels(patterns) => {
            let full =
                |kind: &LaunchKind| full_name(capture.trace, kind.full_name, kind.name).to_owned();
            let wanted = |kind: &LaunchKind| patterns.iter().any(|it| has(it, &full(kind)));
            let kinds: Vec<bool> = capture.trace.kernels.kinds().iter().map(wanted).collect();
            by_sequence(
                capture,
                &counted,
                &kinds,
                names,
                needle.map_or(InstanceStart::Repeats, InstanceStart::Starts),
            )
        }
        Operation::Sequence => {
            let all = vec![true; capture.trace.kernels.kinds().len()];
            by_sequence(
                capture,
                &counted,
                &all,
                names,
                needle.map_or(InstanceStart::Repeats, InstanceStart::Only),
            )
        }
    };
    found.isolated_by = method(operation, needle.is_some());
    (found.graphs, found.graphs_empty) = launched.graphs(capture, &counted);
    if matches!(operation, Operation::Kernels(_) | Operation::Sequence) {
        (found.launched, found.recorded) =
            launched.kernels(capture, |_, _, instance| counted(instance));
    }
    let (single, graphs) =
        (launched.kernels(capture, |_, _, _| true), graph_coverage(capture.trace));
    found.capture_launches = (single.0 + graphs.0, single.1 + graphs.1);
    found
}

/// The method of isolation, for reports.
fn method(operation: &Operation, other: bool) -> String {
    match operation {
        Operation::Range { name, domain: Some(domain) } => {
            format!("ranges named {name} in the domain {domain}")
        }
        Operation::Range { name, domain: None } => format!("ranges named {name}"),
        Operation::Operator(path) => format!("operators at {path}"),
        Operation::Kernels(patterns) if other => {
            format!("kernels named like {}, cut at the mock's usual sequence", patterns.join(", "))
        }
        Operation::Kernels(patterns) => {
            format!("kernels named like {}, cut where they repeat", patterns.join(", "))
        }
        Operation::Sequence if other => {
            "occurrences of the mock's usual sequence of kernels in the timeline".into()
        }
        Operation::Sequence => "all kernels, cut where they repeat".into(),
    }
}
