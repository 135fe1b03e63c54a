//! Page of baselines: their settings and history, the last gates against each, and accepted
//! regressions. Forms set and remove a baseline, and accept a regression.

use axum::{
    Extension,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    forms::{self, Fields, field, non_empty},
    page::HtmlPage,
};
use crate::http::{
    api::{
        baselines::{self, Baseline},
        gates::{
            self,
            list::{self, DecidedGate, GateQuery},
        },
    },
    auth::access::Caller,
    error::{ApiError, ErrorCode},
    extract::params::Params,
    state::App,
};

/// Listed gates of a baseline.
const PAGE_GATES: u32 = 5;
/// Listed accepted regressions.
const PAGE_ACCEPTED: u32 = 50;
/// Value of the field `remove` that removes the baseline.
const REMOVE: &str = "remove";

/// Labels of the fields.
pub(super) const LABELS: &forms::Labels = &[
    ("name", "Name"),
    ("run_id", "Run"),
    ("label", "Or a label"),
    ("accept", "Reason"),
    ("reason", "Reason"),
];

/// Prefix of the fields of thresholds, in percent by figure.
const THRESHOLD: &str = "fail_on.";

/// Initial values of the form. Browsers send empty fields too.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BaselineForm {
    name: String,
    run_id: String,
    label: String,
}

#[derive(Serialize)]
struct BaselinesView<'a> {
    baselines: Vec<BaselineCard>,
    /// Accepted regressions, newest first.
    accepted: Vec<DecidedGate>,
    entered: &'a BaselineForm,
    /// Reason why the setting was refused.
    problem: Option<&'a str>,
}

/// A baseline: the setting that counts, the earlier ones, and the last gates.
#[derive(Serialize)]
struct BaselineCard {
    current: Baseline,
    history: Vec<Baseline>,
    gates: Vec<DecidedGate>,
}

/// `GET /ui/baselines`
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(entered): Params<BaselineForm>,
) -> Result<HtmlPage, ApiError> {
    show(&app, &caller, &entered, None).await
}

/// `POST /ui/baselines`: sets or removes a baseline.
pub async fn set(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = forms::read(request).await?;
    let entered = BaselineForm {
        name: field(&fields, "name").trim().to_owned(),
        run_id: field(&fields, "run_id").trim().to_owned(),
        label: field(&fields, "label").trim().to_owned(),
    };
    let set = async {
        let known = [forms::names_of::<BaselineForm>(), vec![REMOVE.to_owned()]].concat();
        forms::check(&fields, &known)?;
        let body = entered.body(field(&fields, REMOVE) == REMOVE)?;
        baselines::apply(&app, &caller, body.to_string().as_bytes()).await
    };
    match set.await {
        Ok(()) => Ok(Redirect::to("/ui/baselines").into_response()),
        Err(refused) => {
            let problem = forms::labelled(refused.message(), LABELS);
            let page = show(&app, &caller, &entered, Some(&problem)).await?;
            Ok(page.with_status(refused.code().status()).into_response())
        }
    }
}

/// `POST /ui/baselines/accept`: decides a gate again, and accepts its regression with a reason.
pub async fn accept(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = forms::read(request).await?;
    let decided = async {
        // The API refuses a threshold of an unknown figure.
        let thresholds = fields.iter().map(|(name, _)| name.as_str());
        let thresholds = thresholds.filter(|name| name.starts_with(THRESHOLD));
        let known: Vec<&str> =
            ["baseline", "runs", "reason"].into_iter().chain(thresholds).collect();
        forms::check(&fields, &known)?;
        let body = json!({
            "baseline": field(&fields, "baseline"),
            "runs": field(&fields, "runs").split_whitespace().collect::<Vec<_>>(),
            "fail_on": threshold_values(&fields),
            "accept": field(&fields, "reason").trim(),
        });
        gates::decide(&app, &caller, body.to_string().as_bytes()).await
    };
    let (status, problem) = match decided.await {
        Ok(gate) if gate.is_accepted() => {
            return Ok(Redirect::to("/ui/baselines#accepted").into_response());
        }
        Ok(gate) => (StatusCode::CONFLICT, format!("nothing to accept: {}", gate.summary())),
        Err(refused) => (refused.code().status(), forms::labelled(refused.message(), LABELS)),
    };
    let page = show(&app, &caller, &BaselineForm::default(), Some(&problem)).await?;
    Ok(page.with_status(status).into_response())
}

/// The thresholds of the form. The API refuses text that is not a number, and names the field.
fn threshold_values(fields: &Fields) -> Map<String, Value> {
    let value = |(name, text): &(String, String)| {
        let figure = name.strip_prefix(THRESHOLD)?;
        // JSON has no NaN: it would become null, as if the threshold was absent.
        let number = text.parse::<f64>().ok().filter(|it| it.is_finite());
        Some((figure.to_owned(), number.map_or_else(|| text.as_str().into(), Value::from)))
    };
    fields.iter().filter_map(value).collect()
}

impl BaselineForm {
    /// The body of the API. A name alone removes the baseline, which needs the button for it.
    fn body(&self, remove: bool) -> Result<Value, ApiError> {
        let given = [("name", &self.name), ("run_id", &self.run_id), ("label", &self.label)];
        let given: Map<String, Value> = given
            .into_iter()
            .filter_map(|(name, it)| Some((name.into(), non_empty(it)?.into())))
            .collect();
        if remove && given.len() > 1 {
            let message = "run and label: a baseline is removed by its name alone; empty them";
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        }
        if !remove && !given.contains_key("run_id") && !given.contains_key("label") {
            let message = "run and label: enter one of them";
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        }
        Ok(given.into())
    }
}

async fn show(
    app: &App,
    caller: &Caller,
    entered: &BaselineForm,
    problem: Option<&str>,
) -> Result<HtmlPage, ApiError> {
    let mut cards: Vec<BaselineCard> = Vec::new();
    for setting in baselines::settings(app).await? {
        match cards.iter_mut().find(|card| card.current.name == setting.name) {
            Some(card) => card.history.push(setting),
            None => cards.push(BaselineCard { current: setting, history: vec![], gates: vec![] }),
        }
    }
    for card in &mut cards {
        let baseline = Some(card.current.name.clone());
        let query = GateQuery { baseline, accepted: None, limit: Some(PAGE_GATES) };
        card.gates = list::page(app, &query).await?;
    }
    let accepted = GateQuery { baseline: None, accepted: Some(true), limit: Some(PAGE_ACCEPTED) };
    let accepted = list::page(app, &accepted).await?;
    let view = BaselinesView { baselines: cards, accepted, entered, problem };
    HtmlPage::render(Some(caller), "baselines.html", view)
}
