//! Kills, stops, clock changes and upgrades.

pub mod clock;
pub mod survive;
pub mod upgrade;
