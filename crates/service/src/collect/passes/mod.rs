//! Passes: executions of a target under one tool, each in its own folder.

mod baseline;
pub mod command;
pub mod counters;
pub mod failure;
mod gate;
mod gemm_log;
pub mod pass;
pub mod readiness;
pub mod server;
pub mod session;
mod session_run;
pub mod timeline;
mod torch_profiler;
mod window;
