//! The repository: the imports and futures of its sources, its kernels, its deployment files, its
//! documents.

pub mod architecture;
pub mod deployment;
pub mod documents;
mod facts;
pub mod futures;
pub mod kernels;
mod unbounded_work;
