//! Random changes of captures.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    kernel::Kernel,
    timeline::{ApiCalls, GraphLaunch, Timeline},
};
use proptest::prelude::*;

/// One change of a capture; indices and counts are taken modulo the number of rows.
#[derive(Debug, Clone)]
pub enum Change {
    ShiftKernels { from: usize, count: usize, ns: i64 },
    StretchKernel { at: usize, ns: i64 },
    MoveKernels { from: usize, count: usize, device: u32 },
    Relaunch { from: usize, count: usize, correlation: i64 },
    LoseKernels { from: usize, count: usize },
    RepeatKernels { from: usize, count: usize },
    LoseCalls { from: usize, count: usize },
    OtherProcess { from: usize, count: usize },
    OpenRange { at: usize },
    ShiftRange { at: usize, ns: i64 },
    WholeGraphs { every: usize },
    ShiftCopies { ns: i64 },
}

/// Any change.
pub fn change() -> impl Strategy<Value = Change> {
    let (at, count, ns) = (0usize..1_000_000, 1usize..2_000, -50_000_000i64..50_000_000);
    let near = -3_000i64..3_000;
    prop_oneof![
        (at.clone(), count.clone(), ns.clone())
            .prop_map(|(from, count, ns)| Change::ShiftKernels { from, count, ns }),
        (at.clone(), count.clone(), near).prop_map(|(from, count, ns)| Change::ShiftKernels {
            from,
            count,
            ns
        }),
        (at.clone(), 0i64..100_000_000).prop_map(|(at, ns)| Change::StretchKernel { at, ns }),
        (at.clone(), count.clone(), 0u32..3)
            .prop_map(|(from, count, device)| Change::MoveKernels { from, count, device }),
        (at.clone(), 1usize..20, 0i64..20_000)
            .prop_map(|(from, count, correlation)| Change::Relaunch { from, count, correlation }),
        (at.clone(), count.clone()).prop_map(|(from, count)| Change::LoseKernels { from, count }),
        (at.clone(), count.clone()).prop_map(|(from, count)| Change::RepeatKernels { from, count }),
        (at.clone(), count.clone()).prop_map(|(from, count)| Change::LoseCalls { from, count }),
        (at.clone(), count).prop_map(|(from, count)| Change::OtherProcess { from, count }),
        at.clone().prop_map(|at| Change::OpenRange { at }),
        (at, ns.clone()).prop_map(|(at, ns)| Change::ShiftRange { at, ns }),
        (1usize..4).prop_map(|every| Change::WholeGraphs { every }),
        ns.prop_map(|ns| Change::ShiftCopies { ns }),
    ]
}

impl Change {
    /// Applies the change to a capture.
    pub fn apply(&self, trace: &mut Timeline) {
        let kernels = trace.kernels.len().max(1);
        let inside = |from: usize, count: usize| {
            move |at: usize| at >= from % kernels && at < from % kernels + count
        };
        match *self {
            Self::ShiftKernels { from, count, ns } => {
                let inside = inside(from, count);
                trace.kernels = trace.kernels.map(|at, it| {
                    let by = if inside(at) { ns } else { 0 };
                    (it.start_ns, it.end_ns) = (it.start_ns + by, it.end_ns + by);
                });
            }
            Self::StretchKernel { at, ns } => {
                trace.kernels = trace
                    .kernels
                    .map(|place, it| it.end_ns += if place == at % kernels { ns } else { 0 });
            }
            Self::MoveKernels { from, count, device } => {
                let inside = inside(from, count);
                trace.kernels = trace
                    .kernels
                    .map(|at, it| it.device = if inside(at) { device } else { it.device });
            }
            Self::Relaunch { from, count, correlation } => {
                let inside = inside(from, count);
                let launch = |at: usize, old: i64| if inside(at) { correlation } else { old };
                trace.kernels =
                    trace.kernels.map(|at, it| it.correlation_id = launch(at, it.correlation_id));
            }
            Self::LoseKernels { from, count } => {
                let inside = inside(from, count);
                trace.kernels = trace
                    .kernels
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| !inside(*at))
                    .map(|it| it.1)
                    .collect();
            }
            Self::RepeatKernels { from, count } => {
                let again = trace.kernels.iter().skip(from % kernels).take(count);
                let again: Vec<Kernel> = again.map(Kernel::from).collect();
                again.into_iter().for_each(|it| trace.kernels.push(it));
            }
            Self::LoseCalls { from, count } => lose_calls(trace, from, count),
            Self::OtherProcess { from, count } => {
                let inside = inside(from, count);
                trace.kernels = trace
                    .kernels
                    .map(|at, it| it.global_pid += if inside(at) { 1 << 24 } else { 0 });
            }
            Self::OpenRange { at } => {
                let at = at % trace.ranges.len().max(1);
                trace.ranges.get_mut(at).into_iter().for_each(|it| it.end_ns = None);
            }
            Self::ShiftRange { at, ns } => {
                let at = at % trace.ranges.len().max(1);
                if let Some(it) = trace.ranges.get_mut(at) {
                    (it.start_ns, it.end_ns) = (it.start_ns + ns, it.end_ns.map(|end| end + ns));
                }
            }
            Self::WholeGraphs { every } => trace_whole(trace, every),
            Self::ShiftCopies { ns } => {
                for it in &mut trace.copies {
                    (it.start_ns, it.end_ns) = (it.start_ns + ns, it.end_ns + ns);
                }
            }
        }
    }
}

/// Removes `count` calls.
fn lose_calls(trace: &mut Timeline, from: usize, count: usize) {
    let first = from % trace.cuda_calls.len().max(1);
    let kept =
        trace.cuda_calls.iter().enumerate().filter(|(at, _)| *at < first || *at >= first + count);
    trace.cuda_calls = kept.map(|it| it.1).collect::<ApiCalls>();
}

/// Replaces the kernels of every `every`-th graph launch by a whole-traced launch.
fn trace_whole(trace: &mut Timeline, every: usize) {
    let mut launches: BTreeMap<i64, GraphLaunch> = BTreeMap::new();
    let nodes = trace.kernels.iter().filter(|it| {
        it.graph_node.is_some() && (it.correlation_id.unsigned_abs() as usize).is_multiple_of(every)
    });
    for it in nodes {
        let new = GraphLaunch {
            start_ns: it.start_ns,
            end_ns: it.end_ns,
            device: it.device,
            stream: it.stream,
            global_pid: it.global_pid,
            correlation_id: it.correlation_id,
            graph: Some(1),
        };
        let launch = launches.entry(it.correlation_id).or_insert(new);
        launch.start_ns = launch.start_ns.min(it.start_ns);
        launch.end_ns = launch.end_ns.max(it.end_ns);
    }
    trace.kernels = trace
        .kernels
        .iter()
        .filter(|it| it.graph_node.is_none() || !launches.contains_key(&it.correlation_id))
        .collect();
    trace.graphs.extend(launches.into_values());
}

/// Sorts the tables, as reading an export does.
pub fn sorted(mut trace: Timeline) -> Timeline {
    trace.kernels.sort();
    trace.cuda_calls.sort();
    trace.copies.sort_by_key(|it| it.start_ns);
    trace.graphs.sort_by_key(|it| it.start_ns);
    trace.ranges.sort_by_key(|it| (it.start_ns, std::cmp::Reverse(it.end_ns.unwrap_or(i64::MAX))));
    trace
}
