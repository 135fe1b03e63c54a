//! The passes for counters and for matrix products: the runner under ncu, a stage at a time, and with the libraries' logs on.
//!
//! Neither times anything: both slow down what they watch.

use std::{fs, path::Path, time::Duration};

use super::{CollectError, Collector, Leash, Pass, argv::Argv, child, ncu, ncu::Selection, pass::Folder};
use crate::{
    artifact::layout,
    profiling::{GemmLogSettings, NcuSettings, ToolWord},
    run::{Finding, Severity},
    runner::{self, RunnerRequest},
};

/// Longest that ncu may take to list its metrics or to print a page.
const SHORT: Duration = Duration::from_secs(120);

impl Collector {
    /// Asks ncu which of the `wanted` metrics the device has; none, with a finding, when it does not say.
    pub async fn ncu_metrics(
        &self,
        dir: &Path,
        wanted: &[ToolWord],
        leash: &Leash,
    ) -> Result<(Vec<String>, Option<Finding>), CollectError> {
        let ncu = self.ncu.as_deref().ok_or(CollectError::NotInstalled { tool: "ncu" })?;
        let logs = self.logs(dir, "ncu-query");
        fs::create_dir_all(dir.join(layout::LOGS))
            .map_err(|source| CollectError::Write { path: dir.join(layout::LOGS), source })?;
        let ended = child::run(&ncu::query(ncu), &logs, &leash.short(SHORT)).await;
        let listed = fs::read(&logs.stdout).unwrap_or_default();
        let metrics = ncu::metrics(&String::from_utf8_lossy(&listed), wanted);
        if !metrics.is_empty() || wanted.is_empty() {
            return Ok((metrics, None));
        }
        let message =
            "ncu did not list the device's metrics: operations and bytes are known only as far as its sections show them";
        let mut finding = Finding::new("ncu_metrics_unknown", Severity::Warning, message);
        let said = match ended {
            Ok(ended) => logs.last_words(1).pop().unwrap_or_else(|| format!("it {ended}")),
            Err(error) => error.to_string(),
        };
        finding = finding.with("ncu", said);
        Ok((metrics, Some(finding)))
    }

    /// One stage under ncu: profiled into a report, and printed as two pages, into `ncu/STAGE/`.
    pub async fn ncu(
        &self,
        dir: &Path,
        request: &RunnerRequest,
        selection: &Selection,
        settings: &NcuSettings,
        metrics: &[String],
        leash: &Leash,
    ) -> Result<Pass, CollectError> {
        let ncu = self.ncu.as_deref().ok_or(CollectError::NotInstalled { tool: "ncu" })?;
        let folder = Folder::fresh(self, dir, &format!("{}/{}", layout::NCU, selection.stage))?;
        // The range of a stage is open in warm-up too, and each replay begins with cold caches anyway: no warm-up.
        let max_new_tokens = selection.max_new_tokens.min(request.max_new_tokens);
        let once = RunnerRequest { repeats: 1, warmup: 0, ceilings: false, max_new_tokens, ..request.clone() };
        let runner = self.runner_argv(&once, &folder)?;
        let pass = self.count(ncu, &folder, &runner, selection, settings, metrics, leash).await?;
        folder.holds(runner::EVENTS, "the model runner under ncu", &format!("ncu-{}", selection.stage))?;
        Ok(pass)
    }

    /// One stage of a command under ncu, which `target` starts, the same way.
    pub async fn ncu_command(
        &self,
        dir: &Path,
        target: &Argv,
        selection: &Selection,
        settings: &NcuSettings,
        metrics: &[String],
        leash: &Leash,
    ) -> Result<Pass, CollectError> {
        let ncu = self.ncu.as_deref().ok_or(CollectError::NotInstalled { tool: "ncu" })?;
        let folder = Folder::fresh(self, dir, &format!("{}/{}", layout::NCU, selection.stage))?;
        self.count(ncu, &folder, target, selection, settings, metrics, leash).await
    }

    #[expect(clippy::too_many_arguments, reason = "a pass, its folder, its settings and its bounds")]
    async fn count(
        &self,
        ncu: &Path,
        folder: &Folder<'_>,
        runner: &Argv,
        selection: &Selection,
        settings: &NcuSettings,
        metrics: &[String],
        leash: &Leash,
    ) -> Result<Pass, CollectError> {
        let report = folder.path().join(layout::NCU_REPORT);
        let name = format!("ncu-{}", selection.stage);

        let command = ncu::profile(ncu, selection, settings, metrics, &report, runner);
        let ended = folder.run("ncu", &name, &command, leash).await;
        if let Some(complaint) = ncu::complaint(&folder.output(&name)) {
            let ended = ended.as_ref().err().and_then(CollectError::ended).unwrap_or(child::Ended::Exited(0));
            return Err(CollectError::NoCounters { stage: selection.stage.clone(), complaint, ended });
        }
        let mut pass = ended?;
        folder.holds(layout::NCU_REPORT, "ncu", &name)?;
        let quiet = leash.short(SHORT);
        let raw = format!("{name}-raw");
        folder.print("ncu --import", &raw, &ncu::raw_page(ncu, &report), &quiet, layout::NCU_RAW).await?;
        folder.holds(layout::NCU_RAW, "ncu --import", &raw)?;
        // The raw page holds every figure; this one is for people.
        let details = format!("{name}-details");
        let page = folder.print("ncu --import", &details, &ncu::details_page(ncu, &report), &quiet, layout::NCU_DETAILS).await;
        if let Err(error) = page {
            let message = format!("ncu printed no page of details for {}", selection.stage);
            pass.findings.push(Finding::new("ncu_details_missing", Severity::Info, message).with("ncu", error));
        }
        Ok(pass)
    }

    /// The products that the runner asks cuBLAS for: prefill alone, then prefill with a few decode steps, into `gemm_log/`.
    ///
    /// A log knows no stages, but its calls are in order: what the second has after the first's is decode.
    pub async fn gemm_log(
        &self,
        dir: &Path,
        request: &RunnerRequest,
        settings: &GemmLogSettings,
        leash: &Leash,
    ) -> Result<Pass, CollectError> {
        let steps = request.max_new_tokens.min(settings.max_new_tokens);
        let mut whole = None;
        for (pass, max_new_tokens) in [(layout::GEMM_PREFILL, 0), (layout::GEMM_ALL, steps)] {
            if whole.is_some() && max_new_tokens == 0 {
                break;
            }
            let folder = Folder::fresh(self, dir, &format!("{}/{pass}", layout::GEMM_LOG))?;
            // A replayed graph calls no library: its products are logged where decode runs without one.
            let once =
                RunnerRequest { repeats: 1, warmup: 0, ceilings: false, decode_graph: false, max_new_tokens, ..request.clone() };
            let file = |name: &str| folder.path().join(name);
            let runner = self
                .runner_argv(&once, &folder)?
                .env("CUBLAS_LOGINFO_DBG", "1")
                .env("CUBLAS_LOGDEST_DBG", file(layout::CUBLAS_LOG))
                .env("CUBLASLT_LOG_LEVEL", "5")
                .env("CUBLASLT_LOG_FILE", file(layout::CUBLASLT_LOG));
            let name = format!("gemm_log-{pass}");
            let ran = folder.run("the model runner", &name, &runner, leash).await?;
            let logged = folder.holds(layout::CUBLAS_LOG, "the model runner", &name);
            logged.or_else(|none| folder.holds(layout::CUBLASLT_LOG, "the model runner", &name).map_err(|_| none))?;
            whole = Some(ran);
        }
        whole.ok_or_else(|| CollectError::Empty { what: "the model runner", file: layout::CUBLAS_LOG.into(), last_words: vec![] })
    }
}

#[cfg(test)]
mod tests;
