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
    let Some(file) = choose(accept) else {
        return Err(ApiError::new(ErrorCode::NotAcceptable, ErrorCode::NotAcceptable.example()));
    };
    if !run.state.is_final() {
        return Err(ApiError::new(ErrorCode::RunNotFinished, format!("the run has not ended; follow it at /runs/{id}/events")));
    }
    let Some(artifact) = app.store.artifact(id, file).await? else {
        let message = format!("the run ended {} without a report; its logs are at /runs/{id}/artifacts", run.state);
        return Err(ApiError::new(ErrorCode::ReportUnavailable, message));
    };
    let mut response = send(&app, id, &artifact, &headers).await?;
    response.headers_mut().insert(header::VARY, header::HeaderValue::from_static("accept"));
    Ok(response)
}

/// The file whose form `accept` likes best; `None` when it takes none of them.
fn choose(accept: &str) -> Option<&'static str> {
    let quality = |kind: &str, form: &str| {
        let of = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let (range_kind, range_form) = parts.next()?.split_once('/')?;
            let closeness = match (range_kind == kind, range_form == form) {
                (true, true) => 2,
                (true, false) if range_form == "*" => 1,
                (false, _) if range_kind == "*" && range_form == "*" => 0,
                _ => return None,
            };
            let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse().ok())?;
            Some((closeness, quality))
        };
        // The closest range decides, not the most generous one.
        accept.split(',').filter_map(of).max_by_key(|(closeness, _)| *closeness).map_or(0.0, |(_, quality): (i32, f64)| quality)
    };
    let mut best: Option<(f64, &str)> = None;
    for (kind, form, file) in FORMS {
        let quality = quality(kind, form);
        if quality > best.map_or(0.0, |(best, _)| best) {
            best = Some((quality, file));
        }
    }
    best.map(|(_, file)| file)
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
            assert_eq!(choose(accept), expected, "{accept}");
        }
    }
}
