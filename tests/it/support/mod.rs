//! The harness of the other tests.

pub mod golden;
pub mod service;
