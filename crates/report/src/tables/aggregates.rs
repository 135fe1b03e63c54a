//! Latencies, rates and memory of a run, one figure per row.

use llmprof_analyze::{Analysis, stats::Spread};
use llmprof_core::trace::command::Timed;

use super::report_table::ReportTable;
use crate::{
    format::{UNKNOWN, bytes, count, decimals, known, ms, pct, quantity},
    waits::Waits,
};

/// Latencies, rates, memory.
pub fn aggregates(analysis: &Analysis) -> ReportTable {
    let stages = &analysis.stages;
    let caption = match analysis.command.as_ref().and_then(|command| command.plain_ms) {
        Some(whole) => format!(
            "Wall times over {} unprofiled repeats; stages are of {}.",
            whole.n,
            analysis.times_of()
        ),
        None => {
            format!("Measured repeats: {}. Times are of {}.", stages.repeats, analysis.times_of())
        }
    };
    let mut table = ReportTable::new(
        "aggregates",
        "Aggregates",
        caption,
        &["Figure", "#Mean", "#Std", "#Min", "#Max", "Unit"],
    );
    spreads(analysis).into_iter().flatten().for_each(|row| table.row(row));
    singles(analysis).into_iter().flatten().for_each(|row| table.row(row));
    devices(analysis).into_iter().flatten().for_each(|row| table.row(row));
    let timed = [stages.first_token_ms, stages.per_token_ms, stages.step_ms, stages.wall_ms];
    if timed.iter().any(Option::is_some) {
        table.notes.extend(Waits::of(&analysis.ledger).notes("times and rates contain"));
    }
    let (why, remedy) = analysis.why_no_stages();
    table.or_gap(why, remedy)
}

type Row = Option<[String; 6]>;

fn spread(name: &str, values: Option<Spread>, unit: &str, show: fn(f64) -> String) -> Row {
    let it = values?;
    let figures = [show(it.mean), known(it.std, show), show(it.min), show(it.max)];
    let [mean, std, min, max] = figures;
    Some([name.to_owned(), mean, std, min, max, unit.to_owned()])
}

fn single(name: &str, value: Option<String>, unit: &str) -> Row {
    let unknown = || UNKNOWN.to_owned();
    Some([name.to_owned(), value?, unknown(), unknown(), unknown(), unit.to_owned()])
}

/// Figures over repeats.
fn spreads(analysis: &Analysis) -> Vec<Row> {
    let stages = &analysis.stages;
    let rate = |rate: f64| decimals(rate, 1);
    let mut rows = Vec::new();
    if let Some(command) = &analysis.command {
        let name =
            if command.of == Timed::Client { "Client of the server" } else { "Whole process" };
        rows.push(spread(name, command.plain_ms, "ms", ms));
        rows.push(spread(&format!("{name}, under nsys"), command.traced_ms, "ms", ms));
    }
    rows.extend([
        spread("Time to first token (prefill)", stages.first_token_ms, "ms", ms),
        spread("Time per output token (decode)", stages.per_token_ms, "ms", ms),
        spread("Single decode step", stages.step_ms, "ms", ms),
        spread("Whole repeat", stages.wall_ms, "ms", ms),
        spread("Decode rate of a repeat", stages.decode_tokens_per_s, "tokens/s", rate),
        spread("Token rate of a whole repeat", stages.tokens_per_s, "tokens/s", rate),
    ]);
    rows
}

/// Figures with a single value.
fn singles(analysis: &Analysis) -> Vec<Row> {
    let ready = analysis.command.as_ref().and_then(|it| it.ready_ms);
    let end = analysis.end.as_ref();
    let device = end.and_then(|end| end.peak_device_bytes);
    let load = analysis.start.as_ref().map(|start| ms(start.load_ns as f64 / 1e6));
    vec![
        single("Server ready", ready.map(ms), "ms after its start"),
        single("Decode steps", analysis.stages.decode_steps.map(count), "per repeat"),
        single("Peak host memory", end.map(|end| bytes(end.peak_rss_bytes)), "process"),
        single("Peak device memory", device.map(bytes), "process"),
        single(
            "KV cache",
            analysis.cost.as_ref().map(|cost| bytes(cost.kv_bytes)),
            "after the last token",
        ),
        single("Loading the model", load, "ms, once"),
    ]
}

/// Work of the devices of a capture without stages.
fn devices(analysis: &Analysis) -> Vec<Row> {
    let Some(totals) = analysis.device_totals.as_ref().filter(|it| it.devices > 0) else {
        return vec![];
    };
    let window = format!("from the first work to the last of {}", quantity(totals.devices, "GPU"));
    let mut rows = vec![
        single("Window", Some(ms(totals.window_ms)), &format!("ms, {window}")),
        single("GPU busy", totals.busy_pct.map(pct), "of the window"),
        single("Kernels", Some(ms(totals.kernel_ms)), &format!("ms in {}", count(totals.kernels))),
    ];
    rows.extend(totals.transfers.iter().map(|it| {
        let unit = format!("ms in {}, {}", count(it.calls), bytes(it.bytes));
        let name = match it.kind.as_str() {
            "set" => "Fills of memory".to_owned(),
            kind => format!("Copies: {}", kind.replace('_', " ")),
        };
        single(&name, Some(ms(it.total_ms)), &unit)
    }));
    rows
}
