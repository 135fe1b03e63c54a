//! Times of each sample, and the spread over samples next to that over repeats.

use llmprof_analyze::{
    Analysis,
    samples::{SampleSpread, SampleTiming},
    stats::ratio,
};

use super::{
    report_table::ReportTable,
    schema::{TableColumn, count, flag, millis, spread_columns, text},
};
use crate::format::{known, ms};

/// Columns of [`SampleTiming`].
pub fn columns() -> Vec<TableColumn<SampleTiming>> {
    let mut columns: Vec<TableColumn<SampleTiming>> = vec![
        count("sample", "Sample", |it| it.sample.into()),
        count("prompt_tokens", "Prompt tokens", |it| it.prompt_tokens.into()),
        count("image_tokens", "Image tokens", |it| it.image_tokens.into()),
        count("images", "Images", |it| it.images.into()),
        millis("prefill_ms.mean", "Prefill ms", |it| it.prefill_ms.map(|ms| ms.mean).into()),
        millis("prefill_ms.std", "Prefill std ms", |it| it.prefill_ms.and_then(|ms| ms.std).into()),
        millis("decode_ms.mean", "Decode ms", |it| it.decode_ms.map(|ms| ms.mean).into()),
        millis("decode_ms.std", "Decode std ms", |it| it.decode_ms.and_then(|ms| ms.std).into()),
    ];
    columns.extend(spread_columns!("wall_ms", |it: SampleTiming| it.wall_ms));
    columns.push(flag("slowest", "Slowest", |it| it.slowest.into()));
    columns
}

/// Columns of [`SampleSpread`].
pub fn spread_columns() -> Vec<TableColumn<SampleSpread>> {
    let mut columns: Vec<TableColumn<SampleSpread>> =
        vec![text("stage", "Stage", |it| (&it.stage).into())];
    columns.extend(spread_columns!("over_samples_ms", |it: SampleSpread| it.over_samples_ms));
    columns.extend([
        millis("over_repeats_std_ms", "Std over repeats ms", |it: &SampleSpread| {
            it.over_repeats_std_ms.into()
        }),
        count("slowest_sample", "Slowest sample", |it| it.slowest_sample.into()),
    ]);
    columns
}

/// Figures of ncu in [`first_sample_note`].
pub(super) const COUNTERS_OF_FIRST: &str = "The counters of ncu";

/// The remark of a table with figures of the first sample only; `None` for a run with one.
/// `figures`: what they are, `The counters of ncu`.
pub(super) fn first_sample_note(analysis: &Analysis, figures: &str) -> Option<String> {
    let samples = analysis.samples.rows.len();
    (samples > 1).then(|| format!("{figures} are of sample 0 of {samples}."))
}

/// A number of measured repeats as the repeats of each sample, and the words for the samples:
/// `(3, " of each of 2 samples")`. A run of one sample has no such words.
pub(super) fn of_each_sample(analysis: &Analysis, repeats: u64) -> (u64, String) {
    match analysis.samples.rows.len() as u64 {
        samples @ 2.. if repeats.is_multiple_of(samples) => {
            (repeats / samples, format!(" of each of {samples} samples"))
        }
        _ => (repeats, String::new()),
    }
}

/// Times of each sample; without rows for a run with one.
pub fn samples(analysis: &Analysis) -> ReportTable {
    let shown = [
        "sample",
        "prompt_tokens",
        "images",
        "prefill_ms.mean",
        "prefill_ms.std",
        "decode_ms.mean",
        "decode_ms.std",
        "wall_ms.mean",
    ];
    let rows = &analysis.samples.rows;
    let caption = "Milliseconds per repeat of each sample: mean and sample deviation.";
    let mut table = ReportTable::of("samples", "Samples", caption, (&columns(), &shown), rows);
    for spread in &analysis.samples.spreads {
        let (over, repeats) = (spread.over_samples_ms, spread.over_repeats_std_ms);
        table.note(format!(
            "{}: {} ms on average over {} samples, deviation {} ms over samples and {} ms over \
             repeats.",
            spread.stage,
            ms(over.mean),
            over.n,
            known(over.std, ms),
            known(repeats, ms),
        ));
    }
    let mean = analysis.samples.spreads.last().map(|wall| wall.over_samples_ms.mean);
    if let (Some(slowest), Some(mean)) = (rows.iter().find(|row| row.slowest), mean) {
        let times = known(ratio(slowest.wall_ms.mean, mean), |times| format!("{times:.2}"));
        table.note(format!(
            "Sample {} is the slowest: {} ms, {times} times the mean of all.",
            slowest.sample,
            ms(slowest.wall_ms.mean)
        ));
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use llmprof_analyze::{samples::Samples, stats::Spread};

    use super::*;

    /// The samples of a run with `number` samples; without rows for a run with one.
    pub(crate) fn samples_of(number: u32) -> Samples {
        let row = |sample| SampleTiming {
            sample,
            prompt_tokens: 8,
            image_tokens: 0,
            images: 0,
            prefill_ms: None,
            decode_ms: None,
            wall_ms: Spread::of([1.0]).unwrap(),
            slowest: false,
        };
        let rows = if number > 1 { (0..number).map(row).collect() } else { vec![] };
        Samples { rows, ..Samples::default() }
    }

    #[test]
    fn repeats_are_counted_for_each_sample() {
        for (samples, repeats, expected) in [
            (0, 6, (6, "")),
            (2, 6, (3, " of each of 2 samples")),
            (3, 3, (1, " of each of 3 samples")),
            (2, 5, (5, "")),
        ] {
            let analysis = Analysis { samples: samples_of(samples), ..Analysis::default() };
            let (each, words) = of_each_sample(&analysis, repeats);
            assert_eq!((each, words.as_str()), expected);
        }
    }
}
