//! Rules on sampled metrics, whose analysis finds the evidence.

use llmprof_core::{
    domain::finding::{Finding, Severity},
    trace::Trace,
};

use super::Rule;
use crate::Analysis;
use Severity::{Info, Warning};

pub const RULES: &[Rule] = &[
    Rule {
        id: "gpu_metrics_empty",
        severity: Warning,
        fires_on: "a capture that was to sample the GPU's metrics has no value of a known one",
        advice: "Check that the GPU has these metrics, and that no other profiler reads its \
                 counters.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_lacking",
        severity: Warning,
        fires_on: "fewer than 99 % of a GPU's samples in a stage have a value of a metric that \
                   every GPU has: active SMs, issue slots, tensor activity, warps, reads and \
                   writes of device memory",
        advice: "Check that the GPU has these metrics, and that no other profiler reads its \
                 counters.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_invalid",
        severity: Info,
        fires_on: "values of samples are outside the range of their metric, and left out",
        advice: "Export the report again with the nsys that took it.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_too_few",
        severity: Warning,
        fires_on: "samples span a stage, and those of the stage alone have too little of its \
                   kernels' time",
        advice: "Sample at a higher rate, repeat the stage more often, or profile stages that run \
                 at once apart.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_other_gpu",
        severity: Warning,
        fires_on: "kernels of a stage ran on a GPU of which a capture with samples has none",
        advice: "Sample all GPUs of the program.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_refused",
        severity: Warning,
        fires_on: "the GPU of samples is unknown: the export lists none of that number, several \
                   sources have it, or the numbers by which processes call several GPUs are \
                   missing",
        advice: "Export the report again with the nsys that took it, or sample one GPU alone.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_overflowed",
        severity: Warning,
        fires_on: "nsys lost samples because their buffer was full",
        advice: "Sample at a lower rate.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_without_kernels",
        severity: Warning,
        fires_on: "a capture has samples of the GPU's metrics and no kernels",
        advice: "Record kernels together with the samples.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_without_stages",
        severity: Info,
        fires_on: "a capture has samples of the GPU's metrics, and no stage with kernels",
        advice: "Name the ranges of the stages.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_do_not_span",
        severity: Warning,
        fires_on: "samples of the GPU's metrics start after a stage or end before it, cover less \
                   than 90 % of its device time, are more than their rate gives, or are displaced \
                   in time",
        advice: "Sample at a lower rate, from before the stage to after it.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_gaps",
        severity: Info,
        fires_on: "samples of the GPU's metrics in a stage are more than 1.5 periods apart",
        advice: "Sample at a lower rate if figures are missing.",
        max_saving: None,
        find: sampled,
    },
    Rule {
        id: "gpu_metrics_unresolved",
        severity: Info,
        fires_on: "samples resolve a metric for less than 90 % of a stage's kernel time",
        advice: "Raise profiling.gpu_metrics.repeats, or sample at a higher rate.",
        max_saving: None,
        find: sampled,
    },
];

fn sampled(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    analysis.sampled.findings.clone()
}
