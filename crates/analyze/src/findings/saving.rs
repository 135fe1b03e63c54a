//! Upper bounds of savings, and the figures of the traced GPU that they and several rules use.

use llmprof_core::domain::{
    finding::{Finding, Saving},
    units::Nanos,
};

use crate::{
    Analysis, collectives,
    ledger::LedgerCause,
    stages::{DECODE, Stages, step_times::StepTimes},
    stats::{percent, ratio},
    timeline::gpu::StageGpu,
};

/// Min share of its stage, percent, that an advice can save: a rule whose advice saves less states
/// nothing.
pub const MIN_SAVING_PCT: f64 = 3.0;

/// Outlier steps are few up to this part of all steps.
const FEW_STEPS_PART: f64 = 0.25;

/// False for a finding whose advice saves too little of its stage.
pub fn is_worth(finding: &Finding) -> bool {
    finding.max_saving.as_ref().is_none_or(|it| it.pct >= MIN_SAVING_PCT)
}

/// A saving of `ms` in one repeat of a stage, limited to the stage's time without a named wait;
/// `None` for a stage without a positive time. Every saving of a rule is made here.
pub fn stage_saving(analysis: &Analysis, stage: &str, ms: f64) -> Option<Saving> {
    // Ranges in the events of a run may end before they start.
    let mean = Some(analysis.stages.row(stage)?.ms.mean).filter(|mean| *mean > 0.0)?;
    let own = mean * analysis.ledger.own_part(stage);
    let ms = ms.clamp(0.0, own);
    Some(Saving { stage: stage.into(), ms: Some(ms), pct: percent(ms, own)? })
}

/// A saving of the device time of kernels in one repeat of the traced pass, limited to the time in
/// which no other kernel ran.
pub fn kernel_saving(
    analysis: &Analysis,
    stage: &str,
    kernels: &[&str],
    total_ms: f64,
) -> Option<Saving> {
    let busy =
        analysis.kernels.stages.iter().find(|it| it.stage == stage).and_then(|it| it.busy_ms)?;
    let others = analysis
        .alone
        .iter()
        .filter(|((of, name), _)| of == stage && !kernels.contains(&name.as_str()));
    let own = total_ms.min(busy - others.map(|(_, ms)| ms).sum::<f64>());
    stage_saving(analysis, stage, own / traced_repeats(analysis, stage)?)
}

/// The GPU in one repeat of a stage of the traced pass, milliseconds; the mean over several GPUs.
struct TracedGpu {
    /// Divisor of sums over all GPUs and instances.
    repeats: f64,
    instances: f64,
    window_ms: f64,
    busy_ms: f64,
    /// Recorded kernels of all repeats.
    kernels: u64,
    graph_launches: u64,
}

/// Number of decodes if only some are whole: a cut decode counts as its part of the steps.
fn whole_and_parts(stages: &Stages, stage: &str) -> Option<f64> {
    let has_parts = stage == DECODE && stages.cut_steps > 0;
    let (row, steps) = stages.row(stage).filter(|_| has_parts).zip(stages.decode_steps)?;
    Some(f64::from(row.ms.n) + ratio(stages.cut_steps as f64, steps as f64)?)
}

/// The row of all GPUs of a stage in the traced pass.
fn all_gpus<'a>(analysis: &'a Analysis, stage: &str) -> Option<&'a StageGpu> {
    let totals = &analysis.stage_gpu.totals;
    totals.iter().find(|it| it.stage == stage && it.instances > 0 && it.devices > 0)
}

/// The busiest GPU of a stage whose every instance has the same several GPUs: the stage takes at
/// least the busy time of this one. `None` if instances have a GPU each, and for a stage with
/// collective operations.
fn busiest_gpu<'a>(analysis: &'a Analysis, all: &StageGpu) -> Option<&'a StageGpu> {
    let gpus = || analysis.stage_gpu.devices.iter().filter(|it| it.stage == all.stage);
    let is_shared = gpus().count() > 1 && gpus().all(|it| it.instances == all.instances);
    let has_collectives = collectives::are_in_stage(&analysis.collectives.waits, &all.stage);
    let busy = |it: &&StageGpu| it.busy_ms.unwrap_or(0.0);
    gpus().filter(|_| is_shared && !has_collectives).max_by(|a, b| busy(a).total_cmp(&busy(b)))
}

/// The traced pass's record of the GPU in a stage; `None` if it recorded no GPU work.
fn traced_gpu(analysis: &Analysis, stage: &str) -> Option<TracedGpu> {
    traced_row(analysis, all_gpus(analysis, stage)?)
}

/// The figures of one GPU, or of the mean over all GPUs, of a row.
fn traced_row(analysis: &Analysis, it: &StageGpu) -> Option<TracedGpu> {
    let (stage, all) = (it.stage.as_str(), it.instances as f64);
    let with_parts = whole_and_parts(&analysis.stages, stage);
    let steps = analysis.stages.steps_as_repeats(stage).map(|steps| steps as f64);
    let each = steps.or(with_parts).map_or(1.0, |repeats| repeats / all);
    let repeats = it.repeats.filter(|repeats| *repeats > 0.0)? * each;
    Some(TracedGpu {
        repeats,
        instances: with_parts.unwrap_or(all),
        window_ms: it.window_ms? / repeats,
        busy_ms: it.busy_ms.filter(|ms| *ms > 0.0)? / repeats,
        kernels: it.launches,
        graph_launches: it.graph_launches.unwrap_or(0),
    })
}

/// Divisor of times that are sums over all GPUs and instances of a stage in the traced pass, which
/// gives the times of one repeat on one GPU.
pub fn traced_repeats(analysis: &Analysis, stage: &str) -> Option<f64> {
    traced_gpu(analysis, stage).map(|it| it.repeats)
}

/// Time of a stage in which the GPU is idle: the mean over GPUs, or the busiest GPU of instances
/// that use several.
pub struct Gaps {
    /// The busiest GPU, if the others are idle longer.
    pub busiest: Option<u32>,
    /// Idle share of the traced stage, percent. The profiler's own work, unrecorded waits, long
    /// calls of the host and gaps of few outlier steps (the longest that are listed) are subtracted
    /// from idle time and stage time.
    pub traced_pct: f64,
    /// Share of the unprofiled stage, percent, assuming kernels of the same length; `None` without
    /// an unprofiled pass.
    pub unprofiled_pct: Option<f64>,
    /// Milliseconds in one repeat, of the pass that has fewer.
    pub ms: f64,
    /// Idle time of the traced stage in which the host had not called the launch.
    pub host_ms: f64,
    /// Idle time of the traced stage in which the profiler worked, which is not counted.
    pub profiler_ms: f64,
    /// The same of unrecorded waits and long calls of the host.
    pub once_ms: f64,
    /// The same of other gaps in outlier steps, if these are few.
    pub outlier_ms: f64,
    /// Launches of single kernels in one repeat.
    pub launches: f64,
    pub graph_launches: u64,
    /// Kernels of all repeats, and how many of them graphs replayed.
    pub kernels: u64,
    pub replayed: u64,
}

/// Idle time of a cause on one of several GPUs with the same instances, as a multiple of the mean
/// over them: a call may stall all GPUs or one.
fn times_mean(analysis: &Analysis, gpu: &StageGpu, cause: LedgerCause) -> f64 {
    let ns = |it: &StageGpu| {
        let of_cause = it.idle_ns.iter().filter(|it| LedgerCause::of_gap(*it.0) == cause);
        of_cause.map(|it| *it.1 as f64).sum::<f64>()
    };
    let gpus = || analysis.stage_gpu.devices.iter().filter(|it| it.stage == gpu.stage);
    let sum: f64 = gpus().map(ns).sum();
    ratio(ns(gpu) * gpus().count() as f64, sum).unwrap_or(1.0)
}

/// Idle time of a cause in the listed outlier steps of a stage, milliseconds in one repeat; 0 if
/// outliers are not few, or if their causes are unknown.
fn outlier_ms(analysis: &Analysis, stage: &str, cause: LedgerCause) -> f64 {
    let instances = analysis.ledger.stages.iter().find(|it| it.stage == stage);
    let instances = instances.and_then(|it| it.instances);
    let steps = analysis.step_times.iter().find(|it| it.stage == stage);
    let are_few = |it: &&StepTimes| it.outliers as f64 <= FEW_STEPS_PART * f64::from(it.ms.n);
    let steps = steps.filter(are_few).map_or(&[][..], |it| &it.longest);
    let idle = steps.iter().flat_map(|it| &it.idle).filter(|it| it.cause == cause);
    let sum = idle.map(|it| it.ms).sum::<f64>();
    instances.and_then(|instances| ratio(sum, instances as f64)).unwrap_or(0.0)
}

pub fn gaps(analysis: &Analysis, stage: &str) -> Option<Gaps> {
    let all = all_gpus(analysis, stage)?;
    let mean = traced_row(analysis, all)?;
    let busiest = busiest_gpu(analysis, all);
    let gpu = traced_row(analysis, busiest.unwrap_or(all))?;
    let replayed = analysis.stage_calls.get(stage).map_or(0, |it| it.replayed_kernels);
    let unprofiled =
        analysis.stages.row(stage).filter(|_| !analysis.only_traced).map(|row| row.ms.mean);
    // The rows of causes are means over the GPUs.
    let ms_of = |cause: LedgerCause| {
        let row = analysis.ledger.of_stage(stage).find(|row| row.cause == cause);
        let part = busiest.map_or(1.0, |gpu| times_mean(analysis, gpu, cause));
        row.map_or(0.0, |row| part * Nanos(row.ns).as_ms())
    };
    let profiler_ms = ms_of(LedgerCause::ProfilerOverhead);
    let once_ms = ms_of(LedgerCause::UnrecordedWait) + ms_of(LedgerCause::GapLongCall);
    // A step has the idle time of the GPU that idles longest.
    let in_outliers = |cause: LedgerCause| outlier_ms(analysis, stage, cause).min(ms_of(cause));
    let causes = LedgerCause::ALL.iter().copied();
    let each_step = causes.filter(|it| it.is_gap() && *it != LedgerCause::GapLongCall);
    let outlier_ms: f64 = each_step.map(in_outliers).sum();
    let traced_ms = gpu.window_ms - profiler_ms - once_ms - outlier_ms;
    let gap = |stage_ms: f64| (stage_ms - gpu.busy_ms).max(0.0);
    Some(Gaps {
        busiest: busiest.and_then(|it| it.device),
        traced_pct: percent(gap(traced_ms), traced_ms)?,
        unprofiled_pct: unprofiled.and_then(|mean| percent(gap(mean), mean)),
        ms: gap(unprofiled.unwrap_or(traced_ms).min(traced_ms)),
        host_ms: ms_of(LedgerCause::GapHost) - in_outliers(LedgerCause::GapHost),
        profiler_ms,
        once_ms,
        outlier_ms,
        launches: mean.kernels.saturating_sub(replayed) as f64 / mean.instances,
        graph_launches: mean.graph_launches,
        kernels: mean.kernels,
        replayed,
    })
}

/// Returns whether decode replays a CUDA graph, by the runner's events or the capture's calls.
pub fn replays_graph(analysis: &Analysis) -> bool {
    let launched = analysis
        .stage_gpu
        .totals
        .iter()
        .any(|it| it.stage == DECODE && it.graph_launches.is_some_and(|it| it > 0));
    let replayed = analysis.stage_calls.get(DECODE).is_some_and(|it| it.replayed_kernels > 0);
    launched || replayed || analysis.start.as_ref().is_some_and(|start| start.decode_graph)
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{Trace, timeline::process_of};

    use super::*;
    use crate::{analyze, kernels::tests::capture};

    /// Two instances of decode on these threads and GPUs; each step of 10 has a kernel of 1 ms in
    /// 10 ms.
    fn decode(threads: [i64; 2], devices: [u32; 2], starts: [i64; 2]) -> Analysis {
        let (mut lines, mut kernels) = (Vec::new(), Vec::new());
        for ((thread, device), start) in threads.into_iter().zip(devices).zip(starts) {
            lines.push(format!("range {thread} decode_all {start}..{}", start + 100_000_000));
            for step in 0..10 {
                let (id, t) = (lines.len(), start + step * 10_000_000);
                lines.push(format!("range {thread} decode_step {t}..{}", t + 10_000_000));
                lines.push(format!("call {thread} {id} {}..{}", t + 1_000, t + 2_000));
                let (from, to) = (t + 3_000, t + 1_003_000);
                kernels.push((t, device, thread, format!("kernel {id} k {from}..{to} {device}")));
            }
        }
        kernels.sort();
        lines.extend(kernels.iter().map(|it| it.3.clone()));
        let mut nsys = capture(&lines.join("\n"));
        nsys.kernels = nsys.kernels.map(|at, it| {
            it.device = kernels[at].1;
            it.global_pid |= process_of(kernels[at].2);
        });
        analyze(&Trace { timeline: Some(nsys), ..Trace::default() }, None, None)
    }

    #[test]
    fn a_stage_without_a_positive_time_has_no_saving() {
        let mut analysis = decode([1, 1], [0, 0], [0, 200_000_000]);
        assert!(stage_saving(&analysis, DECODE, 1.0).is_some());
        for mean in [0.0, -0.0, -1.0, f64::MIN, f64::NAN] {
            let row = analysis.stages.rows.iter_mut().find(|it| it.stage == DECODE).unwrap();
            row.ms.mean = mean;
            assert_eq!(stage_saving(&analysis, DECODE, 1.0), None, "{mean}");
        }
    }

    #[test]
    fn a_decode_that_is_not_whole_counts_by_its_part_of_the_steps() {
        let mut analysis = decode([1, 1], [0, 0], [0, 200_000_000]);
        assert_eq!(traced_repeats(&analysis, DECODE), Some(2.0));
        analysis.stages.cut_steps = 5;
        analysis.stages.rows.iter_mut().for_each(|it| it.ms.n = 1);
        assert_eq!(traced_repeats(&analysis, DECODE), Some(1.5));
    }

    #[test]
    fn idle_time_of_instances_on_several_gpus_is_that_of_the_busiest() {
        // Two decodes of ten steps of 10 ms by one thread; each step works on these GPUs in turn.
        let of = |busy_ms: [i64; 2]| {
            let (mut lines, mut devices) = (Vec::new(), Vec::new());
            for at in 0..20 {
                let start = at * 10_000_000;
                if at % 10 == 0 {
                    lines.push(format!("range 1 decode_all {start}..{}", start + 100_000_000));
                }
                lines.push(format!("range 1 decode_step {start}..{}", start + 10_000_000));
                let mut from = start + 10_000;
                for (device, ms) in busy_ms.into_iter().enumerate().filter(|it| it.1 > 0) {
                    let (id, to) = (devices.len() + 1, from + ms * 1_000_000);
                    lines.push(format!("call 1 {id} {}..{}", from - 2_000, from - 1_000));
                    lines.push(format!("kernel {id} k {from}..{to} 7"));
                    devices.push(device as u32);
                    from = to + 10_000;
                }
            }
            let mut nsys = capture(&lines.join("\n"));
            nsys.kernels = nsys.kernels.map(|at, it| it.device = devices[at]);
            let analysis = analyze(&Trace { timeline: Some(nsys), ..Trace::default() }, None, None);
            let found = gaps(&analysis, DECODE).unwrap();
            let rows = analysis.ledger.of_stage(DECODE).filter(|it| it.cause.is_gap());
            let ledger = rows.map(|it| it.max_saving_ns).sum::<i64>() as f64 / 1e6;
            (found.busiest, found.ms, found.traced_pct, ledger)
        };
        for (busy_ms, busiest, idle_ms) in [
            ([8, 1], Some(0), 20.0),
            ([1, 8], Some(1), 20.0),
            ([5, 4], Some(0), 50.0),
            ([8, 0], None, 20.0),
        ] {
            let (gpu, ms, pct, ledger) = of(busy_ms);
            assert_eq!(gpu, busiest, "{busy_ms:?}");
            assert!((ms - idle_ms).abs() < 1.1, "{busy_ms:?}: {ms}");
            assert!((pct - idle_ms).abs() < 1.1, "{busy_ms:?}: {pct}");
            assert!((ms - ledger).abs() < 1e-3, "{busy_ms:?}: {ms} {ledger}");
        }
    }

    #[test]
    fn a_long_call_is_subtracted_from_the_idle_time_of_each_gpu_that_it_stalls() {
        // Microseconds in each of ten steps of 10 ms: the call, and a kernel of each GPU.
        for (call, of_gpus, long_ms, idle_ms) in [
            ((0, 8_000), [(8_010, 9_990), (8_020, 8_120)], 80.0, 0.0),
            ((0, 8_000), [(8_010, 9_990), (8_020, 9_980)], 80.0, 0.0),
            // The call stalls only GPU 1.
            ((1_000, 9_000), [(10, 6_000), (9_010, 9_900)], 0.0, 40.0),
        ] {
            let mut lines = Vec::new();
            for step in 0..20 {
                let at = |us: i64| (step * 10_000 + us) * 1_000;
                if step % 10 == 0 {
                    lines.push(format!("range 1 decode_all {}..{}", at(0), at(100_000)));
                }
                lines.push(format!("range 1 decode_step {}..{}", at(0), at(10_000)));
                lines.push(format!("range 1 tune {}..{}", at(call.0), at(call.1)));
                for (gpu, (from, to)) in (1..).zip(of_gpus) {
                    let id = 2 * step + gpu;
                    lines.push(format!("call 1 {id} {}..{}", at(from - 4), at(from - 3)));
                    lines.push(format!("kernel {id} k {}..{} 7", at(from), at(to)));
                }
            }
            let mut nsys = capture(&lines.join("\n"));
            nsys.kernels = nsys.kernels.map(|at, it| it.device = at as u32 % 2);
            let analysis = analyze(&Trace { timeline: Some(nsys), ..Trace::default() }, None, None);
            let found = gaps(&analysis, DECODE).unwrap();
            assert_eq!(found.busiest, Some(0), "{of_gpus:?}");
            assert!((found.once_ms - long_ms).abs() < 1.1, "{of_gpus:?}: {}", found.once_ms);
            assert!((found.ms - idle_ms).abs() < 1.1, "{of_gpus:?}: {}", found.ms);
            let is_bound = analysis.findings.iter().any(|it| it.id == "decode_launch_bound");
            assert_eq!(is_bound, idle_ms > 0.0, "{of_gpus:?}: {}", found.traced_pct);
        }
    }

    #[test]
    fn idle_time_is_that_of_one_instance_on_any_number_of_processes_and_gpus() {
        let other = 1 << 40;
        for (threads, devices, starts) in [
            ([1, 1], [0, 0], [0, 200_000_000]),
            ([1, other], [0, 1], [0, 0]),
            ([1, other], [0, 1], [0, 30_000_000]),
            ([1, other], [0, 0], [0, 0]),
        ] {
            let analysis = decode(threads, devices, starts);
            let ms = gaps(&analysis, DECODE).unwrap().ms;
            assert!((ms - 90.0).abs() < 1.1, "{threads:?} {devices:?} {starts:?}: {ms}");
            let rows = analysis.ledger.of_stage(DECODE).filter(|it| it.cause.is_gap());
            let ledger: i64 = rows.map(|it| it.max_saving_ns).sum();
            assert!((ms - ledger as f64 / 1e6).abs() < 1e-3, "{ms} {ledger}");
        }
    }
}
