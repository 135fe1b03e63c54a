//! The time of decode steps by their requests, with the floor of each.

use std::collections::BTreeMap;

use llmprof_analyze::{
    Analysis,
    step_batches::{StepBatch, of_slowest},
};
use llmprof_core::trace::engine_steps::StepClass;

use crate::{
    charts::sweep::{ChartLine, ChartPoint, lines},
    format::{ms, quantity},
};

/// A line for each range of contexts, and one of its floors if a row has one; empty for steps of
/// fewer than two numbers of requests.
pub fn batches(analysis: &Analysis) -> String {
    let mut by_context: BTreeMap<Option<u32>, Vec<(u64, &StepBatch)>> = BTreeMap::new();
    let decode = analysis.step_batches.iter().filter(|it| it.class == StepClass::Decode);
    for it in of_slowest(decode) {
        let octave = it.context_min.and_then(u64::checked_ilog2);
        let requests = it.requests.map(|requests| (requests, it));
        by_context.entry(octave).or_default().extend(requests);
    }
    let mut rows: Vec<&(u64, &StepBatch)> = by_context.values().flatten().collect();
    let has_floor = rows.iter().any(|it| it.1.floor_ms.is_some());
    rows.sort_unstable_by_key(|it| it.0);
    rows.dedup_by_key(|it| it.0);
    if rows.len() < 2 {
        return String::new();
    }
    // Lines have two colours in turn: measured, floor.
    let all = by_context.into_iter().flat_map(|(octave, mut rows)| {
        rows.sort_by_key(|it| it.0);
        let floors = has_floor.then(|| floors(octave, &rows));
        std::iter::once(measured(octave, &rows)).chain(floors)
    });
    let title = match has_floor {
        true => "Time of a decode step and its floor",
        false => "Time of a decode step",
    };
    let all: Vec<ChartLine> = all.collect();
    lines("step-batches-chart", title, ("requests of a step", "ms"), &all)
}

fn measured(octave: Option<u32>, rows: &[(u64, &StepBatch)]) -> ChartLine {
    let points = rows.iter().map(|(requests, it)| ChartPoint {
        x: *requests as f64,
        y: it.p50_ms,
        tooltip: format!(
            "{}, {}: {} ms",
            quantity(*requests, "request"),
            quantity(it.steps, "step"),
            ms(it.p50_ms)
        ),
        link: None,
        on_front: true,
    });
    ChartLine { label: context(octave).unwrap_or_default(), points: points.collect() }
}

fn floors(octave: Option<u32>, rows: &[(u64, &StepBatch)]) -> ChartLine {
    let points = rows.iter().filter_map(|(requests, it)| {
        let floor = it.floor_ms?;
        let bound = if it.context_mean.is_none() { "at least " } else { "" };
        Some(ChartPoint {
            x: *requests as f64,
            y: floor,
            tooltip: format!("{}, floor: {bound}{} ms", quantity(*requests, "request"), ms(floor)),
            link: None,
            on_front: false,
        })
    });
    let label = context(octave).map_or_else(|| "floor".into(), |it| format!("floor, {it}"));
    ChartLine { label, points: points.collect() }
}

/// The contexts of a line in words; `None` if they are unknown.
fn context(octave: Option<u32>) -> Option<String> {
    octave.map(|it| format!("context {} to {}", 1u64 << it, (1u128 << (it + 1)) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headline::times::tests::batch;

    /// Rows of 2 ms: requests, mean context, floor.
    fn chart(rows: &[(u64, Option<u64>, Option<f64>)]) -> String {
        let row = |&(requests, context, floor_ms): &(u64, Option<u64>, Option<f64>)| StepBatch {
            context_min: context,
            context_max: context,
            context_mean: context,
            floor_ms,
            ..batch(StepClass::Decode, requests)
        };
        let step_batches = rows.iter().map(row).collect();
        batches(&Analysis { step_batches, ..Analysis::default() })
    }

    #[test]
    fn each_step_of_a_known_floor_has_a_point_of_it() {
        for (rows, points, floors) in [
            (&[(1, Some(600), Some(0.5)), (32, Some(700), Some(1.5))][..], 4, 2),
            (&[(1, Some(600), Some(0.5)), (32, Some(9_000), None)], 3, 1),
            (&[(1, None, Some(0.5)), (32, None, Some(0.7))], 4, 2),
            (&[(1, Some(600), None), (32, Some(700), None)], 2, 0),
            (&[(32, Some(600), Some(0.5)), (32, Some(9_000), Some(0.5))], 0, 0),
        ] {
            let svg = chart(rows);
            let found = (svg.matches("<circle").count(), svg.matches(", floor: ").count());
            assert_eq!(found, (points, floors), "{rows:?}: {svg}");
            assert_eq!(svg.contains("and its floor"), floors > 0);
            assert_eq!(svg.contains("at least"), rows[0].1.is_none() && floors > 0);
        }
    }
}
