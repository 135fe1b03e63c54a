//! Integration tests of the built programs, in one binary.

#![expect(clippy::unwrap_used, reason = "an unwrap is an assertion")]
#![expect(clippy::disallowed_macros, reason = "a skipped test states the reason")]

mod api;
mod clients;
mod load;
mod parse;
mod repository;
#[cfg_attr(not(feature = "simulation"), expect(dead_code, reason = "used by the tests below"))]
mod support;
mod ui;

// Services that run for minutes, fail and recover: `just test` runs them, `cargo test` does not.
#[cfg(feature = "simulation")]
mod recovery;
#[cfg(feature = "simulation")]
mod runs;
#[cfg(feature = "simulation")]
mod slurm;
