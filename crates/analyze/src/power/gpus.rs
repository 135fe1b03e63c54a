//! Power and energy of a run on several GPUs: sums over all of them, if each was sampled.

use std::collections::BTreeSet;

use llmprof_core::trace::power::{PowerLog, PowerSample};

use super::{
    Power, StagePower,
    curve::curve,
    of_gpu,
    readings::{PowerReadings, highest},
    sampled_instances,
};
use crate::{events::Events, stages::Stages, stats::ratio, timeline::interval::IntervalSet};

/// A figure of a stage.
type Figure = fn(&StagePower) -> Option<f64>;

/// Adds the other GPUs of a run to the figures of the first one.
pub fn add_others(power: &mut Power, log: &PowerLog, events: &Events, stages: &Stages) {
    // Instances of one GPU have its sensors: it is counted once.
    let mut boards = BTreeSet::from([log.device.board_uuid.as_str()]);
    let sampled = log.others.iter().flatten();
    let logs: Vec<&PowerLog> =
        sampled.filter(|it| boards.insert(it.device.board_uuid.as_str())).collect();
    let missing = log.others.iter().filter(|it| it.is_none()).count();
    let gpus = 1 + logs.len() + missing;
    power.device.gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
    if gpus == 1 {
        return;
    }
    let others: Vec<Power> = logs.iter().map(|it| of_gpu(it, events, stages)).collect();
    let samples = summed(log, &logs, missing);
    power.samples += others.iter().map(|it| it.samples).sum::<u64>();
    power.peak_w = highest(samples.iter());
    power.peak_temperature_c =
        others.iter().map(|it| it.peak_temperature_c).fold(power.peak_temperature_c, Ord::max);
    let limits = logs.iter().map(|it| it.device.power_limit_w).chain([log.device.power_limit_w]);
    power.device.power_limit_w = limits.sum::<Option<f64>>().filter(|_| missing == 0);
    power.curve = curve(&samples, events);
    for (at, stage) in power.stages.iter_mut().enumerate() {
        let of_others: Vec<&StagePower> =
            others.iter().filter_map(|it| it.stages.get(at)).collect();
        let cover = IntervalSet::new(sampled_instances(&stage.stage, log, events));
        let inside = samples.iter().filter(|it| cover.contains(it.t_ns));
        let is_of_instances = stage.peak_w.is_some() && stage.back_to_back.is_none();
        stage.peak_w = highest(inside).filter(|_| is_of_instances);
        stage.add_gpus(&of_others, missing);
    }
}

/// The samples of the first GPU, with the power of all GPUs at their times; without power if a GPU
/// was not sampled then.
fn summed(log: &PowerLog, others: &[&PowerLog], missing: usize) -> Vec<PowerSample> {
    let readings: Vec<PowerReadings> = others.iter().map(|it| PowerReadings::of(it)).collect();
    let sum_at = |it: &PowerSample| -> Option<f64> {
        let of_others = readings.iter().map(|gpu| gpu.power.as_ref()?.at(it.t_ns));
        Some(it.power_w? + of_others.sum::<Option<f64>>()?)
    };
    let sample = |it: &PowerSample| PowerSample {
        power_w: sum_at(it).filter(|_| missing == 0),
        ..it.clone()
    };
    log.samples.iter().map(sample).collect()
}

impl StagePower {
    /// Adds the records of the other GPUs; `missing` GPUs were not sampled.
    fn add_gpus(&mut self, others: &[&Self], missing: usize) {
        let all: Vec<&Self> = std::iter::once(&*self).chain(others.iter().copied()).collect();
        let gpus = all.len() + missing;
        let sum = |figure: Figure| {
            let sum = all.iter().map(|it| figure(it)).sum::<Option<f64>>();
            sum.filter(|_| missing == 0 && !are_mixed(&all))
        };
        let mean = |figure: Figure| {
            let sum = all.iter().map(|it| figure(it)).sum::<Option<f64>>()?;
            ratio(sum, all.len() as f64)
        };
        let energy_j = sum(|it| it.energy_j);
        let source = self.energy_source.filter(|_| energy_j.is_some());
        let longest = all.iter().filter_map(|it| it.reading_pct).max_by(f64::total_cmp);
        let share = |it: &Self| it.throttled_pct.unwrap_or(-1.0);
        let throttled = all.iter().copied().max_by(|a, b| share(a).total_cmp(&share(b)));
        let (throttled_pct, reasons) =
            throttled.map(|it| (it.throttled_pct, it.reasons.clone())).unwrap_or_default();
        let summed = Self {
            stage: self.stage.clone(),
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            instances: self.instances,
            back_to_back: self.back_to_back,
            samples: all.iter().map(|it| it.samples).sum(),
            energy_j,
            energy_source: source.filter(|it| all.iter().all(|of| of.energy_source == Some(*it))),
            reading_pct: longest.filter(|_| energy_j.is_some()),
            joules_per_token: sum(|it| it.joules_per_token),
            mean_w: sum(|it| it.mean_w),
            // GPUs of one run rise and fall together: the sum is a bound.
            mean_w_half_width: sum(|it| it.mean_w_half_width),
            peak_w: self.peak_w,
            sm_mhz: mean(|it| it.sm_mhz),
            memory_mhz: mean(|it| it.memory_mhz),
            gpu_active_pct: mean(|it| it.gpu_active_pct),
            memory_active_pct: mean(|it| it.memory_active_pct),
            memory_used_bytes: all.iter().filter_map(|it| it.memory_used_bytes).max(),
            throttled_pct,
            reasons,
            why: why(&all, missing),
        };
        *self = summed;
    }
}

/// The reason why figures of these GPUs together are missing.
fn why(all: &[&StagePower], missing: usize) -> Option<String> {
    let gpus = all.len() + missing;
    if missing > 0 {
        let verb = if missing == 1 { "was" } else { "were" };
        return Some(format!(
            "{missing} of {gpus} GPUs {verb} not sampled; energy and power are sums over all."
        ));
    }
    let of_gpu = |(at, it): (usize, &&StagePower)| {
        it.why.as_ref().map(|why| format!("GPU {} of {gpus}: {why}", at + 1))
    };
    all.iter().enumerate().find_map(of_gpu).or_else(|| {
        are_mixed(all).then(|| {
            "Some of the GPUs were measured in a back-to-back run, and others in the stage itself."
                .to_owned()
        })
    })
}

/// True if only some of these records are from a back-to-back run: their sum has no meaning.
fn are_mixed(all: &[&StagePower]) -> bool {
    all.windows(2).any(|pair| pair[0].back_to_back.is_some() != pair[1].back_to_back.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::BackToBack;

    #[test]
    fn figures_of_a_back_to_back_run_and_of_a_stage_are_not_summed() {
        let of = |is_back_to_back: bool| StagePower {
            gpus: 1,
            mean_w: Some(100.0),
            back_to_back: is_back_to_back.then_some(BackToBack { seconds: 1.0, instances: 9.0 }),
            ..StagePower::default()
        };
        for (first, other) in [(false, false), (true, true), (false, true), (true, false)] {
            let mut sum = of(first);
            sum.add_gpus(&[&of(other)], 0);
            let expected = if first == other { Some(200.0) } else { None };
            assert_eq!((sum.mean_w, sum.why.is_none()), (expected, first == other));
        }
    }
}
