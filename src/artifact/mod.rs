//! What a run leaves: the name of every file, the manifest over them, and the bundle of all.

pub mod backup;
pub mod bundle;
pub mod folder;
pub mod inputs;
pub mod intake;
pub mod journal;
pub mod layout;
pub mod manifest;
pub mod packed;
pub mod verify;
