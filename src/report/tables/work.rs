//! Top operators and top kernels: total, calls, mean, sorted by total.
//!
//! Arranges figures that analysis made; computes none.

use super::{NO_TIMES, NO_TIMES_REMEDY};
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
pub const OPERATOR_COLUMNS: [&str; 10] =
    ["Operator", "Kind", "Stage", "#Total ms", "#Calls", "#Mean ms", "#Share of stage", "#FLOP/s", "#B/s", "Shapes"];

/// Cells of one operator under [`OPERATOR_COLUMNS`].
pub fn operator_cells(record: &OperatorRecord) -> [String; 10] {
    [
        record.path.clone(),
        record.op.clone(),
        stage(&record.stage),
        ms(record.total_ms),
        count(record.calls),
        ms(record.mean_ms),
        known(record.share_pct, pct),
        known(record.flops_per_s, |rate| scaled(rate, "FLOP/s")),
        known(record.bytes_per_s, |rate| scaled(rate, "B/s")),
        shapes(&record.shapes, record.shape_variants),
    ]
}

/// Operators rolled up over layers, longest total first.
pub fn operators(analysis: &Analysis) -> Table {
    let caption = format!(
        "Operators of the plain pass, all {} measured repeats together, layers and experts rolled up (*), sorted by total.",
        analysis.stages.repeats
    );
    let mut table = Table::new("operators", "Top Operators", caption, &OPERATOR_COLUMNS);
    for record in analysis.operators.leaves() {
        table.row(operator_cells(record));
    }
    let asynchronous = analysis.start.as_ref().is_some_and(|start| start.device != "cpu");
    if asynchronous && !table.rows.is_empty() {
        table.notes.push("Times are those of the launching calls on the host; device time is in the table of kernels.".into());
    }
    if analysis.start.as_ref().is_some_and(|start| start.decode_graph) {
        table.notes.push("Decode replays a CUDA graph: its operators run without the host, and are not in this table.".into());
    }
    if analysis.stages.rows.is_empty() {
        return table.or_gap(NO_TIMES, NO_TIMES_REMEDY);
    }
    table.or_gap("The runner recorded no operator calls.", "Use a runner that writes operator events.")
}

/// Kernels by stage and name, longest total first.
pub fn kernels(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> Table {
    let columns = ["Kernel", "Stage", "#Total ms", "#Calls", "#Mean ms", "#Share of stage", "#Device"];
    let caption = "Kernels of the nsys pass by launching stage, warm-up left out, sorted by total.";
    let mut table = Table::new("kernels", "Top Kernels", caption, &columns);
    for record in analysis.kernels.measured() {
        table.row([
            record.kernel_name.clone(),
            stage(&record.stage),
            ms(record.total_ms),
            count(record.calls),
            ms(record.mean_ms),
            known(record.share_pct, pct),
            record.device.to_string(),
        ]);
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

fn stage(name: &str) -> String {
    if name.is_empty() { UNKNOWN.into() } else { name.into() }
}
