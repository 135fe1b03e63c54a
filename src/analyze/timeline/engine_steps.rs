//! Steps of a server or of a generating program: the work of each by the name of its range or by
//! the order of the launches, and its kernels by the calls made inside.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    interval::Interval,
    launches::LaunchIndex,
    open_ranges::{EXCLUDED, NONE},
};
use crate::{
    domain::{named_values::named_values, units::Nanos},
    trace::{
        engine_steps::{EngineStep, StepClass, engine_step},
        nsys::{NsysTrace, pid_of},
    },
};

/// One step of a server or of a generating program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineStepRecord {
    /// From 0, in the order of their starts.
    pub step: u64,
    #[serde(default = "named")]
    pub source: StepSource,
    /// `null` for an inferred step.
    #[schema(example = "vllm")]
    pub engine: Option<String>,
    /// `null` where only the boundaries are known.
    pub class: Option<StepClass>,
    /// Evidence of boundaries and class: the name of the range, or what the launches show.
    #[schema(example = "execute_context_0(0)_generation_8(8)")]
    pub evidence: String,
    #[schema(example = 4711)]
    pub process: u32,
    /// Start of the step since the first one, milliseconds.
    pub start_ms: f64,
    /// Length of the step on the host; of an inferred one, to the end of its work.
    pub host_ms: f64,
    /// From the start of its first work on a device to the end of its last; `null` without work.
    pub device_ms: Option<f64>,
    /// Time within `device_ms` in which none of its kernels and graphs ran.
    pub gap_ms: Option<f64>,
    /// Kernels that its calls launched, those of traced graphs included.
    pub kernels: u64,
    /// Launches of CUDA graphs traced as a whole.
    pub graphs: u64,
    /// True if a replayed CUDA graph launched some of its work.
    pub is_replayed: bool,
    /// `null` where the name does not carry them, as the next two.
    pub prefill_requests: Option<u64>,
    pub prefill_tokens: Option<u64>,
    pub decode_requests: Option<u64>,
    /// Numbers of the load's requests in prefill during the step; `null` where that is not certain.
    #[serde(default)]
    pub prefilling: Option<Vec<u64>>,
    /// The same of those in decode.
    #[serde(default)]
    pub decoding: Option<Vec<u64>>,
}

named_values! {
    /// Source of a step.
    StepSource {
        /// A range whose name carries the work.
        Named = "named",
        /// The order of the launches: the capture has no range that is a stage.
        Inferred = "inferred",
    }
}

/// The source of steps in older files.
const fn named() -> StepSource {
    StepSource::Named
}

/// A step before its work is known.
struct StepPlace<'a> {
    class: Option<StepClass>,
    evidence: &'a str,
    global_tid: i64,
    start_ns: i64,
    end_ns: i64,
    named: Option<EngineStep>,
}

/// Work of one step on devices, in the order of its starts.
#[derive(Debug, Clone, Copy, Default)]
struct DeviceWork {
    /// First start, last end and time in which something ran.
    window: Option<Interval>,
    busy_ns: i64,
    kernels: u64,
    graphs: u64,
    is_replayed: bool,
}

impl DeviceWork {
    fn add(&mut self, (start, end): (i64, i64)) {
        let (first, last) = self.window.unwrap_or((start, start));
        self.busy_ns = self.busy_ns.saturating_add((end - start.max(last)).max(0));
        self.window = Some((first.min(start), last.max(end)));
    }
}

/// The steps of a capture whose ranges carry the names of a known engine, or whose launches show
/// them; empty for others.
pub fn engine_steps(trace: &NsysTrace, launches: &LaunchIndex) -> Vec<EngineStepRecord> {
    let named = trace.ranges.iter().filter_map(|range| {
        let step = engine_step(&range.name)?;
        Some(StepPlace {
            class: Some(step.class),
            evidence: &range.name,
            global_tid: range.global_tid,
            start_ns: range.start_ns,
            end_ns: range.end_ns?,
            named: Some(step),
        })
    });
    let inferred = trace.inferred.steps.iter().map(|step| StepPlace {
        class: step.class,
        evidence: &step.evidence,
        global_tid: step.global_tid,
        start_ns: step.start_ns,
        end_ns: step.end_ns,
        named: None,
    });
    let mut steps: Vec<StepPlace> =
        named.chain(inferred).filter(|it| it.end_ns >= it.start_ns).collect();
    if steps.is_empty() {
        return Vec::new();
    }
    steps.sort_by_key(|it| (it.start_ns, it.end_ns, it.global_tid));
    let ranges: Vec<(i64, Interval)> =
        steps.iter().map(|it| (it.global_tid, (it.start_ns, it.end_ns))).collect();
    let work = device_work(trace, launches, &ranges);
    let origin = steps.first().map_or(0, |it| it.start_ns);
    let records = steps.into_iter().zip(work).enumerate();
    records.map(|(at, (step, work))| record(at, origin, &step, &work)).collect()
}

/// Start of the first step, from which the times of all count.
pub fn first_start(trace: &NsysTrace) -> Option<i64> {
    let is_possible = |start: i64, end: i64| (end >= start).then_some(start);
    let named = trace
        .ranges
        .iter()
        .filter(|range| engine_step(&range.name).is_some())
        .filter_map(|range| is_possible(range.start_ns, range.end_ns?));
    let inferred =
        trace.inferred.steps.iter().filter_map(|step| is_possible(step.start_ns, step.end_ns));
    named.chain(inferred).min()
}

fn record(at: usize, origin: i64, step: &StepPlace, work: &DeviceWork) -> EngineStepRecord {
    let ms = |ns: i64| Nanos(ns).as_ms();
    let named = step.named;
    EngineStepRecord {
        step: at as u64,
        source: if named.is_some() { StepSource::Named } else { StepSource::Inferred },
        engine: named.map(|it| it.engine.to_owned()),
        class: step.class,
        evidence: step.evidence.to_owned(),
        process: pid_of(step.global_tid),
        start_ms: ms(step.start_ns - origin),
        host_ms: ms(step.end_ns - step.start_ns),
        device_ms: work.window.map(|(first, last)| ms(last - first)),
        gap_ms: work.window.map(|(first, last)| ms((last - first - work.busy_ns).max(0))),
        kernels: work.kernels,
        graphs: work.graphs,
        is_replayed: work.is_replayed,
        prefill_requests: named.and_then(|it| it.prefill_requests),
        prefill_tokens: named.and_then(|it| it.prefill_tokens),
        decode_requests: named.and_then(|it| it.decode_requests),
        prefilling: None,
        decoding: None,
    }
}

/// First start and last end of the work that was launched during each step, given as thread and
/// times, in the order of their starts.
pub fn work_windows(
    trace: &NsysTrace,
    launches: &LaunchIndex,
    steps: &[(i64, Interval)],
) -> Vec<Option<Interval>> {
    device_work(trace, launches, steps).iter().map(|it| it.window).collect()
}

/// The work that was launched during each step, on its thread.
fn device_work(
    trace: &NsysTrace,
    launches: &LaunchIndex,
    steps: &[(i64, Interval)],
) -> Vec<DeviceWork> {
    let mut threads: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        threads.entry(step.0).or_default().push(at);
    }
    let mut calls = trace.cuda_calls.reader();
    // Thread and times of the latest search, and its result: most calls follow in the same step.
    let mut latest: Option<(i64, Interval, Option<usize>)> = None;
    let mut step_of = |(call, instance): (u32, u32)| {
        if call == NONE || instance == EXCLUDED {
            return None;
        }
        let call = calls.get(call);
        let is_inside = |(from, to): Interval| from <= call.start_ns && call.start_ns < to;
        let at = match latest {
            Some((thread, times, at)) if thread == call.global_tid && is_inside(times) => at,
            _ => {
                let of_thread = threads.get(&call.global_tid)?;
                let after = of_thread.partition_point(|at| steps[*at].1.0 <= call.start_ns);
                let at = after.checked_sub(1).map(|before| of_thread[before]);
                let from = at.map_or(i64::MIN, |at| steps[at].1.0);
                let to = of_thread.get(after).map_or(i64::MAX, |next| steps[*next].1.0);
                latest = Some((call.global_tid, (from, to), at));
                at
            }
        };
        at.filter(|at| call.start_ns < steps[*at].1.1)
    };
    let mut work = vec![DeviceWork::default(); steps.len()];
    for (kernel, launch) in trace.kernels.iter().zip(launches.kernels.iter()) {
        let Some(at) = step_of(launch) else { continue };
        work[at].add((kernel.start_ns, kernel.end_ns));
        work[at].kernels += 1;
        work[at].is_replayed |= kernel.graph_node.is_some();
    }
    for (graph, launch) in trace.graphs.iter().zip(launches.graphs.iter()) {
        let Some(at) = step_of(launch) else { continue };
        work[at].add((graph.start_ns, graph.end_ns));
        work[at].graphs += 1;
        work[at].is_replayed = true;
    }
    work
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::kernels::tests::capture;

    fn of(sketch: &str) -> Vec<EngineStepRecord> {
        let trace = capture(sketch);
        engine_steps(&trace, &LaunchIndex::of(&trace))
    }

    #[test]
    fn a_step_has_the_work_that_was_launched_in_its_range() {
        let steps = of("range 1 execute_context_1(512)_generation_0(0) 100..200
             range 1 execute_context_0(0)_generation_1(1) 300..400
             range 1 prepare 300..310
             call 1 1 110..111\ncall 1 2 150..151\ncall 1 3 310..311\ncall 1 4 390..391
             call 1 5 450..451
             kernel 1 a 120..140 7\nkernel 2 a 160..260 7\nkernel 3 b 320..340 7
             kernel 4 b 395..415 7\nkernel 5 c 460..470 7");
        let rows: Vec<_> = steps
            .iter()
            .map(|it| {
                let us = |ms: f64| (ms * 1e6).round() as i64;
                (
                    it.class.unwrap(),
                    us(it.start_ms),
                    us(it.host_ms),
                    it.device_ms.map(us),
                    it.gap_ms.map(us),
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                (StepClass::Prefill, 0, 100, Some(140), Some(20)),
                (StepClass::Decode, 200, 100, Some(95), Some(55)),
            ]
        );
        assert_eq!((steps[0].kernels, steps[0].prefill_tokens), (2, Some(512)));
        assert!(!steps[0].is_replayed);
    }

    #[test]
    fn a_step_without_work_has_no_device_time_and_other_ranges_are_no_steps() {
        let steps = of("range 1 step[DECODE_bs=1] 0..10\nrange 1 decode_step 0..10");
        assert!(steps.is_empty());
        let steps = of("range 1 execute_context_0(0)_generation_1(1) 300..400");
        assert_eq!((steps[0].device_ms, steps[0].gap_ms, steps[0].kernels), (None, None, 0));
    }
}
