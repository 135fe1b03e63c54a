//! The run itself: inputs, GPUs, expert use, findings and steps.

use llmprof_analyze::{Analysis, stages::experts::ExpertUse};
use llmprof_core::{
    domain::{
        finding::Finding,
        run_files::InputFile,
        state::{Step, StepRecord, StepState},
    },
    trace::{environment::Gpu, event::ImageViews},
};

use super::{
    report_table::ReportTable,
    schema::{
        TableCell, TableColumn, bytes, count, flag, id, millis, nested, number, percent, text,
    },
};
use crate::RunFacts;

/// Columns of [`ImageViews`].
pub fn images() -> Vec<TableColumn<ImageViews>> {
    vec![
        id("width", "Width", |it| it.width.into()),
        id("height", "Height", |it| it.height.into()),
        id("global_px", "Global view px", |it| it.global_px.into()),
        id("crop_px", "Crop px", |it| it.crop_px.into()),
        count("crops_wide", "Crops wide", |it| it.crops_wide.into()),
        count("crops_high", "Crops high", |it| it.crops_high.into()),
        count("tokens", "Tokens", |it| it.tokens.into()),
    ]
}

/// Columns of [`Gpu`].
pub fn gpus() -> Vec<TableColumn<Gpu>> {
    vec![
        id("index", "Index", |it| it.index.into()),
        text("uuid", "UUID", |it| (&it.uuid).into()),
        text("name", "Name", |it| (&it.name).into()),
        bytes("memory_bytes", "Memory", |it| it.memory_bytes.into()),
        bytes("memory_free_bytes", "Free memory", |it| it.memory_free_bytes.into()),
        text("compute_capability", "Compute capability", |it| (&it.compute_capability).into()),
        flag("mig", "MIG", |it| it.mig.into()),
        nested("instances", "MIG instances", |it| TableCell::nested(&it.instances)),
        nested("processes", "Processes", |it| TableCell::nested(&it.processes)),
        number("power_limit_w", "Power limit W", 0, |it| it.power_limit_w.into()),
        id("max_sm_mhz", "Max SM MHz", |it| it.max_sm_mhz.into()),
        id("max_memory_mhz", "Max memory MHz", |it| it.max_memory_mhz.into()),
        count("sm_count", "SMs", |it| it.sm_count.into()),
    ]
}

/// Columns of [`ExpertUse`].
pub fn experts() -> Vec<TableColumn<ExpertUse>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        id("layer", "Layer", |it| it.layer.into()),
        number("distinct.mean", "Distinct, mean", 1, |it| it.distinct.mean.into()),
        number("distinct.std", "Std", 1, |it| it.distinct.std.into()),
        number("distinct.min", "Min", 0, |it| it.distinct.min.into()),
        number("distinct.max", "Max", 0, |it| it.distinct.max.into()),
        count("distinct.n", "Forwards", |it| it.distinct.n.into()),
        count("total", "Experts", |it| it.total.into()),
        number("expected", "Even router", 1, |it| it.expected.into()),
    ]
}

/// Columns of [`Finding`].
pub fn findings() -> Vec<TableColumn<Finding>> {
    vec![
        text("id", "Rule", |it| (&it.id).into()),
        text("severity", "Severity", |it| it.severity.as_str().into()),
        text("message", "Message", |it| (&it.message).into()),
        nested("evidence", "Evidence", |it| TableCell::nested(&it.evidence)),
        text("advice", "Advice", |it| (&it.advice).into()),
        text("max_saving.stage", "Saving in", |it| {
            it.max_saving.as_ref().map(|it| &it.stage).into()
        }),
        millis("max_saving.ms", "Max saving ms", |it| {
            it.max_saving.as_ref().and_then(|it| it.ms).into()
        }),
        percent("max_saving.pct", "Max saving", |it| {
            it.max_saving.as_ref().map(|it| it.pct).into()
        }),
    ]
}

/// Columns of [`InputFile`].
pub fn inputs() -> Vec<TableColumn<InputFile>> {
    vec![
        text("path", "File", |it| (&it.path).into()),
        count("bytes", "Bytes", |it| it.bytes.into()),
        id("width", "Width", |it| it.width.into()),
        id("height", "Height", |it| it.height.into()),
        text("sha256", "SHA-256", |it| (&it.sha256).into()),
    ]
}

/// Columns of [`StepRecord`].
pub fn steps() -> Vec<TableColumn<StepRecord>> {
    vec![
        text("step", "Step", |it| it.step.as_str().into()),
        text("state", "State", |it| it.state.as_str().into()),
        text("started_at", "Started", |it| (&it.started_at).into()),
        text("ended_at", "Ended", |it| (&it.ended_at).into()),
        id("exit_code", "Exit code", |it| it.exit_code.into()),
        text("message", "Message", |it| (&it.message).into()),
    ]
}

/// Distinct experts by layer and stage.
pub fn expert_use(analysis: &Analysis) -> ReportTable {
    let shown =
        ["stage", "layer", "distinct.mean", "distinct.min", "distinct.max", "total", "expected"];
    let caption = "Distinct experts per forward. Even router: expectation for independent choices \
                   with equal probability.";
    ReportTable::of("experts", "Expert use", caption, (&experts(), &shown), &analysis.experts)
}

/// The input images, by hash.
pub fn input_files(facts: &RunFacts) -> ReportTable {
    let shown = ["path", "bytes", "width", "height", "sha256"];
    ReportTable::of("inputs", "Inputs", "Images of the request.", (&inputs(), &shown), facts.inputs)
        .or_gap("The run had no images.", "Nothing is missing: the request was a prompt alone.")
}

/// The steps of the run.
pub fn run_steps(facts: &RunFacts) -> ReportTable {
    let shown = ["step", "state", "started_at", "ended_at", "message"];
    ReportTable::of(
        "steps",
        "Steps",
        "Steps of the run, in order.",
        (&steps(), &shown),
        facts.steps,
    )
    .or_gap("No step was recorded.", "Nothing ran.")
}

/// Adds the reason to an empty table whose step ran without success. A table whose step was not
/// requested stays without rows and reason.
pub fn or_step_message(table: ReportTable, facts: &RunFacts, step: Step, why: &str) -> ReportTable {
    match facts.steps.iter().find(|record| record.step == step) {
        Some(record) if record.state != StepState::Succeeded => {
            let message = record.message.clone();
            table.or_gap(why, message.unwrap_or_else(|| NO_MESSAGE.into()))
        }
        _ => table,
    }
}

/// Stands for the message of a step that left none.
pub const NO_MESSAGE: &str = "The step left no message; read its log.";
