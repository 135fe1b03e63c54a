//! Steps of processes that differ: a median of two ranks of different speed is of neither.

use std::collections::BTreeMap;

use crate::{
    stages::step_times::{LEAST_MEDIAN, TYPICAL_PART},
    timeline::engine_steps::EngineStepRecord,
};

/// Steps of one batch, by process if the processes differ in the time of a step or in the time from
/// one step to the next; each with the number of processes. `windows` has the process of each
/// window.
pub fn by_process<'a>(
    steps: Vec<&'a EngineStepRecord>,
    windows: &BTreeMap<u32, u32>,
) -> Vec<(Option<u32>, u64, Vec<&'a EngineStepRecord>)> {
    let mut processes: BTreeMap<u32, Vec<&EngineStepRecord>> = BTreeMap::new();
    for it in &steps {
        let process = windows.get(&it.process).copied().unwrap_or(it.process);
        processes.entry(process).or_default().push(it);
    }
    let times: [fn(&EngineStepRecord) -> Option<f64>; 2] =
        [|it| Some(it.step_ms), |it| it.period_ms];
    match times.into_iter().any(|of| do_differ(&processes, of)) {
        true => processes.into_iter().map(|(process, steps)| (Some(process), 1, steps)).collect(),
        false => vec![(None, processes.len() as u64, steps)],
    }
}

/// True if one process takes longer than another: its lower quartile is above the other's upper
/// quartile by more than a median may differ from its mean.
fn do_differ(
    processes: &BTreeMap<u32, Vec<&EngineStepRecord>>,
    of: impl Fn(&EngineStepRecord) -> Option<f64>,
) -> bool {
    let quartiles = |steps: &Vec<&EngineStepRecord>| {
        let mut times: Vec<f64> = steps.iter().filter_map(|it| of(it)).collect();
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get(times.len() * part / 4).copied();
        at(1).zip(at(3)).filter(|_| times.len() >= LEAST_MEDIAN)
    };
    let all: Vec<(f64, f64)> = processes.values().filter_map(quartiles).collect();
    let slowest = all.iter().map(|it| it.0).reduce(f64::max);
    let fastest = all.iter().map(|it| it.1).reduce(f64::min);
    slowest.zip(fastest).is_some_and(|(slow, fast)| slow > (1.0 + TYPICAL_PART) * fast)
}
