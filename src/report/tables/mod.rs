//! The report's tables, one function each. The six of every report, in order, are in [`six`].
//!
//! Arranges figures that analysis made; computes none.

mod appendix;
mod overview;
mod work;

pub use appendix::{costs, experts, inputs, modules, operators_by_path, outputs_and_overhead, stage_kernels, steps};
pub use overview::{aggregates, environment, mfu, stages};
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

const NO_TIMES: &str = "The plain pass left no measured repeat.";
const NO_TIMES_REMEDY: &str = "Look at the baseline step's message and log.";
