//! Recovers the runs of workers that are gone: ends their processes, adopts results that were
//! sealed, and requeues the other runs.

use std::path::Path;

use llmprof_core::domain::{
    finding::Finding,
    ids::{RunId, RunMark},
};

use super::{Context, series, sessions};
use crate::{
    artifact::{
        manifest::{self, SealedFolder},
        verify,
    },
    collect::end_orphans,
    config::ExecutorKind,
    job::{job_spec, step_journal::StepReader},
    runtime::{
        self,
        work::{SlicedWork, is_stopped},
    },
    store::{EndedAttempt, StoreError},
};

/// Requeues runs whose lease has expired (`all`: every running one), after ending the processes of
/// their workers. A run whose attempt ended and was sealed ends with its result.
///
/// The folders of failed runs are sealed last, when no process is left and every run has its state.
/// `work` stops that within a slice; the next start of a service seals the others.
pub async fn recover(cx: &Context, all: bool, work: &SlicedWork) -> Result<(), StoreError> {
    let on_cluster = cx.config.executor.kind == ExecutorKind::Slurm;
    if on_cluster {
        // The cluster's jobs continue: the worker that claims such a run finds its job by name.
        for id in cx.store.requeue_running(all).await? {
            tracing::info!(run = %id, "run requeued; its job continues");
        }
        // Imports remain: they run in this process.
    }
    let mut ended = recover_runs(cx, all, on_cluster).await?;
    // After their runs, which are requeued and then fail with them.
    let of_sessions = sessions::recover(cx, all, work).await;
    ended.extend(of_sessions.as_deref().unwrap_or_default());
    if all {
        // An earlier start ended before it recorded the files of ended runs.
        ended.extend(cx.store.ended_without_artifacts(on_cluster).await?);
        ended.sort_unstable();
        ended.dedup();
    }
    for id in ended {
        // One run that cannot be sealed does not prevent the others.
        if let Err(error) = keep_evidence(cx, id, work).await {
            let error = llmprof_core::chain(&error);
            tracing::error!(run = %id, error, "cannot keep the files of an ended run");
        }
    }
    of_sessions.map(drop)
}

/// Requeues or ends the runs of workers that are gone; returns them.
async fn recover_runs(cx: &Context, all: bool, on_cluster: bool) -> Result<Vec<RunId>, StoreError> {
    let abandoned = cx.store.abandoned(all, on_cluster).await?;
    if abandoned.is_empty() {
        return Ok(Vec::new());
    }
    for &(id, attempt) in &abandoned {
        // A panic there does not prevent the requeue.
        let mark = RunMark { folder: cx.folder, run: id };
        runtime::blocking(move || end_orphans(mark)).await.ok();
        adopt(cx, id, attempt).await?;
    }
    let recovered = cx.store.recover(&abandoned, all).await?;
    for id in &recovered {
        tracing::warn!(run = %id, "worker lost: run requeued, or failed after its last attempt");
    }
    Ok(recovered)
}

/// Seals the folder of a run that ended without a result of its own: its files are the evidence.
/// Does nothing if the run was requeued or removed meanwhile, or if `work` is stopped.
pub(super) async fn keep_evidence(
    cx: &Context,
    id: RunId,
    work: &SlicedWork,
) -> Result<(), StoreError> {
    let dir = cx.runs.join(id.to_string());
    if !dir.exists() {
        return Ok(());
    }
    let Some(run) = cx.store.run(id).await?.filter(|run| run.state.is_final()) else {
        return Ok(());
    };
    let max_bytes = cx.config.limits.folder_bytes(run.spec.kind());
    match runtime::stoppable(work, move |work| manifest::seal(&dir, max_bytes, work)).await {
        Ok(SealedFolder { artifacts, finding }) => {
            let finding = finding.map(Finding::as_sentence);
            cx.store.set_evidence(id, &artifacts, finding.as_ref()).await
        }
        // The next start of the service seals it.
        Err(error) if is_stopped(&error) => Ok(()),
        Err(error) => {
            tracing::warn!(run = %id, %error, "cannot seal the folder of an ended run");
            Ok(())
        }
    }
}

/// Commits the result that an attempt left in the run's folder, if there is one.
async fn adopt(cx: &Context, id: RunId, attempt: u32) -> Result<(), StoreError> {
    let dir = cx.runs.join(id.to_string());
    let ended = runtime::blocking(move || ended_attempt(&dir, attempt)).await;
    if let Ok(Some(ended)) = ended
        && cx.store.adopt(id, &ended).await?
    {
        let state = ended.outcome.state;
        if ended.outcome.series.is_some() {
            series::refresh(&cx.store).await;
        }
        tracing::info!(run = %id, attempt, %state, "worker lost after its run ended: adopted");
    }
    Ok(())
}

/// The attempt in the folder `dir`, if it ended by itself and every sealed file is complete.
fn ended_attempt(dir: &Path, attempt: u32) -> Option<EndedAttempt> {
    let result = job_spec::result(dir, attempt).ok()??;
    let sealed = manifest::read(dir).ok()?;
    if result.interrupted || sealed != result.outcome.artifacts {
        return None;
    }
    let faults = verify::faults(dir, &sealed, false, &SlicedWork::default()).ok()?;
    if !faults.iter().all(|(_, fault)| fault.is_of_unlisted()) {
        return None;
    }
    let mut steps = StepReader::default();
    steps.read_new(dir).ok()?;
    let ended = steps.records.last().and_then(|step| step.ended_at.as_ref()?.parse().ok());
    Some(EndedAttempt {
        attempt,
        outcome: result.outcome,
        steps: steps.records,
        ended_ms: ended.map(|at: jiff::Timestamp| at.as_millisecond()),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use llmprof_core::{
        domain::{outcome::Outcome, state::RunState},
        layout,
    };

    use super::*;
    use crate::job::job_spec::JobResult;

    #[test]
    fn a_result_counts_for_its_attempt_and_with_complete_files_only() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("report.md"), "# report").unwrap();
        let outcome = Outcome {
            state: RunState::Failed,
            failed_step: None,
            message: None,
            findings: vec![],
            artifacts: manifest::seal(dir.path(), u64::MAX, &SlicedWork::default())
                .unwrap()
                .artifacts,
            series: None,
        };
        let keep = |stopped| {
            let result = JobResult::new(2, outcome.clone(), stopped);
            job_spec::write(dir.path(), layout::RESULT, &result).unwrap();
        };
        keep(true);
        assert_eq!(ended_attempt(dir.path(), 2), None, "it was interrupted");
        keep(false);
        assert_eq!(ended_attempt(dir.path(), 2).unwrap().outcome, outcome);
        assert_eq!(ended_attempt(dir.path(), 3), None);
        fs::write(dir.path().join("report.md"), "").unwrap();
        assert_eq!(ended_attempt(dir.path(), 2), None, "a file is empty");
    }
}
