//! CUDA calls and ranges summed by name, like the nsys tables `cuda_api_sum`, `nvtx_sum` and
//! `nvtx_gpu_proj_sum`.
//!
//! The projection of a range onto the GPU lasts from the start of the first to the end of the last
//! work launched inside it on its thread. Start/end ranges have no thread and no projection.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use foldhash::HashMap;
use llmprof_core::trace::{
    packed::PackedRows,
    range::{ByLabel, RangeLabel},
    timeline::{ApiCalls, ON_HOST},
};
use serde::{Deserialize, Serialize};

use crate::{
    limited::{Limited, Summed, sort_kept},
    timeline::{
        activity::activities,
        capture::{Capture, Join},
        duration_stats::{DurationStats, GroupedTimes},
        open_at::{OpenAt, OpenEntry},
        open_ranges::{NONE, RangeNest, nest_ranges},
        range_groups::RangeGroups,
        withheld::{TimelineFigure, Withheld},
    },
};

/// Sums over the traced pass, longest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NsysSums {
    pub calls: Vec<CallSum>,
    pub ranges: Limited<RangeSum>,
}

impl NsysSums {
    /// Removes the durations on the GPU, if they are withheld.
    pub fn withhold(&mut self, withheld: &Withheld) {
        if withheld.has_in_capture(TimelineFigure::ProjectedRanges) {
            let rest = self.ranges.rest.iter_mut().map(|it| &mut it.0);
            self.ranges.rows.iter_mut().chain(rest).for_each(|it| it.projected_ns = None);
        }
    }
}

/// Calls of one function of the CUDA runtime or driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CallSum {
    #[cfg_attr(feature = "schema", schema(example = "cudaLaunchKernel_v7000"))]
    pub name: String,
    /// Processes with such calls: the times are summed over them.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub processes: u64,
    pub ns: DurationStats,
    /// Part of `ns.total` before the first recorded work of a GPU; `null` without such work, or
    /// without a common clock.
    #[serde(default)]
    pub before_work_ns: Option<i64>,
    /// Part of `ns.total` inside earlier calls of the same thread: the calls of the driver in calls
    /// of the runtime. Without it, the times of all functions add up to the time in calls.
    #[serde(default)]
    pub nested_ns: i64,
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
    let (calls, ranges) = rayon::join(|| calls(capture), || ranges(capture));
    NsysSums { calls, ranges }
}

/// Start of the first recorded work of a GPU on the host's clock.
fn first_work_ns(capture: &Capture) -> Option<i64> {
    let first = activities(capture).find(|it| it.device != ON_HOST)?;
    let is_timed = capture.trace.has_common_clock(first.process, first.device);
    is_timed.then_some(first.start_ns)
}

fn calls(capture: &Capture) -> Vec<CallSum> {
    let trace = capture.trace;
    let calls = &trace.cuda_calls;
    let mut processes: BTreeMap<u32, BTreeSet<i64>> = BTreeMap::new();
    for (name, thread) in calls.sites() {
        processes.entry(*name).or_default().insert(trace.collectives.owner(*thread));
    }
    let groups: Vec<u32> = processes.keys().copied().collect();
    let group = |name: u32| groups.binary_search(&name).map_or(NONE, |at| at as u32);
    let of_site: Vec<u32> = calls.sites().iter().map(|(name, _)| group(*name)).collect();
    let times = calls
        .with_sites()
        .map(|(site, call)| (of_site[site as usize], call.end_ns - call.start_ns));
    let spans = DurationStats::grouped(groups.len(), times);
    let first_work_ns = first_work_ns(capture);
    let mut before = vec![0i64; groups.len()];
    if let Some(first_ns) = first_work_ns {
        for (site, call) in calls.with_sites() {
            let ns = call.end_ns.min(first_ns).saturating_sub(call.start_ns).max(0);
            let sum = &mut before[of_site[site as usize] as usize];
            *sum = sum.saturating_add(ns);
        }
    }
    let nested = nested(calls, &of_site, groups.len());
    let sums = processes.into_iter().zip(spans).zip(before).zip(nested);
    let mut sums: Vec<CallSum> = sums
        .map(|((((name, processes), ns), before_ns), nested_ns)| CallSum {
            name: trace.text(name).to_owned(),
            processes: processes.len() as u64,
            ns,
            before_work_ns: first_work_ns.map(|_| before_ns),
            nested_ns,
        })
        .collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.ns.total));
    sums
}

/// Time of the calls of each group inside earlier calls of their thread.
fn nested(calls: &ApiCalls, of_site: &[u32], groups: usize) -> Vec<i64> {
    let mut covered_until: HashMap<i64, i64> = HashMap::default();
    let mut nested = vec![0i64; groups];
    for (site, call) in calls.with_sites() {
        let until = covered_until.entry(call.global_tid).or_insert(i64::MIN);
        let ns = call.end_ns.min(*until).saturating_sub(call.start_ns).max(0);
        *until = call.end_ns.max(*until);
        let sum = &mut nested[of_site[site as usize] as usize];
        *sum = sum.saturating_add(ns);
    }
    nested
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

/// Durations of groups of ranges on the GPU, and the number of operations launched inside.
struct Projected {
    /// By group.
    ops: Vec<u64>,
    /// Group and duration of each range that launched work.
    times: PackedRows<2>,
}

/// Projects the push/pop ranges of groups. Each domain nests separately: its ranges do not hide
/// another domain's.
fn projected(capture: &Capture, groups: usize, of_range: &[u32]) -> Projected {
    let trace = capture.trace;
    let mut all = Projected { ops: vec![0; groups], times: PackedRows::default() };
    let mut domains: Vec<&str> = Vec::new();
    let mut known = ByLabel::new(|label: &RangeLabel| domains.push(label.domain.as_str()));
    trace.ranges.iter().for_each(|it| known.get(it));
    domains.sort_unstable();
    domains.dedup();
    for domain in domains {
        let mut in_domain = ByLabel::new(|label: &RangeLabel| label.domain == domain);
        let nests: Vec<(i64, RangeNest)> = nest_ranges(trace, |range| {
            range.push_pop && range.end_ns.is_some() && in_domain.get(range)
        })
        .into_iter()
        .collect();
        let mut open = OpenAt::new(capture, &nests);
        let mut launched: HashMap<OpenEntry, Projection> = HashMap::default();
        let mut last: Option<(OpenEntry, Projection)> = None;
        let mut add = |join: Join, start: i64, end: i64| {
            let Some(entry) = open.at_call(join) else { return };
            let work = Projection { start, end, ops: 1 };
            match &mut last {
                Some((known, projection)) if *known == entry => projection.join(work),
                _ => {
                    if let Some((entry, projection)) = last.replace((entry, work)) {
                        launched.entry(entry).or_insert(EMPTY).join(projection);
                    }
                }
            }
        };
        capture.kernels().for_each(|(it, join)| add(join, it.start_ns, it.end_ns));
        capture.copies().for_each(|(it, join)| add(join, it.start_ns, it.end_ns));
        capture.graphs().for_each(|(it, join)| add(join, it.start_ns, it.end_ns));
        if let Some((entry, projection)) = last {
            launched.entry(entry).or_insert(EMPTY).join(projection);
        }
        let mut launched: Vec<(OpenEntry, Projection)> = launched.into_iter().collect();
        launched.sort_unstable_by_key(|it| it.0);
        let mut launched = launched.into_iter().peekable();
        for (at, (_, nest)) in nests.iter().enumerate() {
            let of_nest = std::iter::from_fn(|| launched.next_if(|it| it.0.0 == at));
            let leaves = of_nest.map(|((_, entry), projection)| (entry, projection)).collect();
            nest.roll_up(leaves, Projection::join, |entry, it| {
                let group = of_range[nest.entries[entry as usize].0 as usize];
                all.ops[group as usize] += it.ops;
                all.times.push([group.into(), it.end - it.start]);
            });
        }
    }
    all
}

fn ranges(capture: &Capture) -> Limited<RangeSum> {
    let trace = capture.trace;
    let mut groups = RangeGroups::new(&trace.rules);
    // A group of each style.
    let number = |it| 2 * groups.number(it) + u32::from(it.push_pop);
    let of_range: Vec<u32> = trace.ranges.iter().map(number).collect();
    let count = 2 * groups.count();
    let names = groups.names();
    let closed = of_range.iter().zip(&trace.ranges);
    let times = closed.filter_map(|(group, it)| Some((*group, it.end_ns? - it.start_ns)));
    let times = GroupedTimes::of(count, times);
    let Projected { ops, times: projected } = projected(capture, count, &of_range);
    let projected = projected.iter().map(|[group, ns]| (group as u32, ns));
    let projected = GroupedTimes::of(count, projected);
    let sum = |group: usize| {
        let (domain, name) = &names[group / 2];
        let of_projected = projected.group(group);
        RangeSum {
            domain: (*domain).into(),
            name: name.clone(),
            style: if group % 2 == 1 { "push_pop" } else { "start_end" }.into(),
            ns: DurationStats::of(times.group(group)),
            gpu_ops: ops[group],
            projected_ns: (!of_projected.is_empty()).then(|| DurationStats::of(of_projected)),
        }
    };
    let total =
        |group: usize| times.group(group).iter().fold(0i64, |sum, ns| sum.saturating_add(*ns));
    let present = (0..count).filter(|it| !times.group(*it).is_empty());
    let mut order: Vec<(i64, usize)> = present.map(|group| (total(group), group)).collect();
    // Groups of equal times are in order of their names.
    let key = |(ns, group): &(i64, usize)| (Reverse(*ns), &names[group / 2], group % 2);
    sort_kept(&mut order, |a, b| key(a).cmp(&key(b)));
    Limited::of(order.into_iter().map(|(_, group)| sum(group)))
}

impl Summed for RangeSum {
    fn add(&mut self, other: Self) {
        self.ns.add(other.ns);
        self.gpu_ops += other.gpu_ops;
        self.projected_ns = match (self.projected_ns, other.projected_ns) {
            (Some(mut sum), Some(more)) => {
                sum.add(more);
                Some(sum)
            }
            (one, other) => one.or(other),
        };
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::timeline::ApiCall;

    use super::*;
    use crate::kernels::tests::capture;

    #[test]
    fn calls_of_one_function_count_the_processes_and_not_the_threads_that_make_them() {
        let processes = |threads: [i64; 3]| {
            let mut trace = capture("call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 5..6");
            let name = trace.strings.len() as u32;
            trace.strings.extend(["cudaStreamSynchronize".to_owned()]);
            let moved = |(it, global_tid): (ApiCall, i64)| ApiCall { name, global_tid, ..it };
            trace.cuda_calls = trace.cuda_calls.iter().zip(threads).map(moved).collect();
            let sums = calls(&Capture::of(&trace));
            sums.iter().map(|it| (it.processes, it.ns.count)).collect::<Vec<_>>()
        };
        let of = |process: i64, thread: i64| process << 24 | thread;
        assert_eq!(processes([of(1, 1), of(1, 2), of(1, 1)]), [(1, 3)]);
        assert_eq!(processes([of(1, 1), of(2, 1), of(1, 2)]), [(2, 3)]);
    }

    #[test]
    fn calls_inside_others_of_their_thread_count_once_in_the_time_of_all_calls() {
        for (sketch, total, all) in [
            ("call 1 1 0..100", 100, 100),
            ("call 1 1 0..100\ncall 1 2 10..40", 130, 100),
            ("call 1 1 0..100\ncall 1 2 0..100", 200, 100),
            ("call 1 1 0..100\ncall 1 2 90..120", 130, 120),
            ("call 1 1 0..100\ncall 2 2 10..40", 130, 130),
            ("call 1 1 0..100\ncall 1 2 10..40\ncall 1 3 20..30\ncall 1 4 100..110", 150, 110),
        ] {
            let trace = capture(sketch);
            let sums = calls(&Capture::of(&trace));
            assert_eq!(sums.iter().map(|it| it.ns.total).sum::<i64>(), total, "{sketch}");
            let own = sums.iter().map(|it| it.ns.total - it.nested_ns);
            assert_eq!(own.sum::<i64>(), all, "{sketch}");
        }
    }

    #[test]
    fn the_part_of_calls_before_the_first_work_of_a_gpu_is_known_if_there_is_work() {
        let before = |sketch: &str| {
            let trace = capture(sketch);
            let sums = calls(&Capture::of(&trace));
            sums.iter().map(|it| it.before_work_ns).collect::<Vec<_>>()
        };
        let all = "call 1 1 10..20\ncall 1 2 30..60\ncall 1 3 70..80";
        assert_eq!(before(all), [None]);
        for (start, ns) in [(5, 0), (20, 10), (45, 25), (60, 40), (75, 45), (90, 50)] {
            let with_work = format!("{all}\nkernel 3 a {start}..100 7");
            assert_eq!(before(&with_work), [Some(ns)], "work from {start}");
        }
    }
}
