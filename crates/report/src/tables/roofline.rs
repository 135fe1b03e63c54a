//! Profiled kernels under the device's roofs.

use llmprof_analyze::{
    Analysis,
    roofline::{KernelBound, LATENCY_BELOW_PCT, Roof, Roofline, RooflinePoint},
};

use super::{
    kernels::distinguish,
    report_table::ReportTable,
    samples::{COUNTERS_OF_FIRST, first_sample_note},
    schema::{
        TableColumn, bytes, bytes_per_s, count, flops, flops_per_s, millis, nanos, number, percent,
        text,
    },
    traced::recorded_only_note,
};
use crate::format::{UNKNOWN, decimals, scaled};

const SHOWN: [&str; 14] = [
    "kernel_name",
    "stage",
    "share_pct",
    "bound",
    "flops_per_byte",
    "flops_per_s",
    "datasheet_pct",
    "measured_pct",
    "bytes_per_s",
    "sm_pct",
    "memory_pct",
    "dram_pct",
    "achieved_occupancy_pct",
    "format",
];

/// Columns of [`RooflinePoint`].
pub fn columns() -> Vec<TableColumn<RooflinePoint>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("kernel_name", "Kernel", |it| (&it.kernel_name).into()),
        text("full_name", "Full name", |it| (&it.full_name).into()),
        count("profiled", "Profiled", |it| it.profiled.into()),
        count("launch_configs", "Launch configs", |it| it.launch_configs.into()),
        millis("timeline_total_ms", "Total ms", |it| it.timeline_total_ms.into()),
        percent("share_pct", "Share of stage", |it| it.share_pct.into()),
        nanos("replay_ns", "ncu mean ms", |it| it.replay_ns.into()),
        flops("flops", "FLOPs", |it| it.flops.into()),
        text("format", "Operations", |it: &RooflinePoint| (&it.format).into()).shown(|it| {
            it.format.as_deref().map_or_else(|| UNKNOWN.into(), |it| it.replace('_', " "))
        }),
        text("roof_dtype", "Roof", |it| (&it.roof_dtype).into()),
        bytes("dram_bytes", "DRAM bytes", |it| it.dram_bytes.into()),
        number("flops_per_byte", "FLOP/B", 2, |it| it.flops_per_byte.into()),
        flops_per_s("flops_per_s", "FLOP/s", |it| it.flops_per_s.into()),
        bytes_per_s("bytes_per_s", "DRAM B/s", |it| it.bytes_per_s.into()),
        percent("datasheet_pct", "Of datasheet roof", |it| it.datasheet_pct.into()),
        percent("measured_pct", "Of measured roof", |it| it.measured_pct.into()),
        percent("sm_pct", "SM", |it| it.sm_pct.into()),
        percent("memory_pct", "Memory", |it| it.memory_pct.into()),
        percent("dram_pct", "DRAM", |it| it.dram_pct.into()),
        percent("achieved_occupancy_pct", "Occupancy", |it| it.achieved_occupancy_pct.into()),
        text("bound", "Bound", |it| it.bound.map(KernelBound::as_str).into()),
        text("missing", "Missing", |it| (&it.missing).into()),
    ]
}

/// Columns of [`Roof`].
pub fn roof_columns() -> Vec<TableColumn<Roof>> {
    vec![
        text("source", "Source", |it| (&it.source).into()),
        text("dtype", "dtype", |it| (&it.dtype).into()),
        flops_per_s("flops_per_s", "FLOP/s", |it| it.flops_per_s.into()),
        bytes_per_s("bytes_per_s", "B/s", |it| it.bytes_per_s.into()),
        number("ridge_flops_per_byte", "Ridge FLOP/B", 1, |it| it.ridge_flops_per_byte.into()),
    ]
}

/// Kernels under the roofs, longest first; numbered as in the drawing.
pub fn roofline(analysis: &Analysis) -> ReportTable {
    let caption = format!(
        "Profiled kernels by stage, over all launch configurations: operations per byte of device \
         memory and achieved rates, both of ncu's replays. A kernel is bound by compute or memory, \
         whichever is busier; by latency where both are below {LATENCY_BELOW_PCT:.0} % of their \
         sustained peak. Numbers are those of the drawing.",
    );
    let roofline = &analysis.roofline;
    let mut table =
        ReportTable::of("roofline", "Roofline", caption, (&columns(), &SHOWN), &roofline.points)
            .about(roofline.points.iter().map(|it| (it.stage.as_str(), it.kernel_name.as_str())));
    let names = roofline.points.iter();
    distinguish(&mut table, names.map(|it| (&*it.kernel_name, &*it.full_name)));
    for (at, row) in table.rows.iter_mut().enumerate() {
        row[0] = format!("{}. {}", at + 1, row[0]);
    }
    for roof in &roofline.roofs {
        table.note(format!(
            "Roof, {} {}: {}, {}, ridge at {} FLOP/B.",
            roof.source,
            roof.dtype,
            scaled(roof.flops_per_s, "FLOP/s"),
            scaled(roof.bytes_per_s, "B/s"),
            decimals(roof.ridge_flops_per_byte, 1),
        ));
    }
    if !roofline.points.is_empty() && roofline.roofs.is_empty() {
        table.note(
            "No roof is known: the pages name no device of conf/devices.toml, and no peak was \
             measured.",
        );
    }
    if !roofline.points.is_empty() {
        table.notes.extend(first_sample_note(analysis, COUNTERS_OF_FIRST));
    }
    table.notes.extend(unknown_intensities(roofline));
    if !table.rows.is_empty() {
        table.notes.extend(recorded_only_note(analysis));
    }
    table
}

/// One note per reason for which kernels have no intensity.
fn unknown_intensities(roofline: &Roofline) -> Vec<String> {
    let all = roofline.points.len();
    let reasons = || roofline.points.iter().filter_map(|point| point.missing.as_deref());
    let mut distinct: Vec<&str> = reasons().collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
        .into_iter()
        .map(|reason| {
            let kernels = reasons().filter(|it| *it == reason).count();
            format!("{kernels} of {all} kernels have no FLOPs per byte, for this reason: {reason}")
        })
        .collect()
}
