//! Passes of earlier attempts: an attempt after an interruption uses those that finished under the
//! same conditions, and repeats the one that was cut off and those after it.
//!
//! A pass is used only if its files are the recorded ones, every pass before it is used, and
//! program, inputs, settings, device, host and tools have not changed; on a GPU also only if the
//! clocks are the same, which a short unprofiled pass measures. Otherwise all passes are repeated.
//! A finding reports either.

mod clocks;
mod conditions;
mod reusable_passes;

use std::path::Path;

pub(super) use self::reusable_passes::ReusablePasses;
use llmprof_core::domain::{
    finding::{Finding, catalogue},
    pass_conditions::ConditionChange,
    profiling::Profiling,
    state::{Step, StepRecord, StepState},
};

use super::{RunningJob, StoppedBy, timeline::TimelineTarget};
use crate::{
    artifact::finished_passes::{self, EarlierPasses, FinishedPass, FinishedPasses},
    job::step_journal::StepResult,
    runtime::work::SlicedWork,
};

/// Message of a step whose pass is of an earlier attempt.
const USED: &str = "finished in an earlier attempt, and not repeated";

impl RunningJob<'_> {
    /// Decides, before the first pass, which passes of earlier attempts this one uses.
    pub(super) async fn reuse_passes(
        &mut self,
        target: TimelineTarget<'_>,
        settings: &Profiling,
    ) -> Result<(), StoppedBy> {
        let now = self.conditions(target).await;
        let EarlierPasses { complete, damaged } = std::mem::take(&mut self.earlier);
        let damage = damaged.map(|it| ConditionChange {
            condition: "file",
            values: format!("{}, of pass {}, {}", it.path, it.name, it.fault),
        });
        let Some(FinishedPasses { conditions, passes }) = complete else {
            self.add_findings(damage.map(|it| repeated(&[it])));
            self.passes = ReusablePasses::new(now, Vec::new());
            return Ok(());
        };
        let mut changes = conditions.changes(&now);
        let mut used = used(&passes);
        if changes.is_empty() && !self.device.is_cpu() {
            match self.compare_clocks(target, settings).await? {
                Ok(clocks) => used = used.with("median SM clock", clocks),
                Err(change) => changes.push(change),
            }
        }
        if changes.is_empty() {
            self.add_finding(match damage {
                Some(it) => used.with("repeated", it.values),
                None => used,
            });
            self.passes = ReusablePasses::new(now, passes);
            return Ok(());
        }
        self.remove_passes(passes, None).await.map_err(StoppedBy)?;
        self.add_finding(repeated(&changes));
        self.passes = ReusablePasses::new(now, Vec::new());
        Ok(())
    }

    /// The finished pass of this name, if this attempt uses it. Otherwise no later one is used.
    pub(super) async fn finished_pass(
        &mut self,
        name: &str,
    ) -> Result<Option<FinishedPass>, StepResult> {
        match self.passes.take(name) {
            Ok(pass) => Ok(Some(pass)),
            Err(unused) if unused.is_empty() => Ok(None),
            Err(unused) => {
                self.remove_passes(unused, self.passes.recorded()).await?;
                Ok(None)
            }
        }
    }

    /// Records a pass that finished in this attempt. A failure is logged: the pass is then repeated
    /// after an interruption.
    pub(super) async fn finish_pass(
        &mut self,
        name: &str,
        started_at: String,
        findings: Vec<Finding>,
    ) {
        if !self.passes.are_recorded() {
            return;
        }
        let (dir, folder) = (self.dir.to_owned(), name.to_owned());
        let max_bytes = self.spec.folder_bytes();
        let sealed = move |work: &SlicedWork| finished_passes::seal(&dir, &folder, max_bytes, work);
        let pass = match self.stoppable(sealed).await {
            Ok(files) => FinishedPass {
                name: name.to_owned(),
                attempt: self.spec.attempt,
                started_at,
                ended_at: self.journal.now(),
                findings,
                files,
            },
            Err(error) => return tracing::warn!(name, error, "cannot seal a finished pass"),
        };
        self.passes.add(pass);
        if let Some(passes) = self.passes.recorded() {
            let dir = self.dir.to_owned();
            let written = self.blocking(move || finished_passes::write(&dir, &passes)).await;
            if let Err(error) = written {
                tracing::warn!(name, error, "cannot record a finished pass");
            }
        }
    }

    /// Removes passes that are not used, after the record of those that are.
    async fn remove_passes(
        &self,
        unused: Vec<FinishedPass>,
        used: Option<FinishedPasses>,
    ) -> Result<(), StepResult> {
        let dir = self.dir.to_owned();
        let removed = self.blocking(move || replace_record(&dir, &unused, used)).await;
        removed.map_err(|error| {
            StepResult::failed(format!("cannot remove the files of an earlier attempt: {error}"))
        })
    }
}

fn replace_record(
    dir: &Path,
    unused: &[FinishedPass],
    used: Option<FinishedPasses>,
) -> std::io::Result<()> {
    match used {
        Some(used) => finished_passes::write(dir, &used)?,
        None => finished_passes::forget(dir)?,
    }
    finished_passes::remove(dir, unused)
}

/// The record of a step whose only pass finished in an earlier attempt.
pub(super) fn step_of(step: Step, pass: &FinishedPass) -> StepRecord {
    StepRecord {
        step,
        state: StepState::Succeeded,
        started_at: pass.started_at.clone(),
        ended_at: Some(pass.ended_at.clone()),
        exit_code: Some(0),
        message: Some(USED.into()),
    }
}

fn used(passes: &[FinishedPass]) -> Finding {
    let names: Vec<&str> = passes.iter().map(|pass| pass.name.as_str()).collect();
    let message = format!(
        "The run was interrupted and continued: {} finished in an earlier attempt, under the same \
         conditions.",
        names.join(", ")
    );
    passes.iter().fold(Finding::new(catalogue::PASSES_REUSED, message), |finding, pass| {
        let FinishedPass { name, attempt, started_at, ended_at, .. } = pass;
        finding.with(name, format!("attempt {attempt}, {started_at} to {ended_at}"))
    })
}

fn repeated(changes: &[ConditionChange]) -> Finding {
    let names: Vec<&str> = changes.iter().map(|change| change.condition).collect();
    let message = format!(
        "The run was interrupted, and passes that had finished were repeated: {} changed since.",
        names.join(", ")
    );
    let finding = Finding::new(catalogue::PASSES_REPEATED, message);
    changes.iter().fold(finding, |finding, it| finding.with(it.condition, &it.values))
}

#[cfg(test)]
mod tests;
