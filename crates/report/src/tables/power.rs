//! Energy, power and clocks per stage.

use llmprof_analyze::{
    Analysis,
    power::{EnergySource, Power, ReasonShare, StagePower},
    stages::in_sentence,
};
use llmprof_core::trace::power::PowerSource;

use super::{
    report_table::ReportTable,
    samples::first_sample_note,
    schema::{TableCell, TableColumn, bytes, count, nested, number, percent, text},
};
use crate::{
    RunFacts,
    format::{
        HALF_INTERVAL, count as counted, decimals, figure, known, of_interval, pct,
        proportional_half, quantity,
    },
};

/// From this share of a stage on, percent, the length of one reading is worth a note.
const COARSE_PCT: f64 = 5.0;

const SHOWN: [&str; 14] = [
    "stage",
    "energy_j",
    "joules_per_token",
    "mean_w",
    "mean_w_half_width",
    "peak_w",
    "sm_mhz",
    "memory_mhz",
    "gpu_active_pct",
    "memory_active_pct",
    "memory_used_bytes",
    "throttled_pct",
    "samples",
    "energy_source",
];

/// Columns of [`StagePower`].
pub fn columns() -> Vec<TableColumn<StagePower>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        count("gpus", "GPUs", |it| u64::from(it.gpus).into()),
        count("instances", "Instances", |it| it.instances.into()),
        count("samples", "Samples", |it| it.samples.into()),
        number("energy_j", "Energy, J", 2, |it: &StagePower| it.energy_j.into())
            .shown(|it| known(it.energy_j, |value| with_digits(it, value))),
        text("energy_source", "Energy from", |it| {
            it.energy_source.map(EnergySource::as_str).into()
        }),
        number("back_to_back.seconds", "Back to back s", 2, |it| {
            it.back_to_back.map(|it| it.seconds).into()
        }),
        number("back_to_back.instances", "Back to back", 0, |it| {
            it.back_to_back.map(|it| it.instances).into()
        }),
        percent("reading_pct", "Length of a reading", |it| it.reading_pct.into()),
        number("joules_per_token", "J per token", 4, |it: &StagePower| it.joules_per_token.into())
            .shown(|it| known(it.joules_per_token, |value| with_digits(it, value))),
        number("mean_w", "Mean W", 1, |it: &StagePower| it.mean_w.into())
            .shown(|it| known(it.mean_w, |value| with_digits(it, value))),
        number("mean_w_half_width", "± W", 1, |it: &StagePower| it.mean_w_half_width.into()).shown(
            |it| {
                known(it.mean_w.zip(it.mean_w_half_width), |(mean, half)| {
                    let [_, half] = of_interval(mean, half);
                    half
                })
            },
        ),
        number("peak_w", "Peak W", 1, |it| it.peak_w.into()),
        number("sm_mhz", "SM MHz", 0, |it| it.sm_mhz.into()),
        number("memory_mhz", "Memory MHz", 0, |it| it.memory_mhz.into()),
        percent("gpu_active_pct", "GPU active", |it| it.gpu_active_pct.into()),
        percent("memory_active_pct", "Memory active", |it| it.memory_active_pct.into()),
        bytes("memory_used_bytes", "Memory used", |it| it.memory_used_bytes.into()),
        percent("throttled_pct", "Throttled", |it| it.throttled_pct.into()),
        nested("reasons", "Reasons", |it| TableCell::nested(&it.reasons)),
        text("why", "Missing", |it| (&it.why).into()),
    ]
}

/// A figure with the digits that the interval of the mean power supports: energy is proportional to
/// it.
fn with_digits(of: &StagePower, value: f64) -> String {
    let half = proportional_half(value, of.mean_w, of.mean_w_half_width);
    half.map_or_else(
        || figure(value),
        |half| {
            let [value, _] = of_interval(value, half);
            value
        },
    )
}

/// Energy, power and clocks per stage. The table is empty with a reason if a GPU was not sampled,
/// and without one if no GPU was used.
pub fn power(facts: &RunFacts, analysis: &Analysis) -> ReportTable {
    let gpus = analysis.power.as_ref().map_or(1, |it| it.device.gpus);
    let sampled = match gpus {
        1 => "The sampled GPU".to_owned(),
        _ => format!("All {gpus} GPUs of the run together"),
    };
    let caption = format!(
        "{sampled} during the unprofiled pass; energy per instance of a stage, over all measured \
         repeats; {HALF_INTERVAL}, of the mean power."
    );
    let stages = analysis.power.as_ref().map(|it| it.stages.as_slice()).unwrap_or_default();
    let mut table =
        ReportTable::of("power", "Power and Clocks", caption, (&columns(), &SHOWN), stages);
    let Some(power) = &analysis.power else { return not_sampled(table, facts, analysis) };
    table.note(sampling(power));
    if gpus > 1 {
        table.note(format!(
            "Energy and power are sums over {gpus} GPUs, clocks and utilisation are means. \
             Throttling and memory in use are the highest of one GPU. The interval of the mean \
             power is a bound: the sum of the intervals of the GPUs."
        ));
    }
    table.notes.extend(stages.iter().flat_map(stage_notes));
    if stages.iter().any(|it| it.back_to_back.is_some()) {
        table.notes.extend(first_sample_note(analysis, "Figures of executions back to back"));
    }
    table.or_gap("No stage ran while the device was sampled.", "Read the baseline step's log.")
}

/// The empty table of a run without samples.
fn not_sampled(table: ReportTable, facts: &RunFacts, analysis: &Analysis) -> ReportTable {
    let on_cpu = analysis.is_on_cpu();
    // An imported capture names its GPU, but nothing ran here that could have been sampled.
    if on_cpu || facts.environment.gpus.is_empty() || facts.spec.passes().is_none() {
        return table;
    }
    match facts.findings.iter().find(|it| it.id == "power_not_sampled") {
        Some(finding) => table.or_gap(
            &finding.message,
            "Install NVIDIA's driver with its library libnvidia-ml.so.1.",
        ),
        None => table.or_gap(
            "No GPU was sampled.",
            "Read the findings; runs of older versions have no samples.",
        ),
    }
}

/// Remarks on the figures of one stage.
fn stage_notes(of: &StagePower) -> Vec<String> {
    let mut notes = Vec::new();
    let stage = in_sentence(&of.stage);
    notes.extend(of.why.as_ref().map(|why| format!("{stage}: figures are missing. {why}")));
    if let Some(steady) = of.back_to_back {
        notes.push(format!(
            "{stage}: its figures come from {} executions back to back, {} s after the last \
             repeat, with the caches as the previous execution left them.",
            decimals(steady.instances, 0),
            decimals(steady.seconds, 2),
        ));
    }
    // Back to back, the neighbours are executions of the same stage.
    let coarse = of.reading_pct.filter(|share| *share >= COARSE_PCT && of.back_to_back.is_none());
    if let Some(share) = coarse {
        notes.push(format!(
            "{stage}: one reading takes {} of the stage's length; energy at its edges is shared \
             with its neighbours.",
            pct(share)
        ));
    }
    if of.samples > 0 && of.gpu_active_pct.is_none() {
        notes.push(format!(
            "{stage}: utilisation is missing, because the driver's value covers up to a second \
             before each sample, and no such second lies in the stage."
        ));
    }
    if !of.reasons.is_empty() {
        notes.push(format!("{stage}: the clocks were set by {}.", reasons(&of.reasons)));
    }
    notes
}

/// Source and rate of the samples.
fn sampling(power: &Power) -> String {
    let period = |ms: Option<f64>| known(ms, |ms| format!("{} ms", decimals(ms, 1)));
    let reading = match power.device.power_source {
        PowerSource::Instant => "Power is the instantaneous draw",
        PowerSource::Average => {
            "Power is the driver's mean over one second, so true peaks are higher"
        }
    };
    let counter = match power.counter_period_ms {
        Some(_) => {
            format!("its energy counter is updated every {}", period(power.counter_period_ms))
        }
        None => "it has no energy counter".to_owned(),
    };
    let busy = power.busy_pct.map(|share| {
        format!(" Driver calls took {} of that time, on a separate thread.", pct(share))
    });
    let (others, on_each) = match power.device.gpus.saturating_sub(1) {
        0 => (String::new(), ""),
        others => (format!(" and {}", quantity(others.into(), "other GPU")), " on each"),
    };
    format!(
        "{} ({}){others}: {} samples, one every {}{on_each}; {counter}. {reading}.{} Memory in use \
         is that of the device, by all processes.",
        power.device.name,
        power.device.board_uuid,
        counted(power.samples),
        period(power.period_ms),
        busy.unwrap_or_default(),
    )
}

fn reasons(reasons: &[ReasonShare]) -> String {
    let reasons: Vec<String> =
        reasons.iter().map(|it| format!("{} in {}", it.reason, pct(it.share_pct))).collect();
    format!("{} of the samples", reasons.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn power_and_energy_have_no_digits_beyond_the_interval_of_the_power() {
        let shown = |half: Option<f64>| {
            let stage: StagePower = serde_json::from_value(json!({
                "stage": "prefill", "instances": 3, "back_to_back": null, "samples": 85,
                "energy_j": 1.056_710_5, "energy_source": "counter", "reading_pct": 5.9,
                "joules_per_token": 0.008_879_92, "mean_w": 147.661_575,
                "mean_w_half_width": half, "peak_w": 149.6, "sm_mhz": 1980.0,
                "memory_mhz": 3201.0, "throttled_pct": 0.0, "reasons": [], "why": null,
            }))
            .unwrap();
            let names = ["energy_j", "joules_per_token", "mean_w", "mean_w_half_width"];
            let columns = columns();
            names.map(|name| columns.iter().find(|it| it.name == name).unwrap().text(&stage))
        };
        for (half, expected) in [
            (Some(0.343), ["1.057", "0.00888", "147.7", "0.3"]),
            (Some(21.0), ["1.06", "0.0089", "148", "21"]),
            (None, ["1.06", "0.00888", "148", "–"]),
        ] {
            assert_eq!(shown(half), expected, "{half:?}");
        }
    }
}
