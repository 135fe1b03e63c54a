//! The router over a real store without workers; tests end runs by hand to reach each state.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, Response, StatusCode, header},
};
use llmprof_core::{
    domain::{
        device::Device,
        headline::SeriesPoint,
        ids::RunId,
        outcome::Outcome,
        state::{RunState, Step},
    },
    trace::{
        checkup::{Checkup, HostCheck},
        power::GpuReading,
    },
};
use llmprof_service::{
    artifact::{
        data_folder::FolderLock,
        import_staging,
        inputs::{InputFolders, storage::InputStorage},
        journal::{Journal, JournalEvent},
        manifest,
    },
    config, http,
    measuring::Measuring,
    runtime::work::SlicedWork,
    scheduler::{inspection, limited_child::LimitedChildren},
    store::{ClaimedRun, Store},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::support::service::LLMPROF;

pub const MODEL: &str = "deepseek-ocr-tiny";

/// A router over a fresh data folder.
pub struct Api {
    router: Router,
    pub store: Store,
    pub storage: InputStorage,
    pub measuring: Measuring,
    pub closing: CancellationToken,
    data: tempfile::TempDir,
}

/// An intake of small files without nsys and ncu.
fn intake(data: &Path) -> http::Intake {
    let limits = import_staging::UploadLimits { max_bytes: 16 << 20, least_free: 0 };
    let children = LimitedChildren {
        program: LLMPROF.into(),
        limits: config::Config::default().limits,
        measuring: Measuring::default(),
        max_wait: Duration::ZERO,
    };
    let tools = inspection::ReportTools { nsys: false, ncu: false };
    let inspector = inspection::start(children, tools, CancellationToken::new());
    http::Intake::open(data.join("incoming"), limits, inspector).unwrap()
}

/// A response with its complete body.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(&name).map_or("", |value| value.to_str().unwrap())
    }

    /// Status and code of an error with the standard body.
    #[track_caller]
    pub fn error(&self) -> (u16, String) {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("{} {body}", self.status));
        assert_eq!(error.keys().collect::<Vec<_>>(), ["code", "message", "request_id"]);
        assert!(!error["message"].as_str().unwrap().is_empty());
        assert_eq!(error["request_id"], self.headers["x-request-id"].to_str().unwrap());
        (self.status.as_u16(), error["code"].as_str().unwrap().to_owned())
    }
}

impl Api {
    /// An API whose inputs folder contains one page, and valid and invalid manifests.
    pub async fn new() -> Self {
        Self::with(Arc::default()).await
    }

    /// The same with this access control.
    pub async fn with(access: Arc<http::AccessControl>) -> Self {
        Self::made(access, |_| ()).await
    }

    /// The same with this access control and changed settings.
    pub async fn with_settings(
        access: Arc<http::AccessControl>,
        change: impl FnOnce(&mut config::Config),
    ) -> Self {
        Self::made(access, change).await
    }

    /// The same with changed settings.
    pub async fn configured(change: impl FnOnce(&mut config::Config)) -> Self {
        Self::made(Arc::default(), change).await
    }

    /// The same with readings of GPUs.
    pub async fn with_gpus(gpus: Vec<GpuReading>) -> Self {
        Self::of(Arc::default(), |_| (), gpus).await
    }

    async fn made(
        access: Arc<http::AccessControl>,
        change: impl FnOnce(&mut config::Config),
    ) -> Self {
        Self::of(access, change, Vec::new()).await
    }

    async fn of(
        access: Arc<http::AccessControl>,
        change: impl FnOnce(&mut config::Config),
        gpus: Vec<GpuReading>,
    ) -> Self {
        let data = tempfile::tempdir().unwrap();
        let inputs = data.path().join("inputs");
        fs::create_dir_all(&inputs).unwrap();
        fs::create_dir(data.path().join("runs")).unwrap();
        image::RgbImage::new(4, 3).save(inputs.join("page.png")).unwrap();
        fs::write(inputs.join("text.png"), "no image").unwrap();
        fs::write(data.path().join("secret.yaml"), "prompt: secret").unwrap();
        std::os::unix::fs::symlink(data.path().join("secret.yaml"), inputs.join("link.yaml"))
            .unwrap();
        for (name, text) in [
            ("inputs.yaml", "prompt: hello\nimages: [{path: page.png}]"),
            ("inputs-text.yaml", "prompt: hello"),
            ("gone.yaml", "prompt: hello\nimages: [{path: gone.png}]"),
            ("text.yaml", "prompt: hello\nimages: [{path: text.png}]"),
            ("outside.yaml", "prompt: hello\nimages: [{path: ../page.png}]"),
            ("broken.yaml", "prompt: [hello"),
        ] {
            fs::write(inputs.join(name), text).unwrap();
        }
        let mut config = config::Config::default();
        config.limits.free_bytes = 0;
        change(&mut config);
        let samples = data.path().join("samples");
        llmprof_service::artifact::samples::unpack(&samples).unwrap();
        let storage = InputStorage::open(&data.path().join("stored_inputs")).unwrap();
        let store = Store::open(&data.path().join("llmprof.db")).await.unwrap();
        let (measuring, closing) = (Measuring::default(), CancellationToken::new());
        let (doctor, mut asked) =
            tokio::sync::mpsc::channel::<tokio::sync::oneshot::Sender<Checkup>>(1);
        tokio::spawn(async move {
            while let Some(answer) = asked.recv().await {
                let fine = HostCheck::of("disk", Ok("space".into()));
                answer.send(Checkup::of("2026-11-20T09:00:00.000Z".into(), vec![fine])).ok();
            }
        });
        let router = http::router(http::App {
            store: store.clone(),
            access,
            // Not the data folder: some tests start a service on it.
            folder: Arc::new(FolderLock::take(&data.path().join("inputs")).unwrap()),
            runs: data.path().join("runs"),
            alignments: data.path().join("alignments"),
            inputs: Arc::new(InputFolders {
                manifests: inputs,
                samples,
                stored: storage.root().to_owned(),
            }),
            input_storage: storage.clone(),
            models: Arc::new(config::models(None).unwrap().models),
            refused_models: Arc::default(),
            targets: Arc::new(config::example_targets().unwrap()),
            presets: Arc::new(config::profiling(None).unwrap()),
            devices: [Device::cpu()].into(),
            accepts: Default::default(),
            intake: Arc::new(intake(data.path())),
            doctor,
            gpus: tokio::sync::watch::channel(gpus).1,
            measuring: measuring.clone(),
            recovery: tokio::sync::watch::channel(None).1,
            config: Arc::new(config),
            queued: Arc::default(),
            cancelled: Arc::default(),
            closing: closing.clone(),
        });
        Self { router, store, storage, measuring, closing, data }
    }

    /// Sends a request; returns the response with a body that is not read yet.
    pub async fn start_response(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// Sends a request and reads the response; returns an error if the body ends early.
    pub async fn read_all(&self, request: Request<Body>) -> Result<Answer, axum::Error> {
        let (parts, body) = self.start_response(request).await.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await?.to_vec();
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }

    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.read_all(request.body(body.into()).unwrap()).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], Body::empty()).await
    }

    pub async fn post(&self, body: &Value) -> Answer {
        self.ask(Method::POST, "/runs", &[("content-type", "application/json")], body.to_string())
            .await
    }

    /// Submits a run of the tiny model with `settings` over the defaults.
    pub async fn submit(&self, settings: Value) -> String {
        let mut body = json!({ "model": MODEL });
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let answer = self.post(&body).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text());
        answer.json()["run_id"].as_str().unwrap().to_owned()
    }

    /// The data folder.
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Submits an alignment of two runs with additional fields.
    pub async fn align(&self, mock: &str, e2e: &str, more: Value) -> Answer {
        let mut body = json!({ "mock": mock, "e2e": e2e });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.ask(
            Method::POST,
            "/alignments",
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub fn folder(&self, id: &str) -> PathBuf {
        self.data.path().join("runs").join(id)
    }

    /// Claims the next run, and writes the first line of its journal.
    pub async fn start(&self) -> ClaimedRun {
        let run = self
            .store
            .claim("cpu:worker", &["cpu"], Duration::from_secs(60))
            .await
            .unwrap()
            .unwrap();
        let dir = self.folder(&run.id.to_string());
        fs::create_dir_all(&dir).unwrap();
        self.journal(run.id).write(&JournalEvent::Attempt {
            attempt: run.attempt,
            at: "2026-11-20T09:00:00Z".into(),
        });
        run
    }

    pub fn journal(&self, id: RunId) -> Journal {
        Journal::open(&self.folder(&id.to_string())).unwrap()
    }

    /// Ends a run with `files`: path and text.
    pub async fn end(&self, run: &ClaimedRun, state: RunState, files: &[(&str, &str)]) {
        self.end_in_series(run, state, files, None).await;
    }

    /// Ends a run with `files`, as a point of a series.
    pub async fn end_in_series(
        &self,
        run: &ClaimedRun,
        state: RunState,
        files: &[(&str, &str)],
        series: Option<Box<SeriesPoint>>,
    ) {
        let dir = self.folder(&run.id.to_string());
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let artifacts = manifest::seal(&dir, u64::MAX, &SlicedWork::default()).unwrap().artifacts;
        let failed_step = (state == RunState::Failed).then_some(Step::Baseline);
        let outcome =
            Outcome { state, failed_step, message: None, findings: vec![], artifacts, series };
        assert!(self.store.finish(run, &outcome).await.unwrap());
    }

    /// A run that succeeded, with reports and a log.
    pub async fn ended(&self) -> String {
        let files = [
            ("report.html", "<!doctype html><p>report"),
            ("report.md", "# report"),
            ("report.json", r#"{"schema_version":1}"#),
            ("logs/baseline.stderr.log", "0123456789"),
            ("nsys/run.sqlite", "SQLite"),
        ];
        self.ended_with(&files).await
    }

    /// A run that succeeded, with `files`: path and text.
    pub async fn ended_with(&self, files: &[(&str, &str)]) -> String {
        let id = self.submit(json!({})).await;
        let run = self.start().await;
        assert_eq!(run.id.to_string(), id);
        self.end(&run, RunState::Succeeded, files).await;
        id
    }
}
