//! The integration tests, one binary: what the built programs do, seen from outside.

mod captures;
mod report;
mod runner;
