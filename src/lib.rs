//! llmprof: GPU profiling for LLM inference as a service.
//!
//! The contents page, in the order in which a run flows. What each part may import is in
//! ARCHITECTURE.md, and a test holds the sources to it.

pub mod config;
pub mod domain;
pub mod job;
pub mod pipeline;
pub mod scheduler;
pub mod tasks;

pub mod http;
pub mod mcp;
pub mod store;

pub mod collect;
pub mod load;
pub mod measuring;
pub mod parse;
pub mod runtime;
pub mod trace;

pub mod analyze;
pub mod report;

pub mod artifact;

/// An error with its causes, in one line: the only place where a chain is joined.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
