//! The figures of a stage that is shorter than the device's readings, from the time in which it ran back to back.
//!
//! In that time every reading is of this stage alone, so a mean over a second is as good as a look at a moment. Its beginning is left out: power and
//! clocks rise there, and the first readings are still of what ran before.

use super::{AVERAGE_WINDOW_NS, BackToBack, EnergySource, FEW_SAMPLES, Readings, StagePower, at};
use crate::{
    analyze::stats::{percent, ratio},
    trace::{
        event::Steady,
        power::{PowerLog, PowerSample, PowerSource},
    },
};

/// What is left out at least, nanoseconds, and in readings of power.
const RISE_NS: i64 = 300_000_000;
const RISE_READINGS: i64 = 3;

/// Fills `record` from the time of `run`, or says why not.
pub fn tell(record: &mut StagePower, run: &Steady, log: &PowerLog, readings: &Readings) -> Result<(), String> {
    let lasted = run.end_ns - run.start_ns;
    let (source_ns, power_ns) = match log.device.power_source {
        PowerSource::Average => (AVERAGE_WINDOW_NS, 0),
        PowerSource::Instant => (0, readings.power.as_ref().map_or(0, |(period, _)| *period)),
    };
    let rise = RISE_NS.max(source_ns).max(RISE_READINGS * power_ns);
    let (from, to) = (run.start_ns + rise, run.end_ns);
    let inside: Vec<&PowerSample> = log.samples.iter().filter(|it| from <= it.t_ns && it.t_ns <= to).collect();
    if to <= from || (inside.len() as u64) < FEW_SAMPLES || run.instances == 0 {
        let seconds = |ns: i64| ns as f64 / 1e9;
        return Err(format!(
            "Back to back it ran for {:.2} s, of which {:.2} s are left out and {} samples remain: raise nvml.steady_ms.",
            seconds(lasted),
            seconds(rise),
            inside.len()
        ));
    }
    let seconds = (to - from) as f64 / 1e9;
    let (mean_w, source, reading_ns) = by_counter(readings, from, to)
        .or_else(|| {
            let watts: Vec<f64> = inside.iter().filter_map(|it| it.power_w).collect();
            let mean = ratio(watts.iter().sum(), watts.len() as f64)?;
            Some((mean, EnergySource::Integral, readings.power.as_ref()?.0))
        })
        .ok_or("The device tells neither energy nor power.")?;
    let instances = run.instances as f64 * (to - from) as f64 / lasted as f64;
    record.look(&inside);
    record.samples = inside.len() as u64;
    record.back_to_back = Some(BackToBack { seconds, instances });
    record.energy_source = Some(source);
    record.reading_pct = percent(reading_ns as f64, seconds * 1e9);
    record.mean_w = Some(mean_w);
    record.energy_j = ratio(mean_w * seconds, instances);
    Ok(())
}

/// Mean power between the counter's first and last step inside, where it makes ten at least.
fn by_counter(readings: &Readings, from: i64, to: i64) -> Option<(f64, EnergySource, i64)> {
    let (period, points) = readings.counter.as_ref()?;
    let inside: Vec<i64> = points.iter().map(|point| point.0).filter(|t| (from..=to).contains(t)).collect();
    let (first, last) = (*inside.first()?, *inside.last()?);
    let joules = at(points, last)? - at(points, first)?;
    (inside.len() > 10).then_some((joules / ((last - first) as f64 / 1e9), EnergySource::Counter, *period))
}
