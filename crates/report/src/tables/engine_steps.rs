//! Steps of a server or of a generating program.

use std::collections::BTreeSet;

use llmprof_analyze::{
    Analysis, step_batches::StepBatch, timeline::engine_steps::EngineStepRecord,
};
use llmprof_core::trace::engine_steps::StepClass;

use super::{
    report_table::ReportTable,
    schema::{
        TableCell, TableColumn, count, flag, millis, nested, number, percent, spread_columns,
        summed, text,
    },
};
use crate::format::{decimals, known};

const SHOWN: [&str; 13] = [
    "step",
    "source",
    "class",
    "start_ms",
    "step_ms",
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
        text("mode", "Mode", |it| (&it.mode).into()),
        text("evidence", "Evidence", |it| (&it.evidence).into()),
        number("process", "Process", 0, |it| it.process.into()),
        text("is_warmup", "Warm-up", |it: &EngineStepRecord| it.is_warmup.into())
            .shown(|it| if it.is_warmup { "yes".into() } else { "no".into() }),
        text("state", "State", |it| it.state.as_str().into()),
        millis("start_ms", "Start ms", |it| it.start_ms.into()),
        summed(millis("step_ms", "Step ms", |it| it.step_ms.into())),
        millis("end_ms", "End ms", |it| it.end_ms.into()),
        millis("period_ms", "Since the step before, ms", |it| it.period_ms.into()),
        summed(millis("host_ms", "Host ms", |it| it.host_ms.into())),
        summed(millis("device_ms", "Device ms", |it| it.device_ms.into())),
        summed(millis("gap_ms", "Gaps ms", |it| it.gap_ms.into())),
        summed(millis("unrecorded_wait_ms", "Unrecorded wait ms", |it| {
            it.unrecorded_wait_ms.into()
        })),
        summed(count("kernels", "Kernels", |it| it.kernels.into())),
        summed(count("graphs", "Whole graphs", |it| it.graphs.into())),
        text("is_replayed", "Launched", |it: &EngineStepRecord| it.is_replayed.into())
            .shown(|it| if it.is_replayed { "graph".into() } else { "eager".into() }),
        count("requests", "Requests", |it| it.requests.into()),
        count("padded_requests", "Padded requests", |it| it.padded_requests.into()),
        count("prefill_requests", "Prefill requests", |it| it.prefill_requests.into()),
        summed(count("prefill_tokens", "Prefill tokens", |it| it.prefill_tokens.into())),
        count("prefill_keys", "Prefill keys", |it| it.prefill_keys.into()),
        count("prefill_products", "Prefill queries × keys", |it| it.prefill_products.into()),
        count("decode_requests", "Decode requests", |it| it.decode_requests.into()),
        summed(count("decode_tokens", "Decode tokens", |it| it.decode_tokens.into())),
        count("decode_keys", "Decode keys", |it| it.decode_keys.into()),
        count("decode_products", "Decode queries × keys", |it| it.decode_products.into()),
        summed(count("generated", "Generated tokens", |it| it.generated.into())),
        nested("phases", "Phases", |it| {
            it.phases.as_ref().map_or(TableCell::Unknown, TableCell::nested)
        }),
        nested("prefilling", "Prefilling", |it| requests(&it.prefilling)),
        nested("decoding", "Decoding", |it| requests(&it.decoding)),
    ]
}

fn requests(numbers: &Option<Vec<u64>>) -> TableCell<'_> {
    numbers.as_ref().map_or(TableCell::Unknown, TableCell::nested)
}

/// Columns of [`StepBatch`].
pub fn batch_columns() -> Vec<TableColumn<StepBatch>> {
    let mut columns: Vec<TableColumn<StepBatch>> = vec![
        text("class", "Class", |it| it.class.as_str().into()),
        text("mode", "Mode", |it| (&it.mode).into()),
        count("requests", "Requests", |it| it.requests.into()),
        count("padded_min", "Padded from", |it| it.padded_min.into()),
        count("padded_max", "Padded to", |it| it.padded_max.into()),
        count("context_min", "Context from", |it| it.context_min.into()),
        count("context_max", "Context to", |it| it.context_max.into()),
        count("context_mean", "Mean context", |it| it.context_mean.into()),
        count("steps", "Steps", |it| it.steps.into()),
        count("processes", "Processes", |it| it.processes.into()),
        number("process", "Process", 0, |it| it.process.into()),
        number("rank", "Rank", 0, |it| it.rank.into()),
    ];
    columns.extend(spread_columns!("ms", |it: StepBatch| it.ms));
    columns.extend([
        millis("p50_ms", "Median ms", |it: &StepBatch| it.p50_ms.into()),
        flag("has_two_halves", "Two halves", |it| it.has_two_halves.into()),
        millis("period_ms", "One every, ms", |it: &StepBatch| it.period_ms.into()),
        millis("periods_ms.mean", "One every, mean ms", |it| {
            it.periods_ms.map(|it| it.mean).into()
        }),
        millis("periods_ms.std", "One every, std ms", |it| {
            it.periods_ms.and_then(|it| it.std).into()
        }),
        millis("periods_ms.min", "One every, min ms", |it| it.periods_ms.map(|it| it.min).into()),
        millis("periods_ms.max", "One every, max ms", |it| it.periods_ms.map(|it| it.max).into()),
        count("periods_ms.n", "Times between steps", |it| it.periods_ms.map(|it| it.n).into()),
        percent("busy_pct", "GPU busy", |it| it.busy_pct.into()),
        number("tokens_per_s", "Tokens/s", 1, |it: &StepBatch| it.tokens_per_s.into())
            .shown(|it| known(it.tokens_per_s, |rate| decimals(rate, 1) + it.rate_scope())),
        number("drafts", "Drafts", 1, |it| it.drafts.into()),
        millis("draft_ms", "Drafts on host, ms", |it| it.draft_ms.into()),
        millis("verify_ms", "Verification on host, ms", |it| it.verify_ms.into()),
        number("computed_tokens", "Tokens computed", 1, |it| it.computed_tokens.into()),
        flag("has_unrecorded_waits", "With unrecorded waits", |it| it.has_unrecorded_waits.into()),
        millis("floor_ms", "Floor ms", |it| it.floor_ms.into()),
        number("times_floor", "Times floor", 2, |it| it.times_floor.into()),
        text("floor_missing", "Reason for no floor or ratio", |it| (&it.floor_missing).into()),
    ]);
    columns
}

/// Times of steps by class, requests and context.
pub fn step_batches(analysis: &Analysis) -> ReportTable {
    let mut caption = "Steps of one class with equally many requests and a similar context. Each \
                       rank of an engine has its own; processes whose times differ have rows of \
                       their own. \"One every\" is the median time between the \
                       ends of consecutive steps: in decode, between two tokens of a request. \
                       Tokens/s use it, or the median time of a step (\"within a step\") if it is \
                       unknown. The median of an even number is the lower of the two in the \
                       middle, of two steps their mean. Context is the mean key length of a \
                       step's requests."
        .to_owned();
    let mut shown = vec![
        "class",
        "requests",
        "context_min",
        "context_max",
        "steps",
        "processes",
        "p50_ms",
        "ms.min",
        "ms.max",
        "period_ms",
        "busy_pct",
        "tokens_per_s",
    ];
    let rows = &analysis.step_batches;
    for (column, is_known) in [
        ("process", rows.iter().any(|it| it.process.is_some())),
        ("rank", rows.iter().any(|it| it.rank.is_some())),
        ("has_two_halves", rows.iter().any(|it| it.has_two_halves)),
    ] {
        shown.extend(is_known.then_some(column));
    }
    if rows.iter().any(|it| it.floor_ms.is_some()) {
        shown.extend(["floor_ms", "times_floor"]);
        caption += " The floor is the time that the stated model needs at least for the requests \
                    and the mean context of a step; \"Times floor\" is the median over it.";
    }
    let columns = batch_columns();
    let shown = (&columns[..], &shown[..]);
    let mut table = ReportTable::of("step-batches", "Steps by Requests", caption, shown, rows);
    // Other captures lack the model, for which the first page has the remedy.
    let reasons = rows.iter().filter(|_| analysis.stated.is_some());
    let reasons: BTreeSet<&str> = reasons.filter_map(|it| it.floor_missing.as_deref()).collect();
    reasons.into_iter().for_each(|why| table.note(format!("Rows without floor or ratio: {why}")));
    table
}

/// Steps in the order of their starts.
pub fn engine_steps(analysis: &Analysis) -> ReportTable {
    let steps = &analysis.engine_steps;
    let engine = steps.first().and_then(|step| step.engine.as_deref());
    let source = engine.map_or_else(
        || {
            "Steps that are inferred from the order of launches. Each has its evidence, and none \
             is guessed."
                .to_owned()
        },
        |engine| {
            format!(
                "Steps of {engine}, by the names of its ranges, which carry the requests of each."
            )
        },
    );
    let caption = format!(
        "{source} Work on the device (kernels, whole graphs, copies) is that of the calls inside; \
         gaps are the time between its first and last work in which nothing of the step ran."
    );
    ReportTable::of("engine-steps", "Engine Steps", caption, (&columns(), &SHOWN), steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headline::times::tests::batch;

    #[test]
    fn a_rate_over_the_time_of_a_step_is_marked_and_an_unknown_one_is_absent() {
        let columns = batch_columns();
        let column = columns.iter().find(|it| it.name == "tokens_per_s").unwrap();
        let text = |tokens_per_s: Option<f64>, period_ms: Option<f64>| {
            let batch = batch(StepClass::Decode, 2);
            column.text(&StepBatch { tokens_per_s, period_ms, ..batch })
        };
        assert_eq!(text(Some(47.4), Some(21.1)), "47.4");
        assert_eq!(text(Some(47.4), None), "47.4 within a step");
        assert!(!text(None, None).contains("step"));
    }
}
