//! Headline figures of a report, and the facts that its series shares.

pub mod source;
pub mod times;

use llmprof_analyze::{
    compare::student::Estimate, power::StagePower, samples::SampleSpread,
    stages::command::CommandTiming, stats,
};
use llmprof_core::domain::{
    headline::{FigureName, Headline, SeriesIdentity, SeriesPoint},
    import::Import,
    savings::{Promise, Savings, TimeError},
    subject::Subject,
};

use self::{source::HeadlineSource, times::TimeRecords};
use super::{
    answer::is_on_cpu,
    charts::tiles::{gpu_busy_pct, mfu},
    profile::LLMProfileReport,
    waits::Waits,
};

/// The point of a run in its series.
pub fn point(report: &LLMProfileReport) -> SeriesPoint {
    let environment = &report.environment;
    let commit = environment.git_commit.as_deref().map(|it| format!(", {it}")).unwrap_or_default();
    SeriesPoint {
        identity: identity(report),
        headline: Headline::of(|name| figure(report, name)),
        means: FigureName::ALL.iter().copied().filter(|name| is_mean(report, *name)).collect(),
        build: format!("{}{commit}", environment.llmprof),
        driver: environment.driver.clone(),
        host: environment.hostname.clone(),
        device: device(report),
        savings: savings(report),
    }
}

/// The promises of the run's findings, and its stages as comparisons have them.
pub(super) fn savings(report: &LLMProfileReport) -> Savings {
    let stages = report.stages.iter().map(|row| (row.stage.clone(), row.ms.mean));
    let errors = report.stages.iter().filter_map(|row| {
        let samples = sample_spread(report, &row.stage);
        let Estimate { std_error, freedom, .. } = Estimate::over_samples(&row.ms, samples)?;
        Some((row.stage.clone(), TimeError { std_error_ms: std_error, freedom }))
    });
    Savings {
        stages: stages.collect(),
        errors: errors.collect(),
        promises: Promise::of(&report.findings),
    }
}

/// The spread of a stage, or of whole repeats, over the samples of a run with several.
pub(super) fn sample_spread<'a>(
    report: &'a LLMProfileReport,
    stage: &str,
) -> Option<&'a SampleSpread> {
    report.sample_spread.iter().find(|it| it.stage == stage)
}

fn figure(report: &LLMProfileReport, name: FigureName) -> Option<f64> {
    match name {
        FigureName::Ttft | FigureName::Tpot | FigureName::Wall | FigureName::TokensPerS => {
            Some(HeadlineSource::of(report, name)?.value)
        }
        FigureName::GpuBusy => gpu_busy(report),
        FigureName::Mfu => mfu(&report.mfu, waits(report))?.datasheet_pct,
        FigureName::Energy => energy(report),
    }
}

/// True for the mean that a report of an earlier version has in place of a median.
fn is_mean(report: &LLMProfileReport, name: FigureName) -> bool {
    HeadlineSource::of(report, name).is_some_and(|it| it.is_mean())
}

fn times(report: &LLMProfileReport) -> TimeRecords<'_> {
    TimeRecords {
        medians: report.aggregates.medians,
        first_token_ms: report.aggregates.first_token_ms,
        per_token_ms: report.aggregates.per_token_ms,
        stages: &report.stages,
        step_times: report.step_times.as_slice(),
        only_traced: report.only_traced,
        step_batches: &report.step_batches,
        request_latency: &report.request_latency,
        waits: waits(report),
    }
}

const fn waits(report: &LLMProfileReport) -> Waits<'_> {
    Waits { rows: report.ledger.as_slice(), stages: report.ledger_stages.as_slice() }
}

/// Busy share of the timed stages, as the page has it; unknown if a graph hides gaps.
fn gpu_busy(report: &LLMProfileReport) -> Option<f64> {
    let is_bound = report.stage_gpu.iter().any(|it| it.busy_is_upper_bound);
    let timed = (report.stages.as_slice(), report.step_times.as_slice());
    gpu_busy_pct(timed, &report.stage_gpu, waits(report)).filter(|_| !is_bound)
}

/// Energy of prefill and decode over the produced tokens: one of prefill, and one of each step, of
/// each sequence.
fn energy(report: &LLMProfileReport) -> Option<f64> {
    let stages = &report.power.as_ref()?.stages;
    let of = |name: &str| stages.iter().find(|it: &&StagePower| it.stage == name)?.energy_j;
    let joules = of("prefill")? + of("decode_all")?;
    let tokens = (report.aggregates.decode_steps? + 1) * report.model.batch.unwrap_or(1);
    stats::ratio(joules, tokens as f64)
}

/// The facts that runs of one series share.
fn identity(report: &LLMProfileReport) -> SeriesIdentity {
    let (model, spec) = (&report.model, &report.spec);
    let number = |it: Option<u64>| it.map(|it| it.to_string());
    let workload = spec.workload();
    let part = match &spec.subject {
        Subject::Part(it) => {
            let mock = it.mock.as_ref().and_then(|mock| serde_json::to_string(mock).ok());
            Some(format!("{}{}", it.part.0, mock.unwrap_or_default()))
        }
        _ => None,
    };
    let images: Vec<&str> = report.inputs.iter().map(|it| it.sha256.as_str()).collect();
    let images = workload.map(|it| format!("{} {}", it.inputs_manifest, images.join(" ")));
    // Reports of earlier versions have the images alone.
    let inputs = report.inputs_sha256.clone().or(images);
    let graph = model.decode_graph.map(|it| if it { "replayed" } else { "eager" }.to_owned());
    let timed = timed_pass(report);
    let seed = workload.map(|it| it.seed).filter(|seed| *seed > 0);
    let facts: [(&str, Option<String>); 18] = [
        ("kind", Some(spec.kind().to_string())),
        ("name", Some(spec.series_name().to_owned())),
        ("parameters", number(model.parameters)),
        ("weight_bytes", number(model.weight_bytes)),
        ("part", part),
        ("command", spec.call().and_then(|it| serde_json::to_string(it).ok())),
        ("import", spec.import().and_then(import)),
        ("inputs", inputs.map(|it| it.trim_end().to_owned())),
        // It decides synthetic weights and the inputs of parts; absent at its default.
        ("seed", number(seed)),
        ("samples", Some(report.samples.len().max(1).to_string())),
        ("prompt_tokens", number(model.prompt_tokens)),
        // Absent of one sequence: series that started before batches go on.
        ("batch", number(model.batch.filter(|batch| *batch > 1))),
        ("new_tokens", workload.map(|it| it.max_new_tokens.to_string())),
        ("dtype", model.dtype.clone()),
        ("decode_graph", graph),
        ("gpus", Some(spec.gpus().to_string())),
        ("device", device(report)),
        ("timed_pass", Some(timed.to_owned())),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some((name.to_owned(), fact?))).collect()
}

/// An import, named as its series.
fn import(it: &Import) -> Option<String> {
    serde_json::to_string(&Import { name: it.series_name().to_owned(), ..it.clone() }).ok()
}

/// The pass that was timed: a command has unprofiled times even if its stages are traced.
pub(super) fn timed_pass(report: &LLMProfileReport) -> &'static str {
    let command = report.aggregates.command.as_ref();
    let is_timed = command.is_some_and(CommandTiming::is_unprofiled);
    if report.only_traced && !is_timed { "traced" } else { "unprofiled" }
}

/// The product name of the GPU, or of the processor for a run on the CPU. An index such as `cuda:0`
/// is not a product.
pub(super) fn device(report: &LLMProfileReport) -> Option<String> {
    let environment = &report.environment;
    if is_on_cpu(&report.model, environment) {
        return Some(format!("cpu: {}, {} usable", environment.cpu.as_deref()?, environment.cpus?));
    }
    if let Some(product) = environment.device.as_ref().and_then(|device| device.product.clone()) {
        return Some(product);
    }
    // Without a recorded device, the host's GPUs identify it only if all are of one model.
    let (first, others) = environment.gpus.split_first()?;
    let is_one = !first.name.is_empty() && others.iter().all(|gpu| gpu.name == first.name);
    is_one.then(|| first.name.clone())
}
