//! The harness of the other tests.

pub mod captures;
pub mod deep;
pub mod disk;
pub mod golden;
pub mod models;
pub mod report_input;
pub mod service;
pub mod session;
