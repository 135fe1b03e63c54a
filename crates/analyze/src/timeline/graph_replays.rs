//! Replays of captured graphs: the launch in its capture of each replayed kernel.
//!
//! All kernels of a replay share the call that launched the graph, and have no operator. The n-th
//! launch of the capture is the n-th node of the replay; a join needs the same nodes in the same
//! order (`fit`), and a proof of the replayed batch (`batch`). Without both there is none.

mod batch;
mod captured;
mod findings;
mod fit;
mod replayed;

use std::collections::BTreeMap;

pub use self::findings::findings;
use llmprof_core::trace::timeline::Timeline;

use self::{
    batch::{FittingGraph, RequestsAt, choose},
    captured::KnownGraph,
    replayed::{Replay, ReplayClass},
};
use super::{
    capture::Capture, device_time::OperatorRule, framework_nests::ThreadNest, open_ranges::NONE,
};

/// Reason why a replay has no capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotJoined {
    /// No capture has its nodes: other counts, kernels or calls.
    NoCapture,
    /// A capture of the batch lacks its start or end.
    CaptureCut,
    /// It ran on several streams, and the launches of the capture have no names.
    Streams,
    /// Several captures have its nodes, or a batch in between may have been captured.
    BatchUnproven,
    /// Its batch is larger than any captured batch.
    BatchMissing,
}

/// A replay whose capture is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinedReplay {
    /// Index into the graphs of the timeline.
    pub graph: u32,
    /// Index of the launching call.
    pub call: u32,
}

/// Number and kernel time of replays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplaySum {
    pub replays: u64,
    pub ns: i64,
}

/// The replays of a capture.
#[derive(Debug, Default)]
pub struct GraphReplays {
    /// Graph and launch by kernel, [`NONE`] if it has none; empty if the timeline has no captures.
    pub kernels: Vec<(u32, u32)>,
    pub joined: Vec<JoinedReplay>,
    pub all: ReplaySum,
    pub not_joined: BTreeMap<NotJoined, ReplaySum>,
    /// Operators of each graph, nested.
    pub nests: Vec<ThreadNest>,
    /// Innermost operator by graph and launch, as an entry of the nest.
    innermost: Vec<Vec<u32>>,
}

impl GraphReplays {
    pub fn of(capture: &Capture) -> Self {
        let trace = capture.trace;
        let mut found = Self::default();
        if trace.graph_captures.graphs.is_empty() {
            return found;
        }
        let rule = OperatorRule::of(trace);
        let graphs = 0..trace.graph_captures.graphs.len();
        let known: Vec<KnownGraph> = graphs.map(|at| KnownGraph::of(trace, at, &rule)).collect();
        found.kernels = vec![(NONE, NONE); trace.kernels.len()];
        let requests = RequestsAt::of(trace);
        for class in replayed::classes(capture) {
            let (fits, misfit) = fitting(&class, &known, trace);
            let asked: Vec<Option<u64>> = class
                .replays
                .iter()
                .map(|it| requests.at(trace.cuda_calls.get(it.call as usize)))
                .collect();
            let proven = batch::proven(&class, &fits, &asked, trace);
            for (replay, requests) in class.replays.iter().zip(&asked) {
                let chosen = if fits.is_empty() {
                    Err(misfit)
                } else {
                    choose(&fits, *requests, &proven, &trace.graph_captures.listed)
                };
                found.add(replay, chosen.map(|at| &fits[at]), trace);
            }
        }
        found.joined.sort_by_key(|it| it.call);
        (found.nests, found.innermost) =
            known.into_iter().map(|it| (it.nest, it.innermost)).unzip();
        found
    }

    fn add(&mut self, replay: &Replay, chosen: Result<&FittingGraph, NotJoined>, trace: &Timeline) {
        let kernels = || replay.nodes.iter().filter_map(|it| it.kernel);
        let ns = kernels().map(|it| trace.kernels.get(it as usize).ns()).sum::<i64>();
        let add = |sum: &mut ReplaySum| (sum.replays, sum.ns) = (sum.replays + 1, sum.ns + ns);
        add(&mut self.all);
        match chosen {
            Ok(fit) => {
                self.joined.push(JoinedReplay { graph: fit.graph, call: replay.call });
                for (node, launch) in replay.nodes.iter().zip(&fit.launches) {
                    if let (Some(kernel), true) = (node.kernel, *launch != NONE) {
                        self.kernels[kernel as usize] = (fit.graph, *launch);
                    }
                }
            }
            Err(reason) => add(self.not_joined.entry(reason).or_default()),
        }
    }

    /// Graph and innermost operator of a replayed kernel, as an entry of the graph's nest.
    pub fn operator(&self, kernel: usize) -> Option<(u32, u32)> {
        let (graph, launch) = *self.kernels.get(kernel)?;
        let entry = *self.innermost.get(graph as usize)?.get(launch as usize)?;
        (entry != NONE).then_some((graph, entry))
    }

    /// True if the launch of a replayed kernel is known.
    pub fn has_launch(&self, kernel: usize) -> bool {
        self.kernels.get(kernel).is_some_and(|(_, launch)| *launch != NONE)
    }

    /// Line of code that captured a replayed kernel: an index into the strings of the timeline.
    pub fn call_site(&self, trace: &Timeline, kernel: usize) -> Option<u32> {
        let (graph, launch) = *self.kernels.get(kernel)?;
        let graph = trace.graph_captures.graphs.get(graph as usize)?;
        graph.launches.get(launch as usize)?.call_site
    }
}

/// The graphs whose launches are the nodes of a class, else the reason why there are none.
fn fitting(
    class: &ReplayClass,
    known: &[KnownGraph],
    trace: &Timeline,
) -> (Vec<FittingGraph>, NotJoined) {
    let place = trace.collectives.processes.get(&class.process);
    let rank = place.and_then(|it| it.rank);
    let (mut fits, mut reason) = (Vec::new(), NotJoined::NoCapture);
    for (at, graph) in known.iter().enumerate() {
        let captured = graph.captured;
        let other_rank = captured.rank.zip(rank).is_some_and(|(a, b)| a != b);
        let owner = |process: i64| trace.collectives.owner(process);
        let is_other = |process: i64| owner(process) != owner(class.process);
        if captured.process.map_or(other_rank, is_other) {
            continue;
        }
        match fit::fit(&class.nodes, graph, trace) {
            Ok(fit) if captured.is_whole => fits.push(FittingGraph {
                graph: at as u32,
                batch: captured.batch,
                content: graph.content,
                is_measured: fit.is_measured,
                launches: fit.launches,
            }),
            Ok(_) => reason = NotJoined::CaptureCut,
            Err(fit::Misfit::Streams) => reason = NotJoined::Streams,
            Err(fit::Misfit::Nodes) => {
                let is_cut = !captured.is_whole && reason == NotJoined::NoCapture;
                reason = if is_cut { NotJoined::CaptureCut } else { reason };
            }
        }
    }
    (fits, reason)
}

#[cfg(test)]
mod tests;
