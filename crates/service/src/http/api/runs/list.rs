//! `GET /runs`.

use std::collections::HashMap;

use axum::{Json, extract::State};
use llmprof_core::domain::{
    headline::FigureName, ids::RunId, json_numbers::Within, state::RunState, subject::SubjectKind,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{RunList, RunSummary, checks::MAX_LABELS, example};
use crate::{
    http::{
        error::{
            ApiError, ErrorCode,
            responses::{GuardedErrors, InvalidParameter},
        },
        extract::params::{Params, parse_id},
        state::App,
    },
    store::Filter,
};

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
    #[param(pattern = r"\S")]
    label: Option<String>,
    /// Only runs with all of these labels, at most 16, separated by commas.
    #[param(pattern = r"[^,\s]")]
    labels: Option<String>,
    /// Only runs in this mode.
    mode: Option<String>,
    /// Only runs of this owner.
    owner: Option<String>,
    /// Only runs on this device: its product name, or as submitted.
    device: Option<String>,
    /// Only runs of this revision.
    revision: Option<String>,
    /// Only runs of this series.
    series: Option<String>,
    /// Only runs submitted at this time or later, RFC 3339.
    #[param(format = "date-time")]
    since: Option<String>,
    /// Only runs submitted before this time.
    #[param(format = "date-time")]
    until: Option<String>,
    /// Best first by this figure, runs with the figure only; newest first when absent.
    #[param(inline)]
    sort: Option<FigureName>,
    /// `next_cursor` of the previous page.
    #[param(format = "uuid")]
    cursor: Option<String>,
    /// Runs per page.
    #[serde(default, deserialize_with = "Within::<1, 200>::optional_parameter")]
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// List runs with their headline figures, newest first
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
    let limit = query.limit.unwrap_or(50);
    let filter = Filter {
        state: query.state,
        model: query.model,
        name: query.name,
        labels: labels(query.label, query.labels.as_deref())?,
        kind: query.kind,
        mode: query.mode,
        owner: query.owner,
        device: query.device,
        revision: query.revision,
        series: query.series,
        since_ms: query.since.as_deref().map(|time| parse_time("since", time)).transpose()?,
        until_ms: query.until.as_deref().map(|time| parse_time("until", time)).transpose()?,
        sort: query.sort,
    };
    Ok(Json(page(&app, &filter, query.cursor.as_deref(), limit).await?))
}

/// The labels of a filter: one, and a list separated by commas. A filter without a label is an
/// error: it would list all runs.
pub(crate) fn labels(label: Option<String>, list: Option<&str>) -> Result<Vec<String>, ApiError> {
    let listed = list.map(|list| -> Vec<String> {
        let labels = list.split(',').map(str::trim).filter(|label| !label.is_empty());
        labels.map(str::to_owned).collect()
    });
    let is_blank = label.as_ref().is_some_and(|label| label.trim().is_empty());
    if is_blank || listed.as_ref().is_some_and(Vec::is_empty) {
        let message = "no label in the filter; name one, or omit label and labels";
        return Err(ApiError::new(ErrorCode::InvalidParameter, message));
    }
    let labels: Vec<String> = label.into_iter().chain(listed.into_iter().flatten()).collect();
    if labels.len() > MAX_LABELS {
        let message = format!("{} labels in the filter; at most {MAX_LABELS}", labels.len());
        return Err(ApiError::new(ErrorCode::InvalidParameter, message));
    }
    Ok(labels)
}

/// Parses a time of a filter.
pub(crate) fn parse_time(name: &str, text: &str) -> Result<i64, ApiError> {
    let invalid = |_| {
        let message = format!("{name}: invalid time {text:.40?}; expected RFC 3339");
        ApiError::new(ErrorCode::InvalidParameter, message)
    };
    text.parse::<jiff::Timestamp>().map(|at| at.as_millisecond()).map_err(invalid)
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
    let mut runs: Vec<RunSummary> = runs.into_iter().map(RunSummary::from).collect();
    add_points(app, &mut runs).await?;
    Ok(RunList { runs, next_cursor })
}

/// Adds the headline figures of listed runs, and their change from the previous comparable run.
async fn add_points(app: &App, runs: &mut [RunSummary]) -> Result<(), ApiError> {
    let ids: Vec<RunId> = runs.iter().map(|run| run.run_id).collect();
    let own: HashMap<_, _> = app.store.points_of(&ids, false).await?.into_iter().collect();
    let previous: HashMap<_, _> = app.store.points_of(&ids, true).await?.into_iter().collect();
    for run in runs {
        let Some(point) = own.get(&run.run_id) else { continue };
        run.series.clone_from(&point.series);
        run.device.clone_from(&point.device);
        run.headline = Some(point.headline);
        let earlier = previous.get(&run.run_id);
        run.change_pct = earlier.map(|earlier| point.headline.change_pct(&earlier.headline));
    }
    Ok(())
}
