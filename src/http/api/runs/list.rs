//! `GET /runs`.

use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{RunList, RunSummary, example};
use crate::{
    domain::{state::RunState, subject::SubjectKind},
    http::{
        error::{
            ApiError,
            responses::{GuardedErrors, InvalidParameter},
        },
        extract::{
            bounds,
            params::{Params, parse_id},
        },
        state::App,
    },
    store::Filter,
};

const MAX_LIMIT: u32 = 200;

/// Filter and page of a list of runs.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RunListQuery {
    /// Only runs in this state.
    #[param(inline)]
    state: Option<RunState>,
    /// Only runs of subjects of this kind.
    #[param(inline)]
    kind: Option<SubjectKind>,
    /// Only runs of this model.
    model: Option<String>,
    /// Only runs of this name: of a model, a command or a capture.
    name: Option<String>,
    /// Only runs with this label.
    label: Option<String>,
    /// `next_cursor` of the previous page.
    #[param(format = "uuid")]
    cursor: Option<String>,
    /// Runs per page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// List runs, newest first
#[utoipa::path(get, path = "/runs", tag = "runs", operation_id = "list_runs",
    params(RunListQuery),
    responses(
        (status = 200, description = "A page of runs", body = RunList,
            example = json!(example::run_list())),
        GuardedErrors, InvalidParameter))]
pub async fn list(
    State(app): State<App>,
    Params(query): Params<RunListQuery>,
) -> Result<Json<RunList>, ApiError> {
    let limit = bounds::limit(query.limit, 50, MAX_LIMIT)?;
    let filter = Filter {
        state: query.state,
        model: query.model,
        name: query.name,
        label: query.label,
        kind: query.kind,
    };
    Ok(Json(page(&app, &filter, query.cursor.as_deref(), limit).await?))
}

/// Returns up to `limit` matching runs, starting after `cursor`.
pub(crate) async fn page(
    app: &App,
    filter: &Filter,
    cursor: Option<&str>,
    limit: u32,
) -> Result<RunList, ApiError> {
    let before = cursor.map(parse_id).transpose()?;
    let mut runs = app.store.list(filter, before, limit + 1).await?;
    let more = runs.len() > limit as usize;
    runs.truncate(limit as usize);
    let next_cursor = runs.last().filter(|_| more).map(|run| run.id.to_string());
    Ok(RunList { runs: runs.into_iter().map(RunSummary::from).collect(), next_cursor })
}
