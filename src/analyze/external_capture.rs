//! Events derived from the ranges of a capture without a pass of the model runner.
//!
//! Each stage instance becomes a repeat, so that instances are timed separately and summed. All
//! times are of the traced pass, since there is no other.

use std::collections::HashSet;

use super::{
    kernels::{OUTSIDE, WARMUP},
    stages::{DECODE, PREFILL, VISION_PARTS},
};
use crate::{
    analyze::timeline::{
        device_time::is_operator,
        launches::LaunchIndex,
        open_ranges::{EXCLUDED, NONE},
    },
    trace::{
        engine_steps::{StepClass, engine_step},
        event::{Event, OperatorCall, StageRange},
        inferred_steps::InferredStep,
        nsys::NsysTrace,
        unclosed::Unclosed,
    },
};

/// The stages, their parts and the operators of a capture, as runner events.
pub fn events(trace: &NsysTrace, launches: &LaunchIndex) -> Vec<Event> {
    let mut events = Vec::new();
    let instances = &launches.stages.instances;
    let label = |at: usize| launches.stages.labels[instances[at].label].as_str();
    // Repeat number of each instance, counted from 0 per stage.
    let mut repeats = vec![0u32; instances.len()];
    let mut seen = vec![0u32; launches.stages.labels.len()];
    for (at, it) in instances.iter().enumerate() {
        let closed = it.start_ns < it.end_ns && !it.estimated;
        if label(at) == WARMUP || !closed {
            continue;
        }
        repeats[at] = seen[it.label];
        seen[it.label] += 1;
        events.push(range(label(at), it.start_ns, it.end_ns, repeats[at], None));
    }

    let mut steps = vec![0u32; instances.len()];
    let is_operator = is_operator(trace);
    let ends = |it: &Unclosed| Some((it.range.global_tid, it.range.start_ns, it.outcome.end_ns()?));
    let unclosed: HashSet<(i64, i64, i64)> = trace.unclosed.iter().filter_map(ends).collect();
    for it in &trace.ranges {
        let Some(end_ns) = it.end_ns.filter(|end| *end >= it.start_ns) else { continue };
        let at = launches
            .stages
            .on(it.global_tid)
            .map_or(NONE, |segments| segments.at(it.start_ns, &mut 0)) as usize;
        let stage = if at < instances.len() { label(at) } else { "" };
        if at == EXCLUDED as usize && is_operator(it) {
            events.push(operator_call(OUTSIDE, OUTSIDE, (it.start_ns, end_ns), 0));
            continue;
        }
        let has_estimated_end = unclosed.contains(&(it.global_tid, it.start_ns, end_ns));
        if stage == WARMUP || has_estimated_end {
            continue;
        }
        let name = it.name.as_str();
        // A step of an engine generates a token of each of its requests.
        let is_step = name == "decode_step"
            || engine_step(name).is_some_and(|step| step.class == StepClass::Decode);
        if is_step && stage == DECODE {
            events.push(range("decode_step", it.start_ns, end_ns, repeats[at], Some(steps[at])));
            steps[at] += 1;
        } else if VISION_PARTS.contains(&name) && stage == PREFILL {
            events.push(range(name, it.start_ns, end_ns, repeats[at], None));
        } else if is_operator(it) {
            let repeat = repeats.get(at).copied().unwrap_or(0);
            events.push(operator_call(&it.name, stage, (it.start_ns, end_ns), repeat));
        }
    }
    events.extend(inferred_steps(trace, launches, &repeats));
    events
}

/// The inferred decode steps, numbered within their stage instances.
fn inferred_steps(trace: &NsysTrace, launches: &LaunchIndex, repeats: &[u32]) -> Vec<Event> {
    let instances = &launches.stages.instances;
    let mut numbers = vec![0u32; instances.len()];
    let decode = trace.inferred.steps.iter().filter(|it| it.class == Some(StepClass::Decode));
    let event = |it: &InferredStep| {
        let segments = launches.stages.on(it.global_tid)?;
        let at = segments.at(it.start_ns, &mut 0) as usize;
        let label = &launches.stages.labels[instances.get(at)?.label];
        if label != DECODE {
            return None;
        }
        numbers[at] += 1;
        let step = Some(numbers[at] - 1);
        Some(range("decode_step", it.start_ns, it.end_ns, repeats[at], step))
    };
    decode.filter_map(event).collect()
}

fn operator_call(path: &str, stage: &str, (start_ns, end_ns): (i64, i64), repeat: u32) -> Event {
    Event::Op(OperatorCall {
        path: path.into(),
        op: "range".into(),
        start_ns,
        end_ns,
        captured: false,
        warmup: false,
        repeat,
        stage: stage.into(),
        shapes: vec![],
        dtype: String::new(),
        flops: 0,
        bytes: 0,
    })
}

fn range(name: &str, start_ns: i64, end_ns: i64, repeat: u32, step: Option<u32>) -> Event {
    Event::Range(StageRange {
        name: name.into(),
        start_ns,
        end_ns,
        device_ns: None,
        warmup: false,
        repeat,
        step,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::kernels::tests::capture, *};
    use crate::analyze::{events::Events, stages::stages};

    #[test]
    fn instances_are_separate_repeats_with_their_steps() {
        let trace = capture(
            "range 1 prefill 0..10\nrange 1 decode_all 10..40
             range 1 decode_step 10..25\nrange 1 decode_step 25..40
             range 1 prefill 50..70\nrange 1 decode_all 70..110
             range 1 decode_step 70..90\nrange 1 decode_step 90..110
             range 1 warmup 200..300\nrange 1 prefill 210..290",
        );
        let derived = events(&trace, &LaunchIndex::of(&trace));
        let stages = stages(&Events::of(&derived));
        assert_eq!((stages.repeats, stages.decode_steps), (2, Some(2)));
        assert_eq!(
            stages.row("prefill").map(|row| (row.ms.min * 1e6, row.ms.max * 1e6)),
            Some((10.0, 20.0))
        );
        assert_eq!(stages.per_token_ms.map(|it| (it.mean * 1e7).round()), Some(175.0));
    }
}
