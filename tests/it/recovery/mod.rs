//! Kills, stops, clock changes and upgrades.

pub mod clock;
mod processes;
pub mod survive;
pub mod upgrade;
