//! Baselines: names of runs that gates compare with.

use axum::{Extension, Json, body::Body, extract::State, http::HeaderMap};
use llmprof_core::domain::ids::RunId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::runs::{self, check_label, example};
use crate::{
    http::{
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                BodyErrors, GuardedErrors, InsufficientStorage, InvalidBody, InvalidRequest,
                RequestConflict, RunNotFound,
            },
        },
        extract::{
            body::{MAX_BODY, parse_object, read_json},
            bounds::check_length,
        },
        state::App,
    },
    store::StoredBaseline,
};

/// Settings in a list.
const MAX_LISTED: u32 = 200;

/// Sets a baseline by hand (`run_id`) or by rule (`label`: the newest succeeded run of a series
/// with this label); neither removes the name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBaseline {
    #[schema(pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$", example = "main")]
    pub name: String,
    #[serde(default)]
    pub run_id: Option<RunId>,
    #[serde(default)]
    #[schema(
        min_length = 1,
        max_length = 64,
        pattern = r"^[^,\s\x00-\x1f\x7f-\x9f]([^,\x00-\x1f\x7f-\x9f]*[^,\s\x00-\x1f\x7f-\x9f])?$"
    )]
    pub label: Option<String>,
}

/// A setting of a baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Baseline {
    pub name: String,
    pub run_id: Option<RunId>,
    pub label: Option<String>,
    pub set_at: String,
    pub set_by: Option<String>,
}

impl From<StoredBaseline> for Baseline {
    fn from(it: StoredBaseline) -> Self {
        let StoredBaseline { name, run, label, set_at, set_by } = it;
        Self { name, run_id: run, label, set_at, set_by }
    }
}

/// The newest 200 settings, newest first: the first of a name counts, the others are its history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BaselineList {
    pub baselines: Vec<Baseline>,
}

impl BaselineList {
    fn example() -> Self {
        let baseline = Baseline {
            name: "main".into(),
            run_id: Some(example::id()),
            label: None,
            set_at: "2026-11-20T09:00:00.000Z".into(),
            set_by: Some("ann".into()),
        };
        Self { baselines: vec![baseline] }
    }
}

/// List the settings of baselines, newest first
#[utoipa::path(get, path = "/baselines", tag = "runs", operation_id = "list_baselines",
    responses(
        (status = 200, description = "The settings", body = BaselineList,
            example = json!(BaselineList::example())),
        GuardedErrors))]
pub async fn list(State(app): State<App>) -> Result<Json<BaselineList>, ApiError> {
    Ok(Json(BaselineList { baselines: settings(&app).await? }))
}

/// The newest settings, newest first.
pub(crate) async fn settings(app: &App) -> Result<Vec<Baseline>, ApiError> {
    let baselines = app.store.baselines(None, MAX_LISTED).await?;
    Ok(baselines.into_iter().map(Baseline::from).collect())
}

/// Set or remove a baseline
#[utoipa::path(post, path = "/baselines", tag = "runs", operation_id = "set_baseline",
    request_body(content = SetBaseline, example = json!({ "name": "main", "label": "main" })),
    responses(
        (status = 200, description = "All settings", body = BaselineList,
            example = json!(BaselineList::example())),
        GuardedErrors, InvalidBody, RunNotFound, RequestConflict, BodyErrors, InvalidRequest,
        InsufficientStorage))]
pub async fn set(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<BaselineList>, ApiError> {
    apply(&app, &caller, &read_json(&headers, body, MAX_BODY).await?).await?;
    list(State(app)).await
}

/// Sets or removes a baseline by a JSON body.
pub(crate) async fn apply(app: &App, caller: &Caller, body: &[u8]) -> Result<(), ApiError> {
    let it: SetBaseline = parse_object(body)?;
    check_name(&it.name)?;
    if let Some(label) = &it.label {
        check_label("label", label)?;
    }
    if it.run_id.is_some() && it.label.is_some() {
        let message = "run_id and label: set one of them";
        return Err(ApiError::new(ErrorCode::RequestContradictory, message));
    }
    if let Some(run) = it.run_id {
        runs::find(app, run).await?;
    }
    let target = (it.run_id, it.label.as_deref());
    app.store.set_baseline(&it.name, target, caller.name.as_deref()).await?;
    Ok(())
}

/// Checks the name of a baseline.
pub(super) fn check_name(name: &str) -> Result<(), ApiError> {
    check_length("the baseline's name", name, 1..=64)?;
    let known = |it: char| it.is_ascii_alphanumeric() || matches!(it, '.' | '_' | '-');
    if name.chars().all(known) && name.starts_with(|it: char| it.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let message = format!(
        "invalid baseline {name:?}; expected letters, digits, dots, underscores and hyphens"
    );
    Err(ApiError::new(ErrorCode::InvalidRequest, message))
}
