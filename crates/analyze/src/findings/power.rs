//! Rules on clocks and power.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::Trace,
};

use super::Rule;
use crate::{Analysis, power};

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::GPU_THROTTLED, find: power_findings },
    Rule { id: catalogue::POWER_OF_WHOLE_GPU, find: power_findings },
];

fn power_findings(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    analysis.power.iter().flat_map(power::findings).collect()
}
