//! One decode step as tables: what it is in a row, and what ran in it, in order.
//!
//! Arranges figures that analysis made; computes none.

use crate::{
    analyze::{Analysis, step::StepTimeline},
    report::{
        format::{UNKNOWN, count, decimals, known},
        table::Table,
    },
};

/// The step in one row.
pub fn decode_step(analysis: &Analysis) -> Table {
    let traced = analysis.step.as_ref().is_some_and(|step| step.pass == "traced");
    let graphs = analysis.step.as_ref().map_or(0, |step| step.whole_graphs);
    let mut columns = vec!["Step", "#Shown µs", "#Busy µs"];
    if traced {
        columns.extend(["#GPU idle µs", "#Kernels", "#Launched before µs"]);
        columns.extend((graphs > 0).then_some("#Whole graphs"));
    }
    let caption = match analysis.step.as_ref().map(|step| step.pass.as_str()) {
        Some("traced") => {
            "The decode step of median length in the traced pass: busy is the time in which something of this step ran, idle \
             that in which nothing at all did. Tracing lengthens both."
        }
        Some(_) => "The decode step of median length in the unprofiled pass: the operators as the host ran them.",
        None => "One decode step, slice by slice.",
    };
    let mut table = Table::new("decode-step", "One decode step", caption, &columns);
    let us = |value: f64| decimals(value, 1);
    if let Some(it) = &analysis.step {
        let (upper, lower) = if graphs > 0 { ("≤ ", "≥ ") } else { ("", "") };
        let mut cells = vec![format!("{} of {}", it.step, it.steps), us(it.window_us), format!("{upper}{}", us(it.busy_us))];
        if traced {
            let kernels = if it.kernels > 0 { count(it.kernels) } else { UNKNOWN.into() };
            cells.extend([known(it.idle_us, |idle| format!("{lower}{}", us(idle))), kernels, us(it.lead_us)]);
            cells.extend((graphs > 0).then(|| count(graphs)));
        }
        table.row(cells);
        if it.devices > 1 {
            table.notes.push(format!("Busy and idle are sums over {} GPUs, each of which has the time shown.", it.devices));
        }
        if graphs > 0 {
            let note =
                "The step's CUDA graph was traced as a whole: busy is an upper bound, and kernels inside are not recorded.";
            table.notes.push(note.into());
        }
    }
    table.or_gap(
        "No decode step is told apart: none has a range of its own with something in it.",
        "Put an NVTX range decode_step around each step, inside the decode stage.",
    )
}

/// What ran in the step: kernels and copies in the traced pass, operators in the plain one.
pub fn step_slices(analysis: &Analysis) -> Table {
    let columns = ["What", "Operator", "Track", "Class", "#Begin µs", "#Length µs"];
    let caption = "In order of their begin; the table decode_step.slices holds CUDA calls and neighbours too.";
    let mut table = Table::new("decode-step-slices", "What ran in that step", caption, &columns);
    let wanted = |step: &StepTimeline, track: &str| match step.pass.as_str() {
        "traced" => !track.starts_with("operators") && track != "calls",
        _ => true,
    };
    if let Some(step) = &analysis.step {
        let mut slices: Vec<_> = step.slices.iter().filter(|it| it.own && wanted(step, &it.track)).collect();
        slices.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(b.duration_us.total_cmp(&a.duration_us)));
        for it in slices {
            let text = |text: &Option<String>| text.clone().filter(|it| !it.is_empty()).unwrap_or_else(|| UNKNOWN.into());
            let cells = [decimals(it.start_us, 1), decimals(it.duration_us, 1)];
            table.row([it.name.clone(), text(&it.operator), it.track.clone(), text(&it.class)].into_iter().chain(cells));
        }
        if step.omitted > 0 {
            table.notes.push(format!("{} slices of this step were left out for their number.", count(step.omitted)));
        }
    }
    table
}
