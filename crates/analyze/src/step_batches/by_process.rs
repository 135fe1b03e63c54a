//! Steps of processes that differ: a median of two ranks of different speed is of neither.

use std::collections::BTreeMap;

use llmprof_core::trace::{collectives::Collectives, timeline::pid_of};

use crate::{
    stages::step_times::{LEAST_MEDIAN, TYPICAL_PART},
    timeline::engine_steps::EngineStepRecord,
};

/// Standard deviations of a rank sum that equal processes rarely exceed: 0.3 % of pairs do.
const RARE_DEVIATIONS: f64 = 3.0;

/// Steps of one batch, by process if the processes differ in the time of a step or in the time from
/// one step to the next; each with the number of processes.
pub fn by_process(
    steps: Vec<&EngineStepRecord>,
) -> Vec<(Option<u32>, u64, Vec<&EngineStepRecord>)> {
    let mut processes: BTreeMap<u32, Vec<&EngineStepRecord>> = BTreeMap::new();
    for it in &steps {
        processes.entry(it.process).or_default().push(it);
    }
    let times: [fn(&EngineStepRecord) -> Option<f64>; 2] =
        [|it| Some(it.step_ms), |it| it.period_ms];
    let is_apart = |of: fn(&EngineStepRecord) -> Option<f64>| {
        let times = |steps: &Vec<&EngineStepRecord>| -> Vec<f64> {
            steps.iter().filter_map(|it| of(it)).collect()
        };
        do_differ(processes.values().map(times))
    };
    match times.into_iter().any(is_apart) {
        true => processes.into_iter().map(|(process, steps)| (Some(process), 1, steps)).collect(),
        false => vec![(None, processes.len() as u64, steps)],
    }
}

/// The name of a process in a sentence: its rank, or its number.
pub fn process_name(process: u32, rank: Option<u32>) -> String {
    rank.map_or_else(|| format!("process {process}"), |rank| format!("rank {rank}"))
}

/// The number and the rank of a process of a timeline, which is one for all of its recording
/// windows.
pub fn process_and_rank(global_id: i64, ranks: &Collectives) -> (u32, Option<u32>) {
    let owner = ranks.owner(global_id);
    (pid_of(owner), ranks.processes.get(&owner).and_then(|it| it.rank))
}

/// True if one process takes longer than another. The one rule for all steps; a process with fewer
/// than three times is not compared.
pub fn do_differ(processes: impl IntoIterator<Item = Vec<f64>>) -> bool {
    let sorted = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        Some(times).filter(|it| it.len() >= LEAST_MEDIAN)
    };
    let all: Vec<Vec<f64>> = processes.into_iter().filter_map(sorted).collect();
    all.iter().any(|slow| all.iter().any(|fast| is_slower(slow, fast)))
}

/// True if each quartile of the sorted times `slow` is above the same quartile of `fast` by more
/// than a median may differ from its mean, and equal processes rarely differ so: the lower quartile
/// is above the upper one by as much, or the sum of ranks is far from its mean. Steps of several
/// lengths overlap, so that the first of these does not see all differences.
fn is_slower(slow: &[f64], fast: &[f64]) -> bool {
    let quartile = |times: &[f64], part: usize| times[times.len() * part / 4];
    let exceeds = |of_slow: usize, of_fast: usize| {
        quartile(slow, of_slow) > (1.0 + TYPICAL_PART) * quartile(fast, of_fast)
    };
    (1..=3).all(|part| exceeds(part, part))
        && (exceeds(1, 3) || rank_deviations(slow, fast) >= RARE_DEVIATIONS)
}

/// Deviation of the rank sum of the sorted times `slow` among the times `fast` from its mean in
/// equal processes, in standard deviations (the test of Mann and Whitney).
fn rank_deviations(slow: &[f64], fast: &[f64]) -> f64 {
    let shorter = |ms: &f64| {
        let (less, at_most) =
            (fast.partition_point(|it| it < ms), fast.partition_point(|it| it <= ms));
        (less + at_most) as f64 / 2.0
    };
    let pairs: f64 = slow.iter().map(shorter).sum();
    let (m, n) = (slow.len() as f64, fast.len() as f64);
    (pairs - m * n / 2.0) / (m * n * (m + n + 1.0) / 12.0).sqrt()
}
