//! Calls, kernels and times of GEMMs by shape.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::units::Nanos,
    trace::{
        gemm::{GemmCall, GemmShape},
        names::signature,
        timeline::Timeline,
    },
};

use super::{
    ChosenAlgorithm, GemmRecord, LOG,
    join::{JoinedCall, TimelineGemms},
};
use crate::{
    kernels::{LaunchConfig, gemm_tiles::tile_of},
    stats::{percent, ratio},
};

/// Calls and kernels of one shape.
#[derive(Default)]
pub struct ShapeTally<'a> {
    calls: u64,
    /// Algorithms in the log.
    logged: BTreeSet<&'a str>,
    /// Launches and time by launch kind.
    kernels: BTreeMap<u32, (u64, i64)>,
    kernel: ShapeKernel,
}

/// Kernel of a shape in the traced pass.
#[derive(Default)]
struct ShapeKernel {
    name: Option<String>,
    signature: String,
    launch: Option<LaunchConfig>,
    tile: Option<String>,
    fill_pct: Option<f64>,
}

/// Calls by shape and function.
#[derive(Default)]
pub struct ShapeTallies<'a>(BTreeMap<(&'a GemmShape, &'a str), ShapeTally<'a>>);

impl<'a> ShapeTallies<'a> {
    pub fn of(calls: &'a [GemmCall]) -> Self {
        let mut shapes = Self::default();
        for call in calls {
            let tally = shapes.0.entry((&call.shape, &call.function)).or_default();
            tally.calls += 1;
            tally.logged.extend(call.algorithm.as_deref());
        }
        shapes
    }

    pub fn add_kernels(
        &mut self,
        calls: &'a [GemmCall],
        joined: &[JoinedCall],
        timeline: &TimelineGemms,
    ) {
        for it in joined {
            let call = &calls[it.call];
            let tally = self.0.entry((&call.shape, &call.function)).or_default();
            let sum = tally.kernels.entry(it.gemm.kind).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(it.gemm.ns));
        }
        for ((shape, _), tally) in &mut self.0 {
            tally.kernel = ShapeKernel::of(shape, &tally.kernels, timeline.trace());
        }
    }

    pub fn records(
        &mut self,
        stage: &str,
        chosen: &ChosenAlgorithm,
        decode_steps: u64,
    ) -> Vec<GemmRecord> {
        let shapes = std::mem::take(&mut self.0);
        let mut records: Vec<GemmRecord> = shapes
            .into_iter()
            .map(|((shape, function), tally)| GemmRecord {
                stage: stage.to_owned(),
                function: function.to_owned(),
                calls_per_step: ratio(tally.calls as f64, decode_steps as f64),
                ..tally.record(shape, chosen)
            })
            .collect();
        let total: f64 = records.iter().map(|it| it.total_flops as f64).sum();
        records.iter_mut().for_each(|it| it.share_pct = percent(it.total_flops as f64, total));
        records.sort_by_key(|it| std::cmp::Reverse(it.total_flops));
        records
    }
}

impl ShapeKernel {
    fn of(shape: &GemmShape, kernels: &BTreeMap<u32, (u64, i64)>, trace: &Timeline) -> Self {
        let name = |at: u32| trace.text(at);
        let launch_kind = |kind: u32| &trace.kernels.kinds()[kind as usize];
        let Some((longest, _)) = kernels.iter().max_by_key(|(_, (_, ns))| *ns) else {
            return Self::default();
        };
        let tile = |kind: u32| {
            let kind = launch_kind(kind);
            tile_of(name(kind.full_name))?.of_launch(shape, kind.blocks())
        };
        let fills: Option<Vec<(f64, i64)>> = kernels
            .iter()
            .map(|(kind, (_, ns))| Some((tile(*kind)?.fill_pct(shape)?, *ns)))
            .collect();
        let fills = fills.unwrap_or_default();
        let total: f64 = fills.iter().map(|(_, ns)| *ns as f64).sum();
        let kind = launch_kind(*longest);
        Self {
            name: Some(name(kind.name).to_owned()),
            signature: signature(name(kind.full_name)),
            launch: Some((kind.grid, kind.block)),
            tile: tile(*longest).map(|tile| tile.to_string()),
            fill_pct: ratio(fills.iter().map(|(fill, ns)| fill * *ns as f64).sum(), total),
        }
    }
}

/// The record of a product with the launches and times of its kernels.
pub fn joined_record(
    shape: &GemmShape,
    calls: u64,
    kernels: BTreeMap<u32, (u64, i64)>,
    trace: &Timeline,
) -> GemmRecord {
    let kernel = ShapeKernel::of(shape, &kernels, trace);
    let tally = ShapeTally { calls, kernels, kernel, ..ShapeTally::default() };
    tally.record(shape, &ChosenAlgorithm::new())
}

impl ShapeTally<'_> {
    fn record(self, shape: &GemmShape, chosen: &ChosenAlgorithm) -> GemmRecord {
        let known = if self.logged.is_empty() {
            chosen.get(shape).cloned().unwrap_or_default()
        } else {
            self.logged
        };
        let algorithm = known.into_iter().collect::<Vec<_>>().join("; or ");
        let (launches, ns) = self
            .kernels
            .values()
            .fold((0, 0i64), |(calls, sum), (more, ns)| (calls + more, sum.saturating_add(*ns)));
        let ms = (launches > 0).then(|| Nanos(ns).as_ms());
        let per_second = |ms: f64| ratio(shape.flops() as f64 * launches as f64, ms / 1e3);
        GemmRecord {
            origin: LOG.into(),
            m: shape.m,
            n: shape.n,
            k: shape.k,
            batch: shape.batch,
            left_type: shape.left_type.clone(),
            right_type: shape.right_type.clone(),
            out_type: shape.out_type.clone(),
            left_transposed: shape.left_transposed,
            right_transposed: shape.right_transposed,
            compute: shape.compute.clone(),
            algorithm: Some(algorithm).filter(|it| !it.is_empty()),
            calls: self.calls,
            flops_per_call: shape.flops(),
            total_flops: shape.flops().saturating_mul(self.calls),
            kernel_name: self.kernel.name,
            kernel_calls: ms.map(|_| launches),
            kernel_ms: ms,
            kernel_mean_us: ms.and_then(|ms| ratio(ms * 1e3, launches as f64)),
            flops_per_s: ms.and_then(per_second),
            tile: self.kernel.tile,
            tile_fill_pct: self.kernel.fill_pct,
            launch: self.kernel.launch,
            signature: self.kernel.signature,
            ..GemmRecord::default()
        }
    }
}
