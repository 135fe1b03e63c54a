//! Runs as jobs of Slurm.

pub mod bench;
pub mod cluster;
pub mod held;
pub mod jobs;
