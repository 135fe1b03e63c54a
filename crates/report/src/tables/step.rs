//! One decode step: its figures in a row, and its slices in order.

use llmprof_analyze::{
    Analysis,
    timeline::decode_timeline::{StepSlice, StepTimeline},
};
use llmprof_core::domain::finding::{Finding, catalogue};

use super::{
    report_table::ReportTable,
    schema::{TableColumn, flag, micros, text},
};
use crate::format::{UNKNOWN, count, decimals, known};

/// Columns of [`StepSlice`].
pub fn columns() -> Vec<TableColumn<StepSlice>> {
    vec![
        text("name", "Name", |it| (&it.name).into()),
        text("operator", "Operator", |it| (&it.operator).into()),
        text("track", "Track", |it| (&it.track).into()),
        text("class", "Class", |it| (&it.class).into()),
        flag("own", "Of this step", |it| it.own.into()),
        micros("start_us", "Start µs", |it| it.start_us.into()),
        micros("duration_us", "Length µs", |it| it.duration_us.into()),
    ]
}

/// The step in one row.
pub fn decode_step(analysis: &Analysis) -> ReportTable {
    let traced = analysis.step.as_ref().is_some_and(|step| step.pass == "traced");
    let graphs = analysis.step.as_ref().map_or(0, |step| step.whole_graphs);
    let mut columns = vec!["Step", "#Window µs", "#Busy µs"];
    if traced {
        columns.extend(["#GPU idle µs", "#Kernels", "#Launched before µs"]);
        columns.extend((graphs > 0).then_some("#Whole graphs"));
    }
    let caption = match analysis.step.as_ref().map(|step| step.pass.as_str()) {
        Some("traced") => {
            "The decode step of median length in the traced pass. Busy: something of this step \
             ran. Idle: nothing ran. Tracing lengthens both."
        }
        Some(_) => {
            "The decode step of median length in the unprofiled pass, operators on the host."
        }
        None => "One decode step, slice by slice.",
    };
    let mut table = ReportTable::new("decode-step", "One decode step", caption, &columns);
    if let Some(step) = &analysis.step {
        table.row(cells(step, traced));
        if step.devices > 1 {
            table.note(format!("Busy and idle times are sums over {} GPUs.", step.devices));
        }
        if graphs > 0 {
            table.note(
                "The step's CUDA graph was traced as a whole: busy is an upper bound, and kernels \
                 inside are not recorded.",
            );
        }
    }
    if analysis.stages.step_ms.is_some() {
        let why = "No operator, kernel or graph of a decode step is recorded.";
        return table.or_gap(why, without_work(analysis));
    }
    table.or_gap(
        "No decode step was identified: none has a range of its own with work inside.",
        "Put a range decode_step (NVTX, or record_function of PyTorch) around each step, inside \
         the decode stage.",
    )
}

/// The remedy for steps without work: the one for a capture without kernels, if it has none.
fn without_work(analysis: &Analysis) -> &str {
    let is_it = |it: &&Finding| it.id == catalogue::NO_KERNEL_DATA;
    let of_capture = analysis.findings.iter().find(is_it).and_then(|it| it.advice.as_deref());
    of_capture.unwrap_or("Record the work of the GPU for whole decode steps.")
}

fn cells(step: &StepTimeline, traced: bool) -> Vec<String> {
    let us = |value: f64| decimals(value, 1);
    let (upper, lower) = if step.whole_graphs > 0 { ("≤ ", "≥ ") } else { ("", "") };
    let mut cells = vec![
        format!("{} of {}", step.step, step.steps),
        us(step.window_us),
        format!("{upper}{}", us(step.busy_us)),
    ];
    if traced {
        let kernels = if step.kernels > 0 { count(step.kernels) } else { UNKNOWN.into() };
        let idle = known(step.idle_us, |idle| format!("{lower}{}", us(idle)));
        cells.extend([idle, kernels, us(step.lead_us)]);
        cells.extend((step.whole_graphs > 0).then(|| count(step.whole_graphs)));
    }
    cells
}

/// Slices of the step: kernels and copies in the traced pass, operators in the unprofiled one.
pub fn step_slices(analysis: &Analysis) -> ReportTable {
    let shown = ["name", "operator", "track", "class", "start_us", "duration_us"];
    let mut slices: Vec<&StepSlice> = analysis.step.as_ref().map(own_slices).unwrap_or_default();
    slices.sort_by(|a, b| {
        a.start_us.total_cmp(&b.start_us).then(b.duration_us.total_cmp(&a.duration_us))
    });
    let mut table = ReportTable::of(
        "decode-step-slices",
        "Slices of the decode step",
        "By start time. The table decode_step.slices also contains calls of the runtime and \
         neighbouring steps.",
        (&columns(), &shown),
        slices,
    );
    if let Some(step) = analysis.step.as_ref().filter(|step| step.omitted > 0) {
        table.note(format!(
            "{} slices of this step are omitted: it has too many.",
            count(step.omitted)
        ));
    }
    table
}

fn own_slices(step: &StepTimeline) -> Vec<&StepSlice> {
    let on_host = |track: &str| track.starts_with("operators") || track == "calls";
    let traced = step.pass == "traced";
    step.slices.iter().filter(|it| it.own && !(traced && on_host(&it.track))).collect()
}
