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
pub use work::{kernels, kernels_full, operators};

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
