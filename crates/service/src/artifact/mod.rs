//! Files of a run: their names, the manifest, the bundle, and their storage.

pub mod backup;
pub mod bundle;
pub mod data_folder;
pub mod dropped_files;
pub mod durable;
pub mod finished_passes;
pub mod folder;
pub mod free_space;
pub mod import_staging;
pub mod inputs;
pub mod inspection;
pub mod journal;
pub mod manifest;
pub mod packed;
pub mod samples;
pub mod size_limit;
pub mod temporary;
pub mod verify;
mod walk;

#[cfg(test)]
mod stop_tests;
