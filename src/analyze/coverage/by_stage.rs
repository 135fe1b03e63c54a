//! Coverage of each stage of any capture: launches whose kernels must be recorded, and those that are.
//!
//! A stage that lost kernels keeps its recorded kernels as a list; what would be computed from all of
//! them (busy, idle, shares) is withheld. Not a loss: launches into a stream that is being captured,
//! graphs that were recorded as a whole, and kernels cut off by either end of the capture.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{COMPLETE_PCT, Kind, graph_sizes, kind};
use crate::{
    analyze::{
        Analysis,
        device_time::captured,
        interval::Cover,
        kernels::OUTSIDE,
        launches::{Cursor, Launches},
        scopes::NONE,
        stats::percent,
    },
    run::{Finding, Severity},
    trace::nsys::{NsysTrace, process_of},
};

/// Id of the finding on a stage that lost kernels; a run with it is partial.
pub const KERNELS_LOST: &str = "kernels_lost";
/// Id of the finding on kernels that cannot be attributed to a launch.
pub const KERNELS_UNATTRIBUTED: &str = "kernels_unattributed";
/// Launches that a GPU queues at most: a capture that ends cuts off no more of a process. CUDA's
/// software queue holds 1,024 entries by default, after which a launch blocks.
const QUEUED: u64 = 1024;

/// Launches of one stage, and what the capture holds of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StageCoverage {
    /// Empty outside every stage.
    pub stage: String,
    /// Kernels that the traced calls launched, those of graphs included; a graph that was recorded as a whole is one.
    pub launched: u64,
    /// Of those, kernels in the capture.
    pub recorded: u64,
    /// Launches of graphs that were recorded as a whole: their kernels are not in the capture.
    pub whole_graphs: u64,
    /// Kernels of the stage with their launch.
    pub attributed: u64,
    /// Kernels that ran while the stage was open and whose launch is not in the capture.
    pub unattributed: u64,
    /// Whether a process of the stage ran kernels and none of its launches was traced.
    pub untraced: bool,
}

impl StageCoverage {
    /// Recorded over launched, percent; `None` when nothing was launched.
    pub fn pct(&self) -> Option<f64> {
        percent(self.recorded as f64, self.launched as f64)
    }

    /// Whether kernels that were launched are missing.
    pub fn lost(&self) -> bool {
        self.pct().is_some_and(|pct| pct < COMPLETE_PCT)
    }

    /// Whether kernels of the stage may be counted elsewhere, because their launches are missing.
    pub fn unknown(&self) -> bool {
        let ran = self.attributed + self.unattributed;
        self.untraced || percent(self.attributed as f64, ran as f64).is_some_and(|pct| pct < COMPLETE_PCT)
    }

    /// Whether figures over all kernels of the stage can be given.
    pub fn complete(&self) -> bool {
        !self.lost() && !self.unknown()
    }
}

/// Counts a capture by stage, in the order of their numbers.
pub fn by_stage(trace: &NsysTrace, launches: &Launches) -> Vec<StageCoverage> {
    let mut counted = vec![StageCoverage::default(); launches.numbers()];
    for launch in expected(trace, launches) {
        let stage = &mut counted[launches.stage_number(launch.instance)];
        stage.launched += launch.kernels;
        stage.recorded += launch.recorded;
        stage.whole_graphs += u64::from(launch.whole);
    }
    attribution(trace, launches, &mut counted);
    for (number, stage) in counted.iter_mut().enumerate() {
        stage.stage = launches.numbered(number).to_owned();
    }
    counted.retain(|it| it.stage != OUTSIDE && *it != StageCoverage { stage: it.stage.clone(), ..Default::default() });
    counted
}

/// A launch, and the kernels that it must have run.
struct Launch {
    instance: u32,
    kernels: u64,
    recorded: u64,
    whole: bool,
}

/// Launches of a process, to find those that the end of the capture cut off.
#[derive(Default)]
struct Tail {
    /// When the last call that waits for the device began.
    synced: i64,
    /// The last launch with a kernel; a process without any lost them all.
    held: Option<usize>,
    /// Kernels after that which are not recorded.
    missing: u64,
}

/// Every launch that ran kernels, without those that the end of the capture cut off.
fn expected(trace: &NsysTrace, launches: &Launches) -> Vec<Launch> {
    let calls = &trace.cuda_calls;
    let names: Vec<&str> = calls.sites().iter().map(|(name, _)| trace.strings.get(*name as usize).map_or("", |it| it)).collect();
    let kinds: Vec<Kind> = names.iter().map(|name| kind(name)).collect();
    let syncs: Vec<bool> = names.iter().map(|name| synchronises(name)).collect();
    let mut held = vec![false; calls.len()];
    let both = launches.kernels.iter().chain(&launches.copies);
    both.filter(|(call, _)| *call != NONE).for_each(|(call, _)| held[*call as usize] = true);
    let graphs = graph_launches(trace, launches, &kinds, &held);

    let mut capturing = capturing_at_start(trace, &kinds);
    let mut tails: HashMap<i64, Tail> = HashMap::new();
    let mut found: Vec<(usize, i64, i64, Launch)> = Vec::new();
    let mut cursor = Cursor::default();
    for (at, held) in held.iter().copied().enumerate() {
        let site = calls.site(at) as usize;
        let is_launch = matches!(kinds[site], Kind::Kernel | Kind::Graph);
        if matches!(kinds[site], Kind::Other) && !syncs[site] {
            continue;
        }
        let call = calls.get(at);
        match kinds[site] {
            Kind::BeginCapture => _ = capturing.insert(call.global_tid),
            Kind::EndCapture => _ = capturing.remove(&call.global_tid),
            _ => {}
        }
        let process = process_of(call.global_tid);
        let tail = tails.entry(process).or_insert(Tail { synced: i64::MIN, ..Tail::default() });
        if syncs[site] {
            tail.synced = call.start_ns;
        }
        if !is_launch || capturing.contains(&call.global_tid) {
            continue;
        }
        let (kernels, recorded, whole) = match kinds[site] {
            Kind::Graph => graphs.get(&at).copied().unwrap_or_default(),
            _ => (1, u64::from(held), false),
        };
        if held || whole {
            (tail.held, tail.missing) = (Some(at), 0);
        }
        tail.missing += kernels - recorded;
        let instance = cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread));
        found.push((at, process, call.start_ns, Launch { instance, kernels, recorded, whole }));
    }
    // A launch that no later call waited for may still have been queued when the capture ended.
    let cut = |(at, process, start, launch): &(usize, i64, i64, Launch)| {
        let tail = &tails[process];
        tail.held.is_some_and(|held| *at >= held)
            && *start > tail.synced
            && tail.missing <= QUEUED
            && launch.recorded < launch.kernels
    };
    found.iter_mut().filter(|it| cut(it)).for_each(|(.., launch)| launch.kernels = launch.recorded);
    found.into_iter().map(|(.., launch)| launch).collect()
}

/// Whether a call returns only when the device has done what was launched before it.
fn synchronises(name: &str) -> bool {
    let Some(name) = name.strip_prefix("cuda").or_else(|| name.strip_prefix("cu")) else { return false };
    name.contains("Synchronize") || (name.starts_with("Memcpy") && !name.contains("Async"))
}

/// Threads whose stream was being captured when the capture of calls began.
fn capturing_at_start(trace: &NsysTrace, kinds: &[Kind]) -> HashSet<i64> {
    let mut first: HashMap<i64, bool> = HashMap::new();
    if kinds.iter().any(|kind| matches!(kind, Kind::EndCapture)) {
        for at in 0..trace.cuda_calls.len() {
            let site = trace.cuda_calls.site(at) as usize;
            if let ends @ (Kind::BeginCapture | Kind::EndCapture) = &kinds[site] {
                let thread = trace.cuda_calls.sites()[site].1;
                first.entry(thread).or_insert(matches!(ends, Kind::EndCapture));
            }
        }
    }
    first.into_iter().filter(|(_, ends)| *ends).map(|(thread, _)| thread).collect()
}

/// Kernels that each launch of a graph was to run, those recorded, and whether it was recorded as a
/// whole; by call.
fn graph_launches(trace: &NsysTrace, launches: &Launches, kinds: &[Kind], held: &[bool]) -> HashMap<usize, (u64, u64, bool)> {
    let calls = &trace.cuda_calls;
    let graphs: Vec<usize> = (0..calls.len()).filter(|at| matches!(kinds[calls.site(*at) as usize], Kind::Graph)).collect();
    if graphs.is_empty() {
        return HashMap::new();
    }
    let mut nodes: HashMap<u32, BTreeSet<u64>> = HashMap::new();
    for (at, (call, _)) in launches.kernels.iter().enumerate().filter(|(_, (call, _))| *call != NONE) {
        if let Some(node) = trace.kernels.get(at).graph_node {
            nodes.entry(*call).or_default().insert(node);
        }
    }
    let whole: HashSet<u32> = launches.graphs.iter().map(|(call, _)| *call).collect();
    let ran: Vec<Option<&BTreeSet<u64>>> = graphs.iter().map(|at| nodes.get(&(*at as u32))).collect();
    let sizes = graph_sizes(&ran);
    let known = kernel_nodes(trace, kinds);
    let count = |(at, (ran, size)): (&usize, (&Option<&BTreeSet<u64>>, u64))| {
        let graph = ran.and_then(|ran| Some((graph_of(*ran.first()?)?, ran)));
        let graph = graph.filter(|(graph, ran)| ran.iter().all(|node| graph_of(*node) == Some(*graph)));
        let size = graph.and_then(|(graph, _)| known.get(&graph)).map_or(size, |nodes| size.max(*nodes));
        let counted = match ran {
            Some(ran) => (size, ran.len() as u64, false),
            None if whole.contains(&(*at as u32)) => (1, 1, true),
            // A graph that only copies has no kernel to lose.
            None if held[*at] => (0, 0, false),
            None => (size, 0, false),
        };
        (*at, counted)
    };
    graphs.iter().zip(ran.iter().zip(sizes)).map(count).collect()
}

/// The number of the graph of a node, where ids are made of it and a number of the node.
fn graph_of(node: u64) -> Option<u64> {
    Some(node >> 32).filter(|graph| *graph > 0)
}

/// Kernels of each graph that was made from a captured one: its nodes whose original was recorded by
/// a launch. What every replay lost is known from these alone.
fn kernel_nodes(trace: &NsysTrace, kinds: &[Kind]) -> HashMap<u64, u64> {
    let captured = captured(&trace.graph_nodes);
    let calls = &trace.cuda_calls;
    let mut launches: HashMap<i64, Vec<(i64, i64)>> = HashMap::new();
    for at in (0..calls.len()).filter(|at| !captured.is_empty() && matches!(kinds[calls.site(*at) as usize], Kind::Kernel)) {
        let call = calls.get(at);
        launches.entry(call.global_tid).or_default().push((call.start_ns, call.end_ns));
    }
    let in_launch = |thread: i64, t: i64| {
        let of_thread = launches.get(&thread).map_or(&[][..], Vec::as_slice);
        let after = of_thread.partition_point(|(start, _)| *start <= t);
        after > 0 && t <= of_thread[after - 1].1
    };
    let mut nodes: HashMap<u64, u64> = HashMap::new();
    for (id, origin) in captured.iter().filter(|(id, origin)| **id != origin.id) {
        if let Some(graph) = graph_of(*id).filter(|_| in_launch(origin.global_tid, origin.at_ns)) {
            *nodes.entry(graph).or_default() += 1;
        }
    }
    nodes
}

/// Counts kernels with and without their launch by the stage that they ran in.
fn attribution(trace: &NsysTrace, launches: &Launches, counted: &mut [StageCoverage]) {
    let calls = &trace.cuda_calls;
    // Ids rise within a process: a kernel of a lower one was launched before the capture began.
    let mut first: HashMap<i64, u32> = HashMap::new();
    for at in (0..calls.len()).filter(|at| calls.correlation(*at) > 0) {
        let process = process_of(calls.sites()[calls.site(at) as usize].1);
        let id = calls.correlation(at);
        first.entry(process).and_modify(|known| *known = id.min(*known)).or_insert(id);
    }
    let mut open: BTreeMap<(i64, usize), Vec<(i64, i64)>> = BTreeMap::new();
    for it in launches.stages.instances.iter().filter(|it| it.start_ns < it.end_ns) {
        open.entry((process_of(it.place), it.label)).or_default().push((it.start_ns, it.end_ns));
    }
    let covers: Vec<((i64, usize), Cover)> = open.into_iter().map(|(key, at)| (key, Cover::new(at))).collect();
    let mut untraced: HashSet<i64> = HashSet::new();
    for (kernel, (call, instance)) in trace.kernels.iter().zip(&launches.kernels) {
        let process = process_of(kernel.global_pid);
        if *call != NONE {
            counted[launches.stage_number(*instance)].attributed += 1;
        } else if first.get(&process).is_none_or(|first| kernel.correlation_id >= i64::from(*first)) {
            let here = covers.iter().find(|((of, _), cover)| *of == process && cover.holds(kernel.start_ns));
            counted[here.map_or(0, |((_, label), _)| label + 1)].unattributed += 1;
            if !first.contains_key(&process) {
                untraced.insert(process);
            }
        }
    }
    for ((process, label), _) in &covers {
        counted[label + 1].untraced |= untraced.contains(process);
    }
}

/// A finding for each stage that lost kernels, and one on kernels without their launch.
pub fn findings(analysis: &Analysis, trace: &NsysTrace) -> Vec<Finding> {
    let stages = &analysis.coverage;
    let name = |it: &StageCoverage| if it.stage.is_empty() { "outside every stage".to_owned() } else { it.stage.clone() };
    let mut found: Vec<Finding> = Vec::new();
    for it in stages.iter().filter(|it| it.lost()) {
        let missing = it.launched - it.recorded;
        let message = format!("{}: {missing} of {} launches have no kernel in the capture.", name(it), it.launched);
        let mut finding = Finding::new(KERNELS_LOST, Severity::Critical, message)
            .with("stage", name(it))
            .with("launches", it.launched)
            .with("launches without kernels", missing)
            .with("recorded", format!("{:.1} %", it.pct().unwrap_or_default()));
        for (index, said) in trace.diagnostics.iter().take(3).enumerate() {
            finding = finding.with(&format!("nsys says ({})", index + 1), said);
        }
        found.push(finding.advise(
            "Busy and idle time, launch-bound share, kernel shares and device time of operators are not given for it. Export \
             the report again with an nsys at least as new as the one that recorded it; if it stays so, record it again.",
        ));
    }
    found.extend(unattributed(analysis, trace));
    found
}

/// The finding on work whose launch is missing, where it takes figures from a stage.
fn unattributed(analysis: &Analysis, trace: &NsysTrace) -> Option<Finding> {
    let (stages, gpu) = (&analysis.coverage, &analysis.stage_gpu.unattributed);
    if stages.iter().all(|it| it.unattributed == 0) && gpu.is_empty() {
        return None;
    }
    let (kernels, orphans) = (trace.kernels.len(), analysis.kernels.orphans);
    let message = match orphans {
        _ if trace.cuda_calls.is_empty() => {
            "The CUDA API was not traced: the stages of kernels, and whether any were lost, are unknown.".into()
        }
        0 => format!("Copies or graphs that ran during {} have no launching call in the capture.", gpu.join(", ")),
        _ => format!("{orphans} of {kernels} kernels have no launching call in the capture."),
    };
    let mut finding = Finding::new(KERNELS_UNATTRIBUTED, Severity::Warning, message);
    finding = finding.with("kernels", kernels).with("without launch", orphans);
    if !gpu.is_empty() {
        finding = finding.with("GPU busy time left out", gpu.join(", "));
    }
    let unknown: Vec<&str> =
        stages.iter().filter(|it| it.unknown() && !it.stage.is_empty()).map(|it| it.stage.as_str()).collect();
    if !unknown.is_empty() {
        finding = finding.with("kernel figures left out", unknown.join(", "));
    }
    Some(finding.advise("Trace the CUDA API as well (-t cuda,nvtx), from the start of the process."))
}

#[cfg(test)]
mod tests;
