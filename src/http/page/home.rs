//! The first page: devices, queue, recent runs, and the form that submits one.

use std::collections::HashMap;

use axum::{
    Extension, Form,
    extract::{FromRequest, Request, State, rejection::FormRejection},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Page, PageError, entered::Entered};
use crate::{
    http::{
        App,
        access::Caller,
        devices::{self, DeviceView},
        error::{ApiError, ErrorCode},
        queue::{self, Queue},
        request::{self, Params},
        retention::{self, DueRun},
        runs::{self, RunList},
        submit,
    },
    run::{Dtype, Mode, RunId, RunState},
    store::Filter,
    trace::device::Device,
};

/// Runs on a page.
const SHOWN: u32 = 20;

/// Which runs are shown, and which one is asked for again. A browser sends fields that were left empty, too.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    state: String,
    model: String,
    label: String,
    cursor: String,
    /// The run whose settings fill the form.
    again: String,
}

/// What the page shows.
#[derive(Serialize)]
struct Home<'a> {
    devices: Vec<DeviceView>,
    queue: Queue,
    runs: RunList,
    /// Those of them that will be removed.
    going: HashMap<RunId, DueRun>,
    asked: &'a Asked,
    /// Whether some runs are left out by what was asked.
    filtered: bool,
    states: &'static [RunState],
    submission: Submission<'a>,
}

/// What the form shows.
#[derive(Serialize)]
struct Submission<'a> {
    models: Vec<Choice<'a>>,
    /// The model that is chosen unless another one is.
    offered: &'a str,
    modes: Vec<Choice<'a>>,
    dtypes: &'static [Dtype],
    entered: &'a Entered,
    /// What was wrong in what was sent.
    problem: Option<&'a str>,
    /// Names this form, so that a button pressed twice queues one run.
    key: Uuid,
}

/// Something to choose, with what it is.
#[derive(Serialize)]
struct Choice<'a> {
    name: &'a str,
    about: &'a str,
}

/// `GET /`
pub async fn home(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    asked: Result<Params<Asked>, ApiError>,
) -> Result<Page, PageError> {
    let Params(asked) = asked?;
    let entered = match asked.again.as_str() {
        "" => Entered::nothing(),
        id => Entered::again(&runs::find(&app, request::parse(id)?).await?.spec),
    };
    Ok(show(&app, &caller, &asked, &entered, None).await?)
}

/// `POST /ui/runs`: queues what the form says, and goes to the run's page.
pub async fn submit(State(app): State<App>, Extension(caller): Extension<Caller>, sent: Request) -> Result<Response, PageError> {
    let pairs = form(sent).await?;
    let key = pairs.iter().find(|(field, _)| field == "key").map(|(_, key)| key.clone()).unwrap_or_default();
    let entered = Entered::of(pairs);
    let body = entered.body().to_string();
    match submit::queue(&app, caller.clone(), body.as_bytes(), Some(form_key(&key, &body))).await {
        Ok(run) => Ok(Redirect::to(&format!("/ui/runs/{}", run.id)).into_response()),
        Err(refused) => {
            let status = refused.code().status();
            let page = show(&app, &caller, &Asked::default(), &entered, Some(refused.message())).await?;
            Ok(page.with(status).into_response())
        }
    }
}

/// What names the submission of `body` by the form `key`: the same form with the same fields is one; going back and changing a field makes
/// another.
pub(super) fn form_key(key: &str, body: &str) -> String {
    let hash: String = Sha256::digest(format!("{key} {body}")).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("form-{hash}")
}

/// The fields of a form, which must come in time.
pub(super) async fn form(sent: Request) -> Result<Vec<(String, String)>, ApiError> {
    let late = || ApiError::new(ErrorCode::BodyTimeout, ErrorCode::BodyTimeout.example());
    let read = tokio::time::timeout(submit::BODY_TIME, Form::from_request(sent, &())).await.map_err(|_| late())?;
    read.map(|Form(pairs)| pairs).map_err(|refused: FormRejection| {
        let code = match refused.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::BodyTooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => ErrorCode::UnsupportedMediaType,
            _ => ErrorCode::MalformedBody,
        };
        ApiError::new(code, refused.body_text())
    })
}

async fn show(app: &App, caller: &Caller, asked: &Asked, entered: &Entered, problem: Option<&str>) -> Result<Page, ApiError> {
    let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    let unknown = |error: crate::run::UnknownWord| ApiError::new(ErrorCode::InvalidParameter, format!("state: {error}"));
    let state = given(&asked.state).map(|state| state.parse()).transpose().map_err(unknown)?;
    let filter = Filter { state, model: given(&asked.model), label: given(&asked.label), ..Filter::default() };
    let models = app.models.values().map(|model| Choice { name: &model.name, about: &model.description });
    // Without a GPU the smallest model is the one that ends soon.
    let smallest = app.models.values().min_by_key(|model| model.parameters()).map_or("", |model| &model.name);
    let submission = Submission {
        models: models.collect(),
        offered: if app.devices.iter().all(Device::is_cpu) { smallest } else { "" },
        modes: app.presets.keys().map(|mode| Choice { name: mode.as_str(), about: about(*mode) }).collect(),
        dtypes: Dtype::ALL,
        entered,
        problem,
        key: Uuid::now_v7(),
    };
    let runs = runs::page(app, &filter, given(&asked.cursor).as_deref(), SHOWN).await?;
    let ids: Vec<RunId> = runs.runs.iter().map(|run| run.run_id).collect();
    let home = Home {
        devices: devices::devices(State(app.clone())).await?.0.devices,
        queue: queue::queue(State(app.clone())).await?.0,
        going: retention::going(app, &ids).await?,
        runs,
        asked,
        filtered: filter.state.is_some() || filter.model.is_some() || filter.label.is_some(),
        states: RunState::ALL,
        submission,
    };
    Page::of(Some(caller), "home.html", home)
}

/// What a mode collects, in a line.
const fn about(mode: Mode) -> &'static str {
    match mode {
        Mode::Deep => "timings, timeline, counters: the whole picture",
        Mode::Light => "timings and a timeline",
        Mode::Basic => "timings alone, in seconds",
    }
}
