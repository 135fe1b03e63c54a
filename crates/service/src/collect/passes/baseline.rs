//! The unprofiled pass of model-runner, with power and clocks sampled during it.

use std::path::Path;

use llmprof_core::{
    domain::{
        profiling::NvmlSettings,
        runner::{self, RunnerRequest},
    },
    layout,
};

use super::pass::{CollectError, Pass, PassFolder};
use crate::collect::{Collector, ProcessLimits, gpu::sampler::Samplers, host::load::LoadWatch};

impl Collector {
    /// Runs the unprofiled pass, the only source of timings: only the runner, into `baseline/`. A
    /// GPU is sampled during it.
    pub async fn baseline(
        &self,
        dir: &Path,
        request: &RunnerRequest,
        nvml: &NvmlSettings,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let folder = PassFolder::create(self, dir, layout::BASELINE)?;
        let sampled = request.gpu.as_deref().filter(|_| nvml.enabled);
        // Only power readings need the steady repeats.
        let steady_ms = if sampled.is_some() { nvml.steady_ms } else { 0 };
        let runner = self.runner_argv(&RunnerRequest { steady_ms, ..request.clone() }, &folder)?;
        let samplers = Samplers::start(request.gpu.as_slice(), dir, nvml);
        let load = LoadWatch::start();
        let pass = folder.run("the model runner", "baseline", &runner, limits).await;
        let load = load.stop(self.host_busy_pct).await;
        let not_sampled = samplers.stop().await;
        let mut pass = pass?;
        folder.write_load(&load)?;
        pass.findings.extend(not_sampled);
        folder.require(runner::EVENTS, "the model runner", "baseline")?;
        Ok(pass)
    }
}

#[cfg(test)]
mod tests;
