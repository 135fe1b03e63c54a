//! Alignments: those that there are, and the form that starts one of two runs.
//!
//! What the form says goes the way of every other request for one, and what is wrong in it is told as it is told there.

use axum::{
    Extension,
    extract::{Request, State},
    response::{IntoResponse, Redirect, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    Page, PageError,
    home::{form, form_key},
};
use crate::{
    artifact::layout,
    http::{
        App,
        access::Caller,
        alignments::{self as api, AlignmentList},
        error::{ApiError, ErrorCode},
        request::{self, Params},
        runs::{self, RunSummary},
    },
    run::{
        RunId,
        alignment::{AlignmentSpec, AlignmentState, ThresholdChanges},
    },
    store::{AlignmentFilter, Filter},
};

/// Alignments on a page.
const SHOWN: u32 = 20;
/// Recent runs that are looked at for a timeline.
const OFFERED: u32 = 50;
/// Ways to say what the operation is, as the API names them, and in words.
const WAYS: [(&str, &str); 3] = [
    ("range", "ranges of this name"),
    ("operator", "the operator at this path"),
    ("kernels", "kernels with this in their names"),
];

/// Which alignments are shown, and what the form begins with. A browser sends fields that were left empty, too.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    state: String,
    run: String,
    cursor: String,
    /// Runs that the form begins with.
    mock: String,
    e2e: String,
    /// The alignment whose question fills the form, and which the new one is compared with.
    again: String,
}

/// What somebody entered into the form.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Entered {
    mock: String,
    e2e: String,
    /// One of [`WAYS`]; empty: the mock's own sequence.
    way: String,
    name: String,
    stage: String,
    within: String,
    without: String,
    forwards: String,
    previous: String,
    /// Of the form that it was entered into.
    key: String,
}

#[derive(Serialize)]
struct Shown<'a> {
    list: AlignmentList,
    asked: &'a Asked,
    filtered: bool,
    states: &'static [AlignmentState],
    /// Runs that the form offers: those that left a timeline, newest first, and those that were asked for.
    runs: Vec<RunSummary>,
    ways: [(&'static str, &'static str); 3],
    entered: &'a Entered,
    problem: Option<&'a str>,
    /// Names the next submission.
    key: Uuid,
}

impl Entered {
    /// What was asked before, to be asked again.
    fn again(spec: &AlignmentSpec) -> Self {
        let (way, name) = match (&spec.range, &spec.operator, spec.kernels.as_slice()) {
            (Some(range), ..) => ("range", range.clone()),
            (_, Some(operator), _) => ("operator", operator.clone()),
            (.., []) => ("", String::new()),
            (.., kernels) => ("kernels", kernels.join(", ")),
        };
        Self {
            mock: spec.mock.to_string(),
            e2e: spec.e2e.to_string(),
            way: way.to_owned(),
            name,
            stage: spec.stage.clone().unwrap_or_default(),
            within: spec.within.join(", "),
            without: spec.without.join(", "),
            forwards: spec.forwards.map(|count| count.to_string()).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// The body that the API takes; an empty field is left out.
    fn body(&self) -> Value {
        let mut body = Map::new();
        let list = |text: &str| -> Value { text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect() };
        for (field, text) in [("mock", &self.mock), ("e2e", &self.e2e), ("stage", &self.stage), ("previous", &self.previous)] {
            body.insert(field.into(), text.trim().into());
        }
        for (field, text) in [("within", &self.within), ("without", &self.without)] {
            body.insert(field.into(), list(text));
        }
        // What is no number is refused by name with the rest.
        let forwards = self.forwards.trim();
        body.insert("forwards".into(), forwards.parse::<i64>().map_or_else(|_| forwards.into(), Value::from));
        let name = self.name.trim();
        if WAYS.iter().any(|(way, _)| *way == self.way) {
            // A name of nothing is refused as what it is; none at all would be another question.
            let name = if name.is_empty() { "*" } else { name };
            body.insert(self.way.clone(), if self.way == "kernels" { list(name) } else { name.into() });
        }
        body.retain(|_, value| *value != json!("") && *value != json!([]));
        Value::Object(body)
    }
}

/// Says whether the form can say all that was asked.
pub(super) fn can_ask(spec: &AlignmentSpec) -> bool {
    spec.waivers.is_empty() && spec.thresholds == ThresholdChanges::default()
}

/// `GET /ui/alignments`
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    asked: Result<Params<Asked>, ApiError>,
) -> Result<Page, PageError> {
    let Params(asked) = asked?;
    let entered = match asked.again.trim() {
        "" => Entered { mock: asked.mock.clone(), e2e: asked.e2e.clone(), ..Entered::default() },
        id => {
            let before = api::find(&app, request::parse(id)?).await?;
            // One that failed left nothing to compare with.
            let previous = if before.state == AlignmentState::Succeeded { id.to_owned() } else { String::new() };
            Entered { previous, ..Entered::again(&before.spec) }
        }
    };
    Ok(show(&app, &caller, &asked, &entered, None).await?)
}

/// `POST /ui/alignments`: queues what the form says, and goes to the alignment's page.
pub async fn submit(State(app): State<App>, Extension(caller): Extension<Caller>, sent: Request) -> Result<Response, PageError> {
    let pairs: Map<String, Value> = form(sent).await?.into_iter().map(|(field, text)| (field, text.into())).collect();
    let entered: Entered = serde_json::from_value(pairs.into()).map_err(|error| ApiError::internal(&error))?;
    let body = entered.body().to_string();
    match api::queue(&app, caller.clone(), body.as_bytes(), Some(form_key(&entered.key, &body))).await {
        Ok(queued) => Ok(Redirect::to(&format!("/ui/alignments/{}", queued.id)).into_response()),
        Err(refused) => {
            let page = show(&app, &caller, &Asked::default(), &entered, Some(refused.message())).await?;
            Ok(page.with(refused.code().status()).into_response())
        }
    }
}

async fn show(app: &App, caller: &Caller, asked: &Asked, entered: &Entered, problem: Option<&str>) -> Result<Page, ApiError> {
    let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
    let unknown = |error: crate::run::UnknownWord| ApiError::new(ErrorCode::InvalidParameter, format!("state: {error}"));
    let state = given(&asked.state).map(|state| state.parse()).transpose().map_err(unknown)?;
    let run = given(&asked.run).map(|id| request::parse::<RunId>(&id)).transpose()?;
    let shown = Shown {
        list: api::page(app, AlignmentFilter { state, run }, given(&asked.cursor).as_deref(), SHOWN).await?,
        asked,
        filtered: state.is_some() || run.is_some(),
        states: AlignmentState::ALL,
        runs: offered(app, [&entered.mock, &entered.e2e]).await?,
        ways: WAYS,
        entered,
        problem,
        key: Uuid::now_v7(),
    };
    Page::of(Some(caller), "alignments.html", shown)
}

/// Recent runs that left a timeline, and `chosen`, so far as they exist.
async fn offered(app: &App, chosen: [&str; 2]) -> Result<Vec<RunSummary>, ApiError> {
    let mut offered = Vec::new();
    for run in runs::page(app, &Filter::default(), None, OFFERED).await?.runs {
        if run.state.is_final() && app.store.artifact(run.run_id, layout::NSYS_EXPORT).await?.is_some() {
            offered.push(run);
        }
    }
    for id in chosen.into_iter().filter_map(|id| request::parse::<RunId>(id.trim()).ok()) {
        if !offered.iter().any(|run| run.run_id == id)
            && let Some(run) = app.store.run(id).await?
        {
            offered.push(run.into());
        }
    }
    Ok(offered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_the_body_that_the_api_takes_and_comes_back_from_it() {
        let ids = ["019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d11"].map(str::to_owned);
        let [mock, e2e] = ids.clone();
        let least = Entered { mock, e2e, ..Entered::default() };
        assert_eq!(least.body(), json!({ "mock": ids[0], "e2e": ids[1] }));
        for (way, name, told) in [
            ("range", "decoder.self_attn", json!("decoder.self_attn")),
            ("operator", "decoder.layers.*.mlp", json!("decoder.layers.*.mlp")),
            ("kernels", "gemm, softmax", json!(["gemm", "softmax"])),
        ] {
            let (way, name, forwards) = (way.to_owned(), name.to_owned(), "16".to_owned());
            let more = Entered { within: "a, b".into(), stage: "decode".into(), way, name, forwards, ..least.clone() };
            let body = more.body();
            assert_eq!((&body[&more.way], &body["within"], &body["forwards"]), (&told, &json!(["a", "b"]), &json!(16)));
            assert_eq!(Entered::again(&serde_json::from_value(body).unwrap()), more);
        }
    }

    #[test]
    fn a_way_without_a_name_and_what_is_no_number_are_the_apis_to_refuse() {
        let odd = Entered { way: "range".into(), name: " ".into(), forwards: "few".into(), ..Entered::default() };
        assert_eq!(odd.body(), json!({ "range": "*", "forwards": "few" }));
    }
}
