//! Steps of a server or of a generating program: the work of each by the name of its range or by
//! the order of the launches, and its kernels by the calls made inside.

mod device_work;

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::units::Nanos,
    trace::{
        engine_steps::{Phase, StepClass, StepCounts},
        stage::WARMUP,
        timeline::{pid_of, process_of},
    },
};
use serde::{Deserialize, Serialize};

pub use self::device_work::work_windows;
pub(super) use self::device_work::{DeviceWork, device_work};
use super::{
    capture::Capture,
    first_work::unrecorded_waits,
    interval::Interval,
    stage_spans::{self, HostRange},
    step_states::StepState,
    steps::{Step, StepSource},
    withheld::{TimelineFigure, Withheld},
};

/// One step of a server or of a generating program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EngineStepRecord {
    /// From 0, in the order of their starts.
    pub step: u64,
    #[serde(default = "named")]
    pub source: StepSource,
    /// True for a step that an engine scheduled: no repeat has several.
    #[serde(skip)]
    pub is_scheduled: bool,
    /// `null` for an inferred step.
    #[cfg_attr(feature = "schema", schema(example = "vllm"))]
    pub engine: Option<String>,
    /// `null` if only the boundaries are known.
    pub class: Option<StepClass>,
    /// The engine's own word for the class, if it has one.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = "EXTEND"))]
    pub mode: Option<String>,
    /// Evidence of boundaries and class: the name of the range, or what the launches show.
    #[cfg_attr(feature = "schema", schema(example = "execute_context_0(0)_generation_8(8)"))]
    pub evidence: String,
    #[cfg_attr(feature = "schema", schema(example = 4711))]
    pub process: u32,
    /// True for a step of a warm-up or of a cold first instance, which no figure contains.
    #[serde(default)]
    pub is_warmup: bool,
    /// State of the step: it counts in times, or does not for this reason.
    #[serde(default)]
    pub state: StepState,
    /// Start of the step since the first one, milliseconds.
    pub start_ms: f64,
    /// Length of the step on the host; of an inferred one, to the end of its work.
    pub host_ms: f64,
    /// Time of the step, to the end of its work. It starts with the step, or when the work of the
    /// previous step ends if the step's work queued behind it. As `host_ms`, without the parts that
    /// a range filter leaves out.
    #[serde(default)]
    pub step_ms: f64,
    /// End of the step and its work since the start of the first step, milliseconds.
    #[serde(default)]
    pub end_ms: f64,
    /// From the end of the step before, if that is of the same class and mode, to the end of this
    /// one; `null` for other steps, if the end of one of the two or a step between them is not
    /// recorded, and if a range filter leaves out a part of it. In decode, the time between two
    /// tokens of a request. If steps of several threads of a process are open at once, each thread
    /// has steps of its own.
    #[serde(default)]
    pub period_ms: Option<f64>,
    /// From the start of its first work on a device to the end of its last, copies included,
    /// without the parts that a range filter leaves out; `null` without work.
    pub device_ms: Option<f64>,
    /// Time within `device_ms` in which none of its kernels, whole graphs and copies ran.
    pub gap_ms: Option<f64>,
    /// Part of `step_ms` in which its work waited for a reason that the capture does not record.
    #[serde(default)]
    pub unrecorded_wait_ms: f64,
    /// Kernels that its calls launched, kernels of traced graphs included.
    pub kernels: u64,
    /// Launches of CUDA graphs traced as a whole.
    pub graphs: u64,
    /// True if a replayed CUDA graph launched some of its work.
    pub is_replayed: bool,
    /// Requests of the step; `null` if the name does not carry them and nothing proves them, as all
    /// counts below.
    #[serde(default)]
    pub requests: Option<u64>,
    /// Requests of a graph of a fixed size, padding included.
    #[serde(default)]
    pub padded_requests: Option<u64>,
    pub prefill_requests: Option<u64>,
    /// Sum of the query lengths of the requests in prefill.
    pub prefill_tokens: Option<u64>,
    /// Sum of their key lengths: tokens that attention reads.
    #[serde(default)]
    pub prefill_keys: Option<u64>,
    /// Sum of query length times key length.
    #[serde(default)]
    pub prefill_products: Option<u64>,
    pub decode_requests: Option<u64>,
    /// The same four of the requests in decode.
    #[serde(default)]
    pub decode_tokens: Option<u64>,
    #[serde(default)]
    pub decode_keys: Option<u64>,
    #[serde(default)]
    pub decode_products: Option<u64>,
    /// Tokens that it generated, if that is certain: speculation may keep fewer than it computed.
    #[serde(default)]
    pub generated: Option<u64>,
    /// Phases of a decode step by speculation; `null` for other steps.
    #[serde(default)]
    pub phases: Option<Vec<StepPhase>>,
    /// Numbers of the load's requests in prefill during the step; `null` if that is not certain.
    #[serde(default)]
    pub prefilling: Option<Vec<u64>>,
    /// The same of those in decode.
    #[serde(default)]
    pub decoding: Option<Vec<u64>>,
}

/// Min part of an unrecorded wait in a step whose time is not its own.
const WAITED_PART: f64 = 0.1;

impl EngineStepRecord {
    /// True if an unrecorded wait is a part of its time that matters.
    pub fn has_unrecorded_wait(&self) -> bool {
        self.unrecorded_wait_ms > WAITED_PART * self.step_ms
    }

    /// True if it launched recorded work on a device.
    pub const fn has_work(&self) -> bool {
        self.kernels + self.graphs > 0
    }

    /// Removes its times on the devices, if its stage withholds them.
    pub fn withhold(&mut self, withheld: &Withheld) {
        let stage = self.class.and_then(|it| it.stage());
        if stage.is_some_and(|it| withheld.has(it, TimelineFigure::StepWork)) {
            (self.device_ms, self.gap_ms) = (None, None);
        }
    }
}

/// The phases of one class of a decode step by speculation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StepPhase {
    pub phase: StepClass,
    /// Number of such phases of the step.
    pub times: u64,
    /// Their length on the host, summed.
    pub host_ms: f64,
}

/// The source of steps in older files.
const fn named() -> StepSource {
    StepSource::Named
}

/// The steps of a capture whose ranges carry the names of a known engine, or whose launches show
/// them; empty for others.
pub fn engine_steps(capture: &Capture) -> Vec<EngineStepRecord> {
    let steps = &capture.stages.steps;
    let Some(origin) = steps.first().map(|it| it.start_ns) else { return Vec::new() };
    let ranges: Vec<(i64, Interval)> =
        steps.iter().map(|it| (it.place, (it.start_ns, it.end_ns))).collect();
    let work = device_work(capture, &ranges);
    let hosts = steps.iter().zip(&work).map(|(it, work)| HostRange {
        place: it.place,
        start_ns: it.start_ns,
        end_ns: it.end_ns,
        work: work.window,
    });
    let spans = stage_spans::spans(hosts);
    let waits = unrecorded_waits(capture);
    // For an inferred step, the host times are only the times of its launches.
    let is_timed =
        |step: &Step, work: &DeviceWork| !(work.is_untimed && step.source == StepSource::Inferred);
    let concurrent = concurrent(steps);
    let states = &capture.stages.states;
    // The last step of each engine, its end and state.
    let mut last: BTreeMap<i64, (&Step, i64, StepState)> = BTreeMap::new();
    let mut records = Vec::new();
    for (at, ((step, work), span)) in steps.iter().zip(work).zip(spans).enumerate() {
        if !is_timed(step, &work) {
            continue;
        }
        let process = process_of(step.place);
        let engine = if concurrent.contains(&process) { step.place } else { process };
        let state = state(capture, step);
        // The host may start steps long before their work: their starts are not times of tokens.
        let before = last.insert(engine, (step, span.1, state));
        let is_same = |it: &Step| (it.class, &it.mode) == (step.class, &step.mode);
        let period = before.filter(|(before, end, of_before)| {
            let between = (before.start_ns, step.start_ns);
            is_same(before)
                && *end < span.1
                && of_before.has_end()
                && state.has_end()
                && !states.is_lost_between(process, between)
                && !is_cut_by_filter(capture, before.end_ns, (step, span))
        });
        let period_ms = period.map(|it| Nanos(span.1 - it.1).as_ms());
        let range = (step.start_ns, step.end_ns);
        let excluded = capture.stages.excluded_in(step.place, range);
        let excluded_ms = |it: Interval| Nanos(excluded.overlap_ns(it.0, it.1)).as_ms();
        let waited = excluded.outside(span).map(|it| waits.overlap_ns(it.0, it.1));
        let owner = capture.trace.collectives.owner(step.place);
        let mut record = record((at, origin), (step, owner), (&work, span));
        record.unrecorded_wait_ms = Nanos(waited.sum()).as_ms();
        record.period_ms = period_ms;
        record.host_ms -= excluded_ms(range);
        record.step_ms -= excluded_ms(span);
        record.is_warmup = state == StepState::Warmup;
        record.state = match state {
            StepState::Whole if record.has_unrecorded_wait() => StepState::Waited,
            state => state,
        };
        if state.lacks_work() {
            (record.device_ms, record.gap_ms) = (None, None);
        }
        records.push(record);
    }
    records
}

/// True if a range filter leaves out a part of a step, or of the time since the step before, which
/// ended on the host at `from`.
fn is_cut_by_filter(capture: &Capture, from: i64, (step, span): (&Step, Interval)) -> bool {
    let times = (from.min(step.start_ns), span.1.max(step.end_ns));
    capture.trace.rules.narrowed()
        && !capture.stages.excluded_in(step.place, times).intervals().is_empty()
}

/// The state of a step by its work and its stage.
fn state(capture: &Capture, step: &Step) -> StepState {
    let stages = &capture.stages;
    match stages.at(step.place, step.start_ns) {
        Some(at) if stages.label(at as usize) == WARMUP => StepState::Warmup,
        _ => stages.states.of(step.place, (step.start_ns, step.end_ns)),
    }
}

/// Processes in which steps of several threads are open at once: each of these is an engine.
pub(super) fn concurrent(steps: &[Step]) -> BTreeSet<i64> {
    let mut open: BTreeMap<i64, &Step> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for step in steps {
        let process = process_of(step.place);
        let last = open.entry(process).or_insert(step);
        if last.end_ns > step.start_ns && last.place != step.place {
            found.insert(process);
        }
        if last.end_ns < step.end_ns {
            *last = step;
        }
    }
    found
}

fn record(
    (at, origin): (usize, i64),
    (step, owner): (&Step, i64),
    (work, span): (&DeviceWork, Interval),
) -> EngineStepRecord {
    let ms = |ns: i64| Nanos(ns).as_ms();
    let StepCounts { requests, padded, prefill, decode } = step.counts;
    let generated = step.generated();
    EngineStepRecord {
        step: at as u64,
        source: step.source,
        is_scheduled: step.is_scheduled,
        engine: step.engine.map(str::to_owned),
        class: step.class,
        mode: step.mode.clone(),
        evidence: step.evidence.clone(),
        process: pid_of(owner),
        is_warmup: false,
        state: StepState::Whole,
        start_ms: ms(step.start_ns - origin),
        host_ms: ms(step.end_ns - step.start_ns),
        step_ms: ms(span.1 - span.0),
        end_ms: ms(span.1 - origin),
        period_ms: None,
        device_ms: work.window_ns().map(ms),
        gap_ms: work.window_ns().map(|ns| ms((ns - work.busy_ns).max(0))),
        unrecorded_wait_ms: 0.0,
        kernels: work.kernels,
        graphs: work.graphs,
        is_replayed: work.is_replayed,
        requests: requests.or_else(|| sum(prefill.requests, decode.requests)),
        padded_requests: padded,
        prefill_requests: prefill.requests,
        prefill_tokens: prefill.tokens,
        prefill_keys: prefill.keys,
        prefill_products: prefill.products,
        decode_requests: decode.requests,
        decode_tokens: decode.tokens,
        decode_keys: decode.keys,
        decode_products: decode.products,
        generated,
        phases: phases(&step.phases),
        prefilling: None,
        decoding: None,
    }
}

/// Sum of the known counts; `None` if both are unknown.
fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.or(other)?;
    Some(one.unwrap_or(0).saturating_add(other.unwrap_or(0)))
}

/// The phases of a step, summed by class; `None` for a step without phases.
fn phases(phases: &[Phase]) -> Option<Vec<StepPhase>> {
    let mut rows: Vec<StepPhase> = Vec::new();
    for it in phases {
        let host_ms = Nanos(it.end_ns - it.start_ns).as_ms();
        match rows.iter_mut().find(|row| row.phase == it.class) {
            Some(row) => {
                row.times += 1;
                row.host_ms += host_ms;
            }
            None => rows.push(StepPhase { phase: it.class, times: 1, host_ms }),
        }
    }
    (!rows.is_empty()).then_some(rows)
}

#[cfg(test)]
mod tests;
