//! The HTTP API and its contract.

pub mod access;
pub mod alignments;
pub mod artifacts;
pub mod audit;
mod compression;
pub mod connections;
pub mod cost;
pub mod diff;
mod history;
mod hostile;
mod hostile_inputs;
pub mod http;
pub mod imports;
mod inline;
pub mod inputs;
pub mod openapi;
mod quiet;
pub mod router;
pub mod series;
pub mod service;
mod sessions;
pub mod stated_models;
pub mod submissions;
pub mod tables;
pub mod targets;
mod traces;
pub mod uploads;
