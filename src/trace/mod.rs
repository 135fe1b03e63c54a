//! What happened, as plain values: ranges, operators, kernels, calls, counters.
//!
//! Imports nothing of ours but [`crate::run`]: no files, no database, no opinion. `parse` fills these, `analyze` reads them.

pub mod environment;
pub mod event;
pub mod kernel;
pub mod nsys;
pub mod range;
pub mod units;

use crate::run::Finding;
use environment::Environment;
use event::Event;
use nsys::NsysTrace;

/// Everything that the passes of one run left, read into memory.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    pub environment: Environment,
    /// Events of the plain pass: the only source of reported timings.
    pub baseline: Vec<Event>,
    /// Events of the runner while nsys watched it.
    pub traced: Vec<Event>,
    /// What nsys recorded.
    pub nsys: Option<NsysTrace>,
    /// What the passes could not collect, said where it was noticed.
    pub findings: Vec<Finding>,
}
