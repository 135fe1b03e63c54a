//! Tables: one schema per table, and every form that derives from it.
//!
//! [`schema`] defines columns; each file of a subject lists the columns of its records and picks
//! the columns of reports. [`run_tables()`] writes the tables as data, [`stored`] reads them.

mod aggregates;
mod collectives;
mod costs;
mod counters;
pub(super) mod csv;
mod engine_steps;
pub mod filter;
mod gemms;
mod gpu;
mod host_cpu;
mod kernels;
mod ledger;
mod memory;
mod operators;
mod overview;
mod power;
mod regions;
pub mod report_table;
mod requests;
mod roofline;
mod run_facts;
mod run_tables;
mod sampled;
mod samples;
pub mod schema;
mod stages;
mod step;
mod step_times;
pub mod stored;
mod traced;
mod utilisation;

use llmprof_analyze::{Analysis, cost::Cost, stages::StageTiming};
use llmprof_core::trace::Trace;

use super::RunFacts;

pub use self::{
    aggregates::aggregates,
    collectives::{collectives, ranks},
    costs::{cost_table, costs, module_costs},
    counters::counters,
    engine_steps::{engine_steps, step_batches},
    gemms::gemms,
    gpu::{processes, stage_gpu, whole_graphs},
    host_cpu::{host_functions, host_stages, host_takers, host_threads},
    kernels::{kernels, kernels_full, stage_kernels},
    ledger::{ledger, ledger_members, ledger_stages},
    memory::memory,
    operators::{modules, operators, operators_by_path},
    overview::environment,
    power::power,
    regions::regions,
    report_table::ReportTable,
    requests::{request_latency, request_loads, requests},
    roofline::roofline,
    run_facts::{NO_MESSAGE, expert_use, input_files, run_steps},
    run_tables::{CSV_FILES, RunTable, TABLES_VERSION, run_tables},
    sampled::{sampled_kernels, sampled_operators, sampled_stages},
    samples::samples,
    stages::{overhead, stage_shares, stages},
    step::{decode_step, step_slices},
    step_times::step_times,
    traced::{api_calls, call_sites, classes, ranges},
    utilisation::{mfu, operator_mfu},
};

/// The six tables of every report, in order; the environment is the last section.
pub fn six(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> Vec<ReportTable> {
    vec![
        aggregates(analysis),
        stages(analysis),
        mfu(analysis),
        operators(analysis),
        kernels(facts, trace, analysis),
        environment(facts, analysis),
    ]
}

/// Only the table of stages.
pub fn stage_table(rows: &[StageTiming]) -> RunTable<'_> {
    RunTable::new("stages", stages::columns(), rows)
}

/// The operators of a static cost as CSV.
pub fn cost_csv(cost: &Cost) -> String {
    RunTable::new("costs.modules", costs::columns(), &cost.modules).csv()
}
