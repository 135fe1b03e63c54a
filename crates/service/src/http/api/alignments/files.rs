//! Report and files of an alignment.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use llmprof_analyze::align::Alignment;
use llmprof_core::{domain::ids::AlignmentId, layout};

use super::{example, find, not_found};
use crate::http::{
    api::artifacts::{ArtifactList, send},
    error::{
        ApiError, ErrorCode,
        responses::{
            AlignmentArtifactNotFound, AlignmentNotFound, AlignmentReportUnavailable,
            GuardedErrors, InvalidParameter, NotAcceptable, RangeNotSatisfiable, StoredFile,
        },
    },
    extract::{
        content_negotiation::{ReportQuery, TableFormat},
        params::{AlignmentFile, AlignmentPath, Params},
    },
    state::App,
};

/// Read the report of an alignment: every check with its evidence
#[utoipa::path(get, path = "/alignments/{alignment_id}/report", tag = "alignments",
    operation_id = "get_alignment_report",
    params(("alignment_id" = AlignmentId, Path), ReportQuery),
    responses(
        (status = 200,
            description = "The report, as HTML, Markdown or JSON by `format` or `Accept`",
            content(
                (String = "text/html",
                    example = json!("<!doctype html>\n<html lang=\"en\">...</html>\n")),
                (String = "text/markdown", example = json!("# Alignment: pass\n\n...")),
                (Alignment = "application/json", example = json!(example::report())))),
        GuardedErrors, InvalidParameter, AlignmentNotFound, NotAcceptable,
        AlignmentReportUnavailable, StoredFile))]
pub async fn report(
    State(app): State<App>,
    AlignmentPath(id): AlignmentPath,
    Params(query): Params<ReportQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let found = find(&app, id).await?;
    let extension = match query.format(&headers)? {
        TableFormat::Html => "html",
        TableFormat::Md => "md",
        TableFormat::Json | TableFormat::Csv => "json",
    };
    if !found.state.is_final() {
        let message = format!("the alignment has not ended; follow it at /alignments/{id}/events");
        return Err(ApiError::new(ErrorCode::AlignmentNotFinished, message));
    }
    let path = format!("{}.{extension}", layout::ALIGNMENT);
    let listed = app.store.alignment_artifacts(id).await?;
    let Some(artifact) = listed.iter().find(|it| it.path == path) else {
        let message = format!(
            "no report: the alignment ended {}: {}",
            found.state,
            found.message.unwrap_or_default()
        );
        return Err(ApiError::new(ErrorCode::ReportUnavailable, message));
    };
    let folder = app.alignments.join(id.to_string());
    let mut response = send::file(&app, &folder, artifact, &headers, || not_found(id)).await?;
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// List the files of an alignment; none before it ends
#[utoipa::path(get, path = "/alignments/{alignment_id}/artifacts", tag = "alignments",
    operation_id = "list_alignment_artifacts",
    params(("alignment_id" = AlignmentId, Path)),
    responses(
        (status = 200, description = "Every file with its size and hash", body = ArtifactList,
            example = json!(example::artifacts())),
        GuardedErrors, InvalidParameter, AlignmentNotFound))]
pub async fn artifacts(
    State(app): State<App>,
    AlignmentPath(id): AlignmentPath,
) -> Result<Json<ArtifactList>, ApiError> {
    find(&app, id).await?;
    Ok(Json(ArtifactList { artifacts: app.store.alignment_artifacts(id).await? }))
}

/// Download a file of an alignment, or a range of it
///
/// Like a file of a run, with ETag, `If-None-Match` and `Range`.
#[utoipa::path(get, path = "/alignments/{alignment_id}/artifacts/{name}", tag = "alignments",
    operation_id = "get_alignment_artifact",
    params(
        ("alignment_id" = AlignmentId, Path),
        ("name" = String, Path, description = "As listed", min_length = 1),
        ("If-None-Match" = Option<String>, Header, description = "An ETag that the client has")),
    responses(
        (status = 200, description = "The file, in its own media type",
            content(("*/*", example = json!("# Alignment: pass\n"))),
            headers(("ETag" = String, description = "SHA-256 of the file, in quotes"))),
        (status = 206, description = "The range", content(("*/*", example = json!("# Align")))),
        (status = 304, description = "The client has the file"),
        GuardedErrors, InvalidParameter, AlignmentArtifactNotFound, RangeNotSatisfiable,
        StoredFile))]
pub async fn download(
    State(app): State<App>,
    AlignmentFile(id, name): AlignmentFile,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    find(&app, id).await?;
    let listed = app.store.alignment_artifacts(id).await?;
    let missing = || {
        let message =
            format!("no artifact {name} in this alignment; see /alignments/{id}/artifacts");
        ApiError::new(ErrorCode::ArtifactNotFound, message)
    };
    let artifact = listed.iter().find(|it| it.path == name).ok_or_else(missing)?;
    let folder = app.alignments.join(id.to_string());
    send::file(&app, &folder, artifact, &headers, || not_found(id)).await
}
