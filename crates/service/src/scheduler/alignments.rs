//! Computes queued alignments, one at a time, from the captures of ended runs, in child processes.
//!
//! An alignment that was interrupted by the end of the service is computed again. One that ended
//! its process fails.

use std::{
    fs, io,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use llmprof_analyze::align::{Alignment, settings::Question};
use llmprof_core::{
    domain::{
        alignment::AlignmentSpec,
        ids::{AlignmentId, RunId},
        state::{Step, StepRecord, StepState},
    },
    layout,
};
use llmprof_report::{align::previous, pipeline::align_pair};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{Context, import_job, limited_child::LimitedChild};
use crate::{
    artifact::{
        journal::{Journal, JournalEvent},
        manifest,
        packed::read_own,
    },
    job::{
        job_spec,
        step_journal::{Clock, StepResult, now},
    },
    runtime::{self, work::SlicedWork},
    store::{AlignmentOutcome, StoreError, StoredAlignment},
};

/// Longest time between two claims of the idle task; a queued alignment wakes it earlier.
const IDLE: Duration = Duration::from_secs(5);
/// Time limit of an alignment.
const TIME_LIMIT: Duration = Duration::from_secs(1800);

/// Computes alignments until stopped; the current one is requeued.
pub async fn work(cx: Context, stop: CancellationToken) {
    while !stop.is_cancelled() {
        // Listening first: an alignment queued during the claim still wakes the task.
        let mut woken = pin!(cx.queued.notified());
        woken.as_mut().enable();
        if !cx.quiet_wait().wait(&stop).await {
            break;
        }
        match cx.store.claim_alignment().await {
            Ok(Some(claimed)) => {
                if let Err(error) = execute(&cx, claimed, &stop).await {
                    let error = llmprof_core::chain(&error);
                    tracing::error!(error, "cannot record the outcome of an alignment");
                }
            }
            none => {
                if let Err(error) = none {
                    let error = llmprof_core::chain(&error);
                    tracing::error!(%error, "cannot lease an alignment");
                }
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = woken => {}
                    () = tokio::time::sleep(IDLE) => {}
                }
            }
        }
    }
}

async fn execute(
    cx: &Context,
    claimed: StoredAlignment,
    stop: &CancellationToken,
) -> Result<(), StoreError> {
    let id = claimed.id;
    tracing::info!(alignment = %id, attempt = claimed.attempts, "alignment starts");
    let outcome = match execute_in_child(cx, claimed, stop).await {
        Ok(outcome) => outcome,
        Err(_) if stop.is_cancelled() => {
            tracing::info!(alignment = %id, "alignment requeued: the service stops");
            return cx.store.release_alignment(id).await;
        }
        Err(why) => {
            let found = Err(format!("cannot align the captures: {why}"));
            let (dir, max_bytes) = (cx.alignments.join(id.to_string()), cx.config.limits.run_bytes);
            let seal = move |work: &SlicedWork| manifest::seal(&dir, max_bytes, work);
            let sealed = runtime::stoppable(&SlicedWork::new(stop), seal).await;
            if stop.is_cancelled() && sealed.is_err() {
                return cx.store.release_alignment(id).await;
            }
            let artifacts = sealed.map(|sealed| sealed.artifacts).unwrap_or_default();
            AlignmentOutcome { found, artifacts }
        }
    };
    match &outcome.found {
        Ok((verdict, _)) => tracing::info!(alignment = %id, %verdict, "alignment ends"),
        Err(message) => tracing::warn!(alignment = %id, message, "alignment failed"),
    }
    cx.store.finish_alignment(id, &outcome).await.map(|_| ())
}

/// Input of the process of an alignment.
#[derive(Debug, Serialize, Deserialize)]
struct AlignmentTask {
    id: AlignmentId,
    attempt: u32,
    spec: AlignmentSpec,
    runs: PathBuf,
    alignments: PathBuf,
}

/// Computes the alignment in a process of its own; the error is a reason without an outcome.
async fn execute_in_child(
    cx: &Context,
    claimed: StoredAlignment,
    stop: &CancellationToken,
) -> Result<AlignmentOutcome, String> {
    let StoredAlignment { id, spec, attempts: attempt, .. } = claimed;
    let (runs, alignments) = (cx.runs.clone(), cx.alignments.clone());
    let task = AlignmentTask { id, attempt, spec, runs, alignments };
    let dir = cx.alignments.join(id.to_string());
    recreate_folder(&dir, &task)
        .map_err(|error| format!("cannot make the alignment's folder: {error}"))?;
    let child = LimitedChild {
        id: RunId(id.0),
        args: vec!["compute-alignment".into(), "--folder".into(), dir.clone().into()],
        logs: import_job::logs(&dir),
        time_limit: TIME_LIMIT + cx.max_wait(),
    };
    let ended = cx.limited_children().run(&child, stop).await;
    match job_spec::read(&dir, layout::RESULT) {
        Ok(Some(outcome)) => Ok(outcome),
        Ok(None) => Err(ended.err().unwrap_or_else(|| child.last_words())),
        Err(error) => Err(format!("cannot read {}: {error}", layout::RESULT)),
    }
}

/// Computes the alignment in `dir`: `llmprof compute-alignment`.
pub fn compute_in(dir: &Path) -> io::Result<()> {
    let task: AlignmentTask = job_spec::read(dir, layout::JOB)?.ok_or(io::ErrorKind::NotFound)?;
    let journal = Journal::open(dir)?;
    job_spec::write(dir, layout::RESULT, &compute(&task, dir, &journal))
}

/// Computes the alignment, writes its reports into its folder and seals the folder in every case.
fn compute(task: &AlignmentTask, dir: &Path, journal: &Journal) -> AlignmentOutcome {
    journal.write(&JournalEvent::Attempt { attempt: task.attempt, at: now() });
    let found = step(journal, Step::Analyze, || analyze(task));
    let found = found.and_then(|alignment| {
        step(journal, Step::Report, || {
            align_pair::write(&alignment, dir, layout::ALIGNMENT)
                .map_err(|error| llmprof_core::chain(&error))
        })?;
        Ok((alignment.verdict, alignment.summary()))
    });
    // Clients see ids of runs, no paths of this host.
    let found =
        found.map_err(|message| message.replace(&format!("{}/", task.runs.display()), "run "));
    // Its files are reports and the output of this process, which are bounded.
    match manifest::seal(dir, u64::MAX, &SlicedWork::default()) {
        Ok(sealed) => AlignmentOutcome { found, artifacts: sealed.artifacts },
        Err(error) => AlignmentOutcome {
            found: Err(format!("cannot seal the alignment's folder: {error}")),
            artifacts: Vec::new(),
        },
    }
}

fn analyze(task: &AlignmentTask) -> Result<Alignment, String> {
    let spec = &task.spec;
    let today = jiff::Timestamp::now().to_string().chars().take(10).collect();
    let (question, rules) = Question::of(spec, today).map_err(|error| error.to_string())?;
    let [mock, e2e] =
        [spec.mock, spec.e2e].map(|id| (id.to_string(), task.runs.join(id.to_string())));
    if let Some((id, _)) = [&mock, &e2e].into_iter().find(|(_, dir)| !dir.is_dir()) {
        return Err(format!("the run {id} is gone"));
    }
    let mut alignment =
        align_pair::compare((&mock.0, &mock.1), (&e2e.0, &e2e.1), &rules, &question)
            .map_err(|error| llmprof_core::chain(&error))?;
    if let Some(id) = spec.previous {
        let file = task.alignments.join(id.to_string()).join(format!("{}.json", layout::ALIGNMENT));
        let before = read_own(&file).ok().and_then(|text| previous(&text).ok());
        let (verdict, checks) = before.ok_or_else(|| format!("the alignment {id} is gone"))?;
        alignment.record_changes(&checks, verdict);
    }
    Ok(alignment)
}

/// Executes one step and records its result in the journal.
fn step<T>(
    journal: &Journal,
    step: Step,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    let clock = Clock::start();
    let started = StepRecord {
        step,
        state: StepState::Running,
        started_at: clock.now(),
        ended_at: None,
        exit_code: None,
        message: None,
    };
    journal.write(&JournalEvent::Step { step: started.clone() });
    let done = work();
    let StepResult { state, message, .. } =
        done.as_ref().map_or_else(StepResult::failed, |_| StepResult::succeeded());
    journal.write(&JournalEvent::Step {
        step: StepRecord { state, message, ended_at: Some(clock.now()), ..started },
    });
    done
}

/// Recreates the folder with the task; of an earlier attempt only the journal stays.
fn recreate_folder(dir: &Path, task: &AlignmentTask) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if !path.ends_with(layout::PROGRESS) {
            fs::remove_file(path)?;
        }
    }
    fs::write(dir.join(layout::SPEC), serde_json::to_vec_pretty(&task.spec)?)?;
    job_spec::write(dir, layout::JOB, task)
}
