//! Pages of the commands that this host allows: a list, and for each a form of its parameters that
//! submits a run or starts a session.
//!
//! The API checks the body.

use std::collections::BTreeMap;

use axum::{
    Extension,
    extract::{Request, State},
    response::{IntoResponse, Redirect, Response},
};
use llmprof_core::domain::command::{CommandCall, CommandTarget, Param};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    forms::{self, Fields, field, number_or_text},
    home::{FormOption, mode_options},
    page::HtmlPage,
    submit_form::{self, SubmitForm},
};
use crate::http::{
    api::{
        devices::{self, DeviceView},
        runs::{self, find_command, submit},
        sessions::{self, SessionView},
        targets::CommandView,
    },
    auth::access::Caller,
    error::{ApiError, ErrorCode},
    extract::params::{CommandPath, Params, parse_id},
    state::App,
};

/// Prefix of the fields of parameters.
const PARAM: &str = "param.";
/// Fields of the command in addition to its parameters.
const CALL: [&str; 3] = ["gpus", "session", "lifetime_s"];
/// Common settings of a run of a command.
const COMMON: [&str; 9] = [
    "mode",
    "labels",
    "revision",
    "repeats",
    "warmup",
    "timeout_s",
    "priority",
    "device",
    "profiling",
];
/// Settings that a session has, too.
const OF_SESSIONS: [&str; 2] = ["mode", "device"];
const OF_EACH_RUN: &str = "each run on the session has its own; leave the field empty";
/// Other fields of the form, each with the reason why a session cannot use it.
const NOT_OF_SESSIONS: [(&str, &str); 7] = [
    ("repeats", OF_EACH_RUN),
    ("warmup", OF_EACH_RUN),
    ("timeout_s", OF_EACH_RUN),
    ("priority", OF_EACH_RUN),
    ("revision", OF_EACH_RUN),
    (
        "profiling",
        "a session has the settings of its mode; leave them as they are, or choose a mode that \
         has them (docs/runs.md)",
    ),
    ("session", "a session does not run on another one; choose a process of its own"),
];

/// Labels of fields that the form of a model lacks.
pub(super) const LABELS: &forms::Labels = &[
    ("gpus", "GPUs"),
    ("target.gpus", "GPUs"),
    ("session", "Session"),
    ("target.session", "Session"),
    ("lifetime_s", "Lifetime of a session"),
    ("label", "Labels"),
];
/// Paths of parameters in errors, whose labels are their names.
const PARAM_PATHS: [&str; 2] = ["target.params.", "params."];

#[derive(Serialize)]
struct CommandList {
    commands: Vec<CommandView>,
}

#[derive(Serialize)]
struct CommandPage<'a> {
    command: CommandView,
    params: Vec<ParamField<'a>>,
    modes: Vec<FormOption<'a>>,
    devices: Vec<DeviceView>,
    /// Active sessions of the command.
    sessions: Vec<SessionView>,
    /// Reason why it cannot be a session.
    session_refusal: Option<&'static str>,
    /// Text of every common setting.
    entered: &'a SubmitForm,
    /// Text of the other fields.
    call: BTreeMap<&'static str, &'a str>,
    /// Reason why the submission was refused.
    problem: Option<&'a str>,
    /// Key of this form: submitting it twice queues one run.
    key: Uuid,
}

/// A parameter as a field.
#[derive(Serialize)]
struct ParamField<'a> {
    name: &'a str,
    param: &'a Param,
    /// Text of its default; `None`: it is required.
    default: Option<String>,
    entered: &'a str,
}

/// The run whose settings fill the form, or the session to run on.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommandQuery {
    again: String,
    /// Settings of the passes to submit it with, each on a line: `nsys.trace=["cuda","nvtx"]`.
    settings: String,
    session: String,
}

/// `GET /ui/commands`
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<HtmlPage, ApiError> {
    let commands = app.targets.iter().map(|(name, it)| CommandView::of(name, it)).collect();
    HtmlPage::render(Some(&caller), "commands.html", CommandList { commands })
}

/// `GET /ui/commands/{command}`
pub async fn form(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    CommandPath(name): CommandPath,
    Params(query): Params<CommandQuery>,
) -> Result<HtmlPage, ApiError> {
    let mut fields: Fields = Vec::new();
    let mut entered = SubmitForm::empty();
    if !query.again.is_empty() {
        let run = runs::find(&app, parse_id(&query.again)?).await?;
        entered = SubmitForm::from_spec(&run.spec, &app.presets).with_settings(&query.settings);
        fields = run.spec.call().map(fields_of).unwrap_or_default();
    }
    fields.push(("session".into(), query.session));
    show(&app, &caller, &name, (&fields, &entered), None).await
}

/// `POST /ui/commands/{command}`: queues the form's run and redirects to its page.
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    CommandPath(name): CommandPath,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = forms::read(request).await?;
    let entered = SubmitForm::from_fields(fields.clone());
    let command = find_command(&app, &name)?;
    let submitted = async {
        check(command, &fields)?;
        if given(&fields, "lifetime_s").is_some() {
            return Err(unusable("lifetime_s", "only a session has one; leave the field empty"));
        }
        let mut body = entered.body(false)?;
        body["target"] = call(&name, command, &fields);
        let body = body.to_string();
        let key = forms::idempotency_key(field(&fields, forms::KEY), &body);
        submit::queue(&app, caller.clone(), body.as_bytes(), Some(key), None).await
    };
    match submitted.await {
        Ok(run) => Ok(Redirect::to(&format!("/ui/runs/{}", run.id)).into_response()),
        Err(refused) => refuse(&app, &caller, &name, (&fields, &entered), &refused).await,
    }
}

/// `POST /ui/commands/{command}/session`: starts a session and redirects to the list of sessions.
pub async fn start_session(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    CommandPath(name): CommandPath,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = forms::read(request).await?;
    let entered = SubmitForm::from_fields(fields.clone());
    let command = find_command(&app, &name)?;
    let started = async {
        check(command, &fields)?;
        let body = session_body(&name, command, &fields, &entered)?;
        sessions::start_session(&app, &caller, body.to_string().as_bytes()).await
    };
    match started.await {
        Ok(session) => {
            let to = format!("/ui/sessions#s-{}", session.session_id);
            Ok(Redirect::to(&to).into_response())
        }
        Err(refused) => refuse(&app, &caller, &name, (&fields, &entered), &refused).await,
    }
}

/// Refuses fields that the form of a command does not have.
fn check(command: &CommandTarget, fields: &Fields) -> Result<(), ApiError> {
    let params = command.params.keys().map(|name| format!("{PARAM}{name}"));
    let others = COMMON.into_iter().chain(CALL).chain([forms::KEY]).map(str::to_owned);
    forms::check(fields, &params.chain(others).collect::<Vec<String>>())
}

/// The body of the API that starts a session.
fn session_body(
    name: &str,
    command: &CommandTarget,
    fields: &Fields,
    entered: &SubmitForm,
) -> Result<Value, ApiError> {
    // All at once: the form of a run that is submitted again has several.
    let unused = NOT_OF_SESSIONS.iter().filter(|(name, _)| given(fields, name).is_some());
    let unused = unused.map(|(name, reason)| labelled(&format!("{name}: {reason}")));
    let unused: Vec<String> = unused.collect();
    if !unused.is_empty() {
        return Err(ApiError::new(ErrorCode::InvalidRequest, unused.join(". ")));
    }
    let common = entered.body(false)?;
    let mut body = call(name, command, fields);
    for setting in OF_SESSIONS {
        if let Some(value) = common.get(setting) {
            body[setting] = value.clone();
        }
    }
    match common["labels"].as_array().map(Vec::as_slice).unwrap_or_default() {
        [] => {}
        [label] => body["label"] = label.clone(),
        _ => return Err(unusable("labels", "a session has one label; enter one")),
    }
    if let Some(lifetime_s) = given(fields, "lifetime_s") {
        body["lifetime_s"] = number_or_text(lifetime_s);
    }
    Ok(body)
}

/// A message with the label of its field.
fn labelled(message: &str) -> String {
    forms::labelled(message, &[submit_form::LABELS, LABELS].concat())
}

/// The refusal of a field that would be ignored.
fn unusable(field: &str, reason: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("{field}: {reason}"))
}

/// `GET` of a button's address: redirects to the form.
pub async fn back(
    State(app): State<App>,
    CommandPath(name): CommandPath,
) -> Result<Redirect, ApiError> {
    find_command(&app, &name)?;
    Ok(Redirect::to(&format!("/ui/commands/{name}")))
}

/// The form with the reason of the refusal.
async fn refuse(
    app: &App,
    caller: &Caller,
    name: &str,
    entered: (&Fields, &SubmitForm),
    refused: &ApiError,
) -> Result<Response, ApiError> {
    let message = refused.message();
    let problem = match PARAM_PATHS.iter().find_map(|path| message.strip_prefix(path)) {
        Some(of_param) => of_param.to_owned(),
        None => labelled(message),
    };
    let page = show(app, caller, name, entered, Some(&problem)).await?;
    Ok(page.with_status(refused.code().status()).into_response())
}

async fn show(
    app: &App,
    caller: &Caller,
    name: &str,
    (fields, entered): (&Fields, &SubmitForm),
    problem: Option<&str>,
) -> Result<HtmlPage, ApiError> {
    let command = find_command(app, name)?;
    let param = |(name, param): (&'_ String, &'_ Param)| {
        let default = param.default().map(|value| value.to_string());
        (format!("{PARAM}{name}"), default)
    };
    let described: Vec<_> = command.params.iter().map(param).collect();
    let params = command.params.iter().zip(&described).map(|((name, param), (id, default))| {
        ParamField { name, param, default: default.clone(), entered: field(fields, id) }
    });
    let sessions = sessions::page(app).await?.sessions.into_iter();
    let view = CommandPage {
        command: CommandView::of(name, command),
        params: params.collect(),
        modes: mode_options(app),
        devices: devices::devices(State(app.clone())).await?.0.devices,
        sessions: sessions.filter(|it| it.command == name && !it.state.is_final()).collect(),
        session_refusal: command.session_refusal(),
        entered,
        call: CALL.map(|name| (name, field(fields, name))).into(),
        problem,
        key: Uuid::now_v7(),
    };
    HtmlPage::render(Some(caller), "command.html", view)
}

/// The trimmed text of a field, unless it is empty.
fn given<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    Some(field(fields, name).trim()).filter(|text| !text.is_empty())
}

/// The call of the API: parameters of entered fields by their types.
fn call(name: &str, command: &CommandTarget, fields: &Fields) -> Value {
    let value = |(name, param): (&String, &Param)| {
        let text = field(fields, &format!("{PARAM}{name}"));
        let value = typed(param, text)?;
        Some((name.clone(), value))
    };
    let params: Map<String, Value> = command.params.iter().filter_map(value).collect();
    let mut call = json!({ "command": name, "params": params });
    if let Some(gpus) = given(fields, "gpus") {
        call["gpus"] = number_or_text(gpus);
    }
    if let Some(session) = given(fields, "session") {
        call["session"] = session.into();
    }
    call
}

/// The value of a parameter; `None`: its default. Text of another type is refused by the API, which
/// names the parameter.
fn typed(param: &Param, text: &str) -> Option<Value> {
    let trimmed = text.trim();
    if text.is_empty() || (trimmed.is_empty() && !matches!(param, Param::String { .. })) {
        return None;
    }
    Some(match param {
        Param::Int { .. } => number_or_text(trimmed),
        Param::Float { .. } => trimmed.parse::<f64>().map_or_else(|_| trimmed.into(), Value::from),
        Param::Flag { .. } => trimmed.parse::<bool>().map_or_else(|_| trimmed.into(), Value::from),
        Param::Enum { .. } => trimmed.into(),
        Param::String { .. } => text.into(),
    })
}

/// The fields of a call.
fn fields_of(call: &CommandCall) -> Fields {
    let params = call.params.iter();
    let params = params.map(|(name, value)| (format!("{PARAM}{name}"), value.to_string()));
    let gpus = call.gpus.map(|gpus| ("gpus".to_owned(), gpus.to_string()));
    params.chain(gpus).collect()
}

#[cfg(test)]
mod tests;
