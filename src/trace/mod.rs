//! What happened, as plain values: ranges, operators, kernels, calls, counters.
//!
//! Imports nothing of ours but [`crate::run`]: no files, no database, no opinion. `parse` fills these, `analyze` reads them.

pub mod checkup;
pub mod command;
pub mod counter;
pub mod device;
pub mod environment;
pub mod event;
pub mod gemm;
pub mod kernel;
pub mod names;
pub mod nsys;
pub mod power;
pub mod range;
pub mod stage;
pub mod unclosed;
pub mod units;

use crate::run::{Finding, SubjectKind};
use command::CommandTrace;
use counter::LaunchCounters;
use environment::Environment;
use event::Event;
use gemm::GemmTrace;
use nsys::NsysTrace;
use power::PowerLog;

/// Everything that the passes of one run left, read into memory.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// What ran, which decides what can be known of it.
    pub subject: SubjectKind,
    pub environment: Environment,
    /// Events of the plain pass: the only source of reported timings.
    pub baseline: Vec<Event>,
    /// Events of the runner while nsys watched it.
    pub traced: Vec<Event>,
    /// What was timed of a command; absent where a runner of ours ran.
    pub command: Option<CommandTrace>,
    /// What nsys recorded.
    pub nsys: Option<NsysTrace>,
    /// What ncu read, of every stage.
    pub counters: Vec<LaunchCounters>,
    /// What the libraries of matrix products logged.
    pub gemms: Option<GemmTrace>,
    /// Power and clocks of the device beside the plain pass.
    pub power: Option<PowerLog>,
    /// What the passes could not collect, said where it was noticed.
    pub findings: Vec<Finding>,
}
