//! A job of this service as a process of its own: `llmprof execute`. It gets TERM when it is
//! stopped and when the service dies, and then ends the processes of its run.

use std::{ffi::OsString, path::Path, process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::{
    child::ExitReason,
    orphans::{StartedProcess, end_orphans, variables},
    start::{ends_with_service, spawn},
};
use crate::domain::ids::RunMark;

/// Time for a job to seal its folder after its run's processes have ended.
const SEAL: Duration = Duration::from_secs(60);

/// A running job.
#[derive(Debug)]
pub struct JobProcess {
    child: Child,
    run: RunMark,
    _process: Option<StartedProcess>,
}

impl JobProcess {
    /// Starts the job of `run` in the folder `dir`. It logs to the service's standard error and has
    /// the service's environment; its own children get an allowed part of that.
    pub async fn start(
        program: &Path,
        options: &[OsString],
        dir: &Path,
        run: RunMark,
    ) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command.arg("execute").args(options).arg("--run-dir").arg(dir);
        command.envs(variables(run));
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        ends_with_service(&mut command, None);
        let (child, process) = spawn(command).await?;
        Ok(Self { child, run, _process: process })
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> std::io::Result<ExitReason> {
        self.child.wait().await.map(Into::into)
    }

    /// Stops it: TERM, and KILL for all processes of its run if it has not ended a minute after the
    /// `grace` that it gives them.
    pub async fn stop(mut self, grace: Duration) -> std::io::Result<ExitReason> {
        if let Some(pid) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM); // it may have ended
        }
        if let Ok(ended) = timeout(grace + SEAL, self.wait()).await {
            return ended;
        }
        let run = self.run;
        tracing::warn!(%run, "the job ignores TERM; killing the processes of its run");
        tokio::task::spawn_blocking(move || end_orphans(run)).await.ok();
        self.wait().await
    }
}
