//! The API: a file or folder per resource, with its handlers, their contract and examples.

pub mod alignments;
pub mod artifacts;
pub mod audit;
pub mod baselines;
pub mod captures;
pub mod cost;
pub mod deletion;
pub mod deliveries;
pub mod devices;
pub mod diff;
pub mod doctor;
pub mod events;
pub mod gates;
pub mod health;
pub mod inputs;
pub mod metrics;
pub mod models;
pub mod openapi;
pub mod profiling;
pub mod queue;
pub mod report;
pub mod retention;
pub mod runs;
pub mod series;
pub mod tables;
pub mod targets;
