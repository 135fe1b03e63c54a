//! Upper bounds of savings: the least time of a launch, the idle time that the unprofiled pass can
//! have, and the rank that has most of a cause.

use std::collections::BTreeMap;

use llmprof_core::trace::timeline::Timeline;

use super::{Ledger, LedgerCause, LedgerMember, LedgerRow, scale::Fraction, work::WorkGroup};
use crate::{stages::step_times::TYPICAL_PART, stats::ratio, timeline::gpu::split::WindowSplit};

/// Upper limit of [`launch_ns`], nanoseconds.
const MAX_LAUNCH_NS: i64 = 1_000;

/// Least time of a kernel launch: the time of the capture's shortest kernel, up to a limit.
pub fn launch_ns(nsys: &Timeline) -> i64 {
    let times = nsys.kernels.iter().map(|it| it.end_ns - it.start_ns).filter(|ns| *ns > 0);
    times.min().unwrap_or(0).min(MAX_LAUNCH_NS)
}

/// The saving by all gaps is at most the idle time that the unprofiled pass can have. What it is
/// faster by is the profiler's own work first. `on_busiest` are the gaps of the busiest GPU, if
/// they limit the saving.
pub fn limit_gap_savings(members: &mut [LedgerMember], difference: i64, on_busiest: Option<i64>) {
    let times = members.iter().map(|it| (it.cause, it.ns));
    let Some(share) = possible_part(times, difference, on_busiest) else { return };
    for it in members.iter_mut().filter(|it| it.cause.is_gap()) {
        it.max_saving_ns = (it.ns as f64 * share) as i64;
    }
}

/// Part of all gaps that the time of the stage leaves: 0 to 1; `times` are of its causes.
fn possible_part(
    times: impl Iterator<Item = (LedgerCause, i64)>,
    difference: i64,
    on_busiest: Option<i64>,
) -> Option<f64> {
    let (mut all, mut profiler) = (0_i64, 0_i64);
    for (cause, ns) in times {
        match cause {
            LedgerCause::ProfilerOverhead => profiler = profiler.saturating_add(ns),
            cause if cause.is_gap() => all = all.saturating_add(ns),
            _ => {}
        }
    }
    let faster = difference.saturating_add(profiler).min(0);
    let idle = on_busiest.map_or(all, |gaps| gaps.min(all));
    ratio(idle.saturating_add(faster).max(0) as f64, all as f64)
}

impl Ledger {
    /// Upper bound of the time of a cause of gaps, nanoseconds: tracing lengthens gaps, and the
    /// time of the stage limits all of them. `None` if the traced time stands.
    ///
    /// The bound of the saving may be lower: it is of the busiest GPU, and the time is a mean.
    pub fn bound_ns(&self, row: &LedgerRow) -> Option<i64> {
        let stage = self.stages.iter().find(|it| it.stage == row.stage)?;
        let difference = stage.measured_ns.saturating_sub(stage.traced_ns?);
        let times = self.of_stage(&row.stage).map(|it| (it.cause, it.ns));
        let part = possible_part(times, difference, None).filter(|_| row.cause.is_gap())?;
        let ns = (row.ns as f64 * part) as i64;
        (ns < row.ns).then_some(ns)
    }

    /// True if the gaps of the busiest GPU limit the saving of a cause of gaps: its time is a mean
    /// over the GPUs, and the saving is less.
    pub fn is_of_busiest(&self, row: &LedgerRow) -> bool {
        let bound = self.bound_ns(row).unwrap_or(row.ns);
        // Each member's saving is rounded.
        row.cause.is_gap() && row.max_saving_ns.saturating_add_unsigned(row.members) < bound
    }
}

/// Savings of causes on each GPU, nanoseconds of one repeat on that GPU.
///
/// Ranks of a collective operation take as long as the slowest of them:
/// the mean over ranks is not a bound of what removing a cause saves.
#[derive(Debug, Default)]
pub struct GpuSavings(BTreeMap<LedgerCause, BTreeMap<u32, f64>>);

impl GpuSavings {
    /// Adds the gaps of a stage.
    pub fn add_gaps(&mut self, split: &WindowSplit, scale: Fraction) {
        for (gpu, it) in &split.on_gpus {
            for (reason, ns) in &it.gaps {
                let cause = LedgerCause::of_gap(*reason);
                let ns = if cause.is_gap() { *ns as f64 * scale.ratio() } else { 0.0 };
                self.add(cause, (*gpu, ns), split);
            }
        }
    }

    /// Gaps of the GPU that has the fewest, if every instance of the stage has the same several
    /// GPUs: the stage takes at least the busy time of this one.
    pub fn on_busiest(&self, split: &WindowSplit) -> Option<i64> {
        let used = || split.on_gpus.iter().filter(|it| it.1.windows > 0);
        let is_shared = used().count() > 1 && used().all(|it| it.1.windows == split.instances);
        let of_gpu = |gpu: &u32| -> f64 {
            let causes = self.0.iter().filter(|it| it.0.is_gap());
            causes.filter_map(|(_, gpus)| gpus.get(gpu)).sum()
        };
        let fewest = used().map(|it| of_gpu(it.0)).reduce(f64::min)?;
        is_shared.then_some(fewest.round() as i64)
    }

    /// Divides a saving of work among the GPUs of its kernels; copies and whole graphs have no GPU
    /// here.
    pub fn add_member(
        &mut self,
        member: &LedgerMember,
        group: &WorkGroup,
        split: Option<&WindowSplit>,
    ) {
        let Some(split) = split else { return };
        let saving = member.max_saving_ns as f64;
        for (gpu, ns) in &group.on_gpus {
            let part = ratio(*ns as f64, group.ns as f64).unwrap_or(0.0);
            self.add(member.cause, (*gpu, saving * part), split);
        }
        for gpu in split.on_gpus.keys().filter(|_| group.on_gpus.is_empty()) {
            *self.0.entry(member.cause).or_default().entry(*gpu).or_default() += saving;
        }
    }

    /// Adds time of one GPU, given as its part of the mean over all windows, as a mean over its
    /// own windows.
    fn add(&mut self, cause: LedgerCause, (gpu, ns): (u32, f64), split: &WindowSplit) {
        let own = split.on_gpus.get(&gpu).map_or(0, |it| it.windows);
        let each = ratio(ns * split.windows as f64, own as f64).unwrap_or(0.0);
        *self.0.entry(cause).or_default().entry(gpu).or_default() += each;
    }

    /// The GPU with the largest saving of a cause, if it is larger than the mean of all GPUs.
    pub fn above_mean(&self, cause: LedgerCause, mean_ns: i64) -> Option<(u32, i64)> {
        let (gpu, ns) = self.0.get(&cause)?.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
        (*ns > (1.0 + TYPICAL_PART) * mean_ns as f64).then_some((*gpu, ns.round() as i64))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::timeline::gpu::split::{GapReason, WindowsOnGpu};

    /// A stage whose windows on each GPU have this idle time in long calls, and its scale to one.
    fn stalls(on_gpus: &[(u64, i64)]) -> (WindowSplit, Fraction) {
        let windows = on_gpus.iter().map(|it| it.0).sum();
        let on_gpu = |(at, (windows, ns)): (usize, &(u64, i64))| {
            let gaps = [(GapReason::LongCall, *ns), (GapReason::Unknown, 7)].into();
            (at as u32, WindowsOnGpu { windows: *windows, gaps })
        };
        let on_gpus = on_gpus.iter().enumerate().map(on_gpu).collect();
        let split = WindowSplit { windows, on_gpus, ..WindowSplit::default() };
        (split, Fraction::new(1, windows))
    }

    fn largest(on_gpus: &[(u64, i64)]) -> Option<(u32, i64)> {
        let (split, scale) = stalls(on_gpus);
        let mut savings = GpuSavings::default();
        savings.add_gaps(&split, scale);
        assert_eq!(savings.above_mean(LedgerCause::GapUnknown, 0), None, "no saving");
        let all: i64 = on_gpus.iter().map(|it| it.1).sum();
        savings.above_mean(LedgerCause::GapLongCall, scale.of(all))
    }

    #[test]
    fn a_stall_of_one_rank_saves_its_whole_time_on_that_rank() {
        let ms = 1_000_000;
        assert_eq!(largest(&[(20, 0), (20, 60 * ms)]), Some((1, 3 * ms)));
        assert_eq!(largest(&[(20, 60 * ms), (10, 30 * ms)]), None, "3 ms on both");
        assert_eq!(largest(&[(20, 60 * ms)]), None, "one GPU");
    }

    proptest! {
        #[test]
        fn the_saving_on_a_rank_is_the_largest_of_all_ranks(
            stalls in prop::collection::vec((1u64..50, 0i64..1_000_000_000), 1..8),
        ) {
            let of_rank = |it: &(u64, i64)| it.1 as f64 / it.0 as f64;
            let most = stalls.iter().map(of_rank).fold(0.0, f64::max);
            let windows: u64 = stalls.iter().map(|it| it.0).sum();
            let mean = stalls.iter().map(|it| it.1).sum::<i64>() as f64 / windows as f64;
            match largest(&stalls) {
                Some((rank, ns)) => {
                    prop_assert!((ns as f64 - most).abs() <= 1.0, "{ns} {most}");
                    prop_assert!((of_rank(&stalls[rank as usize]) - most).abs() <= 1.0);
                }
                None => prop_assert!(most <= (1.0 + TYPICAL_PART) * mean + 1.0, "{most} {mean}"),
            }
        }
    }
}
