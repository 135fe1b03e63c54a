//! Steps of processes that differ: a median of two ranks of different speed is of neither.

use std::collections::BTreeMap;

use llmprof_core::trace::{collectives::Collectives, timeline::pid_of};

use crate::{
    stages::step_times::{LEAST_MEDIAN, TYPICAL_PART},
    timeline::engine_steps::EngineStepRecord,
};

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

/// True if one process takes longer than another: the lower quartile of its times is above the
/// other's upper quartile by more than a median may differ from its mean. The one rule for all
/// steps; a process with fewer than three times is not compared.
pub fn do_differ(processes: impl IntoIterator<Item = Vec<f64>>) -> bool {
    let quartiles = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get(times.len() * part / 4).copied();
        at(1).zip(at(3)).filter(|_| times.len() >= LEAST_MEDIAN)
    };
    let all: Vec<(f64, f64)> = processes.into_iter().filter_map(quartiles).collect();
    let slowest = all.iter().map(|it| it.0).reduce(f64::max);
    let fastest = all.iter().map(|it| it.1).reduce(f64::min);
    slowest.zip(fastest).is_some_and(|(slow, fast)| slow > (1.0 + TYPICAL_PART) * fast)
}
