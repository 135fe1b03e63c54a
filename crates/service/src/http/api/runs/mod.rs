//! Runs: views of one run and of a list, and the lookups that handlers share.

pub mod cancel;
mod checks;
pub mod delete;
pub mod dry_run;
pub mod example;
pub mod expected;
pub mod list;
mod realised;
pub mod show;
pub mod submissions;
pub mod submit;
mod submit_command;
mod submit_inputs;
mod submit_model;
mod submit_session;

pub(crate) use checks::{
    check_device, check_label, check_labels, check_revision, check_sampling, deduplicated,
    input_error,
};
pub(crate) use submit_command::{check_gpu_count, find_command};
pub(crate) use submit_inputs::read_inline;

use llmprof_core::domain::{
    finding::Finding,
    headline::Headline,
    ids::{RunId, SweepId},
    mode::Mode,
    run_files::{ArtifactRecord, DamagedFile},
    state::{RunState, Scheduled, Step, StepRecord},
    subject::{RunSpec, SubjectKind},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::{expected::ExpectedRun, realised::RealisedSaving};
use super::artifacts::send;
use crate::{
    artifact::packed,
    http::{
        auth::access::{Caller, check_owner},
        error::{ApiError, ErrorCode},
        state::App,
    },
    measuring::WAITING,
    runtime,
    store::{Role, StoredRun},
};

/// Paths of a run's parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunLinks {
    #[serde(rename = "self")]
    pub run: String,
    pub events: String,
    pub artifacts: String,
    pub report: String,
    pub bundle: String,
    pub cancel: String,
}

impl RunLinks {
    pub fn of(id: RunId) -> Self {
        let to = |part: &str| format!("/runs/{id}{part}");
        Self {
            run: to(""),
            events: to("/events"),
            artifacts: to("/artifacts"),
            report: to("/report"),
            bundle: to("/bundle"),
            cancel: to("/cancel"),
        }
    }
}

/// A run with its steps and findings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    pub run_id: RunId,
    pub state: RunState,
    /// Name of the token that submitted it; `null` if none was required.
    pub owner: Option<String>,
    /// The sweep that made it.
    #[schema(value_type = Option<uuid::Uuid>)]
    pub sweep: Option<SweepId>,
    /// Name of the model, of the command or of the capture; of a part, `PART of MODEL`.
    #[schema(example = "deepseek-ocr-tiny")]
    pub name: String,
    pub spec: RunSpec,
    /// Number of times that a worker started it.
    pub attempts: u32,
    /// 1 is next; `null` once the run has left the queue.
    pub queue_position: Option<u64>,
    /// RFC 3339, UTC, as all times.
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    /// Cancellation was requested; the run may still be stopping.
    pub cancel_requested: bool,
    /// Kept as it is and never removed automatically.
    pub pinned: bool,
    /// Status in the cluster's scheduler, in which a run in the state `running` may still be
    /// pending. `null` if this host executes runs.
    pub scheduled: Option<Scheduled>,
    /// Why the run failed, or for what an active import waits.
    pub message: Option<String>,
    pub failed_step: Option<Step>,
    pub steps: Vec<StepRecord>,
    pub findings: Vec<Finding>,
    /// Savings promised by findings that a later run of the series realised.
    pub realised: Vec<RealisedSaving>,
    /// Files whose content is not the one that was sealed, as far as is known.
    pub damage: Vec<DamagedFile>,
    /// The rest of an active run, in answers of `GET /runs/{run_id}`.
    #[serde(default)]
    pub expected: Option<ExpectedRun>,
    pub links: RunLinks,
}

impl RunView {
    /// The view of a stored run.
    pub(crate) async fn of(app: &App, run: StoredRun) -> Result<Self, ApiError> {
        Ok(Self {
            realised: realised::of(app, &run).await?,
            run_id: run.id,
            state: run.state,
            owner: run.owner,
            sweep: run.sweep,
            name: run.spec.title(),
            spec: run.spec,
            attempts: run.attempts,
            queue_position: run.queue_position,
            queued_at: run.queued_at,
            started_at: run.started_at,
            ended_at: run.ended_at,
            cancel_requested: run.cancel_requested,
            pinned: run.pinned,
            scheduled: run.scheduled,
            message: match run.state {
                RunState::Queued => app.start_space().err().map(|it| it.to_string()),
                _ => None,
            }
            .or(run.message),
            failed_step: run.failed_step,
            steps: run.steps,
            findings: run.findings,
            damage: run.damage,
            expected: None,
            links: RunLinks::of(run.id),
        })
    }
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunSummary {
    pub run_id: RunId,
    /// Kind of the subject.
    pub kind: SubjectKind,
    pub state: RunState,
    /// Name of the token that submitted it; `null` if none was required.
    pub owner: Option<String>,
    /// Name of the model, of the command or of the capture; of a part, `PART of MODEL`.
    #[schema(example = "deepseek-ocr-tiny")]
    pub name: String,
    /// Name of the model; `null` if unknown.
    pub model: Option<String>,
    /// `null` for an import.
    pub mode: Option<Mode>,
    pub labels: Vec<String>,
    /// Revision of the profiled program, as submitted.
    pub revision: Option<String>,
    /// Id of its series; `null` until it has ended with a report.
    pub series: Option<String>,
    /// Product name of the device.
    pub device: Option<String>,
    pub headline: Option<Headline>,
    /// Change of each figure from the previous run of its series, percent.
    pub change_pct: Option<Headline>,
    pub pinned: bool,
    pub priority: i32,
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub message: Option<String>,
    pub links: RunLinks,
}

impl From<StoredRun> for RunSummary {
    fn from(run: StoredRun) -> Self {
        Self {
            run_id: run.id,
            kind: run.spec.kind(),
            state: run.state,
            owner: run.owner,
            name: run.spec.title(),
            model: run.spec.model().map(str::to_owned),
            mode: run.spec.mode().cloned(),
            pinned: run.pinned,
            priority: run.spec.common.priority,
            revision: run.spec.common.revision,
            series: None,
            device: None,
            headline: None,
            change_pct: None,
            labels: run.spec.common.labels,
            queued_at: run.queued_at,
            started_at: run.started_at,
            ended_at: run.ended_at,
            message: run.message,
            links: RunLinks::of(run.id),
        }
    }
}

/// A page of runs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    pub runs: Vec<RunSummary>,
    /// The `cursor` of the next page; `null` on the last.
    pub next_cursor: Option<String>,
}

/// Returns the run, or a 404.
pub(crate) async fn find(app: &App, id: RunId) -> Result<StoredRun, ApiError> {
    let mut run = app.store.run(id).await?.ok_or_else(|| not_found(id))?;
    let waits = run.spec.kind() == SubjectKind::Import && !run.state.is_final();
    if waits && app.measuring.is_active() {
        run.message = Some(WAITING.into());
    }
    Ok(run)
}

/// Returns the run if it has ended, or a 409.
pub(crate) async fn find_ended(app: &App, id: RunId) -> Result<StoredRun, ApiError> {
    let run = find(app, id).await?;
    require_ended(&run)?;
    Ok(run)
}

/// Refuses a run that has not ended.
pub(crate) fn require_ended(run: &StoredRun) -> Result<(), ApiError> {
    if run.state.is_final() {
        return Ok(());
    }
    let message = format!("run {0} has not ended; follow it at /runs/{0}/events", run.id);
    Err(ApiError::new(ErrorCode::RunNotFinished, message))
}

/// The record of a file of a run that was found before; `None` if the run has no such file. A run
/// that was deleted meanwhile is not found.
pub(crate) async fn listed(
    app: &App,
    id: RunId,
    path: &str,
) -> Result<Option<ArtifactRecord>, ApiError> {
    let artifact = app.store.artifact(id, path).await?;
    if artifact.is_none() {
        find(app, id).await?;
    }
    Ok(artifact)
}

/// Reads a file of a run that the store lists; a run that was deleted meanwhile is not found.
pub(crate) async fn read_listed(
    app: &App,
    id: RunId,
    artifact: &ArtifactRecord,
) -> Result<Vec<u8>, ApiError> {
    let folder = app.runs.join(id.to_string());
    let (dir, listed) = (folder.clone(), artifact.clone());
    let read = runtime::blocking(move || packed::read_artifact(&dir, &listed)).await;
    match read.map_err(|error| ApiError::internal(&error))? {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            Err(send::unreadable(&folder, &artifact.path, &error, || not_found(id)).await)
        }
    }
}

pub(crate) fn not_found(id: RunId) -> ApiError {
    ApiError::new(ErrorCode::RunNotFound, format!("no run {id}"))
}

/// Refuses a caller who is neither the run's owner nor an admin.
pub(crate) async fn check_run_owner(app: &App, caller: &Caller, id: RunId) -> Result<(), ApiError> {
    if caller.role == Role::Admin {
        return Ok(());
    }
    let owner = app.store.owner(id).await?.ok_or_else(|| not_found(id))?;
    check_owner(caller, "run", owner)
}
