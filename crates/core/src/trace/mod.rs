//! Recorded facts of a run as plain values: ranges, operators, kernels, calls, counters.
//!
//! Imports only [`crate::domain`]: no files, no database, no interpretation. `parse` fills these
//! types, `analyze` reads them.

pub mod call_index;
pub mod checkup;
pub mod clocks;
pub mod collectives;
pub mod command;
pub mod copies;
pub mod counter;
pub mod engine_steps;
pub mod engines;
pub mod environment;
pub mod event;
pub mod framework;
pub mod gemm;
pub mod gpu_metrics;
pub mod graph_capture;
pub mod graph_numbers;
pub mod host_cpu;
pub mod inferred_steps;
pub mod interner;
pub mod interval;
pub mod kernel;
pub mod names;
pub mod operator_ranges;
pub mod os_call;
pub mod packed;
pub mod power;
pub mod range;
pub mod requests;
pub mod runtime_call;
pub mod stage;
pub mod timeline;
pub mod unclosed;
pub mod untimed;
pub mod windows;
pub mod xla;

use crate::domain::{finding::Finding, profiling::Profiling, subject::SubjectKind};
use command::CommandTrace;
use counter::LaunchCounters;
use environment::Environment;
use event::Event;
use gemm::GemmTrace;
use power::PowerLog;
use timeline::Timeline;

/// Data of all passes of one run, in memory.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Kind of the profiled subject; determines which data can exist.
    pub subject: SubjectKind,
    /// Settings of the passes; `None` for imports and old runs.
    pub settings: Option<Profiling>,
    pub environment: Environment,
    /// Events of the unprofiled pass: the only source of reported timings.
    pub baseline: Vec<Event>,
    /// Events that the runner wrote under nsys.
    pub traced: Vec<Event>,
    /// Wall times of a command; absent for the model runner.
    pub command: Option<CommandTrace>,
    /// The timeline of the traced pass, or of an import.
    pub timeline: Option<Timeline>,
    /// Traces of a command's pass under the profiler of PyTorch.
    pub pytorch: Option<Timeline>,
    /// Captures of nsys with samples of the GPU's metrics, one for each rate.
    pub sampled: Vec<Timeline>,
    /// ncu counters of all stages.
    pub counters: Vec<LaunchCounters>,
    /// Logs of the GEMM libraries.
    pub gemms: Option<GemmTrace>,
    /// Power and clocks sampled during the unprofiled pass.
    pub power: Option<PowerLog>,
    /// Decode steps of one repeat, as a reader or the sender of a capture states them without the
    /// model.
    pub stated_steps: Option<u64>,
    /// Gaps in the collected data, recorded by the steps that noticed them.
    pub findings: Vec<Finding>,
}
