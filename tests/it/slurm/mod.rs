//! Runs as jobs of Slurm.

mod answers;
pub mod bench;
pub mod cluster;
pub mod exhausted;
pub mod held;
pub mod jobs;
