//! Sums of the traced pass: kernel classes, CUDA calls and ranges; notes on whole-traced graphs.

use llmprof_analyze::{
    Analysis,
    kernels::{
        ClassRecord,
        call_sites::CallSite,
        nsys_sums::{CallSum, RangeSum},
    },
    stages::{STAGES, in_sentence},
    timeline::graphs,
};
use llmprof_core::domain::finding::catalogue;

use super::{
    report_table::ReportTable,
    samples::of_each_sample,
    schema::{TableColumn, count, millis, nanos, percent, span_columns, summed, text},
};
use crate::format::{count as counted, ms, pct, quantity};

/// Columns of [`ClassRecord`].
pub fn class_columns() -> Vec<TableColumn<ClassRecord>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("class", "Class", |it| (&it.class).into()),
        millis("total_ms", "Total ms", |it| it.total_ms.into()),
        count("calls", "Calls", |it| it.calls.into()),
        percent("share_pct", "Share of stage", |it| it.share_pct.into()),
    ]
}

/// Columns of [`CallSum`].
pub fn call_columns() -> Vec<TableColumn<CallSum>> {
    let mut columns: Vec<TableColumn<CallSum>> = vec![
        text("name", "Call", |it| (&it.name).into()),
        count("processes", "Processes", |it| it.processes.into()),
    ];
    columns.extend(span_columns!("ns", |it: CallSum| Some(it.ns)));
    columns.push(nanos("before_work_ns", "Before the first GPU work ms", |it: &CallSum| {
        it.before_work_ns.into()
    }));
    columns.push(nanos("nested_ns", "Inside other calls ms", |it: &CallSum| it.nested_ns.into()));
    columns
}

/// Columns of [`RangeSum`].
pub fn range_columns() -> Vec<TableColumn<RangeSum>> {
    let mut columns: Vec<TableColumn<RangeSum>> = vec![
        text("name", "Range", |it| (&it.name).into()),
        text("domain", "Domain", |it| (&it.domain).into()),
        text("style", "Style", |it| (&it.style).into()),
    ];
    columns.extend(span_columns!("ns", |it: RangeSum| Some(it.ns)));
    let projected = span_columns!("projected_ns", |it: RangeSum| it.projected_ns);
    columns.extend(projected.map(|column| match column.name {
        "projected_ns.total" => column.titled("On the GPU ms"),
        _ => column,
    }));
    columns.push(summed(count("gpu_ops", "GPU operations", |it| it.gpu_ops.into())));
    columns
}

/// Columns of [`CallSite`].
pub fn call_site_columns() -> Vec<TableColumn<CallSite>> {
    vec![
        text("call_site", "Line of code", |it| (&it.call_site).into()),
        text("stage", "Stage", |it| (&it.stage).into()),
        summed(count("kernels", "Kernels", |it| it.kernels.into())),
        summed(millis("kernel_ms", "Kernel ms", |it| it.kernel_ms.into())),
        percent("share_pct", "Share of stage", |it| it.share_pct.into()),
    ]
}

/// A stage's name, or words for the kernels outside every stage.
pub fn stage_or_outside(stage: &str) -> String {
    if stage.is_empty() { "outside every stage".into() } else { stage.into() }
}

/// Launches of whole-traced graphs by stage: `32 in decode_all (17.689 ms)`; `None` without any.
fn launches_by_stage(analysis: &Analysis) -> Option<String> {
    let shown = |stage: &str| {
        let (launches, total_ms) = graphs::of_stage(&analysis.graphs, stage)?;
        Some(format!("{} in {stage} ({} ms)", counted(launches), ms(total_ms)))
    };
    let shown: Vec<String> =
        graphs::stages(&analysis.graphs).into_iter().filter_map(shown).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

/// The note that busy times are upper bounds if graphs were traced as a whole.
pub fn upper_bound_note(analysis: &Analysis) -> Option<String> {
    let launches = launches_by_stage(analysis)?;
    Some(format!(
        "Launches of CUDA graphs traced as a whole: {launches}. They count as busy from start to \
         end, an upper bound: gaps inside are not visible, and kernels inside are not recorded. {}",
        catalogue::GRAPHS_TRACED_WHOLE.advice.unwrap_or_default(),
    ))
}

/// Notes on what the times of a table are sums of.
pub fn sum_notes(analysis: &Analysis) -> impl Iterator<Item = String> {
    recorded_only_note(analysis).into_iter().chain(repeats_note(analysis))
}

/// The note that sums of kernels exclude whole-traced graphs; `None` without any.
pub fn recorded_only_note(analysis: &Analysis) -> Option<String> {
    let launches = launches_by_stage(analysis)?;
    Some(format!(
        "Sums and shares are of recorded kernels only. Launches of CUDA graphs whose kernels are \
         not recorded: {launches}."
    ))
}

/// The note that times of a table are sums, while the times of stages are of one repeat.
pub fn repeats_note(analysis: &Analysis) -> Option<String> {
    let totals = analysis.stage_gpu.totals.iter().filter(|it| STAGES.contains(&it.stage.as_str()));
    let mut numbers: Vec<(&str, u64)> = totals.map(|it| (&*it.stage, it.instances)).collect();
    if numbers.is_empty() {
        let repeats = u64::from(analysis.stages.repeats);
        numbers = analysis.stages.rows.iter().map(|it| (&*it.stage, repeats)).collect();
    }
    numbers.retain(|it| it.1 > 1);
    let of = |(stage, number): &(&str, u64)| {
        let (repeats, of_each) = of_each_sample(analysis, *number);
        format!("{} of {}{of_each}", quantity(repeats, "repeat"), in_sentence(stage))
    };
    let of: Vec<String> = numbers.iter().map(of).collect();
    (!of.is_empty()).then(|| {
        format!("Times are sums over {}; the times of stages are of one repeat.", of.join(" and "))
    })
}

/// Kernel time by class.
pub fn classes(analysis: &Analysis) -> ReportTable {
    let shown = ["stage", "class", "total_ms", "calls", "share_pct"];
    let mut table = ReportTable::of(
        "kernel-classes",
        "Classes of kernels",
        "Kernel time by class. Names of kernels decide the class (conf/kernels.toml).",
        (&class_columns(), &shown),
        &analysis.kernels.classes,
    );
    if !table.rows.is_empty() {
        table.notes.extend(sum_notes(analysis));
    }
    if let Some(share) = analysis.kernels.classified_pct {
        table.note(format!("The class of {} of all kernel time is known.", pct(share)));
    }
    table
}

/// Kernel time by line of code; without rows if no stacks were recorded.
pub fn call_sites(analysis: &Analysis) -> ReportTable {
    let shown = ["call_site", "stage", "kernels", "kernel_ms", "share_pct"];
    let caption = "Kernels by the innermost line of the program around the launching call, outside \
                   PyTorch and Python's own library.";
    let mut table = ReportTable::of(
        "call-sites",
        "Lines of code",
        caption,
        (&call_site_columns(), &shown),
        &analysis.call_sites,
    );
    if !table.rows.is_empty() {
        table.notes.extend(sum_notes(analysis));
    }
    table
}

/// CUDA calls by name.
pub fn api_calls(analysis: &Analysis) -> ReportTable {
    let shown = ["name", "ns.total", "ns.count", "ns.mean", "ns.median", "ns.min", "ns.max"];
    ReportTable::of(
        "api-calls",
        "Calls of the runtime",
        "Calls of the runtime and driver of CUDA or HIP in the traced pass.",
        (&call_columns(), &shown),
        &analysis.sums.calls,
    )
}

/// Ranges by domain and name.
pub fn ranges(analysis: &Analysis) -> ReportTable {
    let shown = [
        "name",
        "domain",
        "ns.total",
        "ns.count",
        "ns.mean",
        "ns.median",
        "ns.min",
        "ns.max",
        "projected_ns.total",
        "gpu_ops",
    ];
    let caption = "Ranges of the traced pass: times on the host, and on the GPU from the start of \
                   the first to the end of the last operation that was launched inside.";
    ReportTable::of("ranges", "Ranges", caption, (&range_columns(), &shown), &analysis.sums.ranges)
}
