//! Gathers `report.json` and the smaller JSON files from an analysis.

use llmprof_analyze::{Analysis, host_cpu::HostCpuTables, roofline::Roofline};
use llmprof_core::{
    layout,
    trace::{Trace, environment::Environment, event::Start, stage::StageRules},
};

use super::{
    Aggregates, CaptureRules, GemmsFile, KernelsFile, LLMProfileReport, ModelIdentity,
    SCHEMA_VERSION, StagesFile,
};
use crate::{RunFacts, all_findings, answer::is_of_cpu, narrative};

/// Records of a long list that the report keeps; its `*_total` counts all of them.
pub const MAX_RECORDS: usize = 200;

/// A record whose lists of these names have the first rows of the lists of an analysis.
macro_rules! with_first_rows {
    ($analysis:ident, $([$($list:ident),+],)+ $record:ident { $($field:tt)* }) => {
        $record { $($($list: top(&$analysis.$list),)+)+ $($field)* }
    };
}

/// Gathers the report of one run.
pub fn profile(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> LLMProfileReport {
    with_first_rows!(
        analysis,
        [engine_steps, step_times, step_batches, counters],
        [call_sites, regions, memory, operator_repeats],
        LLMProfileReport {
            schema_version: SCHEMA_VERSION,
            run_id: facts.id,
            state: facts.state,
            mode: facts.spec.mode().cloned(),
            model: identity(facts, analysis),
            environment: environment(facts, trace),
            spec: facts.spec.clone(),
            aggregates: aggregates(analysis),
            stages: analysis.stages.rows.clone(),
            stage_notes: analysis.stages.notes.clone(),
            samples: analysis.samples.rows.clone(),
            sample_spread: analysis.samples.spreads.clone(),
            operators_pass: analysis.lists_pytorch().then(|| layout::TORCH_PROFILER.to_owned()),
            operators: top(&analysis.listed_operators().rolled),
            operators_total: analysis.listed_operators().rolled.total(),
            operators_by_path: top(&analysis.listed_operators().by_path),
            operators_by_path_total: analysis.listed_operators().by_path.total(),
            kernels_topk: analysis.kernels.measured().take(MAX_RECORDS).cloned().collect(),
            kernels_total: analysis.kernels.measured().count() as u64,
            kernels_full: analysis.kernels.measured_full().take(MAX_RECORDS).cloned().collect(),
            stage_kernels: analysis.kernels.stages.clone(),
            stage_gpu: analysis.stage_gpu.totals.clone(),
            stage_gpu_devices: analysis.stage_gpu.devices.clone(),
            whole_graphs: top(&analysis.graphs),
            stage_shares: analysis.stage_shares.clone(),
            collectives: top(&analysis.collectives.records),
            ranks: top(&analysis.collectives.ranks),
            requests: top(&analysis.requests.rows),
            request_latency: analysis.requests.latency.clone(),
            decode_step: analysis.step.clone(),
            processes: analysis.processes.stages.clone(),
            process_kernels: top(&analysis.processes.kernels),
            process_ranges: top(&analysis.processes.ranges),
            kernel_classes: analysis.kernels.classes.clone(),
            classified_pct: analysis.kernels.classified_pct,
            api_calls: top(&analysis.sums.calls),
            ranges: top(&analysis.sums.ranges),
            only_traced: analysis.only_traced,
            stage_rules: trace.timeline.as_ref().and_then(|nsys| stage_rules(&nsys.rules)),
            host_cpu: analysis.host_cpu.as_ref().map(host_cpu),
            sampled_metrics: top(&analysis.sampled.kernels),
            sampled_stages: analysis.sampled.stages.clone(),
            sampled_operators: top(&analysis.sampled.operators),
            gpu_sample_coverage: analysis.sampled.coverage.clone(),
            roofline: roofline(&analysis.roofline),
            gemms: top(&analysis.gemms.records),
            mfu: analysis.mfu.rows.clone(),
            operator_mfu: top(&analysis.mfu.operators),
            ceilings: analysis.mfu.ceilings.clone(),
            costs: analysis.cost.clone(),
            experts: analysis.experts.clone(),
            ledger: analysis.ledger.rows.clone(),
            ledger_members: analysis.ledger.members.clone(),
            ledger_stages: analysis.ledger.stages.clone(),
            overhead: analysis.overhead.clone(),
            power: analysis.power.clone(),
            outputs: analysis.outputs,
            notes: narrative::narrative(analysis, is_of_cpu(facts, analysis)),
            findings: all_findings(facts, trace, analysis),
            inputs: facts.inputs.to_vec(),
            inputs_sha256: facts.inputs_sha256.map(str::to_owned),
            steps: facts.steps.to_vec(),
        }
    )
}

/// The environment, with the start of a capture that was recorded elsewhere.
fn environment(facts: &RunFacts, trace: &Trace) -> Environment {
    Environment { captured_at: captured_at(facts, trace), ..facts.environment.clone() }
}

/// The start of a capture that was recorded elsewhere, RFC 3339 in seconds.
pub(crate) fn captured_at(facts: &RunFacts, trace: &Trace) -> Option<String> {
    let started = trace.timeline.as_ref()?.started_unix_ns.filter(|_| facts.is_capture())?;
    let at = jiff::Timestamp::from_second(started.div_euclid(1_000_000_000)).ok()?;
    Some(at.to_string())
}

/// The stages of one run.
pub fn stages_file(facts: &RunFacts, analysis: &Analysis) -> StagesFile {
    StagesFile {
        schema_version: SCHEMA_VERSION,
        run_id: facts.id,
        aggregates: aggregates(analysis),
        stages: analysis.stages.rows.clone(),
        stage_notes: analysis.stages.notes.clone(),
        decode_step_ms: analysis.stages.step_curve_ms.clone(),
    }
}

/// The kernels of one run.
pub fn kernels_file(facts: &RunFacts, analysis: &Analysis) -> KernelsFile {
    KernelsFile {
        schema_version: SCHEMA_VERSION,
        run_id: facts.id,
        stages: analysis.kernels.stages.clone(),
        kernels: analysis.kernels.measured().cloned().collect(),
        counters: analysis.counters.clone(),
    }
}

/// The GEMMs of one run.
pub fn gemms_file(facts: &RunFacts, analysis: &Analysis) -> GemmsFile {
    let gemms = &analysis.gemms;
    GemmsFile {
        schema_version: SCHEMA_VERSION,
        run_id: facts.id,
        decode_steps: gemms.decode_steps,
        gemms: gemms.records.clone(),
    }
}

/// The rules of a capture; `None` for the standard ones.
fn stage_rules(rules: &StageRules) -> Option<CaptureRules> {
    let standard = StageRules::default();
    if (&rules.stages, &rules.include_ranges, &rules.exclude_ranges)
        == (&standard.stages, &standard.include_ranges, &standard.exclude_ranges)
    {
        return None;
    }
    let named = rules.stages != standard.stages;
    let stages = rules.stages.iter().filter(|_| named).map(ToString::to_string).collect();
    Some(CaptureRules {
        stages,
        include_ranges: rules.include_ranges.clone(),
        exclude_ranges: rules.exclude_ranges.clone(),
    })
}

pub(crate) fn identity(facts: &RunFacts, analysis: &Analysis) -> ModelIdentity {
    let start = analysis.start.as_ref();
    ModelIdentity {
        name: facts.spec.model().map(str::to_owned),
        description: facts.model.map(|it| it.description.clone()),
        parameters: start.map(|it| it.parameters),
        weight_bytes: start.map(|it| it.weight_bytes),
        weights: start.map(|it| it.weights.clone()),
        dtype: start.map(|it| it.dtype.clone()),
        device: start.map(|it| it.device.clone()),
        decode_graph: start.map(|it| it.decode_graph),
        batch: start.map(Start::batch),
        prompt_tokens: start.map(|it| it.prompt_tokens),
        image_tokens: start.map(|it| it.image_tokens),
        images: start.map(|it| it.images.clone()).unwrap_or_default(),
    }
}

fn aggregates(analysis: &Analysis) -> Aggregates {
    let stages = &analysis.stages;
    Aggregates {
        repeats: stages.repeats,
        command: analysis.command.clone(),
        stage_ms: stages.rows.iter().map(|row| (row.stage.clone(), row.ms)).collect(),
        medians: Some(analysis.samples.medians.stated(stages)),
        first_token_ms: stages.first_token_ms,
        per_token_ms: stages.per_token_ms,
        wall_ms: stages.wall_ms,
        decode_tokens_per_s: stages.decode_tokens_per_s,
        tokens_per_s: stages.tokens_per_s,
        decode_steps: stages.decode_steps,
        stated_steps: analysis.stated_steps,
        loads: analysis.requests.loads.clone(),
        devices: analysis.device_totals.clone(),
        peak_rss_bytes: analysis.end.as_ref().map(|end| end.peak_rss_bytes),
        peak_device_bytes: analysis.end.as_ref().and_then(|end| end.peak_device_bytes),
    }
}

/// The roofline with the first points.
fn roofline(all: &Roofline) -> Roofline {
    Roofline { points: top(&all.points), ..all.clone() }
}

/// The tables of the host's cores, with the first rows of long lists.
fn host_cpu(host: &HostCpuTables) -> HostCpuTables {
    HostCpuTables {
        threads: top(&host.threads),
        takers: top(&host.takers),
        functions: top(&host.functions),
        ..host.clone()
    }
}

/// The records of a list that `report.json` has.
pub fn first_records<T>(records: &[T]) -> &[T] {
    &records[..records.len().min(MAX_RECORDS)]
}

fn top<T: Clone>(records: &[T]) -> Vec<T> {
    first_records(records).to_vec()
}
