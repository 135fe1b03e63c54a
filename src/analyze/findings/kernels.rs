//! Rules on kernels, their counters, the calls that launch and copy, and matrix products.
//!
//! Each fires on what the tools recorded. A kernel's class is told by its name here, and only where a rule needs no more.

use super::{
    super::{
        Analysis,
        counters::CounterRecord,
        gemms::GemmRecord,
        kernels::KernelRecord,
        roofline::{AT_ROOF_PCT, RooflinePoint},
        stages::{DECODE, PREFILL, STAGES},
        stats::{percent, ratio},
    },
    finding,
    time::{call_saving, kernel_saving, repeats, replays},
};
use crate::{
    run::Finding,
    trace::{Trace, names::base_name},
};

/// A kernel matters from this share of its stage's kernel time on, percent.
const MATTERS_PCT: f64 = 5.0;
const LOW_OCCUPANCY_PCT: f64 = 25.0;
const LOW_L2_PCT: f64 = 50.0;
const BUSY_DRAM_PCT: f64 = 50.0;
const IDLE_TENSOR_PCT: f64 = 10.0;
const STALLED_PCT: f64 = 50.0;
const UNUSED_PCT: f64 = 60.0;
/// A kernel shorter than this is tiny.
const TINY_MS: f64 = 0.005;
/// Rows of a product below this leave most of a tile of tensor cores empty.
const SMALL_ROWS: u64 = 16;
/// Side of the tile that products are held against, and how much of it they should fill, percent.
const TILE: u64 = 128;
const FILLED_PCT: f64 = 75.0;
/// Synchronising calls per decode step that are more than the one that ends it.
const SYNCS: f64 = 2.0;

/// Share of a stage's kernel time, percent.
fn share(analysis: &Analysis, stage: &str, ms: f64) -> Option<f64> {
    percent(ms, analysis.kernels.stage_ms(stage)?)
}

/// Profiled kernels that matter and of which `tells` says something, as findings.
fn profiled(
    analysis: &Analysis,
    id: &str,
    tells: impl Fn(&CounterRecord) -> Option<(String, Vec<(&'static str, f64)>)>,
) -> Vec<Finding> {
    let told = |record: &CounterRecord| {
        let weight = share(analysis, &record.stage, record.timeline_total_ms?).filter(|share| *share >= MATTERS_PCT)?;
        let (what, rows) = tells(record)?;
        let mut found = finding(id, format!("{} in {} {what}.", record.kernel_name, record.stage))
            .with("share of the stage's kernel time", format!("{weight:.1} %"))
            .with("profiled launches", record.profiled);
        for (name, value) in rows {
            found = found.with(name, format!("{value:.1} %"));
        }
        Some(found.saves(kernel_saving(analysis, &record.stage, &[&record.kernel_name], record.timeline_total_ms?)))
    };
    analysis.counters.iter().filter_map(told).collect()
}

pub fn low_occupancy(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    profiled(analysis, "low_occupancy", |it| {
        let achieved = it.values.achieved_occupancy_pct.filter(|pct| *pct < LOW_OCCUPANCY_PCT)?;
        // A kernel that keeps a unit busy needs no more warps.
        let sm = it.values.sm_pct.filter(|pct| *pct < UNUSED_PCT)?;
        let memory = it.values.memory_pct.filter(|pct| *pct < UNUSED_PCT)?;
        let rows = vec![("achieved occupancy", achieved), ("SM", sm), ("memory", memory)];
        Some((format!("keeps {achieved:.0} % of the warps resident and no unit busy"), rows))
    })
}

pub fn low_l2_hit(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    profiled(analysis, "low_l2_hit", |it| {
        let hit = it.values.l2_hit_pct.filter(|pct| *pct < LOW_L2_PCT)?;
        let dram = it.values.dram_pct.filter(|pct| *pct >= BUSY_DRAM_PCT)?;
        Some((format!("finds {hit:.0} % of its data in L2, and device memory is busy"), vec![("L2 hits", hit), ("DRAM", dram)]))
    })
}

pub fn tensor_cores_idle(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    profiled(analysis, "tensor_cores_idle", |it| {
        // One token at a time multiplies vectors, which tensor cores are not for.
        let name = it.kernel_name.to_lowercase();
        let product = ["gemm", "nvjet", "cutlass", "matmul"].iter().any(|word| name.contains(word));
        let idle = it.values.tensor_pct.filter(|pct| *pct < IDLE_TENSOR_PCT && product && it.stage == PREFILL)?;
        Some((format!("multiplies matrices and uses tensor cores {idle:.0} % of the time"), vec![("tensor cores", idle)]))
    })
}

pub fn latency_bound(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    profiled(analysis, "latency_bound", |it| {
        let stall = it.values.stalls.first().filter(|stall| stall.share_pct >= STALLED_PCT)?;
        let sm = it.values.sm_pct.filter(|pct| *pct < UNUSED_PCT)?;
        let dram = it.values.dram_pct.filter(|pct| *pct < UNUSED_PCT)?;
        let rows = vec![("stalled", stall.share_pct), ("SM", sm), ("DRAM", dram)];
        Some((format!("waits ({}) and keeps neither arithmetic nor memory busy", stall.reason), rows))
    })
}

/// Points of the roofline that matter and of which `tells` says something, as findings.
fn points(
    analysis: &Analysis,
    id: &str,
    tells: impl Fn(&RooflinePoint) -> Option<(String, Vec<(&'static str, String)>)>,
) -> Vec<Finding> {
    let told = |point: &RooflinePoint| {
        let weight = point.share_pct.filter(|share| *share >= MATTERS_PCT)?;
        let (what, rows) = tells(point)?;
        let found = finding(id, format!("{} in {} {what}.", point.kernel_name, point.stage));
        let found = found.with("share of the stage's kernel time", format!("{weight:.1} %"));
        let found = rows.into_iter().fold(found, |found, (name, value)| found.with(name, value));
        let ms = point.timeline_total_ms?;
        Some(found.saves(kernel_saving(analysis, &point.stage, &[&point.kernel_name], ms)))
    };
    analysis.roofline.points.iter().filter_map(told).collect()
}

pub fn at_memory_roof(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    points(analysis, "at_memory_roof", |it| {
        let dram = it.dram_pct.filter(|pct| *pct >= AT_ROOF_PCT && it.sm_pct.is_none_or(|sm| sm < *pct))?;
        let mut rows = vec![("DRAM", format!("{dram:.1} %"))];
        rows.extend(it.dram_bytes.map(|bytes| ("bytes of a launch", format!("{bytes:.0}"))));
        rows.extend(it.flops_per_byte.map(|ratio| ("FLOP/B", format!("{ratio:.2}"))));
        Some((format!("uses {dram:.0} % of what device memory sustains: it is at the roof"), rows))
    })
}

pub fn at_compute_roof(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    points(analysis, "at_compute_roof", |it| {
        let sm = it.sm_pct.filter(|pct| *pct >= AT_ROOF_PCT && it.memory_pct.is_none_or(|memory| memory <= *pct))?;
        let mut rows = vec![("SM", format!("{sm:.1} %"))];
        rows.extend(it.datasheet_pct.map(|pct| ("of the datasheet's roof", format!("{pct:.1} %"))));
        Some((format!("uses {sm:.0} % of what the multiprocessors sustain: it is at the roof"), rows))
    })
}

pub fn tensor_work_uncounted(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let tell = |stage: &str| {
        let of = || {
            let in_stage = analysis.counters.iter().filter(move |it| it.stage == stage && !it.values.flops_complete);
            in_stage.filter(|it| it.values.tensor_pct.is_some_and(|pct| pct > 0.0))
        };
        let ms: f64 = of().filter_map(|it| it.timeline_total_ms).sum();
        let weight = share(analysis, stage, ms).filter(|share| *share >= MATTERS_PCT)?;
        let message = format!("Kernels that take {weight:.0} % of the kernel time of {stage} have no place in the roofline.");
        let found = finding("tensor_work_uncounted", message).with("kernels and geometries", of().count());
        let longest = of().max_by(|a, b| a.timeline_total_ms.unwrap_or(0.0).total_cmp(&b.timeline_total_ms.unwrap_or(0.0)))?;
        Some(found.with("longest", &longest.kernel_name))
    };
    STAGES.into_iter().filter_map(tell).collect()
}

/// Kernels of a stage whose name says a kind of work, as one finding.
fn named(analysis: &Analysis, stage: &str, id: &str, what: &str, words: &[&str]) -> Option<Finding> {
    let of = |it: &&KernelRecord| {
        let name = it.kernel_name.to_lowercase();
        it.stage == stage && words.iter().any(|word| has_word(&name, word))
    };
    let records: Vec<_> = analysis.kernels.measured().filter(of).collect();
    let total_ms = records.iter().map(|it| it.total_ms).sum();
    let weight = share(analysis, stage, total_ms).filter(|share| *share >= MATTERS_PCT)?;
    let mut found = finding(id, format!("{what} take {weight:.0} % of the kernel time of {stage}."))
        .with("calls", records.iter().map(|it| it.calls).sum::<u64>());
    for (index, it) in records.iter().take(3).enumerate() {
        found = found.with(&format!("kernel ({})", index + 1), format!("{}, {:.3} ms", it.kernel_name, it.total_ms));
    }
    let names: Vec<&str> = records.iter().map(|it| it.kernel_name.as_str()).collect();
    Some(found.saves(kernel_saving(analysis, stage, &names, total_ms)))
}

/// Whether a name holds `word` from its begin on: `broadcast` does not hold `cast`.
fn has_word(name: &str, word: &str) -> bool {
    name.match_indices(word).any(|(at, _)| !name[..at].ends_with(|before: char| before.is_ascii_alphabetic()))
}

pub fn cast_share(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let words = ["cast", "convert", "to_dtype"];
    STAGES.into_iter().filter_map(|stage| named(analysis, stage, "cast_share", "Conversions of number formats", &words)).collect()
}

pub fn kv_cache_copies(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // A graph replays fixed addresses, so a cache that it reads does not grow; `index_copy` writes one in place.
    if replays(analysis) {
        return vec![];
    }
    let words = ["catarray", "cat_batched", "concat", "repeat_kv"];
    named(analysis, DECODE, "kv_cache_copies", "Copies that join tensors, as a growing cache makes them,", &words)
        .into_iter()
        .collect()
}

pub fn tiny_kernels(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let tell = |stage: &str| {
        let all: Vec<_> = analysis.kernels.measured().filter(|it| it.stage == stage).collect();
        let tiny = || all.iter().filter(|it| it.mean_ms < TINY_MS);
        let (few, calls) = (tiny().map(|it| it.calls).sum::<u64>(), all.iter().map(|it| it.calls).sum::<u64>());
        let of_calls = percent(few as f64, calls as f64).filter(|pct| *pct >= 80.0 && calls >= 100)?;
        let total_ms = tiny().map(|it| it.total_ms).sum();
        let weight = share(analysis, stage, total_ms)?;
        let message = format!("{of_calls:.0} % of the kernels of {stage} are shorter than {:.0} µs.", TINY_MS * 1e3);
        let found = finding("tiny_kernels", message).with("tiny launches", few).with("launches", calls);
        let mut found = found.with("share of kernel time", format!("{weight:.1} %"));
        if stage == DECODE && replays(analysis) {
            found = found.advise("Fuse them: inside a replayed graph, too, each is started by itself.");
        }
        let names: Vec<&str> = tiny().map(|it| it.kernel_name.as_str()).collect();
        Some(found.saves(kernel_saving(analysis, stage, &names, total_ms)))
    };
    STAGES.into_iter().filter_map(tell).collect()
}

pub fn name_collisions(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let collides = |it: &&KernelRecord| it.name_variants > 1 && it.share_pct.is_some_and(|share| share >= 10.0);
    let tell = |it: &KernelRecord| {
        let message =
            format!("{} kernels with different parameters share the name {}.", it.name_variants, base_name(&it.kernel_name));
        let found = finding("name_collisions", message).with("stage", &it.stage).with("variants", it.name_variants);
        found.with("share of the stage's kernel time", format!("{:.1} %", it.share_pct.unwrap_or_default()))
    };
    analysis.kernels.measured().filter(collides).map(tell).collect()
}

pub fn host_sync_in_decode(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = || {
        let calls = analysis.stage_calls.get(DECODE)?;
        let steps = analysis.stages.decode_steps? as f64 * repeats(analysis, DECODE)?;
        let each = ratio(calls.waits as f64, steps).filter(|each| *each >= SYNCS)?;
        let waited = percent(calls.wait_ms, calls.host_ms)?;
        let message = format!("The host waits for the device {each:.1} times in every decode step of the traced pass.");
        let found = finding("host_sync_in_decode", message).with("synchronising calls", calls.waits);
        Some(found.with("time in them", format!("{waited:.1} %")).saves(call_saving(analysis, DECODE, waited)))
    };
    found().into_iter().collect()
}

pub fn memcpy_share(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let tell = |stage: &str| {
        let calls = analysis.stage_calls.get(stage)?;
        let weight = percent(calls.copy_ms, calls.host_ms).filter(|share| *share >= MATTERS_PCT)?;
        let message = format!("Calls that copy memory take {weight:.0} % of {stage} in the traced pass.");
        let found = finding("memcpy_share", message).with("calls", calls.copies).with("host ms", format!("{:.3}", calls.copy_ms));
        Some(found.saves(call_saving(analysis, stage, weight)))
    };
    STAGES.into_iter().filter_map(tell).collect()
}

/// Kinds of products in a stage that `bad` says are bad, with their share of its operations.
fn products<'a>(analysis: &'a Analysis, bad: impl Fn(&GemmRecord) -> bool + 'a) -> impl Iterator<Item = (&'a GemmRecord, f64)> {
    let weighty = |it: &'a GemmRecord| Some((it, it.share_pct.filter(|share| *share >= 10.0)?));
    analysis.gemms.records.iter().filter(move |it| bad(it)).filter_map(weighty)
}

fn shape(it: &GemmRecord) -> String {
    format!("{} x {} x {}, batch {}, {}", it.m, it.n, it.k, it.batch, it.left_type)
}

pub fn gemm_small(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let tell = |(it, share): (&GemmRecord, f64)| {
        let message = format!("{:.0} % of the products of {} by operations have {} rows.", share, it.stage, it.m);
        finding("gemm_small", message).with("m x n x k", shape(it)).with("calls", it.calls)
    };
    products(analysis, |it| it.m < SMALL_ROWS && it.batch == 1).map(tell).collect()
}

/// How much of the tiles that cover a product it fills, percent.
fn filled(it: &GemmRecord) -> f64 {
    let up = |side: u64| (side.div_ceil(TILE) * TILE).max(1) as f64;
    100.0 * (it.m as f64 / up(it.m)) * (it.n as f64 / up(it.n))
}

pub fn gemm_tiles_unfilled(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let tell = |(it, share): (&GemmRecord, f64)| {
        let full = filled(it);
        let message = format!("A product in {} fills {full:.0} % of the {TILE} x {TILE} tiles that cover it.", it.stage);
        let found = finding("gemm_tiles_unfilled", message).with("m x n x k", shape(it)).with("calls", it.calls);
        found.with("share of the stage's products", format!("{share:.1} %"))
    };
    products(analysis, |it| it.m >= SMALL_ROWS && filled(it) < FILLED_PCT).map(tell).collect()
}
