//! Proofs by the names and numbers of kernels, if all kernels of a stage are recorded.

use std::collections::BTreeMap;

use super::{Claim, Refutation};
use crate::{
    kernels::KernelRecord,
    stages::{DECODE, PREFILL, in_sentence},
};

/// Share of GEMM time whose kernels name their dtype, from which the names prove it.
const NAMED_SHARE: f64 = 0.5;
/// Least tokens of a chunk of a prompt, besides the last: engines use 256 or more.
const LEAST_CHUNK: u64 = 64;
/// Distance of the calls from a multiple of the layers, in layers, that no cut step explains.
const CUT_LAYERS: f64 = 0.1;

/// Launches of attention kernels that do not fit whole layers and steps. Every layer of a decoder
/// launches the same kernels; a kernel that only some steps use is a multiple as well.
pub fn layers(claim: &Claim, stage: &str) -> Option<Refutation> {
    let model = &claim.stated.model;
    let is_of_model = model.vision.is_none() && !claim.speculates();
    if !claim.analysis.only_traced || !is_complete(claim, stage) || !is_of_model {
        return None;
    }
    let mut names: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
    for it in of_class(claim, stage, "attention") {
        let sum = names.entry(&it.kernel_name).or_default();
        *sum = (sum.0 + it.total_ms, sum.1 + it.calls);
    }
    let all_calls: u64 = names.values().map(|it| it.1).sum();
    let least_calls = names.values().map(|it| it.1).min()?;
    let is_each_once = names.values().all(|it| it.1 * names.len() as u64 == all_calls);
    let (_, calls) = names.into_values().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let layers = model.decoder.layers as u64;
    let once = layers.saturating_mul(claim.repeats(stage)?);
    let Some(forwards) = claim.forwards(stage) else {
        let is_of_steps = is_each_once && claim.stated.batch == 1;
        return stated_steps(claim, stage, (calls, once)).filter(|_| is_of_steps);
    };
    let each = forwards.saturating_mul(layers);
    let per_layer = calls as f64 / each as f64;
    let is_whole =
        calls.is_multiple_of(layers) || (per_layer - per_layer.round()).abs() <= CUT_LAYERS;
    let text = format!(
        "{stage} launches its longest attention kernel {calls} times, not a multiple of the \
         model's {layers} layers"
    );
    let fewer = format!(
        "{stage} launches {all_calls} attention kernels, fewer than one for each of the model's \
         {layers} layers in {forwards} forwards"
    );
    match () {
        () if !is_whole => Some(Refutation(text)),
        () if (all_calls as f64) < each as f64 * (1.0 - CUT_LAYERS) => Some(Refutation(fewer)),
        () => more_layers(claim, stage, (least_calls, forwards)),
    }
}

/// Launches of every attention kernel, the same number in each forward, that are too many for the
/// layers: on each GPU a layer launches one kernel at most once for each sequence and chunk of the
/// prompt. `calls`: of the kernel with the fewest launches, because a layer may have several.
fn more_layers(claim: &Claim, stage: &str, (calls, forwards): (u64, u64)) -> Option<Refutation> {
    let each = calls.checked_div(forwards).filter(|_| calls.is_multiple_of(forwards))?;
    let gpus = claim.analysis.stage_gpu.totals.iter().find(|it| it.stage == stage)?.devices.max(1);
    let (batch, prompt_tokens) = claim.max_load(stage)?;
    let chunks = match stage {
        PREFILL => prompt_tokens.div_ceil(LEAST_CHUNK),
        _ => 1,
    };
    let layers = claim.stated.model.decoder.layers as u64;
    let most = [gpus, batch, chunks].into_iter().fold(layers, u64::saturating_mul);
    (each > most).then(|| {
        Refutation(format!(
            "a forward of {stage} launches each attention kernel at least {each} times, and the \
             model has {layers} layers"
        ))
    })
}

/// Stated steps that are not the launches of each attention kernel per layer and repeat, if the
/// steps of the capture are not known.
fn stated_steps(claim: &Claim, stage: &str, (calls, once): (u64, u64)) -> Option<Refutation> {
    let stated = claim.stated.new_tokens.filter(|_| stage == DECODE)?;
    let found = calls.checked_div(once).filter(|_| calls.is_multiple_of(once))?;
    // The first token is sampled at the end of prefill.
    (found != stated && found.saturating_add(1) != stated).then(|| {
        Refutation(format!(
            "each layer of {stage} launches attention {found} times, and the statement is {stated} \
             new tokens"
        ))
    })
}

/// GEMM kernels whose names have another dtype than the stated one.
pub fn dtype(claim: &Claim, stage: &str) -> Option<Refutation> {
    let mut named: BTreeMap<&str, f64> = BTreeMap::new();
    let mut all = 0.0;
    for it in of_class(claim, stage, "gemm") {
        all += it.total_ms;
        if let Some(dtype) = named_dtype(&it.full_name) {
            *named.entry(dtype).or_default() += it.total_ms;
        }
    }
    let stated = claim.stated.dtype.to_string();
    if named.contains_key(stated.as_str()) || named.values().sum::<f64>() < all * NAMED_SHARE {
        return None;
    }
    let (found, _) = named.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let stage = in_sentence(stage);
    Some(Refutation(format!("the GEMM kernels of {stage} are named after {found}, not {stated}")))
}

/// Dtype of the operands in the name of a GEMM kernel of cuBLAS, CUTLASS or PyTorch; kernels of
/// tf32 compute f32.
fn named_dtype(name: &str) -> Option<&'static str> {
    let has = |parts: &[&str]| parts.iter().any(|it| name.contains(it));
    match () {
        () if has(&["e4m3", "e5m2", "fp8"]) => Some("f8"),
        () if has(&["bf16", "bfloat16"]) => Some("bf16"),
        () if has(&["_f16", "f16_", "__half", "hgemm", "h16816", "h1688"]) => Some("f16"),
        () if has(&["tf32", "sgemm", "_f32f32_f32f32", "int, float, float, float"]) => Some("f32"),
        () => None,
    }
}

fn of_class<'a>(
    claim: &Claim<'a>,
    stage: &'a str,
    class: &'a str,
) -> impl Iterator<Item = &'a KernelRecord> {
    let records = claim.analysis.kernels.records.iter();
    records.filter(move |it| it.stage == stage && it.class == class)
}

fn is_complete(claim: &Claim, stage: &str) -> bool {
    let coverage = claim.analysis.coverage.iter().find(|it| it.stage == stage);
    coverage.is_some_and(|it| {
        it.launched == it.recorded
            && it.whole_graphs + it.unattributed + it.cut_off == 0
            && !it.untraced
    })
}
