//! The rule on work whose time is not valid.

use llmprof_core::{
    domain::{
        digits::{self, figure},
        finding::{Finding, Severity, catalogue},
        units::Nanos,
    },
    trace::{
        Trace,
        timeline::Timeline,
        untimed::{FaultCount, TimeFault},
    },
};

use super::Rule;
use crate::{
    Analysis, stages::coverage::StageCoverage, stats::percent, timeline::withheld::WithheldReason,
};

/// Min time by which a bound is exceeded that is shown: less is 0.000 ms.
const MIN_SHOWN_NS: i64 = 500;

pub const RULES: &[Rule] = &[Rule { id: catalogue::WORK_UNTIMED, find: untimed }];

fn untimed(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    trace.timeline.as_ref().and_then(|it| finding(analysis, it)).into_iter().collect()
}

fn finding(analysis: &Analysis, trace: &Timeline) -> Option<Finding> {
    let kernels = trace.untimed.kernels.len() as u64;
    let copies: u64 = trace.untimed.faults().map(|it| it.1.copies).sum();
    let all = kernels + trace.kernels.len() as u64;
    let share = percent(kernels as f64, all as f64).unwrap_or(0.0);
    let of_kernels =
        format!("{} of {} kernels ({share:.1} %)", digits::count(kernels), digits::count(all));
    let of_copies = format!("{} copies and fills", digits::count(copies));
    let work = match (kernels, copies) {
        (0, 0) => return None,
        (0, _) => of_copies,
        (_, 0) => of_kernels,
        _ => format!("{of_kernels}, and {of_copies},"),
    };
    let verb = if kernels + copies == 1 { "has" } else { "have" };
    let reasons: Vec<String> = trace.untimed.faults().map(|it| reason(it, trace)).collect();
    let message = format!(
        "{work} {verb} no valid time and {} left out of all times: {}.",
        if kernels + copies == 1 { "is" } else { "are" },
        reasons.join("; ")
    );
    let is_withheld = |it: &&StageCoverage| {
        it.lacks_times() || it.reasons().contains(&WithheldReason::KernelsUntimed)
    };
    let withheld: Vec<&StageCoverage> = analysis.coverage.iter().filter(is_withheld).collect();
    let critical = trace.lacks_times() || !withheld.is_empty();
    let mut found = Finding::new(catalogue::WORK_UNTIMED, message)
        .severity(if critical { Severity::Critical } else { Severity::Warning })
        .with("kernels without a valid time", kernels)
        .with("kernels with a valid time", all - kernels);
    for it in withheld {
        let stage = if it.stage.is_empty() { "outside every stage" } else { &it.stage };
        let launches = format!("{} of {} launches", it.untimed, it.launched);
        found = found.with(&format!("figures withheld of {stage}"), launches);
    }
    Some(found)
}

fn reason((fault, it): (TimeFault, FaultCount), trace: &Timeline) -> String {
    let what = match fault {
        TimeFault::NotRecorded => "start and end are 0, so no time was recorded",
        TimeFault::NoDuration => "the duration is 0 or missing, and every kernel takes time",
        TimeFault::EndsBeforeStart => "the end lies before the start",
        TimeFault::OutlastsSuccessor => {
            "the end lies after the end of a later kernel of the same stream"
        }
        TimeFault::OutlastsWait => "the end lies after the return of a call that waited for it",
        TimeFault::BeforeLaunch => "the start lies before the launching call",
    };
    let worst = it.worst.filter(|(by_ns, _)| *by_ns >= MIN_SHOWN_NS).map(|(by_ns, name)| {
        format!(", {} by {} ms", trace.text(name), figure(Nanos(by_ns).as_ms()))
    });
    format!("{what} ({}{})", it.kernels + it.copies, worst.unwrap_or_default())
}
