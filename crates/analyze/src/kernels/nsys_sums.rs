//! CUDA calls and ranges summed by name, like the nsys tables `cuda_api_sum`, `nvtx_sum` and
//! `nvtx_gpu_proj_sum`.
//!
//! The projection of a range onto the GPU lasts from the start of the first to the end of the last
//! work launched inside it on its thread. Start/end ranges have no thread and no projection.

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::trace::timeline::Timeline;
use serde::{Deserialize, Serialize};

use crate::timeline::{
    capture::{Capture, Join},
    duration_stats::DurationStats,
    launches::Cursor,
    open_ranges::{NONE, nest_ranges},
};

/// Sums over the traced pass, longest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NsysSums {
    pub calls: Vec<CallSum>,
    pub ranges: Vec<RangeSum>,
}

/// Calls of one function of the CUDA runtime or driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CallSum {
    #[cfg_attr(feature = "schema", schema(example = "cudaLaunchKernel_v7000"))]
    pub name: String,
    pub ns: DurationStats,
}

/// Ranges of one name and domain; ranges cut off by the capture are ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RangeSum {
    /// Empty for the default domain.
    #[cfg_attr(feature = "schema", schema(example = "LLM"))]
    pub domain: String,
    #[cfg_attr(feature = "schema", schema(example = "decode_step"))]
    pub name: String,
    /// `push_pop` or `start_end`.
    #[cfg_attr(feature = "schema", schema(example = "push_pop"))]
    pub style: String,
    /// Durations on the host.
    pub ns: DurationStats,
    /// Durations on the GPU, of the instances that launched work; `null` without any.
    pub projected_ns: Option<DurationStats>,
    /// Kernels, copies, fills and whole-traced graphs launched inside.
    pub gpu_ops: u64,
}

/// Sums calls and ranges by name.
pub fn sums(capture: &Capture) -> NsysSums {
    let (calls, ranges) = rayon::join(|| calls(capture.trace), || ranges(capture));
    NsysSums { calls, ranges }
}

fn calls(trace: &Timeline) -> Vec<CallSum> {
    let calls = &trace.cuda_calls;
    let mut groups: Vec<u32> = calls.sites().iter().map(|(name, _)| *name).collect();
    groups.sort_unstable();
    groups.dedup();
    let group = |name: u32| groups.binary_search(&name).map_or(NONE, |at| at as u32);
    let of_site: Vec<u32> = calls.sites().iter().map(|(name, _)| group(*name)).collect();
    let times = calls
        .with_sites()
        .map(|(site, call)| (of_site[site as usize], call.end_ns - call.start_ns));
    let spans = DurationStats::grouped(groups.len(), times);
    let named =
        |(name, ns): (&u32, DurationStats)| CallSum { name: trace.text(*name).to_owned(), ns };
    let mut sums: Vec<CallSum> = groups.iter().zip(spans).map(named).collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.ns.total));
    sums
}

/// Start of the first and end of the last work launched by a range, and the number of operations.
#[derive(Clone, Copy)]
struct Projection {
    start: i64,
    end: i64,
    ops: u64,
}

const EMPTY: Projection = Projection { start: i64::MAX, end: i64::MIN, ops: 0 };

impl Projection {
    fn join(&mut self, other: Self) {
        *self = Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
            ops: self.ops + other.ops,
        };
    }
}

/// The projection of every push/pop range. Each domain nests separately: its ranges do not hide
/// those of another.
fn projections(capture: &Capture) -> Vec<Projection> {
    let mut projections = vec![EMPTY; capture.trace.ranges.len()];
    let mut domains: Vec<&str> =
        capture.trace.ranges.iter().map(|range| range.domain.as_str()).collect();
    domains.sort_unstable();
    domains.dedup();
    for domain in domains {
        let nests = nest_ranges(capture.trace, |range| {
            range.push_pop && range.domain == domain && range.end_ns.is_some()
        });
        let mut by_thread: BTreeMap<i64, Vec<Projection>> =
            nests.iter().map(|(thread, nest)| (*thread, vec![EMPTY; nest.entries.len()])).collect();
        let (mut cursor, mut calls) = (Cursor::default(), capture.trace.cuda_calls.reader());
        let mut add = |call: u32, start: i64, end: i64| {
            if call == NONE {
                return;
            }
            let call = calls.get(call);
            let entry = cursor
                .at(call.global_tid, call.start_ns, |thread| Some(&nests.get(&thread)?.segments));
            let entries = by_thread.get_mut(&call.global_tid);
            if let Some(projection) = entries.and_then(|entries| entries.get_mut(entry as usize)) {
                projection.join(Projection { start, end, ops: 1 });
            }
        };
        let kernels = capture.kernels();
        kernels.for_each(|(it, Join { call, .. })| add(call, it.start_ns, it.end_ns));
        let copies = capture.copies();
        copies.for_each(|(it, Join { call, .. })| add(call, it.start_ns, it.end_ns));
        let graphs = capture.graphs();
        graphs.for_each(|(it, Join { call, .. })| add(call, it.start_ns, it.end_ns));
        for (thread, mut of_thread) in by_thread {
            let entries = &nests[&thread].entries;
            for at in (0..entries.len()).rev() {
                let (range, parent) = entries[at];
                let projection = of_thread[at];
                projections[range as usize] = projection;
                if let Some(parent) = of_thread.get_mut(parent as usize) {
                    parent.join(projection);
                }
            }
        }
    }
    projections
}

fn ranges(capture: &Capture) -> Vec<RangeSum> {
    let projections = projections(capture);
    let mut groups: HashMap<(&str, &str, bool), Vec<usize>> = HashMap::default();
    for (at, range) in
        capture.trace.ranges.iter().enumerate().filter(|(_, range)| range.end_ns.is_some())
    {
        groups.entry((&range.domain, &range.name, range.push_pop)).or_default().push(at);
    }
    // In order, so that groups of equal times are.
    let groups: BTreeMap<(&str, &str, bool), Vec<usize>> = groups.into_iter().collect();
    let sum = |((domain, name, push_pop), ranges): ((&str, &str, bool), Vec<usize>)| {
        let length = |at: &usize| {
            capture.trace.ranges[*at].end_ns.unwrap_or(i64::MIN)
                - capture.trace.ranges[*at].start_ns
        };
        let times: Vec<i64> = ranges.iter().map(length).collect();
        let launched = || ranges.iter().map(|at| projections[*at]).filter(|it| it.ops > 0);
        let projected: Vec<i64> = launched().map(|it| it.end - it.start).collect();
        RangeSum {
            domain: domain.into(),
            name: name.into(),
            style: if push_pop { "push_pop" } else { "start_end" }.into(),
            ns: DurationStats::of(&times),
            gpu_ops: launched().map(|it| it.ops).sum(),
            projected_ns: (!projected.is_empty()).then(|| DurationStats::of(&projected)),
        }
    };
    let mut sums: Vec<RangeSum> = groups.into_iter().map(sum).collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.ns.total));
    sums
}
