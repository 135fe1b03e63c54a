//! Units by which a comparison divides the sums of a stage: its repeats, or the steps of a decode.

use llmprof_analyze::{ledger::LedgerUnit, stages::DECODE};
use llmprof_core::domain::finding::catalogue;

use crate::profile::LLMProfileReport;

/// Units of a stage in the capture: `unit` is a step if one side has no whole decode.
pub(super) fn units(report: &LLMProfileReport, stage: &str, unit: LedgerUnit) -> Option<u64> {
    let gpu = report.stage_gpu.iter().find(|it| it.stage == stage)?;
    let units = match (unit, unit_of(report, stage)) {
        // The kernels of whole decodes and of parts are one sum.
        (LedgerUnit::Repeat, _) if stage == DECODE && has_parts(report) => None,
        (LedgerUnit::Repeat, _) => Some(gpu.instances),
        (LedgerUnit::Step, LedgerUnit::Repeat) => {
            report.aggregates.decode_steps.and_then(|steps| gpu.instances.checked_mul(steps))
        }
        (LedgerUnit::Step, LedgerUnit::Step) => {
            report.ledger_stages.iter().find(|it| it.stage == stage)?.instances
        }
    };
    units.filter(|it| *it > 0)
}

/// True if the recording cuts some decodes.
fn has_parts(report: &LLMProfileReport) -> bool {
    report.findings.iter().any(|it| it.id == catalogue::DECODE_CUT)
}

/// The unit of a stage, by the ledger if it has the stage.
pub(super) fn unit_of(report: &LLMProfileReport, stage: &str) -> LedgerUnit {
    let has_steps = || report.step_times.iter().any(|it| it.stage == stage && it.are_steps());
    let is_timed = || report.stages.iter().any(|it| it.stage == stage);
    match report.ledger_stages.iter().find(|it| it.stage == stage) {
        Some(it) => it.unit,
        None if has_steps() && !is_timed() => LedgerUnit::Step,
        None => LedgerUnit::Repeat,
    }
}
