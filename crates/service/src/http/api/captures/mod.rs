//! `POST /captures`: imports captures that were collected elsewhere as a run.
//!
//! Files are written to disk as they arrive and inspected before the run is queued. Nothing in them
//! is executed.

mod fields;
mod inspect;

use std::{fs, path::Path, time::Duration};

use axum::{
    Extension,
    body::Body,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use llmprof_core::{
    domain::{dtype::Dtype, ids::RunId, subject::RunSpec},
    layout,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::ToSchema;

use self::fields::{UploadFields, UploadHash};
use super::runs::{
    dry_run::{self, DryRun},
    example,
    submissions::Label,
    submit::{SubmittedRun, accepted, accepted_run},
};
use crate::{
    artifact::durable,
    http::{
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                BodyErrors, GuardedErrors, IdempotencyConflict, InsufficientStorage,
                InvalidCapture, InvalidParameter, Unavailable, UploadLimit,
            },
        },
        extract::{
            body::{content_length, header_text, media_type},
            idempotency,
            params::Params,
            upload::{ReceivedBody, Upload, UploadPace, UploadRules},
        },
        state::{App, UploadFolder},
        traffic::Refusal,
    },
    runtime::{self, work::SlicedWork},
    store::{IdempotencyKey, NewRun, Owner, Submitted},
};

/// Rules of an upload of captures.
pub(super) const RULES: UploadRules = UploadRules {
    files: &["file"],
    max_parts: 128,
    // The text of a config.json.
    max_text: 64 << 10,
    invalid: ErrorCode::CaptureInvalid,
    subject: "the capture",
    size_setting: "limits.capture_bytes",
};

/// A file, as it is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub struct CaptureFile(pub String);

/// Captures of one program with their description. Each part may be repeated.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CaptureForm {
    /// At most one SQLite export or report of nsys, or the traces of one program's processes by
    /// the profiler of PyTorch; and CSV pages of ncu. Each as it is or compressed with zstd or
    /// gzip.
    #[schema(min_items = 1, max_items = 16)]
    pub file: Vec<CaptureFile>,
    /// Name of the model, if known; if absent, lists show the name of the first file.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub model: Option<String>,
    /// Labels to find the run by.
    #[serde(default)]
    #[schema(max_items = 16, inline)]
    pub label: Vec<Label>,
    /// Revision of the profiled program, such as a commit.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub revision: Option<String>,
    /// Ranges that are a stage: `NAME=RANGE` or `NAME=RANGE@DOMAIN`.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub stage: Vec<String>,
    /// Only kernels in ranges of these names count.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub include_ranges: Vec<String>,
    /// Kernels in ranges of these names do not count.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub exclude_ranges: Vec<String>,
    /// The model that ran, which gives the report floors, costs and MFU: the name of a configured
    /// one (`GET /models`), or the text of its published `config.json`.
    #[serde(default)]
    #[schema(max_length = 65536)]
    pub model_config: Option<String>,
    /// Prompt tokens of each sequence; required with `model_config`.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 16777216)]
    pub prompt_tokens: Option<u64>,
    /// Decode steps of one repeat; accepted without a model, for the time of a step of a decode
    /// whose steps the capture does not mark [default: as many as in the capture].
    #[serde(default)]
    #[schema(maximum = 16777216)]
    pub new_tokens: Option<u64>,
    /// Sequences computed at the same time; 1 when absent.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 65536)]
    pub batch: Option<u64>,
    /// Dtype of weights and activations; the model's when absent.
    #[serde(default)]
    pub dtype: Option<Dtype>,
    /// Check everything and return the plan of the run; queue and store nothing.
    #[serde(default)]
    pub dry_run: Option<bool>,
}

impl CaptureForm {
    fn example() -> Self {
        let file = |name: &str| CaptureFile(format!("(bytes of {name})"));
        Self {
            file: vec![file("vllm.sqlite.zst"), file("raw.csv")],
            model: Some("llama-3-8b".into()),
            label: vec![Label("vllm".into())],
            revision: Some("3f2c1ab".into()),
            stage: vec!["prefill=ctx@vllm".into(), "decode_all=gen@vllm".into()],
            include_ranges: vec!["measured".into()],
            exclude_ranges: vec!["warmup".into()],
            model_config: Some("qwen3-0.6b".into()),
            prompt_tokens: Some(512),
            new_tokens: Some(64),
            batch: Some(1),
            dtype: Some(Dtype::Bf16),
            dry_run: None,
        }
    }
}

/// Import captures that were collected elsewhere
///
/// One file as the body, named by `name`; or a form with several: a timeline (an SQLite export of
/// nsys, or its `.nsys-rep` if this host has an nsys; or traces by the profiler of PyTorch, one per
/// process) and counters of ncu (pages of `ncu --import R --csv --page raw`, or `.ncu-rep` if this
/// host has an ncu), each as it is or compressed with zstd or gzip. They become a run whose subject
/// is an `import`, which needs no device and has the same reports, tables and artifacts as other
/// runs.
/// The files are checked before the answer. While a pass measures on this host, the check waits, at
/// most 20 s; the answer then states it as `waited`.
/// With `Idempotency-Key`, a repeated submission of the same files and fields returns the same run.
#[utoipa::path(post, path = "/captures", tag = "runs", operation_id = "submit_capture",
    params(
        ("Idempotency-Key" = Option<String>, Header, pattern = "^[!-~]{1,255}$",
            description = "1 to 255 visible ASCII characters that identify this submission"),
        ("name" = Option<String>, Query, max_length = 200,
            description = "Name of the file, where it is the body"),
        ("model" = Option<String>, Query, min_length = 1, max_length = 200,
            description = "Name of the model, if known; lists show the name of the first file \
                           otherwise"),
        ("label" = Option<Vec<String>>, Query, max_items = 16,
            description = "Labels to find the run by"),
        ("revision" = Option<String>, Query, min_length = 1, max_length = 64,
            pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$",
            description = "Revision of the profiled program, such as a commit"),
        ("stage" = Option<Vec<String>>, Query, max_items = 32,
            description = "Ranges that are a stage: `NAME=RANGE` or `NAME=RANGE@DOMAIN`"),
        ("include_ranges" = Option<Vec<String>>, Query, max_items = 32,
            description = "Only kernels in ranges of these names count"),
        ("exclude_ranges" = Option<Vec<String>>, Query, max_items = 32,
            description = "Kernels in ranges of these names do not count"),
        ("model_config" = Option<String>, Query, max_length = 200,
            description = "The model that ran, which gives the report floors, costs and MFU: the \
                           name of a configured one; a form may have the text of its \
                           `config.json` instead"),
        ("prompt_tokens" = Option<u64>, Query, minimum = 1, maximum = 16777216,
            description = "Prompt tokens of each sequence; required with `model_config`"),
        ("new_tokens" = Option<u64>, Query, maximum = 16777216,
            description = "Decode steps of one repeat; accepted without a model, for the time of a \
                           step; as many as in the capture when absent"),
        ("batch" = Option<u64>, Query, minimum = 1, maximum = 65536,
            description = "Sequences computed at the same time; 1 when absent"),
        ("dtype" = Option<Dtype>, Query,
            description = "Dtype of weights and activations; the model's when absent"),
        ("dry_run" = Option<bool>, Query,
            description = "Check everything and return the plan of the run; queue and store \
                           nothing")),
    request_body(content(
        (CaptureFile = "application/octet-stream", examples(
            ("capture" = (summary = "A capture", value = json!("(bytes of the file)"))))),
        (CaptureFile = "application/vnd.sqlite3", examples(
            ("capture" = (summary = "A capture", value = json!("(bytes of the file)"))))),
        (CaptureFile = "application/zstd", examples(
            ("capture" = (summary = "A capture", value = json!("(bytes of the file)"))))),
        (CaptureFile = "application/gzip", examples(
            ("capture" = (summary = "A capture", value = json!("(bytes of the file)"))))),
        (CaptureFile = "application/json", examples(
            ("capture" = (summary = "A capture", value = json!("(bytes of the file)"))))),
        (CaptureFile = "text/csv", examples(
            ("capture" = (summary = "A capture", value = json!("(bytes of the file)"))))),
        (CaptureForm = "multipart/form-data", examples(
            ("capture" = (summary = "A capture", value = json!(CaptureForm::example()))))))),
    responses(
        (status = 202, description = "The import is queued", body = SubmittedRun,
            headers(("Location" = String, description = "Path of the run")),
            example = json!(example::submitted())),
        (status = 200, description = "The import was only checked (`dry_run`)", body = DryRun,
            example = json!(DryRun::example())),
        GuardedErrors, InvalidParameter, BodyErrors, IdempotencyConflict, InvalidCapture,
        UploadLimit, Unavailable, InsufficientStorage))]
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<Vec<(String, String)>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    import(&app, &caller, query, (&headers, body), |texts| texts).await
}

/// Texts of a form by field.
pub(crate) type FormTexts = Vec<(String, String)>;

/// Receives captures and queues their import; `of_form` converts the texts of a form.
pub(crate) async fn import(
    app: &App,
    caller: &Caller,
    query: FormTexts,
    (headers, body): (&HeaderMap, Body),
    of_form: fn(FormTexts) -> FormTexts,
) -> Result<Response, ApiError> {
    let key = idempotency::key(headers)?;
    let (mut fields, mut hash) = (UploadFields::default(), UploadHash::default());
    fields.add_all(query, &mut hash, ErrorCode::InvalidParameter)?;
    fields.check_query()?;
    fields.check(&app.models)?; // before the files, which may be large
    let intake = &app.intake;
    let _slot = app.access.upload_slot(caller)?;
    let folder = intake.create_folder().map_err(|error| ApiError::internal(&error))?;
    let received = tokio::select! {
        received = receive(app, folder.path(), headers, body) => received?,
        () = app.closing.cancelled() => {
            let message = "cannot receive the capture: the service is stopping; retry later";
            return Err(ApiError::new(ErrorCode::Unavailable, message).retry_after(10));
        }
    };
    fields.add_all(of_form(received.fields), &mut hash, ErrorCode::InvalidRequest)?;
    fields.check(&app.models)?;
    for file in &received.files {
        hash.add(&[&"file", &file.name, &file.sha256]);
    }
    let idempotency = key.map(|key| IdempotencyKey { key, body_sha256: hash.finish() });
    let waits = app.measuring.is_active();
    let started = Instant::now();
    let import = inspect::inspect(intake, folder.path(), received.files, &fields).await?;
    let waited =
        (waits || app.measuring.is_active()).then(|| waited(started.elapsed(), app.upload_wait()));
    let is_dry = fields.dry_run.unwrap_or_default();
    let spec = fields.spec(import);
    if is_dry {
        return Ok(dry_run::answer(app, spec).await?.into_response());
    }
    let owner = app.access.owner(caller);
    // A task of its own: the submission completes even if the client leaves now.
    let queued = tokio::spawn({
        let app = app.clone();
        async move { queue(&app, folder, spec, owner, idempotency).await }
    });
    let submitted = queued.await.map_err(|error| ApiError::internal(&error))??;
    let run = accepted_run(submitted, caller)?;
    app.queued.notify_waiters();
    Ok(accepted(run, waited).into_response())
}

/// The reason of a late answer.
fn waited(took: Duration, max: Duration) -> String {
    format!(
        "the check of the files took {} s: it waits while a pass measures, up to {} s",
        took.as_secs(),
        max.as_secs()
    )
}

/// Receives the body into `folder`, by its content type.
async fn receive(
    app: &App,
    folder: &Path,
    headers: &HeaderMap,
    body: Body,
) -> Result<ReceivedBody, ApiError> {
    let unsupported = |message: &str| ApiError::new(ErrorCode::UnsupportedMediaType, message);
    let length = content_length(headers);
    let access = &app.config.access;
    let pace = UploadPace::new(access.upload_bytes_per_s, access.upload_window_s);
    let rules = (RULES, app.intake.limits);
    let upload = |is_form| Upload::new(folder, rules, pace, length, is_form);
    let received = match media_type(headers).as_str() {
        "multipart/form-data" => {
            let boundary = multer::parse_boundary(header_text(headers, header::CONTENT_TYPE))
                .map_err(|_| unsupported("multipart/form-data without a boundary"))?;
            upload(true)?.receive_form(body, boundary).await
        }
        "application/octet-stream"
        | "application/vnd.sqlite3"
        | "application/x-sqlite3"
        | "application/zstd"
        | "application/gzip"
        | "application/json"
        | "text/csv" => upload(false)?.receive_file(body).await,
        _ => Err(unsupported(
            "unsupported content type; send the header content-type: application/octet-stream, \
             or a form as multipart/form-data",
        )),
    };
    received.inspect_err(|error| {
        if error.code() == ErrorCode::BodyTimeout {
            app.access.traffic.refuse(Refusal::SlowUpload);
        }
    })
}

/// Turns the folder of an upload into the folder of a run, and queues the run. The folder is
/// removed unless the run is queued.
async fn queue(
    app: &App,
    folder: UploadFolder,
    spec: RunSpec,
    owner: Option<Owner>,
    idempotency: Option<IdempotencyKey>,
) -> Result<Submitted, ApiError> {
    let id = RunId::now();
    let import = serde_json::to_vec_pretty(&spec.import()).map_err(|it| ApiError::internal(&it))?;
    let runs = app.runs.clone();
    let settle = move |work: &SlicedWork| {
        let mut folder = folder;
        fs::write(folder.path().join(layout::IMPORT), import)?;
        durable::sync_tree(folder.path(), work)?;
        folder.rename(runs.join(id.to_string()))?;
        durable::sync_folder(&runs)?;
        Ok(folder)
    };
    let settled = runtime::stoppable(&SlicedWork::new(&app.closing), settle).await;
    let folder = settled.map_err(|error| ApiError::internal(&error))?;
    let submitted = app.store.submit(NewRun { id: Some(id), spec, idempotency, owner }).await?;
    if let Submitted::New(_) = submitted {
        folder.keep();
    }
    Ok(submitted)
}
