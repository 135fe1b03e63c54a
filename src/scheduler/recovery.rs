//! Recovers the runs of workers that are gone: ends their processes, adopts results that were
//! sealed, and requeues the other runs.

use std::{io, path::Path};

use super::{Context, series, sessions};
use crate::{
    artifact::{
        manifest,
        verify::{self, FileFault},
    },
    collect::end_orphans,
    config::ExecutorKind,
    domain::ids::{RunId, RunMark},
    job::{job_spec, step_journal::StepReader},
    runtime,
    store::{EndedAttempt, StoreError},
};

/// Requeues runs whose lease has expired (`all`: every running one), after ending the processes of
/// their workers. A run whose attempt ended and was sealed ends with its result.
pub async fn recover(cx: &Context, all: bool) -> Result<(), StoreError> {
    let on_cluster = cx.config.executor.kind == ExecutorKind::Slurm;
    if on_cluster {
        // The cluster's jobs continue: the worker that claims such a run finds its job by name.
        for id in cx.store.requeue_running(all).await? {
            tracing::info!(run = %id, "run requeued; its job continues");
        }
        // Imports remain: they run in this process.
    }
    if all {
        // An earlier start was killed before it recorded the files of failed runs.
        for id in cx.store.failed_without_artifacts().await? {
            keep_evidence(cx, id).await?;
        }
    }
    recover_runs(cx, all, on_cluster).await?;
    // After their runs, which are requeued and then fail with them.
    sessions::recover(cx, all).await
}

/// Requeues or ends the runs of workers that are gone.
async fn recover_runs(cx: &Context, all: bool, on_cluster: bool) -> Result<(), StoreError> {
    let abandoned = cx.store.abandoned(all, on_cluster).await?;
    if abandoned.is_empty() {
        return Ok(());
    }
    for &(id, attempt) in &abandoned {
        // A panic there does not prevent the requeue.
        let mark = RunMark { folder: cx.folder, run: id };
        runtime::blocking(move || end_orphans(mark)).await.ok();
        adopt(cx, id, attempt).await?;
    }
    for id in cx.store.recover(&abandoned, all).await? {
        tracing::warn!(run = %id, "worker lost: run requeued, or failed after its last attempt");
        keep_evidence(cx, id).await?;
    }
    Ok(())
}

/// Seals the folder of a run that failed after its last attempt: its files are the evidence.
pub(super) async fn keep_evidence(cx: &Context, id: RunId) -> Result<(), StoreError> {
    let dir = cx.runs.join(id.to_string());
    if !cx.store.run(id).await?.is_some_and(|run| run.state.is_final()) || !dir.exists() {
        return Ok(());
    }
    let sealed = runtime::blocking(move || manifest::seal(&dir)).await;
    match sealed.map_err(io::Error::other).and_then(|sealed| sealed) {
        Ok(artifacts) => cx.store.set_artifacts(id, &artifacts).await,
        Err(error) => {
            tracing::warn!(run = %id, %error, "cannot seal the folder of a failed run");
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
    let faults = verify::faults(dir, &sealed, false).ok()?;
    if faults.iter().any(|(_, fault)| *fault != FileFault::Unlisted) {
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

    use super::*;
    use crate::{
        artifact::layout,
        domain::{outcome::Outcome, state::RunState},
        job::job_spec::JobResult,
    };

    #[test]
    fn a_result_counts_for_its_attempt_and_with_complete_files_only() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("report.md"), "# report").unwrap();
        let outcome = Outcome {
            state: RunState::Failed,
            failed_step: None,
            message: None,
            findings: vec![],
            artifacts: manifest::seal(dir.path()).unwrap(),
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
