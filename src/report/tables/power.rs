//! Energy, power and clocks per stage: as a table, and as `power.csv`.
//!
//! Arranges figures that analysis made; computes none.

use std::fmt::Write;

use crate::{
    analyze::{
        Analysis,
        power::{EnergySource, Power, ReasonShare, StagePower},
    },
    report::{
        RunFacts,
        format::{UNKNOWN, count, decimals, known, pct},
        table::Table,
    },
    trace::power::PowerSource,
};

/// From this share of a stage on, percent, the length of one reading is worth a note.
const COARSE_PCT: f64 = 5.0;

/// Energy, power and clocks per stage. Without a sampled GPU the table says why it is empty; without a GPU there is nothing to say.
pub fn power(facts: &RunFacts, analysis: &Analysis) -> Table {
    let columns = [
        "Stage",
        "#Energy, J",
        "#J per token",
        "#Mean W",
        "#Peak W",
        "#SM MHz",
        "#Memory MHz",
        "#Throttled",
        "#Samples",
        "Energy from",
    ];
    let caption = "Of the sampled GPU during the plain pass; energy per instance of a stage, over all measured repeats.";
    let mut table = Table::new("power", "Power and Clocks", caption, &columns);
    let on_cpu = analysis.start.as_ref().is_some_and(|start| start.device == "cpu");
    let Some(power) = &analysis.power else {
        let said = facts.findings.iter().find(|it| it.id == "power_not_sampled").map(|it| it.message.clone());
        return match said {
            // A capture from elsewhere names its GPU, and nothing ran here that could be sampled.
            _ if on_cpu || facts.environment.gpus.is_empty() || facts.spec.passes().is_none() => table,
            Some(said) => table.or_gap(said, "Install NVIDIA's driver with its library libnvidia-ml.so.1."),
            None => table.or_gap("No GPU was sampled.", "Look at the findings: a run of an older version has no samples."),
        };
    };
    for it in &power.stages {
        let source = it.energy_source.map_or(UNKNOWN, EnergySource::as_str);
        let number = |value: Option<f64>, places| known(value, |value| decimals(value, places));
        table.row([
            it.stage.clone(),
            number(it.energy_j, 2),
            number(it.joules_per_token, 4),
            number(it.mean_w, 1),
            number(it.peak_w, 1),
            number(it.sm_mhz, 0),
            number(it.memory_mhz, 0),
            known(it.throttled_pct, pct),
            count(it.samples),
            source.to_owned(),
        ]);
    }
    table.notes.push(sampled(power));
    for it in &power.stages {
        table.notes.extend(it.why.as_ref().map(|why| format!("{}: figures are missing. {why}", it.stage)));
        if let Some(run) = it.back_to_back {
            table.notes.push(format!(
                "{}: it is too short to be read by itself; its figures are of {} runs back to back, {} s after the last repeat.",
                it.stage,
                decimals(run.instances, 0),
                decimals(run.seconds, 2),
            ));
        }
        // Back to back nothing else lies at the edges.
        let coarse = it.reading_pct.filter(|share| *share >= COARSE_PCT && it.back_to_back.is_none());
        if let Some(share) = coarse {
            let coarse = format!(
                "{}: one reading is {} as long as the stage; energy at its edges is shared with its neighbours.",
                it.stage,
                pct(share)
            );
            table.notes.push(coarse);
        }
        if !it.reasons.is_empty() {
            table.notes.push(format!("{}: clocks were set by {}.", it.stage, reasons(&it.reasons, ", ")));
        }
    }
    table.or_gap("No stage ran while the device was sampled.", "Look at the baseline step's log.")
}

/// How the device was looked at.
fn sampled(power: &Power) -> String {
    let period = |ms: Option<f64>| known(ms, |ms| format!("{} ms", decimals(ms, 1)));
    let reading = match power.device.power_source {
        PowerSource::Instant => "Power is the draw at that moment",
        PowerSource::Average => "Power is the driver's mean over one second, so peaks are higher than shown",
    };
    let counter = match power.counter_period_ms {
        Some(_) => format!("its energy counter moves every {}", period(power.counter_period_ms)),
        None => "it has no energy counter".to_owned(),
    };
    let busy =
        power.busy_pct.map(|share| format!(" Asking the driver took {} of that time, on a thread of its own.", pct(share)));
    let busy = busy.unwrap_or_default();
    format!(
        "{} ({}): {} samples, one every {}; {counter}. {reading}.{busy}",
        power.device.name,
        power.device.board_uuid,
        count(power.samples),
        period(power.period_ms),
    )
}

fn reasons(reasons: &[ReasonShare], between: &str) -> String {
    reasons.iter().map(|it| format!("{} {}", it.reason, pct(it.share_pct))).collect::<Vec<_>>().join(between)
}

/// `power.csv`: one row per stage; what is not known is empty.
pub fn power_csv(power: &Power) -> String {
    let mut csv = String::from(
        "stage,instances,samples,energy_j,energy_source,back_to_back_s,reading_pct,joules_per_token,mean_w,peak_w,sm_mhz,memory_mhz,throttled_pct,reasons,why\n",
    );
    let number = |value: Option<f64>| value.map(|value| format!("{value:.6}")).unwrap_or_default();
    for it in &power.stages {
        let StagePower { instances, samples, .. } = it;
        let source = it.energy_source.map_or("", EnergySource::as_str);
        let figures =
            [it.reading_pct, it.joules_per_token, it.mean_w, it.peak_w, it.sm_mhz, it.memory_mhz, it.throttled_pct].map(number);
        let _ = writeln!(
            csv,
            "{},{instances},{samples},{},{source},{},{},{},{}",
            quoted(&it.stage),
            number(it.energy_j),
            number(it.back_to_back.map(|run| run.seconds)),
            figures.join(","),
            quoted(&reasons(&it.reasons, "; ")),
            quoted(it.why.as_deref().unwrap_or_default()),
        );
    }
    csv
}

/// A field as RFC 4180 has it.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_a_csv_holds_whatever_it_holds() {
        assert_eq!(quoted("prefill"), "prefill");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
    }
}
