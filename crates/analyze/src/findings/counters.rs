//! Rules on profiled kernels: their counters and their points of the roofline.

use foldhash::HashMap;
use llmprof_core::{
    domain::finding::{
        Finding,
        catalogue::{self, FindingId},
    },
    trace::{Trace, counter::UncountedOperations},
};

use super::{Rule, kernels::kernel_time_pct, saving::kernel_saving};
use crate::{
    Analysis,
    kernels::counters::CounterRecord,
    roofline::{AT_ROOF_PCT, RooflinePoint},
    stages::{STAGES, in_sentence},
};

/// A kernel matters from this share of its stage's kernel time, percent.
const MATTERS_PCT: f64 = 5.0;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::AT_MEMORY_ROOF, find: at_memory_roof },
    Rule { id: catalogue::AT_COMPUTE_ROOF, find: at_compute_roof },
    Rule { id: catalogue::TENSOR_WORK_UNCOUNTED, find: tensor_work_uncounted },
    Rule { id: catalogue::LAUNCHES_UNLIKE_PROFILED, find: launches_unlike_profiled },
];

/// Predicate of a message and its evidence.
type Detected<V> = Option<(String, Vec<(&'static str, V)>)>;

/// Findings on the points of the roofline that matter and that `detect` matches.
fn points(
    analysis: &Analysis,
    id: FindingId,
    detect: impl Fn(&RooflinePoint) -> Detected<String>,
) -> Vec<Finding> {
    let found = |point: &RooflinePoint| {
        let weight = point.share_pct.filter(|share| *share >= MATTERS_PCT)?;
        let (predicate, rows) = detect(point)?;
        let stage = in_sentence(&point.stage);
        let found = Finding::new(id, format!("{} in {stage} {predicate}.", point.kernel_name))
            .with("share of the stage's kernel time", format!("{weight:.1} %"));
        let has_full_name = !["", &point.kernel_name].contains(&point.full_name.as_str());
        let found = if has_full_name { found.with("kernel", &point.full_name) } else { found };
        let found = rows.into_iter().fold(found, |found, (name, value)| found.with(name, value));
        let ms = point.timeline_total_ms?;
        Some(found.saves(kernel_saving(analysis, &point.stage, &[&point.kernel_name], ms)))
    };
    analysis.roofline.points.iter().filter_map(found).collect()
}

fn at_memory_roof(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    points(analysis, catalogue::AT_MEMORY_ROOF, |it| {
        let dram = it
            .dram_pct
            .filter(|pct| *pct >= AT_ROOF_PCT && it.sm_pct.is_none_or(|sm| sm < *pct))?;
        let mut rows = vec![("DRAM", format!("{dram:.1} %"))];
        rows.extend(it.dram_bytes.map(|bytes| ("bytes of a launch", format!("{bytes:.0}"))));
        rows.extend(it.flops_per_byte.map(|ratio| ("FLOP/B", format!("{ratio:.2}"))));
        Some((format!("is at the memory roof: {dram:.0} % of the sustained bandwidth"), rows))
    })
}

fn at_compute_roof(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    points(analysis, catalogue::AT_COMPUTE_ROOF, |it| {
        let sm = it.sm_pct.filter(|pct| {
            *pct >= AT_ROOF_PCT && it.memory_pct.is_none_or(|memory| memory <= *pct)
        })?;
        let mut rows = vec![("SM", format!("{sm:.1} %"))];
        rows.extend(it.datasheet_pct.map(|pct| ("of the datasheet's roof", format!("{pct:.1} %"))));
        Some((format!("is at the compute roof: {sm:.0} % of the SMs' sustained rate"), rows))
    })
}

fn launches_unlike_profiled(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let unlike = |stage: &str| {
        let configs: HashMap<_, &CounterRecord> = analysis
            .counters
            .iter()
            .filter(|it| it.stage == stage && it.unlike_ms.is_some_and(|ms| ms > 0.0))
            .map(|it| (it.config(), it))
            .collect();
        let ms = |it: &CounterRecord| it.unlike_ms.unwrap_or(0.0);
        let all_ms: f64 = configs.values().map(|it| ms(it)).sum();
        let weight =
            kernel_time_pct(analysis, stage, all_ms).filter(|share| *share >= MATTERS_PCT)?;
        let most = configs.values().max_by(|a, b| ms(a).total_cmp(&ms(b)))?;
        let message = format!(
            "No counters stand for {weight:.0} % of the kernel time of {stage}: its kernels were \
             profiled in launches of other durations, which do other work.",
            stage = in_sentence(stage)
        );
        let found = Finding::new(catalogue::LAUNCHES_UNLIKE_PROFILED, message)
            .with("kernels and launch configurations", configs.len())
            .with("most time", &most.kernel_name)
            .with("its launches without counters, ms", format!("{:.3}", ms(most)));
        let mean_ms = most.timeline_mean_ms.map(|mean| format!("{mean:.4}"));
        Some(
            mean_ms.into_iter().fold(found, |found, mean| {
                found.with("mean of its launches with counters, ms", mean)
            }),
        )
    };
    STAGES.into_iter().filter_map(unlike).collect()
}

fn tensor_work_uncounted(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let uncounted = |stage: &str| {
        let kernels = || {
            let in_stage = analysis.counters.iter().filter(move |it| it.stage == stage);
            in_stage.filter(|it| it.values.uncounted == Some(UncountedOperations::TensorCores))
        };
        let ms: f64 = kernels().filter_map(|it| it.timeline_total_ms).sum();
        let weight = kernel_time_pct(analysis, stage, ms).filter(|share| *share >= MATTERS_PCT)?;
        let message = format!(
            "Kernels with {weight:.0} % of the kernel time of {stage} are not in the roofline: \
             their tensor core operations were not counted.",
            stage = in_sentence(stage)
        );
        let longest = kernels().max_by(|a, b| {
            a.timeline_total_ms.unwrap_or(0.0).total_cmp(&b.timeline_total_ms.unwrap_or(0.0))
        })?;
        Some(
            Finding::new(catalogue::TENSOR_WORK_UNCOUNTED, message)
                .with("kernels and launch configurations", kernels().count())
                .with("longest", &longest.kernel_name),
        )
    };
    STAGES.into_iter().filter_map(uncounted).collect()
}
