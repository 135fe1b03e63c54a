//! States of runs and of their steps.

use serde::{Deserialize, Serialize};

use super::named_values::named_values;

named_values! {
    /// State of a run. `partial`: something requested could not be collected, everything else is
    /// available.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    RunState {
        Queued = "queued",
        Running = "running",
        Succeeded = "succeeded",
        Partial = "partial",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

impl RunState {
    /// True once the run has ended: the state does not change again.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

named_values! {
    /// A step of a run, in execution order.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    Step {
        Preflight = "preflight",
        Baseline = "baseline",
        Nsys = "nsys",
        GpuMetrics = "gpu_metrics",
        Ncu = "ncu",
        GemmLog = "gemm_log",
        /// A command once more, under the profiler of PyTorch.
        TorchProfiler = "torch_profiler",
        /// Profiles the part alone and aligns it with the same part inside the whole model.
        Align = "align",
        Analyze = "analyze",
        Report = "report",
    }
}

named_values! {
    /// State of a step. `skipped`: not possible on this host; the message states why.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    StepState {
        Running = "running",
        Succeeded = "succeeded",
        Skipped = "skipped",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

/// One step of a run with its state and times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StepRecord {
    pub step: Step,
    pub state: StepState,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// RFC 3339, UTC; `null` while the step runs.
    pub ended_at: Option<String>,
    /// Exit code of the step's process; `null` without a process or after a signal.
    pub exit_code: Option<i32>,
    /// Failure or omission, and the remedy; or that the step finished in an earlier attempt.
    pub message: Option<String>,
}

/// State of a run's job in a cluster's scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Scheduled {
    /// The scheduler's job number.
    #[cfg_attr(feature = "schema", schema(example = "4711"))]
    pub job: String,
    /// The scheduler's name of the state.
    #[cfg_attr(feature = "schema", schema(example = "PENDING"))]
    pub state: String,
    /// The scheduler's reason for waiting: `Resources`, `Priority`, `Dependency`; `null` while the
    /// job runs.
    #[cfg_attr(feature = "schema", schema(example = "Resources"))]
    pub reason: Option<String>,
}
