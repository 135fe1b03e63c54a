//! Operators and modules: calls, times on host and device, rates and shapes.

use llmprof_analyze::{Analysis, operators::OperatorRecord, stages::repeats::OperatorRepeats};

use super::{
    report_table::ReportTable,
    samples::of_each_sample,
    schema::{
        TableCell, TableColumn, bytes, bytes_per_s, count, flops, flops_per_s, millis, nested,
        percent, spread_columns, summed, text,
    },
    traced::sum_notes,
};
use crate::format::shapes;

const HOST: [&str; 9] = [
    "path",
    "op",
    "stage",
    "calls",
    "inclusive_ms",
    "exclusive_ms",
    "mean_ms",
    "inclusive_pct",
    "exclusive_pct",
];
const DEVICE: [&str; 7] = [
    "device.calls",
    "device.inclusive_ms",
    "device.exclusive_ms",
    "device.mean_ms",
    "device.exclusive_pct",
    "device.flops_per_s",
    "device.bytes_per_s",
];

/// Columns of [`OperatorRecord`].
pub fn columns() -> Vec<TableColumn<OperatorRecord>> {
    vec![
        text("path", "Operator", |it| (&it.path).into()),
        text("op", "Kind", |it| (&it.op).into()),
        text("stage", "Stage", |it| (&it.stage).into()),
        summed(count("calls", "Calls", |it| it.calls.into())),
        summed(count("captured_calls", "Captured calls", |it| it.captured_calls.into())),
        summed(millis("inclusive_ms", "Inclusive ms", |it| it.inclusive_ms.into())),
        summed(millis("exclusive_ms", "Exclusive ms", |it| it.exclusive_ms.into())),
        millis("mean_ms", "Mean ms", |it| it.mean_ms.into()),
        percent("inclusive_pct", "Inclusive share", |it| it.inclusive_pct.into()),
        percent("exclusive_pct", "Exclusive share", |it| it.exclusive_pct.into()),
        summed(flops("flops", "FLOPs", |it| it.flops.into())),
        summed(bytes("bytes", "Operand bytes", |it| it.bytes.into())),
        flops_per_s("flops_per_s", "FLOP/s", |it| it.flops_per_s.into()),
        bytes_per_s("bytes_per_s", "B/s", |it| it.bytes_per_s.into()),
        summed(count("device.calls", "Device calls", |it| it.device.map(|it| it.calls).into())),
        summed(count("device.kernels", "Kernels", |it| it.device.map(|it| it.kernels).into())),
        summed(millis("device.inclusive_ms", "Device inclusive ms", |it| {
            it.device.map(|it| it.inclusive_ms).into()
        })),
        summed(millis("device.exclusive_ms", "Device exclusive ms", |it| {
            it.device.map(|it| it.exclusive_ms).into()
        })),
        millis("device.mean_ms", "Device mean ms", |it| it.device.and_then(|it| it.mean_ms).into()),
        percent("device.inclusive_pct", "Device inclusive share", |it| {
            it.device.and_then(|it| it.inclusive_pct).into()
        }),
        percent("device.exclusive_pct", "Device exclusive share", |it| {
            it.device.and_then(|it| it.exclusive_pct).into()
        }),
        flops_per_s("device.flops_per_s", "Device FLOP/s", |it| {
            it.device.and_then(|it| it.flops_per_s).into()
        }),
        bytes_per_s("device.bytes_per_s", "Device B/s", |it| {
            it.device.and_then(|it| it.bytes_per_s).into()
        }),
        text("dtype", "dtype", |it| (&it.dtype).into()),
        nested("shapes", "Shapes", |it: &OperatorRecord| TableCell::nested(&it.shapes))
            .shown(|it| shapes(&it.shapes, it.shape_variants)),
        count("shape_variants", "Shape variants", |it| it.shape_variants.into()),
    ]
}

/// Columns of [`OperatorRepeats`].
pub fn repeat_columns() -> Vec<TableColumn<OperatorRepeats>> {
    let mut columns: Vec<TableColumn<OperatorRepeats>> = vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("path", "Operator", |it| (&it.path).into()),
        text("op", "Kind", |it| (&it.op).into()),
        summed(count("calls", "Calls", |it| it.calls.into())),
    ];
    columns.extend(spread_columns!("ms", |it: OperatorRepeats| it.ms));
    columns
}

/// The columns of a report on operators: columns of the device only if it ran some operators.
fn shown(analysis: &Analysis) -> Vec<&'static str> {
    let mut shown = HOST.to_vec();
    if on_device(analysis) {
        shown.extend(DEVICE);
    } else {
        shown.extend(["flops_per_s", "bytes_per_s"]);
    }
    shown.push("shapes");
    shown
}

fn on_device(analysis: &Analysis) -> bool {
    analysis.listed_operators().leaves().any(|it| it.device.is_some())
}

/// Operators rolled up over layers, longest first.
pub fn operators(analysis: &Analysis) -> ReportTable {
    let on_device = on_device(analysis);
    let (pass, repeats) = match &analysis.pytorch {
        Some(pass) if analysis.lists_pytorch() => (
            "the pass under the profiler of PyTorch, whose overhead is in their times",
            pass.repeats,
        ),
        _ => (analysis.times_of(), analysis.stages.repeats),
    };
    let of = match of_each_sample(analysis, repeats.into()) {
        _ if repeats == 0 => String::new(),
        _ if repeats == 1 => ", its measured repeat".to_owned(),
        (1, of_each) => format!(", sums over its measured repeat{of_each}"),
        (each, of_each) => format!(", sums over its {each} measured repeats{of_each}"),
    };
    let caption = format!(
        "Operators of {pass}{of}, layers and experts rolled up (*), sorted by {}.",
        if on_device { "device time" } else { "inclusive time" },
    );
    let mut table = ReportTable::of(
        "operators",
        "Top Operators",
        caption,
        (&columns(), &shown(analysis)),
        analysis.listed_operators().leaves(),
    )
    .about(analysis.listed_operators().leaves().map(|it| (it.stage.as_str(), it.path.as_str())));
    let asynchronous = analysis.only_traced || analysis.start.is_some() && !analysis.is_on_cpu();
    if asynchronous && !table.rows.is_empty() {
        table.note(
            "Inclusive, exclusive and mean times are those of the launching calls on the host; \
             device times are those of their kernels in the traced pass.",
        );
    }
    if analysis.listed_operators().rolled.iter().any(|record| record.captured_calls > 0) {
        table.note("Calls replayed by a graph have no host time: the host only replays.");
    }
    if !table.rows.is_empty() {
        table.notes.extend(sum_notes(analysis));
    }
    if analysis.stages.rows.is_empty() {
        let (why, remedy) = analysis.why_no_stages();
        return table.or_gap(why, remedy);
    }
    let (why, remedy) = analysis.why_no_operators();
    table.or_gap(why, remedy)
}

/// Every operator of every layer, longest first.
pub fn operators_by_path(analysis: &Analysis) -> ReportTable {
    let mut table = ReportTable::of(
        "operators-by-path",
        "Operators by layer",
        "Each operator of each layer over all measured repeats, longest first.",
        (&columns(), &shown(analysis)),
        analysis.listed_operators().by_path.iter().filter(|record| record.op != "module"),
    );
    if !table.rows.is_empty() {
        table.notes.extend(sum_notes(analysis));
    }
    let (why, remedy) = analysis.why_no_operators();
    table.or_gap(why, remedy)
}

/// Modules: the scopes that enclose operators.
pub fn modules(analysis: &Analysis) -> ReportTable {
    let mut shown = vec!["path", "stage", "calls", "inclusive_ms", "exclusive_ms", "mean_ms"];
    if analysis.listed_operators().modules().any(|it| it.device.is_some()) {
        shown.push("device.inclusive_ms");
    }
    let mut table = ReportTable::of(
        "modules",
        "Modules",
        "Inclusive times contain everything in the module; exclusive times exclude its parts.",
        (&columns(), &shown),
        analysis.listed_operators().modules(),
    );
    if !table.rows.is_empty() {
        table.notes.extend(sum_notes(analysis));
    }
    table.or_gap(
        "No operator lies inside another one.",
        "Nothing is missing: operators are listed one by one.",
    )
}
