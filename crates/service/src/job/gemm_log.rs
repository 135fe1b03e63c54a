//! The GEMM log step: passes with the logs of cuBLAS and cuBLASLt enabled.

use llmprof_analyze::parse;
use llmprof_core::{
    domain::{profiling::Profiling, runner::RunnerRequest, state::Step},
    layout,
};

use super::{
    RunningJob,
    folder::{blocking, reject},
    step_runner::{JobStep, StepOutcome},
};
use crate::collect::{CommandRun, ProcessLimits};

/// Program whose GEMMs are logged.
#[derive(Debug, Clone, Copy)]
pub(super) enum GemmLogTarget<'a> {
    Runner(&'a RunnerRequest),
    Command(&'a CommandRun),
}

pub(super) struct GemmLogStep<'a> {
    pub target: GemmLogTarget<'a>,
    pub settings: &'a Profiling,
}

impl JobStep for GemmLogStep<'_> {
    const STEP: Step = Step::GemmLog;
    type Output = ();

    fn pass(&self) -> Option<&'static str> {
        Some(layout::GEMM_LOG)
    }

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        let (collector, settings) = (&job.host.collector, &self.settings.gemm_log);
        StepOutcome::Pass(match self.target {
            GemmLogTarget::Runner(it) => collector.gemm_log(job.dir, it, settings, limits).await,
            GemmLogTarget::Command(it) => collector.command_gemm_log(job.dir, it, limits).await,
        })
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<(), String> {
        let dir = job.dir.to_owned();
        let logs = blocking(move || parse::cublas::read(&dir)).await?;
        if let GemmLogTarget::Command(_) = self.target {
            // A command may use other libraries: a finding of the analysis states it.
            return Ok(());
        }
        let calls = logs
            .map_or(0, |it| it.all.calls.len() + it.lt_all.calls.len() + it.prefill.calls.len());
        if calls == 0 {
            return Err("the libraries' logs contain no complete GEMM".into());
        }
        let mut verified = Ok(());
        for pass in [layout::GEMM_PREFILL, layout::GEMM_ALL] {
            let checked = job.check_output(&format!("{}/{pass}", layout::GEMM_LOG)).await;
            verified = checked.and(verified);
        }
        verified
    }

    fn set_aside(&self, job: &RunningJob<'_>) {
        let folder = job.dir.join(layout::GEMM_LOG);
        for pass in [layout::GEMM_PREFILL, layout::GEMM_ALL] {
            for log in [layout::CUBLAS_LOG, layout::CUBLASLT_LOG] {
                reject(&folder.join(pass).join(log));
            }
        }
        let processes = std::fs::read_dir(folder.join(layout::GEMM_PROCESSES));
        let logs = processes.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        logs.filter(|path| path.extension().is_some_and(|it| it == "log"))
            .for_each(|path| reject(&path));
    }
}
