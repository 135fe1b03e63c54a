//! The first part of a report: one sentence per stage, the largest savings with their evidence, the
//! data that is missing, and the overhead of the passes.
//!
//! From the ledger and the stages alone, so that stored reports give the same text.

mod steps;

use llmprof_analyze::{
    Analysis,
    ledger::{Ledger, LedgerCause, LedgerMember, LedgerRow, LedgerStage},
    stages::{DECODE, StageTiming, overhead::OverheadRecord},
    stats::ratio,
    step_batches::StepBatch,
    timeline::time_shares::StageShare,
};
use llmprof_core::domain::units::Nanos;
use serde::{Deserialize, Serialize};

use super::{
    charts::waterfall::waterfall,
    format::{decimals, ms, pct},
};

/// Min share of a stage, percent, of an unrecorded wait that its sentence names.
const NAMED_PCT: f64 = 1.0;
/// Listed savings.
const SAVINGS: usize = 3;

/// The first part of a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Answer {
    /// One per stage.
    pub sentences: Vec<String>,
    pub charts: Vec<StageChart>,
    /// Largest first.
    pub savings: Vec<String>,
    /// Figures that are unknown, each with its remedy.
    pub unknown: Vec<String>,
    pub overhead: Vec<String>,
}

/// The waterfall of one stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageChart {
    pub stage: String,
    pub drawing: String,
}

/// The parts of a report that the answer needs.
#[derive(Deserialize)]
struct StoredAnswer {
    #[serde(default)]
    stages: Vec<StageTiming>,
    #[serde(default)]
    ledger: Vec<LedgerRow>,
    #[serde(default)]
    ledger_members: Vec<LedgerMember>,
    #[serde(default)]
    ledger_stages: Vec<LedgerStage>,
    #[serde(default)]
    overhead: Vec<OverheadRecord>,
    #[serde(default)]
    step_batches: Vec<StepBatch>,
    #[serde(default)]
    stage_shares: Vec<StageShare>,
}

/// The answer of an analysis.
pub fn of_analysis(analysis: &Analysis) -> Answer {
    let steps = (analysis.step_batches.as_slice(), analysis.stage_shares.as_slice());
    answer(&analysis.ledger, &analysis.stages.rows, &analysis.overhead, steps)
}

/// The answer of a stored `report.json`, if it has one; as a list, which is empty otherwise.
pub fn stored_answer(report: &[u8]) -> Result<Vec<Answer>, serde_json::Error> {
    let it: StoredAnswer = serde_json::from_slice(report)?;
    let ledger = Ledger { stages: it.ledger_stages, rows: it.ledger, members: it.ledger_members };
    let is_known = !ledger.stages.is_empty();
    let steps = (it.step_batches.as_slice(), it.stage_shares.as_slice());
    let answer = || answer(&ledger, &it.stages, &it.overhead, steps);
    Ok(is_known.then(answer).into_iter().collect())
}

fn answer(
    ledger: &Ledger,
    stages: &[StageTiming],
    overhead: &[OverheadRecord],
    (batches, shares): (&[StepBatch], &[StageShare]),
) -> Answer {
    let known = |stage: &str| ledger.stages.iter().any(|it| it.stage == stage);
    let without = stages.iter().filter(|it| !known(&it.stage)).map(|it| {
        format!(
            "{} takes {} ms; its floor is unknown, since it has no timeline of a GPU.",
            it.stage,
            ms(it.ms.mean)
        )
    });
    let timed = ledger.stages.iter().map(|stage| {
        let row = stages.iter().find(|row| row.stage == stage.stage);
        sentence(ledger, stage, row.filter(|_| !steps::differ(batches)))
    });
    let sentences = timed.chain(without).chain(steps::sentences(batches, shares));
    let unknown = ledger
        .stages
        .iter()
        .flat_map(|stage| stage.missing.iter().map(|text| format!("{}: {text}", stage.stage)));
    Answer {
        sentences: sentences.collect(),
        charts: ledger.stages.iter().map(|stage| chart(ledger, stage)).collect(),
        savings: savings(ledger),
        unknown: unknown.collect(),
        overhead: overhead.iter().filter_map(overhead_text).collect(),
    }
}

/// The time of a stage, its distance from the floor and the largest cause.
fn sentence(ledger: &Ledger, stage: &LedgerStage, row: Option<&StageTiming>) -> String {
    let steps = stage.steps.filter(|steps| *steps > 0 && stage.stage == DECODE);
    let (name, per, each) = match steps {
        Some(steps) => ("decode", per_step(steps, row), steps as f64),
        None => (stage.stage.as_str(), String::new(), 1.0),
    };
    let part = |ns: i64| ms(Nanos(ns).as_ms() / each);
    let floor = match (stage.floor_ns, stage.times_floor) {
        (Some(floor), Some(times)) => format!(
            ", {} times its {}floor of {} ms",
            decimals(times, 1),
            if stage.floor_of.is_some_and(|of| of.as_str() == "kernels") {
                "kernels' "
            } else {
                ""
            },
            part(floor)
        ),
        _ => "; its floor is unknown".to_owned(),
    };
    let cause = ledger.causes(&stage.stage).into_iter().find(|row| row.max_saving_ns > 0);
    let cause = cause.map(|row| {
        let largest = row.largest.as_ref().map(|name| format!(", largest in {name}"));
        let share = ratio(100.0 * row.max_saving_ns as f64, stage.measured_ns as f64);
        format!(
            "; largest cause: {}, {} ms ({}){}",
            row.cause.words(),
            part(row.max_saving_ns),
            pct(share.unwrap_or(0.0)),
            largest.unwrap_or_default()
        )
    });
    let time = part(stage.measured_ns);
    let before = ledger.of_stage(&stage.stage).find(|row| row.cause == LedgerCause::UnrecordedWait);
    let before = before.filter(|row| row.share_pct.is_some_and(|share| share >= NAMED_PCT));
    let before = before.map(|row| {
        format!(
            " ({} ms of it waiting before the first recorded work of a stream, for a reason that \
             the capture does not record)",
            part(row.ns)
        )
    });
    let before = before.unwrap_or_default();
    format!("{name} takes {time} ms{per}{before}{floor}{}.", cause.unwrap_or_default())
}

/// The product of a decode step: a token, or one of each of several sequences; without the row of
/// the stage, unknown.
fn per_step(steps: u64, row: Option<&StageTiming>) -> String {
    let made = row.and_then(|row| row.tokens);
    match made.and_then(|made| made.checked_div(steps)) {
        Some(1) => " per token".to_owned(),
        Some(sequences) if sequences > 1 => format!(" per step of {sequences} sequences"),
        _ => " per step".to_owned(),
    }
}

/// The largest savings of all stages, each with its evidence.
fn savings(ledger: &Ledger) -> Vec<String> {
    let mut rows: Vec<&LedgerRow> =
        ledger.rows.iter().filter(|it| it.cause.is_cause() && it.max_saving_ns > 0).collect();
    rows.sort_by_key(|it| std::cmp::Reverse(it.max_saving_ns));
    let text = |row: &LedgerRow| {
        let stage = ledger.stages.iter().find(|it| it.stage == row.stage)?;
        let share = ratio(100.0 * row.max_saving_ns as f64, stage.measured_ns as f64)?;
        let member = ledger.members(&row.stage, row.cause).next();
        let evidence = member.map(|it| match it.name() {
            // A gap before the first work of a stage follows no kernel.
            name if name.is_empty() => format!(" Start of the stage: {}.", it.evidence),
            name => format!(" {name}: {}.", it.evidence),
        });
        let pass = if row.pass.is_empty() { String::new() } else { format!(" ({})", row.pass) };
        Some(format!(
            "{}: {}, at most {} ms, {} of the stage{pass}.{}",
            row.stage,
            row.cause.words(),
            ms(Nanos(row.max_saving_ns).as_ms()),
            pct(share),
            evidence.unwrap_or_default()
        ))
    };
    rows.into_iter().filter_map(text).take(SAVINGS).collect()
}

fn overhead_text(it: &OverheadRecord) -> Option<String> {
    let share = it.overhead_pct?;
    let longer = if share < 0.0 { "shorter" } else { "longer" };
    Some(format!(
        "Tracing made {} {} {longer}: {} ms instead of {} ms.",
        it.stage,
        pct(share.abs()),
        ms(it.traced_ms),
        ms(it.plain_ms)
    ))
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
