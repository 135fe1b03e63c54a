//! Figures of a stage shorter than the device's reading interval, from a back-to-back run.
//!
//! During that run every reading covers only this stage, so a mean over a second is as good as an
//! instantaneous value. The start of the run is excluded: power and clocks rise there, and the
//! first readings still cover earlier work.

use llmprof_core::trace::{
    event::Steady,
    power::{PowerLog, PowerSample, PowerSource},
};

use super::{
    BackToBack, EnergySource, MIN_SAMPLES, StagePower, interval,
    readings::{AVERAGE_WINDOW_NS, PowerReadings},
};
use crate::{
    stats::{percent, ratio},
    timeline::interval::Interval,
};

/// Minimum excluded start of the run, nanoseconds.
const RISE_NS: i64 = 300_000_000;
/// Minimum excluded start of the run, in power readings.
const RISE_READINGS: i64 = 3;

/// Fills `record` from the back-to-back run, or returns the reason why it cannot.
pub fn fill(
    record: &mut StagePower,
    run: &Steady,
    log: &PowerLog,
    readings: &PowerReadings,
) -> Result<(), String> {
    let lasted = run.end_ns - run.start_ns;
    let (source_ns, power_ns) = match log.device.power_source {
        PowerSource::Average => (AVERAGE_WINDOW_NS, 0),
        PowerSource::Instant => (0, readings.power.as_ref().map_or(0, |it| it.period_ns)),
    };
    let rise = RISE_NS.max(source_ns).max(RISE_READINGS * power_ns);
    let (from, to) = (run.start_ns + rise, run.end_ns);
    let inside: Vec<&PowerSample> =
        log.samples.iter().filter(|it| from <= it.t_ns && it.t_ns <= to).collect();
    if to <= from || (inside.len() as u64) < MIN_SAMPLES || run.instances == 0 {
        let seconds = |ns: i64| ns as f64 / 1e9;
        return Err(format!(
            "The back-to-back run lasted {:.2} s; {:.2} s are excluded and {} samples remain: \
             raise nvml.steady_ms.",
            seconds(lasted),
            seconds(rise),
            inside.len()
        ));
    }
    let seconds = (to - from) as f64 / 1e9;
    let (mean_w, source, covered) = by_counter(readings, from, to)
        .or_else(|| {
            let watts: Vec<f64> = inside.iter().filter_map(|it| it.power_w).collect();
            let mean = ratio(watts.iter().sum(), watts.len() as f64)?;
            let covered = (inside.first()?.t_ns, inside.last()?.t_ns);
            readings.power.is_some().then_some((mean, EnergySource::Integral, covered))
        })
        .ok_or("The device reports neither energy nor power.")?;
    let instances = run.instances as f64 * (to - from) as f64 / lasted as f64;
    record.set_clocks(&inside);
    record.set_utilisation(&log.samples, &[(run.start_ns, run.end_ns)]);
    record.samples = inside.len() as u64;
    record.back_to_back = Some(BackToBack { seconds, instances });
    record.energy_source = Some(source);
    let reading_ns = readings.series(source).map(|it| it.period_ns as f64);
    record.reading_pct = reading_ns.and_then(|ns| percent(ns, seconds * 1e9));
    record.mean_w = Some(mean_w);
    let parts = interval::parts(readings, source, covered);
    record.mean_w_half_width = interval::half_width(readings, source, &parts);
    record.energy_j = ratio(mean_w * seconds, instances);
    Ok(())
}

/// Mean power between the counter's first and last step in the interval, from at least ten steps,
/// and this time.
fn by_counter(
    readings: &PowerReadings,
    from: i64,
    to: i64,
) -> Option<(f64, EnergySource, Interval)> {
    let counter = readings.counter.as_ref()?;
    let inside: Vec<i64> = counter.times().filter(|t| (from..=to).contains(t)).collect();
    let (first, last) = (*inside.first()?, *inside.last()?);
    let joules = counter.difference(&(first, last))?;
    (inside.len() > 10).then_some((
        joules / ((last - first) as f64 / 1e9),
        EnergySource::Counter,
        (first, last),
    ))
}
