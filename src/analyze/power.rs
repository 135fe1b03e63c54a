//! What each stage cost in energy, and at which clocks it ran: the sampler's log joined with the stage ranges of the plain pass.
//!
//! Energy comes from the device's own counter where its steps are short beside the stage, else from the finer of counter and integral of
//! power, and each figure says which. Instances of a stage are added up over the repeats: the error of an edge is that of one reading. A stage that is
//! shorter than the device's readings is told from the time in which it ran back to back; without one it gets no figures, and says so.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod steady;

use super::{
    events::Events,
    interval::{Cover, Interval},
    stages::{STAGES, Stages},
    stats::{percent, ratio},
};
use crate::{
    run::{Finding, Severity},
    trace::power::{ClockReason, PowerLog, PowerSample, PowerSource, REASONS, SampledDevice, limits},
};

/// Samples that a figure is made from at least.
const FEW_SAMPLES: u64 = 3;
/// Steps of the counter that a stage should last for the counter to be the better source.
const FINE: f64 = 10.0;
/// Window of a reading that is a mean, nanoseconds.
const AVERAGE_WINDOW_NS: i64 = 1_000_000_000;
/// From this share of a stage's samples on, percent, throttling is worth telling.
const THROTTLED_PCT: f64 = 5.0;
/// Points of the curve: what a figure of a thousand pixels can show.
const CURVE: usize = 400;

/// Energy, power and clocks of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Power {
    pub device: SampledDevice,
    pub samples: u64,
    /// Median time between samples, milliseconds.
    pub period_ms: Option<f64>,
    /// Median time between two values of the energy counter; `null` where there is none.
    pub counter_period_ms: Option<f64>,
    /// Median time between two values of power.
    pub power_period_ms: Option<f64>,
    /// Share of the time that the sampler was asking the driver, percent: what the pass shared its host and driver with.
    pub busy_pct: Option<f64>,
    pub peak_w: Option<f64>,
    pub peak_temperature_c: Option<u32>,
    /// One record per stage that ran.
    pub stages: Vec<StagePower>,
    #[serde(skip)]
    pub curve: Curve,
}

/// One stage over all measured repeats.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StagePower {
    #[schema(example = "decode_all")]
    pub stage: String,
    /// Times that the stage ran while the device was sampled.
    pub instances: u64,
    /// Where the figures are of the stage run back to back, for it is too short to be read by itself; absent where they are of the instances.
    pub back_to_back: Option<BackToBack>,
    /// Samples that fell into them.
    pub samples: u64,
    /// Joules per instance.
    pub energy_j: Option<f64>,
    pub energy_source: Option<EnergySource>,
    /// How long one reading is beside an instance, percent: the energy of about so much of it is shared with its neighbours.
    pub reading_pct: Option<f64>,
    /// Joules per token that the stage handled.
    pub joules_per_token: Option<f64>,
    /// That energy over the time of the stage.
    pub mean_w: Option<f64>,
    /// Highest reading.
    pub peak_w: Option<f64>,
    pub sm_mhz: Option<f64>,
    pub memory_mhz: Option<f64>,
    /// Share of the samples in which the device was slowed down, percent.
    pub throttled_pct: Option<f64>,
    /// Why the clocks were where they were, by share of the samples.
    pub reasons: Vec<ReasonShare>,
    /// Why figures are missing.
    pub why: Option<String>,
}

/// The time in which a stage ran again and again, without its first part, in which power and clocks still rise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackToBack {
    pub seconds: f64,
    /// Runs of the stage in that time; the last may be a part of one.
    pub instances: f64,
}

/// Where an energy comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnergySource {
    /// Differences of the device's energy counter.
    Counter,
    /// The integral of the power readings.
    Integral,
}

impl EnergySource {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Integral => "integral",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReasonShare {
    /// NVML's word, lower case.
    #[schema(example = "sw_power_cap")]
    pub reason: String,
    /// Whether it slowed the device down: idleness and clocks that were asked for do not.
    pub limits: bool,
    pub share_pct: f64,
}

/// Power over time, thinned for a figure; seconds count from the first sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    pub seconds: f64,
    /// Second and highest power of its part of the curve.
    pub points: Vec<(f64, f64)>,
    /// Second and lowest clock of the multiprocessors of its part of the curve, MHz.
    pub sm_mhz: Vec<(f64, f64)>,
    pub bands: Vec<Band>,
}

/// When a stage ran.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    pub stage: &'static str,
    pub warmup: bool,
    pub from_s: f64,
    pub to_s: f64,
}

/// Joins the sampler's log with the stages of the pass that it was taken beside.
pub fn power(log: &PowerLog, events: &Events, stages: &Stages) -> Power {
    let samples = &log.samples;
    let readings = Readings::of(log);
    let ms = |ns: Option<i64>| ns.map(|ns| ns as f64 / 1e6);
    let records = STAGES.iter().filter(|stage| events.measured(stage).next().is_some());
    Power {
        device: log.device.clone(),
        samples: samples.len() as u64,
        period_ms: ms(readings.period_ns),
        counter_period_ms: ms(readings.counter.as_ref().map(|(period, _)| *period)),
        power_period_ms: ms(readings.power.as_ref().map(|(period, _)| *period)),
        busy_pct: log.end.as_ref().and_then(|end| percent(end.busy_ns? as f64, (end.t_ns - samples.first()?.t_ns) as f64)),
        peak_w: highest(samples.iter()),
        peak_temperature_c: samples.iter().filter_map(|it| it.temperature_c).max(),
        stages: records.map(|stage| stage_power(stage, log, &readings, events, stages)).collect(),
        curve: curve(samples, events),
    }
}

/// A quantity over time, and the median time between two of its values.
type Curved = (i64, Vec<(i64, f64)>);

/// What the log can tell, and how finely.
struct Readings {
    period_ns: Option<i64>,
    /// Joules, where the counter is there and never falls.
    counter: Option<Curved>,
    /// Watts.
    power: Option<Curved>,
}

impl Readings {
    fn of(log: &PowerLog) -> Self {
        let period_ns = median(log.samples.windows(2).map(|pair| pair[1].t_ns - pair[0].t_ns).collect());
        let counter = changes(log.samples.iter().filter_map(|it| Some((it.t_ns, it.energy_mj? as f64 / 1e3))));
        let rises = counter.windows(2).all(|pair| pair[1].1 >= pair[0].1);
        let finest = |points: &[(i64, f64)]| {
            let between = median(points.windows(2).map(|pair| pair[1].0 - pair[0].0).collect());
            between.zip(period_ns).map(|(between, period)| between.max(period))
        };
        let power: Vec<_> = log.samples.iter().filter_map(|it| Some((it.t_ns, it.power_w?))).collect();
        // A power that never changes was read as often as it was looked at.
        let power_period = finest(&changes(power.iter().copied())).or(period_ns).map(|period| match log.device.power_source {
            PowerSource::Instant => period,
            PowerSource::Average => period.max(AVERAGE_WINDOW_NS),
        });
        Self {
            period_ns,
            counter: finest(&counter).filter(|_| rises).map(|period| (period, counter)),
            power: power_period.filter(|_| power.len() > 1).map(|period| (period, power)),
        }
    }
}

/// The points at which a new value was first seen.
fn changes(points: impl Iterator<Item = (i64, f64)>) -> Vec<(i64, f64)> {
    let mut changed: Vec<(i64, f64)> = Vec::new();
    for point in points {
        if changed.last().is_none_or(|last| last.1 != point.1) {
            changed.push(point);
        }
    }
    changed
}

fn median(mut values: Vec<i64>) -> Option<i64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied().filter(|median| *median > 0)
}

fn stage_power(stage: &str, log: &PowerLog, readings: &Readings, events: &Events, stages: &Stages) -> StagePower {
    let sampled = log.samples.first().zip(log.samples.last()).map(|(first, last)| (first.t_ns, last.t_ns));
    let seen = |(start, end): &Interval| sampled.is_some_and(|(from, to)| from <= *start && *end <= to) && start < end;
    let instances: Vec<Interval> = events.measured(stage).map(|it| (it.start_ns, it.end_ns)).filter(seen).collect();
    let cover = Cover::new(instances.iter().copied());
    let inside: Vec<&PowerSample> = log.samples.iter().filter(|it| cover.holds(it.t_ns)).collect();
    let mut record = StagePower {
        stage: stage.to_owned(),
        instances: instances.len() as u64,
        samples: inside.len() as u64,
        ..StagePower::default()
    };
    let total_ns: i64 = instances.iter().map(|(start, end)| end - start).sum();
    let Some((mean_ns, period_ns)) = ratio(total_ns as f64, instances.len() as f64).zip(readings.period_ns) else {
        record.why = Some("The device was not sampled while the stage ran.".into());
        return record;
    };
    let told = if mean_ns < period_ns as f64 || record.samples < FEW_SAMPLES {
        Err(format!(
            "It lasts {:.1} ms and {} samples fell into it: too few at one every {:.1} ms.",
            mean_ns / 1e6,
            record.samples,
            period_ns as f64 / 1e6,
        ))
    } else {
        record.look(&inside);
        energy(&instances, mean_ns, readings)
    };
    match told {
        Ok((joules, source, reading_ns)) => {
            record.energy_source = Some(source);
            record.reading_pct = percent(reading_ns as f64, mean_ns);
            record.energy_j = ratio(joules, instances.len() as f64);
            record.mean_w = ratio(joules, total_ns as f64 / 1e9);
        }
        Err(why) => match events.steady.iter().find(|it| it.stage == stage) {
            Some(run) => record.why = steady::tell(&mut record, run, log, readings).err().map(|not| format!("{why} {not}")),
            None => record.why = Some(why),
        },
    }
    let tokens = stages.row(stage).and_then(|row| row.tokens);
    record.joules_per_token = record.energy_j.zip(tokens).and_then(|(joules, tokens)| ratio(joules, tokens as f64));
    record
}

impl StagePower {
    /// Clocks, peak and reasons, as the samples of the stage have them.
    fn look(&mut self, inside: &[&PowerSample]) {
        self.sm_mhz = mean(inside.iter().filter_map(|it| it.sm_mhz));
        self.memory_mhz = mean(inside.iter().filter_map(|it| it.memory_mhz));
        self.peak_w = highest(inside.iter().copied());
        let reasons: Vec<u64> = inside.iter().filter_map(|it| it.clock_reasons).collect();
        let share = |count: usize| percent(count as f64, reasons.len() as f64);
        self.throttled_pct = share(reasons.iter().filter(|bits| limits(**bits).next().is_some()).count());
        let shared = |it: &ClockReason| {
            let share_pct = share(reasons.iter().filter(|bits| **bits & it.bit != 0).count()).filter(|pct| *pct > 0.0)?;
            Some(ReasonShare { reason: it.name.to_owned(), limits: it.limits, share_pct })
        };
        self.reasons = REASONS.iter().filter_map(shared).collect();
    }
}

/// The energy of all instances together and how far apart its readings are, or why it cannot be told.
///
/// Between two readings energy is spread evenly, so what lies at a stage's edges is shared with its neighbours: the finer reading is
/// taken, and the counter, which misses nothing between two looks, where its steps are short beside the stage.
fn energy(instances: &[Interval], mean_ns: f64, readings: &Readings) -> Result<(f64, EnergySource, i64), String> {
    let sum = |of: &dyn Fn(&Interval) -> Option<f64>| instances.iter().map(of).sum::<Option<f64>>();
    let counter = readings.counter.as_ref().map(|(period, points)| {
        let joules = sum(&|(start, end)| Some(at(points, *end)? - at(points, *start)?));
        (joules, EnergySource::Counter, *period)
    });
    let power =
        readings.power.as_ref().map(|(period, points)| (sum(&|it| integral(points, it)), EnergySource::Integral, *period));
    let finer = match (counter, power) {
        (Some(counter), Some(power)) if mean_ns < FINE * counter.2 as f64 && power.2 < counter.2 => power,
        (counter, power) => counter.or(power).ok_or("The device tells neither energy nor power.")?,
    };
    match finer {
        (_, _, period) if mean_ns < 2.0 * period as f64 => Err(format!(
            "It lasts {:.1} ms, less than two of the device's readings, which are {:.1} ms apart.",
            mean_ns / 1e6,
            period as f64 / 1e6,
        )),
        (None, ..) => Err("The device's readings do not reach over the whole stage.".into()),
        (Some(joules), source, period) => Ok((joules, source, period)),
    }
}

/// The value at `t`, on the line between its neighbours.
fn at(points: &[(i64, f64)], t: i64) -> Option<f64> {
    let after = points.partition_point(|point| point.0 < t);
    let next = points.get(after)?;
    if next.0 == t {
        return Some(next.1);
    }
    let last = points.get(after.checked_sub(1)?)?;
    let part = (t - last.0) as f64 / (next.0 - last.0) as f64;
    Some(last.1 + part * (next.1 - last.1))
}

/// The area under the lines between the points, from `start` to `end`; nanoseconds count as seconds.
fn integral(points: &[(i64, f64)], &(start, end): &Interval) -> Option<f64> {
    let inner = points.iter().copied().filter(|point| start < point.0 && point.0 < end);
    let corners: Vec<(i64, f64)> =
        [(start, at(points, start)?)].into_iter().chain(inner).chain([(end, at(points, end)?)]).collect();
    Some(corners.windows(2).map(|it| (it[0].1 + it[1].1) / 2.0 * (it[1].0 - it[0].0) as f64 / 1e9).sum())
}

fn mean(values: impl Iterator<Item = u32>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + f64::from(value), count + 1.0));
    ratio(sum, count)
}

fn highest<'a>(samples: impl Iterator<Item = &'a PowerSample>) -> Option<f64> {
    samples.filter_map(|it| it.power_w).max_by(f64::total_cmp)
}

/// The curves in at most [`CURVE`] points: each the highest power and the lowest clock of its part, so that no peak and no drop is lost.
fn curve(samples: &[PowerSample], events: &Events) -> Curve {
    let Some((first, last)) = samples.first().zip(samples.last()) else { return Curve::default() };
    let seconds = |t: i64| (t - first.t_ns) as f64 / 1e9;
    let parts = || samples.chunks(samples.len().div_ceil(CURVE).max(1));
    let points = parts().filter_map(|part| Some((seconds(part.first()?.t_ns), highest(part.iter())?))).collect();
    let slowest = |part: &[PowerSample]| part.iter().filter_map(|it| it.sm_mhz).min().map(f64::from);
    let sm_mhz = parts().filter_map(|part| Some((seconds(part.first()?.t_ns), slowest(part)?))).collect();
    let bands = STAGES.iter().flat_map(|stage| {
        let ranges = events.ranges.iter().filter(move |it| it.name == *stage);
        ranges.map(move |it| Band {
            stage,
            warmup: it.warmup,
            from_s: seconds(it.start_ns.max(first.t_ns)),
            to_s: seconds(it.end_ns.min(last.t_ns)),
        })
    });
    let steady = events.steady.iter().filter_map(|it| {
        let stage = STAGES.iter().find(|stage| **stage == it.stage)?;
        let (from_s, to_s) = (seconds(it.start_ns.max(first.t_ns)), seconds(it.end_ns.min(last.t_ns)));
        Some(Band { stage, warmup: false, from_s, to_s })
    });
    let bands = bands.chain(steady);
    Curve { seconds: seconds(last.t_ns), points, sm_mhz, bands: bands.filter(|band| band.from_s < band.to_s).collect() }
}

/// What is worth telling of it.
pub fn findings(power: &Power) -> Vec<Finding> {
    let throttled = |it: &StagePower| it.throttled_pct.is_some_and(|share| share >= THROTTLED_PCT);
    let mut found: Vec<Finding> =
        power.stages.iter().filter(|it| throttled(it)).map(|stage| gpu_throttled(power, stage)).collect();
    if power.device.uuid != power.device.board_uuid {
        let message = "Power, energy and clocks are those of the whole GPU: an instance of it (MIG) has none of its own.";
        found.push(
            Finding::new("power_of_whole_gpu", Severity::Info, message)
                .with("instance", &power.device.uuid)
                .with("GPU", &power.device.board_uuid)
                .advise("Keep the GPU's other instances idle where energy matters."),
        );
    }
    found
}

fn gpu_throttled(power: &Power, stage: &StagePower) -> Finding {
    let share = stage.throttled_pct.unwrap_or_default();
    let limiting: Vec<&ReasonShare> = stage.reasons.iter().filter(|it| it.limits).collect();
    let named: Vec<String> = limiting.iter().map(|it| format!("{} {:.0} %", it.reason, it.share_pct)).collect();
    let message = format!("The GPU was slowed down during {share:.0} % of {}.", stage.stage);
    let mut finding = Finding::new("gpu_throttled", Severity::Warning, message)
        .with("stage", &stage.stage)
        .with("reasons", named.join(", "))
        .with("samples", stage.samples);
    let beside = |value: Option<f64>, most: Option<f64>, unit: &str| {
        let most = most.map(|most| format!(" of {most:.0}")).unwrap_or_default();
        value.map(|value| format!("{value:.0}{most} {unit}"))
    };
    let figures = [
        ("mean SM clock", beside(stage.sm_mhz, power.device.max_sm_mhz.map(f64::from), "MHz")),
        ("mean power", beside(stage.mean_w, power.device.power_limit_w, "W")),
        ("hottest", beside(power.peak_temperature_c.map(f64::from), None, "°C")),
    ];
    for (name, value) in figures {
        if let Some(value) = value {
            finding = finding.with(name, value);
        }
    }
    let gpu = &power.device.board_uuid;
    let mut advice: Vec<String> = Vec::new();
    for it in limiting {
        let remedy = match it.reason.as_str() {
            "sw_power_cap" => format!(
                "Raise the power limit where the board allows it (sudo nvidia-smi -i {gpu} -pl WATTS), or compare runs at one clock \
                 (sudo nvidia-smi -i {gpu} -lgc MHZ)."
            ),
            "sw_thermal_slowdown" | "hw_thermal_slowdown" => {
                format!("It is too hot: look at fans and airflow (nvidia-smi -i {gpu} -q -d TEMPERATURE).")
            }
            "sync_boost" => "Another GPU of its sync boost group holds it back: look at that one.".into(),
            _ => format!("Look at the power supply and its brake signal (nvidia-smi -i {gpu} -q -d PERFORMANCE)."),
        };
        if !advice.contains(&remedy) {
            advice.push(remedy);
        }
    }
    finding.advise(advice.join(" "))
}

#[cfg(test)]
mod tests;
