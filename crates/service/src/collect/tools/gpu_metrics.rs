//! Known reasons why nsys refuses to sample a GPU's metrics.
//!
//! Pure values. nsys refuses before it starts the target: an option that it does not know, devices
//! that it cannot sample, or counters that the driver denies.

use llmprof_core::domain::finding::catalogue;

use super::{COUNTERS_FORBIDDEN, COUNTERS_HELD, CounterRefusal};

const UNSUPPORTED: CounterRefusal = CounterRefusal {
    id: catalogue::GPU_METRICS_UNSUPPORTED,
    why: "nsys has no metrics of this GPU",
    remedy: "use a GPU of Turing or newer, whole and not a MIG instance, and an nsys that is newer \
             than the GPU; `nsys profile --gpu-metrics-devices=help` lists those that it samples",
};
const OUTDATED: CounterRefusal = CounterRefusal {
    id: catalogue::GPU_METRICS_UNSUPPORTED,
    why: "this nsys cannot sample the metrics of the visible GPUs",
    remedy: "install a newer nsys: 2025.3 samples them",
};

const NOT_VISIBLE: CounterRefusal = CounterRefusal {
    id: catalogue::GPU_METRICS_UNSUPPORTED,
    why: "nsys sees no GPU of CUDA",
    remedy: "install the driver's libcuda.so.1 where nsys finds it, and check CUDA_VISIBLE_DEVICES",
};

/// Texts of refusals, most specific first.
const REFUSALS: &[(&str, CounterRefusal)] = &[
    ("ERR_NVGPUCTRPERM", COUNTERS_FORBIDDEN),
    ("Insufficient privilege", COUNTERS_FORBIDDEN),
    ("Already under profiling", COUNTERS_HELD),
    ("driver resource was unavailable", COUNTERS_HELD),
    ("unrecognised option '--gpu-metrics", OUTDATED),
    ("unrecognized option '--gpu-metrics", OUTDATED),
    ("None of the installed GPUs are supported", UNSUPPORTED),
    ("CUDA attributes are not available", NOT_VISIBLE),
    ("Illegal --gpu-metrics", UNSUPPORTED),
];

/// Returns the refusal in nsys' output.
pub fn find_refusal(lines: &[String]) -> Option<CounterRefusal> {
    let contains = |text: &str| lines.iter().any(|line| line.contains(text));
    REFUSALS.iter().find(|(text, _)| contains(text)).map(|(_, refusal)| *refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Option<&'static str> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        find_refusal(&lines).map(|it| it.id.id)
    }

    #[test]
    fn a_denied_or_held_counter_comes_before_the_rejected_option() {
        let rejected = "Illegal --gpu-metrics-devices argument: cuda-visible.\n";
        let forbidden =
            "Insufficient privilege, see https://developer.nvidia.com/ERR_NVGPUCTRPERM.";
        assert_eq!(id(&format!("{rejected}{forbidden}")), Some("counters_forbidden"));
        let held = "Illegal --gpu-metrics-devices usage.\nNone of the installed GPUs are \
                    supported:\n\tHopper GH100 | NVIDIA H200 PCI[0000:00:06.0] - Already under \
                    profiling";
        assert_eq!(id(held), Some("counters_held"));
        assert_eq!(id(rejected), Some("gpu_metrics_unsupported"));
    }

    #[test]
    fn a_gpu_without_metrics_and_an_old_nsys_are_named() {
        let none = "None of the installed GPUs are supported:\n\tTesla V100 PCI[0000:01:00.0]";
        assert_eq!(id(none), Some("gpu_metrics_unsupported"));
        let old = "unrecognised option '--gpu-metrics-devices=cuda-visible'";
        assert!(find_refusal(&[old.to_owned()]).unwrap().remedy.contains("2025.3"));
        let none = "GPU Metrics: CUDA attributes are not available. Please, specify GPUs by \
                    indices instead.";
        assert!(find_refusal(&[none.to_owned()]).unwrap().remedy.contains("libcuda.so.1"));
        assert_eq!(id("The application exited with code 1"), None);
    }
}
