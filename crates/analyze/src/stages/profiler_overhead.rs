//! The profiler's own work inside stages, if it is recorded: it delays the program, so not all gaps
//! of these stages are the program's own.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::{
        digits::figure,
        finding::{Finding, catalogue},
        units::Nanos,
    },
    trace::timeline::{Timeline, process_of},
};

use crate::{
    kernels::is_measured,
    stages::in_sentence,
    stats::percent,
    timeline::{capture::Capture, interval::IntervalSet, open_ranges::StageInstance},
};

/// Share of a stage from which the profiler's own work is a finding, percent.
const NOTABLE_PCT: f64 = 1.0;

/// Times of the profiler's own work, by process.
fn overheads(trace: &Timeline) -> BTreeMap<i64, IntervalSet> {
    let all = &trace.framework.overheads;
    let processes: BTreeSet<i64> = all.iter().map(|it| it.0).collect();
    let of = |process: i64| all.iter().filter(move |it| it.0 == process).map(|it| (it.1, it.2));
    processes.into_iter().map(|it| (it, IntervalSet::new(of(it)))).collect()
}

/// The profiler's own work in each stage instance, nanoseconds.
pub fn overheads_in(capture: &Capture) -> Vec<i64> {
    let overheads = overheads(capture.trace);
    let own = |it: &StageInstance| {
        let own = overheads.get(&process_of(it.place));
        own.map_or(0, |own| own.overlap_ns(it.start_ns, it.end_ns))
    };
    capture.stages.instances.iter().map(own).collect()
}

/// Findings on stages during which the profiler worked.
pub fn findings(capture: &Capture) -> Vec<Finding> {
    let own = overheads_in(capture);
    let mut found = Vec::new();
    for (label, stage) in capture.stages.labels.iter().enumerate() {
        let instances = capture.stages.instances.iter().zip(&own);
        let instances = instances.filter(|it| it.0.label == label && is_measured(stage));
        let (mut inside, mut all) = (0_i64, 0_i64);
        for (it, ns) in instances {
            inside = inside.saturating_add(*ns);
            all = all.saturating_add(it.end_ns - it.start_ns);
        }
        let Some(pct) = percent(inside as f64, all as f64).filter(|pct| *pct >= NOTABLE_PCT) else {
            continue;
        };
        let ms = Nanos(inside).as_ms();
        let message = format!(
            "The profiler's own work took {} ms during {stage}, {pct:.0} % of it: its gaps are \
             longer than without the profiler.",
            figure(ms),
            stage = in_sentence(stage)
        );
        found.push(
            Finding::new(catalogue::PROFILER_OVERHEAD, message)
                .with("stage", stage)
                .with("ms", format!("{ms:.3}"))
                .advise(
                    "Record after warm-up steps of the profiler (schedule with warmup), and time \
                     the stage without it.",
                ),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    #[test]
    fn work_of_the_profiler_is_a_finding_of_the_stages_that_it_delays() {
        let mut trace = capture("range 1 prefill 0..1000\nrange 1 decode_all 2000..12000");
        // 300 ns of the first lie inside prefill; the last takes less than 1 % of decode_all.
        let of = |(start, end)| (process_of(trace.ranges[0].global_tid), start, end);
        trace.framework.overheads = [(700, 1500), (900, 1000), (3000, 3050)].map(of).to_vec();
        let found = findings(&Capture::of(&trace));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("during prefill, 30 % of it"), "{}", found[0].message);
        // The profiler of another process delays only that process.
        trace.framework.overheads.iter_mut().for_each(|it| it.0 += 1 << 24);
        assert_eq!(findings(&Capture::of(&trace)), []);
    }
}
