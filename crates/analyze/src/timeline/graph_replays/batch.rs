//! Proof of the batch of a replayed graph.
//!
//! Engines capture a graph for each of several batches, and replay the smallest that holds the
//! requests of a step. Graphs of several batches often have the same kernels.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::{
    engine_steps::{StepClass, StepCounts, engine_step},
    timeline::{ApiCall, Timeline},
};

use super::{NotJoined, replayed::ReplayClass};

/// Ranges of steps that are searched for one that is open.
const MAX_NESTED: usize = 8;

/// A graph whose launches are the nodes of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FittingGraph {
    pub graph: u32,
    pub batch: Option<u64>,
    /// Equal for graphs with the same operators and shapes.
    pub content: u64,
    /// True if geometries of replay and capture were compared.
    pub is_measured: bool,
    pub launches: Vec<u32>,
}

/// Chooses the graph of a replay of a step of `requests`, if that is known. `proven`: batches of
/// replays with the same kernels and geometries. `listed`: batches that the engine captured.
pub fn choose(
    fits: &[FittingGraph],
    requests: Option<u64>,
    proven: &[u64],
    listed: &[u64],
) -> Result<usize, NotJoined> {
    let holds =
        |it: &FittingGraph| it.batch.is_none() || requests.is_none() || it.batch >= requests;
    let able: Vec<usize> = (0..fits.len()).filter(|at| holds(&fits[*at])).collect();
    let Some(smallest) = able.iter().copied().min_by_key(|at| fits[*at].batch) else {
        return Err(NotJoined::BatchMissing);
    };
    let same = |of: u64| able.iter().all(|at| fits[*at].content == of);
    let batch = fits[smallest].batch;
    let (Some(requests), Some(padded)) = (requests, batch) else {
        return if same(fits[smallest].content) {
            Ok(smallest)
        } else {
            Err(NotJoined::BatchUnproven)
        };
    };
    // Graphs of one batch must be alike.
    let of_batch = able.iter().filter(|at| fits[**at].batch == batch);
    let is_one = of_batch.map(|at| fits[*at].content).all(|it| it == fits[smallest].content);
    let is_exact = padded == requests || proven.contains(&padded);
    let is_listed = listed.iter().copied().find(|it| *it >= requests) == batch;
    let is_measured = able.iter().all(|at| fits[*at].is_measured) && same(fits[smallest].content);
    match is_one && (is_exact || is_listed || is_measured) {
        true => Ok(smallest),
        false => Err(NotJoined::BatchUnproven),
    }
}

/// Batches that a class of replays proves: its steps need no padding, and the number of the graph
/// or the geometry of a kernel shows the batch.
pub fn proven(
    class: &ReplayClass,
    fits: &[FittingGraph],
    requests: &[Option<u64>],
    trace: &Timeline,
) -> Vec<u64> {
    let kinds = trace.kernels.kinds();
    let grids = || class.nodes.iter().filter_map(|it| Some(kinds[it.kind? as usize].grid));
    let shows = |batch: u64| grids().any(|it| it.iter().any(|side| u64::from(*side) == batch));
    let batches = fits.iter().filter_map(|it| it.batch);
    let exact = batches.filter(|it| *it > 1 && requests.contains(&Some(*it)));
    let exact = exact.collect::<BTreeSet<u64>>().into_iter();
    exact.filter(|it| class.graph.is_some() || shows(*it)).collect()
}

/// Requests of the steps of a timeline.
pub struct RequestsAt {
    /// Start, end and requests by thread, in order of start.
    steps: BTreeMap<i64, Vec<(i64, i64, Option<u64>)>>,
}

impl RequestsAt {
    pub fn of(trace: &Timeline) -> Self {
        let mut steps: BTreeMap<i64, Vec<_>> = BTreeMap::new();
        for range in &trace.ranges {
            if let (Some(step), Some(end_ns)) = (engine_step(&range.name), range.end_ns) {
                let StepCounts { prefill, decode, .. } = step.counts;
                let prefill = match step.class {
                    StepClass::Prefill | StepClass::Mixed => prefill.tokens,
                    _ => Some(0),
                };
                // Speculation computes several tokens of each request.
                let decode = decode.tokens.or(decode.requests);
                let rows = prefill.map(|it| it.saturating_add(decode.unwrap_or(0)));
                steps.entry(range.global_tid).or_default().push((range.start_ns, end_ns, rows));
            }
        }
        steps.values_mut().for_each(|it| it.sort_unstable());
        Self { steps }
    }

    /// Rows of the innermost step around a call: a token of each decoding request, and all tokens
    /// of prompts.
    pub fn at(&self, call: ApiCall) -> Option<u64> {
        let steps = self.steps.get(&call.global_tid)?;
        let until = steps.partition_point(|(start_ns, ..)| *start_ns <= call.start_ns);
        let mut before = steps[..until].iter().rev().take(MAX_NESTED);
        before.find(|(_, end_ns, _)| call.start_ns < *end_ns)?.2
    }
}
