//! Use of arithmetic and memory by stage and by operator, against the device's peaks.

use llmprof_analyze::{
    Analysis,
    roofline::mfu::{ALL_STAGES, Ceilings, MfuRecord, OperatorMfu},
    stages::{DECODE, PREFILL},
};
use llmprof_core::domain::finding::catalogue;

use super::{
    report_table::ReportTable,
    schema::{TableColumn, bytes, bytes_per_s, flops, flops_per_s, millis, number, percent, text},
};
use crate::{
    format::{decimals, known, scaled},
    waits::Waits,
};

const SHOWN: [&str; 10] = [
    "scope",
    "flops",
    "flops_per_s",
    "datasheet_pct",
    "measured_pct",
    "clocked_pct",
    "bytes_per_s",
    "datasheet_bandwidth_pct",
    "measured_bandwidth_pct",
    "clocked_bandwidth_pct",
];
const OPERATOR_SHOWN: [&str; 12] = [
    "path",
    "stage",
    "exclusive_ms",
    "exclusive_pct",
    "flops_per_s",
    "datasheet_pct",
    "measured_pct",
    "clocked_pct",
    "bytes_per_s",
    "datasheet_bandwidth_pct",
    "measured_bandwidth_pct",
    "clocked_bandwidth_pct",
];

/// Columns of [`MfuRecord`].
pub fn columns() -> Vec<TableColumn<MfuRecord>> {
    vec![
        text("scope", "Scope", |it| (&it.scope).into()),
        flops("flops", "FLOPs", |it| it.flops.into()),
        text("flops_source", "FLOPs from", |it| (&it.flops_source).into()),
        millis("ms", "Time ms", |it| it.ms.into()),
        flops_per_s("flops_per_s", "Achieved", |it| it.flops_per_s.into()),
        percent("datasheet_pct", "MFU, datasheet", |it| it.datasheet_pct.into()),
        percent("measured_pct", "MFU, measured peak", |it| it.measured_pct.into()),
        percent("clocked_pct", "MFU, at clocks", |it| it.clocked_pct.into()),
        bytes("bytes", "Operand bytes", |it| it.bytes.into()),
        bytes_per_s("bytes_per_s", "Operand bytes/s", |it| it.bytes_per_s.into()),
        percent("datasheet_bandwidth_pct", "Of datasheet bandwidth", |it| {
            it.datasheet_bandwidth_pct.into()
        }),
        percent("measured_bandwidth_pct", "Of measured copy", |it| {
            it.measured_bandwidth_pct.into()
        }),
        percent("clocked_bandwidth_pct", "Bandwidth, at clocks", |it| {
            it.clocked_bandwidth_pct.into()
        }),
        flops_per_s("clocked_flops_per_s", "Peak at clocks", |it| it.clocked_flops_per_s.into()),
        number("sm_mhz", "SM MHz", 0, |it| it.sm_mhz.into()),
    ]
}

/// Columns of [`OperatorMfu`].
pub fn operator_columns() -> Vec<TableColumn<OperatorMfu>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("path", "Operator", |it| (&it.path).into()),
        text("op", "Kind", |it| (&it.op).into()),
        text("dtype", "dtype", |it| (&it.dtype).into()),
        text("time_of", "Time of", |it| (&it.time_of).into()),
        millis("exclusive_ms", "Exclusive ms", |it| it.exclusive_ms.into()),
        percent("exclusive_pct", "Share of stage", |it| it.exclusive_pct.into()),
        flops_per_s("flops_per_s", "FLOP/s", |it| it.flops_per_s.into()),
        bytes_per_s("bytes_per_s", "Operand B/s", |it| it.bytes_per_s.into()),
        number("flops_per_byte", "FLOP/B", 2, |it| it.flops_per_byte.into()),
        percent("datasheet_pct", "MFU, datasheet", |it| it.datasheet_pct.into()),
        percent("measured_pct", "MFU, measured", |it| it.measured_pct.into()),
        percent("clocked_pct", "MFU, at clocks", |it| it.clocked_pct.into()),
        percent("datasheet_bandwidth_pct", "Of datasheet bandwidth", |it| {
            it.datasheet_bandwidth_pct.into()
        }),
        percent("measured_bandwidth_pct", "Of measured copy", |it| {
            it.measured_bandwidth_pct.into()
        }),
        percent("clocked_bandwidth_pct", "Bandwidth, at clocks", |it| {
            it.clocked_bandwidth_pct.into()
        }),
    ]
}

/// Use of arithmetic and memory by stage, against each peak.
pub fn mfu(analysis: &Analysis) -> ReportTable {
    let caption = "Model FLOPs utilisation: FLOPs that the work needs / (time × peak), per repeat.";
    let mut table =
        ReportTable::of("mfu", "MFU", caption, (&columns(), &SHOWN), &analysis.mfu.rows);
    if let Some(ceilings) = analysis.mfu.ceilings.as_ref().filter(|_| !table.rows.is_empty()) {
        table.notes.extend(ceiling_notes(analysis, ceilings));
    }
    if !table.rows.is_empty() {
        table.notes.extend(Waits::of(&analysis.ledger).notes("time contains"));
    }
    if let Some(why) = analysis.why_refuted() {
        return table.or_gap(&why, catalogue::STATED_MODEL_REFUTED.advice.unwrap_or_default());
    }
    if let Some((why, remedy)) = analysis.why_uncounted() {
        return table.or_gap(why, remedy);
    }
    let (why, remedy) = analysis.why_no_utilisation();
    table.or_gap(why, remedy)
}

/// The sources of the peaks.
fn ceiling_notes(analysis: &Analysis, ceilings: &Ceilings) -> Vec<String> {
    let datasheet = match (
        &ceilings.device,
        ceilings.datasheet_flops_per_s,
        &ceilings.datasheet_source,
    ) {
        (Some(device), Some(flops), Some(source)) => format!(
            "Datasheet: {device}, {} dense in {}, {} ({source}).",
            scaled(flops, "FLOP/s"),
            ceilings.dtype,
            known(ceilings.datasheet_bytes_per_s, |rate| scaled(rate, "B/s")),
        ),
        _ => "Datasheet: no peak is known for this device and dtype, so shares of it are missing."
            .into(),
    };
    let measured = match (ceilings.measured_flops_per_s, ceilings.measured_bytes_per_s) {
        (None, None) => "Measured peak: none was measured on this device.".into(),
        (flops, copy) => format!(
            "Measured on this device by the same process: {} in a {} GEMM, {} in a copy.",
            known(flops, |rate| scaled(rate, "FLOP/s")),
            ceilings.dtype,
            known(copy, |rate| scaled(rate, "B/s")),
        ),
    };
    let mut notes = vec![datasheet, measured];
    if ceilings.datasheet_flops_per_s.is_some() {
        notes.push(clock_note(analysis, ceilings));
    }
    let modelled = |row: &&MfuRecord| {
        row.flops_source == "modelled" && matches!(row.scope.as_str(), PREFILL | DECODE)
    };
    let scopes: Vec<&str> =
        analysis.mfu.rows.iter().filter(modelled).map(|row| row.scope.as_str()).collect();
    if !scopes.is_empty() {
        notes.push(format!(
            "FLOPs of {} are modelled from the architecture: not every call was recorded.",
            scopes.join(" and ")
        ));
    }
    notes.push(
        "Operand bytes count every operand of every operator once; caches may serve part of them."
            .into(),
    );
    notes
}

/// The source of the peaks at observed clocks, or the reason why there are none.
fn clock_note(analysis: &Analysis, ceilings: &Ceilings) -> String {
    let peak = |row: &MfuRecord| {
        let (mhz, flops) = (row.sm_mhz?, row.clocked_flops_per_s?);
        Some(format!("{} at {} MHz in {}", scaled(flops, "FLOP/s"), decimals(mhz, 0), row.scope))
    };
    let peaks: Vec<String> =
        analysis.mfu.rows.iter().filter(|row| row.scope != ALL_STAGES).filter_map(peak).collect();
    match ceilings.datasheet_mhz {
        Some(mhz) if !peaks.is_empty() => format!(
            "At clocks: the datasheet's peak, which is for {} MHz, scaled to the mean sampled SM \
             clock: {}. Bandwidth is scaled by the memory clock over its maximum.",
            decimals(mhz, 0),
            peaks.join(", "),
        ),
        Some(_) => "At clocks: missing, since no SM clock was sampled for long enough.".into(),
        None => "At clocks: missing, since the clock of the datasheet's peak is not known.".into(),
    }
}

/// Use of arithmetic and memory by operator, longest first.
pub fn operator_mfu(analysis: &Analysis) -> ReportTable {
    let rows = &analysis.mfu.operators;
    let on_host = rows.iter().any(|row| row.time_of == "host");
    let time = if on_host {
        "the exclusive host time in the unprofiled pass"
    } else {
        "that of their kernels in the traced pass"
    };
    let caption = format!(
        "Operators, layers rolled up: FLOPs / (time × peak) and operand bytes / (time × \
         bandwidth), where the time is {time}. At clocks: peaks scaled to the observed clocks.",
    );
    let mut table = ReportTable::of(
        "operator-mfu",
        "MFU per operator",
        caption,
        (&operator_columns(), &OPERATOR_SHOWN),
        rows,
    );
    if rows.iter().any(|row| row.clocked_pct.is_none()) {
        table.note(
            "At clocks: missing where clocks were not sampled, or where the clock of the \
             datasheet's peak is not known.",
        );
    }
    let above = |row: &OperatorMfu| {
        row.datasheet_bandwidth_pct.or(row.measured_bandwidth_pct).is_some_and(|pct| pct > 100.0)
    };
    if rows.iter().any(above) {
        table.note("Operand bytes above the bandwidth came from caches.");
    }
    table
}
