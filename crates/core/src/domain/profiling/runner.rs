//! Records of the model runner, by pass.

use serde::{Deserialize, Serialize};

use super::ProfilingError;
use crate::domain::named_values::named_values;

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
        let lists = [
            ("operators", &self.operators),
            ("operator_ranges", &self.operator_ranges),
            ("predictions", &self.predictions),
        ];
        for (key, list) in lists {
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
