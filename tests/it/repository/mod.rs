//! Checks of the repository: packages with their imports and futures, kernels, deployment files,
//! documents.

pub mod architecture;
pub mod deployment;
pub mod documents;
mod facts;
pub mod futures;
mod gpu_checks;
mod invariants;
pub mod kernels;
mod modules;
mod owners;
mod packages;
mod scripts;
pub mod sources;
mod unbounded_work;
