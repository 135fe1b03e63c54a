//! Settings of the passes: presets by mode in `conf/profiling/`, which a request may change.
//!
//! Plain values. They are validated before they are stored, and each text becomes one argument of
//! a tool.

mod change;
mod cost;
mod cpu_sampling;
mod effect;
mod runner;

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize, de::IgnoredAny};

pub use self::{
    change::ProfilingError,
    cost::{LighterSetting, TracedWork},
    runner::{RunnerPass, RunnerSettings},
};
use crate::domain::{json_numbers::Within, mode::Mode, named_values::named_values};

/// Mode and TOML of each bundled preset, deepest first.
pub const PRESETS: [(Mode, &str); 3] = [
    (Mode::DEEP, include_str!("../../../../conf/profiling/deep.toml")),
    (Mode::LIGHT, include_str!("../../../../conf/profiling/light.toml")),
    (Mode::BASIC, include_str!("../../../../conf/profiling/basic.toml")),
];

/// The presets of this service by mode.
pub type Presets = BTreeMap<Mode, Preset>;

/// Settings of a mode, with one line for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    pub description: String,
    pub profiling: Profiling,
}

named_values! {
    /// An API that nsys traces.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    TraceApi {
        Cuda = "cuda",
        Nvtx = "nvtx",
        Osrt = "osrt",
        Cublas = "cublas",
        Cudnn = "cudnn",
    }
}

named_values! {
    /// Granularity of CUDA graphs in the timeline: one row per kernel or one per launch.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    GraphTrace {
        Node = "node",
        Graph = "graph",
    }
}

named_values! {
    /// Scope of nsys' CPU sampling.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    CpuScope {
        None = "none",
        ProcessTree = "process-tree",
        SystemWide = "system-wide",
    }
}

named_values! {
    /// The only stage to record, on its first execution; `none`: the whole process.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    CaptureRange {
        None = "none",
        Prefill = "prefill",
        DecodeAll = "decode_all",
    }
}

named_values! {
    /// Unit that ncu replays to collect more counters.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    ReplayMode {
        Kernel = "kernel",
        Application = "application",
    }
}

named_values! {
    /// GPU clock control of ncu during measurements.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    ClockControl {
        None = "none",
        Base = "base",
    }
}

/// All settings of a run's passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Profiling {
    #[serde(default)]
    pub runner: RunnerSettings,
    pub nsys: NsysSettings,
    #[serde(default)]
    pub gpu_metrics: GpuMetricsSettings,
    pub ncu: NcuSettings,
    pub gemm_log: GemmLogSettings,
    pub nvml: NvmlSettings,
}

/// Settings of the timeline pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NsysSettings {
    pub enabled: bool,
    /// APIs to trace on a GPU; `nvtx` is required for stages.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 8))]
    pub trace: Vec<TraceApi>,
    /// APIs to trace on the CPU.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 8))]
    pub trace_on_cpu: Vec<TraceApi>,
    /// Delay between the start of the process and the recording, seconds.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1800))]
    #[serde(deserialize_with = "Within::<0, 1800>::integer")]
    pub delay_s: u32,
    /// Duration of the recording, seconds; 0: to the end.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 1800))]
    #[serde(deserialize_with = "Within::<0, 1800>::integer")]
    pub duration_s: u32,
    pub cuda_graph_trace: GraphTrace,
    pub sample: CpuScope,
    pub cpuctxsw: CpuScope,
    pub capture_range: CaptureRange,
    /// Traced repeats, at most as many as in the run.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100))]
    #[serde(deserialize_with = "Within::<1, 100>::integer")]
    pub repeats: u32,
    /// Warm-up repeats before them, at most as many as in the run.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 100))]
    #[serde(deserialize_with = "Within::<0, 100>::integer")]
    pub warmup: u32,
    /// Tokens to generate in this pass, at most as many as in the run.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 4096))]
    #[serde(deserialize_with = "Within::<1, 4096>::integer")]
    pub max_new_tokens: u32,
}

/// Settings of the passes that sample the GPU's metrics next to a timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuMetricsSettings {
    pub enabled: bool,
    /// Samples per second, 10 to 200,000; a pass for each.
    #[serde(deserialize_with = "Within::<10, 200_000>::list")]
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 3))]
    pub rates_hz: Vec<u32>,
    /// Repeats of the model in these passes, independent of the run's repeats.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100))]
    #[serde(deserialize_with = "Within::<1, 100>::integer")]
    pub repeats: u32,
    /// Tokens to generate in these passes, at most as many as in the run.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 4096))]
    #[serde(deserialize_with = "Within::<1, 4096>::integer")]
    pub max_new_tokens: u32,
}

impl Default for GpuMetricsSettings {
    /// Settings of stored runs that have none.
    fn default() -> Self {
        Self { enabled: false, rates_hz: vec![20_000], repeats: 10, max_new_tokens: 64 }
    }
}

impl GpuMetricsSettings {
    fn check(&self) -> Result<(), ProfilingError> {
        check_range("length of gpu_metrics.rates_hz", self.rates_hz.len(), 1, 3)?;
        for (at, rate) in self.rates_hz.iter().enumerate() {
            if self.rates_hz[..at].contains(rate) {
                return Err(ProfilingError::Wrong(format!(
                    "gpu_metrics.rates_hz: {rate} is listed twice; list each rate once"
                )));
            }
        }
        Ok(())
    }
}

/// Settings of the counter passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NcuSettings {
    pub enabled: bool,
    /// Share of each stage's kernel time to cover, percent: kernels are selected until it is
    /// reached, and a finding reports a lower coverage.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 100))]
    #[serde(default = "default_target_pct")]
    pub target_pct: f64,
    /// Maximum number of launches of all stages.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1000))]
    #[serde(alias = "most_launches", deserialize_with = "Within::<1, 1000>::integer")]
    pub max_launches: u32,
    /// Launches of each kernel and launch configuration, the first ones: launches of one may take
    /// different times, and counters stand for launches of similar duration.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 64))]
    #[serde(
        default = "default_launches_per_config",
        deserialize_with = "Within::<1, 64>::integer"
    )]
    pub launches_per_config: u32,
    /// Maximum number of ncu processes; one is enough unless the symbols of the selected kernels
    /// are too long for one command.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 10))]
    #[serde(default = "default_max_processes", deserialize_with = "Within::<1, 10>::integer")]
    pub max_processes: u32,
    /// Also prints ncu's details page, with its advice.
    #[serde(default)]
    pub details: bool,
    /// Exact names of ncu's sections.
    #[cfg_attr(feature = "schema", schema(min_items = 1, max_items = 32))]
    pub sections: Vec<ToolWord>,
    /// Counters to read if the device has them; a trailing `*` matches any suffix.
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub metrics: Vec<ToolWord>,
    pub replay_mode: ReplayMode,
    pub clock_control: ClockControl,
    /// Settings of stored runs that have no effect any more.
    #[serde(default, skip_serializing, rename = "top_n")]
    #[cfg_attr(feature = "schema", schema(ignore))]
    #[doc(hidden)]
    pub removed_top_n: IgnoredAny,
    #[serde(default, skip_serializing, rename = "launches")]
    #[cfg_attr(feature = "schema", schema(ignore))]
    #[doc(hidden)]
    pub removed_launches: IgnoredAny,
    #[serde(default, skip_serializing, rename = "min_share_pct")]
    #[cfg_attr(feature = "schema", schema(ignore))]
    #[doc(hidden)]
    pub removed_min_share_pct: IgnoredAny,
}

const fn default_target_pct() -> f64 {
    90.0
}

const fn default_launches_per_config() -> u32 {
    1
}

const fn default_max_processes() -> u32 {
    4
}

/// Settings of the GEMM log passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GemmLogSettings {
    pub enabled: bool,
    /// Decode steps to log, at most as many as in the run.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 64))]
    #[serde(deserialize_with = "Within::<1, 64>::integer")]
    pub max_new_tokens: u32,
}

/// Settings of the sampler during the unprofiled pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NvmlSettings {
    pub enabled: bool,
    /// Readings per second; a device that updates them less often is read less often.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 100))]
    #[serde(deserialize_with = "Within::<1, 100>::integer")]
    pub hz: u32,
    /// Time for which each stage runs back to back after the last repeat, milliseconds, so that
    /// power readings slower than the stage cover it; 0 skips it.
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 60_000))]
    #[serde(deserialize_with = "Within::<0, 60_000>::integer")]
    pub steady_ms: u32,
}

/// A name in an argument of a tool: letters, digits, `_`, `.` and a `*` at its end or before a `.`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
#[cfg_attr(
    feature = "schema",
    schema(
        min_length = 1,
        max_length = 128,
        pattern = r"^[A-Za-z0-9][A-Za-z0-9_.]*(\*(\.[A-Za-z0-9_.]*)?)?$",
        example = "SpeedOfLight"
    )
)]
pub struct ToolWord(pub String);

impl ToolWord {
    fn is_valid(&self) -> bool {
        let (start, end) = self.0.split_once('*').unwrap_or((&self.0, ""));
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        self.0.len() <= 128
            && start.bytes().chain(end.bytes()).all(allowed)
            && (end.is_empty() || end.starts_with('.'))
            && start.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
    }
}

impl Profiling {
    /// The settings of a bundled preset.
    pub fn bundled(mode: &Mode) -> Result<Self, ProfilingError> {
        Preset::bundled(mode).map(|it| it.profiling)
    }

    /// Checks values that their types do not: shares, lists and names.
    pub fn check(&self) -> Result<(), ProfilingError> {
        let Self { runner, nsys, gpu_metrics, ncu, .. } = self;
        runner.check()?;
        gpu_metrics.check()?;
        check_range("ncu.target_pct", ncu.target_pct, 0.0, 100.0)?;
        for (key, list) in [("nsys.trace", &nsys.trace), ("nsys.trace_on_cpu", &nsys.trace_on_cpu)]
        {
            check_range(&format!("length of {key}"), list.len(), 1, 8)?;
            if !list.contains(&TraceApi::Nvtx) {
                return Err(ProfilingError::Wrong(format!(
                    "{key} lacks nvtx, which is required for stages"
                )));
            }
        }
        for (key, list, min, max) in
            [("ncu.sections", &ncu.sections, 1, 32), ("ncu.metrics", &ncu.metrics, 0, 64)]
        {
            check_range(&format!("length of {key}"), list.len(), min, max)?;
            if let Some(ToolWord(word)) = list.iter().find(|word| !word.is_valid()) {
                return Err(ProfilingError::Wrong(format!(
                    "{key}: {word:?} is not a valid name; expected at most 128 letters, digits, _ \
                     and ., with an optional * at the end or before a ."
                )));
            }
        }
        Ok(())
    }
}

/// The file of a bundled preset: its description, then the settings.
#[derive(Deserialize)]
struct BundledFile {
    description: String,
    #[serde(flatten)]
    profiling: toml::Table,
}

impl Preset {
    /// The bundled preset of a mode; an error for other modes.
    pub fn bundled(mode: &Mode) -> Result<Self, ProfilingError> {
        let wrong = |error: toml::de::Error| ProfilingError::Wrong(error.to_string());
        let known = PRESETS.iter().find(|(known, _)| known == mode);
        let (_, text) = known.ok_or_else(|| {
            let known = PRESETS.map(|(mode, _)| mode.to_string()).join(", ");
            ProfilingError::Wrong(format!("{mode:?} is not a bundled preset; expected {known}"))
        })?;
        let file: BundledFile = toml::from_str(text).map_err(wrong)?;
        let profiling: Profiling = file.profiling.try_into().map_err(wrong)?;
        profiling.check()?;
        Ok(Self { description: file.description, profiling })
    }
}

impl NsysSettings {
    /// APIs to trace on this device.
    pub fn trace_apis(&self, on_gpu: bool) -> &[TraceApi] {
        if on_gpu { &self.trace } else { &self.trace_on_cpu }
    }

    /// True if the whole process is recorded, and so every stage.
    pub fn records_all(&self) -> bool {
        self.delay_s == 0 && self.duration_s == 0 && self.capture_range == CaptureRange::None
    }
}

fn check_range<T: PartialOrd + fmt::Display>(
    key: &str,
    value: T,
    min: T,
    max: T,
) -> Result<(), ProfilingError> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(ProfilingError::Wrong(format!("{key}: {value} is not between {min} and {max}")))
}
