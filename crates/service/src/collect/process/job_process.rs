//! A job of this service as a process of its own: `llmprof execute`. It gets TERM when it is
//! stopped and when the service dies, and then ends the processes of its run.

use std::{ffi::OsString, path::Path, process::Stdio, time::Duration};

use llmprof_core::domain::ids::RunMark;
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
use crate::runtime::{self, SimulatedJob};

/// Time for a job to end after the processes of its run have ended.
const JOB_END: Duration = Duration::from_secs(30);

/// A running job.
#[derive(Debug)]
pub struct JobProcess {
    child: JobChild,
    run: RunMark,
    _process: Option<StartedProcess>,
}

#[derive(Debug)]
enum JobChild {
    Process(Child),
    Simulated(SimulatedJob),
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
        if let Some(job) = runtime::simulated(|it| it.start_job(options, dir, run)) {
            return Ok(Self { child: JobChild::Simulated(job?), run, _process: None });
        }
        let mut command = Command::new(program);
        command.arg("execute").args(options).arg("--run-dir").arg(dir);
        command.envs(variables(run));
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        ends_with_service(&mut command, None, Signal::SIGTERM);
        let (child, process) = spawn(command).await?;
        Ok(Self { child: JobChild::Process(child), run, _process: process })
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> std::io::Result<ExitReason> {
        match &mut self.child {
            JobChild::Process(child) => child.wait().await.map(Into::into),
            JobChild::Simulated(job) => Ok(ExitReason::of_code(job.wait().await)),
        }
    }

    /// Stops it: TERM, and KILL for all processes of its run if it has not ended 30 s after the
    /// `grace` that it gives them.
    pub async fn stop(mut self, grace: Duration) -> std::io::Result<ExitReason> {
        match &self.child {
            JobChild::Process(child) => {
                if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM); // it may have ended
                }
            }
            JobChild::Simulated(job) => job.stop.cancel(),
        }
        if let Ok(ended) = timeout(grace + JOB_END, self.wait()).await {
            return ended;
        }
        let run = self.run;
        tracing::warn!(%run, "the job ignores TERM; killing the processes of its run");
        runtime::blocking(move || end_orphans(run)).await.ok();
        self.wait().await
    }
}
