//! Proofs by rates: work that the device cannot do in the time, or that the capture does not have.

use llmprof_core::domain::digits::figure;

use super::{Claim, Refutation};
use crate::{
    cost::ModuleCost,
    ledger,
    model_work::InstanceWork,
    roofline::mfu::TOLERANCE_PCT,
    stages::{DECODE, PREFILL, in_sentence},
    stats::{percent, ratio},
};

/// Upper bound of the last-level caches of known devices (AMD MI300X, 256 MiB of Infinity Cache),
/// if the capture does not have the size.
const MAX_CACHE_BYTES: u64 = 256 << 20;
/// Counted FLOPs below this share of the model's cannot be of it.
const COUNTED_PCT: f64 = 90.0;
/// Copies from the host of at least this share of the missing memory may replace it.
const COPIED_SHARE: f64 = 0.1;

/// FLOPs of the model above the peak.
pub fn compute(claim: &Claim, stage: &str) -> Option<Refutation> {
    let flops = flops(claim, stage)?;
    let dtype = claim.work.dtype.to_string();
    let peak = claim.ceilings.datasheet_flops(&dtype)?;
    let ms = device_ms(claim, stage)?;
    let pct = percent(ratio(flops * 1e3, ms)?, peak)?;
    let stage = in_sentence(stage);
    above(pct).then(|| {
        Refutation(format!(
            "{stage} would compute {} in {} ms of the GPU, {pct:.0} % of its peak in {dtype}",
            work(flops),
            figure(ms)
        ))
    })
}

/// Bytes that each forward has to read from device memory above the bandwidth: weights and cache
/// beyond the size of the device's cache. Routed experts do not count, since their choice is not
/// known, nor does the cache of an engine, whose requests may share a prefix.
pub fn bandwidth(claim: &Claim, stage: &str) -> Option<Refutation> {
    let per_repeat = claim.forwards(stage)? as f64 / claim.repeats(stage)? as f64;
    let work = ledger::work(claim.analysis, claim.work)?;
    let parts = work.get(stage)?.as_ref().ok()?;
    let is_of_engine = claim.work.step_loads(stage).is_some();
    let of_operator = |it: &ModuleCost| {
        let traffic = if stage == PREFILL { &it.prefill } else { &it.decode };
        let cache = if is_of_engine { 0.0 } else { traffic.kv_read_bytes as f64 };
        traffic.weight_bytes as f64 + cache
    };
    let of_part = |it: &InstanceWork| {
        let operators = it.operators.iter().filter(|it| it.op != "experts");
        operators.map(of_operator).sum::<f64>() * it.instances as f64
    };
    let instances = parts.iter().map(|it| it.instances as f64).sum();
    let needed = ratio(parts.iter().map(of_part).sum(), instances)?;
    let target = claim.trace.timeline.as_ref().and_then(|it| it.target.gpus.first());
    let cache = target.and_then(|gpu| gpu.l2_bytes).unwrap_or(MAX_CACHE_BYTES);
    let bytes = needed - cache as f64 * per_repeat;
    let peak = claim.ceilings.datasheet_bytes()?;
    let ms = device_ms(claim, stage)?;
    let pct = percent(ratio(bytes * 1e3, ms)?, peak)?;
    let stage = in_sentence(stage);
    let data = if is_of_engine { "weights" } else { "weights and cache" };
    above(pct).then(|| {
        Refutation(format!(
            "{stage} would read at least {:.2} GB of {data} in {} ms of the GPU, {pct:.0} % of its \
             bandwidth",
            bytes / 1e9,
            figure(ms)
        ))
    })
}

/// Fewer FLOPs by the recorded shapes than the model needs.
pub fn counted(claim: &Claim, stage: &str) -> Option<Refutation> {
    let of_stage = claim.analysis.operators.work.get(stage).filter(|it| it.flops > 0)?;
    let counted = of_stage.flops as f64 / claim.repeats(stage)? as f64;
    let needed = flops(claim, stage)?;
    let pct = percent(counted, needed).filter(|pct| *pct < COUNTED_PCT)?;
    let stage = in_sentence(stage);
    Some(Refutation(format!(
        "the operators of {stage} compute {} by their shapes, {pct:.0} % of the model's {}",
        work(counted),
        work(needed)
    )))
}

/// Weights above the device's memory, unless the host sends parts of them.
pub fn memory(claim: &Claim) -> Option<Refutation> {
    let target = claim.trace.timeline.as_ref().and_then(|it| it.target.gpus.first());
    let gpu = target.filter(|gpu| gpu.memory_bytes > 0)?;
    let weights = claim.stated.model.parameters() as f64 * claim.stated.dtype.bytes() as f64;
    let missing = weights - gpu.memory_bytes as f64;
    let copies = claim.analysis.stage_gpu.totals.iter().flat_map(|it| &it.copies);
    let from_host = copies.filter(|it| it.kind == "host_to_device").map(|it| it.bytes as f64);
    if missing <= 0.0 || from_host.sum::<f64>() > missing * COPIED_SHARE {
        return None;
    }
    let [weights, memory] =
        [weights, gpu.memory_bytes as f64].map(|it| format!("{:.1} GB", it / 1e9));
    Some(Refutation(format!("its weights of {weights} do not fit the device's memory of {memory}")))
}

/// FLOPs of the model in one repeat of a stage, or in the mean step of an engine.
fn flops(claim: &Claim, stage: &str) -> Option<f64> {
    let flops = claim.work.flops()?;
    let of_stage = match stage {
        PREFILL => flops.prefill?,
        DECODE => flops.decode?,
        _ => return None,
    };
    Some(of_stage as f64).filter(|it| *it > 0.0)
}

/// Time of one repeat in which the device may have worked for the stage: all of it, or in a traced
/// pass the time in which it worked for any stage.
fn device_ms(claim: &Claim, stage: &str) -> Option<f64> {
    let all = claim.analysis.stages.row(stage)?.ms.mean;
    let total = claim.analysis.stage_gpu.totals.iter().find(|it| it.stage == stage);
    let worked = total
        .filter(|_| claim.analysis.only_traced)
        .and_then(|it| ratio(it.busy_ms? + it.other_ms?, it.repeats?));
    Some(worked.filter(|it| *it > 0.0).map_or(all, |it| it.min(all)))
}

/// FLOPs in words.
fn work(flops: f64) -> String {
    if flops < 1e12 {
        format!("{:.3} GFLOP", flops / 1e9)
    } else {
        format!("{:.3} TFLOP", flops / 1e12)
    }
}

fn above(pct: f64) -> bool {
    pct > 100.0 + TOLERANCE_PCT
}
