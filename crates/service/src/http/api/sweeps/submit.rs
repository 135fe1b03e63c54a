//! `POST /sweeps`: checks every point as a submission, stores the sweep durably, then answers.

use std::collections::BTreeMap;

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse},
};
use llmprof_core::domain::{
    json_numbers::Within,
    sweep::{AxisValues, count_points, points},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{SweepView, example, grid, prompts::StoredPrompts};
use crate::http::api::runs::submit::{accepted_run, check_free_space};
use crate::{
    http::{
        api::runs::submissions::SubmitRun,
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                BodyErrors, GuardedErrors, InsufficientStorage, InvalidBody, InvalidInputs,
                SubjectNotFound, SubmissionConflict, SweepLimit, Unavailable,
            },
        },
        extract::{
            body::{MAX_BODY, parse_object, read_json},
            bounds::{check_range, check_text},
        },
        state::App,
    },
    store::{NewSweep, NewSweepPoint, StartedSweep, StoredSweep},
};

const MAX_NAME: usize = 64;
/// Maximum number of axes.
pub const MAX_AXES: usize = 8;

/// A grid of submissions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitSweep {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub name: Option<String>,
    /// The submission that all points have in common, as of `POST /runs`, in mode `basic`, which is
    /// the default here, or `light`.
    #[schema(value_type = SubmitRun)]
    pub base: Map<String, Value>,
    /// The values of each axis. A model has the axes `model`, `prompt_tokens` (of a generated
    /// text), `new_tokens` and `dtype`; a command has `params.NAME`. A point that cannot run is a
    /// gap with its reason.
    #[schema(example = json!({ "new_tokens": [16, 64] }))]
    pub axes: BTreeMap<String, AxisValues>,
    #[serde(default)]
    pub limits: SweepLimits,
    /// Take the newest run of the same submission, device and build in place of a new one.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub reuse: bool,
}

fn yes() -> bool {
    true
}

/// Limits of a sweep [default: the service's].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepLimits {
    /// Minutes after which no further point starts, without pauses.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "Within::<1, 1440>::optional"
    )]
    #[schema(minimum = 1, maximum = 1440)]
    pub max_minutes: Option<u32>,
    /// Points that are queued at a time.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "Within::<1, 16>::optional"
    )]
    #[schema(minimum = 1, maximum = 16)]
    pub max_queued: Option<u32>,
}

/// Start a sweep: a grid of submissions; each point is a run
///
/// Every point is checked as a submission. Points that would be refused are gaps; a sweep without
/// any other is refused. All points are on disk when the answer arrives, and are queued a few at a
/// time.
#[utoipa::path(post, path = "/sweeps", tag = "runs", operation_id = "start_sweep",
    request_body(content = SubmitSweep, examples(
        ("model" = (summary = "Prompt and new tokens of a model", value = json!({
            "base": { "model": "deepseek-ocr-tiny", "mode": "basic" },
            "axes": {
                "prompt_tokens": { "from": 64, "to": 256, "factor": 2 }, "new_tokens": [8, 16],
            },
        }))),
        ("command" = (summary = "A parameter of a command", value = json!({
            "name": "tokens",
            "base": { "target": { "command": "tiny-generate" }, "mode": "basic", "repeats": 2 },
            "axes": { "params.tokens": [4, 8] },
            "limits": { "max_minutes": 30, "max_queued": 1 }, "reuse": false,
        }))))),
    responses(
        (status = 202, description = "It runs", body = SweepView,
            headers(("Location" = String, description = "Path of the sweep")),
            example = json!(example())),
        GuardedErrors, InvalidBody, SubjectNotFound, BodyErrors, SubmissionConflict, InvalidInputs,
        SweepLimit, Unavailable, InsufficientStorage))]
pub async fn start(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<impl IntoResponse, ApiError> {
    let body = read_json(&headers, body, MAX_BODY).await?;
    let view = SweepView::of(begin(&app, &caller, &body).await?, None)?;
    let location = AppendHeaders([(header::LOCATION, format!("/sweeps/{}", view.sweep_id))]);
    Ok((StatusCode::ACCEPTED, location, Json(view)))
}

/// Checks a request and stores its sweep.
pub(crate) async fn begin(
    app: &App,
    caller: &Caller,
    body: &[u8],
) -> Result<StoredSweep, ApiError> {
    let request = check(app, parse_object(body)?)?;
    check_free_space(app)?;
    // A task of its own: inputs are stored together with their sweep even if the client leaves now.
    let started = tokio::spawn({
        let (app, caller) = (app.clone(), caller.clone());
        async move {
            let mut prompts = StoredPrompts::default();
            let started = store(&app, &caller, request, &mut prompts).await;
            if started.is_err() {
                prompts.remove(&app).await?;
            }
            started
        }
    });
    let stored = started.await.map_err(|error| ApiError::internal(&error))??;
    app.queued.notify_waiters();
    Ok(stored)
}

/// Checks what all points have in common, and fills in the defaults.
fn check(app: &App, mut request: SubmitSweep) -> Result<SubmitSweep, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
    let settings = &app.config.sweeps;
    if let Some(name) = &request.name {
        check_text("name", name, 1..=MAX_NAME)?;
    }
    let limits = &mut request.limits;
    let max_minutes = *limits.max_minutes.get_or_insert(settings.max_minutes);
    check_range("limits.max_minutes", max_minutes, 1..=settings.max_minutes)?;
    let max_queued = *limits.max_queued.get_or_insert(settings.queued.min(settings.max_queued));
    check_range("limits.max_queued", max_queued, 1..=settings.max_queued)?;
    if request.axes.len() > MAX_AXES {
        let axes = request.axes.len();
        return Err(invalid(format!("axes: {axes}, at most {MAX_AXES} are accepted")));
    }
    count_points(&request.axes, settings.max_points.into()).map_err(grid::axes_error)?;
    grid::check_axes(&request)?;
    request.base.entry("mode").or_insert_with(|| json!("basic"));
    grid::check_base(&request.base)?;
    Ok(request)
}

async fn store(
    app: &App,
    caller: &Caller,
    mut request: SubmitSweep,
    prompts: &mut StoredPrompts,
) -> Result<StoredSweep, ApiError> {
    prompts.store_inline(app, caller, &mut request.base).await?;
    grid::check_form(app, caller, &request.base).await?;
    let mut checked = Vec::new();
    let mut refused = None;
    for axes in points(&request.axes).map_err(grid::axes_error)? {
        let spec = match grid::check_point(app, caller, &request, &axes, prompts).await {
            Ok(spec) => Ok(spec),
            Err(error) if error.code().status().is_server_error() => return Err(error),
            Err(error) => {
                let reason = error.message().to_owned();
                refused.get_or_insert(error);
                Err(reason)
            }
        };
        checked.push(NewSweepPoint { axes, spec });
    }
    if let Some(error) = refused
        && checked.iter().all(|point| point.spec.is_err())
    {
        let message = format!("no point can run; the first: {}", error.message());
        // The form of base was accepted, so the values of the axes do not fit it.
        return Err(match error.code() {
            ErrorCode::InvalidRequest => grid::contradictory(message),
            code => ApiError::new(code, message),
        });
    }
    let new = NewSweep {
        name: request.name.clone(),
        owner: app.access.owner(caller),
        request: json!(request).to_string(),
        max_queued: request.limits.max_queued.unwrap_or(1),
        max_minutes: request.limits.max_minutes.unwrap_or(1),
        reuse: request.reuse,
        per_owner: app.config.sweeps.per_owner,
        points: checked,
    };
    match app.store.start_sweep(&new).await? {
        StartedSweep::New(sweep) => Ok(*sweep),
        StartedSweep::TooMany(active) => {
            let owner =
                caller.name.as_ref().map_or_else(|| "the service".into(), |it| format!("{it:?}"));
            let message = format!(
                "sweep limit reached: {owner} already has {active} active sweeps \
                 (sweeps.per_owner); cancel one"
            );
            Err(ApiError::new(ErrorCode::TooManySweeps, message).retry_after(60))
        }
        StartedSweep::Refused(refused) => match accepted_run(refused, caller) {
            Err(error) => Err(error),
            Ok(_) => Err(ApiError::of(ErrorCode::Internal)),
        },
    }
}
