//! `POST /inputs`: stores images and prompts for runs.
//!
//! Files are written to disk as they arrive, and decoded in a child process before they are stored.

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse, Response},
};
use llmprof_core::domain::{
    input_manifest::check_name,
    inputs::{MAX_IMAGES, MAX_PROMPT},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    InputsView, example, find,
    pending::{self, PendingInputs},
};
use crate::{
    artifact::{
        import_staging::UploadedFile,
        inputs::staging::{InputsUpload, UploadedSamples},
    },
    http::{
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                BodyErrors, GuardedErrors, InputsUploadLimit, InsufficientStorage, InvalidInputs,
                InvalidParameter, Unavailable,
            },
        },
        extract::{
            body::{content_length, header_text, media_type},
            params::Params,
            upload::{ReceivedBody, ReceivedFile, Upload, UploadPace, UploadRules, set_once},
        },
        state::{App, UploadFolder},
        traffic::Refusal,
    },
};

/// Name of the parts that are images, and of the manifest.
const IMAGE: &str = "image";
const MANIFEST: &str = "manifest";

/// Rules of an upload of inputs.
pub(crate) const RULES: UploadRules = UploadRules {
    files: &[IMAGE, MANIFEST],
    max_parts: MAX_IMAGES + 32,
    max_text: MAX_PROMPT,
    invalid: ErrorCode::InputsInvalid,
    subject: "the inputs",
    size_setting: "inputs.upload_bytes",
};

/// Characters of a prompt in the address of a request, whose length is limited.
const MAX_QUERY_PROMPT: usize = 1000;

/// A file, as it is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub struct InputFileBytes(pub String);

/// Images with a prompt or a manifest.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct InputsForm {
    /// PNG, JPEG or WebP.
    #[serde(default)]
    #[schema(max_items = 512)]
    pub image: Vec<InputFileBytes>,
    /// A manifest as in the service's inputs folder, or the `inputs.yaml` of a run. Its images are
    /// parts of the form; those with the hash of an image of stored inputs or of a run may be
    /// absent.
    #[serde(default)]
    pub manifest: Option<InputFileBytes>,
    /// Prompt of an upload without a manifest; refused next to one.
    #[serde(default)]
    #[schema(max_length = 65536)]
    pub prompt: Option<String>,
    /// `true` makes each image a sample, and is refused next to a manifest; `false` makes one
    /// sample of all images.
    #[serde(default)]
    pub each_image: Option<bool>,
    /// Name in lists; of the first image when absent.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub name: Option<String>,
}

impl InputsForm {
    fn example() -> Self {
        Self {
            image: vec![InputFileBytes("(bytes of page.png)".into())],
            manifest: None,
            prompt: Some("Convert the document to markdown.".into()),
            each_image: Some(false),
            name: Some("invoices".into()),
        }
    }
}

/// Fields of an upload.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct InputsQuery {
    /// Prompt of an archive without a manifest; a longer one belongs into a form or a manifest.
    #[param(max_length = 1000)]
    pub prompt: Option<String>,
    /// `true` makes each image a sample, and is refused next to a manifest; `false` makes one
    /// sample of all images.
    pub each_image: Option<bool>,
    /// Name in lists; of the first image when absent.
    #[param(min_length = 1, max_length = 200, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub name: Option<String>,
}

/// Store inputs: images with a prompt, or several samples with a manifest
///
/// A form, or a tar of the images and at most one manifest (`*.yaml`), as it is or compressed with
/// zstd. Every image is decoded. A submission names the inputs by their id. The same content is
/// stored once: a repeated upload returns the same inputs. Inputs that no run uses for
/// `inputs.unused_days` days are removed.
#[utoipa::path(post, path = "/inputs", tag = "inputs", operation_id = "upload_inputs",
    params(InputsQuery),
    request_body(content(
        (InputsForm = "multipart/form-data", examples(
            ("form" = (summary = "A page with a prompt", value = json!(InputsForm::example()))))),
        (InputFileBytes = "application/x-tar", examples(
            ("archive" = (summary = "An archive", value = json!("(bytes of the tar)"))))),
        (InputFileBytes = "application/zstd", examples(
            ("archive" = (summary = "An archive", value = json!("(bytes of the tar.zst)"))))))),
    responses(
        (status = 201, description = "The inputs are stored", body = InputsView,
            headers(("Location" = String, description = "Path of the inputs")),
            example = json!(example::view())),
        (status = 200, description = "The same inputs were stored before", body = InputsView,
            example = json!(example::view())),
        GuardedErrors, InvalidParameter, BodyErrors, InvalidInputs, InputsUploadLimit,
        Unavailable, InsufficientStorage))]
pub async fn upload(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<InputsQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let _slot = app.access.upload_slot(&caller)?;
    query.check_name()?;
    if query.prompt.as_ref().is_some_and(|prompt| prompt.chars().count() > MAX_QUERY_PROMPT) {
        let message = format!(
            "the parameter prompt is longer than {MAX_QUERY_PROMPT} characters; send a longer one \
             in a form or in a manifest"
        );
        return Err(ApiError::new(ErrorCode::InvalidParameter, message));
    }
    let pending = tokio::select! {
        pending = receive(&app, query, &headers, body) => pending?,
        () = app.closing.cancelled() => {
            let message = "cannot receive the inputs: the service is stopping; retry later";
            return Err(ApiError::new(ErrorCode::Unavailable, message).retry_after(10));
        }
    };
    // A task of its own: the files and the row are stored together even if the client leaves now.
    let stored = tokio::spawn({
        let (app, owner) = (app.clone(), caller.name.clone());
        async move { pending.store(&app, owner).await }
    });
    let stored = stored.await.map_err(|error| ApiError::internal(&error))??;
    let view = find(&app, stored.id).await?;
    let location = AppendHeaders([(header::LOCATION, format!("/inputs/{}", stored.id))]);
    let status = if stored.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, location, Json(view)).into_response())
}

impl InputsQuery {
    fn check_name(&self) -> Result<(), ApiError> {
        let checked = self.name.as_deref().map_or(Ok(()), check_name);
        checked.map_err(|why| ApiError::new(ErrorCode::InvalidRequest, why))
    }

    /// Adds the fields of a form; each is given once.
    fn add_form(&mut self, fields: Vec<(String, String)>) -> Result<(), String> {
        for (field, text) in fields {
            match field.as_str() {
                "prompt" => set_once(&mut self.prompt, &field, text)?,
                "name" => set_once(&mut self.name, &field, text)?,
                "each_image" => {
                    let invalid = |_| format!("each_image: {text:.20}; expected true or false");
                    set_once(&mut self.each_image, &field, text.parse().map_err(invalid)?)?;
                }
                _ => {
                    return Err(format!(
                        "unknown field {field:.40}; expected image, manifest, prompt, each_image \
                         or name"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Receives a body by its content type, and checks the inputs.
async fn receive(
    app: &App,
    mut fields: InputsQuery,
    headers: &HeaderMap,
    body: Body,
) -> Result<PendingInputs, ApiError> {
    let folder = app.intake.create_folder().map_err(|error| ApiError::internal(&error))?;
    let is_archive = match media_type(headers).as_str() {
        "multipart/form-data" => false,
        "application/x-tar" | "application/zstd" => true,
        _ => {
            let message = "unsupported content type; send a form as multipart/form-data, or a tar \
                           as application/x-tar or application/zstd";
            return Err(ApiError::new(ErrorCode::UnsupportedMediaType, message));
        }
    };
    let receiver = receiver(app, &folder, headers, !is_archive)?;
    let received = if is_archive {
        receiver.receive_file(body).await
    } else {
        receive_form(receiver, headers, body).await
    };
    let received = count_slow(app, received)?;
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
    fields.add_form(received.fields).map_err(invalid)?;
    fields.check_name()?;
    let InputsQuery { prompt, each_image, name } = fields;
    let samples = UploadedSamples { prompt, each_image: each_image.unwrap_or(false) };
    let upload = files_of(app, &folder, received.files, is_archive)?;
    pending::check(app, folder, InputsUpload { samples, ..upload }, name.unwrap_or_default()).await
}

/// The receiver of a body with inputs.
pub(crate) fn receiver(
    app: &App,
    folder: &UploadFolder,
    headers: &HeaderMap,
    is_form: bool,
) -> Result<Upload, ApiError> {
    let access = &app.config.access;
    let pace = UploadPace::new(access.upload_bytes_per_s, access.upload_window_s);
    let rules = (RULES, pending::limits(app));
    Upload::new(folder.path(), rules, pace, content_length(headers), is_form)
}

/// Receives a form with the parts of inputs.
pub(crate) async fn receive_form(
    receiver: Upload,
    headers: &HeaderMap,
    body: Body,
) -> Result<ReceivedBody, ApiError> {
    let boundary =
        multer::parse_boundary(header_text(headers, header::CONTENT_TYPE)).map_err(|_| {
            let message = "multipart/form-data without a boundary";
            ApiError::new(ErrorCode::UnsupportedMediaType, message)
        })?;
    receiver.receive_form(body, boundary).await
}

/// Counts a refusal of a slow client.
pub(crate) fn count_slow<T>(app: &App, received: Result<T, ApiError>) -> Result<T, ApiError> {
    received.inspect_err(|error| {
        if error.code() == ErrorCode::BodyTimeout {
            app.access.traffic.refuse(Refusal::SlowUpload);
        }
    })
}

/// The received files as an upload without fields. Browsers send an empty file if none was chosen.
pub(crate) fn files_of(
    app: &App,
    folder: &UploadFolder,
    received: Vec<ReceivedFile>,
    is_archive: bool,
) -> Result<InputsUpload, ApiError> {
    let mut manifest = None;
    let mut files = Vec::with_capacity(received.len());
    for file in received {
        let ReceivedFile { part, mut name, path, bytes, .. } = file;
        if !is_archive && name.is_empty() && bytes == 0 {
            continue;
        }
        if name.is_empty() {
            name = if part == MANIFEST { "manifest".into() } else { format!("{}", files.len()) };
        }
        let file = UploadedFile { path, name };
        if part != MANIFEST {
            files.push(file);
        } else if manifest.replace(file).is_some() {
            let message = "more than one manifest; send one";
            return Err(ApiError::new(ErrorCode::InputsInvalid, message));
        }
    }
    Ok(InputsUpload {
        folder: folder.path().to_owned(),
        files,
        manifest,
        is_archive,
        stated: None,
        samples: UploadedSamples::default(),
        limits: pending::limits(app),
        known: app.input_storage.contents(),
    })
}
