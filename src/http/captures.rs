//! `POST /captures`: captures that were taken elsewhere become a run, with every table and report that they allow.
//!
//! A file is written to disk as it arrives, and looked at before it is taken. Nothing of it is executed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, mpsc, oneshot};
use utoipa::ToSchema;

use super::{
    App,
    access::Caller,
    error::{ApiError, ErrorCode},
    request::Params,
    runs::Links,
    submit::{Label, SubmittedRun, check_labels, each_once, idempotency_key, refused, within},
    upload::{Arrived, Parts, Upload, plain_name},
};
use crate::{
    artifact::{
        intake::{self, Inspection, Limits},
        layout,
    },
    run::{
        Common, RunId, RunSpec, Subject,
        import::{CaptureKind, Import, ImportedFile},
    },
    store::{Idempotency, NewRun, Owner, Submitted},
    trace::stage::StageRule,
};

/// Uploads that arrive at a time.
const AT_ONCE: usize = 8;
const MAX_FILES: usize = 16;
const MAX_RULES: usize = 32;
const MAX_TEXT: usize = 200;
/// Seconds that an import may take.
const IMPORT_TIMEOUT_S: u32 = 1800;

/// Where captures arrive, and who looks at them.
#[derive(Debug)]
pub struct Intake {
    /// Folder of the folders of uploads, on the disk of the runs.
    folder: PathBuf,
    limits: Limits,
    places: Semaphore,
    inspector: mpsc::Sender<Inspection>,
}

impl Intake {
    /// An intake over `folder`, in which nothing of an earlier service stays.
    pub fn open(folder: PathBuf, limits: Limits, inspector: mpsc::Sender<Inspection>) -> io::Result<Self> {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(&folder)?,
        }
        Ok(Self { folder, limits, places: Semaphore::new(AT_ONCE), inspector })
    }
}

/// A file, as it is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub struct CaptureFile(pub String);

/// Captures of one program, and what is said of them; each part may be given again.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CaptureForm {
    /// An SQLite export or a report of nsys, at most one; pages of ncu as CSV; each as it is or packed with zstd.
    #[schema(min_items = 1, max_items = 16)]
    pub file: Vec<CaptureFile>,
    /// Name of the model that ran, where it is known; lists show the name of the first file without it.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub model: Option<String>,
    /// Free words to find the run by.
    #[serde(default)]
    #[schema(max_items = 16, inline)]
    pub label: Vec<Label>,
    /// Which ranges are a stage: `NAME=RANGE` or `NAME=RANGE@DOMAIN`.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub stage: Vec<String>,
    /// Only what lies in ranges of these names counts.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub within: Vec<String>,
    /// Nothing in ranges of these names counts.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub without: Vec<String>,
}

/// What was sent, in order: the same again has the same hash, however its form was cut.
#[derive(Debug, Default)]
struct Sent(Sha256);

impl Sent {
    fn add(&mut self, words: &[&dyn AsRef<[u8]>]) {
        for word in words {
            let word = (*word).as_ref();
            self.0.update((word.len() as u64).to_le_bytes());
            self.0.update(word);
        }
    }
}

/// What was said of the files.
#[derive(Debug, Clone, Default)]
struct Said {
    name: String,
    model: Option<String>,
    labels: Vec<Label>,
    stages: Vec<String>,
    within: Vec<String>,
    without: Vec<String>,
}

/// Import captures that were taken elsewhere
///
/// One file as the body, named by `name`; or a form with several: a timeline (an SQLite export of nsys, or its `.nsys-rep` where this host
/// has an nsys that reads it) and pages of ncu (`ncu --import R --csv --page raw`), each as it is or packed with zstd. They become a run whose
/// subject is an `import`, which waits for no device. Everything that a run of this service can be asked can be asked of it. With
/// `Idempotency-Key`, repeating the same files and words gives the same run.
#[utoipa::path(post, path = "/captures", tag = "runs", operation_id = "submit_capture",
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters: names this submission", pattern = "^[!-~]{1,255}$"),
        ("name" = Option<String>, Query, description = "What the file is called, where it is the body", max_length = 200),
        ("model" = Option<String>, Query, description = "Name of the model that ran, where it is known; lists show the name of the first file without it", min_length = 1, max_length = 200),
        ("label" = Option<Vec<String>>, Query, description = "Free words to find the run by", max_items = 16),
        ("stage" = Option<Vec<String>>, Query, description = "Which ranges are a stage: `NAME=RANGE` or `NAME=RANGE@DOMAIN`", max_items = 32),
        ("within" = Option<Vec<String>>, Query, description = "Only what lies in ranges of these names counts", max_items = 32),
        ("without" = Option<Vec<String>>, Query, description = "Nothing in ranges of these names counts", max_items = 32)),
    request_body(content((CaptureFile = "application/octet-stream"), (CaptureFile = "application/vnd.sqlite3"), (CaptureFile = "application/zstd"),
        (CaptureFile = "text/csv"), (CaptureForm = "multipart/form-data"))),
    responses((status = 202, description = "The import is queued", body = SubmittedRun,
        headers(("Location" = String, description = "Where the run is")))))]
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<Vec<(String, String)>>,
    headers: HeaderMap,
    body: Body,
) -> Result<impl IntoResponse, ApiError> {
    let key = idempotency_key(&headers)?;
    let (mut said, mut sent) = (Said::default(), Sent::default());
    for (name, text) in query {
        sent.add(&[&name, &text]);
        said.take(&name, text).map_err(|message| ApiError::new(ErrorCode::InvalidParameter, message))?;
    }
    said.check()?; // before the files, which may be many bytes
    let intake = &app.intake;
    let _place = intake.places.try_acquire().map_err(|_| {
        let message = format!("{AT_ONCE} captures arrive already: come again");
        ApiError::new(ErrorCode::Overloaded, message).retry_after(10)
    })?;
    let folder = Folder::make(&intake.folder).map_err(|error| ApiError::internal(&error))?;
    let parts = receive(&folder.0, intake.limits, &headers, body).await?;
    for (name, text) in parts.fields {
        sent.add(&[&name, &text]);
        said.take(&name, text).map_err(|message| ApiError::new(ErrorCode::InvalidRequest, message))?;
    }
    said.check()?;
    for file in &parts.files {
        sent.add(&[&"file", &file.name, &file.sha256]);
    }
    let idempotency = key.map(|key| Idempotency { key, body_sha256: sent.0.finalize().into() });
    let import = inspect(intake, &folder.0, parts.files, &said).await?;
    let spec = said.spec(import);
    let owner = app.access.owner(&caller);
    // A client that leaves now has sent all of it: what was begun comes to its end.
    let queued = tokio::spawn({
        let app = app.clone();
        async move { queue(&app, folder, spec, owner, idempotency).await }
    });
    let submitted = queued.await.map_err(|error| ApiError::internal(&error))??;
    let run = refused(submitted, &caller.name.unwrap_or_default())?;
    app.queued.notify_waiters();
    let answer = SubmittedRun { run_id: run.id, state: run.state, queue_position: run.queue_position, links: Links::of(run.id) };
    Ok((StatusCode::ACCEPTED, AppendHeaders([(header::LOCATION, answer.links.run.clone())]), Json(answer)))
}

/// Takes the body into `dir`, by its content type.
async fn receive(dir: &Path, limits: Limits, headers: &HeaderMap, body: Body) -> Result<Parts, ApiError> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let kind = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "multipart/form-data" => {
            let boundary = multer::parse_boundary(value)
                .map_err(|_| ApiError::new(ErrorCode::UnsupportedMediaType, "multipart/form-data without a boundary"))?;
            Upload::begin(dir, limits, length, true)?.form(body, boundary).await
        }
        "application/octet-stream" | "application/vnd.sqlite3" | "application/x-sqlite3" | "application/zstd" | "text/csv" => {
            Upload::begin(dir, limits, length, false)?.file(body).await
        }
        _ => {
            let message = "send the header content-type: application/octet-stream, or a form as multipart/form-data";
            Err(ApiError::new(ErrorCode::UnsupportedMediaType, message))
        }
    }
}

/// Looks at all files, and lays them out as those of a run.
async fn inspect(intake: &Intake, dir: &Path, files: Vec<Arrived>, said: &Said) -> Result<Import, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::CaptureInvalid, message);
    if files.is_empty() {
        return Err(invalid("the form has no file: its part is called `file`".into()));
    }
    if files.len() > MAX_FILES {
        return Err(invalid(format!("{} files: an import has at most {MAX_FILES}", files.len())));
    }
    let (mut found, mut others, mut pages) = (Vec::new(), 0, 0);
    for Arrived { name, path, .. } in files {
        let name = [name, plain_name(&said.name)].into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| "capture".into());
        let (at, limits) = (path.clone(), intake.limits);
        let settled = tokio::task::spawn_blocking(move || intake::settle(&at, others, limits)).await;
        let (kind, bytes) = match settled.map_err(|error| ApiError::internal(&error))? {
            Err(intake::IntakeError::Unfit(what)) => return Err(invalid(format!("{name}: {what}"))),
            settled => settled?,
        };
        others += bytes;
        let (answer, answered) = oneshot::channel();
        let gone = || ApiError::new(ErrorCode::Unavailable, "the service stops");
        let rules = said.import(vec![]);
        intake.inspector.send(Inspection { path: path.clone(), kind, rules, answer }).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?.map_err(|why| invalid(format!("{name}: {why}")))?;
        let to = match kind {
            CaptureKind::Timeline => layout::NSYS_EXPORT.to_owned(),
            CaptureKind::Report => layout::NSYS_REPORT.to_owned(),
            CaptureKind::Counters => {
                pages += 1;
                layout::imported_page(pages)
            }
        };
        move_to(&path, &dir.join(&to)).map_err(|error| ApiError::internal(&error))?;
        found.push(ImportedFile { name, kind, bytes, path: to });
    }
    if found.iter().filter(|file| file.kind != CaptureKind::Counters).count() > 1 {
        return Err(invalid("more than one timeline: import each by itself".into()));
    }
    Ok(said.import(found))
}

fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::rename(from, to)
}

/// Makes the folder of an upload the folder of a run, and queues that. Of what is not queued nothing stays.
async fn queue(
    app: &App,
    mut folder: Folder,
    spec: RunSpec,
    owner: Option<Owner>,
    idempotency: Option<Idempotency>,
) -> Result<Submitted, ApiError> {
    let id = RunId::now();
    let keep = |folder: &mut Folder| {
        fs::write(folder.0.join(layout::IMPORT), serde_json::to_vec_pretty(&spec.import())?)?;
        let run = app.runs.join(id.to_string());
        fs::rename(&folder.0, &run)?;
        folder.0 = run;
        fs::File::open(&app.runs)?.sync_all()
    };
    keep(&mut folder).map_err(|error| ApiError::internal(&error))?;
    let submitted = app.store.submit(NewRun { id: Some(id), spec, idempotency, owner }).await?;
    if let Submitted::New(_) = submitted {
        folder.0 = PathBuf::new();
    }
    Ok(submitted)
}

/// A folder that goes when its request ends, unless it was kept.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn make(parent: &Path) -> io::Result<Self> {
        let path = parent.join(uuid::Uuid::now_v7().to_string());
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty()
            && let Err(error) = fs::remove_dir_all(&self.0)
        {
            tracing::warn!(%error, "what was left of an upload stays behind");
        }
    }
}

impl Said {
    /// Takes one thing that was said, by its name.
    fn take(&mut self, name: &str, text: String) -> Result<(), String> {
        let once = |place: &mut Option<String>, text| match place.replace(text) {
            None => Ok(()),
            Some(_) => Err(format!("{name}: given more than once")),
        };
        match name {
            "name" => self.name = text,
            "model" => return once(&mut self.model, text),
            "label" => self.labels.push(Label(text)),
            "stage" => self.stages.push(text),
            "within" => self.within.push(text),
            "without" => self.without.push(text),
            _ => return Err(format!("{name:.40}: there is no such field; there are name, model, label, stage, within, without")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ApiError> {
        let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
        check_labels(&self.labels)?;
        within("length of name", self.name.chars().count(), 0..=MAX_TEXT)?;
        if let Some(model) = &self.model {
            within("length of model", model.chars().count(), 1..=MAX_TEXT)?;
            if model.chars().any(char::is_control) {
                return Err(invalid(format!("model {model:?} holds a control character")));
            }
        }
        for (name, texts) in [("stage", &self.stages), ("within", &self.within), ("without", &self.without)] {
            within(name, texts.len(), 0..=MAX_RULES)?;
            for text in texts {
                within(&format!("length of a {name}"), text.chars().count(), 1..=MAX_TEXT)?;
            }
        }
        for rule in &self.stages {
            rule.parse::<StageRule>().map_err(|error| invalid(format!("stage: {error}")))?;
        }
        Ok(())
    }

    /// An import of `files` by these rules.
    fn import(&self, files: Vec<ImportedFile>) -> Import {
        let Self { model, stages, within, without, .. } = self.clone();
        let name = stem(files.first().map_or("", |file| &file.name));
        Import { name, model, files, stages, within, without }
    }

    fn spec(self, import: Import) -> RunSpec {
        let labels = each_once(self.labels);
        RunSpec { subject: Subject::Import(import), common: Common { labels, priority: 0, timeout_s: IMPORT_TIMEOUT_S } }
    }
}

/// Name of a capture: that of its file, without extensions.
fn stem(file: &str) -> String {
    let stem = file.strip_suffix(".zst").unwrap_or(file);
    let stem = stem.rsplit_once('.').map_or(stem, |(stem, _)| stem);
    if stem.is_empty() { "capture".into() } else { stem.to_owned() }
}
