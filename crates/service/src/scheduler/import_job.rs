//! Executes an import as a job in a child process: `llmprof execute`, as a cluster does it.
//!
//! A child that fails ends its run at once, because a repetition would fail in the same way. The
//! run's folder is sealed with the output of the child. Only a lack of the host's resources
//! requeues the run.

use std::{fs, io, path::Path, time::Duration};

use llmprof_core::{
    domain::{
        finding::Finding,
        outcome::Outcome,
        state::{Step, StepState},
    },
    layout,
};
use tokio_util::sync::CancellationToken;

use super::limited_child::{LimitedChild, LimitedChildren};
use crate::{
    artifact::{
        journal::Journal,
        manifest::{self, SealedFolder},
    },
    collect::{
        host::exhaustion,
        process::output::{self, Logs},
    },
    job::{
        self,
        job_spec::{self, JobSpec},
        step_journal::{StepJournal, StepReader, StepResult},
    },
    runtime::{self, work::SlicedWork},
};

/// Time in addition to the run's, in which the job reports the end of its time itself.
const MARGIN: Duration = Duration::from_secs(10);

/// Executes the run in the folder `dir`; `stop` ends it at once.
pub(super) async fn execute(
    spec: &JobSpec,
    dir: &Path,
    children: &LimitedChildren,
    stop: &CancellationToken,
) -> Outcome {
    let child = LimitedChild {
        id: spec.id,
        args: vec!["execute".into(), "--run-dir".into(), dir.into()],
        logs: logs(dir),
        time_limit: spec.time_limit() + children.max_wait + MARGIN,
    };
    let ended = children.run(&child, stop).await;
    if let Ok(Some(result)) = job_spec::result(dir, spec.attempt)
        && (!result.interrupted || exhaustion::of_outcome(&result.outcome).is_some())
    {
        return result.outcome;
    }
    if stop.is_cancelled() {
        return job::failed("the import was stopped".into());
    }
    if ended == Ok(exhaustion::EXIT.into()) {
        let findings = vec![exhaustion::of_exit()];
        return Outcome { findings, ..job::failed(child.last_words()) };
    }
    let why = ended.err().unwrap_or_else(|| child.last_words());
    let message = format!("cannot analyse the capture: {why}");
    let (dir, reason) = (dir.to_owned(), message.clone());
    let (logs, max_bytes) = (child.logs, spec.folder_bytes());
    let settle = move |work: &SlicedWork| settle(&dir, &logs, &reason, (max_bytes, work));
    runtime::stoppable(&SlicedWork::new(stop), settle).await.unwrap_or_else(|error| {
        let findings = exhaustion::finding(&error).into_iter().collect();
        let outcome = job::failed(format!("{message}; cannot seal its folder: {error}"));
        Outcome { findings, ..outcome }
    })
}

/// Files of the child's output.
pub(super) fn logs(dir: &Path) -> Logs {
    let (stdout, stderr) = (dir.join(layout::JOB_STDOUT), dir.join(layout::JOB_STDERR));
    Logs { stdout, stderr, cap: output::DEFAULT_CAP }
}

/// Ends the step that the child left running, keeps the child's output, and seals the folder.
fn settle(
    dir: &Path,
    logs: &Logs,
    message: &str,
    (max_bytes, work): (u64, &SlicedWork),
) -> io::Result<Outcome> {
    let mut steps = StepReader::default();
    steps.read_new(dir)?;
    let running = steps.records.last().filter(|step| step.state == StepState::Running);
    let failed_step = running.map(|step| step.step);
    if failed_step.is_some() {
        let mut journal = StepJournal::new(Journal::open(dir)?, steps.records);
        journal.end(&StepResult::failed(message));
    }
    let step = failed_step.unwrap_or(Step::Analyze);
    fs::create_dir_all(dir.join(layout::LOGS))?;
    fs::copy(&logs.stderr, Logs::named(&dir.join(layout::LOGS), step.as_str()).stderr)?;
    let SealedFolder { artifacts, finding } = manifest::seal(dir, max_bytes, work)?;
    let findings = finding.map(Finding::as_sentence).into_iter().collect();
    Ok(Outcome { failed_step, artifacts, findings, ..job::failed(message.to_owned()) })
}
