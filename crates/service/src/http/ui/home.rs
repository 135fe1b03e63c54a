//! The first page: devices, queue, recent runs, and the form that submits one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use axum::{
    Extension,
    extract::{Request, State},
    response::{IntoResponse, Redirect, Response},
};
use llmprof_core::domain::{
    device::Device, dtype::Dtype, headline::FigureName, ids::RunId, model::ModelSpec,
    state::RunState,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    forms::{self, field, invalid_parameter, non_empty, parse_name},
    page::HtmlPage,
    submit_form::{LABELS, SubmitForm},
    submit_inputs,
};
use crate::{
    http::{
        api::{
            devices::{self, DeviceView},
            inputs::{self, InputsSummary, ManifestName},
            queue::{self, Queue},
            retention::{self, DueRun},
            runs::{self, RunList, list, submit},
        },
        auth::access::Caller,
        error::ApiError,
        extract::{
            body::media_type,
            params::{Params, parse_id},
        },
        state::App,
    },
    store::Filter,
};

/// Runs per page.
const PAGE_RUNS: u32 = 20;

/// Stored inputs that the form offers.
const PAGE_INPUTS: u32 = 20;

/// Filter of the list, and the run whose settings fill the form. Browsers send empty fields too.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HomeQuery {
    state: String,
    model: String,
    /// Separated by commas.
    label: String,
    mode: String,
    owner: String,
    device: String,
    since: String,
    until: String,
    /// A headline figure; newest first if empty.
    sort: String,
    /// `all`: every column.
    columns: String,
    /// The run that is chosen for a comparison.
    compare: String,
    cursor: String,
    /// The run to submit again.
    again: String,
    /// Settings of the passes to submit it with, each on a line: `nsys.trace=["cuda","nvtx"]`.
    settings: String,
    /// Stored inputs or a manifest that the form names.
    inputs: String,
}

impl HomeQuery {
    /// The fields of the filter by name.
    fn fields(&self) -> [(&'static str, &str); 9] {
        [
            ("state", &self.state),
            ("model", &self.model),
            ("label", &self.label),
            ("mode", &self.mode),
            ("owner", &self.owner),
            ("device", &self.device),
            ("since", &self.since),
            ("until", &self.until),
            ("sort", &self.sort),
        ]
    }

    fn is_filtered(&self) -> bool {
        self.fields().iter().any(|(_, value)| !value.trim().is_empty())
    }

    fn links(&self) -> BTreeMap<&'static str, &str> {
        let others = [("columns", self.columns.as_str()), ("compare", &self.compare)];
        let given = self.fields().into_iter().chain(others);
        given.filter(|(_, value)| !value.is_empty()).collect()
    }

    fn filter(&self) -> Result<Filter, ApiError> {
        // The form has days, both included.
        let day = |name: &str, text: &str, time: &str| {
            let parsed = |day: String| {
                list::parse_time(name, &format!("{day}{time}"))
                    .map_err(|_| invalid_parameter(name, &day, "a day such as 2026-11-01"))
            };
            non_empty(text).map(parsed).transpose()
        };
        Ok(Filter {
            state: parse_name("state", &self.state)?,
            model: non_empty(&self.model),
            labels: list::labels(None, non_empty(&self.label).as_deref())?,
            mode: non_empty(&self.mode),
            owner: non_empty(&self.owner),
            device: non_empty(&self.device),
            since_ms: day("since", &self.since, "T00:00:00Z")?,
            until_ms: day("until", &self.until, "T23:59:59.999Z")?,
            sort: parse_name("sort", &self.sort)?,
            ..Filter::default()
        })
    }
}

/// Name, title and heading of a headline figure.
type FigureNames = (&'static str, &'static str, &'static str);

#[derive(Serialize)]
struct Home<'a> {
    devices: Vec<DeviceView>,
    queue: Queue,
    runs: RunList,
    /// Listed runs that will be removed.
    removals: HashMap<RunId, DueRun>,
    query: &'a HomeQuery,
    filtered: bool,
    states: &'static [RunState],
    /// Name, title and heading of each headline figure.
    figures: Vec<FigureNames>,
    /// The same, the one by which the runs are sorted first.
    ranked: Vec<FigureNames>,
    /// The filter as parameters of links.
    links: BTreeMap<&'static str, &'a str>,
    submission: SubmitFormView<'a>,
}

#[derive(Serialize)]
struct SubmitFormView<'a> {
    models: Vec<FormOption<'a>>,
    default_model: &'a str,
    modes: Vec<FormOption<'a>>,
    /// Parts of the models.
    parts: BTreeSet<String>,
    dtypes: &'static [Dtype],
    entered: &'a SubmitForm,
    /// Latest stored inputs, and manifests.
    stored: Vec<InputsSummary>,
    manifests: Vec<ManifestName>,
    /// Reason why the submission was refused.
    problem: Option<&'a str>,
    /// Key of this form: submitting it twice queues one run.
    key: Uuid,
}

/// An option of a form with its description.
#[derive(Serialize)]
pub(super) struct FormOption<'a> {
    name: &'a str,
    about: &'a str,
}

/// The modes with their descriptions.
pub(super) fn mode_options(app: &App) -> Vec<FormOption<'_>> {
    app.presets
        .iter()
        .map(|(mode, preset)| FormOption { name: mode.as_str(), about: &preset.description })
        .collect()
}

/// `GET /`
pub async fn home(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<HomeQuery>,
) -> Result<HtmlPage, ApiError> {
    let entered = match query.again.as_str() {
        "" => SubmitForm::empty(),
        id => SubmitForm::from_spec(&runs::find(&app, parse_id(id)?).await?.spec, &app.presets),
    };
    let entered = entered.with_inputs(&query.inputs).with_settings(&query.settings);
    show(&app, &caller, &query, &entered, None).await
}

/// `POST /ui/runs`: queues the form's run and redirects to its page.
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let (fields, images) = if media_type(&parts.headers) == "multipart/form-data" {
        let received = submit_inputs::receive(&app, &caller, &parts.headers, body).await?;
        (received.fields, received.images)
    } else {
        (forms::read(Request::from_parts(parts, body)).await?, None)
    };
    let known: Vec<&str> = SubmitForm::names().chain([forms::KEY]).collect();
    let (key, checked) = (field(&fields, forms::KEY).to_owned(), forms::check(&fields, &known));
    let entered = SubmitForm::from_fields(fields);
    let submitted = async {
        checked?;
        let body = entered.body(images.is_some())?.to_string();
        let (uploaded, content) = match images {
            Some(images) => {
                let uploaded = images.check(&app, entered.samples()).await?;
                let content = uploaded.set().content();
                (Some(uploaded), content)
            }
            None => (None, String::new()),
        };
        let key = forms::idempotency_key(&key, &format!("{body}{content}"));
        submit::queue(&app, caller.clone(), body.as_bytes(), Some(key), uploaded).await
    };
    match submitted.await {
        Ok(run) => Ok(Redirect::to(&format!("/ui/runs/{}", run.id)).into_response()),
        Err(refused) => {
            let problem = forms::labelled(refused.message(), LABELS);
            let (query, problem) = (HomeQuery::default(), Some(problem.as_str()));
            let page = show(&app, &caller, &query, &entered, problem).await?;
            Ok(page.with_status(refused.code().status()).into_response())
        }
    }
}

async fn show(
    app: &App,
    caller: &Caller,
    query: &HomeQuery,
    entered: &SubmitForm,
    problem: Option<&str>,
) -> Result<HtmlPage, ApiError> {
    let filter = query.filter()?;
    let runs = list::page(app, &filter, non_empty(&query.cursor).as_deref(), PAGE_RUNS).await?;
    let ids: Vec<RunId> = runs.runs.iter().map(|run| run.run_id).collect();
    let home = Home {
        devices: devices::devices(State(app.clone())).await?.0.devices,
        queue: queue::queue(State(app.clone())).await?.0,
        removals: retention::removals(app, &ids).await?,
        runs,
        query,
        filtered: query.is_filtered(),
        states: RunState::ALL,
        figures: figures(""),
        ranked: figures(&query.sort),
        links: query.links(),
        submission: submit_form(app, entered, problem).await?,
    };
    HtmlPage::render(Some(caller), "home.html", home)
}

/// Name, title and heading of each headline figure, the one called `first` first.
fn figures(first: &str) -> Vec<FigureNames> {
    let mut names = FigureName::ALL.to_vec();
    names.sort_by_key(|it| it.as_str() != first);
    names.iter().map(|it| (it.as_str(), it.title(), it.heading())).collect()
}

async fn submit_form<'a>(
    app: &'a App,
    entered: &'a SubmitForm,
    problem: Option<&'a str>,
) -> Result<SubmitFormView<'a>, ApiError> {
    let inputs::InputsList { inputs: stored, manifests, .. } =
        inputs::page(app, None, PAGE_INPUTS).await?;
    let models = app
        .models
        .values()
        .map(|model| FormOption { name: &model.name, about: &model.description });
    // On a CPU, the smallest model finishes soonest.
    let smallest =
        app.models.values().min_by_key(|model| model.parameters()).map_or("", |model| &model.name);
    Ok(SubmitFormView {
        models: models.collect(),
        default_model: if app.devices.iter().all(Device::is_cpu) { smallest } else { "" },
        modes: mode_options(app),
        parts: app.models.values().flat_map(ModelSpec::typical_parts).collect(),
        dtypes: Dtype::ALL,
        entered,
        stored,
        manifests,
        problem,
        key: Uuid::now_v7(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_filter_is_refused_with_its_name_and_the_given_text() {
        let refused = |change: fn(&mut HomeQuery)| {
            let mut query = HomeQuery::default();
            change(&mut query);
            query.filter().unwrap_err().message().to_owned()
        };
        for (message, expected) in [
            (refused(|it| it.since = "x".into()), "invalid since \"x\"; expected a day such as"),
            (refused(|it| it.until = "1".into()), "invalid until \"1\"; expected a day such as"),
            (refused(|it| it.sort = "x".into()), "invalid sort \"x\"; expected one of ttft, "),
            (refused(|it| it.state = "bad".into()), "invalid state \"bad\"; expected one of queue"),
        ] {
            assert!(message.starts_with(expected), "{message}");
        }
        let long = refused(|it| it.sort = "x".repeat(1000));
        assert!(long.len() < 300, "{long}");
        let query = HomeQuery { since: " 2026-11-01 ".into(), ..HomeQuery::default() };
        assert_eq!(query.filter().unwrap().since_ms, Some(1_793_491_200_000));
    }
}
