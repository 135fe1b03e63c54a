//! Removal of rates above what the device can do.
//!
//! FLOPs and bytes of operators follow from their shapes, so a rate above the datasheet's peak
//! proves that the shapes are not the work: caches served operands, a call read a part of them, or
//! the times belong to other work. Such a rate, and its shares of ceilings, are in no table; a
//! finding names the row.

use std::collections::BTreeMap;

use llmprof_core::domain::device_peaks::DevicePeaks;

use super::mfu::TOLERANCE_PCT;
use crate::{
    Analysis,
    operators::OperatorRecord,
    stages::{in_sentence, in_stage},
    stats::percent,
};

/// The amount of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RateOf {
    Flops,
    /// Bytes of operands and results, or counted bytes of device memory.
    Bytes,
}

/// Shares that a rate has of ceilings, percent.
type Shares<'a, 'b> = &'a mut [&'b mut Option<f64>];

/// A removed rate.
#[derive(Debug, Clone, PartialEq)]
pub struct RemovedRate {
    pub of: RateOf,
    /// Operator or product, and stage.
    pub row: String,
    pub per_s: f64,
    /// Percent of the device's peak.
    pub pct: f64,
}

/// Calls `visit` with each rate: its amount, its dtype, the name of its row, the rate, and the
/// shares that it has of ceilings.
fn visit_rates(
    analysis: &mut Analysis,
    visit: &mut impl FnMut(RateOf, &str, &dyn Fn() -> String, &mut Option<f64>, Shares),
) {
    let Analysis { operators, mfu, gemms, roofline, .. } = analysis;
    for it in operators.by_path.iter_mut().chain(&mut operators.rolled) {
        let OperatorRecord { path, stage, dtype, flops_per_s, bytes_per_s, device, .. } = it;
        let row = || in_stage(path, stage);
        visit(RateOf::Flops, dtype, &row, flops_per_s, &mut []);
        visit(RateOf::Bytes, dtype, &row, bytes_per_s, &mut []);
        if let Some(device) = device {
            visit(RateOf::Flops, dtype, &row, &mut device.flops_per_s, &mut []);
            visit(RateOf::Bytes, dtype, &row, &mut device.bytes_per_s, &mut []);
        }
    }
    let dtype = mfu.ceilings.as_ref().map_or("", |it| &it.dtype);
    for it in &mut mfu.rows {
        let row = || in_sentence(&it.scope).to_owned();
        let shares = &mut [&mut it.datasheet_pct, &mut it.measured_pct, &mut it.clocked_pct];
        visit(RateOf::Flops, dtype, &row, &mut it.flops_per_s, shares);
        let shares = &mut [
            &mut it.datasheet_bandwidth_pct,
            &mut it.measured_bandwidth_pct,
            &mut it.clocked_bandwidth_pct,
        ];
        visit(RateOf::Bytes, dtype, &row, &mut it.bytes_per_s, shares);
    }
    for it in &mut mfu.operators {
        let row = || in_stage(&it.path, &it.stage);
        let shares = &mut [&mut it.datasheet_pct, &mut it.measured_pct, &mut it.clocked_pct];
        visit(RateOf::Flops, &it.dtype, &row, &mut it.flops_per_s, shares);
        let shares = &mut [
            &mut it.datasheet_bandwidth_pct,
            &mut it.measured_bandwidth_pct,
            &mut it.clocked_bandwidth_pct,
        ];
        visit(RateOf::Bytes, &it.dtype, &row, &mut it.bytes_per_s, shares);
    }
    for it in &mut gemms.records {
        let row = || in_stage(&format!("product of {} x {} x {}", it.m, it.n, it.k), &it.stage);
        let dtype = if it.left_type == it.right_type { &it.left_type } else { "" };
        visit(RateOf::Flops, dtype, &row, &mut it.flops_per_s, &mut [&mut it.ceiling_pct]);
    }
    for it in &mut roofline.points {
        let row = || in_stage(&it.kernel_name, &it.stage);
        // The roof at an intensity depends on both rates.
        let shares = &mut [&mut it.datasheet_pct, &mut it.measured_pct];
        let dtype = it.roof_dtype.as_deref().unwrap_or("");
        visit(RateOf::Flops, dtype, &row, &mut it.flops_per_s, shares);
        visit(RateOf::Bytes, "", &row, &mut it.bytes_per_s, shares);
    }
}

/// Peak of the amount; `None` if it is unknown. Products of f32 may use the rate of tf32, which
/// does not exceed the rate of bf16.
fn limit(of: RateOf, dtype: &str, peaks: &DevicePeaks) -> Option<f64> {
    match (of, dtype) {
        (RateOf::Bytes, _) => Some(peaks.bytes_per_s()),
        (RateOf::Flops, "f32") => {
            let peaks = ["f32", "bf16"].map(|dtype| peaks.flops_per_s(dtype));
            peaks.into_iter().flatten().max_by(f64::total_cmp)
        }
        (RateOf::Flops, dtype) => peaks.flops_per_s(dtype),
    }
}

/// Removes the rates above their limit, and the shares that they have of ceilings.
pub fn remove(analysis: &mut Analysis, peaks: Option<&DevicePeaks>) -> Vec<RemovedRate> {
    let Some(peaks) = peaks else { return vec![] };
    let mut removed: BTreeMap<(RateOf, String), RemovedRate> = BTreeMap::new();
    visit_rates(analysis, &mut |of, dtype, row, rate, shares| {
        let share = rate.and_then(|per_s| Some((per_s, percent(per_s, limit(of, dtype, peaks)?)?)));
        let Some((per_s, pct)) = share.filter(|it| it.1 > 100.0 + TOLERANCE_PCT) else { return };
        *rate = None;
        shares.iter_mut().for_each(|it| **it = None);
        let found = RemovedRate { of, row: row(), per_s, pct };
        let worst = removed.entry((of, found.row.clone())).or_insert_with(|| found.clone());
        if worst.pct < pct {
            *worst = found;
        }
    });
    let mut removed: Vec<RemovedRate> = removed.into_values().collect();
    removed.sort_by(|a, b| b.pct.total_cmp(&a.pct));
    removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roofline::{Roofline, RooflinePoint};

    #[test]
    fn a_removed_rate_has_no_share_of_a_roof() {
        let point = |flops: f64| RooflinePoint {
            kernel_name: "k".into(),
            roof_dtype: Some("bf16".into()),
            flops_per_s: Some(flops),
            bytes_per_s: Some(1e9),
            datasheet_pct: Some(50.0),
            measured_pct: Some(60.0),
            ..RooflinePoint::default()
        };
        let peaks = DevicePeaks {
            name: "d".into(),
            reported_as: vec![],
            dense_tflops: [("bf16".to_owned(), 1.0)].into(),
            boost_mhz: [].into(),
            memory_gb_s: 1.0,
            source: "s".into(),
        };
        let points = vec![point(1e12), point(2e12)];
        let mut analysis = Analysis {
            roofline: Roofline { points, ..Roofline::default() },
            ..Analysis::default()
        };
        let removed = remove(&mut analysis, Some(&peaks));
        assert_eq!(removed.iter().map(|it| it.pct).collect::<Vec<_>>(), [200.0]);
        let points = &analysis.roofline.points;
        assert_eq!(points[0], point(1e12));
        assert_eq!((points[1].flops_per_s, points[1].bytes_per_s), (None, Some(1e9)));
        assert_eq!((points[1].datasheet_pct, points[1].measured_pct), (None, None));
    }
}
