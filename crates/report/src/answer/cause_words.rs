//! Causes of a stage's time, in words for a reader who knows no CUDA.

use llmprof_analyze::ledger::{CauseRanges, Ledger, LedgerCause, LedgerMember, LedgerRow};

use super::{
    cited::{Cited, Row},
    times::row_of_cause,
};
use crate::format::short_name;

/// Idle time in a range of the program, in several, and in ranges and calls.
const IN_RANGE: &str = "the GPU idles while the host is in {}, a range of the program, and \
                        launches nothing";
const IN_RANGES: &str =
    "the GPU idles while the host is in ranges of the program{}, and launches nothing";
const IN_RANGES_AND_CALLS: &str = "the GPU idles while the host is in ranges of the program and \
                                   long calls{}, and launches nothing";

/// Idle time in calls of the operating system.
const IN_OS_CALLS: &str = "the GPU idles while the host is {}, and launches nothing";

/// The cause of a row, with the ranges of the program, or the calls of the operating system, that
/// have most of its time.
pub fn of_row(ledger: &Ledger, row: &LedgerRow) -> Cited {
    if let Some(calls) = ledger.os_calls_of(row) {
        return Cited::of(IN_OS_CALLS, [Cited::name(calls.words())]);
    }
    let Some(ranges) = ledger.ranges_of(row).filter(CauseRanges::are_most) else {
        return Cited::words(plain(row.cause));
    };
    if let Some(range) = ranges.one() {
        return Cited::of(IN_RANGE, [Cited::name(short_name(range))]);
    }
    let mostly = |it: &str| Cited::of(", mostly in the range {}", [Cited::name(short_name(it))]);
    let main = ranges.main().map(mostly);
    let words = if ranges.are_all() { IN_RANGES } else { IN_RANGES_AND_CALLS };
    Cited::of(words, [main.or_else(|| together(&ranges, row)).unwrap_or_default()])
}

/// The ranges that have most of a cause's time together, with their shares.
fn together(ranges: &CauseRanges, row: &LedgerRow) -> Option<Cited> {
    let whole = row_of_cause(row).ns("ns", row.ns);
    let share = |(name, member): (&str, &LedgerMember)| {
        let cells = Row::of("ledger_members")
            .with("stage", &member.stage)
            .with("cause", member.cause)
            .with("operator", &member.operator);
        let part = cells.ns("ns", member.ns).share_of(&whole)?;
        Some(Cited::of("{} {}", [Cited::name(short_name(name)), part.text()]))
    };
    let shares: Vec<Cited> = ranges.together(row).into_iter().filter_map(share).collect();
    let is_any = !shares.is_empty();
    is_any.then(|| Cited::of(" ({} of this time)", [Cited::list(shares, ", ")]))
}

/// A cause as something that happens.
pub const fn plain(cause: LedgerCause) -> &'static str {
    match cause {
        LedgerCause::Floor => "work that is necessary",
        LedgerCause::LongLaunches => {
            "single launches of a kernel take far longer than its others, with the same grid"
        }
        LedgerCause::CopiesAndCasts => "copying, filling and converting data",
        LedgerCause::CollectiveWait => "waiting for other GPUs in collective operations",
        LedgerCause::CollectiveTransfer => "exchanging data with other GPUs",
        LedgerCause::Collectives => "collective operations of several GPUs, with their waiting",
        LedgerCause::MoreBytes => "moving more bytes than necessary",
        LedgerCause::TensorCores => "matrix products that do not use the tensor cores' full rate",
        LedgerCause::Tiles => "computing parts of tiles that have no results",
        LedgerCause::Waves => "parts of the GPU have no work, because kernels start too few blocks",
        LedgerCause::Instructions => "instructions other than the matrix products",
        LedgerCause::OperandTraffic => "reading weights, or the keys and values of attention",
        LedgerCause::MemoryTraffic => "moving intermediate results through caches and memory",
        LedgerCause::Latency => "waiting for data with too little other work",
        LedgerCause::ProfilerOverhead => "the profiler's own work, which an unprofiled run lacks",
        LedgerCause::UnrecordedWait => "a wait whose reason lies before the recording",
        LedgerCause::GapWait => {
            "the GPU waits with launched work for something that the capture does not record, such \
             as another process or an event of another stream"
        }
        LedgerCause::GapUnknown => "the GPU idles, and the capture does not record why",
        LedgerCause::GapLongCall => {
            "the GPU idles while the host is in a long call, or prepares code, and launches nothing"
        }
        LedgerCause::GapHost => "the GPU idles while the host prepares the next launch",
        LedgerCause::GapLaunch => "the GPU idles while the host launches the next work",
        LedgerCause::GapGraphLaunch => "the GPU idles while the host launches a graph",
        LedgerCause::GapSync => "the GPU idles while the host waits for it and launches nothing",
        LedgerCause::GapCopy => "the GPU idles while the host copies data",
        LedgerCause::GapInGraph => "the GPU idles between the kernels of a replayed graph",
        LedgerCause::GapQueued => "the GPU idles before work that is already launched",
        LedgerCause::OtherStages => "only work runs that this stage did not launch",
        LedgerCause::Unexplained => "the GPU works, and why it takes this time is not measured",
        LedgerCause::PassDifference => "difference of the passes",
    }
}
