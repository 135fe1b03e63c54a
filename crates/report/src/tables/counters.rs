//! Counters by kernel and launch configuration.

use llmprof_analyze::{Analysis, kernels::counters::CounterRecord};
use llmprof_core::{domain::state::Step, trace::counter::UncountedOperations};

use super::{
    kernels::distinguish,
    report_table::ReportTable,
    run_facts::or_step_message,
    samples::{COUNTERS_OF_FIRST, first_sample_note},
    schema::{
        TableCell, TableColumn, bytes, count, flag, flops, id, millis, nanos, nested, number,
        percent, size, summed, text,
    },
};
use crate::{
    RunFacts,
    format::{UNKNOWN, pct},
};

const SHOWN: [&str; 20] = [
    "kernel_name",
    "stage",
    "grid",
    "block",
    "timeline_calls",
    "timeline_mean_ms",
    "unlike_ms",
    "values.duration_ns",
    "profiled",
    "profiled_in",
    "values.sm_pct",
    "values.dram_pct",
    "values.l2_hit_pct",
    "values.l2_pct",
    "values.achieved_occupancy_pct",
    "values.theoretical_occupancy_pct",
    "values.tensor_pct",
    "values.dram_bytes",
    "flops_per_byte",
    "values.stalls",
];

/// Columns of [`CounterRecord`].
pub fn columns() -> Vec<TableColumn<CounterRecord>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("kernel_name", "Kernel", |it| (&it.kernel_name).into()),
        text("full_name", "Full name", |it| (&it.full_name).into()),
        size("grid", "Grid", |it| it.grid.into()),
        size("block", "Block", |it| it.block.into()),
        summed(count("timeline_calls", "Calls", |it| it.timeline_calls.into())),
        summed(millis("timeline_total_ms", "Total ms", |it| it.timeline_total_ms.into())),
        millis("timeline_mean_ms", "Mean ms", |it| it.timeline_mean_ms.into()),
        summed(millis("unlike_ms", "Unlike ms", |it| it.unlike_ms.into())),
        summed(count("profiled", "Profiled", |it| it.profiled.into())),
        text("profiled_in", "Profiled in", |it| it.profiled_in.as_deref().into()),
        id("values.registers", "Registers", |it| it.values.registers.into()),
        nanos("values.duration_ns", "ncu mean ms", |it| it.values.duration_ns.into()),
        percent("values.sm_pct", "SM", |it| it.values.sm_pct.into()),
        percent("values.memory_pct", "Memory", |it| it.values.memory_pct.into()),
        percent("values.dram_pct", "DRAM", |it| it.values.dram_pct.into()),
        percent("values.l1_hit_pct", "L1 hits", |it| it.values.l1_hit_pct.into()),
        percent("values.l2_hit_pct", "L2 hits", |it| it.values.l2_hit_pct.into()),
        percent("values.l2_pct", "L2", |it| it.values.l2_pct.into()),
        percent("values.achieved_occupancy_pct", "Occupancy", |it| {
            it.values.achieved_occupancy_pct.into()
        }),
        percent("values.theoretical_occupancy_pct", "Max occupancy", |it| {
            it.values.theoretical_occupancy_pct.into()
        }),
        percent("values.tensor_pct", "Tensor", |it| it.values.tensor_pct.into()),
        bytes("values.dram_bytes", "DRAM bytes", |it| it.values.dram_bytes.into()),
        nested("values.flops", "FLOPs", |it| TableCell::nested(&it.values.flops)),
        flops("values.possible_constants", "Possible constants", |it| {
            it.values.possible_constants.into()
        }),
        number("values.waves", "Waves", 2, |it| it.values.waves.into()),
        flag("values.flops_complete", "FLOPs complete", |it| it.values.flops_complete.into()),
        text("values.uncounted", "Uncounted", |it| {
            it.values.uncounted.map(UncountedOperations::as_str).into()
        }),
        nested("values.stalls", "Stalled by", |it: &CounterRecord| {
            TableCell::nested(&it.values.stalls)
        })
        .shown(stalls),
        number("flops_per_byte", "FLOP/B", 2, |it| it.flops_per_byte.into()),
    ]
}

fn stalls(of: &CounterRecord) -> String {
    let stalls: Vec<String> = of
        .values
        .stalls
        .iter()
        .map(|it| format!("{} {}", it.reason.replace('_', " "), pct(it.share_pct)))
        .collect();
    if stalls.is_empty() { UNKNOWN.into() } else { stalls.join(", ") }
}

/// Counters by kernel and launch configuration, longest in the timeline first.
pub fn counters(facts: &RunFacts, analysis: &Analysis) -> ReportTable {
    let caption = "Launches that ncu profiled, by grid and block. Calls and mean are of the \
                   launches in the traced pass that take about as long; unlike is the time of \
                   launches of other durations, for which no counters stand. The rest is ncu's, \
                   whose replays start with cold caches and at the clocks that the device chose. \
                   Percentages are of the device's sustained peak.";
    let mut table = ReportTable::of(
        "counters",
        "Kernel Counters",
        caption,
        (&columns(), &SHOWN),
        &analysis.counters,
    )
    .about(analysis.counters.iter().map(|it| (it.stage.as_str(), it.kernel_name.as_str())));
    let names = analysis.counters.iter();
    distinguish(&mut table, names.map(|it| (&*it.kernel_name, &*it.full_name)));
    if analysis.counters.iter().any(|record| record.flops_per_byte.is_none()) {
        table.note(
            "FLOP/B is unknown where operations of tensor cores were not counted, half-precision \
             ones may be loads of constants, or no byte was moved.",
        );
    }
    if !table.rows.is_empty() {
        table.notes.extend(first_sample_note(analysis, COUNTERS_OF_FIRST));
        table.notes.extend(
            (analysis.samples.rows.len() > 1)
                .then(|| "Calls and means of the traced pass are of all samples.".into()),
        );
    }
    or_step_message(table, facts, Step::Ncu, "No counters were read.")
}
