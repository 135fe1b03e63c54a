//! Steps that take more than twice the median, and the reason.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::{
    domain::units::Nanos,
    trace::{
        engine_steps::{Phase, StepClass},
        timeline::ON_HOST,
    },
};
use serde::{Deserialize, Serialize};

use super::{
    StageSteps, StepDevices,
    step_calls::{CallInGap, captured, in_gaps, launched_singly, usual_ms},
    step_works::usual_work_ms,
};
use crate::{
    ledger::LedgerCause,
    stats::ratio,
    timeline::{
        activity::{Busy, DeviceWork, activities, used_devices},
        capture::Capture,
        gpu::{
            split::GapReason,
            step_idle::{StepIdle, WantedStep, WantedSteps},
        },
        interval::Interval,
    },
};

/// A step that takes more than twice the median.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OutlierStep {
    /// Number among the measured steps, from 1, in the order of their starts.
    pub step: u64,
    pub ms: f64,
    /// The median of its process, milliseconds, if the processes differ: the step takes more than
    /// twice that. `null` if one median is of all steps.
    #[serde(default)]
    pub process_p50_ms: Option<f64>,
    /// Cause of the idle time that takes most of the time above the median, as in the ledger;
    /// `null` if no cause does.
    #[serde(default)]
    pub cause: Option<LedgerCause>,
    /// Operator, range or function of CUDA in which the host was for most of that idle time, or the
    /// preparation of code; `null` if the capture shows none, or the GPU did not wait for the host.
    pub host_call: Option<String>,
    /// The part of that idle time in it, milliseconds.
    pub host_call_ms: Option<f64>,
    /// The longest call of the same function in a step: the median over the other steps of its
    /// process, milliseconds; `null` if fewer than three have one, and for operators and ranges.
    #[serde(default)]
    pub usual_call_ms: Option<f64>,
    /// Idle time of the GPU by cause, of the GPU that idles longest for the step's process.
    #[serde(default)]
    pub idle: Vec<IdleTime>,
    /// Kernels that it launches one by one, while the other steps of its process replay a graph;
    /// `null` for other steps.
    #[serde(default)]
    pub single_launches: Option<u64>,
    /// Graphs that the host captures in it, if that takes most of the time above the median: calls
    /// that seem to launch work only record it. `null` for other steps.
    #[serde(default)]
    pub captures: Option<u64>,
    /// Time of these captures, milliseconds, with making the graphs executable.
    #[serde(default)]
    pub capture_ms: Option<f64>,
    /// Time in which a GPU worked, milliseconds, if that takes most of the time above the median;
    /// `null` for other steps.
    #[serde(default)]
    pub busy_ms: Option<f64>,
    /// The kernel, copy or graph with the most of that time.
    #[serde(default)]
    pub longest_work: Option<String>,
    /// Its time in the step, milliseconds.
    #[serde(default)]
    pub longest_work_ms: Option<f64>,
    /// The time of the same work in a step: the median over the other steps of its process,
    /// milliseconds; `null` if fewer than three have it, and for work of another process.
    #[serde(default)]
    pub usual_work_ms: Option<f64>,
    /// Passes of the draft model in a decode step by speculation; `null` for other steps.
    #[serde(default)]
    pub drafts: Option<u64>,
}

/// Idle time of a GPU in a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct IdleTime {
    pub cause: LedgerCause,
    pub ms: f64,
}

/// The steps whose idle time explains the outliers.
pub fn wanted<'a>(stages: &'a [StageSteps<'a>]) -> WantedSteps<'a> {
    let mut wanted = WantedSteps::default();
    for it in stages.iter().filter(|it| !it.outliers.is_empty()) {
        let step = |at: usize| {
            let (span, process) = it.steps[at].place();
            WantedStep { stage: it.stage, process, span }
        };
        wanted.outliers.extend(it.listed().map(step));
        wanted.usual.extend(it.usual().map(step));
    }
    wanted
}

/// The longest outliers of each stage.
pub fn longest(stages: &[StageSteps], devices: Option<&StepDevices>) -> Vec<Vec<OutlierStep>> {
    let is_known = |it: &StageSteps| {
        let has_division =
            |of: &StepDevices| of.splits.stages.iter().any(|at| at.stage == it.stage);
        devices.is_some_and(|of| of.knows_gaps && has_division(of))
    };
    let listed = |it: &StageSteps| it.listed().map(|at| it.steps[at].place()).collect::<Vec<_>>();
    let listed: Vec<(Interval, i64)> = stages.iter().flat_map(listed).collect();
    let mut idle = devices.map_or(&[][..], |it| &it.splits.step_idle).iter();
    let outliers = |it: &StageSteps| {
        let of_step = |_| idle.next().filter(|_| is_known(it)).cloned().unwrap_or_default();
        let of_steps: Vec<StepIdle> = it.listed().map(of_step).collect();
        of_stage(it, &of_steps, devices)
    };
    // One reads all work, and the other all calls.
    let (works, mut found): (_, Vec<Vec<OutlierStep>>) = rayon::join(
        || devices.filter(|_| !listed.is_empty()).map(|it| work_in(it.capture, &listed)),
        || stages.iter().map(outliers).collect(),
    );
    let medians = stages.iter().flat_map(|it| it.listed().map(move |at| it.steps[at].p50_ms));
    let each = found.iter_mut().flatten().zip(medians);
    for ((it, p50_ms), work) in each.zip(works.into_iter().flatten()) {
        let is_most = Nanos(work.busy_ns).as_ms() - p50_ms >= (it.ms - p50_ms) / 2.0;
        if it.cause.is_none() && is_most {
            it.busy_ms = Some(Nanos(work.busy_ns).as_ms());
            it.longest_work_ms = Some(Nanos(work.longest_ns).as_ms());
            it.longest_work = Some(work.longest);
        }
    }
    if let Some(devices) = devices {
        let each = stages.iter().zip(&mut found);
        each.for_each(|(stage, found)| add_usual_work(stage, found, devices.capture));
    }
    found
}

/// Adds the usual time of the work that takes longest in each outlier.
fn add_usual_work(stage: &StageSteps, found: &mut [OutlierStep], capture: &Capture) {
    let names: BTreeSet<String> = found.iter().filter_map(|it| it.longest_work.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let usual = usual_work_ms(capture, stage, &names);
    for (it, at) in found.iter_mut().zip(stage.listed()) {
        let process = stage.steps[at].owner(Some(capture.trace));
        let work = it.longest_work.as_deref();
        it.usual_work_ms = work.and_then(|work| usual.get(&(work, process)).copied());
    }
}

fn of_stage(
    stage: &StageSteps,
    idle: &[StepIdle],
    devices: Option<&StepDevices>,
) -> Vec<OutlierStep> {
    let plain = |at: usize| OutlierStep {
        step: at as u64 + 1,
        ms: stage.steps[at].ms,
        process_p50_ms: (!stage.processes.is_empty()).then_some(stage.steps[at].p50_ms),
        ..OutlierStep::default()
    };
    let mut found: Vec<OutlierStep> = stage.listed().map(plain).collect();
    let Some(devices) = devices.filter(|_| !found.is_empty()) else { return found };
    let trace = devices.capture.trace;
    let gaps: Vec<_> = idle.iter().map(|it| it.longest).collect();
    let calls = in_gaps(trace, &gaps);
    for ((it, at), known) in found.iter_mut().zip(stage.listed()).zip(idle.iter().zip(calls)) {
        add_idle(it, known, (stage.usual_steps(at), stage.steps[at].p50_ms));
    }
    let names: Vec<String> = found.iter().filter_map(|it| it.host_call.clone()).collect();
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let usual = usual_ms(trace, stage, &names);
    let singly = launched_singly(trace, stage);
    for (it, (at, single_launches)) in found.iter_mut().zip(stage.listed().zip(singly)) {
        let call = it.host_call.as_deref();
        let process = stage.steps[at].owner(Some(trace));
        it.usual_call_ms = call.and_then(|call| usual.get(&(call, process)).copied());
        it.single_launches = single_launches;
        it.drafts = drafts_in(stage.steps[at].span, devices.capture);
    }
    for (it, captured) in found.iter_mut().zip(captured(trace, stage)) {
        // A launch under capture runs nothing.
        it.single_launches = it.single_launches.filter(|_| captured.is_none());
        (it.captures, it.capture_ms) = captured.unzip();
    }
    found
}

/// Adds the idle time of a step, its cause and its call, if they take most of the step's time above
/// the median. A long call in the sense of the ledger names its own part of the gap.
fn add_idle(
    it: &mut OutlierStep,
    (idle, call): (&StepIdle, Option<CallInGap>),
    (usual_steps, p50_ms): (usize, f64),
) {
    let least_ms = (it.ms - p50_ms) / 2.0;
    let ms = |ns: i64| Nanos(ns).as_ms();
    let time = |(reason, ns): (&GapReason, &i64)| IdleTime {
        cause: LedgerCause::of_gap(*reason),
        ms: ms(*ns),
    };
    it.idle = idle.reasons.iter().map(time).collect();
    it.idle.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    // Without what a usual step has of it.
    let above = |(reason, ns): (&GapReason, &i64)| {
        let all = idle.in_usual.get(reason).copied().unwrap_or(0);
        let usual = ratio(ms(all), usual_steps as f64).unwrap_or(0.0);
        (*reason, ms(*ns) - usual)
    };
    let long = idle.reasons.get_key_value(&GapReason::LongCall).map_or(0.0, |it| above(it).1);
    let longest = idle.calls.iter().max_by_key(|it| it.1);
    if let Some((name, ns)) = longest.filter(|it| ms(*it.1).min(long) >= least_ms) {
        it.cause = Some(LedgerCause::GapLongCall);
        (it.host_call, it.host_call_ms) = (Some(name.clone()), Some(ms(*ns)));
        return;
    }
    let largest = idle.reasons.iter().map(above).max_by(|a, b| a.1.total_cmp(&b.1));
    let Some((reason, _)) = largest.filter(|it| it.1 >= least_ms) else { return };
    let cause = LedgerCause::of_gap(reason);
    it.cause = Some(cause);
    // Work that is launched already does not wait for the host, even if the host waits too.
    if let Some(call) = call.filter(|it| cause.is_of_host() && ms(it.ns) >= least_ms) {
        (it.host_call, it.host_call_ms) = (Some(call.name), Some(ms(call.ns)));
    }
}

/// Work of the devices in one step.
#[derive(Default)]
struct StepWork {
    /// Time in which a device worked.
    busy_ns: i64,
    longest: String,
    longest_ns: i64,
}

/// Nanoseconds of each work, and whether it is of the step's process.
type WorkSums = HashMap<(DeviceWork, bool), i64>;

/// The work in each of these steps of a process, on the GPUs of the process.
fn work_in(capture: &Capture, steps: &[(Interval, i64)]) -> Vec<StepWork> {
    let used = used_devices(capture.trace);
    let mut in_order: Vec<usize> = (0..steps.len()).collect();
    in_order.sort_by_key(|at| steps[*at]);
    let mut works: Vec<(Busy, WorkSums)> = steps.iter().map(|_| Default::default()).collect();
    let to = steps.iter().map(|it| it.0.1).max().unwrap_or(i64::MIN);
    let mut ended = 0;
    for it in activities(capture).take_while(|it| it.start_ns < to) {
        ended += in_order[ended..].iter().take_while(|at| steps[**at].0.1 <= it.start_ns).count();
        let of_it = in_order[ended..].iter().take_while(|at| steps[**at].0.0 < it.end_ns);
        for at in of_it {
            let ((step, process), (busy, sums)) = (steps[*at], &mut works[*at]);
            let part = (it.start_ns.max(step.0), it.end_ns.min(step.1));
            let is_own = it.process == process;
            let is_of_gpu = is_own || used.contains(&(process, it.device));
            if part.0 < part.1 && it.device != ON_HOST && is_of_gpu {
                busy.add(part.0, part.1);
                *sums.entry((it.work, is_own)).or_default() += part.1 - part.0;
            }
        }
    }
    let step = |(busy, sums): (Busy, WorkSums)| {
        // Kernels of one name have several launch configurations.
        let mut named: BTreeMap<String, i64> = BTreeMap::new();
        for ((work, is_own), ns) in sums {
            let name = work.name(capture.trace);
            let name = if is_own { name } else { format!("{name} of another process") };
            *named.entry(name).or_default() += ns;
        }
        let (longest, longest_ns) = named.into_iter().max_by_key(|it| it.1).unwrap_or_default();
        StepWork { busy_ns: busy.ns, longest, longest_ns }
    };
    works.into_iter().map(step).collect()
}

/// Passes of the draft model in the decode step that starts in this time.
fn drafts_in(step: Interval, capture: &Capture) -> Option<u64> {
    let all = &capture.stages.steps;
    let starts = all.partition_point(|it| it.start_ns < step.0);
    let of_decode = all[starts..].iter().find(|it| it.is_decode())?;
    let is_draft = |it: &&Phase| it.class == StepClass::Draft;
    let drafts = of_decode.phases.iter().filter(is_draft).count() as u64;
    (of_decode.start_ns < step.1 && drafts > 0).then_some(drafts)
}

#[cfg(test)]
mod tests;
