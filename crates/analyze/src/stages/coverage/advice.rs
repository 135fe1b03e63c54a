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

/// Remedy for steps that lost kernels while other steps have theirs.
pub const fn lost_in_steps(tool: TimelineTool) -> &'static str {
    match tool {
        TimelineTool::Nsys => {
            "Record the calls and the work of the GPU for the whole window, in every process and \
             thread of the engine, and export the report again with an nsys at least as new as the \
             one that recorded it."
        }
        TimelineTool::Pytorch => {
            "Record the calls and the work of the GPU for the whole window, in every process of \
             the engine: fewer steps, and a synchronisation before the profiler stops."
        }
    }
}

/// Remedy for work without a launching call; `none` if the capture has no calls at all.
pub const fn unattributed(tool: TimelineTool, none: bool) -> &'static str {
    match tool {
        TimelineTool::Nsys if none => {
            "Export the whole report again (nsys export --type sqlite); if it has no calls, trace \
             the CUDA API (-t cuda,nvtx) from the start of the process."
        }
        TimelineTool::Nsys => {
            "Record from the start of the process, before it launches the work, and export the \
             whole report."
        }
        TimelineTool::Pytorch => {
            "Import the trace as the profiler wrote it, with its events cuda_runtime and \
             cuda_driver; work launched before the profiler started has no call."
        }
    }
}
