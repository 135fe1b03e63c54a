//! `GET /runs/{id}/report`: the report in the form that the client reads.

use axum::{
    extract::State,
    http::{HeaderMap, header},
    response::Response,
};

use super::{
    App,
    artifacts::send,
    error::{ApiError, ErrorCode},
    forms::choose,
    request::RunPath,
    runs::find,
};
use crate::{artifact::layout, report::profile::LLMProfileReport, run::RunId};

/// The forms, the one for browsers first.
const FORMS: &[(&str, &str, &str)] = &[
    ("text", "html", layout::REPORT_HTML),
    ("text", "markdown", layout::REPORT_MD),
    ("application", "json", layout::REPORT_JSON),
];

/// Read the report of a run
#[utoipa::path(get, path = "/runs/{run_id}/report", tag = "artifacts", operation_id = "get_report",
    params(("run_id" = RunId, Path)),
    responses((status = 200, description = "The report, as HTML, Markdown or JSON by `Accept`",
        content((String = "text/html"), (String = "text/markdown"), (LLMProfileReport = "application/json")))))]
pub async fn report(State(app): State<App>, RunPath(id): RunPath, headers: HeaderMap) -> Result<Response, ApiError> {
    let run = find(&app, id).await?;
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let Some(file) = choose(accept, FORMS) else {
        return Err(ApiError::new(ErrorCode::NotAcceptable, ErrorCode::NotAcceptable.example()));
    };
    if !run.state.is_final() {
        return Err(ApiError::new(ErrorCode::RunNotFinished, format!("the run has not ended; follow it at /runs/{id}/events")));
    }
    let Some(artifact) = app.store.artifact(id, file).await? else {
        let message = format!("the run ended {} without a report; its logs are at /runs/{id}/artifacts", run.state);
        return Err(ApiError::new(ErrorCode::ReportUnavailable, message));
    };
    let mut response = send(&app.runs.join(id.to_string()), &artifact, &headers).await?;
    response.headers_mut().insert(header::VARY, header::HeaderValue::from_static("accept"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_follows_accept() {
        let cases = [
            ("*/*", Some(layout::REPORT_HTML)),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Some(layout::REPORT_HTML)),
            ("text/markdown", Some(layout::REPORT_MD)),
            ("application/json", Some(layout::REPORT_JSON)),
            ("application/json;q=0.5, text/markdown;q=0.9", Some(layout::REPORT_MD)),
            ("text/*;q=0.1, application/json", Some(layout::REPORT_JSON)),
            ("text/html;q=0, */*", Some(layout::REPORT_MD)),
            ("application/pdf", None),
            ("rubbish", None),
        ];
        for (accept, expected) in cases {
            assert_eq!(choose(accept, FORMS), expected, "{accept}");
        }
    }
}
