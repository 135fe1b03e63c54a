//! Findings on the run, its outputs and its timeline.

use super::*;

findings! {
    NO_STAGES = "no_stages", [Critical],
        fires_on: "no measured stage was timed",
        advice: "Read the baseline step's log.";
    RUNNER_UNFINISHED = "runner_unfinished", [Warning],
        fires_on: "the runner's events lack the last one, `end`",
        advice: "Read the baseline step's log for the reason.";
    REPEATS_DIFFER = "repeats_differ", [Warning],
        fires_on: "repeats of the unprofiled pass have different outputs",
        advice: "Look for operators whose order of summation varies.";
    OUTPUTS_DIFFER = "outputs_differ", [Critical],
        fires_on: "the traced pass has other tokens or logits than the unprofiled pass",
        advice: "Do not attribute the capture to the timed run.";
    MFU_IMPOSSIBLE = "mfu_impossible", [Critical],
        fires_on: "utilisation above 101 % of a ceiling",
        advice: "Check the device's name, the dtype and the operand sizes of the ceiling.";
    RATE_ABOVE_PEAK = "rate_above_peak", [Critical],
        fires_on: "FLOPs of shapes over a time exceed 101 % of the datasheet's peak of the dtype; \
                   the rates are withheld",
        advice: "Check the device's name and its peaks, and that the operator's kernels are all \
                 recorded.";
    OPERAND_RATE_ABOVE_BANDWIDTH = "operand_rate_above_bandwidth", [Info],
        fires_on: "bytes of operands over a time exceed 101 % of the datasheet's bandwidth; the \
                   rates are withheld",
        advice: "Use counted bytes of device memory (ncu) instead: caches served part of the \
                 operands, or the operator did not read all of them.";
    ROOFLINE_IMPOSSIBLE = "roofline_impossible", [Critical],
        fires_on: "a profiled kernel above 101 % of the datasheet's roof",
        advice: "Discard this figure; check the device's name and peaks, and that the ncu pages \
                 are of this device.";
    CEILING_SURPASSED = "ceiling_surpassed", [Info],
        fires_on: "an operator above 101 % of the measured matrix product",
        advice: "Disregard its utilisation of that ceiling, which is withheld: the measured \
                 product is slower than the device's best, or the time is too short.";
    CAPTURE_INCOMPLETE = "capture_incomplete", [Warning],
        fires_on: "the capture lacks the range of a stage that the runner timed",
        advice: "Capture again; update nsys to the driver's version.";
    CAPTURE_TIMES_IMPOSSIBLE = "capture_times_impossible", [Warning],
        fires_on: "rows of the capture have no times, end before they start, or lie more than \
                   73 years from its clock's zero",
        advice: "Export the report again; if the rows persist, capture again. They are excluded.";
    WORK_UNTIMED = "work_untimed", [Warning, Critical],
        fires_on: "kernels, copies or fills have start and end 0, end after a later kernel of \
                   their stream or after a call that waited for them, or start before their \
                   launch; kernels end before they start or have no duration; critical above \
                   1 % of the kernels",
        advice: "Record again, without tools that rewrite the capture, and with a newer driver \
                 and profiler if times or durations are 0. The work is excluded; figures that \
                 need it are withheld.";
    DEVICE_CLOCK_DIFFERS = "device_clock_differs", [Warning, Critical],
        fires_on: "waits return more than 10 us before their work has ended, or work starts more \
                   than 10 us before its launch; critical if the offset is not known within 200 us",
        advice: "Record again with a newer profiler and driver, and with a synchronisation after \
                 each step, which bounds the offset. Sums of kernels are valid; quote no gap \
                 shorter than the uncertainty.";
    KERNELS_UNATTRIBUTED = "kernels_unattributed", [Warning],
        fires_on: "kernels of the capture have no launching call",
        advice: "Record the calls of CUDA as well, from the start of the process.";
    KERNELS_LOST = "kernels_lost", [Critical],
        fires_on: "fewer than 99 % of a stage's launches have their kernel in the capture, or \
                   fewer than 99 % of its launches of graphs any work, where graphs have kernels",
        advice: "Export or record again with a newer nsys; the stage's kernel figures are \
                 withheld.";
    CALLS_UNKNOWN = "calls_unknown", [Info],
        fires_on: "calls of the capture belong to no known family of CUDA or HIP",
        advice: "Look them up: where one launches work or waits for it, lost launches and gaps at \
                 it are not found. A newer llmprof may know them.";
    RANGE_NOT_FOUND = "range_not_found", [Critical],
        fires_on: "a rule of the run names a range that the capture lacks",
        advice: "Correct the name in the run's stages or included ranges; if the recording has a \
                 window (nsys.delay_s, duration_s, capture_range), make it contain the range.";
    RECORDING_SHORT = "recording_short", [Warning],
        fires_on: "a recording that starts after a delay (nsys.delay_s) is shorter than a second",
        advice: "Set nsys.delay_s to at least 1 s less than the program's runtime, or to 0 to \
                 record it from its start.";
    RANGE_UNCLOSED = "range_unclosed", [Warning],
        fires_on: "a range of the capture has no end, or ends before it starts",
        advice: "Close the range in the program, or record until it ends; times that need its end \
                 are withheld.";
    DECODE_CUT = "decode_cut", [Info],
        fires_on: "a recording has steps of decodes that started before it, go on after it, or \
                   have a step that is left out",
        advice: "Record whole requests: start before the first prefill, and stop after the last \
                 token.";
    FIGURE_IMPOSSIBLE = "figure_impossible", [Warning],
        fires_on: "a figure is outside its possible bounds: shares, counters, clocks",
        advice: "Check the cause named in the finding; the figure is withheld.";
    RANGES_TOO_DEEP = "ranges_too_deep", [Warning],
        fires_on: "more than 10,000 ranges are open at one launch, or the sets of ranges that are \
                   open at launches are too many to list",
        advice: "Close ranges in the program (nvtxRangePop), and capture it again.";
    GRAPH_CAPTURE_ALONE = "graph_capture_alone", [Warning],
        fires_on: "all files are traces of the capture of a graph, which runs nothing";
    GRAPH_REPLAYS_JOINED = "graph_replays_joined", [Info],
        fires_on: "replayed kernels have the operators of a graph's capture";
    GRAPH_REPLAYS_NOT_JOINED = "graph_replays_not_joined", [Warning],
        fires_on: "captures of graphs are given, and which of them a replay executes is not proven";
    GRAPHS_TRACED_WHOLE = "graphs_traced_whole", [Info],
        fires_on: "CUDA graphs of a stage were traced as a whole",
        advice: "Trace graphs by node to record the kernels inside: mode deep, or \
                 profiling.nsys.cuda_graph_trace node (nsys --cuda-graph-trace=node); this \
                 slows each launch.";
    GRAPH_DEVICE_UNKNOWN = "graph_device_unknown", [Warning],
        fires_on: "CUDA graphs start on the host, and no other work of their process shows \
                   their GPU",
        advice: "Trace graphs by node to record the kernels inside: mode deep, or \
                 profiling.nsys.cuda_graph_trace node (nsys --cuda-graph-trace=node); this \
                 slows each launch.";
    OVERHEAD_HIGH = "overhead_high", [Warning],
        fires_on: "a traced stage takes over 25 % longer than the unprofiled one, and not as long \
                   as any of its repeats",
        advice: "Use the capture for proportions, not for times; the finding lists the settings \
                 that are lighter for the stage.";
    FEW_REPEATS = "few_repeats", [Info],
        fires_on: "fewer than 3 measured repeats",
        advice: "Submit with 3 repeats or more.";
    FIRST_SAMPLE_ONLY = "first_sample_only", [Info],
        fires_on: "a run with several samples has counters, a GEMM log or the power of \
                   executions back to back, which are of the first",
        advice: "Submit another sample alone for counters and GEMMs of its shapes.";
    HIGH_VARIANCE = "high_variance", [Warning],
        fires_on: "a stage's standard deviation over repeats is above 10 % of its mean",
        advice: "Raise warmup and repeats, and keep other work off the device.";
    WARMUP_SHORT = "warmup_short", [Warning],
        fires_on: "the first repeat of a stage takes at least 1.2 times the slowest of two or \
                   more others",
        advice: "Raise warmup: one-time work may be timed with the rest.";
    COLD_FIRST_INSTANCE = "cold_first_instance", [Info],
        fires_on: "no warm-up is marked, and the first instance of a stage takes at least 1.5 \
                   times the median of the others, not on the device, and does something for \
                   the first time",
        advice: "Warm up before recording; the instance counts as warm-up.";
    SWITCHES_CONTRADICT_CALLS = "switches_contradict_calls", [Warning],
        fires_on: "fewer than 95 % of the calls of CUDA start while their thread is on a core by \
                   the recorded switches of threads; no figure of a stage uses them",
        advice: "Record again with a newer nsys: it loses switches, or gives them wrong times.";
    PROCESS_UNTRACED = "process_untraced", [Warning],
        fires_on: "a process of a system-wide recording was sampled in NVIDIA's driver, and no \
                   call of CUDA and no kernel of it is recorded",
        advice: "Start the process by the profiled command, whose programs are recorded if \
                 profiling.nsys.trace has cuda, or record it with a profiler of its own and import \
                 that.";
    LAUNCHING_THREAD_DISPLACED = "launching_thread_displaced", [Warning],
        fires_on: "for at least 3 % of a stage, its GPU idled for the host while the launching \
                   thread was on no core and another thread was on the core that it had left",
        advice: "Give the program cores of its own (taskset, numactl --physcpubind, a cpuset), \
                 start fewer threads in it, or stop the other work; nsys does not record \
                 whether the thread could have run.";
    LAUNCHING_THREAD_OFF_CORE = "launching_thread_off_core", [Info],
        fires_on: "for at least 3 % of a stage, its GPU idled for the host while the launching \
                   thread was on no core, and no other recorded thread was on the core that it had \
                   left",
        advice: "Record the switches of all processes, and the calls of the operating system: osrt \
                 in profiling.nsys.trace.";
    GAPS_IN_FUNCTION = "gaps_in_function", [Info],
        fires_on: "at least 20 % of 20 or more samples of the launching thread are in one function \
                   while the GPU idled for the host, which is at least 3 % of a stage",
        advice: "Shorten this work between launches, or launch the stage as a CUDA graph.";
    HOST_BUSY = "host_busy", [Warning],
        fires_on: "tasks waited for a CPU during at least limits.host_busy_pct percent of the \
                   unprofiled pass",
        advice: "Keep other work off the host and measure again: it slows down the timed stages.";
}
