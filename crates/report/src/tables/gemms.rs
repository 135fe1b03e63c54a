//! GEMMs by stage and shape.

use llmprof_analyze::{
    Analysis,
    kernels::gemms::{GemmRecord, LOG, OPERATOR},
};
use llmprof_core::domain::{state::Step, subject::SubjectKind};

use super::{
    report_table::ReportTable,
    run_facts::or_step_message,
    samples::first_sample_note,
    schema::{
        TableColumn, count, flag, flops, flops_per_s, id, micros, millis, number, percent, summed,
        text,
    },
};
use crate::{
    RunFacts,
    format::{UNKNOWN, count as counted, pct},
};

const SHOWN: [&str; 24] = [
    "stage",
    "origin",
    "m",
    "n",
    "k",
    "batch",
    "left_type",
    "right_type",
    "out_type",
    "compute",
    "left_transposed",
    "right_transposed",
    "calls",
    "calls_per_step",
    "flops_per_call",
    "total_flops",
    "share_pct",
    "kernel_mean_us",
    "kernel_ms",
    "flops_per_s",
    "ceiling_pct",
    "tile",
    "tile_fill_pct",
    "algorithm",
];

/// Columns of [`GemmRecord`].
pub fn columns() -> Vec<TableColumn<GemmRecord>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("origin", "Origin", |it| (&it.origin).into()),
        id("m", "M", |it| it.m.into()),
        id("n", "N", |it| it.n.into()),
        id("k", "K", |it| it.k.into()),
        count("batch", "Batch", |it| it.batch.into()),
        text("left_type", "Left", |it| (&it.left_type).into()),
        text("right_type", "Right", |it| (&it.right_type).into()),
        text("out_type", "Out", |it| (&it.out_type).into()),
        flag("left_transposed", "Left transposed", |it| it.left_transposed.into()),
        flag("right_transposed", "Right transposed", |it| it.right_transposed.into()),
        text("compute", "Compute", |it| (&it.compute).into()),
        text("function", "Function", |it| (&it.function).into()),
        text("algorithm", "Algorithm", |it| (&it.algorithm).into()),
        summed(count("calls", "Calls", |it| it.calls.into())),
        number("calls_per_step", "Calls per step", 1, |it| it.calls_per_step.into()),
        flops("flops_per_call", "FLOPs per call", |it| it.flops_per_call.into()),
        summed(flops("total_flops", "FLOPs", |it| it.total_flops.into())),
        percent("share_pct", "Share", |it| it.share_pct.into()),
        text("kernel_name", "Kernel", |it| (&it.kernel_name).into()),
        summed(count("kernel_calls", "Launches", |it| it.kernel_calls.into())),
        summed(millis("kernel_ms", "Kernel ms", |it| it.kernel_ms.into())),
        micros("kernel_mean_us", "Mean us", |it| it.kernel_mean_us.into()),
        flops_per_s("flops_per_s", "FLOP/s", |it| it.flops_per_s.into()),
        text("ceiling", "Ceiling", |it| (&it.ceiling).into()),
        percent("ceiling_pct", "Of ceiling", |it: &GemmRecord| it.ceiling_pct.into())
            .shown(of_ceiling),
        text("tile", "Tile", |it| (&it.tile).into()),
        percent("tile_fill_pct", "Tile fill", |it| it.tile_fill_pct.into()),
        number("waves", "Waves", 2, |it| it.waves.into()),
    ]
}

/// The share of the ceiling with its source.
fn of_ceiling(it: &GemmRecord) -> String {
    let share = it.ceiling_pct.zip(it.ceiling.as_ref());
    share.map_or_else(|| UNKNOWN.into(), |(share, of)| format!("{} {of}", pct(share)))
}

/// GEMMs by stage, most operations first.
pub fn gemms(facts: &RunFacts, analysis: &Analysis) -> ReportTable {
    let caption = "Matrix products as the program sees them: (M × K) times (K × N), row-major. \
                   Those that it requested from cuBLAS are in its log, which is column-major: it \
                   swaps M and N and lists the right operand first. The others are products of \
                   operators.";
    let mut table = ReportTable::of(
        "gemms",
        "Matrix Products",
        caption,
        (&columns(), &SHOWN),
        &analysis.gemms.records,
    );
    let has = |origin: &str| analysis.gemms.records.iter().any(|it| it.origin == origin);
    if has(LOG) {
        let steps = counted(analysis.gemms.decode_steps);
        let pass = match analysis.subject {
            SubjectKind::Command => "run of the command".into(),
            _ => format!("eager pass with {steps} decode steps"),
        };
        table.note(format!(
            "Logged in a separate {pass}: shapes and counts are of that pass, which is not timed."
        ));
        table.notes.extend(first_sample_note(analysis, "The logged GEMMs"));
        if analysis.gemms.records.iter().any(|it| it.kernel_ms.is_some()) {
            table.note(
                "Times are of the traced pass: calls and kernels are joined by their order, for \
                 stages in which both agree in number, tile and grid. Time and FLOP/s include the \
                 reductions of split k. Tiles are rows x columns x depth.",
            );
        }
    }
    if has(OPERATOR) {
        table.note(
            "Rows of the origin `operator` have the shapes that an operator recorded, and the time \
             of its kernels in the traced pass: no library logged them. M of experts counts the \
             rows of all of them.",
        );
    }
    or_step_message(table, facts, Step::GemmLog, "No GEMM was logged.")
}
