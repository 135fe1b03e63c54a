//! The gap ledger: rows that add up to the measured time, their members, and the stages.

use std::collections::BTreeSet;

use llmprof_analyze::{
    Analysis,
    ledger::{Ledger, LedgerCause, LedgerMember, LedgerRow, LedgerStage, LedgerUnit},
    stages::in_sentence,
};

use super::{
    report_table::ReportTable,
    schema::{TableCell, TableColumn, count, nanos, nested, number, percent, size, text},
};
use crate::{
    format::{UNKNOWN, decimals, quantity, shortened},
    kernel_names::KernelNames,
};

const SHOWN: [&str; 9] =
    ["cause", "stage", "ns", "step_ns", "share_pct", "max_saving_ns", "largest", "pass", "counter"];
const SHOWN_OF_MEMBERS: [&str; 9] = [
    "kernel",
    "operator",
    "stage",
    "cause",
    "calls",
    "ns",
    "share_pct",
    "max_saving_ns",
    "evidence",
];
/// Characters of a kernel in a row.
const NAME: usize = 80;
const SHOWN_OF_STAGES: [&str; 8] = [
    "stage",
    "measured_ns",
    "traced_ns",
    "floor_ns",
    "times_floor",
    "floor_of",
    "capped_ns",
    "evidence_pct",
];

/// Columns of [`LedgerRow`].
pub fn columns() -> Vec<TableColumn<LedgerRow>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("cause", "Cause", |it| it.cause.as_str().into()),
        nanos("ns", "ms", |it| it.ns.into()),
        nanos("step_ns", "ms per step", |it| it.step_ns.into()),
        percent("share_pct", "Share of stage", |it| it.share_pct.into()),
        count("members", "Members", |it| it.members.into()),
        text("largest", "Largest", |it: &LedgerRow| (&it.largest).into())
            .shown(|it| shown_name(&it.largest)),
        text("pass", "Pass", |it| it.pass.as_str().into()),
        text("counter", "Evidence", |it| it.counter.as_str().into()),
        count("samples", "Samples", |it| it.samples.into()),
        count("gap_parts", "Parts of other gaps", |it| it.gap_parts.into()),
        nanos("max_saving_ns", "Max saving ms", |it| it.max_saving_ns.into()),
    ]
}

/// Columns of [`LedgerMember`].
pub fn member_columns() -> Vec<TableColumn<LedgerMember>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("cause", "Cause", |it| it.cause.as_str().into()),
        text("operator", "Operator", |it| (&it.operator).into()),
        text("kernel", "Kernel or work before a gap", |it: &LedgerMember| (&it.kernel).into())
            .shown(|it| shown_name(&it.kernel)),
        text("full_name", "Full name", |it| (&it.full_name).into()),
        size("grid", "Grid", |it| it.grid.into()),
        size("block", "Block", |it| it.block.into()),
        number("calls", "Calls", 0, |it: &LedgerMember| it.calls.into())
            .shown(|it| shown_calls(it.calls)),
        nanos("ns", "ms", |it| it.ns.into()),
        percent("share_pct", "Share of stage", |it| it.share_pct.into()),
        text("pass", "Pass", |it| it.pass.as_str().into()),
        count("samples", "Samples", |it| it.samples.into()),
        count("gap_parts", "Parts of other gaps", |it| it.gap_parts.into()),
        text("evidence", "Evidence", |it| it.evidence.as_str().into()),
        nanos("max_saving_ns", "Max saving ms", |it| it.max_saving_ns.into()),
        nanos("longest_ns", "Longest gap ms", |it| it.longest_ns.into()),
    ]
}

/// A name of a length that a row can show.
fn shown_name(name: &Option<String>) -> String {
    name.as_ref().map_or_else(|| UNKNOWN.into(), |name| shortened(name, NAME))
}

/// Calls of one repeat: whole, or a part of a call if several repeats were traced.
fn shown_calls(calls: f64) -> String {
    decimals(calls, if (calls - calls.round()).abs() < 0.005 { 0 } else { 2 })
}

/// Columns of [`LedgerStage`].
pub fn stage_columns() -> Vec<TableColumn<LedgerStage>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        nanos("measured_ns", "Measured ms", |it| it.measured_ns.into()),
        nanos("traced_ns", "Traced ms", |it| it.traced_ns.into()),
        count("steps", "Steps", |it| it.steps.into()),
        text("unit", "Unit", |it: &LedgerStage| it.unit.as_str().into()),
        count("instances", "Instances", |it| it.instances.into()),
        text("floor_of", "Floor of", |it| it.floor_of.map(|of| of.as_str()).into()),
        nanos("floor_ns", "Floor ms", |it| it.floor_ns.into()),
        number("times_floor", "Times floor", 2, |it| it.times_floor.into()),
        text("flops_ceiling", "FLOP/s", |it| (&it.flops_ceiling).into()),
        text("bytes_ceiling", "Bandwidth", |it| (&it.bytes_ceiling).into()),
        count("capped_operators", "Capped operators", |it| it.capped_operators.into()),
        nanos("capped_ns", "Capped ms", |it| it.capped_ns.into()),
        nanos("overlap_ns", "Possible overlap ms", |it| it.overlap_ns.into()),
        percent("evidence_pct", "Kernel time with counters", |it| it.evidence_pct.into()),
        nested("missing", "Missing", |it| TableCell::nested(&it.missing)),
    ]
}

/// The ledger of one stage.
pub fn ledger(analysis: &Analysis) -> ReportTable {
    let all = &analysis.ledger;
    let mut table = ReportTable::of(
        "ledger",
        "Gap Ledger",
        "From the floor to the measured time, one repeat; the rows of a stage add up to its \
         measured time. Each cause has evidence other than the time itself.",
        (&columns(), &SHOWN),
        &all.rows,
    );
    let names = KernelNames::of_analysis(analysis);
    for stage in &all.stages {
        if stage.unit == LedgerUnit::Step {
            let name = in_sentence(&stage.stage);
            table.note(format!("{name}: one step, for the recording has no whole {name}."));
        }
        notes(all, &names, stage).into_iter().for_each(|note| table.note(note));
    }
    table.or_gap(
        "No stage has a time.",
        "Read the findings; a command needs NVTX ranges prefill and decode_all, or stage rules.",
    )
}

/// Remarks on one stage.
fn notes(ledger: &Ledger, names: &KernelNames, stage: &LedgerStage) -> Vec<String> {
    let ms = |ns: i64| decimals(ns as f64 / 1e6, 3);
    let name = in_sentence(&stage.stage);
    let mut notes = Vec::new();
    let source = |of: &Option<String>| of.clone().unwrap_or_else(|| UNKNOWN.into());
    if stage.floor_of.is_some() {
        let overlap = match stage.overlap_ns {
            0 => String::new(),
            ns => format!(
                " Work limited by FLOPs and work limited by bytes could overlap by up to {} ms.",
                ms(ns)
            ),
        };
        notes.push(format!(
            "{name}: FLOP/s ceiling: {}; bandwidth: {}.{overlap}",
            source(&stage.flops_ceiling),
            source(&stage.bytes_ceiling),
        ));
    }
    if stage.capped_operators > 0 {
        notes.push(format!(
            "{name}: {} took {} ms less than the floor, because caches can serve bytes that the \
             floor counts: the measured time is the floor there.",
            quantity(stage.capped_operators, "operator"),
            ms(stage.capped_ns)
        ));
    }
    let rest = ledger.members(&stage.stage, LedgerCause::Unexplained).next();
    let largest = rest.map(|it| names.of_part(ledger, it)).filter(|it| !it.is_empty());
    if let Some(largest) = largest {
        notes.push(format!("{name}: largest unexplained part: {largest}."));
    }
    notes.extend(stage.missing.iter().map(|text| format!("{name}: {text}")));
    notes
}

/// Kernels and gaps of the ledger's rows.
pub fn ledger_members(analysis: &Analysis) -> ReportTable {
    let mut members: Vec<&LedgerMember> =
        analysis.ledger.members.iter().filter(|it| it.cause.is_cause()).collect();
    members.sort_by_key(|it| std::cmp::Reverse(it.ns));
    let subjects: Vec<_> = members
        .iter()
        .map(|it| (it.stage.as_str(), it.kernel.as_deref().filter(|_| !it.cause.is_gap())))
        .map(|(stage, kernel)| (stage, kernel.unwrap_or_default()))
        .collect();
    // Launch configurations of one kernel are members of their own.
    let mut seen = BTreeSet::new();
    let has_alike = members
        .iter()
        .any(|it| !seen.insert((&it.stage, it.cause, &it.operator, &it.kernel, &it.full_name)));
    let mut shown = SHOWN_OF_MEMBERS.to_vec();
    if has_alike {
        shown.extend(["grid", "block"]);
    }
    let names = KernelNames::of_analysis(analysis);
    let named: Vec<LedgerMember> = members.iter().map(|it| names.of_member(it)).collect();
    ReportTable::of(
        "ledger-members",
        "Causes by kernel",
        "Kernels and gaps of the ledger's causes, largest first.",
        (&member_columns(), &shown),
        &named,
    )
    .about(subjects)
}

/// Floors of the stages.
pub fn ledger_stages(analysis: &Analysis) -> ReportTable {
    ReportTable::of(
        "ledger-stages",
        "Floors",
        "Measured and traced time of one repeat, and the floor.",
        (&stage_columns(), &SHOWN_OF_STAGES),
        &analysis.ledger.stages,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_without_a_longest_gap_shows_none() {
        let columns = member_columns();
        let column = columns.iter().find(|it| it.name == "longest_ns").unwrap();
        let text = |longest_ns: Option<i64>| {
            let member = serde_json::from_value(serde_json::json!({
                "stage": "prefill", "cause": "latency", "operator": null, "kernel": "k",
                "grid": null, "block": null, "calls": 1.0, "ns": 1, "share_pct": null, "pass": "",
                "samples": 1, "evidence": "", "max_saving_ns": 0, "longest_ns": longest_ns
            }));
            column.text(&member.unwrap())
        };
        assert_eq!(text(None), UNKNOWN);
        assert_ne!(text(Some(0)), UNKNOWN);
    }

    #[test]
    fn a_part_of_a_call_is_shown_as_such() {
        assert_eq!([0.5, 1.0, 1200.0, 2.333_3].map(shown_calls), ["0.50", "1", "1,200", "2.33"]);
    }
}
