//! The time of decode steps by their requests.

use std::collections::BTreeMap;

use llmprof_analyze::{Analysis, step_batches::StepBatch};
use llmprof_core::trace::engine_steps::StepClass;

use crate::{
    charts::sweep::{ChartLine, ChartPoint, lines},
    format::{ms, quantity},
};

/// One line for each range of contexts; empty for steps of fewer than two numbers of requests.
pub fn batches(analysis: &Analysis) -> String {
    let mut by_context: BTreeMap<Option<u32>, Vec<(u64, &StepBatch)>> = BTreeMap::new();
    for it in analysis.step_batches.iter().filter(|it| it.class == StepClass::Decode) {
        let octave = it.context_min.and_then(u64::checked_ilog2);
        let requests = it.requests.map(|requests| (requests, it));
        by_context.entry(octave).or_default().extend(requests);
    }
    let mut counts: Vec<u64> = by_context.values().flatten().map(|it| it.0).collect();
    counts.sort_unstable();
    counts.dedup();
    if counts.len() < 2 {
        return String::new();
    }
    let line = |(octave, mut rows): (Option<u32>, Vec<(u64, &StepBatch)>)| {
        rows.sort_by_key(|it| it.0);
        let points = rows.into_iter().map(|(requests, it)| ChartPoint {
            x: requests as f64,
            y: it.p50_ms,
            tooltip: format!(
                "{}, {}: {} ms",
                quantity(requests, "request"),
                quantity(it.steps, "step"),
                ms(it.p50_ms)
            ),
            link: None,
            on_front: true,
        });
        let label = octave.map_or_else(String::new, |it| {
            format!("context {} to {}", 1u64 << it, (1u128 << (it + 1)) - 1)
        });
        ChartLine { label, points: points.collect() }
    };
    let all: Vec<ChartLine> = by_context.into_iter().map(line).collect();
    lines("step-batches-chart", "Time of a decode step", ("requests of a step", "ms"), &all)
}
