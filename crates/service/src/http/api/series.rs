//! Series of comparable runs: lists, points, noise and change points.

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
};
use llmprof_analyze::series::noise::Noise;
use llmprof_core::domain::{
    headline::{FigureName, Headline, SeriesIdentity},
    ids::RunId,
    json_numbers::Within,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::runs::example;
use crate::{
    http::{
        error::{
            ApiError, ErrorCode,
            responses::{GuardedErrors, InvalidParameter, SeriesNotFound},
        },
        extract::params::{Params, bad_path, parse_id},
        state::App,
    },
    store::{StoredChange, StoredPoint, StoredSeries},
};

/// Newest runs of a series whose noise is estimated.
pub(crate) const RECENT: u32 = 500;

/// A series of comparable runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesSummary {
    pub id: String,
    /// Name of the model, of the command or of the capture.
    pub name: String,
    /// Product name of the device.
    pub device: Option<String>,
    /// The facts that its runs share.
    pub identity: SeriesIdentity,
    pub runs: u64,
    /// Change points.
    pub changes: u64,
    pub last_run: RunId,
}

impl From<StoredSeries> for SeriesSummary {
    fn from(it: StoredSeries) -> Self {
        let StoredSeries { id, identity, name, device, runs, changes, last_run } = it;
        Self { id, name, device, identity, runs, changes, last_run }
    }
}

/// A page of series, newest run first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesList {
    pub series: Vec<SeriesSummary>,
    pub next_cursor: Option<String>,
}

/// The point of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = SeriesPoint)]
pub struct PointView {
    pub run_id: RunId,
    pub queued_at: String,
    pub revision: Option<String>,
    pub mode: Option<String>,
    /// Version and commit of llmprof.
    pub build: String,
    pub driver: Option<String>,
    pub host: Option<String>,
    pub headline: Headline,
    /// Figures that are means in place of medians, of a run of an earlier version; `null` if its
    /// report was not read for them.
    pub means: Option<Vec<FigureName>>,
}

impl From<StoredPoint> for PointView {
    fn from(it: StoredPoint) -> Self {
        let StoredPoint { run, at, revision, mode, build, driver, host, headline, means, .. } = it;
        Self { run_id: run, queued_at: at, revision, mode, build, driver, host, headline, means }
    }
}

/// A change of a figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ChangePoint)]
pub struct ChangeView {
    pub figure: FigureName,
    /// First run after the change.
    pub run_id: RunId,
    /// Means since the previous change point and until the next.
    pub before: f64,
    pub after: f64,
    pub change_pct: f64,
    /// Probability of such a difference without a change.
    pub p: f64,
}

impl From<StoredChange> for ChangeView {
    fn from(it: StoredChange) -> Self {
        let StoredChange { figure, run, before, after, p } = it;
        let change_pct = 100.0 * (after / before - 1.0);
        Self { figure, run_id: run, before, after, change_pct, p }
    }
}

/// A series with a page of its points, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesView {
    pub series: SeriesSummary,
    pub points: Vec<PointView>,
    /// Standard deviation of each figure between runs of one build, percent.
    pub noise_pct: Headline,
    pub change_points: Vec<ChangeView>,
    pub next_cursor: Option<String>,
}

impl SeriesView {
    fn example() -> Self {
        let headline = Headline { tpot: Some(0.67), ..Headline::default() };
        let noise_pct = Headline { tpot: Some(0.9), ..Headline::default() };
        let point = PointView {
            run_id: example::id(),
            queued_at: "2026-11-20T09:00:00.000Z".into(),
            revision: Some("3f2c1ab".into()),
            mode: Some("basic".into()),
            build: "0.1.0".into(),
            driver: None,
            host: None,
            headline,
            means: Some(vec![]),
        };
        let series = SeriesList::example().series.remove(0);
        Self { series, points: vec![point], noise_pct, change_points: vec![], next_cursor: None }
    }
}

impl SeriesList {
    fn example() -> Self {
        let series = SeriesSummary {
            id: "5e884898da28047151d0e56f8dc62927".into(),
            name: "deepseek-ocr-tiny".into(),
            device: Some("NVIDIA H200".into()),
            identity: [("dtype".to_owned(), "bf16".to_owned())].into(),
            runs: 200,
            changes: 3,
            last_run: example::id(),
        };
        Self { series: vec![series], next_cursor: None }
    }
}

/// Page of a list.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SeriesListQuery {
    #[param(format = "uuid")]
    cursor: Option<String>,
    #[serde(default, deserialize_with = "Within::<1, 200>::optional_parameter")]
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// List series of comparable runs, newest run first
#[utoipa::path(get, path = "/series", tag = "runs", operation_id = "list_series",
    params(SeriesListQuery),
    responses(
        (status = 200, description = "A page of series", body = SeriesList,
            example = json!(SeriesList::example())),
        GuardedErrors, InvalidParameter))]
pub async fn list(
    State(app): State<App>,
    Params(query): Params<SeriesListQuery>,
) -> Result<Json<SeriesList>, ApiError> {
    let limit = query.limit.unwrap_or(50);
    Ok(Json(list_page(&app, query.cursor.as_deref(), limit).await?))
}

pub(crate) async fn list_page(
    app: &App,
    cursor: Option<&str>,
    limit: u32,
) -> Result<SeriesList, ApiError> {
    let before = cursor.map(parse_id).transpose()?;
    let mut series = app.store.series_list(before, limit + 1).await?;
    let more = series.len() > limit as usize;
    series.truncate(limit as usize);
    let next_cursor = series.last().filter(|_| more).map(|it| it.last_run.to_string());
    Ok(SeriesList { series: series.into_iter().map(SeriesSummary::from).collect(), next_cursor })
}

/// Page of the points of a series.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SeriesQuery {
    #[param(format = "uuid")]
    cursor: Option<String>,
    #[serde(default, deserialize_with = "Within::<1, 1000>::optional_parameter")]
    #[param(minimum = 1, maximum = 1000, default = 200)]
    limit: Option<u32>,
}

/// Get a series: its figures over time, their noise and change points
#[utoipa::path(get, path = "/series/{series_id}", tag = "runs", operation_id = "get_series",
    params(("series_id" = String, Path, pattern = "^[0-9a-f]{32}$"), SeriesQuery),
    responses(
        (status = 200, description = "The series", body = SeriesView,
            example = json!(SeriesView::example())),
        GuardedErrors, InvalidParameter, SeriesNotFound))]
pub async fn show(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    Params(query): Params<SeriesQuery>,
) -> Result<Json<SeriesView>, ApiError> {
    let Path(id) = id.map_err(bad_path)?;
    let limit = query.limit.unwrap_or(200);
    Ok(Json(view(&app, &id, query.cursor.as_deref(), limit).await?))
}

pub(crate) async fn view(
    app: &App,
    id: &str,
    cursor: Option<&str>,
    limit: u32,
) -> Result<SeriesView, ApiError> {
    let before = cursor.map(parse_id).transpose()?;
    let missing = || ApiError::new(ErrorCode::SeriesNotFound, format!("no series {id:.40}"));
    if id.len() != 32 || !id.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f')) {
        let message = format!("invalid series {id:.40?}; expected 32 hexadecimal digits");
        return Err(ApiError::new(ErrorCode::InvalidParameter, message));
    }
    let series = app.store.series(id).await?.ok_or_else(missing)?;
    let change_points = app.store.change_points(id).await?;
    let recent = app.store.points(id, None, RECENT).await?;
    let mut points = match before {
        None if limit < RECENT => recent.iter().take(limit as usize + 1).cloned().collect(),
        before => app.store.points(id, before, limit + 1).await?,
    };
    let more = points.len() > limit as usize;
    points.truncate(limit as usize);
    let noise = |figure| Some(noise(&recent, &change_points, figure)?.pct());
    Ok(SeriesView {
        series: series.into(),
        noise_pct: Headline::of(noise),
        next_cursor: points.last().filter(|_| more).map(|it| it.run.to_string()),
        points: points.into_iter().map(PointView::from).collect(),
        change_points: change_points.into_iter().map(ChangeView::from).collect(),
    })
}

/// The noise of a figure between runs of one build.
pub(crate) fn noise(
    points: &[StoredPoint],
    changes: &[StoredChange],
    figure: FigureName,
) -> Option<Noise> {
    let mut builds = std::collections::BTreeMap::<String, Vec<f64>>::new();
    for point in points {
        if let Some(value) = point.headline.get(figure) {
            builds.entry(point.build_key(changes)).or_default().push(value);
        }
    }
    Noise::within(builds.values().map(Vec::as_slice))
}
