//! Where along an axis operators turn from memory- to compute-bound: predicted and measured.
//!
//! Predicted: an operator with F FLOPs and B bytes (by the model's architecture) is limited by
//! compute if F / B reaches the ridge point of the device, peak FLOP/s over peak bytes/s (Williams,
//! Waterman, Patterson: "Roofline", CACM 52(4), 2009). Measured: between neighbouring points its
//! time grows as the bytes do if memory limits it, and as the FLOPs do if compute does: the share
//! (ln t2/t1 - ln B2/B1) / (ln F2/F1 - ln B2/B1) is 0 and 1, and the bound is the nearer one. If
//! FLOPs and bytes grow alike, times decide nothing.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::domain::{
    command::ParamValue,
    sweep::{SweepOperator, SweepRidge},
};
use serde::{Deserialize, Serialize};

use super::{SweepPoint, number, number_axes};

/// Min difference of the logarithmic growth of FLOPs and bytes from which times decide.
const DISTINCT: f64 = 0.2;

/// Course of an operator's bound along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BoundChange {
    /// Memory-bound at every known value.
    Memory,
    /// Compute-bound at every known value.
    Compute,
    /// Memory-bound up to one value, compute-bound from a later one.
    Turns,
    /// It changes more than once.
    Mixed,
    /// No value is known.
    Unknown,
}

/// Where an operator is memory- and compute-bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BoundRange {
    pub change: BoundChange,
    /// Last value of the axis at which it is memory-bound.
    pub memory_until: Option<f64>,
    /// First value of the axis from which it is compute-bound.
    pub compute_from: Option<f64>,
}

/// Bounds of an operator along one axis, the others fixed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OperatorBound {
    /// Axis of numbers.
    #[cfg_attr(feature = "schema", schema(example = "prompt_tokens"))]
    pub axis: String,
    /// Values of the other axes.
    pub at: BTreeMap<String, ParamValue>,
    #[cfg_attr(feature = "schema", schema(example = "prefill"))]
    pub stage: String,
    #[cfg_attr(feature = "schema", schema(example = "decoder.layers.*.mlp.down_proj"))]
    pub operator: String,
    pub predicted: BoundRange,
    pub measured: BoundRange,
}

/// An operator at one value of an axis.
struct AxisSample<'a> {
    at: f64,
    operator: &'a SweepOperator,
    ridge: Option<&'a SweepRidge>,
}

/// Bounds of each operator along each axis of numbers.
pub(super) fn operators(points: &[SweepPoint]) -> Vec<OperatorBound> {
    let axes = number_axes(points.iter().map(|it| &it.axes));
    axes.iter().flat_map(|axis| along(points, axis)).collect()
}

/// A stage and the path of an operator.
type OperatorKey<'a> = (&'a str, &'a str);

fn along(points: &[SweepPoint], axis: &str) -> Vec<OperatorBound> {
    let mut bounds = Vec::new();
    // Points that differ in this axis only; points of an axis of texts are as unlike as their
    // texts.
    let mut groups: BTreeMap<String, Vec<&SweepPoint>> = BTreeMap::new();
    for point in points.iter().filter(|it| it.figures.is_some()) {
        let others = others(point, axis);
        let key = others.iter().map(|(name, it)| format!("{name}={it}\n")).collect();
        groups.entry(key).or_default().push(point);
    }
    for group in groups.values() {
        let mut operators: BTreeMap<OperatorKey, Vec<AxisSample>> = BTreeMap::new();
        for point in group {
            let at = point.axes.get(axis).and_then(number);
            let (Some(at), Some(figures)) = (at, &point.figures) else { continue };
            for operator in &figures.operators {
                let key = (operator.stage.as_str(), operator.path.as_str());
                let sample = AxisSample { at, operator, ridge: figures.ridge.as_ref() };
                operators.entry(key).or_default().push(sample);
            }
        }
        for ((stage, path), mut samples) in operators {
            samples.sort_by(|a, b| a.at.total_cmp(&b.at));
            let distinct: BTreeSet<u64> = samples.iter().map(|it| it.at.to_bits()).collect();
            if distinct.len() < 2 {
                continue;
            }
            bounds.push(OperatorBound {
                axis: axis.to_owned(),
                at: others(group[0], axis),
                stage: stage.to_owned(),
                operator: path.to_owned(),
                predicted: predicted(&samples),
                measured: measured(&samples),
            });
        }
    }
    bounds
}

fn others(point: &SweepPoint, axis: &str) -> BTreeMap<String, ParamValue> {
    let others = point.axes.iter().filter(|(name, _)| *name != axis);
    others.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The bound at each value by the intensity and the ridge point.
fn predicted(samples: &[AxisSample]) -> BoundRange {
    let bound = |it: &AxisSample| {
        let ridge = it.ridge?.flops_per_byte;
        (it.operator.bytes > 0.0).then(|| (it.at, it.operator.flops / it.operator.bytes >= ridge))
    };
    range(&samples.iter().filter_map(bound).map(|it| (it, it)).collect::<Vec<_>>())
}

/// The bound between neighbouring values by the growth of the time.
fn measured(samples: &[AxisSample]) -> BoundRange {
    let bound = |pair: &[AxisSample]| {
        let [a, b] = pair else { return None };
        let growth = |of: fn(&SweepOperator) -> f64| {
            let grown = (of(b.operator) / of(a.operator)).ln();
            grown.is_finite().then_some(grown)
        };
        let (flops, bytes) = (growth(|it| it.flops)?, growth(|it| it.bytes)?);
        let time = (b.operator.ms? / a.operator.ms?).ln();
        let is_known = time.is_finite() && (flops - bytes).abs() >= DISTINCT;
        let is_compute = (time - bytes) / (flops - bytes) >= 0.5;
        is_known.then_some(((a.at, is_compute), (b.at, is_compute)))
    };
    range(&samples.windows(2).filter_map(bound).collect::<Vec<_>>())
}

/// A value of an axis, and whether the operator is compute-bound there.
type BoundAt = (f64, bool);

/// Sums up bounds, in order; each holds from one value to another.
fn range(bounds: &[(BoundAt, BoundAt)]) -> BoundRange {
    let memory = bounds.iter().filter(|(from, _)| !from.1);
    let memory_until = memory.clone().map(|(_, to)| to.0).next_back();
    let compute = bounds.iter().filter(|(from, _)| from.1);
    let compute_from = compute.map(|(from, _)| from.0).next();
    let turns = bounds.windows(2).filter(|pair| pair[0].0.1 != pair[1].0.1).count();
    let change = match (memory_until, compute_from) {
        (None, None) => BoundChange::Unknown,
        (Some(_), None) => BoundChange::Memory,
        (None, Some(_)) => BoundChange::Compute,
        (Some(_), Some(_)) if turns == 1 && !bounds[0].0.1 => BoundChange::Turns,
        (Some(_), Some(_)) => BoundChange::Mixed,
    };
    BoundRange { change, memory_until, compute_from }
}
