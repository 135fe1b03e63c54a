//! A server that stays for several runs: started under `nsys launch`, and stopped with all its
//! processes.
//!
//! The service holds it; the jobs of its runs reach it by [`SessionAccess`].

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use llmprof_core::{
    domain::{command::ReadyCheck, finding::Finding, ids::SessionId, profiling::NsysSettings},
    layout,
};
use nix::{libc::O_NONBLOCK, sys::signal::Signal};
use serde::{Deserialize, Serialize};
use tokio::{
    fs::OpenOptions,
    io::AsyncWriteExt,
    time::{sleep, sleep_until, timeout},
};

use super::{
    command::PassPlace,
    failure::{SESSION_SERVER, THE_SERVER, describe_end},
    pass::{LAST_WORDS, PassFolder},
    server::{ServedTarget, stop_targets},
    timeline::NsysPass,
};
use crate::{
    artifact::packed::open_own,
    collect::{
        CollectError, Collector, CommandRun, ExitReason, ProcessLimits,
        process::{
            argv::Argv,
            child::{ChildScope, RunningChild},
            orphans::{self, scratch},
            output::{Logs, make_portable, read_answer},
        },
        tools::{
            nsys,
            nsys_session::{self, SessionFiles},
        },
    },
    runtime::{self, SimulatedJob},
};

/// Folder of the server's files, and name of its logs.
const SERVER: &str = "server";
/// Folder of the reports that nsys writes, on the disk of the runs.
const WINDOWS: &str = "windows";
/// Time between two checks for a file.
const PERIOD: Duration = Duration::from_millis(20);
/// Time between two checks whether the server has ended.
const END_PERIOD: Duration = Duration::from_millis(200);
/// Additional time for a command that has a limit of its own.
const MARGIN: Duration = Duration::from_secs(20);
/// Time from the end of a server's targets to the end of `nsys launch`.
const LAUNCH_END: Duration = Duration::from_secs(10);
/// Time from the failure of a client to the recorded end of its dead server.
const EXIT_AFTER_CLIENT: Duration = Duration::from_secs(5);

/// Access of a run's job to the server of its session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionAccess {
    pub id: SessionId,
    /// Port of the server.
    pub port: u16,
    /// Folder of the files that control it.
    control: PathBuf,
    /// The session's own folder.
    dir: PathBuf,
    /// Runs that it had before.
    pub earlier_runs: u32,
    /// Finding of a server whose profiler sees other processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exposed: Option<Finding>,
}

/// A server of a session that is ready.
pub struct RunningSession {
    server: SessionServer,
    limits: ProcessLimits,
    pub access: SessionAccess,
}

enum SessionServer {
    Child(Box<RunningChild>),
    Simulated(SimulatedJob),
}

impl SessionServer {
    async fn wait(&mut self, limits: &ProcessLimits) -> io::Result<ExitReason> {
        match self {
            Self::Child(child) => child.wait(limits).await,
            Self::Simulated(job) => Ok(ExitReason::of_code(job.wait().await)),
        }
    }
}

impl Collector {
    /// Starts the command's server in the folder `dir` and waits until it is ready. Its processes
    /// end when the future or the value is dropped.
    pub async fn start_session(
        &self,
        id: SessionId,
        dir: &Path,
        (run, ready): (&CommandRun, &ReadyCheck),
        settings: &NsysSettings,
        limits: ProcessLimits,
    ) -> Result<RunningSession, CollectError> {
        if let Some(job) = runtime::simulated(|it| it.start_server(limits.run)) {
            let program = run.plan.program.clone();
            let job = job.map_err(|source| CollectError::Run { program, source })?;
            return Ok(RunningSession::simulated(id, dir, job, limits));
        }
        let nsys = self.nsys.as_deref().ok_or(CollectError::NotInstalled { tool: "nsys" })?;
        let pass = NsysPass::timeline(settings);
        self.check_sampling(&pass)?;
        // In a process tree of its own, everything ends with the first process.
        let limits = ProcessLimits { death_signal: Signal::SIGKILL, ..limits };
        let folder = PassFolder::create(self, dir, SERVER)?;
        let windows = dir.join(WINDOWS);
        fs::create_dir_all(&windows)
            .map_err(|source| CollectError::Write { path: windows, source })?;
        let place = PassPlace::of(&folder)?;
        let target = self
            .command_argv(run, &run.plan.program, &run.plan.args, &place)?
            .env(orphans::TARGET.0, orphans::TARGET.1);
        let name = format!("llmprof-{}", id.0.simple());
        let launch = nsys_session::launch(nsys, settings, !run.gpus.is_empty(), &name, &target);
        let (launch, exposed) = self.isolated(launch, &pass, dir, &limits).await;
        let logs = folder.logs(SERVER);
        let served = self.served(run, ready, &place, (0, 0), Duration::ZERO)?;
        let mut retries = 0;
        let child = loop {
            let error = match start_server(&launch, &served, (&folder, &logs), &limits).await {
                Ok(child) => break child,
                Err(error) => error,
            };
            let exited = matches!(error.ended(), Some(ExitReason::Exited(_)));
            let output = folder.output(SERVER);
            match nsys::find_race(&output)
                .filter(|_| exited && (retries as usize) < nsys::MAX_RETRIES)
            {
                Some(race) => tracing::warn!(session = %id, race, "nsys launch is repeated"),
                None => return Err(error),
            }
            retries += 1;
            sleep(nsys::RETRY_PAUSE * retries).await;
        };
        let control = scratch(limits.run);
        let (port, dir) = (place.port, dir.to_owned());
        let access = SessionAccess { id, port, control, dir, earlier_runs: 0, exposed };
        Ok(RunningSession { server: SessionServer::Child(Box::new(child)), limits, access })
    }
}

/// Starts a server and waits until it is ready.
async fn start_server(
    launch: &Argv,
    served: &ServedTarget<'_>,
    (folder, logs): (&PassFolder<'_>, &Logs),
    limits: &ProcessLimits,
) -> Result<RunningChild, CollectError> {
    let not_started = |source| CollectError::Run { program: launch.program.clone(), source };
    let mut child =
        RunningChild::start(launch, logs, limits, ChildScope::Run).await.map_err(not_started)?;
    let started = tokio::select! {
        ended = child.wait(limits) => Err(ended.map_err(not_started)?),
        ready = served.wait_until_ready(logs) => Ok(ready),
    };
    match started {
        Ok(Ok(())) => Ok(child),
        Ok(Err(CollectError::NotReady { how, within_s, .. })) => {
            let last_words = logs.last_output(LAST_WORDS);
            child.finish(ExitReason::Stopped, limits).await.map_err(not_started)?;
            Err(CollectError::NotReady { how, within_s, last_words })
        }
        Ok(Err(error)) => Err(error),
        Err(ended) => {
            child.finish(ended, limits).await.map_err(not_started)?;
            Err(folder.failure(THE_SERVER, ended, logs, limits))
        }
    }
}

impl RunningSession {
    /// The session of a simulated server.
    pub fn simulated(id: SessionId, dir: &Path, job: SimulatedJob, limits: ProcessLimits) -> Self {
        let (control, dir) = (dir.to_owned(), dir.to_owned());
        let access = SessionAccess { id, port: 0, control, dir, earlier_runs: 0, exposed: None };
        Self { server: SessionServer::Simulated(job), limits, access }
    }

    /// Output of the server of the session in `dir`.
    pub fn logs_in(dir: &Path) -> Logs {
        Logs::named(&dir.join(layout::LOGS), SERVER)
    }

    /// Waits until the server ends by itself; returns the reason.
    pub async fn ended(&mut self) -> String {
        match self.server.wait(&self.limits).await {
            Ok(ended) => {
                let last = self.access.server_logs().last_output(1);
                format!("{THE_SERVER} {}", describe_end(THE_SERVER, ended, &last))
            }
            Err(error) => format!("cannot wait for the server: {error}"),
        }
    }

    /// Stops the server: TERM, and KILL after the grace period, for all of its processes.
    pub async fn stop(self) {
        let limits = &self.limits;
        match self.server {
            SessionServer::Child(mut child) => {
                stop_targets(limits).await;
                let ended = timeout(LAUNCH_END, child.wait(limits)).await;
                let ended = ended.ok().and_then(Result::ok).unwrap_or(ExitReason::Stopped);
                if let Err(error) = child.finish(ended, limits).await {
                    let session = self.access.id;
                    tracing::warn!(%session, %error, "cannot stop a session's server");
                }
            }
            SessionServer::Simulated(mut job) => {
                job.stop.cancel();
                if timeout(limits.grace, job.wait()).await.is_err() {
                    orphans::end_orphans(limits.run);
                }
            }
        }
    }
}

impl SessionAccess {
    /// Finding of a server whose profiler sees other processes: reports may contain their
    /// environments.
    pub fn exposed(&self) -> Option<Finding> {
        self.exposed.clone()
    }

    /// Output of the server.
    pub fn server_logs(&self) -> Logs {
        RunningSession::logs_in(&self.dir)
    }

    /// Copies the output of the server into the run's folder.
    pub fn copy_logs(&self, dir: &Path) -> Result<(), CollectError> {
        let (from, to) = (self.server_logs(), Logs::named(&dir.join(layout::LOGS), SERVER));
        for (from, to) in [(&from.stdout, &to.stdout), (&from.stderr, &to.stderr)] {
            let copied =
                open_own(from).and_then(|mut log| io::copy(&mut log, &mut fs::File::create(to)?));
            match copied {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(CollectError::Write { path: to.clone(), source });
                }
                _ => {}
            }
            make_portable(to, &self.dir);
        }
        Ok(())
    }

    fn files(&self) -> SessionFiles {
        SessionFiles::of(&self.control)
    }

    /// Stem of the report that nsys writes.
    fn report(&self) -> PathBuf {
        self.dir.join(WINDOWS).join("window")
    }

    /// Starts to record a window; the error is a text.
    pub async fn start_window(&self, options: &str, limit_s: u32) -> Result<(), String> {
        let stem = self.report();
        let stem = stem.to_str().filter(|it| !it.contains(['\t', '\n']));
        let stem = stem.ok_or("the path of the data folder has a tab or is not UTF-8")?;
        self.request(&format!("start\t{stem}\t{options}"), limit_s).await
    }

    /// Stops the recording and moves what nsys wrote to `stem`.
    pub async fn stop_window(&self, stem: &Path, limit_s: u32) -> Result<(), String> {
        let stopped = self.request("stop", limit_s).await;
        for extension in ["nsys-rep", "qdstrm"] {
            let from = self.report().with_extension(extension);
            if from.exists() {
                let to = stem.with_extension(extension);
                fs::rename(&from, &to).map_err(|error| {
                    format!("cannot move {} to the run: {error}", from.display())
                })?;
            }
        }
        stopped
    }

    /// Stops and removes a recording that a run left open.
    pub async fn drop_window(&self, limit_s: u32) -> Result<(), String> {
        if runtime::is_simulated() {
            return Ok(());
        }
        self.request("drop", limit_s).await
    }

    /// Sends a command to the session's shell and waits for its exit code.
    async fn request(&self, command: &str, limit_s: u32) -> Result<(), String> {
        let number = uuid::Uuid::now_v7().simple().to_string();
        let answer = self.files().answer(&number);
        let sent = async {
            // Opening a pipe without a reader would block.
            let mut pipe = OpenOptions::new()
                .write(true)
                .custom_flags(O_NONBLOCK)
                .open(self.files().requests())
                .await?;
            pipe.write_all(format!("{number}\t{command}\n").as_bytes()).await?;
            pipe.flush().await
        };
        sent.await.map_err(|error| format!("the session does not answer: {error}"))?;
        let written = async {
            loop {
                if let Some(code) = read_answer(&answer) {
                    return code;
                }
                sleep(PERIOD).await;
            }
        };
        let limit = Duration::from_secs(limit_s.into()) + MARGIN;
        let code = timeout(limit, written).await;
        let _ = fs::remove_file(&answer); // it may not exist
        match code.as_deref() {
            Ok("0") => Ok(()),
            Ok("124") => Err(format!("nsys did not end within {limit_s} s")),
            Ok(code) => Err(format!("nsys exited with code {code}")),
            Err(_) => Err("no exit code of nsys".into()),
        }
    }

    /// Waits for `used`, a use of the server. It is dropped, with an error, when the server ends,
    /// the run is stopped or its time is over.
    pub async fn use_while_alive<T>(
        &self,
        used: impl Future<Output = Result<T, CollectError>>,
        limits: &ProcessLimits,
    ) -> Result<T, CollectError> {
        let dropped = |ended| CollectError::Ended { what: "the load", ended, last_words: vec![] };
        let used = tokio::select! {
            biased;
            used = used => used,
            error = self.server_ended() => return Err(error),
            () = limits.stop.cancelled() => return Err(dropped(ExitReason::Stopped)),
            () = sleep_until(limits.deadline) => return Err(dropped(ExitReason::DeadlinePassed)),
        };
        let is_exit = |ended| matches!(ended, ExitReason::Exited(_) | ExitReason::Signalled(_));
        if matches!(&used, Err(CollectError::Ended { what: "the client", ended, .. })
            if is_exit(*ended))
            && let Ok(error) = timeout(EXIT_AFTER_CLIENT, self.server_ended()).await
        {
            return Err(error);
        }
        used
    }

    /// Waits until the server has ended.
    async fn server_ended(&self) -> CollectError {
        let ended = self.files().ended();
        let reason = loop {
            if let Some(code) = read_answer(&ended) {
                break code.parse().map_or(ExitReason::Stopped, ExitReason::of_code);
            }
            if !self.control.exists() {
                break ExitReason::Stopped;
            }
            sleep(END_PERIOD).await;
        };
        let last_words = self.server_logs().last_output(LAST_WORDS);
        CollectError::Ended { what: SESSION_SERVER, ended: reason, last_words }
    }
}
