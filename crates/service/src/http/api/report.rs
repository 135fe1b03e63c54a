//! `GET /runs/{run_id}/report`: the report in the format that the client requests, and the files
//! that it links to.

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, Method, Uri, header},
    response::{IntoResponse, Redirect, Response},
};
use llmprof_analyze::analyze;
use llmprof_core::{
    domain::{ids::RunId, state::RunState, uri::percent_encoded},
    layout,
    trace::{
        Trace,
        environment::Environment,
        event::{Event, StageRange},
    },
};
use llmprof_report::{
    RunFacts,
    profile::{LLMProfileReport, profile},
};
use serde_json::Value;

use super::{
    artifacts::send,
    runs::{self, example},
};
use crate::http::{
    error::{
        ApiError, ErrorCode, no_route,
        responses::{
            GuardedErrors, InvalidParameter, NotAcceptable, ReportUnavailable, RunNotFound,
            StoredFile,
        },
    },
    extract::{
        content_negotiation::{ReportQuery, TableFormat},
        params::{FilePath, Params, RunPath},
    },
    state::App,
};

fn short_example() -> Value {
    without_nulls(serde_json::to_value(example_report()).unwrap_or_default())
}

/// The value without its fields that are `null`, which the schema does not require.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, field)| !field.is_null())
            .map(|(name, field)| (name, without_nulls(field)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        value => value,
    }
}

/// The report of a run with two measured stages.
pub(super) fn example_report() -> LLMProfileReport {
    let range = |name: &str, start_ns, end_ns| {
        Event::Range(StageRange {
            name: name.into(),
            start_ns,
            end_ns,
            device_ns: None,
            warmup: false,
            repeat: 0,
            step: None,
        })
    };
    let baseline =
        vec![range("prefill", 0, 41_000_000), range("decode_all", 41_000_000, 95_000_000)];
    let environment = Environment { llmprof: "0.1.0".into(), ..Environment::default() };
    let trace = Trace { environment: environment.clone(), baseline, ..Trace::default() };
    let (id, spec, steps) = (example::id(), example::spec(), example::run().steps);
    let facts = RunFacts {
        id,
        spec: &spec,
        model: None,
        environment: &environment,
        steps: &steps,
        findings: &[],
        inputs: &[],
        inputs_sha256: None,
        part: &[],
        command: None,
        state: RunState::Succeeded,
    };
    profile(&facts, &trace, &analyze(&trace, None, None))
}

/// Read the report of a run
#[utoipa::path(get, path = "/runs/{run_id}/report", tag = "artifacts", operation_id = "get_report",
    params(("run_id" = RunId, Path), ReportQuery),
    responses(
        (status = 200,
            description = "The report, as HTML, Markdown or JSON by `format` or `Accept`",
            content(
                (String = "text/html",
                    example = json!("<!doctype html>\n<html lang=\"en\">...</html>\n")),
                (String = "text/markdown",
                    example = json!("# deepseek-ocr-tiny\n\n## Environment\n...")),
                (LLMProfileReport = "application/json", example = json!(short_example())))),
        GuardedErrors, InvalidParameter, RunNotFound, NotAcceptable, ReportUnavailable,
        StoredFile))]
pub async fn report(
    State(app): State<App>,
    RunPath(id): RunPath,
    Params(query): Params<ReportQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let run = runs::find(&app, id).await?;
    let file = match query.format(&headers)? {
        TableFormat::Html => layout::REPORT_HTML,
        TableFormat::Md => layout::REPORT_MD,
        TableFormat::Json | TableFormat::Csv => layout::REPORT_JSON,
    };
    runs::require_ended(&run)?;
    let Some(artifact) = runs::listed(&app, id, file).await? else {
        let message =
            format!("no report: the run ended {}; see its logs at /runs/{id}/artifacts", run.state);
        return Err(ApiError::new(ErrorCode::ReportUnavailable, message));
    };
    let mut response =
        send::file(&app, &app.runs.join(id.to_string()), &artifact, &headers, || {
            runs::not_found(id)
        })
        .await?;
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// `/runs/{run_id}/{file}`: a link of the report, whose addresses are relative, as they have to be
/// in the folder of an unpacked bundle. Redirects to the file.
pub async fn linked_file(
    State(app): State<App>,
    path: Result<FilePath, ApiError>,
    method: Method,
    uri: Uri,
) -> Result<Response, ApiError> {
    if let Ok(FilePath(id, file)) = path
        && matches!(method, Method::GET | Method::HEAD)
        && app.store.artifact(id, &file).await?.is_some()
    {
        let file = percent_encoded(&file);
        return Ok(Redirect::temporary(&format!("/runs/{id}/artifacts/{file}")).into_response());
    }
    Err(no_route(uri).await)
}
