//! The largest causes of the time above the floor, in words for a reader who knows no CUDA, each
//! with its evidence and what to try.

use std::collections::BTreeSet;

use llmprof_analyze::{
    ledger::{Ledger, LedgerCause, LedgerRow},
    stats::percent,
};
use llmprof_core::domain::{finding::catalogue, units::Nanos};
use serde::Serialize;

use crate::format::{figure, share, short_name};

/// Listed reasons.
const REASONS: usize = 3;
/// Min share of its stage, percent, of a listed reason.
const LISTED_PCT: f64 = 1.0;

/// A cause of time above the floor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reason {
    /// Share of the stage, and the cause in words.
    pub text: String,
    /// The largest kernel or gap of the cause, with its evidence; empty if unknown.
    pub evidence: String,
    /// The remedy, and the upper bound of its saving; empty for causes that the program cannot
    /// change.
    pub advice: String,
}

/// Time of a cause, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CauseTime {
    Is(i64),
    /// Tracing lengthens gaps: of the unprofiled time, this is the upper bound.
    AtMost(i64),
}

impl CauseTime {
    fn of(row: &LedgerRow) -> Self {
        match row.cause.is_gap() && row.max_saving_ns < row.ns {
            true => Self::AtMost(row.max_saving_ns),
            false => Self::Is(row.ns),
        }
    }

    const fn ns(self) -> i64 {
        match self {
            Self::Is(ns) | Self::AtMost(ns) => ns,
        }
    }
}

/// The largest cause of each stage, and the largest others.
pub fn reasons(ledger: &Ledger) -> Vec<Reason> {
    let mut rows: Vec<(CauseTime, &LedgerRow)> = ledger
        .rows
        .iter()
        .filter(|it| it.cause.is_cause() && !is_of_recording(it.cause))
        .map(|it| (CauseTime::of(it), it))
        .collect();
    rows.sort_by_key(|(time, _)| std::cmp::Reverse(time.ns()));
    let mut stages: BTreeSet<&str> = BTreeSet::new();
    let (first, others): (Vec<_>, Vec<_>) =
        rows.iter().partition(|(_, row)| stages.insert(&row.stage));
    let mut listed: Vec<(CauseTime, Reason)> = first
        .into_iter()
        .chain(others)
        .filter_map(|(time, row)| Some((time, reason(ledger, time, row)?)))
        .take(REASONS)
        .collect();
    listed.sort_by_key(|(time, _)| std::cmp::Reverse(time.ns()));
    listed.into_iter().map(|it| it.1).collect()
}

fn reason(ledger: &Ledger, time: CauseTime, row: &LedgerRow) -> Option<Reason> {
    let stage = ledger.stages.iter().find(|it| it.stage == row.stage)?;
    let wait = ledger.of_stage(&row.stage).find(|it| it.cause == LedgerCause::UnrecordedWait);
    let (wait_ns, base) = match wait.map_or(0, |it| it.ns) {
        0 => (0, row.stage.clone()),
        ns => (ns, format!("{} without its unrecorded wait", row.stage)),
    };
    let pct = percent(time.ns() as f64, (stage.measured_ns - wait_ns) as f64);
    let pct = pct.filter(|pct| *pct >= LISTED_PCT)?;
    let at_most = if let CauseTime::AtMost(_) = time { "At most " } else { "" };
    let text = format!("{at_most}{} of {}: {}.", share(pct), base, plain(row.cause));
    let member = ledger.members(&row.stage, row.cause).next();
    let pass = if row.pass.is_empty() { String::new() } else { format!(" ({})", row.pass) };
    let evidence = member.map(|it| {
        let kernel = it.kernel.as_deref().map(short_name);
        let name = match (&it.operator, kernel) {
            (Some(operator), Some(kernel)) => format!("{kernel} of {operator}"),
            (Some(name), None) => name.clone(),
            (None, Some(name)) => name,
            // A gap before the first work of a stage follows no kernel.
            (None, None) => "start of the stage".into(),
        };
        format!("{name}: {}{pass}.", it.evidence)
    });
    let kind = catalogue::named(&format!("ledger_{}", row.cause.as_str()));
    let advice = kind.and_then(|it| it.advice).filter(|_| row.max_saving_ns > 0);
    let saving = figure(Nanos(row.max_saving_ns).as_ms());
    let advice = advice.map(|it| format!("{it} This saves at most {saving} ms of {}.", row.stage));
    Some(Reason {
        text,
        evidence: evidence.unwrap_or_default(),
        advice: advice.unwrap_or_default(),
    })
}

/// True for time that the recording adds, or whose reason lies before it.
const fn is_of_recording(cause: LedgerCause) -> bool {
    matches!(cause, LedgerCause::ProfilerOverhead | LedgerCause::UnrecordedWait)
}

/// A cause as something that happens.
const fn plain(cause: LedgerCause) -> &'static str {
    match cause {
        LedgerCause::Floor => "work that is necessary",
        LedgerCause::CopiesAndCasts => "copying, filling and converting data",
        LedgerCause::CollectiveWait => "waiting for other GPUs in collective operations",
        LedgerCause::CollectiveTransfer => "exchanging data with other GPUs",
        LedgerCause::Collectives => "collective operations of several GPUs, with their waiting",
        LedgerCause::MoreBytes => "moving more bytes than necessary",
        LedgerCause::TensorCores => "matrix products that do not use the tensor cores' full rate",
        LedgerCause::Tiles => "computing parts of tiles that have no results",
        LedgerCause::Waves => "parts of the GPU have no work, because kernels start too few blocks",
        LedgerCause::Instructions => "instructions other than the matrix products",
        LedgerCause::MemoryTraffic => "moving intermediate results through caches and memory",
        LedgerCause::Latency => "waiting for data with too little other work",
        LedgerCause::ProfilerOverhead => "the profiler's own work, which an unprofiled run lacks",
        LedgerCause::UnrecordedWait => "a wait whose reason lies before the recording",
        LedgerCause::GapLongCall => {
            "the GPU idles while the host is inside one long call that launches nothing"
        }
        LedgerCause::GapHost => "the GPU idles while the host prepares the next launch",
        LedgerCause::GapLaunch => "the GPU idles while the host launches the next work",
        LedgerCause::GapSync => "the GPU idles while the host waits for it and launches nothing",
        LedgerCause::GapCopy => "the GPU idles while the host copies data",
        LedgerCause::GapInGraph => "the GPU idles between the kernels of a replayed graph",
        LedgerCause::GapQueued => "the GPU idles before work that is already launched",
        LedgerCause::OtherStages => "only work of other stages runs",
        LedgerCause::Unexplained => "no evidence of a cause",
        LedgerCause::PassDifference => "difference of the passes",
    }
}
