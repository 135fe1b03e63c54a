//! Rules on the host: other work during the unprofiled pass.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::Trace,
};

use super::Rule;
use crate::Analysis;

pub const RULES: &[Rule] = &[Rule { id: catalogue::HOST_BUSY, find: host_busy }];

fn host_busy(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(load) = &trace.environment.load else { return vec![] };
    let Some(waited) = load.cpu_wait_pct else { return vec![] };
    if load.busy_pct == 0 || waited < f64::from(load.busy_pct) {
        return vec![];
    }
    let message = format!(
        "The host was busy: tasks waited for a CPU during {waited:.1} % of the unprofiled pass."
    );
    let average = [load.load_start, load.load_end].map(|it| it.map(|it| format!("{it:.2}")));
    let mut found = Finding::new(catalogue::HOST_BUSY, message)
        .with("time with waiting tasks, %", format!("{waited:.1}"))
        .with("threshold, %", load.busy_pct)
        .with("source", load.source.as_str());
    for (name, average) in
        ["load average at the start", "load average at the end"].into_iter().zip(average)
    {
        found = average.into_iter().fold(found, |found, average| found.with(name, average));
    }
    vec![found]
}
