//! Compares the clocks of a GPU with the clocks of a finished unprofiled pass, under the same load:
//! a short unprofiled pass of one repeat. An idle GPU's clocks would not show how it works.
//!
//! A CPU has no clocks that can be read in the same way, and its runs are not compared.

use std::{fs, path::Path};

use llmprof_analyze::{parse, stats::median};
use llmprof_core::{
    domain::{
        pass_conditions::{ConditionChange, clock_change},
        profiling::Profiling,
        runner::RunnerRequest,
        state::Step,
    },
    layout,
    trace::power::PowerSample,
};

use super::super::{RunningJob, StoppedBy, timeline::TimelineTarget};
use crate::{collect::CommandRun, job::step_journal::StepResult};

impl RunningJob<'_> {
    /// Compares the median SM clock; returns both values, or the change.
    pub(super) async fn compare_clocks(
        &mut self,
        target: TimelineTarget<'_>,
        settings: &Profiling,
    ) -> Result<Result<String, ConditionChange>, StoppedBy> {
        let then = median_sm_mhz(&self.dir.join(layout::NVML));
        let check = self.dir.join(layout::CLOCK_CHECK);
        let now = match then {
            Some(_) => {
                self.run_clock_check(&check, target, settings).await;
                median_sm_mhz(&check.join(layout::NVML))
            }
            None => None,
        };
        if self.stop.is_cancelled() {
            let message = "the run was stopped while it compared the GPU's clocks";
            return Err(StoppedBy(StepResult::failed(message)));
        }
        Ok(match clock_change(then, now) {
            Some(change) => Err(change),
            None => {
                let [then, now] = [then, now].map(Option::unwrap_or_default);
                Ok(format!("{then:.0} MHz then, {now:.0} MHz now"))
            }
        })
    }

    /// Runs a short unprofiled pass into `dir`. If it fails, its clocks are unknown.
    async fn run_clock_check(
        &mut self,
        dir: &Path,
        target: TimelineTarget<'_>,
        settings: &Profiling,
    ) {
        let (limits, lines) = self.process_limits(Step::Baseline);
        let (collector, nvml) = (&self.host.collector, &settings.nvml);
        let made = fs::create_dir_all(dir);
        let pass = match target {
            TimelineTarget::Runner(request) => {
                let request = RunnerRequest {
                    repeats: 1,
                    warmup: request.warmup.min(1),
                    ceilings: false,
                    ..request.clone()
                };
                collector.baseline(dir, &request, nvml, &limits).await
            }
            TimelineTarget::Command(run) => {
                let run = CommandRun { warmup: 0, repeats: 1, ..run.clone() };
                collector.unprofiled_command(dir, &run, nvml, &limits).await
            }
        };
        drop(limits);
        lines.await.ok();
        if let (Err(error), _) | (_, Err(error)) = (
            made.map_err(|error| error.to_string()),
            pass.map_err(|error| llmprof_core::chain(&error)),
        ) {
            tracing::warn!(error, "cannot measure the GPU's clocks");
        }
    }
}

/// Median SM clock of the samples in the file `path` at which kernels ran, MHz.
fn median_sm_mhz(path: &Path) -> Option<f64> {
    let (log, _) = parse::power::read(path).ok()?;
    median_sm_mhz_of(&log?.samples)
}

fn median_sm_mhz_of(samples: &[PowerSample]) -> Option<f64> {
    let busy = samples.iter().filter(|sample| sample.gpu_pct.is_some_and(|share| share > 0));
    median(busy.filter_map(|sample| sample.sm_mhz).map(f64::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_samples_at_which_kernels_ran() {
        let sample = |sm_mhz, gpu_pct| PowerSample {
            sm_mhz: Some(sm_mhz),
            gpu_pct: Some(gpu_pct),
            ..PowerSample::default()
        };
        let samples = [sample(345, 0), sample(1980, 90), sample(1755, 97), sample(345, 0)];
        assert_eq!(median_sm_mhz_of(&samples), Some(1867.5));
        assert_eq!(median_sm_mhz_of(&samples[..2]), Some(1980.0));
        assert_eq!(median_sm_mhz_of(&samples[..1]), None);
        assert_eq!(median_sm_mhz_of(&[]), None);
    }
}
