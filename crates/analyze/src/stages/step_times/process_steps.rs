//! Steps of one stage by process, if the processes differ: no median stands for all of them.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::median::has_two_halves,
    trace::timeline::{Timeline, pid_of},
};
use serde::{Deserialize, Serialize};

use super::MeasuredStep;
use crate::step_batches::{process_and_rank, process_name};

/// The steps of one of several processes that differ.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessSteps {
    #[cfg_attr(feature = "schema", schema(example = 4711))]
    pub process: u32,
    /// Its rank; `null` if it is not recorded.
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub rank: Option<u32>,
    pub steps: u64,
    /// The median of its steps, milliseconds; of two their mean, of one its time.
    #[cfg_attr(feature = "schema", schema(example = 10.6))]
    pub p50_ms: f64,
    /// True if the two in the middle of an even number of its steps differ by more than 5 %:
    /// `p50_ms` is called the lower median.
    #[serde(default)]
    pub has_two_halves: bool,
    /// Steps that take more than twice that.
    pub outliers: u64,
}

impl ProcessSteps {
    /// The process by its rank, or by its number.
    pub fn name(&self) -> String {
        process_name(self.process, self.rank)
    }

    /// The name of `p50_ms`.
    pub fn median_word(&self) -> &'static str {
        let words = words_of_slowest(self.steps, self.has_two_halves);
        words.trim_start_matches("the slowest process's ")
    }
}

/// The words for the figure of the slowest process, of so many steps.
pub const fn words_of_slowest(steps: u64, has_two_halves: bool) -> &'static str {
    match (steps, has_two_halves) {
        (1, _) => "the slowest process's time",
        (2, _) => "the slowest process's mean",
        (_, true) => "the slowest process's lower median",
        (_, false) => "the slowest process's median",
    }
}

/// The processes of steps that have the medians of their processes, slowest first. A process
/// without a median is left out if another has one.
pub fn by_process(steps: &[MeasuredStep], trace: Option<&Timeline>) -> Vec<ProcessSteps> {
    let mut processes: BTreeMap<i64, (ProcessSteps, Vec<f64>)> = BTreeMap::new();
    let has_median = steps.iter().any(|it| it.has_median);
    for it in steps.iter().filter(|it| it.has_median == has_median) {
        let (of_process, times) = processes.entry(it.owner(trace)).or_default();
        of_process.p50_ms = it.p50_ms;
        of_process.steps += 1;
        of_process.outliers += u64::from(it.is_outlier());
        times.push(it.ms);
    }
    let named = |(owner, (it, times)): (i64, (ProcessSteps, Vec<f64>))| {
        let known = trace.map(|trace| process_and_rank(owner, &trace.collectives));
        let (process, rank) = known.unwrap_or((pid_of(owner), None));
        ProcessSteps { process, rank, has_two_halves: has_two_halves(times), ..it }
    };
    let mut all: Vec<ProcessSteps> = processes.into_iter().map(named).collect();
    all.sort_by(|a, b| b.p50_ms.total_cmp(&a.p50_ms));
    all
}
