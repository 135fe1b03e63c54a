//! Energy, power and clocks of each stage: the sampler's log joined with the stage ranges of the
//! unprofiled pass.
//!
//! Energy comes from the device's energy counter if the counter's steps are short compared with the
//! stage, else from the finer of the counter and the integral of power; each figure names its
//! source. Instances of a stage are summed over the repeats. A stage shorter than the device's
//! reading interval is measured from a back-to-back run of the stage; without such a run it has no
//! figures, and the record gives the reason. On several GPUs, energy and power are sums over all.

mod curve;
mod gpus;
mod interval;
mod readings;
mod steady;
mod throttling;

use serde::{Deserialize, Serialize};

use self::{
    curve::curve,
    readings::{PowerReadings, StageEnergy, highest, mean},
};
pub use self::{
    curve::{PowerCurve, StageBand},
    throttling::findings,
};
use llmprof_core::trace::power::{
    ClockReason, PowerLog, PowerSample, REASONS, SampledDevice, one_gpu, throttling_reasons,
};

use super::{
    events::Events,
    stages::{DECODE, STAGES, Stages},
    stats::{percent, ratio},
};
use crate::timeline::interval::{Interval, IntervalSet};

/// Minimum number of samples behind a figure.
const MIN_SAMPLES: u64 = 3;
/// Time before a sample that its utilisation covers, nanoseconds: NVML's sampling period, 1/6 s to
/// one second by product (NVML API Reference, `nvmlUtilization_t`).
const UTILISATION_WINDOW_NS: i64 = 1_000_000_000;

/// Energy, power and clocks of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Power {
    /// The first GPU, with the number of GPUs and the sum of their power limits.
    pub device: SampledDevice,
    pub samples: u64,
    /// Median time between samples, milliseconds.
    pub period_ms: Option<f64>,
    /// Median time between two values of the energy counter; `null` without a counter.
    pub counter_period_ms: Option<f64>,
    /// Median time between two values of power.
    pub power_period_ms: Option<f64>,
    /// Share of the time that the sampler spent in driver calls, percent: its load on the host.
    pub busy_pct: Option<f64>,
    /// Highest reading; on several GPUs of their sum.
    pub peak_w: Option<f64>,
    pub peak_temperature_c: Option<u32>,
    /// One record per stage that ran.
    pub stages: Vec<StagePower>,
    #[serde(skip)]
    pub curve: PowerCurve,
}

/// One stage over all measured repeats.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StagePower {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// GPUs whose energy and power are summed; clocks and utilisation are their means, throttling
    /// is of the GPU with the largest share.
    #[serde(default = "one_gpu")]
    pub gpus: u32,
    /// Instances of the stage within the sampled time.
    pub instances: u64,
    /// The back-to-back run that the figures are from; absent if they are from the instances.
    pub back_to_back: Option<BackToBack>,
    /// Samples taken during the instances, or during the back-to-back run.
    pub samples: u64,
    /// Joules per instance.
    pub energy_j: Option<f64>,
    pub energy_source: Option<EnergySource>,
    /// Interval of one reading over the length of an instance, percent: about this share of the
    /// energy is shared with neighbouring work.
    pub reading_pct: Option<f64>,
    /// Joules per token of the stage.
    pub joules_per_token: Option<f64>,
    /// Energy over the time of the stage.
    pub mean_w: Option<f64>,
    /// Half of the 95 % interval of `mean_w`, by Student's t over instances, or over parts of the
    /// back-to-back run; `null` for fewer than five with two readings each.
    #[serde(default)]
    pub mean_w_half_width: Option<f64>,
    /// Highest reading; on several GPUs of their sum.
    pub peak_w: Option<f64>,
    pub sm_mhz: Option<f64>,
    pub memory_mhz: Option<f64>,
    /// Mean share of time in which a kernel ran, percent, as the driver reports it over a second;
    /// `null` if the stage does not fill such a second.
    #[serde(default)]
    pub gpu_active_pct: Option<f64>,
    /// The same for reads and writes of device memory.
    #[serde(default)]
    pub memory_active_pct: Option<f64>,
    /// Highest memory in use on one device, by all processes.
    #[serde(default)]
    pub memory_used_bytes: Option<u64>,
    /// Share of the samples in which the device was throttled, percent.
    pub throttled_pct: Option<f64>,
    /// Clock reasons, by share of the samples.
    pub reasons: Vec<ReasonShare>,
    /// Reason why figures are missing.
    pub why: Option<String>,
}

/// The evaluated part of a back-to-back run: without its start, in which power and clocks still
/// rise. Caches are as the previous execution left them, also of a part whose repeats flush them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BackToBack {
    pub seconds: f64,
    /// Runs of the stage in that time, including a fraction of the last.
    pub instances: f64,
}

/// Source of an energy figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReasonShare {
    /// NVML's name of the clock reason, lower case.
    #[cfg_attr(feature = "schema", schema(example = "sw_power_cap"))]
    pub reason: String,
    /// True when it throttled the device; idle and requested clocks do not.
    pub limits: bool,
    pub share_pct: f64,
}

/// Joins the sampler's logs with the stages of the pass that they cover.
pub fn power(log: &PowerLog, events: &Events, stages: &Stages) -> Power {
    let mut power = of_gpu(log, events, stages);
    if !log.others.is_empty() {
        gpus::add_others(&mut power, log, events, stages);
    }
    power
}

/// Joins the log of one GPU.
fn of_gpu(log: &PowerLog, events: &Events, stages: &Stages) -> Power {
    let samples = &log.samples;
    let readings = PowerReadings::of(log);
    let ms = |ns: Option<i64>| ns.map(|ns| ns as f64 / 1e6);
    let records = STAGES.iter().filter(|stage| events.measured(stage).next().is_some());
    Power {
        device: log.device.clone(),
        samples: samples.len() as u64,
        period_ms: ms(readings.period_ns),
        counter_period_ms: ms(readings.counter.as_ref().map(|it| it.period_ns)),
        power_period_ms: ms(readings.power.as_ref().map(|it| it.period_ns)),
        busy_pct: log.end.as_ref().and_then(|end| {
            percent(end.busy_ns? as f64, (end.t_ns - samples.first()?.t_ns) as f64)
        }),
        peak_w: highest(samples.iter()),
        peak_temperature_c: samples.iter().filter_map(|it| it.temperature_c).max(),
        stages: records.map(|stage| stage_power(stage, log, &readings, events, stages)).collect(),
        curve: curve(samples, events),
    }
}

fn stage_power(
    stage: &str,
    log: &PowerLog,
    readings: &PowerReadings,
    events: &Events,
    stages: &Stages,
) -> StagePower {
    let instances = sampled_instances(stage, log, events);
    let cover = IntervalSet::new(instances.iter().copied());
    let inside: Vec<&PowerSample> =
        log.samples.iter().filter(|it| cover.contains(it.t_ns)).collect();
    let mut record = StagePower {
        stage: stage.to_owned(),
        gpus: 1,
        instances: instances.len() as u64,
        samples: inside.len() as u64,
        ..StagePower::default()
    };
    let total_ns: i64 = instances.iter().map(|(start, end)| end - start).sum();
    let Some((mean_ns, period_ns)) =
        ratio(total_ns as f64, instances.len() as f64).zip(readings.period_ns)
    else {
        record.why = Some("The device was not sampled while the stage ran.".into());
        return record;
    };
    let has_flushes = stage == DECODE && events.start.is_some_and(|it| it.cold_cache);
    let energy = if has_flushes {
        Err("Its instances include flushes of the L2 cache.".to_owned())
    } else if mean_ns < period_ns as f64 || record.samples < MIN_SAMPLES {
        Err(format!(
            "An instance lasts {:.1} ms; {} samples at one every {:.1} ms are too few.",
            mean_ns / 1e6,
            record.samples,
            period_ns as f64 / 1e6,
        ))
    } else {
        record.set_clocks(&inside);
        record.set_utilisation(&log.samples, &instances);
        readings.energy(&instances, mean_ns)
    };
    match energy {
        Ok(StageEnergy { joules, source, reading_ns }) => {
            record.energy_source = Some(source);
            record.reading_pct = percent(reading_ns as f64, mean_ns);
            record.energy_j = ratio(joules, instances.len() as f64);
            record.mean_w = ratio(joules, total_ns as f64 / 1e9);
            record.mean_w_half_width = interval::half_width(readings, source, &instances);
        }
        Err(why) => match events.steady.iter().find(|it| it.stage == stage) {
            Some(run) => {
                record.why = steady::fill(&mut record, run, log, readings)
                    .err()
                    .map(|not| format!("{why} {not}"))
            }
            None => record.why = Some(why),
        },
    }
    let tokens = stages.row(stage).and_then(|row| row.tokens);
    record.joules_per_token =
        record.energy_j.zip(tokens).and_then(|(joules, tokens)| ratio(joules, tokens as f64));
    record
}

/// Measured instances of a stage that lie within the sampled time.
fn sampled_instances(stage: &str, log: &PowerLog, events: &Events) -> Vec<Interval> {
    let Some((first, last)) = log.samples.first().zip(log.samples.last()) else { return vec![] };
    let sampled =
        |(start, end): &Interval| first.t_ns <= *start && *end <= last.t_ns && start < end;
    events.measured(stage).map(|it| (it.start_ns, it.end_ns)).filter(sampled).collect()
}

impl StagePower {
    /// Sets utilisation from the samples whose window lies in one of these intervals, and memory.
    fn set_utilisation(&mut self, samples: &[PowerSample], intervals: &[Interval]) {
        let within = |it: &&PowerSample, window_ns: i64| {
            intervals.iter().any(|(from, to)| (from + window_ns..=*to).contains(&it.t_ns))
        };
        let covered = || samples.iter().filter(|it| within(it, UTILISATION_WINDOW_NS));
        self.gpu_active_pct = mean(covered().filter_map(|it| it.gpu_pct));
        self.memory_active_pct = mean(covered().filter_map(|it| it.memory_pct));
        let inside = samples.iter().filter(|it| within(it, 0));
        self.memory_used_bytes = inside.filter_map(|it| it.memory_used_bytes).max();
    }

    /// Sets clocks, peak power and clock reasons from the stage's samples.
    fn set_clocks(&mut self, inside: &[&PowerSample]) {
        self.sm_mhz = mean(inside.iter().filter_map(|it| it.sm_mhz));
        self.memory_mhz = mean(inside.iter().filter_map(|it| it.memory_mhz));
        self.peak_w = highest(inside.iter().copied());
        let reasons: Vec<u64> = inside.iter().filter_map(|it| it.clock_reasons).collect();
        let share = |count: usize| percent(count as f64, reasons.len() as f64);
        let throttled = reasons.iter().filter(|bits| throttling_reasons(**bits).next().is_some());
        self.throttled_pct = share(throttled.count());
        let reason_share = |it: &ClockReason| {
            let share_pct = share(reasons.iter().filter(|bits| **bits & it.bit != 0).count())
                .filter(|pct| *pct > 0.0)?;
            Some(ReasonShare { reason: it.name.to_owned(), limits: it.throttles, share_pct })
        };
        self.reasons = REASONS.iter().filter_map(reason_share).collect();
    }
}

#[cfg(test)]
mod tests;
