//! Collects what a run asks for: the only place that starts processes.

pub mod argv;
pub mod child;
pub mod lines;
pub mod output;
pub mod sweep;
