//! The harness of the other tests.

pub mod deep;
pub mod disk;
pub mod golden;
pub mod service;
pub mod session;
