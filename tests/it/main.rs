//! The integration tests, one binary: what the built programs do, seen from outside.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails, and says where")]

mod access;
mod align;
mod alignments;
mod api;
mod architecture;
mod artifacts;
mod browser;
mod captures;
mod clock;
mod cluster;
mod commands;
mod cost;
mod deployment;
mod diff;
mod execute;
mod fuzz;
mod gpu;
mod graphs;
mod h200;
mod held;
mod http;
mod imports;
mod invariants;
mod keep;
mod kernels;
mod nsys;
mod openapi;
mod page;
mod pages;
mod partial;
mod report;
mod runner;
mod runs;
mod service;
mod serving;
mod slurm;
mod subjects;
mod sums;
mod survive;
mod tables;
mod targets;
mod timeline;
