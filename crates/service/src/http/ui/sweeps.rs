//! Pages of sweeps: the list with a form, and one sweep with its progress, charts and tables.
//!
//! Buttons are forms; the page refreshes its parts while the sweep runs.

use std::collections::BTreeMap;

use axum::{
    Extension,
    extract::{Request, State},
    response::{IntoResponse, Redirect, Response},
};
use llmprof_analyze::sweep::{OperatorBound, SweepResults, SweepRow, number, number_axes};
use llmprof_core::domain::{command::ParamValue, headline::FigureName};
use llmprof_report::charts::sweep::{ChartLine, ChartPoint, lines, tradeoff};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    forms::{self, Button, Fields, field, non_empty, number_or_text},
    page::HtmlPage,
};
use crate::http::{
    api::sweeps::{self, SweepAction, SweepView, submit},
    auth::access::Caller,
    error::{ApiError, ErrorCode},
    extract::params::{Params, SweepPath},
    state::App,
};

/// Axes of the form.
const FORM_AXES: [&str; 4] = ["batch", "prompt_tokens", "new_tokens", "dtype"];

/// Headline figures of a point.
const FIGURES: [FigureName; 5] = [
    FigureName::Ttft,
    FigureName::Tpot,
    FigureName::TokensPerS,
    FigureName::Energy,
    FigureName::Mfu,
];

/// Labels of the fields.
pub(super) const LABELS: &forms::Labels = &[
    ("name", "Name"),
    ("model", "Model"),
    ("mode", "Mode"),
    ("base.mode", "Mode"),
    ("device", "Device"),
    ("batch", "Batch"),
    ("axes.batch", "Batch"),
    ("prompt_tokens", "Prompt tokens"),
    ("axes.prompt_tokens", "Prompt tokens"),
    ("new_tokens", "New tokens"),
    ("axes.new_tokens", "New tokens"),
    ("max_new_tokens", "New tokens"),
    ("dtype", "Dtypes"),
    ("axes.dtype", "Dtypes"),
    ("max_minutes", "Limit in minutes"),
    ("limits.max_minutes", "Limit in minutes"),
    ("request", "Body of POST /sweeps"),
];

/// Listed operators; the results of the API have all of them.
const PAGE_BOUNDS: usize = 200;

/// Initial values of the form. Browsers send empty fields too.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SweepForm {
    name: String,
    model: String,
    mode: String,
    device: String,
    batch: String,
    prompt_tokens: String,
    new_tokens: String,
    dtype: String,
    max_minutes: String,
    /// A request of the API in place of the fields above.
    request: String,
}

#[derive(Serialize)]
struct SweepsPage<'a> {
    sweeps: Vec<SweepView>,
    models: Vec<&'a str>,
    entered: &'a SweepForm,
    /// Reason why the sweep was refused.
    problem: Option<&'a str>,
}

/// `GET /ui/sweeps`
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(entered): Params<SweepForm>,
) -> Result<HtmlPage, ApiError> {
    render_list(&app, &caller, &entered, None).await
}

async fn render_list(
    app: &App,
    caller: &Caller,
    entered: &SweepForm,
    problem: Option<&str>,
) -> Result<HtmlPage, ApiError> {
    let sweeps = sweeps::page(app).await?.sweeps;
    let models = app.models.keys().map(String::as_str).collect();
    let page = SweepsPage { sweeps, models, entered, problem };
    HtmlPage::render(Some(caller), "sweeps.html", page)
}

/// `POST /ui/sweeps`: starts a sweep.
pub async fn start(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = forms::read(request).await?;
    let entered = SweepForm::of(&fields);
    let started = async {
        forms::check(&fields, &forms::names_of::<SweepForm>())?;
        submit::begin(&app, &caller, entered.body()?.as_bytes()).await
    };
    match started.await {
        Ok(sweep) => Ok(Redirect::to(&format!("/ui/sweeps/{}", sweep.id)).into_response()),
        Err(refused) if refused.code() == ErrorCode::Internal => Err(refused),
        Err(refused) => {
            let problem = match entered.request.is_empty() {
                true => forms::labelled(refused.message(), LABELS),
                false => refused.message().to_owned(),
            };
            let page = render_list(&app, &caller, &entered, Some(&problem)).await?;
            Ok(page.with_status(refused.code().status()).into_response())
        }
    }
}

impl SweepForm {
    fn of(fields: &Fields) -> Self {
        let text = |name: &str| field(fields, name).trim().to_owned();
        Self {
            name: text("name"),
            model: text("model"),
            mode: text("mode"),
            device: text("device"),
            batch: text("batch"),
            prompt_tokens: text("prompt_tokens"),
            new_tokens: text("new_tokens"),
            dtype: text("dtype"),
            max_minutes: text("max_minutes"),
            request: text("request"),
        }
    }

    /// The body of the API. A request in JSON is all of it.
    fn body(&self) -> Result<String, ApiError> {
        if let Some(request) = non_empty(&self.request) {
            let fields = serde_json::to_value(self).unwrap_or_default();
            let is_given = |(name, text): &(&String, &Value)| {
                *name != "request" && text.as_str().is_some_and(|text| !text.is_empty())
            };
            let other = fields.as_object().and_then(|all| all.iter().find(is_given));
            let Some((name, _)) = other else { return Ok(request) };
            let message = format!(
                "{name}: the request in JSON replaces the other fields of the form; empty this \
                 field, or the request"
            );
            let message = forms::labelled(&message, LABELS);
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        }
        let given = [("model", &self.model), ("mode", &self.mode), ("device", &self.device)];
        let base: Map<String, Value> = given
            .into_iter()
            .filter_map(|(name, it)| Some((name.into(), non_empty(it)?.into())))
            .collect();
        let texts = [&self.batch, &self.prompt_tokens, &self.new_tokens, &self.dtype];
        let axes: Map<String, Value> = FORM_AXES
            .into_iter()
            .zip(texts)
            .filter_map(|(name, text)| Some((name.into(), values(&non_empty(text)?))))
            .collect();
        let mut body = json!({ "base": base, "axes": axes });
        if let Some(name) = non_empty(&self.name) {
            body["name"] = json!(name);
        }
        if let Some(minutes) = non_empty(&self.max_minutes) {
            body["limits"] = json!({ "max_minutes": number_or_text(&minutes) });
        }
        Ok(body.to_string())
    }
}

/// Values that are separated by commas or spaces.
fn values(text: &str) -> Value {
    let parts = text.split([',', ' ']).filter(|part| !part.is_empty());
    parts.map(number_or_text).collect()
}

#[derive(Serialize)]
struct SweepPage<'a> {
    sweep: &'a SweepView,
    is_final: bool,
    /// True if the caller may change it.
    may_change: bool,
    axes: Vec<&'a str>,
    results: &'a SweepResults,
    rows: Vec<PageRow<'a>>,
    /// Headings of the headline figures, in the order of their columns.
    headings: [&'static str; 5],
    stages: Vec<&'a str>,
    tradeoff: String,
    charts: Vec<StageChart>,
    operators: Vec<PageBound<'a>>,
}

#[derive(Serialize)]
struct PageRow<'a> {
    row: &'a SweepRow,
    state: &'static str,
    reused: bool,
}

#[derive(Serialize)]
struct StageChart {
    title: String,
    chart: String,
}

/// A bound with the values of the other axes as text.
#[derive(Serialize)]
struct PageBound<'a> {
    bound: &'a OperatorBound,
    at: String,
}

impl<'a> PageBound<'a> {
    fn of(bound: &'a OperatorBound) -> Self {
        Self { at: named(&bound.at), bound }
    }
}

/// `GET /ui/sweeps/{sweep_id}`
pub async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SweepPath(id): SweepPath,
) -> Result<HtmlPage, ApiError> {
    let (sweep, results) = sweeps::find(&app, id).await?;
    let points = sweep.points.iter().flatten();
    let rows = results.rows.iter().zip(points).map(|(row, point)| PageRow {
        row,
        state: point.state.as_str(),
        reused: point.reused,
    });
    let mut stages: Vec<&str> =
        results.rows.iter().flat_map(|row| row.stages.keys().map(String::as_str)).collect();
    stages.sort_unstable_by_key(|stage| (*stage != "prefill", *stage));
    stages.dedup();
    let page = SweepPage {
        is_final: sweep.state.is_final(),
        may_change: caller.may_change(sweep.owner.as_deref()),
        axes: sweep.request.axes.keys().map(String::as_str).collect(),
        rows: rows.collect(),
        headings: FIGURES.map(FigureName::heading),
        tradeoff: draw_tradeoff(&results),
        charts: draw_stages(&results, &stages),
        operators: results.operators.iter().take(PAGE_BOUNDS).map(PageBound::of).collect(),
        stages,
        results: &results,
        sweep: &sweep,
    };
    HtmlPage::render(Some(&caller), "sweep.html", page)
}

/// Values of axes in one text.
fn named(axes: &BTreeMap<String, ParamValue>) -> String {
    let parts: Vec<String> = axes.iter().map(|(name, value)| format!("{name} {value}")).collect();
    parts.join(", ")
}

fn link(row: &SweepRow) -> Option<String> {
    row.run_id.map(|run| format!("/ui/runs/{run}"))
}

fn draw_tradeoff(results: &SweepResults) -> String {
    let point = |row: &SweepRow| {
        let (x, y) = (row.tpot_ms?, row.tokens_per_s?);
        let tooltip = format!("{}: {x:.3} ms per token, {y:.1} tokens/s", named(&row.axes));
        Some(ChartPoint { x, y, tooltip, link: link(row), on_front: row.on_front })
    };
    let points: Vec<ChartPoint> = results.rows.iter().filter_map(point).collect();
    let axes = ("Median time per output token, ms", "Median tokens per second");
    tradeoff("tradeoff", "Throughput against latency", axes, &points)
}

/// A chart per stage and axis of numbers, with a line for each combination of the other axes.
fn draw_stages(results: &SweepResults, stages: &[&str]) -> Vec<StageChart> {
    let axes = number_axes(results.rows.iter().map(|row| &row.axes));
    let mut charts = Vec::new();
    for (stage, axis) in stages.iter().flat_map(|stage| axes.iter().map(move |it| (stage, it))) {
        let mut groups: BTreeMap<String, Vec<ChartPoint>> = BTreeMap::new();
        for row in &results.rows {
            let (Some(x), Some(y)) =
                (row.axes.get(axis).and_then(number), row.stages.get(*stage).copied())
            else {
                continue;
            };
            let mut others = row.axes.clone();
            others.remove(axis);
            let tooltip = format!("{}: {y:.3} ms", named(&row.axes));
            let point = ChartPoint { x, y, tooltip, link: link(row), on_front: false };
            groups.entry(named(&others)).or_default().push(point);
        }
        let group = |(label, mut points): (String, Vec<ChartPoint>)| {
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            ChartLine { label, points }
        };
        let groups: Vec<ChartLine> = groups.into_iter().map(group).collect();
        let (id, title) = (format!("chart-{}", charts.len()), format!("{stage} over {axis}"));
        let chart = lines(&id, &title, (axis, "ms"), &groups);
        if !chart.is_empty() {
            charts.push(StageChart { title, chart });
        }
    }
    charts
}

/// `POST /ui/sweeps/{sweep_id}/pause`
pub async fn pause(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SweepPath(id): SweepPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    sweeps::apply(&app, &caller, id, SweepAction::Pause).await?;
    Ok(Redirect::to(&format!("/ui/sweeps/{id}")))
}

/// `POST /ui/sweeps/{sweep_id}/resume`
pub async fn resume(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SweepPath(id): SweepPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    sweeps::apply(&app, &caller, id, SweepAction::Resume).await?;
    Ok(Redirect::to(&format!("/ui/sweeps/{id}")))
}

/// `POST /ui/sweeps/{sweep_id}/cancel`
pub async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SweepPath(id): SweepPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    sweeps::apply(&app, &caller, id, SweepAction::Cancel).await?;
    Ok(Redirect::to(&format!("/ui/sweeps/{id}")))
}

/// `POST /ui/sweeps/{sweep_id}/delete`
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SweepPath(id): SweepPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    sweeps::remove(&app, &caller, id).await?;
    Ok(Redirect::to("/ui/sweeps"))
}

/// `GET` of a button's address: redirects to the sweep.
pub async fn back(SweepPath(id): SweepPath) -> Redirect {
    Redirect::to(&format!("/ui/sweeps/{id}"))
}
