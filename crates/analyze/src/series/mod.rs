//! Series of comparable runs: change points, noise between runs of one build, and the decision of
//! a gate.
//!
//! Pure arithmetic over headline figures. The formulas are in specs/series.md.

pub mod change_points;
pub mod gate;
pub mod gate_decision;
pub mod gate_thresholds;
pub mod noise;
#[cfg(test)]
mod tests;
