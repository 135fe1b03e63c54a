//! The service: queue, workers, collection of captures, storage, HTTP and MCP.
//!
//! The contents page, in the order in which a run flows. What each part may import is in
//! ARCHITECTURE.md, and a test holds the sources to it.

pub mod config;
pub mod job;
pub mod scheduler;
pub mod tasks;

pub mod http;
pub mod mcp;
pub mod store;

pub mod collect;
pub mod load;
pub mod measuring;
pub mod runtime;

pub mod artifact;
pub mod build;
