//! Intervals of mean power by batch means: readings that follow each other are correlated, so the
//! time is cut into parts, whose means are nearly independent (Law, Simulation Modeling and
//! Analysis, 5th edition, 9.5.3).

use super::{EnergySource, readings::PowerReadings};
use crate::{
    compare::student::Estimate,
    stats::{Spread, ratio},
    timeline::interval::Interval,
};

/// Parts of a back-to-back run, fewer if their readings are too few.
const PARTS: i64 = 10;
const MIN_PARTS: usize = 5;
/// Least length of a part in readings: a shorter one shares them with its neighbours.
const READINGS: i64 = 2;

/// Half of the 95 % interval of the mean power over `parts`; `None` if the readings do not suffice.
pub fn half_width(
    readings: &PowerReadings,
    source: EnergySource,
    parts: &[Interval],
) -> Option<f64> {
    let least_ns = READINGS * readings.series(source)?.period_ns;
    let watts = |it: &Interval| {
        let ns = it.1 - it.0;
        ratio(readings.joules(source, it)?, ns as f64 / 1e9).filter(|_| ns >= least_ns)
    };
    let watts: Vec<f64> = parts.iter().map(watts).collect::<Option<_>>()?;
    let spread = Spread::of(watts).filter(|it| it.n as usize >= MIN_PARTS)?;
    Some(Estimate::of(&spread)?.half_interval())
}

/// Equal parts of the time from `from` to `to`, each of at least two readings.
pub fn parts(
    readings: &PowerReadings,
    source: EnergySource,
    (from, to): Interval,
) -> Vec<Interval> {
    let Some(series) = readings.series(source) else { return vec![] };
    let parts = ((to - from) / (READINGS * series.period_ns)).clamp(1, PARTS);
    let length = (to - from) / parts;
    (0..parts).map(|at| (from + at * length, from + (at + 1) * length)).collect()
}
