//! What the device's counters and the libraries' logs say: counters by kernel and geometry, matrix products by shape.
//!
//! Arranges figures that analysis made; computes none.

use super::work::sides;
use crate::{
    analyze::{Analysis, counters::CounterRecord, gemms::GemmRecord},
    report::{
        RunFacts,
        format::{UNKNOWN, count, decimals, known, ms, pct, scaled},
        table::Table,
    },
    run::{Step, StepState},
};

const COUNTER_COLUMNS: [&str; 16] = [
    "Kernel",
    "Stage",
    "Grid",
    "Block",
    "#Calls",
    "#Mean ms",
    "#ncu mean ms",
    "#Profiled",
    "#SM",
    "#DRAM",
    "#L2 hits",
    "#Occupancy",
    "#Tensor",
    "#DRAM bytes",
    "#FLOP/B",
    "Stalled by",
];

/// Counters by kernel and geometry, longest in the timeline first.
pub fn counters(facts: &RunFacts, analysis: &Analysis) -> Table {
    let caption = "Launches that ncu profiled, by geometry: calls and mean are of the nsys pass, the rest of ncu's, whose replays begin \
                   with cold caches and at the clocks that the device chose. Percentages are of what the device can sustain.";
    let mut table = Table::new("counters", "Kernel Counters", caption, &COUNTER_COLUMNS);
    analysis.counters.iter().for_each(|record| table.row(counter_cells(record)));
    if analysis.counters.iter().any(|record| record.flops_per_byte.is_none()) {
        table.notes.push(
            "FLOP/B is left out where the tensor cores worked and the device does not count their operations, or no byte was moved."
                .into(),
        );
    }
    or_missing(table, facts, Step::Ncu, "No kernel's counters were read.")
}

fn counter_cells(record: &CounterRecord) -> [String; 16] {
    let values = &record.values;
    let stalls: Vec<String> =
        values.stalls.iter().map(|it| format!("{} {}", it.reason.replace('_', " "), pct(it.share_pct))).collect();
    let occupancy = match (values.achieved_occupancy_pct, values.theoretical_occupancy_pct) {
        (Some(achieved), Some(most)) => format!("{} of {}", pct(achieved), pct(most)),
        (achieved, _) => known(achieved, pct),
    };
    [
        record.kernel_name.clone(),
        record.stage.clone(),
        known(record.grid, sides),
        known(record.block, sides),
        known(record.timeline_calls, count),
        known(record.timeline_mean_ms, ms),
        known(values.duration_ns, |ns| ms(ns / 1e6)),
        count(record.profiled),
        known(values.sm_pct, pct),
        known(values.dram_pct, pct),
        known(values.l2_hit_pct, pct),
        occupancy,
        known(values.tensor_pct, pct),
        known(values.dram_bytes, |bytes| scaled(bytes, "B")),
        known(record.flops_per_byte, |ratio| decimals(ratio, 2)),
        if stalls.is_empty() { UNKNOWN.into() } else { stalls.join(", ") },
    ]
}

/// Matrix products by stage, most operations first.
pub fn gemms(facts: &RunFacts, analysis: &Analysis) -> Table {
    let columns = [
        "Stage",
        "#M",
        "#N",
        "#K",
        "#Batch",
        "Types",
        "Transposed",
        "#Calls",
        "#Per step",
        "#FLOPs each",
        "#FLOPs",
        "#Share",
        "Chosen",
    ];
    let caption = "Matrix products that the program asked cuBLAS for, in its own terms: (M × K) times (K × N), rows contiguous. cuBLAS \
                   counts columns, so its log calls M what is N here, and takes the right operand first.";
    let mut table = Table::new("gemms", "Matrix Products", caption, &columns);
    analysis.gemms.records.iter().for_each(|record| table.row(gemm_cells(record)));
    if !table.rows.is_empty() {
        let steps = count(analysis.gemms.decode_steps);
        table.notes.push(format!(
            "Logged in a pass of its own, eager, with {steps} decode steps: shapes and counts are of that pass, and no time is."
        ));
    }
    or_missing(table, facts, Step::GemmLog, "No matrix product was logged.")
}

fn gemm_cells(record: &GemmRecord) -> [String; 13] {
    let transposed = match (record.left_transposed, record.right_transposed) {
        (false, false) => UNKNOWN,
        (true, false) => "left",
        (false, true) => "right",
        (true, true) => "both",
    };
    [
        if record.stage.is_empty() { UNKNOWN.into() } else { record.stage.clone() },
        count(record.m),
        count(record.n),
        count(record.k),
        count(record.batch),
        format!("{} × {} → {} in {}", record.left_type, record.right_type, record.out_type, record.compute),
        transposed.into(),
        count(record.calls),
        known(record.calls_per_step, |calls| decimals(calls, 1)),
        scaled(record.flops_per_call as f64, "FLOP"),
        scaled(record.total_flops as f64, "FLOP"),
        known(record.share_pct, pct),
        record.algorithm.clone().unwrap_or_else(|| UNKNOWN.into()),
    ]
}

/// Says why a table is empty where its step was asked for; a table that nobody asked for stays without rows and reason.
fn or_missing(table: Table, facts: &RunFacts, step: Step, why: &str) -> Table {
    match facts.steps.iter().find(|record| record.step == step) {
        Some(record) if record.state != StepState::Succeeded => {
            let said = record.message.clone().unwrap_or_else(|| "The step left no message; its log may tell more.".into());
            table.or_gap(why, said)
        }
        _ => table,
    }
}
