//! Types shared by all modules: runs, subjects, devices, models, profiling settings. Values
//! without I/O.

pub mod alignment;
pub mod command;
pub mod device;
pub mod device_peaks;
pub mod dtype;
pub mod finding;
pub mod ids;
pub mod image_limits;
pub mod import;
pub mod json_numbers;
pub mod legacy;
pub mod mode;
pub mod model;
pub mod named_values;
pub mod outcome;
pub mod part;
pub mod pass_conditions;
pub mod profiling;
pub mod run_files;
pub mod runner;
pub mod settings;
pub mod state;
pub mod subject;
pub mod units;
