//! Steps of one stage by process, if the processes differ: no median stands for all of them.

use std::collections::BTreeMap;

use llmprof_core::trace::timeline::{Timeline, pid_of};
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
    /// The median of its steps, milliseconds.
    #[cfg_attr(feature = "schema", schema(example = 10.6))]
    pub p50_ms: f64,
    /// Steps that take more than twice that.
    pub outliers: u64,
}

impl ProcessSteps {
    /// The process by its rank, or by its number.
    pub fn name(&self) -> String {
        process_name(self.process, self.rank)
    }
}

/// The processes of steps that have the medians of their processes, slowest first; none of a
/// process without a median.
pub fn by_process(steps: &[MeasuredStep], trace: Option<&Timeline>) -> Vec<ProcessSteps> {
    let mut processes: BTreeMap<i64, ProcessSteps> = BTreeMap::new();
    for it in steps.iter().filter(|it| it.has_median) {
        let of_process = processes.entry(it.owner(trace)).or_default();
        of_process.p50_ms = it.p50_ms;
        of_process.steps += 1;
        of_process.outliers += u64::from(it.is_outlier());
    }
    let named = |(owner, it): (i64, ProcessSteps)| {
        let known = trace.map(|trace| process_and_rank(owner, &trace.collectives));
        let (process, rank) = known.unwrap_or((pid_of(owner), None));
        ProcessSteps { process, rank, ..it }
    };
    let mut all: Vec<ProcessSteps> = processes.into_iter().map(named).collect();
    all.sort_by(|a, b| b.p50_ms.total_cmp(&a.p50_ms));
    all
}
