//! Rules on sampled metrics, whose analysis finds the evidence.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::Trace,
};

use super::Rule;
use crate::Analysis;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::GPU_METRICS_EMPTY, find: sampled },
    Rule { id: catalogue::GPU_METRICS_LACKING, find: sampled },
    Rule { id: catalogue::GPU_METRICS_INVALID, find: sampled },
    Rule { id: catalogue::GPU_METRICS_TOO_FEW, find: sampled },
    Rule { id: catalogue::GPU_METRICS_OTHER_GPU, find: sampled },
    Rule { id: catalogue::GPU_METRICS_REFUSED, find: sampled },
    Rule { id: catalogue::GPU_METRICS_OVERFLOWED, find: sampled },
    Rule { id: catalogue::GPU_METRICS_WITHOUT_KERNELS, find: sampled },
    Rule { id: catalogue::GPU_METRICS_WITHOUT_STAGES, find: sampled },
    Rule { id: catalogue::GPU_METRICS_DO_NOT_SPAN, find: sampled },
    Rule { id: catalogue::GPU_METRICS_GAPS, find: sampled },
    Rule { id: catalogue::GPU_METRICS_UNRESOLVED, find: sampled },
];

fn sampled(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    analysis.sampled.findings.clone()
}
