//! Sessions that end while their run waits for the writer of the database, or has it.
//!
//! Another connection locks the file, so the run is stopped at a point that the test chooses.

use std::{ffi::OsString, future::pending, io, path::Path, rc::Rc, sync::Arc, time::Duration};

use jiff::Timestamp;
use llmprof_core::domain::{
    command::{CommandCall, Commands},
    device::Device,
    ids::{FolderId, RunId, RunMark, SessionId},
    mode::Mode,
    outcome::Outcome,
    profiling::Profiling,
    session::{SessionSpec, SessionState},
    state::RunState,
    subject::{CommandSubject, Passes, RunSpec, Subject},
};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::{
    sync::{Notify, watch},
    task::yield_now,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::serve;
use crate::{
    artifact::inputs::InputFolders,
    collect::Collector,
    config::{self, Config},
    job::job_spec::JobSpec,
    measuring::Measuring,
    runtime::{self, Answer, SimulatedJob, Simulation},
    scheduler::{
        Context,
        executor::{Executor, ExecutorError, JobStatus, LostJob},
    },
    store::{
        ClaimedSession, NewRun, NewSession, SessionEndRequest, StartedSession, Store, Submitted,
    },
};

/// A hang, not a slow machine.
const HANG: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(600);
const DATABASE: &str = "llmprof.db";

/// A host whose only process is the server of a session.
struct OneServer(watch::Receiver<Option<i32>>);

impl Simulation for OneServer {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn steady(&self) -> Timestamp {
        Timestamp::now()
    }

    fn delay(&self) -> Duration {
        Duration::ZERO
    }

    fn start_job(&self, _: &[OsString], _: &Path, _: RunMark) -> io::Result<SimulatedJob> {
        Err(io::Error::other("the executor has no processes"))
    }

    fn start_server(&self, _: RunMark) -> io::Result<SimulatedJob> {
        Ok(SimulatedJob { stop: CancellationToken::new(), end: self.0.clone() })
    }

    fn end_orphans(&self, _: RunMark) {}

    fn cluster(&self, _: &str, _: &[OsString]) -> Answer<Result<String, String>> {
        Box::pin(async { Err("no cluster".to_owned()) })
    }

    fn post(&self, _: &str, _: &str) -> Answer<Result<u16, String>> {
        Box::pin(async { Err("no receiver".to_owned()) })
    }

    fn synced(&self, _: &Path) {}
}

/// Executes a job until the test ends it.
#[derive(Debug, Default)]
struct HeldJob {
    started: CancellationToken,
    ended: CancellationToken,
}

impl Executor for HeldJob {
    const JOBS_OUTLIVE_SERVICE: bool = false;

    async fn submit(&self, _: &JobSpec, _: &Device) -> Result<(), ExecutorError> {
        self.started.cancel();
        Ok(())
    }

    async fn poll(&self, _: &JobSpec) -> Result<JobStatus, ExecutorError> {
        self.ended.cancelled().await;
        Ok(JobStatus::Ended)
    }

    async fn cancel(&self, _: RunId, _: Option<u32>) -> Result<(), ExecutorError> {
        Ok(())
    }

    async fn collect(&self, _: &JobSpec) -> Result<Outcome, LostJob> {
        let state = RunState::Succeeded;
        let (findings, artifacts) = (Vec::new(), Vec::new());
        Ok(Outcome { state, failed_step: None, message: None, findings, artifacts, series: None })
    }

    async fn jobs(&self) -> Result<Vec<RunId>, ExecutorError> {
        Ok(Vec::new())
    }
}

/// A session that executes a run.
struct Case {
    dir: TempDir,
    cx: Context,
    session: ClaimedSession,
    job: HeldJob,
    stop: CancellationToken,
}

fn call(session: Option<SessionId>) -> CommandCall {
    CommandCall { command: "serve".into(), params: [].into(), gpus: None, session }
}

fn context(dir: &Path, store: Store) -> Context {
    let commands: Commands = toml::from_str(
        "[serve]\n description = 'A server'\n kind = 'server'\n program = 'server'\n gpus = 0\n \
         ready = { log = 'ready' }\n client = { program = 'client' }",
    )
    .unwrap();
    let folder = |name: &str| dir.join(name);
    let (manifests, samples, stored) = (folder("inputs"), folder("inputs"), folder("inputs"));
    Context {
        store,
        folder: FolderId::default(),
        runs: folder("runs"),
        alignments: folder("alignments"),
        sessions: folder("sessions"),
        inputs: Arc::new(InputFolders { manifests, samples, stored }),
        models: Arc::default(),
        targets: Arc::new(commands),
        presets: Arc::new(config::profiling(None).unwrap()),
        devices: Arc::new(config::devices().unwrap()),
        collector: Arc::new(Collector::new("none")),
        measuring: Measuring::default(),
        config: Arc::new(Config::default()),
        queued: Arc::new(Notify::new()),
        cancelled: Arc::new(Notify::new()),
    }
}

impl Case {
    async fn new(lifetime_s: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join(DATABASE)).await.unwrap();
        let spec = SessionSpec {
            call: call(None),
            device: "cpu".into(),
            lifetime_s,
            label: None,
            nsys: Profiling::bundled(&Mode::LIGHT).unwrap().nsys,
        };
        let new = NewSession { id: None, spec, owner: None, per_owner: 0 };
        let StartedSession::New(session) = store.start_session(&new).await.unwrap() else {
            panic!("refused");
        };
        let (device, mode) = ("auto".to_owned(), Mode::LIGHT);
        let passes = Passes { mode, repeats: 1, warmup: 0, device, profiling: None };
        let subject = Subject::Command(CommandSubject { call: call(Some(session.id)), passes });
        let spec = RunSpec { subject, ..RunSpec::tiny(Mode::LIGHT, 0, &[]) };
        let new = NewRun { id: None, spec, idempotency: None, owner: None };
        let Submitted::New(_) = store.submit(new).await.unwrap() else { panic!("refused") };
        let claimed = store.claim_session(session.id, "cpu:w", &["cpu"], LEASE).await.unwrap();
        let (job, stop) = (HeldJob::default(), CancellationToken::new());
        let cx = context(dir.path(), store);
        Self { dir, cx, session: claimed.unwrap(), job, stop }
    }

    /// Serves the session while `act` ends it, and until it has ended.
    async fn serve(&self, act: impl Future<Output = ()>) {
        let (_server, end) = watch::channel(None);
        runtime::simulate(Some(Rc::new(OneServer(end))));
        let device = Device::cpu();
        let served = serve(&self.session, (&device, &[]), &self.cx, &self.job, &self.stop);
        let acted = async {
            self.job.started.cancelled().await;
            act.await;
            pending::<()>().await;
        };
        // On a busy machine the lifetime may pass before the run starts.
        let ended = timeout(HANG, async {
            tokio::select! {
                () = served => {}
                () = acted => {}
            }
        });
        let ended = ended.await;
        runtime::simulate(None);
        let stall = self.cx.store.writer_stall();
        assert!(
            ended.is_ok(),
            "the session hangs: {}",
            stall.map(|it| it.to_string()).unwrap_or_default()
        );
        let session = self.cx.store.session(self.session.id).await.unwrap().unwrap();
        assert_eq!(session.state, SessionState::Ended, "{session:#?}");
    }

    /// Locks the database: the next call that writes keeps the writer until the lock is dropped.
    fn lock(&self) -> DatabaseLock {
        let other = Connection::open(self.dir.path().join(DATABASE)).unwrap();
        other.execute_batch(concat!("begin", " immediate")).unwrap();
        DatabaseLock(other)
    }

    /// Waits until a call has the writer and `count` others wait for it.
    async fn writer_is_held(&self, count: usize) {
        while self.cx.store.writer_calls() < count + 1 {
            yield_now().await;
        }
    }
}

/// The lock of another process on the database file, until it is dropped.
struct DatabaseLock(Connection);

impl Drop for DatabaseLock {
    fn drop(&mut self) {
        self.0.execute_batch("rollback").unwrap();
    }
}

#[tokio::test]
async fn a_service_that_stops_during_the_commit_of_a_run_ends_its_session() {
    let case = Case::new(3600).await;
    let act = async {
        let locked = case.lock();
        case.job.ended.cancel();
        case.writer_is_held(0).await;
        case.stop.cancel();
        case.writer_is_held(1).await;
        drop(locked);
    };
    case.serve(act).await;
}

#[tokio::test]
async fn a_lifetime_that_passes_during_the_commit_of_a_run_ends_its_session() {
    let case = Case::new(3).await;
    let act = async {
        let locked = case.lock();
        case.job.ended.cancel();
        case.writer_is_held(1).await;
        drop(locked);
    };
    case.serve(act).await;
}

#[tokio::test]
async fn a_requested_end_that_is_seen_before_the_commit_of_a_run_ends_its_session() {
    let case = Case::new(3600).await;
    let act = async {
        let end = case.cx.store.request_session_end(case.session.id).await.unwrap();
        assert_eq!(end, SessionEndRequest::Requested);
        let locked = case.lock();
        // Woken, the worker reads the request, and the commit waits for the writer behind it.
        case.cx.cancelled.notify_waiters();
        case.writer_is_held(0).await;
        case.job.ended.cancel();
        case.writer_is_held(1).await;
        drop(locked);
    };
    case.serve(act).await;
}
