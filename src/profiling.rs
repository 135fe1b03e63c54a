//! What a mode means: every setting of the passes, as data that `conf/profiling/` holds and a request may change.
//!
//! Plain values, open to every module. What is written here is checked before it is stored, and goes to tools as single words.

mod change;

use std::{collections::BTreeMap, fmt, str::FromStr};

pub use change::{Change, ProfilingError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::{Mode, UnknownWord, words};

/// Mode and TOML of each bundled preset.
pub const PRESETS: &[(Mode, &str)] = &[
    (Mode::Deep, include_str!("../conf/profiling/deep.toml")),
    (Mode::Light, include_str!("../conf/profiling/light.toml")),
    (Mode::Basic, include_str!("../conf/profiling/basic.toml")),
];

/// What each mode means on this service.
pub type Presets = BTreeMap<Mode, Profiling>;

words! {
    /// What nsys traces.
    TraceApi {
        Cuda = "cuda",
        Nvtx = "nvtx",
        Osrt = "osrt",
        Cublas = "cublas",
        Cudnn = "cudnn",
    }
}

words! {
    /// What a CUDA graph looks like in the timeline: one row a launch, or one a kernel.
    GraphTrace {
        Node = "node",
        Graph = "graph",
    }
}

words! {
    /// Whose CPU use nsys watches.
    CpuScope {
        None = "none",
        ProcessTree = "process-tree",
        SystemWide = "system-wide",
    }
}

words! {
    /// The stage that is recorded alone, the first time that it runs; `none`: all of the process.
    CaptureRange {
        None = "none",
        Prefill = "prefill",
        DecodeAll = "decode_all",
    }
}

words! {
    /// What ncu runs again to measure more of a launch.
    ReplayMode {
        Kernel = "kernel",
        Application = "application",
    }
}

words! {
    /// Whether ncu locks the GPU's clocks while it measures.
    ClockControl {
        None = "none",
        Base = "base",
    }
}

/// Every setting of a run's passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Profiling {
    pub nsys: NsysSettings,
    pub ncu: NcuSettings,
    pub gemm_log: GemmLogSettings,
    pub nvml: NvmlSettings,
}

/// The timeline pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NsysSettings {
    pub enabled: bool,
    /// APIs that are traced on a GPU; stages are told by `nvtx`.
    #[schema(min_items = 1, max_items = 8)]
    pub trace: Vec<TraceApi>,
    /// The same for a run on the CPU.
    #[schema(min_items = 1, max_items = 8)]
    pub trace_on_cpu: Vec<TraceApi>,
    /// Seconds after the start until recording begins.
    #[schema(minimum = 0, maximum = 1800)]
    pub delay_s: u32,
    /// Seconds that are recorded; 0: to the end.
    #[schema(minimum = 0, maximum = 1800)]
    pub duration_s: u32,
    pub cuda_graph_trace: GraphTrace,
    pub sample: CpuScope,
    pub cpuctxsw: CpuScope,
    pub capture_range: CaptureRange,
    /// Traced repeats, no more than the run has.
    #[schema(minimum = 1, maximum = 100)]
    pub repeats: u32,
    /// Warm-ups before them, no more than the run has.
    #[schema(minimum = 0, maximum = 100)]
    pub warmup: u32,
    /// Tokens to generate in this pass, no more than the run has.
    #[schema(minimum = 1, maximum = 4096)]
    pub max_new_tokens: u32,
}

/// The passes that read counters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NcuSettings {
    pub enabled: bool,
    /// Kernels per stage, longest first.
    #[schema(minimum = 1, maximum = 50)]
    pub top_n: u32,
    /// Launches of each kernel and geometry.
    #[schema(minimum = 1, maximum = 20)]
    pub launches: u32,
    /// Most launches of one stage.
    #[schema(minimum = 1, maximum = 1000)]
    pub most_launches: u32,
    /// Share of a stage's kernel time below which a finding says what is covered, percent.
    #[schema(minimum = 0, maximum = 100)]
    pub min_share_pct: f64,
    /// Exact names of ncu's sections.
    #[schema(min_items = 1, max_items = 32)]
    pub sections: Vec<ToolWord>,
    /// Counters that are read where the device has them; a last `*` stands for any ending.
    #[schema(max_items = 64)]
    pub metrics: Vec<ToolWord>,
    pub replay_mode: ReplayMode,
    pub clock_control: ClockControl,
}

/// The passes that log matrix products.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GemmLogSettings {
    pub enabled: bool,
    /// Decode steps whose products are logged, no more than the run has.
    #[schema(minimum = 1, maximum = 64)]
    pub max_new_tokens: u32,
}

/// The sampler beside the plain pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NvmlSettings {
    pub enabled: bool,
    /// Readings a second; a device that renews them less often is read less often.
    #[schema(minimum = 1, maximum = 100)]
    pub hz: u32,
    /// How long each stage runs back to back after the last repeat, milliseconds, so that a device whose readings are slower than the stage can
    /// tell its power; 0 leaves it out.
    #[schema(minimum = 0, maximum = 60_000)]
    pub steady_ms: u32,
}

/// A name that is handed to a tool: letters, digits, `_`, `.` and a last `*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(min_length = 1, max_length = 128, pattern = r"^[A-Za-z0-9][A-Za-z0-9_.]*\*?$", example = "SpeedOfLight")]
pub struct ToolWord(pub String);

impl ToolWord {
    fn is_one(&self) -> bool {
        let stem = self.0.strip_suffix('*').unwrap_or(&self.0);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        self.0.len() <= 128 && stem.bytes().all(plain) && stem.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
    }
}

impl Profiling {
    /// The bundled preset of a mode.
    pub fn bundled(mode: Mode) -> Result<Self, ProfilingError> {
        let text = PRESETS.iter().find(|(known, _)| *known == mode).map_or("", |(_, text)| text);
        let profiling: Self = toml::from_str(text).map_err(|error| ProfilingError::Wrong(error.to_string()))?;
        profiling.check()?;
        Ok(profiling)
    }

    /// Refuses what a type alone lets through.
    pub fn check(&self) -> Result<(), ProfilingError> {
        let Self { nsys, ncu, gemm_log, nvml } = self;
        within("nsys.delay_s", nsys.delay_s, 0, 1800)?;
        within("nsys.duration_s", nsys.duration_s, 0, 1800)?;
        within("nsys.repeats", nsys.repeats, 1, 100)?;
        within("nsys.warmup", nsys.warmup, 0, 100)?;
        within("nsys.max_new_tokens", nsys.max_new_tokens, 1, 4096)?;
        within("ncu.top_n", ncu.top_n, 1, 50)?;
        within("ncu.launches", ncu.launches, 1, 20)?;
        within("ncu.most_launches", ncu.most_launches, 1, 1000)?;
        within("ncu.min_share_pct", ncu.min_share_pct, 0.0, 100.0)?;
        within("gemm_log.max_new_tokens", gemm_log.max_new_tokens, 1, 64)?;
        within("nvml.hz", nvml.hz, 1, 100)?;
        within("nvml.steady_ms", nvml.steady_ms, 0, 60_000)?;
        for (key, list) in [("nsys.trace", &nsys.trace), ("nsys.trace_on_cpu", &nsys.trace_on_cpu)] {
            within(&format!("length of {key}"), list.len(), 1, 8)?;
            if !list.contains(&TraceApi::Nvtx) {
                return Err(ProfilingError::Wrong(format!("{key} lacks nvtx, and without it there are no stages")));
            }
        }
        for (key, list, least, most) in [("ncu.sections", &ncu.sections, 1, 32), ("ncu.metrics", &ncu.metrics, 0, 64)] {
            within(&format!("length of {key}"), list.len(), least, most)?;
            if let Some(ToolWord(word)) = list.iter().find(|word| !word.is_one()) {
                let what = "letters, digits, _, . and a last * are taken, 128 at most";
                return Err(ProfilingError::Wrong(format!("{key}: {word:?} is no name of ncu's: {what}")));
            }
        }
        Ok(())
    }
}

impl NsysSettings {
    /// What is traced on this device.
    pub fn traced(&self, on_gpu: bool) -> &[TraceApi] {
        if on_gpu { &self.trace } else { &self.trace_on_cpu }
    }

    /// Whether the whole process is recorded, and so every stage.
    pub fn is_whole(&self) -> bool {
        self.delay_s == 0 && self.duration_s == 0 && self.capture_range == CaptureRange::None
    }
}

fn within<T: PartialOrd + fmt::Display>(key: &str, value: T, least: T, most: T) -> Result<(), ProfilingError> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(ProfilingError::Wrong(format!("{key}: {value} is not between {least} and {most}")))
}
