//! Findings on the host, by the preflight and by the doctor.

use super::*;

findings! {
    NO_GPU = "no_gpu", [Info, Warning, Critical],
        fires_on: "the host has no usable GPU: the run is on the CPU, or needs a GPU";
    NO_SUCH_GPU = "no_such_gpu", [Critical],
        fires_on: "the GPU of the run is gone";
    DRIVER_UNUSABLE = "driver_unusable", [Warning],
        fires_on: "NVIDIA's driver is installed and does not respond";
    MIG_WITHOUT_INSTANCES = "mig_without_instances", [Warning],
        fires_on: "a GPU is in MIG mode and has no instance";
    GPU_MEMORY_TAKEN = "gpu_memory_taken", [Warning],
        fires_on: "over 10 % of the GPU's memory is in use";
    GPU_BUSY = "gpu_busy", [Warning],
        fires_on: "processes of others use the GPU";
    DCGM_RUNNING = "dcgm_running", [Warning],
        fires_on: "DCGM runs and may use the GPU's counters";
    RUNNER_UNUSABLE = "runner_unusable", [Critical],
        fires_on: "the model runner does not report its features";
    RUNNER_WITHOUT_CUDA = "runner_without_cuda", [Warning, Critical],
        fires_on: "the model runner was built without the feature `cuda`";
    NSYS_MISSING = "nsys_missing", [Warning],
        fires_on: "the tool is not installed";
    NCU_MISSING = "ncu_missing", [Warning],
        fires_on: "the tool is not installed";
    NSYS_UNUSABLE = "nsys_unusable", [Warning],
        fires_on: "the tool does not report its version";
    NCU_UNUSABLE = "ncu_unusable", [Warning],
        fires_on: "the tool does not report its version";
    NSYS_OLDER_THAN_DRIVER = "nsys_older_than_driver", [Warning],
        fires_on: "nsys is older than the driver, with which it loses kernels";
    COUNTERS_FORBIDDEN = "counters_forbidden", [Warning],
        fires_on: "the driver permits counters to administrators only";
    COUNTERS_HELD = "counters_held", [Warning],
        fires_on: "another tool uses the GPU's counters";
    COUNTERS_UNTRIED = "counters_untried", [Warning],
        fires_on: "a trial of ncu does not show if it may read counters";
    PERF_EVENTS_RESTRICTED = "perf_events_restricted", [Info],
        fires_on: "users may not sample the CPU";
    CPU_SAMPLING_DENIED = "cpu_sampling_denied", [Warning],
        fires_on: "the kernel does not permit the CPU samples or context switches that the run \
                   requests";
    DISK_LOW = "disk_low", [Warning, Critical],
        fires_on: "less space is free than a run may need";
    TEMPORARY_FOLDER_UNUSABLE = "temporary_folder_unusable", [Warning, Critical],
        fires_on: "the folder for temporary files is read-only or mounted `noexec`";
    MODELS = "models", [Warning, Critical],
        fires_on: "entries of the models folder cannot be used (doctor only)";
}
