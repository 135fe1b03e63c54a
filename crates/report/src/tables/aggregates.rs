//! Latencies, rates and memory of a run, one figure per row.

use llmprof_analyze::{Analysis, stages::repeat_medians::RepeatMedian, stats::Spread};
use llmprof_core::trace::command::Timed;

use super::{report_table::ReportTable, samples::of_each_sample};
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
            let (repeats, of_each) = of_each_sample(analysis, stages.repeats.into());
            let times_of = analysis.times_of();
            format!("Measured repeats: {repeats}{of_each}. Times are of {times_of}.")
        }
    };
    let mut table = ReportTable::new(
        "aggregates",
        "Aggregates",
        caption,
        &["Figure", "#Median", "#Mean", "#Std", "#Min", "#Max", "Unit"],
    );
    spreads(analysis).into_iter().flatten().for_each(|row| table.row(row));
    singles(analysis).into_iter().flatten().for_each(|row| table.row(row));
    devices(analysis).into_iter().flatten().for_each(|row| table.row(row));
    let timed = [stages.first_token_ms, stages.per_token_ms, stages.step_ms, stages.wall_ms];
    if timed.iter().any(Option::is_some) {
        table.notes.extend(Waits::of(&analysis.ledger).notes("times and rates contain"));
    }
    table.notes.extend(median_notes(analysis));
    let (why, remedy) = analysis.why_no_stages();
    table.or_gap(why, remedy)
}

/// Remarks on the medians if they are not simply of the values next to them.
fn median_notes(analysis: &Analysis) -> Vec<String> {
    let command = analysis.command.as_ref().filter(|it| it.plain_p50_ms.is_some());
    let command = command.and_then(|it| Some(it.plain_ms?.n));
    let all = analysis.samples.medians.stated(&analysis.stages);
    let repeats = [all.ttft_ms, all.tpot_ms, all.wall_ms].into_iter().flatten().map(|it| it.n);
    let has_repeats = repeats.clone().next().is_some();
    let is_of_slowest = [all.ttft_ms, all.tpot_ms].into_iter().flatten().any(|it| it.of_slowest);
    let mut notes = Vec::new();
    if command.into_iter().chain(repeats).any(|n| n == 2) {
        notes.push("The median of two repeats is their mean.".to_owned());
    }
    if is_of_slowest {
        notes.push(
            "The processes differ: the median of a stage is of its slowest process, as in the \
             table of single steps; mean, deviation, minimum and maximum are of all processes."
                .to_owned(),
        );
    }
    if analysis.samples.rows.len() > 1 && has_repeats {
        notes.push(
            "A median is over repeats of all samples; mean, deviation, minimum and maximum are \
             over the repeats of each sample."
                .to_owned(),
        );
    }
    notes
}

type Row = Option<[String; 7]>;

fn spread(name: &str, (p50, values): Values, unit: &str, show: fn(f64) -> String) -> Row {
    let it = values?;
    let figures = [show(it.mean), known(it.std, show), show(it.min), show(it.max)];
    let [mean, std, min, max] = figures;
    Some([name.to_owned(), known(p50, show), mean, std, min, max, unit.to_owned()])
}

/// The median, if the report has it, and the spread of a figure.
type Values = (Option<f64>, Option<Spread>);

fn single(name: &str, value: Option<String>, unit: &str) -> Row {
    let unknown = || UNKNOWN.to_owned();
    let [median, std, min, max] = [unknown(), unknown(), unknown(), unknown()];
    Some([name.to_owned(), median, value?, std, min, max, unit.to_owned()])
}

/// Figures over repeats.
fn spreads(analysis: &Analysis) -> Vec<Row> {
    let stages = &analysis.stages;
    let rate = |rate: f64| decimals(rate, 1);
    let mut rows = Vec::new();
    if let Some(command) = &analysis.command {
        let name =
            if command.of == Timed::Client { "Client of the server" } else { "Whole process" };
        rows.push(spread(name, (command.plain_p50_ms, command.plain_ms), "ms", ms));
        let traced = (None, command.traced_ms);
        rows.push(spread(&format!("{name}, under nsys"), traced, "ms", ms));
    }
    let all = analysis.samples.medians.stated(stages);
    let of = |median: Option<RepeatMedian>, values| (median.map(|it| it.p50), values);
    let ttft = of(all.ttft_ms, stages.first_token_ms);
    let tpot = of(all.tpot_ms, stages.per_token_ms);
    rows.extend([
        spread("Time to first token (prefill)", ttft, "ms", ms),
        spread("Time per output token (decode)", tpot, "ms", ms),
        spread("Single decode step", (None, stages.step_ms), "ms", ms),
        spread("Whole repeat", of(all.wall_ms, stages.wall_ms), "ms", ms),
        spread("Decode rate of a repeat", (None, stages.decode_tokens_per_s), "tokens/s", rate),
        spread(
            "Token rate of a whole repeat",
            of(all.tokens_per_s, stages.tokens_per_s),
            "tokens/s",
            rate,
        ),
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
    if totals.kernels_before > 0 {
        let unit = format!("ms in {} of them", count(totals.kernels_before));
        let time = Some(ms(totals.kernel_before_ms));
        rows.push(single("Kernels launched before the recording", time, &unit));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::samples::tests::samples_of;

    /// Table of `samples` samples with `repeats` repeats each; the last prefill and step are slow.
    fn table(samples: u32, repeats: u32) -> ReportTable {
        let times = |n: u32| (1..=n).map(move |at| if at == n { 90.0 } else { 8.0 });
        let mut analysis = Analysis::default();
        analysis.stages.repeats = samples * repeats;
        analysis.stages.first_token_ms = Spread::of(times(samples * repeats));
        analysis.stages.step_ms = Spread::of(times(samples * repeats));
        analysis.samples = samples_of(samples);
        analysis.samples.medians.ttft_ms = RepeatMedian::of(times(repeats));
        aggregates(&analysis)
    }

    #[test]
    fn a_median_stands_before_its_mean_and_is_absent_if_none_stands_for_the_run() {
        let table = table(1, 3);
        assert_eq!(table.rows[0][1..3], [ms(8.0), ms(106.0 / 3.0)]);
        assert_eq!(table.rows[1][1], UNKNOWN);
        assert!(table.notes.is_empty(), "{:?}", table.notes);
    }

    #[test]
    fn repeats_are_of_each_sample_and_notes_name_the_base_of_a_median() {
        let two = "The median of two repeats is their mean.";
        for (samples, repeats, caption, notes) in [
            (1, 3, "Measured repeats: 3. ", 0),
            (1, 2, "Measured repeats: 2. ", 1),
            (2, 3, "Measured repeats: 3 of each of 2 samples. ", 1),
            (2, 2, "Measured repeats: 2 of each of 2 samples. ", 2),
        ] {
            let table = table(samples, repeats);
            assert!(table.caption.starts_with(caption), "{}", table.caption);
            assert_eq!(table.notes.len(), notes, "{:?}", table.notes);
            assert_eq!(table.notes.iter().any(|it| it == two), repeats == 2);
        }
    }
}
