//! Use of the GPUs in the traced pass: per stage, by whole-traced graph, by process.

use llmprof_analyze::{
    Analysis,
    timeline::{
        gpu::StageGpu,
        graphs::WholeGraph,
        processes::{ProcessKernel, ProcessRange, ProcessStage},
    },
};

use super::{
    report_table::ReportTable,
    schema::{
        TableCell, TableColumn, bytes, count, flag, id, millis, nanos, nested, percent,
        span_columns, summed, text,
    },
    traced::{repeats_note, stage_or_outside, upper_bound_note},
};
use crate::{
    format::{UNKNOWN, bytes as scaled_bytes, count as counted, known, ms, pct},
    waits::Waits,
};

/// Columns of [`StageGpu`].
pub fn columns() -> Vec<TableColumn<StageGpu>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        id("device", "GPU", |it: &StageGpu| it.device.into())
            .shown(|it| it.device.map_or_else(|| "all".into(), |device| device.to_string())),
        count("devices", "GPUs", |it| it.devices.into()),
        count("instances", "Instances", |it| it.instances.into()),
        millis("window_ms", "Window ms", |it| it.window_ms.into()),
        millis("busy_ms", "Busy ms", |it: &StageGpu| it.busy_ms.into())
            .shown(|it| upper(it, it.busy_ms, ms)),
        flag("busy_is_upper_bound", "Upper bound", |it| it.busy_is_upper_bound.into()),
        percent("busy_pct", "Busy", |it: &StageGpu| it.busy_pct.into())
            .shown(|it| upper(it, it.busy_pct, pct)),
        millis("overlap_ms", "Kernels at once ms", |it| it.overlap_ms.into()),
        millis("copying_ms", "Copying ms", |it| it.copying_ms.into()),
        millis("copy_overlap_ms", "Copies next to kernels ms", |it| it.copy_overlap_ms.into()),
        millis("other_ms", "Other ms", |it| it.other_ms.into()),
        millis("idle_ms", "Idle ms", |it: &StageGpu| it.idle_ms.into())
            .shown(|it| lower(it, it.idle_ms, ms)),
        millis("idle_host_ms", "Idle: host ms", |it: &StageGpu| it.idle_host_ms.into())
            .shown(|it| lower(it, it.idle_host_ms, ms)),
        millis("idle_copy_ms", "Idle: copy ms", |it: &StageGpu| it.idle_copy_ms.into())
            .shown(|it| lower(it, it.idle_copy_ms, ms)),
        millis("idle_sync_ms", "Idle: sync ms", |it: &StageGpu| it.idle_sync_ms.into())
            .shown(|it| lower(it, it.idle_sync_ms, ms)),
        millis("idle_unknown_ms", "Idle: unknown ms", |it: &StageGpu| it.idle_unknown_ms.into())
            .shown(|it| lower(it, it.idle_unknown_ms, ms)),
        count("gaps", "Gaps", |it| it.gaps.into()),
        millis("longest_gap_ms", "Longest gap ms", |it| it.longest_gap_ms.into()),
        percent("launch_bound_pct", "Launch-bound", |it: &StageGpu| it.launch_bound_pct.into())
            .shown(|it| lower(it, it.launch_bound_pct, pct)),
        count("launches", "Launches", |it| it.launches.into()),
        count("graph_launches", "Graph launches", |it| it.graph_launches.into()),
        count("whole_graphs", "Whole graphs", |it| it.whole_graphs.into()),
        nested("copies", "Copies", |it: &StageGpu| TableCell::nested(&it.copies)).shown(copies),
        count("fills", "Fills", |it: &StageGpu| it.fills.into()).shown(fills),
        bytes("filled_bytes", "Filled", |it| it.filled_bytes.into()),
        millis("fill_ms", "Fill ms", |it| it.fill_ms.into()),
    ]
}

/// A figure that is an upper bound if graphs were traced as a whole.
fn upper(of: &StageGpu, value: Option<f64>, show: fn(f64) -> String) -> String {
    let sign = if of.busy_is_upper_bound { "≤ " } else { "" };
    known(value, |value| format!("{sign}{}", show(value)))
}

/// A figure that is a lower bound if graphs were traced as a whole.
fn lower(of: &StageGpu, value: Option<f64>, show: fn(f64) -> String) -> String {
    let sign = if of.busy_is_upper_bound { "≥ " } else { "" };
    known(value, |value| format!("{sign}{}", show(value)))
}

fn copies(of: &StageGpu) -> String {
    let copies: Vec<String> = of
        .copies
        .iter()
        .map(|it| {
            let kind = it.kind.replace('_', " ");
            format!("{} {kind}: {}", counted(it.calls), scaled_bytes(it.bytes))
        })
        .collect();
    if copies.is_empty() { UNKNOWN.into() } else { copies.join(", ") }
}

fn fills(of: &StageGpu) -> String {
    match of.fills {
        0 => UNKNOWN.into(),
        fills => format!("{}: {}", counted(fills), scaled_bytes(of.filled_bytes)),
    }
}

/// Columns of [`WholeGraph`].
pub fn graph_columns() -> Vec<TableColumn<WholeGraph>> {
    let mut columns: Vec<TableColumn<WholeGraph>> = vec![
        text("stage", "Stage", |it: &WholeGraph| (&it.stage).into())
            .shown(|it| stage_or_outside(&it.stage)),
        id("graph", "Graph", |it| it.graph.into()),
        id("device", "GPU", |it| it.device.into()),
    ];
    columns.extend(span_columns!("launch_ns", |it: WholeGraph| Some(it.launch_ns)));
    columns
}

/// Columns of [`ProcessStage`].
pub fn process_columns() -> Vec<TableColumn<ProcessStage>> {
    vec![
        id("process", "Process", |it| it.process.into()),
        text("process_name", "Name", |it| (&it.process_name).into()),
        id("device", "Device", |it| it.device.into()),
        text("stage", "Stage", |it: &ProcessStage| (&it.stage).into())
            .shown(|it| stage_or_outside(&it.stage)),
        count("launches", "Launches", |it| it.launches.into()),
        millis("kernel_ms", "Kernel ms", |it| it.kernel_ms.into()),
        count("graph_launches", "Whole graphs", |it| it.graph_launches.into()),
        millis("busy_ms", "Busy ms", |it| it.busy_ms.into()),
        count("copies", "Copies", |it| it.copies.into()),
        bytes("copied_bytes", "Copied", |it| it.copied_bytes.into()),
        count("fills", "Fills", |it| it.fills.into()),
        bytes("filled_bytes", "Filled", |it| it.filled_bytes.into()),
    ]
}

/// Columns of [`ProcessKernel`].
pub fn process_kernel_columns() -> Vec<TableColumn<ProcessKernel>> {
    vec![
        id("process", "Process", |it| it.process.into()),
        id("device", "Device", |it| it.device.into()),
        text("stage", "Stage", |it| (&it.stage).into()),
        text("kernel_name", "Kernel", |it| (&it.kernel_name).into()),
        summed(count("calls", "Calls", |it| it.calls.into())),
        summed(millis("total_ms", "Total ms", |it| it.total_ms.into())),
        millis("mean_ms", "Mean ms", |it| it.mean_ms.into()),
    ]
}

/// Columns of [`ProcessRange`].
pub fn process_range_columns() -> Vec<TableColumn<ProcessRange>> {
    let mut columns: Vec<TableColumn<ProcessRange>> = vec![
        id("process", "Process", |it| it.process.into()),
        text("domain", "Domain", |it| (&it.domain).into()),
        text("name", "Range", |it| (&it.name).into()),
    ];
    columns.extend(span_columns!("ns", |it: ProcessRange| Some(it.ns)));
    columns
}

/// Use of the GPUs by stage: the sum, followed by each GPU if there are several.
pub fn stage_gpu(analysis: &Analysis) -> ReportTable {
    let rows = rows(analysis);
    let several = !analysis.stage_gpu.devices.is_empty();
    let other = rows.iter().any(|it| it.other_ms.is_some_and(|ms| ms > 0.0));
    let mut shown = vec!["stage"];
    shown.extend(several.then_some("device"));
    shown.extend(["instances", "window_ms", "busy_ms", "busy_pct"]);
    let above =
        |of: fn(&StageGpu) -> Option<f64>| rows.iter().any(|it| of(it).is_some_and(|ms| ms > 0.0));
    shown.extend(above(|it| it.overlap_ms).then_some("overlap_ms"));
    shown.extend(above(|it| it.copying_ms).then_some("copying_ms"));
    shown.extend(above(|it| it.copying_ms).then_some("copy_overlap_ms"));
    shown.extend(other.then_some("other_ms"));
    shown.extend(["idle_host_ms", "idle_copy_ms", "idle_sync_ms", "idle_unknown_ms"]);
    shown.extend(["gaps", "longest_gap_ms", "launch_bound_pct", "copies"]);
    shown.extend(rows.iter().any(|it| it.fills > 0).then_some("fills"));
    let mut caption =
        "The GPU in the traced pass, from each start of a stage to the end of its last \
         operation on the GPU. Busy: something of the stage ran. Idle: nothing ran. An idle gap is \
         split at the start of the next launching call: before it, the host was in a waiting call \
         (sync), in a copying call (copy) or elsewhere (host, which includes the launch itself). \
         Where the next operation had been launched before the gap, the cause is unknown."
            .to_owned();
    if other {
        caption += " Other: only work ran that the stage did not launch.";
    }
    if several {
        caption += " Each GPU is measured separately; \"all\" is their sum.";
    }
    let mut table =
        ReportTable::of("stage-gpu", "GPU per stage", caption, (&columns(), &shown), rows);
    if !table.rows.is_empty() {
        table.notes.extend(upper_bound_note(analysis));
        table.notes.extend(repeats_note(analysis));
        let waits = Waits::of(&analysis.ledger);
        table.notes.extend(waits.notes("window and unknown idle time contain"));
    }
    table
}

/// Totals, each followed by its GPUs.
fn rows(analysis: &Analysis) -> Vec<&StageGpu> {
    let gpus = &analysis.stage_gpu;
    let mut rows = Vec::new();
    for total in &gpus.totals {
        rows.push(total);
        rows.extend(gpus.devices.iter().filter(|it| it.stage == total.stage));
    }
    rows
}

/// CUDA graphs that were traced as a whole.
pub fn whole_graphs(analysis: &Analysis) -> ReportTable {
    let shown = [
        "stage",
        "graph",
        "device",
        "launch_ns.count",
        "launch_ns.total",
        "launch_ns.mean",
        "launch_ns.median",
        "launch_ns.min",
        "launch_ns.max",
    ];
    let caption = "Launches of CUDA graphs that were traced as a whole, each from its start to its \
                   end on the GPU: an upper bound of the work inside.";
    ReportTable::of(
        "whole-graphs",
        "CUDA graphs traced as a whole",
        caption,
        (&graph_columns(), &shown),
        &analysis.graphs,
    )
}

/// Processes and devices; empty if a single process used a single device.
pub fn processes(analysis: &Analysis) -> ReportTable {
    let rows = &analysis.processes.stages;
    let graphs = rows.iter().any(|it| it.graph_launches > 0);
    let several =
        rows.iter().any(|it| (it.process, it.device) != (rows[0].process, rows[0].device));
    let mut shown = vec!["process", "process_name", "device", "stage", "launches", "kernel_ms"];
    shown.extend(graphs.then_some("graph_launches"));
    shown.extend(["busy_ms", "copies", "copied_bytes", "fills", "filled_bytes"]);
    let caption = "Work of each process on each device in the traced pass. Busy: a kernel, copy, \
                   fill or whole-traced graph of the process ran there.";
    ReportTable::of(
        "processes",
        "Processes and devices",
        caption,
        (&process_columns(), &shown),
        rows.iter().filter(|_| several),
    )
}
