//! Records of the model runner, by pass.

use serde::{Deserialize, Serialize};

use super::ProfilingError;
use crate::domain::{named_values::named_values, subject::RunSpec};

named_values! {
    /// A pass of the model runner.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    RunnerPass {
        Baseline = "baseline",
        Nsys = "nsys",
        GpuMetrics = "gpu_metrics",
        Ncu = "ncu",
        GemmLog = "gemm_log",
    }
}

/// Records of the model runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunnerSettings {
    /// Passes in which operators are recorded, as events.
    #[cfg_attr(feature = "schema", schema(max_items = 5))]
    pub operators: Vec<RunnerPass>,
    /// Passes of `operators` in which operators are NVTX ranges, too: windows of Nsight Systems
    /// show the ranges, and each costs the host about a microsecond. If `nsys` is not listed, its
    /// ranges are made from the events.
    #[serde(default = "every_pass")]
    #[cfg_attr(feature = "schema", schema(max_items = 5))]
    pub operator_ranges: Vec<RunnerPass>,
    /// Passes that store the generated texts.
    #[cfg_attr(feature = "schema", schema(max_items = 5))]
    pub predictions: Vec<RunnerPass>,
    /// Executes the first sample once more after the unprofiled pass, to record device memory by
    /// stage and operator.
    pub memory: bool,
}

impl Default for RunnerSettings {
    /// Settings of stored runs that have none.
    fn default() -> Self {
        let all = every_pass();
        Self {
            operators: all.clone(),
            operator_ranges: all.clone(),
            predictions: all,
            memory: false,
        }
    }
}

fn every_pass() -> Vec<RunnerPass> {
    RunnerPass::ALL.to_vec()
}

impl RunnerSettings {
    pub(super) fn check(&self) -> Result<(), ProfilingError> {
        for (key, list) in lists(self) {
            for (at, pass) in list.iter().enumerate() {
                if list[..at].contains(pass) {
                    return Err(ProfilingError::Wrong(format!(
                        "runner.{key}: {pass} is listed twice; list each pass once"
                    )));
                }
            }
        }
        Ok(())
    }

    /// A sentence for each setting that differs from `preset` and has no effect on the run of
    /// `spec`, which runs the passes for which `runs` is true.
    pub(super) fn unused(
        &self,
        preset: &Self,
        spec: &RunSpec,
        runs: impl Fn(RunnerPass) -> bool,
    ) -> Vec<String> {
        let pairs = || lists(self).into_iter().zip(lists(preset));
        if spec.workload().is_none() {
            let changed = pairs().filter(|((_, own), (_, preset))| own != preset);
            let memory = (self.memory != preset.memory).then_some("memory");
            let changed = changed.map(|((key, _), _)| key).chain(memory);
            let keys: Vec<String> = changed.map(|key| format!("profiling.runner.{key}")).collect();
            let note = || {
                format!("no effect: {}; a command does not use the model runner", keys.join(", "))
            };
            return if keys.is_empty() { Vec::new() } else { vec![note()] };
        }
        let note = |key: &str, passes: Vec<&str>, why: &str| {
            let note = format!("no effect: {} in profiling.runner.{key}; {why}", passes.join(", "));
            (!passes.is_empty()).then_some(note)
        };
        let mut notes = Vec::new();
        for ((key, own), (_, preset)) in pairs() {
            let idle = RunnerPass::ALL
                .iter()
                .filter(|pass| own.contains(pass) && !preset.contains(pass) && !runs(**pass));
            let idle = idle.map(|pass| pass.as_str()).collect();
            notes.extend(note(key, idle, "the pass does not run"));
        }
        let without_operators = self.operator_ranges.iter().filter(|pass| {
            let is_listed = preset.operator_ranges.contains(pass) || self.operators.contains(pass);
            !is_listed && runs(**pass)
        });
        let without_operators = without_operators.map(|pass| pass.as_str()).collect();
        let why = "list the pass in profiling.runner.operators, too";
        notes.extend(note("operator_ranges", without_operators, why));
        notes
    }
}

/// The lists of passes, by key.
fn lists(it: &RunnerSettings) -> [(&'static str, &[RunnerPass]); 3] {
    [
        ("operators", &it.operators),
        ("operator_ranges", &it.operator_ranges),
        ("predictions", &it.predictions),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_is_listed_twice_is_refused_by_name() {
        let twice = vec![RunnerPass::Nsys, RunnerPass::Ncu, RunnerPass::Nsys];
        let settings = RunnerSettings { predictions: twice, ..RunnerSettings::default() };
        assert_eq!(
            settings.check().unwrap_err().to_string(),
            "runner.predictions: nsys is listed twice; list each pass once"
        );
        assert!(RunnerSettings::default().check().is_ok());
    }
}
