//! Steps of a server or of a generating program.

use llmprof_analyze::{Analysis, timeline::engine_steps::EngineStepRecord};
use llmprof_core::trace::engine_steps::StepClass;

use super::{
    report_table::ReportTable,
    schema::{TableCell, TableColumn, count, millis, nested, number, text},
};

const SHOWN: [&str; 12] = [
    "step",
    "source",
    "class",
    "start_ms",
    "host_ms",
    "device_ms",
    "gap_ms",
    "kernels",
    "is_replayed",
    "prefill_requests",
    "prefill_tokens",
    "decode_requests",
];

/// Columns of [`EngineStepRecord`].
pub fn columns() -> Vec<TableColumn<EngineStepRecord>> {
    vec![
        number("step", "Step", 0, |it| it.step.into()),
        text("source", "Source", |it| it.source.as_str().into()),
        text("engine", "Engine", |it| (&it.engine).into()),
        text("class", "Class", |it| it.class.map(StepClass::as_str).into()),
        text("evidence", "Evidence", |it| (&it.evidence).into()),
        number("process", "Process", 0, |it| it.process.into()),
        millis("start_ms", "Start ms", |it| it.start_ms.into()),
        millis("host_ms", "Host ms", |it| it.host_ms.into()),
        millis("device_ms", "Device ms", |it| it.device_ms.into()),
        millis("gap_ms", "Gaps ms", |it| it.gap_ms.into()),
        count("kernels", "Kernels", |it| it.kernels.into()),
        count("graphs", "Whole graphs", |it| it.graphs.into()),
        text("is_replayed", "Launched", |it: &EngineStepRecord| it.is_replayed.into())
            .shown(|it| if it.is_replayed { "graph".into() } else { "eager".into() }),
        count("prefill_requests", "Prefill requests", |it| it.prefill_requests.into()),
        count("prefill_tokens", "Prefill tokens", |it| it.prefill_tokens.into()),
        count("decode_requests", "Decode requests", |it| it.decode_requests.into()),
        nested("prefilling", "Prefilling", |it| requests(&it.prefilling)),
        nested("decoding", "Decoding", |it| requests(&it.decoding)),
    ]
}

fn requests(numbers: &Option<Vec<u64>>) -> TableCell<'_> {
    numbers.as_ref().map_or(TableCell::Unknown, TableCell::nested)
}

/// Steps in the order of their starts.
pub fn engine_steps(analysis: &Analysis) -> ReportTable {
    let steps = &analysis.engine_steps;
    let engine = steps.first().and_then(|step| step.engine.as_deref());
    let source = engine.map_or_else(
        || {
            "Inferred steps: no range of the capture is a stage, so steps are found by the order \
             of the launches. Each has its evidence, and none is guessed."
                .to_owned()
        },
        |engine| {
            format!(
                "Steps of {engine}, by the names of its ranges, which carry the requests of each."
            )
        },
    );
    let caption = format!(
        "{source} Work on the device is that of the calls inside; gaps are the time between its \
         first and last work in which nothing of the step ran."
    );
    ReportTable::of("engine_steps", "Engine Steps", caption, (&columns(), &SHOWN), steps)
}
