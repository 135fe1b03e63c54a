//! Rules on clocks and power.

use llmprof_core::{
    domain::finding::{Finding, Severity},
    trace::Trace,
};

use super::Rule;
use crate::{Analysis, power};
use Severity::{Info, Warning};

pub const RULES: &[Rule] = &[
    Rule {
        id: "gpu_throttled",
        severity: Warning,
        fires_on: "the clocks were throttled during part of a stage",
        advice: "Remove the cause of throttling: power limit, cooling, power supply.",
        max_saving: None,
        find: power_findings,
    },
    Rule {
        id: "power_of_whole_gpu",
        severity: Info,
        fires_on: "the run was on an instance of a GPU (MIG)",
        advice: "Keep the GPU's other instances idle where energy matters.",
        max_saving: None,
        find: power_findings,
    },
];

fn power_findings(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    analysis.power.iter().flat_map(power::findings).collect()
}
