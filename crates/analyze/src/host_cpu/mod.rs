//! Threads on the cores of the host, of captures with CPU samples or context switches: what the
//! thread that launches work did while a GPU idled, and who was on its core meanwhile.

mod cores;
mod findings;
mod gaps;
mod names;
mod threads;

use serde::{Deserialize, Serialize};

pub use self::{
    cores::Cores,
    findings::RULES,
    gaps::{GapTables, HostGaps},
    names::Names,
};
use llmprof_core::{domain::units::Nanos, trace::timeline::Timeline};

use crate::timeline::withheld::{TimelineFigure, Withheld};

/// Min share of calls that start while their thread is on a core, percent: below it, the calls
/// contradict the switches.
const PROVEN_PCT: f64 = 95.0;

/// Tables of the host's cores. Times are of the traced pass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HostCpuTables {
    /// True if the threads of all processes were recorded, false if the profiled command and its
    /// programs alone were; `null` if the capture does not show it.
    pub is_system_wide: Option<bool>,
    /// Time between the first and the last switch of a thread, ms; `null` without switches.
    pub recorded_ms: Option<f64>,
    /// Switches without a counterpart, whose times are left out.
    pub unpaired_switches: u64,
    /// Share of the calls of CUDA that start while their thread is on a core, percent: below 95,
    /// the switches were recorded at other times, and the tables of stages are empty.
    pub calls_on_core_pct: Option<f64>,
    /// Threads, longest on cores first.
    pub threads: Vec<HostThread>,
    /// Launching threads by stage, while a GPU idled because nothing was launched.
    pub stages: Vec<HostStage>,
    /// Threads on the core that a launching thread had left meanwhile, longest first in each stage.
    pub takers: Vec<CoreTaker>,
    /// Functions that launching threads executed meanwhile, most samples first in each stage.
    pub functions: Vec<GapFunction>,
}

impl HostCpuTables {
    /// The tables of a capture with switches or samples.
    pub fn of(trace: &Timeline, cores: &Cores, gaps: GapTables) -> Self {
        let host = trace.host_cpu.as_ref();
        let bounds = host.and_then(|it| it.bounds);
        let GapTables { stages, takers, functions } = gaps;
        Self {
            is_system_wide: host.and_then(|it| it.is_system_wide),
            recorded_ms: bounds.map(|(from, to)| Nanos(to - from).as_ms()),
            unpaired_switches: host.map_or(0, |it| it.unpaired),
            calls_on_core_pct: cores.calls_on_core_pct,
            threads: host.map(|it| threads::threads(it, trace)).unwrap_or_default(),
            stages,
            takers,
            functions,
        }
    }

    /// Removes the rows of stages whose idle time is withheld.
    pub fn withhold(&mut self, withheld: &Withheld) {
        let is_kept = |stage: &str| !withheld.has(stage, TimelineFigure::HostThreads);
        self.stages.retain(|it| is_kept(&it.stage));
        self.takers.retain(|it| is_kept(&it.stage));
        self.functions.retain(|it| is_kept(&it.stage));
    }
}

/// A thread on the cores of the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HostThread {
    /// Process id; 0 for processes outside the PID namespace of nsys.
    #[cfg_attr(feature = "schema", schema(example = 4711))]
    pub process: u32,
    /// `null` if the capture lacks the name.
    #[cfg_attr(feature = "schema", schema(example = "python3"))]
    pub process_name: Option<String>,
    #[cfg_attr(feature = "schema", schema(example = 4711))]
    pub thread: u32,
    #[cfg_attr(feature = "schema", schema(example = "VLLM::EngineCore"))]
    pub thread_name: Option<String>,
    /// True if the thread made calls of CUDA that are recorded.
    pub calls_cuda: bool,
    /// Time on cores; `null` without switches, as are the next two.
    #[cfg_attr(feature = "schema", schema(example = 812.4))]
    pub on_core_ms: Option<f64>,
    /// Times that it was switched to a core.
    #[cfg_attr(feature = "schema", schema(example = 640))]
    pub switches: Option<u64>,
    /// Number of different cores.
    #[cfg_attr(feature = "schema", schema(example = 4))]
    pub cores: Option<u64>,
    /// Samples of the thread.
    #[cfg_attr(feature = "schema", schema(example = 1792))]
    pub samples: u64,
    /// Samples in the library of NVIDIA's driver, libcuda.
    #[cfg_attr(feature = "schema", schema(example = 210))]
    pub driver_samples: u64,
    /// The innermost function of most samples; `null` without samples or symbols.
    #[cfg_attr(feature = "schema", schema(example = "_PyEval_EvalFrameDefault"))]
    pub function: Option<String>,
    /// File that contains the function.
    #[cfg_attr(feature = "schema", schema(example = "libpython3.13.so.1.0"))]
    pub module: Option<String>,
    /// Its share of the samples of the thread, percent.
    #[cfg_attr(feature = "schema", schema(example = 43.1))]
    pub function_pct: Option<f64>,
}

/// The threads that launch the work of a stage, while a GPU idled because nothing was launched.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HostStage {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// That idle time, summed over GPUs: `idle_host_ms` of `stage_gpu`, if the thread is known.
    #[cfg_attr(feature = "schema", schema(example = 120.5))]
    pub idle_host_ms: f64,
    /// Part of it in which the thread was on a core; `null` without switches, as are the next
    /// three.
    #[cfg_attr(feature = "schema", schema(example = 80.2))]
    pub on_core_ms: Option<f64>,
    /// Part of it in which the thread was on no core.
    #[cfg_attr(feature = "schema", schema(example = 39.1))]
    pub off_core_ms: Option<f64>,
    /// Part of `off_core_ms` in which another thread was on the core that it had left.
    #[cfg_attr(feature = "schema", schema(example = 30.0))]
    pub taken_ms: Option<f64>,
    /// Part of it outside the recorded switches, or before the first of the thread.
    #[cfg_attr(feature = "schema", schema(example = 1.2))]
    pub unknown_ms: Option<f64>,
    /// Samples of the thread in it.
    #[cfg_attr(feature = "schema", schema(example = 512))]
    pub samples: u64,
}

/// A thread on the core that a launching thread had left, while a GPU idled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CoreTaker {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    #[cfg_attr(feature = "schema", schema(example = 815))]
    pub process: u32,
    #[cfg_attr(feature = "schema", schema(example = "rustc"))]
    pub process_name: Option<String>,
    #[cfg_attr(feature = "schema", schema(example = 817))]
    pub thread: u32,
    #[cfg_attr(feature = "schema", schema(example = "opt cgu.3"))]
    pub thread_name: Option<String>,
    /// Time on that core.
    #[cfg_attr(feature = "schema", schema(example = 21.5))]
    pub total_ms: f64,
    /// Share of `off_core_ms` of the stage, percent.
    #[cfg_attr(feature = "schema", schema(example = 55.0))]
    pub share_pct: Option<f64>,
}

/// A function that a launching thread executed while a GPU idled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GapFunction {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// `null` if the file has no symbols.
    #[cfg_attr(feature = "schema", schema(example = "_PyEval_EvalFrameDefault"))]
    pub function: Option<String>,
    /// File that contains it.
    #[cfg_attr(feature = "schema", schema(example = "libpython3.13.so.1.0"))]
    pub module: String,
    #[cfg_attr(feature = "schema", schema(example = 220))]
    pub samples: u64,
    /// Share of the samples in the gaps of the stage, percent.
    #[cfg_attr(feature = "schema", schema(example = 43.0))]
    pub share_pct: Option<f64>,
}
