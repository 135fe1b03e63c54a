//! The finding on stages whose ranges end before their work, or start before it can.

use llmprof_core::domain::{
    digits,
    finding::{Finding, catalogue},
    units::{Nanos, quantity},
};

use crate::{
    stages::in_sentence,
    stats::{Spread, percent},
    timeline::{capture::Capture, interval::Interval},
};

/// Share of a range from which a difference to its span is stated, percent.
const NOTABLE_PCT: f64 = 1.0;

/// A finding for each stage whose time differs from its ranges.
pub fn findings(capture: &Capture, repeats: &[Option<u32>], spans: &[Interval]) -> Vec<Finding> {
    let labels = capture.stages.labels.iter().enumerate();
    labels.filter_map(|(label, stage)| finding(stage, label, capture, (repeats, spans))).collect()
}

fn finding(
    stage: &str,
    label: usize,
    capture: &Capture,
    (repeats, spans): (&[Option<u32>], &[Interval]),
) -> Option<Finding> {
    let (mut late, mut queued) = (0u64, 0u64);
    let (mut host_ms, mut span_ms) = (Vec::new(), Vec::new());
    let counted = capture.stages.instances.iter().zip(spans).zip(repeats);
    for ((it, span), _) in counted.filter(|((it, _), repeat)| it.label == label && repeat.is_some())
    {
        let length = it.end_ns - it.start_ns;
        let is_notable =
            |ns: i64| percent(ns as f64, length as f64).is_some_and(|pct| pct >= NOTABLE_PCT);
        late += u64::from(is_notable(span.1 - it.end_ns));
        queued += u64::from(is_notable(span.0 - it.start_ns));
        host_ms.push(Nanos(length).as_ms());
        span_ms.push(Nanos(span.1 - span.0).as_ms());
    }
    let ranges = quantity(host_ms.len() as u64, "range");
    let (host, span) = (Spread::of(host_ms)?.mean, Spread::of(span_ms)?.mean);
    let of = in_sentence(stage);
    let count = digits::count(if late > 0 { late } else { queued });
    let message = match (late, queued) {
        (0, 0) => return None,
        (0, _) => format!(
            "In {count} of {ranges} of {of}, the GPU still worked on the stage before: the time \
             of {of} starts when that work ended."
        ),
        _ => format!(
            "In {count} of {ranges} of {of}, the GPU still works when the range ends: the time of \
             {of} includes this work."
        ),
    };
    let found = Finding::new(catalogue::STAGE_ASYNCHRONOUS, message)
        .with("stage", stage)
        .with("ranges that end before their work", late)
        .with("ranges whose work queued", queued)
        .with("mean of the ranges, ms", format!("{host:.3}"))
        .with("mean time of the stage, ms", format!("{span:.3}"));
    Some(found.advise(
        "To have the range end with its work, synchronise before its end \
         (torch.cuda.synchronize()).",
    ))
}
