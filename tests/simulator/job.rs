//! The job of a run: its steps take simulated time and write small files. Journal, folder, manifest
//! and result are written by the code of the service.

use std::{fs, io, path::Path};

use llmprof_core::{
    domain::{
        outcome::Outcome,
        state::{RunState, Step, StepState},
    },
    layout,
};
use llmprof_service::{
    artifact::{journal::Journal, manifest},
    job::{
        folder,
        job_spec::{self, JobSpec, JobSubject},
        standalone_job::{self, JobEnd},
        step_journal::{StepJournal, StepResult},
    },
    runtime::work::SlicedWork,
};
use tokio_util::sync::CancellationToken;

use super::world::World;

/// Exit code of a job that lacked the host's resources.
const EXHAUSTED: i32 = 75;

/// Executes the job in the folder `dir`; returns its exit code.
pub async fn execute(world: &World, dir: &Path, stop: &CancellationToken) -> i32 {
    world.pause(300).await;
    if world.fault(|it| it.crash) {
        return -11;
    }
    let Ok(Some(spec)) = job_spec::read::<JobSpec>(dir, layout::JOB) else { return 2 };
    let ignored = CancellationToken::new();
    let stop = if world.fault(|it| it.stubborn) { &ignored } else { stop };
    let steps = async |stop| JobEnd::Finished(steps(world, &spec, dir, &stop).await);
    match standalone_job::execute_steps(&spec, dir, steps, stop).await {
        Ok(code) => {
            finished(world, dir, &spec);
            i32::from(code)
        }
        Err(_) => EXHAUSTED,
    }
}

/// Notes that an attempt ended with a result of its own.
fn finished(world: &World, dir: &Path, spec: &JobSpec) {
    let Ok(Some(result)) = job_spec::result(dir, spec.attempt) else { return };
    if result.interrupted {
        return;
    }
    let state = result.outcome.state;
    world.log(format!("attempt {} of run {} has the result {state}", spec.attempt, spec.id));
    let mut state = world.state();
    let finished = &mut state.runs.entry(spec.id).or_default().finished;
    if !finished.contains(&spec.attempt) {
        finished.push(spec.attempt);
    }
}

fn failed(message: &str) -> Outcome {
    Outcome {
        state: RunState::Failed,
        failed_step: None,
        message: Some(message.to_owned()),
        findings: Vec::new(),
        artifacts: Vec::new(),
        series: None,
    }
}

async fn steps(world: &World, spec: &JobSpec, dir: &Path, stop: &CancellationToken) -> Outcome {
    match try_steps(world, spec, dir, stop).await {
        Ok(outcome) => outcome,
        Err(error) => failed(&error.to_string()),
    }
}

async fn try_steps(
    world: &World,
    spec: &JobSpec,
    dir: &Path,
    stop: &CancellationToken,
) -> io::Result<Outcome> {
    folder::prepare(dir, &spec.spec, &SlicedWork::default())?;
    let mut journal = StepJournal::new(Journal::open(dir)?, Vec::new());
    journal.start_attempt(spec.attempt);
    let mut outcome = failed("");
    (outcome.state, outcome.message) = (RunState::Succeeded, None);
    let steps: &[Step] = match spec.subject {
        JobSubject::Import => &[Step::Analyze, Step::Report],
        _ => &[Step::Preflight, Step::Baseline, Step::Nsys, Step::Analyze, Step::Report],
    };
    for step in steps {
        journal.start(*step);
        let ms = [200, 2_000, 15_000][world.below(3) as usize];
        fs::write(dir.join(format!("{step}.txt")), format!("{} {step}", spec.attempt))?;
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = world.pause(ms) => {}
        }
        if world.fault(|it| it.exhausted) {
            outcome.findings.push(llmprof_service::collect::host::exhaustion::of_exit());
            (outcome.state, outcome.message) = (RunState::Failed, Some("no space".into()));
        } else if stop.is_cancelled() {
            let message = Some("stopped".to_owned());
            let cancelled = StepState::Cancelled;
            journal.end(&StepResult { state: cancelled, exit_code: None, message });
            (outcome.state, outcome.message) = (RunState::Failed, Some("stopped".into()));
            break;
        } else if world.fault(|it| it.step) {
            (outcome.state, outcome.failed_step) = (RunState::Failed, Some(*step));
            outcome.message = Some("the step failed".into());
        }
        if outcome.state == RunState::Failed {
            journal.end(&StepResult::failed("failed"));
            break;
        }
        journal.end(&StepResult::succeeded());
    }
    world.pause(50).await;
    outcome.artifacts = manifest::seal(dir, u64::MAX, &SlicedWork::default())?.artifacts;
    world.pause(50).await;
    Ok(outcome)
}
