//! Start of a child: its environment, session, limits and the thread that forks it.

use std::{
    io,
    path::Path,
    process::Stdio,
    sync::{OnceLock, mpsc},
    thread,
};

use nix::{
    errno::Errno,
    sys::{prctl, signal::Signal},
    unistd::{Pid, getppid, setsid},
};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
};

use super::{argv::Argv, child::ProcessLimits, resources::ResourceLimits};
use crate::{
    collect::process::orphans::{StartedProcess, started, variables},
    config::environment,
};

/// Builds the command of a child with its folder for temporary files.
pub(super) fn command(argv: &Argv, limits: &ProcessLimits, scratch: &Path) -> Command {
    let mut command = Command::new(&argv.program);
    // Tools write state to HOME; if it is unset, that is a temporary folder.
    command
        .args(&argv.args)
        .env_clear()
        .env("HOME", scratch)
        .envs(argv.environment(environment::variables()));
    command.env("TMPDIR", scratch).envs(variables(limits.run));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    if let Some(cwd) = &argv.cwd {
        command.current_dir(cwd);
    }
    ends_with_service(&mut command, limits.resources, limits.death_signal);
    command
}

/// Makes `command` lead a session of its own, end when this process dies, and adopt its orphans.
///
/// TERM, not KILL, if the child ends others: a profiler that gets TERM also ends its target. A
/// process with limits has no target and may be stopped, and TERM does not end a stopped process.
pub(super) fn ends_with_service(
    command: &mut Command,
    resources: Option<ResourceLimits>,
    death_signal: Signal,
) {
    let service = Pid::this();
    let prepare = move || {
        setsid()?;
        // Its orphans become its children, and then the service's.
        prctl::set_child_subreaper(true)?;
        prctl::set_pdeathsig(match resources {
            Some(_) => Signal::SIGKILL,
            None => death_signal,
        })?;
        if getppid() != service {
            return Err(Errno::ESRCH.into()); // the service has ended since
        }
        if let Some(resources) = resources {
            resources.apply()?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only these system calls run; none allocates or locks.
    unsafe { command.pre_exec(prepare) };
}

/// Starts a child from a thread that lives as long as the service.
///
/// The parent-death signal follows the thread that forked, and threads of the runtime are not
/// permanent.
pub(in crate::collect) async fn spawn(
    mut command: Command,
) -> io::Result<(Child, Option<StartedProcess>)> {
    type JobObject = Box<dyn FnOnce() + Send>;
    static STARTER: OnceLock<mpsc::Sender<JobObject>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<JobObject>();
        // Without the thread its queue is closed, and every start fails.
        let _ = thread::Builder::new()
            .name("start-children".into())
            .spawn(move || queue.into_iter().for_each(|job| job()));
        jobs
    });
    let runtime = Handle::current();
    let (answer, spawned) = oneshot::channel();
    let job = move || {
        let _in_runtime = runtime.enter();
        let mut known = started();
        let child = command.spawn().map(|child| {
            let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
            known.extend(pid);
            (child, pid.map(StartedProcess))
        });
        drop(known);
        let _ = answer.send(child); // without a receiver the child is dropped and killed
    };
    let no_thread = || io::Error::other("no thread to start children from");
    starter.send(Box::new(job)).map_err(|_| no_thread())?;
    spawned.await.map_err(|_| no_thread())?
}
