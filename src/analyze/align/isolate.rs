//! The kernels of one operation in one capture, instance by instance: by range, by names, or by the other side's sequence.
//!
//! An instance is one layer in one forward. Kernels of replayed graphs belong to the range that was open at capture, once per replay.

use std::collections::{HashMap, HashSet};

use super::{
    names::{full_name, glob, has},
    period::{occurrences, period},
    settings::Operation,
};
use crate::{
    analyze::{
        coverage::{self, Kind},
        device_time::captured,
        kernels::WARMUP,
        launches::{Cursor, Launches},
        scopes::{NONE, nests},
    },
    trace::nsys::NsysTrace,
};

/// One instance of the operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// Index into [`Isolated::forms`].
    pub form: u32,
    /// Its kernels' time, nanoseconds.
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
    pub units: Vec<Unit>,
    /// Distinct sequences of kinds of launches.
    pub forms: Vec<Vec<u32>>,
    /// Time by kind of launch, nanoseconds.
    pub kind_ns: HashMap<u32, i64>,
    pub kernels: u64,
    pub replayed: u64,
    /// Launches of single kernels by the operation, and those whose kernels the capture holds.
    pub launched: u64,
    pub recorded: u64,
    /// Launches of graphs in the stage, and those without a single kernel.
    pub graphs: u64,
    pub graphs_empty: u64,
}

/// A kernel of an instance: where it comes in the instance's order, its kind, its time.
type Step = (u32, u32, i64);

impl Isolated {
    fn add(&mut self, mut steps: Vec<Step>, known: &mut HashMap<Vec<u32>, u32>) {
        steps.sort_unstable_by_key(|step| step.0);
        let ns = steps.iter().map(|step| step.2).sum();
        for (_, kind, ns) in &steps {
            *self.kind_ns.entry(*kind).or_default() += ns;
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
        None => launches.stage(instance) != WARMUP,
    }
}

/// Finds `operation` in a capture. `names` numbers each kind of launch; `needle` is the other side's sequence of such numbers.
pub fn isolate(trace: &NsysTrace, operation: &Operation, stage: Option<&str>, names: &[u32], needle: Option<&[u32]>) -> Isolated {
    let launches = Launches::of(trace);
    let here = |instance: u32| counts(trace, &launches, stage, instance);
    let mut found = match operation {
        Operation::Range { name, domain } => by_range(trace, &launches, (name, domain.as_deref()), &here),
        Operation::Kernels(patterns) => {
            let kinds = trace.kernels.kinds().iter();
            let full = |kind: &crate::trace::kernel::LaunchKind| full_name(trace, kind.full_name, kind.name).to_owned();
            let wanted: Vec<bool> = kinds.map(|kind| patterns.iter().any(|it| has(it, &full(kind)))).collect();
            let how = format!("kernels named like {}, cut where they repeat", patterns.join(", "));
            by_sequence(trace, &launches, &here, &wanted, names, (None, how))
        }
        Operation::Sequence => {
            let all = vec![true; trace.kernels.kinds().len()];
            let how = if needle.is_some() { "the mock's sequence of kernels, looked for in the timeline" } else { "all kernels, cut where they repeat" };
            by_sequence(trace, &launches, &here, &all, names, (needle, how.to_owned()))
        }
    };
    graphs(trace, &launches, &here, &mut found);
    found
}

fn by_range(trace: &NsysTrace, launches: &Launches, (name, domain): (&str, Option<&str>), here: &impl Fn(u32) -> bool) -> Isolated {
    let wanted = |range: &crate::trace::range::Range| glob(name, &range.name) && domain.is_none_or(|it| it == range.domain);
    let nests: Vec<_> = nests(trace, wanted).into_iter().collect();
    let place = |thread: i64| nests.binary_search_by_key(&thread, |(thread, _)| *thread).ok();
    let mut found = Isolated { how: format!("ranges named {name}"), ..Isolated::default() };
    let captured = captured(&trace.graph_nodes);
    let mut units: HashMap<(usize, u32, u32), usize> = HashMap::new();
    let mut steps: Vec<Vec<Step>> = Vec::new();
    let mut filled: HashSet<u32> = HashSet::new();
    let mut cursor = Cursor::default();
    for (at, (kernel, (call, instance))) in trace.kernels.iter().zip(&launches.kernels).enumerate() {
        if *call == NONE || !here(*instance) {
            continue;
        }
        let made = kernel.graph_node.and_then(|node| captured.get(&node));
        let (thread, t, replay, order) = match made {
            Some(made) => (made.global_tid, made.at_ns, *call, at as u32),
            None => {
                let launch = trace.cuda_calls.get(*call as usize);
                (launch.global_tid, launch.start_ns, NONE, *call)
            }
        };
        let Some(thread) = place(thread) else { continue };
        let entry = match made {
            Some(_) => nests[thread].1.segments.at(t, &mut 0),
            None => cursor.at(nests[thread].0, t, |_| Some(&nests[thread].1.segments)),
        };
        if entry == NONE {
            continue;
        }
        let unit = *units.entry((thread, entry, replay)).or_insert_with(|| {
            steps.push(Vec::new());
            steps.len() - 1
        });
        filled.insert(nests[thread].1.entries[entry as usize].0);
        found.replayed += u64::from(kernel.graph_node.is_some());
        steps[unit].push((order, trace.kernels.kind(at), kernel.ns()));
    }
    let mut known = HashMap::new();
    steps.into_iter().for_each(|steps| found.add(steps, &mut known));

    let mut seen = HashSet::new();
    for (thread, nest) in &nests {
        for (range, _) in &nest.entries {
            let it = &trace.ranges[*range as usize];
            let instance = launches.stages.on(*thread).map_or(NONE, |it_on| it_on.at(it.start_ns, &mut 0));
            if it.push_pop && it.global_tid != *thread || !seen.insert(*range) {
                continue;
            }
            found.ranges += 1;
            if here(instance) {
                found.counted += 1;
                found.empty += u64::from(!filled.contains(range));
            }
        }
    }
    let held: HashSet<u32> = launches.kernels.iter().map(|(call, _)| *call).collect();
    let mut cursors = (Cursor::default(), Cursor::default());
    launch_calls(trace, |at, thread, t| {
        let Some(nest) = place(thread) else { return };
        if cursors.0.at(thread, t, |_| Some(&nests[nest].1.segments)) != NONE
            && here(cursors.1.at(thread, t, |thread| launches.stages.on(thread)))
        {
            found.launched += 1;
            found.recorded += u64::from(held.contains(&at));
        }
    });
    found
}

/// Every launch of a kernel that is to run at once, by call, thread and time.
fn launch_calls(trace: &NsysTrace, mut each: impl FnMut(u32, i64, i64)) {
    let kind = |name: u32| coverage::kind(trace.strings.get(name as usize).map_or("", String::as_str));
    let kinds: Vec<Kind> = trace.cuda_calls.sites().iter().map(|(name, _)| kind(*name)).collect();
    let mut capturing = HashSet::new();
    for at in 0..trace.cuda_calls.len() {
        let kind = &kinds[trace.cuda_calls.site(at) as usize];
        if matches!(kind, Kind::Other | Kind::Graph) {
            continue;
        }
        let call = trace.cuda_calls.get(at);
        match kind {
            Kind::BeginCapture => _ = capturing.insert(call.global_tid),
            Kind::EndCapture => _ = capturing.remove(&call.global_tid),
            _ if !capturing.contains(&call.global_tid) => each(at as u32, call.global_tid, call.start_ns),
            _ => {}
        }
    }
}

fn by_sequence(
    trace: &NsysTrace,
    launches: &Launches,
    here: &impl Fn(u32) -> bool,
    wanted: &[bool],
    names: &[u32],
    (needle, how): (Option<&[u32]>, String),
) -> Isolated {
    let mut stages: Vec<(u32, Vec<Step>)> = Vec::new();
    let mut index: HashMap<u32, usize> = HashMap::new();
    let mut found = Isolated { how, ..Isolated::default() };
    for (at, (kernel, (call, instance))) in trace.kernels.iter().zip(&launches.kernels).enumerate() {
        let kind = trace.kernels.kind(at);
        if *call != NONE && here(*instance) && wanted[kind as usize] {
            let stage = *index.entry(*instance).or_insert_with(|| {
                stages.push((*instance, Vec::new()));
                stages.len() - 1
            });
            found.replayed += u64::from(kernel.graph_node.is_some());
            stages[stage].1.push((at as u32, kind, kernel.ns()));
        }
    }
    let mut known = HashMap::new();
    for (_, steps) in stages {
        let keys: Vec<u32> = steps.iter().map(|step| names[step.1 as usize]).collect();
        match needle {
            Some(needle) => {
                for at in occurrences(&keys, needle) {
                    found.add(steps[at..at + needle.len()].to_vec(), &mut known);
                }
            }
            None => steps.chunks(period(&keys).max(1)).for_each(|steps| found.add(steps.to_vec(), &mut known)),
        }
    }
    found.counted = found.units.len() as u64;
    found.ranges = found.counted;
    let held: HashSet<u32> = launches.kernels.iter().map(|(call, _)| *call).collect();
    let mut cursor = Cursor::default();
    launch_calls(trace, |at, thread, t| {
        if here(cursor.at(thread, t, |thread| launches.stages.on(thread))) {
            found.launched += 1;
            found.recorded += u64::from(held.contains(&at));
        }
    });
    found
}

fn graphs(trace: &NsysTrace, launches: &Launches, here: &impl Fn(u32) -> bool, found: &mut Isolated) {
    let is_graph = |name: u32| matches!(coverage::kind(trace.strings.get(name as usize).map_or("", String::as_str)), Kind::Graph);
    let sites: Vec<bool> = trace.cuda_calls.sites().iter().map(|(name, _)| is_graph(*name)).collect();
    if !sites.contains(&true) {
        return;
    }
    let held: HashSet<u32> = launches.kernels.iter().map(|(call, _)| *call).collect();
    let mut cursor = Cursor::default();
    for at in (0..trace.cuda_calls.len()).filter(|at| sites[trace.cuda_calls.site(*at) as usize]) {
        let call = trace.cuda_calls.get(at);
        if here(cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread))) {
            found.graphs += 1;
            found.graphs_empty += u64::from(!held.contains(&(at as u32)));
        }
    }
}
