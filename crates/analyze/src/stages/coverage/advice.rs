//! Remedies for an incomplete timeline, by the profiler that recorded it.

use llmprof_core::trace::framework::TimelineTool;

/// Remedy for kernels that are missing from the capture; `at_end` if all were launched after the
/// last synchronisation.
pub const fn lost(tool: TimelineTool, at_end: bool) -> &'static str {
    match tool {
        TimelineTool::Nsys if at_end => {
            "Synchronise the device before the capture ends. If kernels are still missing, export \
             the report again with an nsys at least as new as the one that recorded it."
        }
        TimelineTool::Nsys => {
            "Export the report again with an nsys at least as new as the one that recorded it; if \
             kernels are still missing, record again."
        }
        TimelineTool::Pytorch => {
            "Record again: fewer steps, and a synchronisation before the profiler stops."
        }
    }
}

/// Remedy for work without a launching call.
pub const fn unattributed(tool: TimelineTool) -> &'static str {
    match tool {
        TimelineTool::Nsys => "Trace the CUDA API (-t cuda,nvtx) from the start of the process.",
        TimelineTool::Pytorch => {
            "Import the trace as the profiler wrote it, with its events cuda_runtime and \
             cuda_driver; work launched before the profiler started has no call."
        }
    }
}
