//! Kills, stops, power cuts, damage, clock changes and upgrades.

pub mod clock;
pub mod damage;
pub mod power_cut;
pub mod processes;
pub mod survive;
pub mod upgrade;
