//! Energy and power of a log as functions of time, with the resolution of each.

use llmprof_core::trace::power::{PowerLog, PowerSample, PowerSource};

use super::EnergySource;
use crate::{
    stats::{median_of, ratio},
    timeline::interval::Interval,
};

/// The counter is preferred for stages that last at least so many of its steps.
const MIN_COUNTER_STEPS: f64 = 10.0;
/// Averaging window of a reading of [`PowerSource::Average`], nanoseconds.
pub const AVERAGE_WINDOW_NS: i64 = 1_000_000_000;

/// A quantity over time.
pub struct ReadingSeries {
    /// Median time between two values, nanoseconds.
    pub period_ns: i64,
    /// Time and value, in order of time.
    points: Vec<(i64, f64)>,
}

/// The series in a sampler's log.
pub struct PowerReadings {
    pub period_ns: Option<i64>,
    /// Joules; `None` if the counter is missing or decreases.
    pub counter: Option<ReadingSeries>,
    /// Watts.
    pub power: Option<ReadingSeries>,
}

/// Energy of all instances of a stage together.
pub struct StageEnergy {
    pub joules: f64,
    pub source: EnergySource,
    /// Interval between readings of that source, nanoseconds.
    pub reading_ns: i64,
}

impl PowerReadings {
    pub fn of(log: &PowerLog) -> Self {
        let samples = &log.samples;
        let period_ns = median(samples.windows(2).map(|pair| pair[1].t_ns - pair[0].t_ns));
        let counter =
            changes(samples.iter().filter_map(|it| Some((it.t_ns, it.energy_mj? as f64 / 1e3))));
        let rises = counter.windows(2).all(|pair| pair[1].1 >= pair[0].1);
        let resolution = |points: &[(i64, f64)]| {
            let between = median(points.windows(2).map(|pair| pair[1].0 - pair[0].0));
            between.zip(period_ns).map(|(between, period)| between.max(period))
        };
        let power: Vec<_> = samples.iter().filter_map(|it| Some((it.t_ns, it.power_w?))).collect();
        // A constant power has no changes: its resolution is the sampling period.
        let power_period =
            resolution(&changes(power.iter().copied())).or(period_ns).map(|period| {
                match log.device.power_source {
                    PowerSource::Instant => period,
                    PowerSource::Average => period.max(AVERAGE_WINDOW_NS),
                }
            });
        let series = |period_ns, points| ReadingSeries { period_ns, points };
        Self {
            period_ns,
            counter: resolution(&counter).filter(|_| rises).map(|period| series(period, counter)),
            power: power_period.filter(|_| power.len() > 1).map(|period| series(period, power)),
        }
    }

    /// The energy of all instances together, or the reason why it is not known.
    ///
    /// Between two readings energy is interpolated linearly, so the energy at a stage's edges is
    /// shared with its neighbours. The finer series is used; the counter, which misses nothing
    /// between two samples, is preferred if its steps are short compared with the stage.
    pub fn energy(&self, instances: &[Interval], mean_ns: f64) -> Result<StageEnergy, String> {
        let (reading_ns, source) = match (&self.counter, &self.power) {
            (Some(counter), Some(power))
                if mean_ns < MIN_COUNTER_STEPS * counter.period_ns as f64
                    && power.period_ns < counter.period_ns =>
            {
                (power.period_ns, EnergySource::Integral)
            }
            (Some(counter), _) => (counter.period_ns, EnergySource::Counter),
            (None, Some(power)) => (power.period_ns, EnergySource::Integral),
            (None, None) => return Err("The device reports neither energy nor power.".into()),
        };
        if mean_ns < 2.0 * reading_ns as f64 {
            return Err(format!(
                "An instance lasts {:.1} ms, less than two device readings ({:.1} ms apart).",
                mean_ns / 1e6,
                reading_ns as f64 / 1e6,
            ));
        }
        let joules = instances.iter().map(|it| self.joules(source, it)).sum::<Option<f64>>();
        joules
            .map(|joules| StageEnergy { joules, source, reading_ns })
            .ok_or_else(|| "The device's readings do not cover the whole stage.".into())
    }
}

impl PowerReadings {
    pub fn series(&self, source: EnergySource) -> Option<&ReadingSeries> {
        match source {
            EnergySource::Counter => self.counter.as_ref(),
            EnergySource::Integral => self.power.as_ref(),
        }
    }

    /// Energy in the interval; `None` if the readings do not cover it.
    pub fn joules(&self, source: EnergySource, interval: &Interval) -> Option<f64> {
        let series = self.series(source)?;
        match source {
            EnergySource::Counter => series.difference(interval),
            EnergySource::Integral => series.integral(interval),
        }
    }
}

impl ReadingSeries {
    /// Times of the values, in order.
    pub fn times(&self) -> impl Iterator<Item = i64> + '_ {
        self.points.iter().map(|point| point.0)
    }

    /// The value at `t`, interpolated linearly.
    pub fn at(&self, t: i64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.0 < t);
        let next = self.points.get(after)?;
        if next.0 == t {
            return Some(next.1);
        }
        let last = self.points.get(after.checked_sub(1)?)?;
        let part = (t - last.0) as f64 / (next.0 - last.0) as f64;
        Some(last.1 + part * (next.1 - last.1))
    }

    /// The value at the end minus the value at the start.
    pub fn difference(&self, &(start, end): &Interval) -> Option<f64> {
        Some(self.at(end)? - self.at(start)?)
    }

    /// The integral over the interval by the trapezoidal rule, in value times seconds.
    fn integral(&self, &(start, end): &Interval) -> Option<f64> {
        let inner = self.points.iter().copied().filter(|point| start < point.0 && point.0 < end);
        let corners: Vec<(i64, f64)> = [(start, self.at(start)?)]
            .into_iter()
            .chain(inner)
            .chain([(end, self.at(end)?)])
            .collect();
        let area = |it: &[(i64, f64)]| (it[0].1 + it[1].1) / 2.0 * (it[1].0 - it[0].0) as f64 / 1e9;
        Some(corners.windows(2).map(area).sum())
    }
}

/// The points at which a new value first appears.
fn changes(points: impl Iterator<Item = (i64, f64)>) -> Vec<(i64, f64)> {
    let mut changed: Vec<(i64, f64)> = Vec::new();
    for point in points {
        if changed.last().is_none_or(|last| last.1 != point.1) {
            changed.push(point);
        }
    }
    changed
}

/// The median interval, if it is one.
fn median(intervals: impl Iterator<Item = i64>) -> Option<i64> {
    median_of(intervals).filter(|ns| *ns > 0)
}

pub fn mean(values: impl Iterator<Item = u32>) -> Option<f64> {
    let (sum, count) =
        values.fold((0.0, 0.0), |(sum, count), value| (sum + f64::from(value), count + 1.0));
    ratio(sum, count)
}

pub fn highest<'a>(samples: impl Iterator<Item = &'a PowerSample>) -> Option<f64> {
    samples.filter_map(|it| it.power_w).max_by(f64::total_cmp)
}
