//! Captures from files to figures.

pub mod captures;
pub mod changes;
mod clocks;
pub mod collectives;
mod duplicates;
pub mod engine_steps;
mod engines;
mod first_page;
mod foreign;
pub mod fuzz;
pub mod gemms;
pub mod graphs;
mod host_cpu;
mod inferred_steps;
pub mod invariants;
pub mod kineto;
pub mod malicious;
pub mod partial;
pub mod perfetto;
mod profilers;
pub mod regions;
mod relations;
pub mod sampled;
pub mod stated;
pub mod subjects;
pub mod sums;
pub mod timeline;
