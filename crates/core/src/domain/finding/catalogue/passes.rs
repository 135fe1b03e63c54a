//! Findings of passes and run steps.

use super::*;

findings! {
    PASSES_NOT_APPLICABLE = "passes_not_applicable", [Info],
        fires_on: "passes of the mode do not apply to the CPU";
    LEFT_OUT_OF_COMMANDS = "left_out_of_commands", [Info],
        fires_on: "the mode has counters, and the command is a server";
    LEFT_OUT_OF_SESSIONS = "left_out_of_sessions", [Info],
        fires_on: "passes that need a server started for them, of a run on a server session";
    PASSES_REUSED = "passes_reused", [Info],
        fires_on: "an interrupted run continued: with its finished passes, or without since a \
                   condition changed";
    PASSES_REPEATED = "passes_repeated", [Info],
        fires_on: "an interrupted run continued: with its finished passes, or without since a \
                   condition changed";
    HOST_EXHAUSTED = "host_exhausted", [Warning],
        fires_on: "the host had no more descriptors, processes, memory or space; the run is \
                   requeued";
    RUN_OUT_OF_TIME = "run_out_of_time", [Warning],
        fires_on: "the time limit of the run or of a pass passed";
    RUN_TOO_LARGE = "run_too_large", [Warning],
        fires_on: "the files of a pass or of the run exceed `limits.run_bytes`";
    DISK_FULL = "disk_full", [Warning],
        fires_on: "less than `limits.free_bytes` was free during a pass";
    REPEATS_CUT_SHORT = "repeats_cut_short", [Warning],
        fires_on: "a command was repeated less often than requested, to leave time for later \
                   passes";
    PASS_NOT_PROVEN = "pass_not_proven", [Warning],
        fires_on: "a traced pass computed other tokens than the unprofiled pass, or recorded none";
    POWER_NOT_SAMPLED = "power_not_sampled", [Warning],
        fires_on: "power and clocks of the GPU were not sampled";
    NSYS_SEES_ENVIRONMENTS = "nsys_sees_environments", [Warning],
        fires_on: "nsys could read the environments of other processes: the host permits no \
                   namespaces, or the run samples all processes";
    NSYS_STARTED_AGAIN = "nsys_started_again", [Info],
        fires_on: "nsys lost its helper process, or did not end after its program, and was started \
                   again";
    NSYS_IMPORTER_UNLINKED = "nsys_importer_unlinked", [Info],
        fires_on: "nsys left raw data, which llmprof imported";
    NSYS_IMPORT_ERRORS = "nsys_import_errors", [Info, Warning],
        fires_on: "nsys reported errors of its import, and the launched kernels are recorded";
    NSYS_EXPORT_UNREADABLE = "nsys_export_unreadable", [Warning],
        fires_on: "the export of nsys cannot be read";
    NSYS_REPORT_NEWER = "nsys_report_newer", [Critical],
        fires_on: "an imported report is of a newer nsys";
    INCOMPLETE_CAPTURE = "incomplete_capture", [Warning],
        fires_on: "the timeline of a pass lacks kernels, launches or ranges";
    CPU_SAMPLES_MISSING = "cpu_samples_missing", [Warning],
        fires_on: "samples of the CPU or switches of threads were requested, and nsys recorded \
                   none";
    GPU_METRICS_UNSUPPORTED = "gpu_metrics_unsupported", [Warning],
        fires_on: "nsys cannot sample the metrics of the GPU";
    NOTHING_PROFILED = "nothing_profiled", [Warning],
        fires_on: "ncu profiled none of the selected kernels";
    NCU_CUT = "ncu_cut", [Warning],
        fires_on: "ncu reached its deadline; the launches that it profiled until then count";
    NCU_KERNELS_MISSING = "ncu_kernels_missing", [Warning],
        fires_on: "ncu did not profile some selected kernels";
    NCU_METRICS_UNKNOWN = "ncu_metrics_unknown", [Warning],
        fires_on: "ncu did not list the metrics of the device";
    NCU_DETAILS_MISSING = "ncu_details_missing", [Info],
        fires_on: "ncu printed no details page";
    NCU_REPORT_UNREADABLE = "ncu_report_unreadable", [Warning],
        fires_on: "ncu printed no page of an imported report";
    COUNTERS_COVER_LITTLE = "counters_cover_little", [Info],
        fires_on: "counters stand for less of a stage's kernel time than \
                   `profiling.ncu.target_pct`";
    COUNTERS_UNUSABLE = "counters_unusable", [Warning],
        fires_on: "the pages of ncu cannot be read, or are of other kernels";
    TORCH_PROFILER_OVERHEAD = "torch_profiler_overhead", [Info],
        fires_on: "the pass under the profiler of PyTorch took over 25 % longer than the \
                   unprofiled one";
    ALIGNMENT_PASSED = "alignment_passed", [Info],
        fires_on: "the mock launches the kernels of the whole model";
    ALIGNMENT_FAILED = "alignment_failed", [Warning],
        fires_on: "the mock does not match the part in the whole model";
    ALIGNMENT_INCONCLUSIVE = "alignment_inconclusive", [Warning],
        fires_on: "the timelines do not show if the mock matches, or are missing";
}
