//! Kernels by stage and name, by full name, and device time per stage.

use llmprof_analyze::{
    Analysis,
    findings::why_no_kernels,
    kernels::{FullKernelRecord, KernelRecord, OUTSIDE, StageKernels},
};
use llmprof_core::{
    domain::state::{Step, StepState},
    trace::Trace,
};

use super::{
    report_table::ReportTable,
    samples::{COUNTERS_OF_FIRST, first_sample_note},
    schema::{
        TableColumn, count, id, millis, nanos, number, percent, size, span_columns, summed, text,
    },
    traced::{stage_or_outside, sum_notes},
};
use crate::{
    RunFacts,
    format::{count as counted, known, ms},
    kernel_names::{KernelName, distinct},
};

const SHOWN: [&str; 11] = [
    "kernel_name",
    "stage",
    "total_ms",
    "calls",
    "mean_ms",
    "share_pct",
    "class",
    "launch_ns.median",
    "grid",
    "block",
    "registers",
];
const SHOWN_COUNTERS: [&str; 5] = [
    "counters.replay_ms",
    "counters.sm_pct",
    "counters.dram_pct",
    "counters.achieved_occupancy_pct",
    "counters.tensor_pct",
];

/// Columns of [`KernelRecord`].
pub fn columns() -> Vec<TableColumn<KernelRecord>> {
    let mut columns: Vec<TableColumn<KernelRecord>> = vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("kernel_name", "Kernel", |it| (&it.kernel_name).into()),
        summed(count("calls", "Calls", |it| it.calls.into())),
        summed(millis("total_ms", "Total ms", |it| it.total_ms.into())),
        millis("mean_ms", "Mean ms", |it| it.mean_ms.into()),
        percent("share_pct", "Share of stage", |it| it.share_pct.into()),
    ];
    columns.extend(span_columns!("launch_ns", |it: KernelRecord| Some(it.launch_ns)));
    columns.extend([
        text("class", "Class", |it: &KernelRecord| (&it.class).into()),
        text("engine", "Engine", |it| (&it.engine).into()),
        id("device", "Device", |it| it.device.into()),
        size("grid", "Grid", |it| it.grid.into()),
        size("block", "Block", |it| it.block.into()),
        // Each kernel uses some: zero is unknown.
        id("registers", "Registers", |it| Some(it.registers).filter(|it| *it > 0).into()),
        count("launch_configs", "Launch configs", |it| it.launch_configs.into()),
        text("full_name", "Full name", |it| (&it.full_name).into()),
        count("name_variants", "Name variants", |it| it.name_variants.into()),
    ]);
    columns.extend(counter_columns());
    columns
}

/// Columns of the counters of a [`KernelRecord`].
fn counter_columns() -> [TableColumn<KernelRecord>; 10] {
    [
        summed(count("counters.profiled", "Profiled", |it| {
            it.counters.as_ref().map(|it| it.profiled).into()
        })),
        count("counters.launch_configs", "Profiled configs", |it| {
            it.counters.as_ref().map(|it| it.launch_configs).into()
        }),
        percent("counters.covered_pct", "Covered", |it| {
            it.counters.as_ref().and_then(|it| it.covered_pct).into()
        }),
        millis("counters.replay_ms", "ncu mean ms", |it| {
            it.counters.as_ref().and_then(|it| it.replay_ms).into()
        }),
        percent("counters.sm_pct", "SM", |it| it.counters.as_ref().and_then(|it| it.sm_pct).into()),
        percent("counters.dram_pct", "DRAM", |it| {
            it.counters.as_ref().and_then(|it| it.dram_pct).into()
        }),
        percent("counters.achieved_occupancy_pct", "Occupancy", |it| {
            it.counters.as_ref().and_then(|it| it.achieved_occupancy_pct).into()
        }),
        percent("counters.tensor_pct", "Tensor", |it| {
            it.counters.as_ref().and_then(|it| it.tensor_pct).into()
        }),
        number("counters.flops_per_byte", "FLOP/B", 2, |it| {
            it.counters.as_ref().and_then(|it| it.flops_per_byte).into()
        }),
        text("counters.stalled_by", "Stalled by", |it| {
            it.counters.as_ref().and_then(|it| it.stalled_by.as_ref()).into()
        }),
    ]
}

/// Columns of [`FullKernelRecord`].
pub fn full_columns() -> Vec<TableColumn<FullKernelRecord>> {
    let mut columns: Vec<TableColumn<FullKernelRecord>> = vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("full_name", "Full name", |it| (&it.full_name).into()),
        text("kernel_name", "Kernel", |it| (&it.kernel_name).into()),
        text("class", "Class", |it| (&it.class).into()),
        text("engine", "Engine", |it| (&it.engine).into()),
        summed(count("calls", "Calls", |it| it.calls.into())),
        summed(millis("total_ms", "Total ms", |it| it.total_ms.into())),
        millis("mean_ms", "Mean ms", |it| it.mean_ms.into()),
        percent("share_pct", "Share of stage", |it| it.share_pct.into()),
    ];
    columns.extend(span_columns!("launch_ns", |it: FullKernelRecord| Some(it.launch_ns)));
    columns
}

/// Columns of [`StageKernels`].
pub fn stage_columns() -> Vec<TableColumn<StageKernels>> {
    vec![
        text("stage", "Stage", |it: &StageKernels| (&it.stage).into())
            .shown(|it| stage_or_outside(&it.stage)),
        count("launches", "Launches", |it| it.launches.into()),
        millis("kernel_ms", "Kernel ms", |it| it.kernel_ms.into()),
        count("graph_launches", "Whole graphs", |it| it.graph_launches.into()),
        millis("graph_ms", "Graphs ms", |it| it.graph_ms.into()),
        millis("busy_ms", "Busy ms", |it: &StageKernels| it.busy_ms.into()).shown(|it| {
            let sign = if it.graph_launches > 0 { "≤ " } else { "" };
            known(it.busy_ms, |busy| format!("{sign}{}", ms(busy)))
        }),
    ]
}

/// Kernels by stage and name, longest first.
pub fn kernels(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> ReportTable {
    let with_counters = analysis.kernels.measured().any(|record| record.counters.is_some());
    let mut shown = SHOWN.to_vec();
    if with_counters {
        shown.extend(SHOWN_COUNTERS);
    }
    let caption = "Kernels of the traced pass by launching stage, without warm-up, sorted by total \
                   time. Grid, block and registers are those of most launches.";
    let mut table = ReportTable::of(
        "kernels",
        "Top Kernels",
        caption,
        (&columns(), &shown),
        analysis.kernels.measured(),
    )
    .about(analysis.kernels.measured().map(|it| (it.stage.as_str(), it.kernel_name.as_str())));
    let names = analysis.kernels.measured();
    distinguish(&mut table, names.map(|it| (&*it.kernel_name, &*it.full_name)));
    if with_counters {
        table.note(
            "ncu replays a few launches: its counters are means weighted by time, as shares of the \
             device's sustained peak. Its times are of cold caches; the timeline's are those of \
             the \
             workload.",
        );
        table.notes.extend(first_sample_note(analysis, COUNTERS_OF_FIRST));
    }
    if !table.rows.is_empty() {
        table.notes.extend(sum_notes(analysis));
    }
    if let Some(it) = analysis.kernels.stages.iter().find(|it| it.stage == OUTSIDE) {
        let time = known(it.kernel_ms, |total| format!(", {} ms", ms(total)));
        table.note(format!("Not listed: {} launches{time} {OUTSIDE}.", counted(it.launches)));
    }
    let (why, remedy) = why_empty(facts, trace, analysis);
    table.or_gap(why, remedy)
}

/// The reason for an empty table of kernels and the remedy, which the failed step may know better.
fn why_empty(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> (String, String) {
    let (why, remedy) = match why_no_kernels(analysis, trace) {
        Some((why, remedy)) => (why, remedy.to_owned()),
        None => (
            "Every kernel was launched by warm-up.".into(),
            "Check the stages in the capture.".to_owned(),
        ),
    };
    let without_data = |state| matches!(state, StepState::Skipped | StepState::Failed);
    let message = facts
        .steps
        .iter()
        .find(|it| it.step == Step::Nsys && without_data(it.state))
        .and_then(|it| it.message.as_ref());
    match message {
        Some(message) => (why, format!("{remedy} Message of the nsys step: {message}")),
        None => (why, remedy),
    }
}

/// Shows a unique name of each kernel in the first column.
pub(super) fn distinguish<'a>(
    table: &mut ReportTable,
    names: impl Iterator<Item = KernelName<'a>>,
) {
    let names: Vec<KernelName> = names.collect();
    for ((row, name), (short, _)) in table.rows.iter_mut().zip(distinct(&names)).zip(&names) {
        if name != *short {
            row[0] = name;
        }
    }
}

/// Kernels by stage and full name; empty if each short name has one full name.
pub fn kernels_full(analysis: &Analysis) -> ReportTable {
    let shown = ["full_name", "stage", "total_ms", "calls", "mean_ms", "share_pct", "class"];
    let several = analysis.kernels.measured_full().any(|it| it.full_name != it.kernel_name);
    ReportTable::of(
        "kernels-full",
        "Kernels by full name",
        "Kernels of the traced pass by full name, without warm-up and set-up, sorted by total \
         time.",
        (&full_columns(), &shown),
        analysis.kernels.measured_full().filter(|_| several),
    )
}

/// Device time per stage.
pub fn stage_kernels(analysis: &Analysis) -> ReportTable {
    let graphs = analysis.kernels.stages.iter().any(|it| it.graph_launches > 0);
    let mut shown = vec!["stage", "launches", "kernel_ms"];
    if graphs {
        shown.extend(["graph_launches", "graph_ms"]);
    }
    shown.push("busy_ms");
    let caption = "Kernels per launching stage in the traced pass. Busy: a kernel, copy, fill or \
                   whole-traced graph of the stage ran, summed over GPUs.";
    let mut table = ReportTable::of(
        "stage-kernels",
        "Device time per stage",
        caption,
        (&stage_columns(), &shown),
        &analysis.kernels.stages,
    );
    if !table.rows.is_empty() {
        table.notes.extend(sum_notes(analysis));
    }
    table
}
