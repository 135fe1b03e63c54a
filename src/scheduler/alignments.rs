//! Computes queued alignments, one at a time, from the captures of ended runs. Starts no process.
//!
//! An alignment that was interrupted by the end of the service is computed again.

use std::{fs, io, path::Path, pin::pin, time::Duration};

use tokio_util::sync::CancellationToken;

use super::Context;
use crate::{
    analyze::align::{Alignment, settings::Question},
    artifact::{
        journal::{Journal, JournalEvent},
        layout, manifest,
    },
    domain::state::{Step, StepRecord, StepState},
    job::step_journal::{Clock, StepResult, now},
    pipeline::align_pair,
    report::align::previous,
    store::{AlignmentOutcome, StoreError, StoredAlignment},
};

/// Longest time between two claims of the idle task; a queued alignment wakes it earlier.
const IDLE: Duration = Duration::from_secs(5);

/// Computes alignments until stopped; the current one is finished first.
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
                if let Err(error) = execute(&cx, claimed).await {
                    let error = crate::chain(&error);
                    tracing::error!(error, "cannot record the outcome of an alignment");
                }
            }
            none => {
                if let Err(error) = none {
                    tracing::error!(error = %crate::chain(&error), "cannot claim an alignment");
                }
                tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep(IDLE) => {}
                    () = stop.cancelled() => {}
                }
            }
        }
    }
}

async fn execute(cx: &Context, claimed: StoredAlignment) -> Result<(), StoreError> {
    let id = claimed.id;
    tracing::info!(alignment = %id, attempt = claimed.attempts, "alignment starts");
    let context = cx.clone();
    let computed = tokio::task::spawn_blocking(move || compute(&context, &claimed)).await;
    // A panic caused by a foreign capture fails only its alignment.
    let outcome = computed.unwrap_or_else(|error| AlignmentOutcome {
        found: Err(error.to_string()),
        artifacts: Vec::new(),
    });
    match &outcome.found {
        Ok((verdict, _)) => tracing::info!(alignment = %id, %verdict, "alignment ends"),
        Err(message) => tracing::warn!(alignment = %id, message, "alignment failed"),
    }
    cx.store.finish_alignment(id, &outcome).await.map(|_| ())
}

/// Computes the alignment, writes its reports into its folder and seals the folder in every case.
fn compute(cx: &Context, claimed: &StoredAlignment) -> AlignmentOutcome {
    let dir = cx.alignments.join(claimed.id.to_string());
    let lost = |error: io::Error| AlignmentOutcome {
        found: Err(format!("cannot make the alignment's folder: {error}")),
        artifacts: Vec::new(),
    };
    let journal = match recreate_folder(&dir, claimed).and_then(|()| Journal::open(&dir)) {
        Ok(journal) => journal,
        Err(error) => return lost(error),
    };
    journal.write(&JournalEvent::Attempt { attempt: claimed.attempts, at: now() });
    let found = step(&journal, Step::Analyze, || analyze(cx, claimed));
    let found = found.and_then(|alignment| {
        step(&journal, Step::Report, || {
            align_pair::write(&alignment, &dir, layout::ALIGNMENT)
                .map_err(|error| crate::chain(&error))
        })?;
        Ok((alignment.verdict, alignment.summary()))
    });
    // Clients see ids of runs, no paths of this host.
    let found =
        found.map_err(|message| message.replace(&format!("{}/", cx.runs.display()), "run "));
    match manifest::seal(&dir) {
        Ok(artifacts) => AlignmentOutcome { found, artifacts },
        Err(error) => lost(error),
    }
}

fn analyze(cx: &Context, claimed: &StoredAlignment) -> Result<Alignment, String> {
    let spec = &claimed.spec;
    let today = jiff::Timestamp::now().to_string().chars().take(10).collect();
    let (question, rules) = Question::of(spec, today).map_err(|error| error.to_string())?;
    let [mock, e2e] =
        [spec.mock, spec.e2e].map(|id| (id.to_string(), cx.runs.join(id.to_string())));
    if let Some((id, _)) = [&mock, &e2e].into_iter().find(|(_, dir)| !dir.is_dir()) {
        return Err(format!("the run {id} is gone"));
    }
    let mut alignment =
        align_pair::compare((&mock.0, &mock.1), (&e2e.0, &e2e.1), &rules, &question)
            .map_err(|error| crate::chain(&error))?;
    if let Some(id) = spec.previous {
        let file = cx.alignments.join(id.to_string()).join(format!("{}.json", layout::ALIGNMENT));
        let before = fs::read(file).ok().and_then(|text| previous(&text).ok());
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

/// Recreates the folder; of an earlier attempt only the journal stays.
fn recreate_folder(dir: &Path, claimed: &StoredAlignment) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if !path.ends_with(layout::PROGRESS) {
            fs::remove_file(path)?;
        }
    }
    fs::write(dir.join(layout::SPEC), serde_json::to_vec_pretty(&claimed.spec)?)
}
