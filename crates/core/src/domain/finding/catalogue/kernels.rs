//! Findings on kernels: counters, samples, GEMMs, power.

use super::*;

findings! {
    AT_MEMORY_ROOF = "at_memory_roof", [Info],
        fires_on: "a profiled kernel of at least 5 % of its stage uses device memory at 80 % or \
                   more of its sustained rate, and SM less",
        advice: "Move fewer bytes: use a smaller dtype, fuse it with its neighbours, or reuse \
                 data over a batch.",
        saving: "the kernel's own time on the critical path";
    AT_COMPUTE_ROOF = "at_compute_roof", [Info],
        fires_on: "a profiled kernel of at least 5 % of its stage uses the SMs at 80 % or more \
                   of their sustained rate, and memory no more",
        advice: "Reduce its operations, or use a smaller dtype.",
        saving: "the kernel's own time on the critical path";
    TENSOR_WORK_UNCOUNTED = "tensor_work_uncounted", [Info],
        fires_on: "profiled kernels of at least 5 % of a stage used tensor cores whose \
                   operations were not counted",
        advice: "Collect ncu's sm__ops_path_tensor_src_* as well, as mode deep does where the \
                 device has them.";
    LAUNCHES_UNLIKE_PROFILED = "launches_unlike_profiled", [Info],
        fires_on: "launches of profiled kernels and launch configurations take at least 5 % of \
                   a stage's kernel time and other durations than the profiled ones",
        advice: "Read their sampled metrics, which mode deep collects, or raise \
                 profiling.ncu.launches_per_config: ncu profiles the first launches of a kernel \
                 and launch configuration.";
    GPU_METRICS_EMPTY = "gpu_metrics_empty", [Warning],
        fires_on: "a capture that was to sample the GPU's metrics has no value of a known one",
        advice: "Check that the GPU has these metrics, and that no other profiler reads its \
                 counters.";
    GPU_METRICS_LACKING = "gpu_metrics_lacking", [Warning],
        fires_on: "fewer than 99 % of a GPU's samples in a stage have a value of a metric that \
                   every GPU has: active SMs, issue slots, tensor activity, warps, reads and \
                   writes of device memory",
        advice: "Check that the GPU has these metrics, and that no other profiler reads its \
                 counters.";
    GPU_METRICS_INVALID = "gpu_metrics_invalid", [Info],
        fires_on: "values of samples are outside the range of their metric, and left out",
        advice: "Export the report again with the nsys that took it.";
    GPU_METRICS_TOO_FEW = "gpu_metrics_too_few", [Warning],
        fires_on: "samples span a stage, and those of the stage alone have too little of its \
                   kernels' time",
        advice: "Sample at a higher rate, repeat the stage more often, or profile stages that \
                 run at once apart.";
    GPU_METRICS_OTHER_GPU = "gpu_metrics_other_gpu", [Warning],
        fires_on: "a stage has kernels on a GPU without samples, in a capture that has samples",
        advice: "Sample all GPUs of the program.";
    GPU_METRICS_REFUSED = "gpu_metrics_refused", [Warning],
        fires_on: "the GPU of samples is unknown: the export lists none of that number, several \
                   sources have it, or the numbers by which processes call several GPUs are \
                   missing",
        advice: "Export the report again with the nsys that took it, or sample one GPU alone.";
    GPU_METRICS_OVERFLOWED = "gpu_metrics_overflowed", [Warning],
        fires_on: "nsys lost samples because their buffer was full",
        advice: "Sample at a lower rate.";
    GPU_METRICS_WITHOUT_KERNELS = "gpu_metrics_without_kernels", [Warning],
        fires_on: "a capture has samples of the GPU's metrics and no kernels",
        advice: "Record kernels together with the samples.";
    GPU_METRICS_WITHOUT_STAGES = "gpu_metrics_without_stages", [Info],
        fires_on: "a capture has samples of the GPU's metrics, and no stage with kernels",
        advice: "Name the ranges of the stages.";
    GPU_METRICS_DO_NOT_SPAN = "gpu_metrics_do_not_span", [Warning],
        fires_on: "samples of the GPU's metrics start after a stage or end before it, cover \
                   less than 90 % of its device time, are more than their rate gives, or are \
                   displaced in time",
        advice: "Sample at a lower rate, from before the stage to after it.";
    GPU_METRICS_GAPS = "gpu_metrics_gaps", [Info],
        fires_on: "samples of the GPU's metrics in a stage are more than 1.5 periods apart",
        advice: "Sample at a lower rate if figures are missing.";
    GPU_METRICS_UNRESOLVED = "gpu_metrics_unresolved", [Info],
        fires_on: "samples resolve a metric for less than 90 % of a stage's kernel time",
        advice: "Raise profiling.gpu_metrics.repeats, or sample at a higher rate.";
    KV_CACHE_COPIES = "kv_cache_copies", [Warning],
        fires_on: "kernels that concatenate tensors take at least 5 % of decode's kernel time, \
                   and no graph is replayed",
        advice: "Write keys and values in place into a preallocated cache.",
        saving: "their own time on the critical path";
    TINY_KERNELS = "tiny_kernels", [Info],
        fires_on: "of 100 launches or more in a stage, 80 % are shorter than 5 microseconds",
        advice: "Fuse them: each costs a launch.",
        saving: "their own time on the critical path";
    NAME_COLLISIONS = "name_collisions", [Info],
        fires_on: "kernels with different full names share a short name with 10 % of a stage",
        advice: "Read its row as a sum; the full names are in the capture.";
    GEMM_SMALL = "gemm_small", [Info],
        fires_on: "GEMMs with fewer than 16 rows are at least 10 % of a stage's GEMMs by \
                   operations",
        advice: "Batch requests: weights are read for few rows.";
    GEMM_TILES_UNFILLED = "gemm_tiles_unfilled", [Info],
        fires_on: "a GEMM of 16 rows or more and at least 10 % of a stage's GEMMs fills less \
                   than 75 % of its kernel's tiles, or of 128 x 128 tiles where these are \
                   unknown",
        advice: "Pad or batch to sizes that fill tiles, or let the library choose smaller ones.";
    GEMM_LOG_EMPTY = "gemm_log_empty", [Warning],
        fires_on: "the GEMM log contains no GEMM",
        advice: "Check the files below gemm_log/: the program may use another library.";
    GEMM_STAGES_UNKNOWN = "gemm_stages_unknown", [Warning],
        fires_on: "the log of prefill is not the start of the log of both stages",
        advice: "Record the logs again with the same settings.";
    GEMM_KERNELS_NOT_JOINED = "gemm_kernels_not_joined", [Info],
        fires_on: "the logged GEMMs of a stage and the kernels of libraries in the timeline \
                   differ in number, tile or grid",
        advice: "Record log and timeline again with the same settings, without other GEMMs.";
    GEMM_CALLS_INCOMPLETE = "gemm_calls_incomplete", [Info],
        fires_on: "the GEMM log contains calls that cannot be parsed, or grouped calls, whose \
                   sizes it does not have",
        advice: "Check the log below gemm_log/.";
    GEMM_LOG_CUT = "gemm_log_cut", [Warning],
        fires_on: "a GEMM log exceeds the size limit",
        advice: "Request fewer tokens.";
    GPU_THROTTLED = "gpu_throttled", [Warning],
        fires_on: "the clocks were throttled during part of a stage",
        advice: "Remove the cause of throttling: power limit, cooling, power supply.";
    POWER_OF_WHOLE_GPU = "power_of_whole_gpu", [Info],
        fires_on: "the run was on an instance of a GPU (MIG)",
        advice: "Keep the GPU's other instances idle where energy matters.";
}
