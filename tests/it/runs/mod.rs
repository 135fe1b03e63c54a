//! Runs, as processes, from submission to report.

pub mod align;
pub mod backup;
mod batches;
pub mod command_gpus;
pub mod command_servers;
pub mod commands;
pub mod config_again;
mod execute;
pub mod failures;
pub mod gpu;
pub mod h200;
pub mod keep;
pub mod lifecycle;
pub mod loads;
pub mod nsys;
pub mod permission;
pub mod portable;
pub mod presets;
pub mod private_files;
pub mod report;
pub mod runner;
pub mod samples;
pub mod serving;
mod session_failures;
mod sessions;
pub mod stored_inputs;
mod torch_profiler;
