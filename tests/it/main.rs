//! Integration tests of the built programs, in one binary.

#![expect(clippy::unwrap_used, reason = "an unwrap is an assertion")]

mod api;
mod clients;
mod load;
mod parse;
mod recovery;
mod repository;
mod runs;
mod slurm;
mod support;
mod ui;
