//! The report's tables, one function each. The six of every report, in order, are in [`six`].
//!
//! Arranges figures that analysis made; computes none.

mod appendix;
mod device;
mod overview;
mod power;
mod roofline;
mod step;
mod traced;
mod work;

pub use appendix::{
    cost_table, costs, experts, inputs, module_costs, modules, operators_by_path, outputs_and_overhead, stage_kernels, steps,
};
pub use device::{counters, gemms};
pub use overview::{aggregates, environment, mfu, stages};
pub use power::{power, power_csv};
pub use roofline::{operator_mfu, regions, roofline};
pub use step::{decode_step, step_slices};
pub use traced::{api_calls, classes, processes, ranges, recorded_only_note, stage_gpu, whole_graphs};
pub use work::{kernels, operators};

use super::{RunFacts, table::Table};
use crate::{analyze::Analysis, trace::Trace};

/// The six tables in the order of every report.
pub fn six(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> Vec<Table> {
    vec![
        environment(facts, analysis),
        aggregates(analysis),
        stages(analysis),
        mfu(analysis),
        operators(analysis),
        kernels(facts, trace, analysis),
    ]
}

/// Which pass times are of: `the plain pass`, unless there was none.
fn pass(analysis: &Analysis) -> &'static str {
    if analysis.only_traced && analysis.command.is_some() {
        return "the traced pass, for the plain one tells no stages";
    }
    if analysis.only_traced { "the traced pass, for there is no plain one" } else { "the plain pass" }
}

/// Why there are no times of stages, and what to do.
fn no_times(analysis: &Analysis) -> (&'static str, &'static str) {
    if analysis.command.is_some() {
        return (
            "No range of the command is a stage.",
            "Name its ranges in its stages (targets.toml), or have it open ranges called prefill and decode_all.",
        );
    }
    (NO_TIMES, NO_TIMES_REMEDY)
}

const NO_TIMES: &str = "The plain pass left no measured repeat.";
const NO_TIMES_REMEDY: &str = "Look at the baseline step's message and log.";
