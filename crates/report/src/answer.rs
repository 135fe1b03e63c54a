//! The first part of a report: the times, their distance from the hardware's ceilings, the reasons
//! with their remedies, the data that is missing, and the overhead of the passes.
//!
//! Only from records of the report, so that stored reports give the same text.

mod base;
mod busy_gpus;
mod cause_words;
mod cited;
mod command;
mod latencies;
mod on_cpu;
mod on_findings;
mod once;
mod outlier_causes;
mod outliers;
mod overhead;
mod ran;
mod reasons;
mod remedies;
mod repeats;
mod runtime_calls;
mod shared_gpus;
mod stage_time;
mod step_floors;
mod steps;
mod stored;
mod times;
mod unmarked;
mod whole;

use llmprof_analyze::{
    Analysis,
    host_cpu::HostStage,
    kernels::{
        KernelRecord,
        nsys_sums::{CallSum, RangeSum},
    },
    ledger::{Ledger, LedgerCause, LedgerRow, LedgerStage},
    operators::OperatorRecord,
    requests::{LatencyRecord, LoadRecord},
    stages::{
        StageTiming, command::CommandTiming, overhead::OverheadRecord,
        repeat_medians::RepeatMedians, step_times::StepTimes,
    },
    stats::Spread,
    step_batches::StepBatch,
    timeline::{device_totals::DeviceTotals, processes::ProcessStage, time_shares::StageShare},
};
use llmprof_core::domain::{finding::Finding, subject::RunSpec};
use serde::Serialize;

pub use self::{
    cited::{Cited, Figure, Source},
    reasons::Reason,
};
pub(crate) use self::{
    on_findings::why_unended, outliers::are_stated as are_outliers_stated, ran::is_on_cpu,
};
use self::{once::StatedSentences, stored::StoredAnswer};
use super::{
    RunFacts,
    charts::waterfall::waterfall,
    kernel_names::KernelNames,
    profile::gather::{MAX_RECORDS, first_records, identity},
};

/// Caveat of times without an unprofiled pass.
const PROFILED: &str = "Times of stages, steps and the GPU are of a profiled pass and include its \
                        overhead: time the program without a profiler before quoting them.";

/// The first part of a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Answer {
    /// The program and the machine.
    pub ran: Option<Cited>,
    /// Times and their distance from the floor.
    pub sentences: Vec<Cited>,
    pub charts: Vec<StageChart>,
    /// Causes of the time above the floor, largest first.
    pub reasons: Vec<Reason>,
    /// Figures that are unknown, each with its remedy, each once.
    pub unknown: Vec<String>,
    /// Differences of the figures from the unprofiled program's.
    pub overhead: Vec<Cited>,
}

/// The waterfall of one stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageChart {
    pub stage: String,
    pub drawing: String,
}

/// Records that the answer is composed from.
struct AnswerRecords<'a> {
    ledger: &'a Ledger,
    stages: &'a [StageTiming],
    overhead: &'a [OverheadRecord],
    step_times: &'a [StepTimes],
    decode_steps: Option<u64>,
    /// `None` in a report of an earlier version.
    medians: Option<RepeatMedians>,
    /// Samples of each repeat; empty for a run with one.
    samples: Vec<u32>,
    per_token_ms: Option<Spread>,
    /// Steps of one decode that are stated, or for which the costs are computed.
    stated_steps: Option<Figure>,
    step_batches: &'a [StepBatch],
    stage_shares: &'a [StageShare],
    processes: &'a [ProcessStage],
    latencies: &'a [LatencyRecord],
    loads: &'a [LoadRecord],
    command: Option<&'a CommandTiming>,
    operators: &'a [OperatorRecord],
    device_totals: Option<&'a DeviceTotals>,
    longest_kernel: Option<&'a KernelRecord>,
    kernel_names: KernelNames,
    /// Longest first.
    calls: &'a [CallSum],
    ranges: &'a [RangeSum],
    /// Launching threads in the gaps of each stage.
    host_stages: &'a [HostStage],
    only_traced: bool,
    findings: &'a [Finding],
    /// No GPU was used.
    on_cpu: bool,
    ran: Option<Cited>,
}

/// True for a run that used no GPU.
pub(super) fn is_of_cpu(facts: &RunFacts, analysis: &Analysis) -> bool {
    is_on_cpu(&identity(facts, analysis), facts.environment)
}

/// The answer of an analysis, whose run has these findings of collection, parsing and analysis.
pub fn of_analysis(facts: &RunFacts, analysis: &Analysis, findings: &[Finding]) -> Answer {
    let model = identity(facts, analysis);
    answer(&AnswerRecords {
        ledger: &analysis.ledger,
        stages: &analysis.stages.rows,
        overhead: &analysis.overhead,
        step_times: &analysis.step_times,
        decode_steps: analysis.stages.decode_steps,
        medians: Some(analysis.samples.medians.stated(&analysis.stages)),
        samples: analysis.samples.rows.iter().map(|it| it.sample).collect(),
        per_token_ms: analysis.stages.per_token_ms,
        stated_steps: unmarked::stated(
            analysis.stated_steps,
            analysis.cost.as_ref().map(|it| it.decode_steps),
        ),
        step_batches: &analysis.step_batches,
        stage_shares: &analysis.stage_shares,
        processes: &analysis.processes.stages,
        latencies: &analysis.requests.latency,
        loads: &analysis.requests.loads,
        command: analysis.command.as_ref(),
        operators: &analysis.operators.rolled,
        device_totals: analysis.device_totals.as_ref(),
        longest_kernel: analysis.kernels.measured().next(),
        kernel_names: KernelNames::with_members(
            analysis.kernels.measured().take(MAX_RECORDS),
            &analysis.ledger.members,
        ),
        calls: first_records(&analysis.sums.calls),
        ranges: &analysis.sums.ranges,
        host_stages: analysis.host_cpu.as_ref().map_or(&[], |it| &it.stages),
        only_traced: analysis.only_traced,
        findings,
        on_cpu: is_on_cpu(&model, facts.environment),
        ran: ran::ran(&ran::Subject {
            model: &model,
            part: facts.spec.timed_part(),
            command: facts.spec.call().map(|it| it.command.as_str()),
            environment: facts.environment,
            steps: analysis.stages.decode_steps,
            used_gpus: ran::used_gpus(
                &analysis.stage_gpu.totals,
                &analysis.stage_gpu.devices,
                analysis.device_totals.as_ref(),
            ),
            is_import: !facts.spec.kind().runs_here(),
            only_traced: analysis.only_traced,
            is_timed: analysis.command.as_ref().is_some_and(CommandTiming::is_unprofiled),
        }),
    })
}

/// The answer of a stored `report.json`, if it has one; as a list, which is empty if it has none.
pub fn stored_answer(report: &[u8]) -> Result<Vec<Answer>, serde_json::Error> {
    let it: StoredAnswer = serde_json::from_slice(report)?;
    let ledger = Ledger { stages: it.ledger_stages, rows: it.ledger, members: it.ledger_members };
    let is_known = !ledger.stages.is_empty()
        || !it.stages.is_empty()
        || !it.step_times.is_empty()
        || !it.request_latency.is_empty()
        || it.aggregates.devices.is_some()
        || it.aggregates.command.is_some();
    let timing = it.aggregates.command.as_ref();
    let subject = it.model.as_ref().zip(it.environment.as_ref());
    let command = it.spec.as_ref().and_then(|spec| Some(spec.call()?.command.as_str()));
    let records = AnswerRecords {
        ledger: &ledger,
        stages: &it.stages,
        overhead: &it.overhead,
        step_times: &it.step_times,
        decode_steps: it.aggregates.decode_steps,
        medians: it.aggregates.medians,
        samples: it.samples.iter().map(|it| it.sample).collect(),
        per_token_ms: it.aggregates.per_token_ms,
        stated_steps: unmarked::stated(
            it.aggregates.stated_steps,
            it.costs.map(|it| it.decode_steps),
        ),
        step_batches: &it.step_batches,
        stage_shares: &it.stage_shares,
        processes: &it.processes,
        latencies: &it.request_latency,
        loads: &it.aggregates.loads,
        command: timing,
        operators: &it.operators,
        device_totals: it.aggregates.devices.as_ref(),
        longest_kernel: it.kernels_topk.first(),
        kernel_names: KernelNames::with_members(&it.kernels_topk, &ledger.members),
        calls: &it.api_calls,
        ranges: &it.ranges,
        host_stages: it.host_cpu.as_ref().map_or(&[], |it| &it.stages),
        only_traced: it.only_traced,
        findings: &it.findings,
        on_cpu: subject.is_some_and(|(model, environment)| is_on_cpu(model, environment)),
        ran: subject.and_then(|(model, environment)| {
            ran::ran(&ran::Subject {
                model,
                part: it.spec.as_ref().and_then(RunSpec::timed_part),
                command,
                environment,
                steps: it.aggregates.decode_steps,
                used_gpus: ran::used_gpus(
                    &it.stage_gpu,
                    &it.stage_gpu_devices,
                    it.aggregates.devices.as_ref(),
                ),
                is_import: it.spec.as_ref().is_some_and(|spec| !spec.kind().runs_here()),
                only_traced: it.only_traced,
                is_timed: timing.is_some_and(CommandTiming::is_unprofiled),
            })
        }),
    };
    Ok(is_known.then(|| answer(&records)).into_iter().collect())
}

impl Answer {
    /// True if a reason, an unknown figure or a condition has this advice.
    pub(crate) fn advises(&self, advice: &str) -> bool {
        let cited = self.reasons.iter().map(|it| &it.advice).chain(&self.overhead);
        let mut texts = cited.map(Cited::as_str).chain(self.unknown.iter().map(String::as_str));
        texts.any(|text| text.contains(advice))
    }

    fn cited(&self) -> impl Iterator<Item = &Cited> {
        let reasons = self.reasons.iter().flat_map(|it| [&it.text, &it.advice]);
        self.ran.iter().chain(&self.sentences).chain(reasons).chain(&self.overhead)
    }
}

/// The figures in the answer of a stored `report.json` that do not follow from its tables: none of
/// a report of this version.
pub fn unfounded(report: &[u8]) -> Result<Vec<String>, serde_json::Error> {
    let (tables, answers) = (serde_json::from_slice(report)?, stored_answer(report)?);
    Ok(answers.iter().flat_map(Answer::cited).flat_map(|it| it.unfounded(&tables)).collect())
}

/// Min share of a stage, percent, of the profiler's own work that stands next to the times.
const LEAD_PCT: f64 = 25.0;

fn answer(records: &AnswerRecords) -> Answer {
    let ledger = records.ledger;
    let sentences = latencies::sentences(records.latencies, records.loads)
        .into_iter()
        .chain(command::sentence(records))
        .chain(times::unrecorded_waits(records.ledger))
        .chain(times::sentences(records))
        .chain(unmarked::sentence(records))
        .chain(on_cpu::sentences(records))
        .chain(steps::sentences(records))
        .chain(whole::sentences(records));
    let mut sentences: Vec<Cited> = sentences.collect();
    let mut unknown = times::missing(ledger);
    unknown.extend(times::unknown(records));
    unknown.extend(unmarked::unknown(records));
    unknown.extend(whole::busy_unknown(records));
    unknown.extend(whole::unknown(records));
    let mut withheld: Vec<String> = on_findings::withheld(records.findings).collect();
    if sentences.is_empty() && unknown.is_empty() {
        unknown.extend(on_findings::why_nothing_timed(records.findings));
    }
    withheld.retain(|text| !unknown.iter().any(|it| it.contains(text)));
    unknown.splice(0..0, withheld);
    let mut overhead: Vec<Cited> = Vec::new();
    if records.only_traced && !(records.stages.is_empty() && ledger.stages.is_empty()) {
        overhead.push(Cited::words(PROFILED));
    }
    let own = ledger.rows.iter().filter_map(|it| overhead::own_work(ledger, it));
    let (most, part): (Vec<_>, Vec<_>) = own.partition(|it| it.0 >= LEAD_PCT);
    sentences.extend(most.into_iter().map(|it| it.1));
    overhead.extend(part.into_iter().map(|it| it.1));
    let text = |it| overhead::of_stage(it, records.stages);
    overhead.extend(records.overhead.iter().filter_map(text));
    overhead.extend(on_findings::conditions(records.findings));
    if !whole::is_without_stages(records) {
        overhead.extend(on_findings::why_unended(records.findings).map(Cited::name));
    }
    let reasons = reasons::reasons(records);
    let mut stated = StatedSentences::default();
    let of_reasons = reasons.iter().flat_map(|it| [&it.text, &it.advice]);
    records.ran.iter().chain(&sentences).chain(of_reasons).for_each(|it| stated.add(it.as_str()));
    let unknown = unknown.iter().map(|it| stated.rest(it)).filter(|it| !it.is_empty()).collect();
    let overhead = overhead.into_iter().map(|it| {
        let rest = stated.rest(it.as_str());
        it.with_text(rest)
    });
    let overhead = overhead.filter(|it| !it.as_str().is_empty()).collect();
    Answer {
        ran: records.ran.clone(),
        sentences,
        charts: ledger.stages.iter().map(|stage| chart(ledger, stage)).collect(),
        reasons,
        unknown,
        overhead,
    }
}

fn chart(ledger: &Ledger, stage: &LedgerStage) -> StageChart {
    let rows: Vec<&LedgerRow> = ledger.of_stage(&stage.stage).collect();
    StageChart { stage: stage.stage.clone(), drawing: waterfall(stage, &rows) }
}

/// True for a row that the chart shows on its own, from this share of the stage, percent.
pub(super) fn is_shown(row: &LedgerRow) -> bool {
    const SHOWN_PCT: f64 = 0.5;
    !row.cause.is_cause()
        || row.cause == LedgerCause::Floor
        || row.share_pct.is_some_and(|share| share >= SHOWN_PCT)
}

#[cfg(test)]
mod tests;
