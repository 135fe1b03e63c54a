//! Pages of series: the list, and one series with a chart per figure.

mod facts;

use std::collections::BTreeMap;

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
};
use llmprof_core::domain::headline::{FigureName, FigureStatistic};
use llmprof_report::charts::series::{SeriesDot, SeriesLevel, series as chart};
use serde::{Deserialize, Serialize};

use super::page::HtmlPage;
use crate::http::{
    api::series::{self, ChangeView, PointView, SeriesSummary, SeriesView},
    auth::access::Caller,
    error::ApiError,
    extract::params::{Params, bad_path},
    state::App,
};

const PAGE_SERIES: u32 = 50;
/// Drawn runs.
const PAGE_POINTS: u32 = 300;

/// Page of a list, and the run that is chosen for a comparison.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SeriesPageQuery {
    cursor: String,
    compare: String,
}

#[derive(Serialize)]
struct SeriesListView<'a> {
    rows: Vec<SeriesRow>,
    next_cursor: Option<String>,
    query: &'a SeriesPageQuery,
}

#[derive(Serialize)]
struct SeriesRow {
    title: String,
    /// The facts that distinguish it from others of the name.
    facts: String,
    series: SeriesSummary,
}

impl From<SeriesSummary> for SeriesRow {
    fn from(series: SeriesSummary) -> Self {
        let title = facts::title(&series.name, &series.identity);
        Self { title, facts: facts::line(&series.identity), series }
    }
}

/// `GET /ui/series`
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<SeriesPageQuery>,
) -> Result<HtmlPage, ApiError> {
    let cursor = Some(query.cursor.as_str()).filter(|it| !it.is_empty());
    let list = series::list_page(&app, cursor, PAGE_SERIES).await?;
    let view = SeriesListView {
        rows: list.series.into_iter().map(SeriesRow::from).collect(),
        next_cursor: list.next_cursor,
        query: &query,
    };
    HtmlPage::render(Some(&caller), "series_list.html", view)
}

#[derive(Serialize)]
struct SeriesDetails<'a> {
    title: String,
    /// The facts that its runs share, by name.
    facts: BTreeMap<String, String>,
    view: &'a SeriesView,
    figures: Vec<FigureChart>,
    /// Figures that some run has.
    columns: Vec<FigureColumn>,
    query: &'a SeriesPageQuery,
}

#[derive(Serialize)]
struct FigureChart {
    name: &'static str,
    /// With the statistic of the drawn runs.
    title: String,
    unit: &'static str,
    noise_pct: Option<f64>,
    chart: String,
    /// With the unit's direction.
    changes: Vec<FigureChange>,
}

#[derive(Serialize)]
struct FigureChange {
    change: ChangeView,
    worse: bool,
    /// The run before it, if it is drawn.
    previous: Option<String>,
}

#[derive(Serialize)]
struct FigureColumn {
    name: &'static str,
    title: String,
    unit: &'static str,
}

/// `GET /ui/series/{series_id}`
pub async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    Params(query): Params<SeriesPageQuery>,
) -> Result<HtmlPage, ApiError> {
    let Path(id) = id.map_err(bad_path)?;
    let cursor = Some(query.cursor.as_str()).filter(|it| !it.is_empty());
    let view = series::view(&app, &id, cursor, PAGE_POINTS).await?;
    let known =
        |figure: &FigureName| view.points.iter().any(|it| it.headline.get(*figure).is_some());
    let names: Vec<FigureName> = FigureName::ALL.iter().copied().filter(known).collect();
    let identity = &view.series.identity;
    let details = SeriesDetails {
        title: facts::title(&view.series.name, identity),
        facts: facts::all(identity),
        figures: names.iter().map(|figure| draw(&view, *figure)).collect(),
        columns: names
            .iter()
            .map(|it| FigureColumn { name: it.as_str(), title: title(&view, *it), unit: it.unit() })
            .collect(),
        view: &view,
        query: &query,
    };
    HtmlPage::render(Some(&caller), "series.html", details)
}

/// The statistic of a figure in a point that has it.
fn statistic(point: &PointView, figure: FigureName) -> Option<FigureStatistic> {
    point.headline.get(figure).and(figure.statistic(point.means.as_deref()))
}

/// The title of a figure with the statistic of the shown runs.
fn title(view: &SeriesView, figure: FigureName) -> String {
    let of_runs = view.points.iter().filter_map(|it| statistic(it, figure));
    figure.title_by(FigureStatistic::of_all(of_runs))
}

fn draw(view: &SeriesView, figure: FigureName) -> FigureChart {
    let runs: Vec<(&PointView, f64)> =
        view.points.iter().rev().filter_map(|it| Some((it, it.headline.get(figure)?))).collect();
    let dot = |(point, value): &(&PointView, f64)| SeriesDot {
        value: *value,
        tooltip: format!(
            "{value:.4} {}{}, {}, {}",
            figure.unit(),
            match statistic(point, figure) {
                Some(FigureStatistic::Mean) => " (mean)",
                Some(FigureStatistic::Unknown) => " (median or mean)",
                _ => "",
            },
            point.revision.as_deref().unwrap_or("no revision"),
            point.queued_at
        ),
        link: format!("/ui/runs/{}", point.run_id),
    };
    let dots: Vec<SeriesDot> = runs.iter().map(dot).collect();
    let changes: Vec<&ChangeView> =
        view.change_points.iter().filter(|it| it.figure == figure).collect();
    let place = |change: &ChangeView| runs.iter().position(|(it, _)| it.run_id == change.run_id);
    let starts = [0].into_iter().chain(changes.iter().filter_map(|it| place(it)));
    let mut starts: Vec<usize> = starts.collect();
    starts.dedup();
    let levels: Vec<SeriesLevel> = starts
        .iter()
        .enumerate()
        .map(|(at, from)| {
            let to = starts.get(at + 1).map_or(runs.len().saturating_sub(1), |next| next - 1);
            let values = &runs[*from..=to];
            let mean = values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64;
            SeriesLevel { from: *from, to, mean }
        })
        .collect();
    let title = title(view, figure);
    let text = format!("{title} of {} runs, oldest first", runs.len());
    let changes = changes.into_iter().map(|it| FigureChange {
        worse: (it.change_pct > 0.0) == figure.lower_is_better(),
        previous: place(it)
            .and_then(|at| at.checked_sub(1))
            .map(|at| runs[at].0.run_id.to_string()),
        change: it.clone(),
    });
    FigureChart {
        name: figure.as_str(),
        unit: figure.unit(),
        noise_pct: view.noise_pct.get(figure),
        chart: chart(&format!("chart-{figure}"), (&title, &text), &dots, &levels),
        title,
        changes: changes.collect(),
    }
}
