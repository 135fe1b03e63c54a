//! Findings on commands and imports.

use super::*;

findings! {
    ONLY_TRACED = "only_traced", [Warning],
        fires_on: "there is no unprofiled pass: all times include the overhead of tracing";
    COMMAND_WITHOUT_STAGES = "command_without_stages", [Warning],
        fires_on: "no range of the command is a stage";
    STAGES_ONLY_TRACED = "stages_only_traced", [Info],
        fires_on: "the command reports no stages in its unprofiled pass";
    OUTPUTS_UNKNOWN = "outputs_unknown", [Info],
        fires_on: "the command reports no tokens to compare";
    OVERHEAD_UNKNOWN = "overhead_unknown", [Info],
        fires_on: "the traced command exited too quickly to be timed";
    STAGE_ASYNCHRONOUS = "stage_asynchronous", [Info],
        fires_on: "ranges of a stage end before their work on the GPU, or their work queued";
    STAGE_LAUNCHED_ELSEWHERE = "stage_launched_elsewhere", [Warning],
        fires_on: "other threads launched the work of a stage";
    STAGE_WITHOUT_WORK = "stage_without_work", [Warning],
        fires_on: "the capture has work of a GPU, and the ranges of a stage launched none of it",
        advice: "Name the ranges in which the program launches the work of the stage.";
    STAGE_HIDDEN = "stage_hidden", [Warning],
        fires_on: "ranges of a stage lie inside ranges of another one";
    PROFILER_OVERHEAD = "profiler_overhead", [Warning],
        fires_on: "the profiler's own work took part of a stage";
    COUNTERS_OF_ANOTHER_DEVICE = "counters_of_another_device", [Warning],
        fires_on: "counters and timeline are of different GPUs";
}
