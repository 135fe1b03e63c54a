//! The counter passes: a target under ncu, all stages in one process.
//!
//! Times nothing: ncu slows down its target.

use std::{fs, path::Path, time::Duration};

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        profiling::{NcuSettings, ToolWord},
        runner::{self, RunnerRequest},
    },
    layout,
};
use tokio::time::Instant;

use super::pass::PassFolder;
use crate::{
    artifact::packed::read_own,
    collect::{
        CollectError, Collector, Pass, ProcessLimits,
        process::{argv::Argv, child},
        tools::ncu::{self, LaunchSelection},
    },
};

/// Time limit of ncu to list its metrics or to print a page.
const QUERY_LIMIT: Duration = Duration::from_secs(120);
/// The same for the report of a pass that was ended at its deadline, after it.
const LATE_QUERY_LIMIT: Duration = Duration::from_secs(30);

/// A pass of ncu that left a report.
#[derive(Debug)]
pub struct CounterPass {
    pub pass: Pass,
    /// The deadline passed: the report has the launches profiled until then.
    pub cut: Option<CollectError>,
}

impl Collector {
    /// Returns the `wanted` metrics that the device has; none and a finding if ncu does not list
    /// them.
    pub async fn ncu_metrics(
        &self,
        dir: &Path,
        wanted: &[ToolWord],
        limits: &ProcessLimits,
    ) -> Result<(Vec<String>, Option<Finding>), CollectError> {
        let ncu = self.ncu.as_deref().ok_or(CollectError::NotInstalled { tool: "ncu" })?;
        let logs = self.logs(dir, "ncu-query");
        fs::create_dir_all(dir.join(layout::LOGS))
            .map_err(|source| CollectError::Write { path: dir.join(layout::LOGS), source })?;
        let ended = child::run(&ncu::query(ncu), &logs, &limits.short(QUERY_LIMIT)).await;
        let listed = read_own(&logs.stdout).unwrap_or_default();
        let metrics = ncu::metrics(&String::from_utf8_lossy(&listed), wanted);
        if !metrics.is_empty() || wanted.is_empty() {
            return Ok((metrics, None));
        }
        let message = "ncu did not list the device's metrics: operations and bytes are known only \
                       from its sections";
        let finding = Finding::new(catalogue::NCU_METRICS_UNKNOWN, message);
        let reason = match ended {
            Ok(ended) => logs.last_output(1).pop().unwrap_or_else(|| format!("it {ended}")),
            Err(error) => error.to_string(),
        };
        Ok((metrics, Some(finding.with("ncu", reason))))
    }

    /// Profiles the selected launches with ncu into a report and prints it, into `ncu/PROCESS/`.
    pub async fn ncu(
        &self,
        dir: &Path,
        request: &RunnerRequest,
        selection: &LaunchSelection,
        settings: &NcuSettings,
        metrics: &[String],
        limits: &ProcessLimits,
    ) -> Result<CounterPass, CollectError> {
        let ncu = self.ncu.as_deref().ok_or(CollectError::NotInstalled { tool: "ncu" })?;
        let folder =
            PassFolder::create(self, dir, &format!("{}/{}", layout::NCU, selection.process))?;
        // The range of a stage is also open in warm-up, and each replay starts with cold caches: no
        // warm-up.
        let once = RunnerRequest {
            repeats: 1,
            warmup: 0,
            ceilings: false,
            ..request.first_sample().with_new_tokens(selection.max_new_tokens)
        };
        let runner = self.runner_argv(&once, &folder)?;
        let pass = self.count(ncu, &folder, &runner, selection, settings, metrics, limits).await?;
        if pass.cut.is_none() {
            folder.require(
                runner::EVENTS,
                "the model runner under ncu",
                &format!("ncu-{}", selection.process),
            )?;
        }
        Ok(pass)
    }

    /// Profiles a command with ncu in the same way.
    pub async fn ncu_command(
        &self,
        dir: &Path,
        target: &Argv,
        selection: &LaunchSelection,
        settings: &NcuSettings,
        metrics: &[String],
        limits: &ProcessLimits,
    ) -> Result<CounterPass, CollectError> {
        let ncu = self.ncu.as_deref().ok_or(CollectError::NotInstalled { tool: "ncu" })?;
        let folder =
            PassFolder::create(self, dir, &format!("{}/{}", layout::NCU, selection.process))?;
        self.count(ncu, &folder, target, selection, settings, metrics, limits).await
    }

    /// Prints imported reports, possibly of another ncu, each to the page of its number.
    pub async fn print_counters(
        &self,
        dir: &Path,
        numbers: &[usize],
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let ncu = self.ncu.as_deref().ok_or(CollectError::NotInstalled { tool: "ncu" })?;
        let folder = PassFolder::open(self, dir, layout::NCU)?;
        let mut pass = Pass { wall: Duration::ZERO, findings: vec![] };
        for number in numbers {
            let report = dir.join(layout::imported_counter_report(*number));
            let (name, page) = (format!("ncu-page-{number}"), layout::page_name(*number));
            let command = ncu::raw_page(ncu, &report);
            let limits = limits.short(QUERY_LIMIT);
            let printed = folder.run_into_file("ncu --import", &name, &command, &limits, &page);
            let printed = printed.await.and_then(|printed| {
                folder.require(&page, "ncu --import", &name)?;
                Ok(printed)
            });
            pass.wall += printed.map_err(CollectError::of_imported_counters)?.wall;
        }
        Ok(pass)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a pass, its folder, its settings and its bounds"
    )]
    async fn count(
        &self,
        ncu: &Path,
        folder: &PassFolder<'_>,
        runner: &Argv,
        selection: &LaunchSelection,
        settings: &NcuSettings,
        metrics: &[String],
        limits: &ProcessLimits,
    ) -> Result<CounterPass, CollectError> {
        let report = folder.path().join(layout::NCU_REPORT);
        let name = format!("ncu-{}", selection.process);

        let command = ncu::profile(ncu, selection, settings, metrics, &report, runner);
        let limits = ProcessLimits { target_first: true, ..limits.clone() };
        let ended = folder.run("ncu", &name, &command, &limits).await;
        if let Some(complaint) = ncu::find_failure(&folder.output(&name)) {
            let ended = ended
                .as_ref()
                .err()
                .and_then(CollectError::ended)
                .unwrap_or(child::ExitReason::Exited(0));
            return Err(CollectError::NoCounters {
                tool: "ncu",
                process: selection.process.clone(),
                complaint,
                ended,
            });
        }
        let reported = folder.require(layout::NCU_REPORT, "ncu", &name);
        let (mut pass, cut, quiet) = match ended {
            Ok(pass) => {
                reported?;
                (pass, None, limits.short(QUERY_LIMIT))
            }
            // What ncu wrote in its grace period counts, if it can be printed.
            Err(late) if is_late(&late) && reported.is_ok() => {
                let pass = Pass { wall: Duration::ZERO, findings: vec![] };
                let deadline = Instant::now() + LATE_QUERY_LIMIT;
                (pass, Some(late), ProcessLimits { deadline, lines: None, ..limits })
            }
            Err(error) => return Err(error),
        };
        if let Err(error) = self.print_raw(ncu, folder, &name, &quiet).await {
            return Err(cut.unwrap_or(error));
        }
        if settings.details {
            let finding = self.print_details(ncu, folder, &name, &quiet).await;
            pass.findings.extend(finding);
        }
        Ok(CounterPass { pass, cut })
    }

    /// Prints the page with every value.
    async fn print_raw(
        &self,
        ncu: &Path,
        folder: &PassFolder<'_>,
        name: &str,
        limits: &ProcessLimits,
    ) -> Result<(), CollectError> {
        let (report, log) = (folder.path().join(layout::NCU_REPORT), format!("{name}-raw"));
        let command = ncu::raw_page(ncu, &report);
        folder.run_into_file("ncu --import", &log, &command, limits, layout::NCU_RAW).await?;
        folder.require(layout::NCU_RAW, "ncu --import", &log)
    }

    /// Prints the page for readers; returns a finding if that fails.
    async fn print_details(
        &self,
        ncu: &Path,
        folder: &PassFolder<'_>,
        name: &str,
        limits: &ProcessLimits,
    ) -> Option<Finding> {
        let (report, log) = (folder.path().join(layout::NCU_REPORT), format!("{name}-details"));
        let command = ncu::details_page(ncu, &report);
        let page =
            folder.run_into_file("ncu --import", &log, &command, limits, layout::NCU_DETAILS);
        let error = page.await.err()?;
        let message = format!("ncu printed no details page of {}", name.trim_start_matches("ncu-"));
        Some(Finding::new(catalogue::NCU_DETAILS_MISSING, message).with("ncu", error))
    }
}

/// True for a pass that was ended at its deadline.
fn is_late(error: &CollectError) -> bool {
    error.ended() == Some(child::ExitReason::DeadlinePassed)
}

#[cfg(test)]
mod tests;
