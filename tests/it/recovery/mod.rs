//! Kills, stops, power cuts, failing writes, damage, clock changes and upgrades.

pub mod clock;
pub mod damage;
pub mod exhaustion;
pub mod faults;
mod large_files;
mod nested_folders;
pub mod power_cut;
pub mod processes;
pub mod resume;
mod sessions;
pub mod stop_limit;
pub mod survive;
pub mod sweeps;
mod too_large;
pub mod upgrade;
