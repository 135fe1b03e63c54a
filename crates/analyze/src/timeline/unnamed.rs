//! Time of a capture that no stage has: all of it if it has no stages, and the time between the
//! steps of an engine.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::{
    stage::WARMUP,
    timeline::{ON_HOST, process_of},
};

use super::{
    activity::{activities, used_devices},
    capture::Capture,
    engine_steps::concurrent,
    interval::{Interval, extended},
    open_ranges::{EXCLUDED, Extent, NONE, OpenStages, StageInstance},
    stage_spans::stage_spans,
    steps::Step,
};
use crate::{
    kernels::is_measured,
    stages::{BETWEEN_STEPS, NO_STAGE},
    stats::median,
};

/// A gap this many times as long as a usual step and a usual gap is a pause without requests.
const PAUSE: f64 = 100.0;

/// A capture without stages as one stage without a name: in each process with work, from the first
/// recorded work of its GPUs to the last, after the warm-up if there is one, without the times that
/// a range filter leaves out. `None` with stages, without work, and if work has no times.
pub fn whole<'a>(capture: &Capture<'a>) -> Option<Capture<'a>> {
    let all = &capture.stages;
    let has_stages = all.instances.iter().any(|it| all.labels[it.label] != WARMUP);
    if has_stages || capture.trace.lacks_times() {
        return None;
    }
    let warm_ns = stage_spans(capture).into_iter().map(|it| it.1).max().unwrap_or(i64::MIN);
    let used = used_devices(capture.trace);
    let mut of_device: BTreeMap<u32, Interval> = BTreeMap::new();
    let work = activities(capture).filter(|it| it.device != ON_HOST);
    for it in work.filter(|it| it.start_ns >= warm_ns) {
        let window = of_device.entry(it.device).or_insert((it.start_ns, it.end_ns));
        *window = extended(Some(*window), (it.start_ns, it.end_ns));
    }
    let mut windows: BTreeMap<i64, Interval> = BTreeMap::new();
    // Processes that share a GPU have one window.
    for _ in &used {
        for (process, device) in &used {
            let Some(of_device) = of_device.get_mut(device) else { continue };
            let window = extended(windows.get(process).copied(), *of_device);
            windows.insert(*process, window);
            *of_device = window;
        }
    }
    windows.retain(|process, window| counted_ns(all, *process, *window) > 0);
    if windows.is_empty() {
        return None;
    }
    let places: Vec<i64> = windows.keys().copied().collect();
    let windows = windows.into_iter().collect();
    let stages = OpenStages::of_one(NO_STAGE, capture.trace, windows, all);
    Some(capture.restaged(stages, |instance, process, start_ns| match instance {
        NONE if start_ns >= warm_ns => places.binary_search(&process).map_or(NONE, |at| at as u32),
        _ => EXCLUDED,
    }))
}

/// Nanoseconds of a time of a process or thread that no range filter leaves out.
fn counted_ns(stages: &OpenStages, place: i64, time: Interval) -> i64 {
    time.1 - time.0 - stages.excluded_ns(place, time, time)
}

/// A step in the order of a process.
struct StepInOrder {
    /// Its process, or its thread if steps of several threads of the process are open at once.
    engine: i64,
    /// Its range on the host.
    host: Interval,
    /// From its start to the end of its work, if it counts in times.
    span: Option<Interval>,
}

/// The steps and stage instances of a capture, by engine in the order of their starts.
fn steps_in_order(capture: &Capture) -> Vec<StepInOrder> {
    let all = &capture.stages;
    let concurrent = concurrent(&all.steps);
    let engine = |place: i64| {
        let process = process_of(place);
        if concurrent.contains(&process) { place } else { process }
    };
    let instance = |(it, span): (&StageInstance, Interval)| {
        let (place, host) = it.key();
        let counts = it.start_ns < it.end_ns
            && it.extent == Extent::Whole
            && is_measured(&all.labels[it.label])
            && all.states.of(place, host).counts();
        StepInOrder { engine: engine(place), host, span: counts.then_some(span) }
    };
    let mut found: Vec<StepInOrder> =
        all.instances.iter().zip(stage_spans(capture)).map(instance).collect();
    let known: BTreeSet<(i64, Interval)> = all.instances.iter().map(StageInstance::key).collect();
    let has_no_instance = |it: &&Step| {
        let key = (it.place, (it.start_ns, it.end_ns));
        (it.is_scheduled || it.stage().is_none()) && !known.contains(&key)
    };
    found.extend(all.steps.iter().filter(has_no_instance).map(|it| StepInOrder {
        engine: engine(it.place),
        host: (it.start_ns, it.end_ns),
        span: None,
    }));
    let engines: BTreeSet<i64> = found.iter().map(|it| it.engine).collect();
    let lost = all.states.lost().flat_map(|(process, start)| {
        let of_process = engines.iter().filter(move |it| process_of(**it) == process);
        of_process.map(move |engine| StepInOrder {
            engine: *engine,
            host: (start, start),
            span: None,
        })
    });
    found.extend(lost);
    found.sort_by_key(|it| (it.engine, it.host.0));
    found
}

/// The gaps of each engine between two steps that count, with no other step between them, and the
/// lengths of these steps.
fn gaps_between(capture: &Capture) -> (Vec<(i64, Interval)>, Vec<f64>) {
    // Ends of the last step that counts, on the host and of its work; none after another step.
    let mut last: Option<(i64, Interval)> = None;
    let (mut gaps, mut lengths): (Vec<(i64, Interval)>, Vec<f64>) = Default::default();
    for it in steps_in_order(capture) {
        let before = last.filter(|last| last.0 == it.engine).map(|last| last.1);
        let Some((start, end)) = it.span else {
            // A part of a step leaves no gap around it.
            let is_inside = before.is_some_and(|(host, _)| it.host.0 < host && it.host.1 <= host);
            last = last.filter(|_| is_inside);
            continue;
        };
        if let Some((_, from)) = before.filter(|(_, from)| *from < start) {
            gaps.push((it.engine, (from, start)));
        }
        let (host, until) = before.unwrap_or((it.host.1, end));
        last = Some((it.engine, (host.max(it.host.1), until.max(end))));
        lengths.push((end - start) as f64);
    }
    (gaps, lengths)
}

/// The time of a process or thread between consecutive steps of an engine, as a stage, with the
/// work that no step launched in it. `None` without such time. Next to a step that does not count,
/// as a cold one, and in a pause there is none. A range filter leaves out its part.
pub fn between_steps<'a>(capture: &Capture<'a>) -> Option<Capture<'a>> {
    let all = &capture.stages;
    if !all.steps.iter().any(|it| it.is_scheduled) || capture.trace.lacks_times() {
        return None;
    }
    let (mut gaps, steps) = gaps_between(capture);
    gaps.retain(|(engine, gap)| counted_ns(all, *engine, *gap) > 0);
    let length = |(engine, gap): &(i64, Interval)| counted_ns(all, *engine, *gap) as f64;
    let usual = [median(gaps.iter().map(length)), median(steps)];
    let usual = usual.into_iter().flatten().fold(0.0, f64::max);
    gaps.retain(|it| length(it) <= PAUSE * usual);
    if gaps.is_empty() {
        return None;
    }
    gaps.sort_by_key(|it| it.1);
    let mut of_process: BTreeMap<i64, Vec<(Interval, u32)>> = BTreeMap::new();
    for (at, (engine, gap)) in gaps.iter().enumerate() {
        of_process.entry(process_of(*engine)).or_default().push((*gap, at as u32));
    }
    let gap_at = |process: i64, t: i64| {
        let gaps = of_process.get(&process)?;
        let at = gaps.partition_point(|it| it.0.0 <= t).checked_sub(1)?;
        (t < gaps[at].0.1).then_some(gaps[at].1)
    };
    let stages = OpenStages::of_one(BETWEEN_STEPS, capture.trace, gaps, all);
    Some(capture.restaged(stages, |instance, process, start_ns| match instance {
        NONE => gap_at(process, start_ns).unwrap_or(EXCLUDED),
        _ => EXCLUDED,
    }))
}

#[cfg(test)]
mod tests;
