//! Runs a command as a child that always ends.
//!
//! A child leads a session of its own, so that its group can be ended with it; whatever left the group is found by its mark. It
//! gets TERM, a grace, then KILL: at its deadline, when it is stopped, and when the service dies.

use std::{
    fmt,
    fs::File,
    io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, killpg},
    },
    unistd::{Pid, getppid, setsid},
};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::{mpsc::UnboundedSender, oneshot},
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    argv::Argv,
    lines::{ChildLine, Lines},
    output::{Logs, keep},
    space::{Bound, Space},
    sweep::{MARKER, make_scratch, scratch, signal, sweep},
};
use crate::run::RunId;

/// Time between TERM and KILL, unless told otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// How long an output may stay open after every process that is known to hold it has ended.
const DRAIN: Duration = Duration::from_secs(2);

/// What holds a child: whose it is, when it must have ended, who may stop it, who listens. A run has one child at a time,
/// and a server's client beside it.
#[derive(Debug, Clone)]
pub struct Leash {
    pub run: RunId,
    pub deadline: Instant,
    pub grace: Duration,
    pub stop: CancellationToken,
    pub lines: Option<UnboundedSender<ChildLine>>,
    /// The most that the run may take on disk; `None`: nobody looks.
    pub space: Option<Space>,
}

impl Leash {
    /// Holds the children of `run` for `limit` from now; nobody listens.
    pub fn new(run: RunId, limit: Duration, stop: CancellationToken) -> Self {
        Self { run, deadline: Instant::now() + limit, grace: DEFAULT_GRACE, stop, lines: None, space: None }
    }

    /// The same leash for a short command: `limit` from now, or earlier; nobody listens.
    pub fn short(&self, limit: Duration) -> Self {
        Self { deadline: self.deadline.min(Instant::now() + limit), lines: None, ..self.clone() }
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    /// By a signal that was not ours.
    Signalled(i32),
    DeadlinePassed,
    /// The run became larger than it may be.
    SpacePassed,
    /// The disk of the runs became nearly full.
    DiskFull,
    Stopped,
}

impl Ended {
    /// The exit code, when the child exited by itself.
    pub fn exit_code(self) -> Option<i32> {
        if let Self::Exited(code) = self { Some(code) } else { None }
    }
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        // A status that `wait` gives is one or the other.
        status.code().map_or_else(|| Self::Signalled(status.signal().unwrap_or_default()), Self::Exited)
    }
}

impl From<Bound> for Ended {
    fn from(bound: Bound) -> Self {
        match bound {
            Bound::Run => Self::SpacePassed,
            Bound::Disk => Self::DiskFull,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signalled(signal) => match Signal::try_from(*signal) {
                Ok(signal) => write!(f, "was ended by {signal}"),
                Err(_) => write!(f, "was ended by signal {signal}"),
            },
            Self::DeadlinePassed => f.write_str("ran past its deadline and was ended"),
            Self::SpacePassed => f.write_str("wrote more than a run may hold and was ended"),
            Self::DiskFull => f.write_str("was ended because the disk of the runs is nearly full"),
            Self::Stopped => f.write_str("was stopped"),
        }
    }
}

/// Runs `argv` until it exits, its deadline or its space passes or it is stopped, and says which.
///
/// Afterwards nothing of it is left running, its output is in `logs`, and the folder that it had for temporary files is gone:
/// a profiler that is ended leaves gigabytes there.
pub async fn run(argv: &Argv, logs: &Logs, leash: &Leash) -> io::Result<Ended> {
    to_its_end(argv, logs, leash, Alone::Yes).await
}

/// The same beside a child of the run that goes on: only this child's own group is ended with it.
pub async fn run_beside(argv: &Argv, logs: &Logs, leash: &Leash) -> io::Result<Ended> {
    to_its_end(argv, logs, leash, Alone::No).await
}

async fn to_its_end(argv: &Argv, logs: &Logs, leash: &Leash, alone: Alone) -> io::Result<Ended> {
    if leash.stop.is_cancelled() {
        File::create(&logs.stdout)?;
        File::create(&logs.stderr)?;
        return Ok(Ended::Stopped);
    }
    let mut running = Running::begin(argv, logs, leash, alone).await?;
    let ended = running.wait(leash).await?;
    running.end(ended, leash).await
}

/// Whether a child is the only one of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alone {
    Yes,
    No,
}

/// A child that was started.
pub struct Running {
    child: Child,
    group: Group,
    scratch: PathBuf,
    outputs: Vec<JoinHandle<io::Result<()>>>,
}

impl Running {
    /// Starts `argv`. Whatever becomes of this value, the child ends with it.
    pub async fn begin(argv: &Argv, logs: &Logs, leash: &Leash, alone: Alone) -> io::Result<Self> {
        let (stdout, stderr) = (File::create(&logs.stdout)?, File::create(&logs.stderr)?);
        let mut group = Group { run: leash.run, leader: None, alone };
        let scratch = if alone == Alone::Yes { make_scratch(leash.run)? } else { scratch(leash.run) };
        let mut child = start(command(argv, leash.run, &scratch)).await?;
        group.leader = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let lines = || Lines::new(leash.lines.clone());
        let out = child.stdout.take().map(|from| tokio::spawn(keep(from, stdout, logs.cap, lines())));
        let err = child.stderr.take().map(|from| tokio::spawn(keep(from, stderr, logs.cap, lines())));
        Ok(Self { child, group, scratch, outputs: [out, err].into_iter().flatten().collect() })
    }

    /// Waits until it exits, its deadline or its space passes or it is stopped, and says which. It may be asked again.
    pub async fn wait(&mut self, leash: &Leash) -> io::Result<Ended> {
        Ok(tokio::select! {
            status = self.child.wait() => status?.into(),
            () = leash.stop.cancelled() => Ended::Stopped,
            () = sleep_until(leash.deadline) => Ended::DeadlinePassed,
            bound = Space::passed(leash.space.as_ref(), &self.scratch) => bound.into(),
        })
    }

    /// Ends what is left of it: one that has not `ended` by itself gets TERM and a grace first.
    pub async fn end(mut self, mut ended: Ended, leash: &Leash) -> io::Result<Ended> {
        if matches!(ended, Ended::Stopped | Ended::DeadlinePassed | Ended::SpacePassed | Ended::DiskFull) {
            self.group.signal(Signal::SIGTERM);
            let _ = timeout(leash.grace, self.child.wait()).await;
        }
        // Between two looks a fast child may have written too much and ended.
        let bound = leash.space.as_ref().and_then(|space| space.is_passed(&self.scratch));
        if let (Ended::Exited(_), Some(Bound::Run)) = (ended, bound) {
            ended = Ended::SpacePassed;
        }
        let group = self.group;
        spawn_blocking(move || drop(group)).await?;
        self.child.wait().await?;
        for output in self.outputs {
            drain(output).await?;
        }
        Ok(ended)
    }
}

/// All processes that a child started, ended when this is dropped: also when nobody waits for the child any more.
struct Group {
    run: RunId,
    leader: Option<Pid>,
    alone: Alone,
}

impl Group {
    fn signal(&self, sig: Signal) {
        if let Some(leader) = self.leader {
            let _ = killpg(leader, sig); // all of it may have ended
        }
        if self.alone == Alone::Yes {
            signal(self.run, sig);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if self.alone == Alone::Yes {
            sweep(self.run);
        }
    }
}

fn command(argv: &Argv, run: RunId, scratch: &Path) -> Command {
    let mut command = Command::new(&argv.program);
    // Tools keep state in their home; where there is none, it goes with the temporary files.
    command.args(&argv.args).env_clear().env("HOME", scratch).envs(argv.environment(std::env::vars_os()));
    command.env("TMPDIR", scratch).env(MARKER, run.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    if let Some(cwd) = &argv.cwd {
        command.current_dir(cwd);
    }
    let service = Pid::this();
    let prepare = move || {
        setsid()?;
        // TERM, not KILL: a profiler that is told to end ends what it watches.
        prctl::set_pdeathsig(Signal::SIGTERM)?;
        if getppid() != service {
            return Err(Errno::ESRCH.into()); // the service ended in between
        }
        Ok(())
    };
    // SAFETY: between fork and exec only these three system calls happen; none allocates or takes a lock.
    unsafe { command.pre_exec(prepare) };
    command
}

/// Starts a child from a thread that lives as long as the service.
///
/// The kernel ties "when the parent dies" to the thread that forked, and threads of the runtime come and go.
async fn start(mut command: Command) -> io::Result<Child> {
    type Job = Box<dyn FnOnce() + Send>;
    static STARTER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        // Without the thread its queue is closed, and every start says so.
        let _ = thread::Builder::new().name("start-children".into()).spawn(move || queue.into_iter().for_each(|job| job()));
        jobs
    });
    let runtime = Handle::current();
    let (answer, started) = oneshot::channel();
    let job = move || {
        let _in_runtime = runtime.enter();
        let _ = answer.send(command.spawn()); // nobody waits any more: dropped, and so killed
    };
    let no_thread = || io::Error::other("no thread to start children from");
    starter.send(Box::new(job)).map_err(|_| no_thread())?;
    started.await.map_err(|_| no_thread())?
}

/// Waits until an output is copied, but not for a stranger that holds it open.
async fn drain(mut output: JoinHandle<io::Result<()>>) -> io::Result<()> {
    match timeout(DRAIN, &mut output).await {
        Ok(copied) => copied?,
        Err(_) => {
            output.abort();
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
