//! Causes of a stage's time, in words for a reader who knows no CUDA.

use llmprof_analyze::ledger::LedgerCause;

/// Idle time in a range of the program.
pub const IN_RANGE: &str = "the GPU idles while the host is in {}, a range of the program, and \
                            launches nothing";

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
