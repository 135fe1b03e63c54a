//! The GEMM log passes: model-runner with the logs of cuBLAS enabled.
//!
//! Times nothing: logging slows down the runner.

use std::path::Path;

use llmprof_core::{
    domain::{profiling::GemmLogSettings, runner::RunnerRequest},
    layout,
};

use super::pass::{CollectError, Pass, PassFolder};
use crate::collect::{Collector, ProcessLimits};

impl Collector {
    /// Logs the GEMMs of cuBLAS: only prefill, then prefill with a few decode steps, into
    /// `gemm_log/`.
    ///
    /// A log has no stages, but its calls are in order: the additional calls of the second log are
    /// decode.
    pub async fn gemm_log(
        &self,
        dir: &Path,
        request: &RunnerRequest,
        settings: &GemmLogSettings,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let steps = request.max_new_tokens.min(settings.max_new_tokens);
        let mut last = None;
        for (pass, max_new_tokens) in [(layout::GEMM_PREFILL, 0), (layout::GEMM_ALL, steps)] {
            if last.is_some() && max_new_tokens == 0 {
                break;
            }
            let folder = PassFolder::create(self, dir, &format!("{}/{pass}", layout::GEMM_LOG))?;
            // A replayed graph does not call the library, so decode runs without one.
            let once = RunnerRequest {
                repeats: 1,
                warmup: 0,
                ceilings: false,
                decode_graph: false,
                ..request.first_sample().with_new_tokens(max_new_tokens)
            };
            let file = |name: &str| folder.path().join(name);
            let runner = self
                .runner_argv(&once, &folder)?
                .env("CUBLAS_LOGINFO_DBG", "1")
                .env("CUBLAS_LOGDEST_DBG", file(layout::CUBLAS_LOG))
                .env("CUBLASLT_LOG_LEVEL", "5")
                .env("CUBLASLT_LOG_FILE", file(layout::CUBLASLT_LOG));
            let name = format!("gemm_log-{pass}");
            let ran = folder.run("the model runner", &name, &runner, limits).await?;
            let logged = folder.require(layout::CUBLAS_LOG, "the model runner", &name);
            logged.or_else(|none| {
                folder.require(layout::CUBLASLT_LOG, "the model runner", &name).map_err(|_| none)
            })?;
            last = Some(ran);
        }
        last.ok_or_else(|| CollectError::Empty {
            what: "the model runner",
            file: layout::CUBLAS_LOG.into(),
            last_words: vec![],
        })
    }
}

#[cfg(test)]
mod tests;
