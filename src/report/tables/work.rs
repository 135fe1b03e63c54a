//! Top operators and top kernels: total, calls, mean, sorted by total.
//!
//! Arranges figures that analysis made; computes none.

use std::collections::BTreeMap;

use super::recorded_only_note;
use crate::{
    analyze::{
        Analysis,
        findings::why_no_kernels,
        kernels::{KernelRecord, OUTSIDE},
        operators::OperatorRecord,
    },
    report::{
        RunFacts,
        format::{UNKNOWN, count, known, ms, pct, scaled, shapes},
        table::Table,
    },
    run::{Step, StepState},
    trace::Trace,
};

/// Longest name of a kernel in a table of them, characters.
const MAX_NAME: usize = 72;

/// Heads of a table of operators.
pub const OPERATOR_COLUMNS: [&str; 17] = [
    "Operator",
    "Kind",
    "Stage",
    "#Calls",
    "#Inclusive ms",
    "#Exclusive ms",
    "#Mean ms",
    "#Inclusive share",
    "#Exclusive share",
    "#Device calls",
    "#Device inclusive ms",
    "#Device exclusive ms",
    "#Device mean ms",
    "#Device exclusive share",
    "#FLOP/s",
    "#B/s",
    "Shapes",
];

/// Cells of one operator under [`OPERATOR_COLUMNS`].
pub fn operator_cells(record: &OperatorRecord) -> [String; 17] {
    let device = record.device.as_ref();
    // Where kernels are known, they are what the work took; else the host's own time is.
    let flops = device.map_or(record.flops_per_s, |it| it.flops_per_s);
    let bytes = device.map_or(record.bytes_per_s, |it| it.bytes_per_s);
    [
        record.path.clone(),
        record.op.clone(),
        stage(&record.stage),
        count(record.calls),
        known(record.inclusive_ms, ms),
        known(record.exclusive_ms, ms),
        known(record.mean_ms, ms),
        known(record.inclusive_pct, pct),
        known(record.exclusive_pct, pct),
        known(device, |it| count(it.calls)),
        known(device, |it| ms(it.inclusive_ms)),
        known(device, |it| ms(it.exclusive_ms)),
        known(device.and_then(|it| it.mean_ms), ms),
        known(device.and_then(|it| it.exclusive_pct), pct),
        known(flops, |rate| scaled(rate, "FLOP/s")),
        known(bytes, |rate| scaled(rate, "B/s")),
        shapes(&record.shapes, record.shape_variants),
    ]
}

/// Operators rolled up over layers, longest total first.
pub fn operators(analysis: &Analysis) -> Table {
    let caption = format!(
        "Operators of {}, all {} measured repeats together, layers and experts rolled up (*), sorted by {}.",
        analysis.times_of(),
        analysis.stages.repeats,
        if analysis.operators.leaves().any(|it| it.device.is_some()) { "device time" } else { "total" },
    );
    let mut table = Table::new("operators", "Top Operators", caption, &OPERATOR_COLUMNS);
    for record in analysis.operators.leaves() {
        table.row(operator_cells(record));
    }
    let asynchronous = analysis.only_traced || analysis.start.as_ref().is_some_and(|start| start.device != "cpu");
    if asynchronous && !table.rows.is_empty() {
        table.notes.push(
            "Inclusive, exclusive and mean times are of the launching calls on the host; those of the device are of their kernels in the traced pass, over its own calls."
                .into(),
        );
    }
    if analysis.operators.rolled.iter().any(|record| record.captured_calls > 0) {
        table.notes.push("A call that a CUDA graph replays has no host time: the host sees the replay alone.".into());
    }
    if analysis.operators.leaves().any(|it| it.device.is_some()) {
        table.notes.extend(recorded_only_note(analysis));
    }
    if analysis.stages.rows.is_empty() {
        let (why, remedy) = analysis.why_no_stages();
        return table.or_gap(why, remedy);
    }
    let (why, remedy) = analysis.why_no_operators();
    table.or_gap(why, remedy)
}

/// Kernels by stage and name, longest total first.
pub fn kernels(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> Table {
    let mut columns = vec![
        "Kernel",
        "Stage",
        "#Total ms",
        "#Calls",
        "#Mean ms",
        "#Share of stage",
        "Class",
        "#Median ms",
        "Grid",
        "Block",
        "#Registers",
    ];
    let counted = analysis.kernels.measured().any(|record| record.counters.is_some());
    if counted {
        columns.extend(["#ncu mean ms", "#SM", "#DRAM", "#Occupancy", "#Tensor"]);
    }
    let caption = "Kernels of the nsys pass by launching stage, warm-up left out, sorted by total; grid, block and registers are those of \
                   most launches.";
    let mut table = Table::new("kernels", "Top Kernels", caption, &columns);
    let mut rows: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    analysis.kernels.measured().for_each(|it| *rows.entry((&it.stage, &it.kernel_name)).or_default() += 1);
    for record in analysis.kernels.measured() {
        let mut cells = vec![
            row_name(record, rows[&(record.stage.as_str(), record.kernel_name.as_str())] > 1),
            stage(&record.stage),
            ms(record.total_ms),
            count(record.calls),
            ms(record.mean_ms),
            known(record.share_pct, pct),
            record.class.clone(),
            ms(record.launch_ns.median / 1e6),
            sides(record.grid),
            sides(record.block),
            record.registers.to_string(),
        ];
        if counted {
            let of = record.counters.as_ref();
            cells.push(known(of.and_then(|it| it.replay_ms), ms));
            let shares = of.map(|it| [it.sm_pct, it.dram_pct, it.achieved_occupancy_pct, it.tensor_pct]).unwrap_or_default();
            cells.extend(shares.map(|share| known(share, pct)));
        }
        table.row(cells);
    }
    if counted {
        let note = "Counters are ncu's, of a few replayed launches: means over geometries by their time, as shares of what the device \
                    can sustain. Its mean is of replays with cold caches; the timeline's is the time of the workload.";
        table.notes.push(note.into());
    }
    if !table.rows.is_empty() {
        table.notes.extend(recorded_only_note(analysis));
    }
    if let Some(it) = analysis.kernels.stages.iter().find(|it| it.stage == OUTSIDE) {
        let time = known(it.kernel_ms, |total| format!(", {} ms", ms(total)));
        table.notes.push(format!("Not listed: {} launches{time} {OUTSIDE}.", count(it.launches)));
    }
    let (why, remedy) = match why_no_kernels(analysis, trace) {
        Some((why, remedy)) => (why, remedy.to_owned()),
        None => ("Every kernel was launched by warm-up.".into(), "Look at the stages in the capture.".to_owned()),
    };
    // The step that would have given them may know better what to install or to allow.
    let left_out = |state| matches!(state, StepState::Skipped | StepState::Failed);
    let said = facts.steps.iter().find(|it| it.step == Step::Nsys && left_out(it.state)).and_then(|it| it.message.clone());
    let remedy = said.map_or(remedy.clone(), |said| format!("{remedy} The nsys step says: {said}"));
    table.or_gap(why, remedy)
}

/// Kernels by stage and full name; no rows where each short name has one full name.
pub fn kernels_full(analysis: &Analysis) -> Table {
    let columns = ["Full name", "Stage", "#Total ms", "#Calls", "#Mean ms", "#Share of stage", "Class"];
    let caption = "Kernels of the nsys pass by full name, warm-up and set-up left out, sorted by total.";
    let mut table = Table::new("kernels-full", "Kernels by full name", caption, &columns);
    if analysis.kernels.measured_full().all(|it| it.full_name == it.kernel_name) {
        return table;
    }
    for it in analysis.kernels.measured_full() {
        let name = it.full_name.clone();
        let figures = [ms(it.total_ms), count(it.calls), ms(it.mean_ms), known(it.share_pct, pct), it.class.clone()];
        table.row([name, stage(&it.stage)].into_iter().chain(figures));
    }
    table
}

/// Name of a kernel among others: its full one, cut, where rows share the short one.
fn row_name(record: &KernelRecord, shared: bool) -> String {
    if !shared || record.full_name == record.kernel_name {
        return record.kernel_name.clone();
    }
    let plain = record.full_name.strip_prefix("void ").unwrap_or(&record.full_name);
    let length = plain.chars().count();
    if length <= MAX_NAME {
        return plain.to_owned();
    }
    let (head, tail) = (MAX_NAME * 2 / 3, MAX_NAME / 3);
    let first: String = plain.chars().take(head).collect();
    let last: String = plain.chars().skip(length - tail).collect();
    format!("{first}…{last}")
}

/// Sides of a grid or block.
pub fn sides(size: [u32; 3]) -> String {
    size.map(|side| side.to_string()).join("×")
}

fn stage(name: &str) -> String {
    if name.is_empty() { UNKNOWN.into() } else { name.into() }
}
