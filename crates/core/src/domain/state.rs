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

impl StepRecord {
    /// The step of a run in `state`, which ended `at`: a step without a recorded end, as of a
    /// dropped journal, ended with its run.
    pub fn within_run(self, state: RunState, at: Option<&str>) -> Self {
        if !state.is_final() || self.state != StepState::Running {
            return self;
        }
        let state = match state {
            RunState::Succeeded => StepState::Succeeded,
            RunState::Cancelled => StepState::Cancelled,
            _ => StepState::Failed,
        };
        let unrecorded = || "its end was not recorded; it ended with the run".to_owned();
        let message = self.message.unwrap_or_else(unrecorded);
        Self { state, ended_at: at.map(str::to_owned), message: Some(message), ..self }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_without_an_end_ends_with_its_run_and_other_steps_stay() {
        let step = |state, ended_at: Option<&str>| StepRecord {
            step: Step::Baseline,
            state,
            started_at: "2026-01-01T00:00:00Z".into(),
            ended_at: ended_at.map(str::to_owned),
            exit_code: None,
            message: None,
        };
        let (of_step, of_run) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z");
        for (run, expected) in [
            (RunState::Queued, StepState::Running),
            (RunState::Running, StepState::Running),
            (RunState::Succeeded, StepState::Succeeded),
            (RunState::Partial, StepState::Failed),
            (RunState::Failed, StepState::Failed),
            (RunState::Cancelled, StepState::Cancelled),
        ] {
            let read = step(StepState::Running, None).within_run(run, Some(of_run));
            let end = run.is_final().then_some(of_run);
            assert_eq!((read.state, read.ended_at.as_deref()), (expected, end), "{run}");
            assert_eq!(read.message.is_some(), run.is_final(), "{run}");
            let ended = step(StepState::Succeeded, Some(of_step));
            assert_eq!(ended.clone().within_run(run, Some(of_run)), ended, "{run}");
        }
    }
}
