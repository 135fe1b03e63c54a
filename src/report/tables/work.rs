//! Top operators and top kernels: total, calls, mean, sorted by total.
//!
//! Arranges figures that analysis made; computes none.

use super::recorded_only_note;
use crate::{
    analyze::{Analysis, findings::why_no_kernels, operators::OperatorRecord},
    report::{
        RunFacts,
        format::{UNKNOWN, count, known, ms, pct, scaled, shapes},
        table::Table,
    },
    run::{Step, StepState},
    trace::Trace,
};

/// Heads of a table of operators.
pub const OPERATOR_COLUMNS: [&str; 12] = [
    "Operator",
    "Kind",
    "Stage",
    "#Total ms",
    "#Calls",
    "#Mean ms",
    "#Share of stage",
    "#Device ms",
    "#Device share",
    "#FLOP/s",
    "#B/s",
    "Shapes",
];

/// Cells of one operator under [`OPERATOR_COLUMNS`].
pub fn operator_cells(record: &OperatorRecord) -> [String; 12] {
    let device = record.device.as_ref();
    // Where kernels are known, they are what the work took; else the host's own time is.
    let flops = device.map_or(record.flops_per_s, |it| it.flops_per_s);
    let bytes = device.map_or(record.bytes_per_s, |it| it.bytes_per_s);
    [
        record.path.clone(),
        record.op.clone(),
        stage(&record.stage),
        known(record.total_ms, ms),
        count(record.calls),
        known(record.mean_ms, ms),
        known(record.share_pct, pct),
        known(device, |it| ms(it.total_ms)),
        known(device.and_then(|it| it.share_pct), pct),
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
            "Total, mean and share are of the launching calls on the host; device time is of their kernels in the traced pass."
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
    for record in analysis.kernels.measured() {
        let mut cells = vec![
            record.kernel_name.clone(),
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

/// Sides of a grid or block.
pub fn sides(size: [u32; 3]) -> String {
    size.map(|side| side.to_string()).join("×")
}

fn stage(name: &str) -> String {
    if name.is_empty() { UNKNOWN.into() } else { name.into() }
}
