//! Rules on profiled kernels: their counters and their points of the roofline.

use Severity::{Info, Warning};

use super::{Rule, finding, kernels::kernel_time_pct, saving::kernel_saving};
use crate::{
    analyze::{
        Analysis,
        kernels::counters::CounterRecord,
        roofline::{AT_ROOF_PCT, RooflinePoint},
        stages::{PREFILL, STAGES},
    },
    domain::finding::{Finding, Severity},
    trace::Trace,
};

/// A kernel matters from this share of its stage's kernel time, percent.
const MATTERS_PCT: f64 = 5.0;
const LOW_OCCUPANCY_PCT: f64 = 25.0;
const LOW_L2_PCT: f64 = 50.0;
const BUSY_DRAM_PCT: f64 = 50.0;
const IDLE_TENSOR_PCT: f64 = 10.0;
const STALLED_PCT: f64 = 50.0;
/// A unit is not saturated below this, percent.
const SATURATED_PCT: f64 = 60.0;
const KERNEL_SAVING: Option<&str> = Some("the kernel's own time on the critical path");

pub const RULES: &[Rule] = &[
    Rule {
        id: "low_occupancy",
        severity: Warning,
        fires_on: "a profiled kernel of at least 5 % of its stage has an occupancy below 25 %, \
                   with SM and memory below 60 %",
        advice: "Use smaller tiles or fewer registers, or launch more blocks.",
        max_saving: KERNEL_SAVING,
        find: low_occupancy,
    },
    Rule {
        id: "low_l2_hit",
        severity: Warning,
        fires_on: "a profiled kernel of at least 5 % of its stage has an L2 hit rate below 50 %, \
                   with device memory at 50 % or more",
        advice: "Order its blocks so that neighbouring blocks read the same data, and check for \
                 uncoalesced strides.",
        max_saving: KERNEL_SAVING,
        find: low_l2_hit,
    },
    Rule {
        id: "tensor_cores_idle",
        severity: Warning,
        fires_on: "a GEMM kernel of at least 5 % of prefill uses tensor cores less than 10 % of \
                   the time",
        advice: "Use a dtype and sizes supported by tensor cores (bf16 or f16, multiples of 8).",
        max_saving: KERNEL_SAVING,
        find: tensor_cores_idle,
    },
    Rule {
        id: "latency_bound",
        severity: Info,
        fires_on: "one reason stalls at least half of the warps of a profiled kernel of at least \
                   5 %, with SM and device memory below 60 %",
        advice: "Give it more independent work per thread, or fuse it with its neighbours.",
        max_saving: KERNEL_SAVING,
        find: latency_bound,
    },
    Rule {
        id: "at_memory_roof",
        severity: Info,
        fires_on: "a profiled kernel of at least 5 % of its stage uses device memory at 80 % or \
                   more of its sustained rate, and SM less",
        advice: "Move fewer bytes: use a smaller dtype, fuse it with its neighbours, or reuse \
                 data over a batch.",
        max_saving: KERNEL_SAVING,
        find: at_memory_roof,
    },
    Rule {
        id: "at_compute_roof",
        severity: Info,
        fires_on: "a profiled kernel of at least 5 % of its stage uses the SMs at 80 % or more of \
                   their sustained rate, and memory no more",
        advice: "Reduce its operations, or use a smaller dtype.",
        max_saving: KERNEL_SAVING,
        find: at_compute_roof,
    },
    Rule {
        id: "tensor_work_uncounted",
        severity: Info,
        fires_on: "profiled kernels of at least 5 % of a stage used tensor cores whose operations \
                   were not counted",
        advice: "Collect ncu's sm__ops_path_tensor_src_* as well, as mode deep does where the \
                 device has them.",
        max_saving: None,
        find: tensor_work_uncounted,
    },
];

/// Predicate of a message and its evidence.
type Detected<V> = Option<(String, Vec<(&'static str, V)>)>;

/// Findings on the profiled kernels that matter and that `detect` matches.
fn profiled(
    analysis: &Analysis,
    id: &str,
    detect: impl Fn(&CounterRecord) -> Detected<f64>,
) -> Vec<Finding> {
    let found = |record: &CounterRecord| {
        let weight = kernel_time_pct(analysis, &record.stage, record.timeline_total_ms?)
            .filter(|share| *share >= MATTERS_PCT)?;
        let (predicate, rows) = detect(record)?;
        let message = format!("{} in {} {predicate}.", record.kernel_name, record.stage);
        let mut found = finding(id, message)
            .with("share of the stage's kernel time", format!("{weight:.1} %"))
            .with("profiled launches", record.profiled);
        if let Some(stage) = &record.profiled_in {
            found = found.with("profiled in", stage);
        }
        for (name, value) in rows {
            found = found.with(name, format!("{value:.1} %"));
        }
        Some(found.saves(kernel_saving(
            analysis,
            &record.stage,
            &[&record.kernel_name],
            record.timeline_total_ms?,
        )))
    };
    analysis.counters.iter().filter_map(found).collect()
}

fn low_occupancy(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    profiled(analysis, "low_occupancy", |it| {
        let achieved = it.values.achieved_occupancy_pct.filter(|pct| *pct < LOW_OCCUPANCY_PCT)?;
        // A kernel that saturates a unit needs no more warps.
        let sm = it.values.sm_pct.filter(|pct| *pct < SATURATED_PCT)?;
        let memory = it.values.memory_pct.filter(|pct| *pct < SATURATED_PCT)?;
        let rows = vec![("achieved occupancy", achieved), ("SM", sm), ("memory", memory)];
        let predicate = format!(
            "has {achieved:.0} % occupancy and saturates neither SM ({sm:.0} %) nor memory \
             ({memory:.0} %)"
        );
        Some((predicate, rows))
    })
}

fn low_l2_hit(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    profiled(analysis, "low_l2_hit", |it| {
        let hit = it.values.l2_hit_pct.filter(|pct| *pct < LOW_L2_PCT)?;
        let dram = it.values.dram_pct.filter(|pct| *pct >= BUSY_DRAM_PCT)?;
        Some((
            format!("has an L2 hit rate of {hit:.0} %, with device memory at {dram:.0} %"),
            vec![("L2 hits", hit), ("DRAM", dram)],
        ))
    })
}

fn tensor_cores_idle(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    profiled(analysis, "tensor_cores_idle", |it| {
        // Decode multiplies vectors, one token at a time: tensor cores do not apply.
        let name = it.kernel_name.to_lowercase();
        let gemm = ["gemm", "nvjet", "cutlass", "matmul"].iter().any(|word| name.contains(word));
        let busy = it
            .values
            .tensor_pct
            .filter(|pct| *pct < IDLE_TENSOR_PCT && gemm && it.stage == PREFILL)?;
        Some((
            format!("is a GEMM and uses tensor cores {busy:.0} % of the time"),
            vec![("tensor cores", busy)],
        ))
    })
}

fn latency_bound(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    profiled(analysis, "latency_bound", |it| {
        let stall = it.values.stalls.first().filter(|stall| stall.share_pct >= STALLED_PCT)?;
        let sm = it.values.sm_pct.filter(|pct| *pct < SATURATED_PCT)?;
        let dram = it.values.dram_pct.filter(|pct| *pct < SATURATED_PCT)?;
        let rows = vec![("stalled", stall.share_pct), ("SM", sm), ("DRAM", dram)];
        let predicate = format!(
            "has {:.0} % of its warps stalled by {} and saturates neither SM ({sm:.0} %) nor \
             device memory ({dram:.0} %)",
            stall.share_pct, stall.reason
        );
        Some((predicate, rows))
    })
}

/// Findings on the points of the roofline that matter and that `detect` matches.
fn points(
    analysis: &Analysis,
    id: &str,
    detect: impl Fn(&RooflinePoint) -> Detected<String>,
) -> Vec<Finding> {
    let found = |point: &RooflinePoint| {
        let weight = point.share_pct.filter(|share| *share >= MATTERS_PCT)?;
        let (predicate, rows) = detect(point)?;
        let found = finding(id, format!("{} in {} {predicate}.", point.kernel_name, point.stage))
            .with("share of the stage's kernel time", format!("{weight:.1} %"));
        let found = rows.into_iter().fold(found, |found, (name, value)| found.with(name, value));
        let ms = point.timeline_total_ms?;
        Some(found.saves(kernel_saving(analysis, &point.stage, &[&point.kernel_name], ms)))
    };
    analysis.roofline.points.iter().filter_map(found).collect()
}

fn at_memory_roof(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    points(analysis, "at_memory_roof", |it| {
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
    points(analysis, "at_compute_roof", |it| {
        let sm = it.sm_pct.filter(|pct| {
            *pct >= AT_ROOF_PCT && it.memory_pct.is_none_or(|memory| memory <= *pct)
        })?;
        let mut rows = vec![("SM", format!("{sm:.1} %"))];
        rows.extend(it.datasheet_pct.map(|pct| ("of the datasheet's roof", format!("{pct:.1} %"))));
        Some((format!("is at the compute roof: {sm:.0} % of the SMs' sustained rate"), rows))
    })
}

fn tensor_work_uncounted(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let uncounted = |stage: &str| {
        let kernels = || {
            let in_stage = analysis
                .counters
                .iter()
                .filter(move |it| it.stage == stage && !it.values.flops_complete);
            in_stage.filter(|it| it.values.tensor_pct.is_some_and(|pct| pct > 0.0))
        };
        let ms: f64 = kernels().filter_map(|it| it.timeline_total_ms).sum();
        let weight = kernel_time_pct(analysis, stage, ms).filter(|share| *share >= MATTERS_PCT)?;
        let message = format!(
            "Kernels with {weight:.0} % of the kernel time of {stage} are not in the roofline: \
             their tensor core operations were not counted."
        );
        let longest = kernels().max_by(|a, b| {
            a.timeline_total_ms.unwrap_or(0.0).total_cmp(&b.timeline_total_ms.unwrap_or(0.0))
        })?;
        Some(
            finding("tensor_work_uncounted", message)
                .with("kernels and launch configurations", kernels().count())
                .with("longest", &longest.kernel_name),
        )
    };
    STAGES.into_iter().filter_map(uncounted).collect()
}
