//! The kernels of one operation in one capture, instance by instance: by range, by names, or by the other side's sequence.
//!
//! An instance is one layer in one forward. Kernels of replayed graphs belong to the range that was open at capture, once per replay.

use std::collections::HashMap;

use super::{
    cut::{Cut, by_sequence},
    launched::Launched,
    names::{full_name, glob, has},
    ranged::by_range,
    settings::Operation,
};
use crate::{
    analyze::{
        coverage::graph_coverage,
        device_time::is_operator,
        kernels::WARMUP,
        launches::Launches,
        scopes::{EXCLUDED, NONE},
    },
    trace::{kernel::LaunchKind, nsys::NsysTrace, range::Range},
};

/// One instance of the operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Index into [`Isolated::forms`].
    pub form: u32,
    /// Its kernels' time, nanoseconds.
    pub ns: i64,
}

/// Launches of one kind in one instance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KindTime {
    /// Index into [`Isolated::units`].
    pub unit: u32,
    pub calls: u32,
    pub ns: i64,
}

/// What was found of the operation.
#[derive(Debug, Clone, Default)]
pub struct Isolated {
    /// How it was found, for readers.
    pub how: String,
    /// Ranges of the operation in the whole capture.
    pub ranges: u64,
    /// Of those, in the stage that counts, and without a single kernel there.
    pub counted: u64,
    pub empty: u64,
    /// What the way of finding it cannot tell.
    pub doubt: Option<String>,
    pub units: Vec<Unit>,
    /// Distinct sequences of kinds of launches.
    pub forms: Vec<Vec<u32>>,
    /// By kind of launch, its time in each instance that has it, in their order.
    pub kind_times: HashMap<u32, Vec<KindTime>>,
    pub kernels: u64,
    pub replayed: u64,
    /// Launches of single kernels by the operation, and those whose kernels the capture holds.
    pub launched: u64,
    pub recorded: u64,
    /// The same of the whole capture, graphs included.
    pub whole: (u64, u64),
    /// Times that a stage that counts ran with kernels of the operation.
    pub stretches: u64,
    /// Launches of graphs in the stage, and those without a single kernel.
    pub graphs: u64,
    pub graphs_empty: u64,
}

/// A kernel of an instance: where it comes in the instance's order, its kind, its time.
pub type Step = (u32, u32, i64);

impl Isolated {
    /// Adds one instance; `known` numbers its sequence.
    pub fn add(&mut self, mut steps: Vec<Step>, known: &mut HashMap<Vec<u32>, u32>) {
        // Stable: what one call launched stays in the order in which it ran.
        steps.sort_by_key(|step| step.0);
        let ns = steps.iter().map(|step| step.2).sum();
        let unit = self.units.len() as u32;
        for (_, kind, ns) in &steps {
            let times = self.kind_times.entry(*kind).or_default();
            match times.last_mut().filter(|it| it.unit == unit) {
                Some(it) => (it.calls, it.ns) = (it.calls + 1, it.ns + ns),
                None => times.push(KindTime { unit, calls: 1, ns: *ns }),
            }
        }
        self.kernels += steps.len() as u64;
        let form: Vec<u32> = steps.into_iter().map(|step| step.1).collect();
        let next = self.forms.len() as u32;
        let form = *known.entry(form).or_insert_with_key(|form| {
            self.forms.push(form.clone());
            next
        });
        self.units.push(Unit { form, ns });
    }

    /// The sequence that most instances have; the first of equals.
    pub fn usual(&self) -> &[u32] {
        let mut counts = vec![0u64; self.forms.len()];
        self.units.iter().for_each(|unit| counts[unit.form as usize] += 1);
        let most = (0..counts.len()).max_by_key(|at| (counts[*at], std::cmp::Reverse(*at)));
        most.map_or(&[], |at| &self.forms[at])
    }
}

/// Says whether an instance of a stage counts.
fn counts(trace: &NsysTrace, launches: &Launches, stage: Option<&str>, instance: u32) -> bool {
    match stage {
        Some(stage) => launches.stage(instance) == stage,
        None if instance == NONE => trace.rules.within.is_empty(),
        None if instance == EXCLUDED => false,
        None => launches.stage(instance) != WARMUP,
    }
}

/// Finds `operation` in a capture. `names` numbers each kind of launch; `needle` is the other side's sequence of such numbers.
pub fn isolate(trace: &NsysTrace, operation: &Operation, stage: Option<&str>, names: &[u32], needle: Option<&[u32]>) -> Isolated {
    let launches = Launches::of(trace);
    let launched = Launched::of(trace, &launches);
    let here = |instance: u32| counts(trace, &launches, stage, instance);
    let mut found = match operation {
        Operation::Range { name, domain } => {
            let wanted = |it: &Range| glob(name, &it.name) && domain.as_ref().is_none_or(|domain| *domain == it.domain);
            by_range(trace, &launches, &launched, &wanted, &here)
        }
        Operation::Operator(path) => {
            let is_operator = is_operator(trace);
            by_range(trace, &launches, &launched, &|it: &Range| is_operator(it) && glob(path, &it.name), &here)
        }
        Operation::Kernels(patterns) => {
            let full = |kind: &LaunchKind| full_name(trace, kind.full_name, kind.name).to_owned();
            let wanted = |kind: &LaunchKind| patterns.iter().any(|it| has(it, &full(kind)));
            let kinds: Vec<bool> = trace.kernels.kinds().iter().map(wanted).collect();
            by_sequence(trace, &launches, &here, &kinds, names, needle.map_or(Cut::Repeats, Cut::Starts))
        }
        Operation::Sequence => {
            let all = vec![true; trace.kernels.kinds().len()];
            by_sequence(trace, &launches, &here, &all, names, needle.map_or(Cut::Repeats, Cut::Only))
        }
    };
    found.how = how(operation, needle.is_some());
    (found.graphs, found.graphs_empty) = launched.graphs(trace, &launches, &here);
    if matches!(operation, Operation::Kernels(_) | Operation::Sequence) {
        (found.launched, found.recorded) = launched.kernels(trace, &launches, |_, _, instance| here(instance));
    }
    let (single, graphs) = (launched.kernels(trace, &launches, |_, _, _| true), graph_coverage(trace));
    found.whole = (single.0 + graphs.0, single.1 + graphs.1);
    found
}

/// How an operation is looked for, for readers.
fn how(operation: &Operation, other: bool) -> String {
    match operation {
        Operation::Range { name, domain: Some(domain) } => format!("ranges named {name} of the domain {domain}"),
        Operation::Range { name, domain: None } => format!("ranges named {name}"),
        Operation::Operator(path) => format!("operators at {path}"),
        Operation::Kernels(patterns) if other => {
            format!("kernels named like {}, cut where the mock's begin", patterns.join(", "))
        }
        Operation::Kernels(patterns) => format!("kernels named like {}, cut where they repeat", patterns.join(", ")),
        Operation::Sequence if other => "the mock's sequence of kernels, looked for in the timeline".into(),
        Operation::Sequence => "all kernels, cut where they repeat".into(),
    }
}
