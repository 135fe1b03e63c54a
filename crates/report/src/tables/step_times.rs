//! Times of single steps, and the work of the devices of a capture without stages.

use llmprof_analyze::{
    Analysis, stages::step_times::StepTimes, timeline::device_totals::TransferTotal,
};

use super::{
    report_table::ReportTable,
    schema::{TableCell, TableColumn, bytes, count, flag, millis, nested, spread_columns, text},
};

/// Columns of [`StepTimes`].
pub fn columns() -> Vec<TableColumn<StepTimes>> {
    let mut columns: Vec<TableColumn<StepTimes>> = vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("are_instances", "Instances", |it: &StepTimes| it.are_instances.into()),
    ];
    columns.extend(spread_columns!("ms", |it: StepTimes| it.ms));
    columns.extend([
        millis("p50_ms", "Median ms", |it: &StepTimes| it.p50_ms.into()),
        flag("has_two_halves", "Two halves", |it| it.has_two_halves.into()),
        count("outliers", "Outliers", |it| it.outliers.into()),
        millis("excess_ms", "Outliers above median ms", |it| it.excess_ms.into()),
        count("preparing", "Preparing code", |it| it.preparing.into()),
        nested("processes", "Processes that differ", |it| TableCell::nested(&it.processes)),
        nested("longest", "Longest outliers", |it| TableCell::nested(&it.longest)),
    ]);
    columns
}

/// Columns of [`TransferTotal`].
pub fn transfer_columns() -> Vec<TableColumn<TransferTotal>> {
    vec![
        text("kind", "Kind", |it| (&it.kind).into()),
        count("calls", "Operations", |it| it.calls.into()),
        bytes("bytes", "Bytes", |it| it.bytes.into()),
        millis("total_ms", "Total ms", |it| it.total_ms.into()),
    ]
}

/// Times of single steps.
pub fn step_times(analysis: &Analysis) -> ReportTable {
    let caption = "Times of single decode steps, and of the instances of other stages. The median \
                   is the least time that at least half of them do not exceed, in the slowest \
                   process if the processes differ; an outlier takes more than twice the \
                   median, of its process if the processes differ.";
    let shown = ["stage", "ms.n", "p50_ms", "ms.min", "ms.max", "ms.mean", "outliers", "excess_ms"];
    let rows = &analysis.step_times;
    ReportTable::of("step-times", "Times of Single Steps", caption, (&columns(), &shown), rows)
}
