//! Results of a sweep: a row per point, the Pareto front of latency against throughput, and where
//! operators turn from memory- to compute-bound.
//!
//! Pure arithmetic on the figures that are kept of each point. An unknown figure is absent.

mod bounds;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::stats::ratio;
pub use bounds::{BoundChange, BoundRange, OperatorBound};
use llmprof_core::domain::{
    command::ParamValue,
    ids::RunId,
    sweep::{PointAxes, SweepFigures, SweepRidge},
};

/// A point with the figures of its run.
#[derive(Debug, Clone)]
pub struct SweepPoint {
    pub position: u32,
    pub axes: PointAxes,
    pub run: Option<RunId>,
    pub gap: Option<String>,
    pub figures: Option<SweepFigures>,
}

/// Figures of one point; absent if they were not measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SweepRow {
    pub position: u32,
    /// Value of each axis.
    pub axes: BTreeMap<String, ParamValue>,
    #[cfg_attr(feature = "schema", schema(value_type = Option<uuid::Uuid>))]
    pub run_id: Option<RunId>,
    /// Why it has no figures; `null` also while it is not measured yet.
    pub gap: Option<String>,
    /// Median time to first token, milliseconds.
    pub ttft_ms: Option<f64>,
    /// Median time per output token, milliseconds.
    pub tpot_ms: Option<f64>,
    /// Median wall time, milliseconds.
    pub wall_ms: Option<f64>,
    /// Output tokens per second of a whole repeat, the median over repeats; of a load, all of its
    /// output tokens over its time.
    pub tokens_per_s: Option<f64>,
    /// Joules per output token.
    pub energy_j: Option<f64>,
    /// Percent of the datasheet's dense peak.
    pub mfu_pct: Option<f64>,
    /// Lower bound of a repeat by the model's FLOPs and bytes, milliseconds.
    pub floor_ms: Option<f64>,
    /// Time of the stages over their floor.
    pub times_floor: Option<f64>,
    /// Mean time of each stage, milliseconds.
    pub stages: BTreeMap<String, f64>,
    /// No other point has both a lower latency and a higher throughput.
    pub on_front: bool,
}

/// Results of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SweepResults {
    /// A row per point, in the order of the grid.
    pub rows: Vec<SweepRow>,
    /// Positions on the Pareto front of time per output token against tokens per second, lowest
    /// time first.
    pub front: Vec<u32>,
    /// Ridge point of the device; `null` if its peaks are unknown, or differ between points.
    pub ridge: Option<SweepRidge>,
    /// Operators along each axis of numbers.
    pub operators: Vec<OperatorBound>,
}

/// Computes the results of the points so far.
pub fn results(points: &[SweepPoint]) -> SweepResults {
    let mut rows: Vec<SweepRow> = points.iter().map(row).collect();
    let front = front(&rows);
    rows.iter_mut().for_each(|row| row.on_front = front.contains(&row.position));
    let ridge = ridge(points);
    SweepResults { operators: bounds::operators(points), rows, front, ridge }
}

fn row(point: &SweepPoint) -> SweepRow {
    let figures = point.figures.as_ref();
    let headline = figures.map(|it| it.headline).unwrap_or_default();
    let stages = figures.map_or(&[][..], |it| &it.stages);
    let floor: Option<f64> = stages.iter().map(|it| it.floor_ms).sum();
    let floor_ms = floor.filter(|_| !stages.is_empty());
    let total: f64 = stages.iter().map(|it| it.ms).sum();
    SweepRow {
        position: point.position,
        axes: point.axes.clone(),
        run_id: point.run,
        gap: point.gap.clone(),
        ttft_ms: headline.ttft,
        tpot_ms: headline.tpot,
        wall_ms: headline.wall,
        tokens_per_s: headline.tokens_per_s,
        energy_j: headline.energy,
        mfu_pct: headline.mfu,
        floor_ms,
        times_floor: floor_ms.and_then(|floor| ratio(total, floor)),
        stages: stages.iter().map(|it| (it.stage.clone(), it.ms)).collect(),
        on_front: false,
    }
}

/// Positions of the rows that no other row dominates, lowest time per token first.
fn front(rows: &[SweepRow]) -> Vec<u32> {
    let known: Vec<(u32, f64, f64)> =
        rows.iter().filter_map(|it| Some((it.position, it.tpot_ms?, it.tokens_per_s?))).collect();
    let dominated = |&(_, latency, rate): &(u32, f64, f64)| {
        known.iter().any(|(_, l, r)| *l <= latency && *r >= rate && (*l < latency || *r > rate))
    };
    let mut front: Vec<_> = known.iter().filter(|it| !dominated(it)).copied().collect();
    front.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    front.into_iter().map(|(position, ..)| position).collect()
}

/// The ridge that all points have in common.
fn ridge(points: &[SweepPoint]) -> Option<SweepRidge> {
    let mut measured = points.iter().filter_map(|it| it.figures.as_ref());
    let first = measured.next()?.ridge.clone()?;
    measured.all(|it| it.ridge.as_ref() == Some(&first)).then_some(first)
}

/// The number of an axis's value.
pub fn number(value: &ParamValue) -> Option<f64> {
    match value {
        ParamValue::Int(number) => Some(*number as f64),
        ParamValue::Float(number) => Some(*number),
        ParamValue::Flag(_) | ParamValue::Text(_) => None,
    }
}

/// The axes along which every value is a number and at least two differ, by name.
pub fn number_axes<'a>(axes: impl Iterator<Item = &'a PointAxes>) -> Vec<String> {
    let mut values: BTreeMap<&str, Option<Vec<f64>>> = BTreeMap::new();
    for point in axes {
        for (name, value) in point {
            let all = values.entry(name).or_insert_with(|| Some(Vec::new()));
            match (number(value), &mut *all) {
                (Some(number), Some(numbers)) => numbers.push(number),
                _ => *all = None,
            }
        }
    }
    let differ = |numbers: &[f64]| numbers.iter().any(|it| *it != numbers[0]);
    let is_axis = |numbers: &Option<Vec<f64>>| numbers.as_deref().is_some_and(differ);
    values.into_iter().filter(|(_, it)| is_axis(it)).map(|(name, _)| name.to_owned()).collect()
}
