//! llmprof: GPU profiling for LLM inference as a service.
//!
//! The contents page, in the order in which a run flows. What each part may import is in ARCHITECTURE.md, and a test holds
//! the sources to it.

pub mod config;
pub mod model;
pub mod run;
pub mod runner;

pub mod http;
pub mod store;
pub mod worker;

pub mod collect;
pub mod parse;
pub mod trace;

pub mod analyze;
pub mod report;

pub mod artifact;
