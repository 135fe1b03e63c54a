//! Work that one instance of a stage has to do, by operator: the static cost, with the experts that
//! were used.

use std::collections::BTreeMap;

use llmprof_core::domain::model::ModelSpec;

use crate::{
    Analysis,
    cost::{ModuleCost, Traffic},
    model_work::{InstanceWork, ModelWork},
    stages::{DECODE, PREFILL, STAGES},
    stats::ratio,
};

/// Work of the instances of prefill and decode, or a clause why it is unknown.
pub type NecessaryWork = BTreeMap<&'static str, Result<Vec<InstanceWork>, &'static str>>;

/// Clause on the work of a stated model that is unknown because several GPUs share it.
const SEVERAL_GPUS: &str = "several GPUs or processes share the stated model (finding \
                            stated_model_on_several_gpus)";

/// The clause why the work of a stated model is unknown; `None` if none is stated, or if a proof
/// refutes it. The work of another stated model is known unless several GPUs share it.
pub fn why_shared(analysis: &Analysis) -> Option<&'static str> {
    let is_shared = analysis.stated.is_some() && analysis.refutations.is_empty();
    is_shared.then_some(SEVERAL_GPUS)
}

/// The work of one repeat, or of each step that an engine scheduled; unknown if steps speculate.
/// `None` on a CPU, whose caches hold weights.
pub fn work(analysis: &Analysis, work: &ModelWork) -> Option<NecessaryWork> {
    if work.is_on_cpu {
        return None;
    }
    let mut of_stages = of_each_stage(&of_repeat(analysis, work));
    for (stage, of_stage) in &mut of_stages {
        if let Some(loads) = work.step_loads(stage) {
            *of_stage = work.of_steps(stage, loads);
        }
        if let Some(why) = work.why_unknown().filter(|_| of_stage.is_ok()) {
            *of_stage = Err(why);
        }
    }
    Some(of_stages)
}

/// The operators of one repeat as the work of an instance of each stage.
pub fn of_each_stage(operators: &[ModuleCost]) -> NecessaryWork {
    let work = || InstanceWork { operators: operators.to_vec(), instances: 1 };
    STAGES.into_iter().map(|stage| (stage, Ok(vec![work()]))).collect()
}

/// The operators of one repeat, the mean over all samples.
fn of_repeat(analysis: &Analysis, work: &ModelWork) -> Vec<ModuleCost> {
    let samples = work.operators();
    let mut rows = if samples.len() == 1 { samples.concat() } else { mean(samples) };
    for row in &mut rows {
        for stage in [PREFILL, DECODE] {
            let calls = if work.is_part { recorded_share(analysis, stage, row) } else { 1.0 };
            let is_routed = row.op == "experts";
            let weights = if is_routed { used_experts(analysis, work.model, stage) } else { 1.0 };
            scale(row, stage, calls, weights);
        }
    }
    rows
}

/// Mean of the same operators of several samples.
fn mean(samples: Vec<Vec<ModuleCost>>) -> Vec<ModuleCost> {
    let count = samples.len().max(1) as f64;
    let mut sums: Vec<ModuleCost> = Vec::new();
    for row in samples.into_iter().flatten() {
        let known = sums.iter_mut().find(|it| it.path == row.path && it.op == row.op);
        let Some(sum) = known else {
            sums.push(row);
            continue;
        };
        sum.prefill_flops = sum.prefill_flops.saturating_add(row.prefill_flops);
        sum.decode_flops = sum.decode_flops.saturating_add(row.decode_flops);
        add(&mut sum.prefill, &row.prefill);
        add(&mut sum.decode, &row.decode);
    }
    for row in &mut sums {
        scale(row, PREFILL, 1.0 / count, 1.0);
        scale(row, DECODE, 1.0 / count, 1.0);
    }
    sums
}

fn add(sum: &mut Traffic, more: &Traffic) {
    for (sum, more) in [
        (&mut sum.calls, more.calls),
        (&mut sum.weight_bytes, more.weight_bytes),
        (&mut sum.activation_bytes, more.activation_bytes),
        (&mut sum.kv_read_bytes, more.kv_read_bytes),
        (&mut sum.kv_written_bytes, more.kv_written_bytes),
        (&mut sum.bytes, more.bytes),
    ] {
        *sum = sum.saturating_add(more);
    }
}

/// Scales the calls of one stage, and the bytes of their weights.
fn scale(row: &mut ModuleCost, stage: &str, calls: f64, weights: f64) {
    let (flops, traffic) = match stage {
        PREFILL => (&mut row.prefill_flops, &mut row.prefill),
        _ => (&mut row.decode_flops, &mut row.decode),
    };
    let times = |value: u64, factor: f64| (value as f64 * factor).round() as u64;
    let others = traffic.bytes - traffic.weight_bytes.min(traffic.bytes);
    *flops = times(*flops, calls);
    traffic.calls = times(traffic.calls, calls);
    traffic.weight_bytes = times(traffic.weight_bytes, calls * weights);
    traffic.activation_bytes = times(traffic.activation_bytes, calls);
    traffic.kv_read_bytes = times(traffic.kv_read_bytes, calls);
    traffic.kv_written_bytes = times(traffic.kv_written_bytes, calls);
    traffic.bytes = times(others, calls).saturating_add(traffic.weight_bytes);
}

/// Calls of an operator that the runner recorded in one repeat over its calls in the whole model; 0
/// for an operator that is not in the part.
fn recorded_share(analysis: &Analysis, stage: &str, row: &ModuleCost) -> f64 {
    let Some(timing) = analysis.stages.row(stage) else { return 0.0 };
    let same = |it: &&crate::operators::OperatorRecord| {
        it.stage == stage && it.path == row.path && it.op == row.op
    };
    let calls: u64 = analysis.operators.rolled.iter().filter(same).map(|it| it.calls).sum();
    let expected = if stage == PREFILL { row.prefill.calls } else { row.decode.calls };
    ratio(calls as f64 / f64::from(timing.ms.n.max(1)), expected as f64).unwrap_or(0.0)
}

/// Experts that a forward of the stage read, shared ones included, over the number that the static
/// cost expects; 1 if routing was not recorded.
fn used_experts(analysis: &Analysis, model: &ModelSpec, stage: &str) -> f64 {
    let uses: Vec<_> = analysis.experts.iter().filter(|it| it.stage == stage).collect();
    let Some(moe) = model.decoder.moe.as_ref().filter(|_| !uses.is_empty()) else { return 1.0 };
    let count = uses.len() as f64;
    let distinct = uses.iter().map(|it| it.distinct.mean).sum::<f64>() / count;
    let Some(expected) = uses.iter().map(|it| it.expected).sum::<Option<f64>>() else { return 1.0 };
    let shared = moe.shared as f64;
    ratio(distinct + shared, expected / count + shared).unwrap_or(1.0)
}
