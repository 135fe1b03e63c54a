//! The world around a service: time, processes, receivers of messages, and what happened so far.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use llmprof_core::domain::{
    ids::{RunId, RunMark},
    subject::RunSpec,
};
use llmprof_service::runtime::{self, Answer, SimulatedJob, SimulatedProcess, Simulation};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{cluster::Cluster, files::Files, job, random::Random};

/// Start of every schedule: 2026-01-01.
const START_S: i64 = 1_767_225_600;
/// Longest time from the choice of a run to the start of its process: some slow calls.
const CHOICE_TO_START: Duration = Duration::from_secs(10);
/// Number of the service's host, among the hosts of jobs.
pub const SERVICE_HOST: u32 = 0;

/// The world of one schedule. Clones share it.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
    started: Instant,
}

/// State of the world.
pub struct State {
    pub random: Random,
    pub faults: Faults,
    pub log: Vec<String>,
    pub broken: Vec<String>,
    pub jobs: Vec<Job>,
    pub runs: BTreeMap<RunId, Executions>,
    /// Number and text of received messages, by id.
    pub received: BTreeMap<String, (u32, String)>,
    pub cluster: Cluster,
    pub files: Files,
    /// Acknowledged runs for any device that have not started.
    pub waiting: BTreeMap<RunId, Waiting>,
}

/// An acknowledged run that has not started.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    rank: i64,
    acknowledged_at: Duration,
}

/// Chances in percent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A process cannot be started.
    pub start: u64,
    /// A job ends in the middle of a step.
    pub crash: u64,
    /// A job finds the disk full.
    pub exhausted: u64,
    /// A step fails.
    pub step: u64,
    /// A job ignores TERM.
    pub stubborn: u64,
    /// A receiver or a cluster does not answer, or answers with an error.
    pub answer: u64,
    /// A call is slow.
    pub slow: u64,
    /// Longest slow call, if longer than 40 ms.
    pub stall_ms: u64,
    /// A cluster starts a job again.
    pub requeue: u64,
}

/// A job's process.
pub struct Job {
    pub run: RunId,
    pub host: u32,
    pub process: Arc<SimulatedProcess>,
    pub stop: CancellationToken,
    end: watch::Sender<Option<i32>>,
}

impl Job {
    pub fn is_alive(&self) -> bool {
        self.end.borrow().is_none()
    }
}

/// Executions of one run.
#[derive(Debug, Default)]
pub struct Executions {
    pub started: u32,
    /// Attempts that ended with a result of their own.
    pub finished: Vec<u32>,
}

impl World {
    pub fn new(seed: u64, runs: PathBuf) -> Self {
        let state = State {
            random: Random::new(seed),
            faults: Faults::default(),
            log: Vec::new(),
            broken: Vec::new(),
            jobs: Vec::new(),
            runs: BTreeMap::new(),
            received: BTreeMap::new(),
            cluster: Cluster::default(),
            files: Files::new(runs),
            waiting: BTreeMap::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), started: Instant::now() }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn time(&self) -> Timestamp {
        Timestamp::from_second(START_S).unwrap() + self.elapsed()
    }

    pub fn log(&self, event: impl AsRef<str>) {
        let line = format!("{:>9.3} {}", self.elapsed().as_secs_f64(), event.as_ref());
        self.state().log.push(line);
    }

    /// Records that a promise is broken.
    pub fn broken(&self, what: impl AsRef<str>) {
        self.log(format!("BROKEN {}", what.as_ref()));
        self.state().broken.push(what.as_ref().to_owned());
    }

    /// True in a percentage of the cases, which a fault has.
    pub fn fault(&self, of: impl FnOnce(&Faults) -> u64) -> bool {
        let mut state = self.state();
        let percent = of(&state.faults);
        percent > 0 && state.random.chance(percent)
    }

    pub fn below(&self, limit: u64) -> u64 {
        self.state().random.below(limit)
    }

    /// A wait of up to `ms` milliseconds.
    pub async fn pause(&self, ms: u64) {
        let ms = self.below(ms) + 1;
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Starts the process of a job.
    pub fn start_process(&self, dir: &Path, run: RunId, host: u32) -> SimulatedJob {
        {
            let mut state = self.state();
            state.runs.entry(run).or_default().started += 1;
            state.waiting.remove(&run);
        }
        let (world, dir, stop) = (self.clone(), dir.to_owned(), CancellationToken::new());
        let job_stop = stop.clone();
        self.spawn(run, host, stop, async move { job::execute(&world, &dir, &job_stop).await })
    }

    /// Starts the server of a session, which serves until it is stopped or crashes.
    fn start_server_process(&self, session: RunId) -> SimulatedJob {
        let (stop, crashes) = (CancellationToken::new(), self.fault(|it| it.crash));
        let ignored = CancellationToken::new();
        let stopped = if self.fault(|it| it.stubborn) { ignored } else { stop.clone() };
        let world = self.clone();
        self.spawn(session, SERVICE_HOST, stop, async move {
            if crashes {
                world.pause(30_000).await;
                return -11;
            }
            stopped.cancelled().await;
            0
        })
    }

    /// Starts a process of a run or session; `work` returns its exit code.
    fn spawn(
        &self,
        run: RunId,
        host: u32,
        stop: CancellationToken,
        work: impl Future<Output = i32> + Send + 'static,
    ) -> SimulatedJob {
        let (end, ended) = watch::channel(None);
        let process = Arc::new(SimulatedProcess::default());
        let number = {
            let mut state = self.state();
            if host == SERVICE_HOST && state.jobs.iter().any(|it| it.run == run && it.is_alive()) {
                drop(state);
                self.broken(format!("two processes of {run}"));
                state = self.state();
            }
            let (process, stop) = (Arc::clone(&process), stop.clone());
            state.jobs.push(Job { run, host, process, stop, end });
            state.jobs.len() - 1
        };
        self.log(format!("process {number} of {run} starts on host {host}"));
        let world = self.clone();
        tokio::spawn(process.run(async move {
            let code = work.await;
            world.process_ended(number, code);
        }));
        SimulatedJob { stop, end: ended }
    }

    /// A run was acknowledged.
    pub fn queued(&self, run: RunId, spec: &RunSpec, queued_at: &str) {
        let mut state = self.state();
        if spec.device() == Some("auto") && !state.runs.contains_key(&run) {
            let queued = queued_at.parse::<Timestamp>().unwrap().as_millisecond();
            let rank = queued - i64::from(spec.common.priority) * 600_000;
            state.waiting.insert(run, Waiting { rank, acknowledged_at: self.elapsed() });
        }
    }

    /// No run starts before one of lower rank that was acknowledged when the run was chosen.
    fn check_order(&self, run: RunId) {
        let overtaken = {
            let mut state = self.state();
            let Some(started) = state.waiting.remove(&run) else { return };
            let chosen_at = self.elapsed().saturating_sub(CHOICE_TO_START);
            let known = state.waiting.iter().filter(|(_, it)| it.acknowledged_at < chosen_at);
            let first = known.map(|(id, it)| (it.rank, *id)).min();
            first.filter(|first| *first < (started.rank, run)).map(|(_, id)| id)
        };
        if let Some(overtaken) = overtaken {
            self.broken(format!("run {run} overtakes {overtaken}"));
        }
    }

    fn process_ended(&self, number: usize, code: i32) {
        self.log(format!("process {number} ends with {code}"));
        self.state().jobs[number].end.send_replace(Some(code));
    }

    /// Kills the processes that `chosen` accepts.
    pub fn kill(&self, chosen: impl Fn(&Job) -> bool) {
        let numbers: Vec<usize> = {
            let state = self.state();
            let alive = state.jobs.iter().enumerate().filter(|(_, it)| it.is_alive() && chosen(it));
            alive.map(|(number, _)| number).collect()
        };
        for number in numbers {
            let process = Arc::clone(&self.state().jobs[number].process);
            process.kill();
            self.process_ended(number, -9);
        }
    }

    /// The service is gone: its jobs get TERM.
    pub fn service_killed(&self) {
        let stops: Vec<CancellationToken> = {
            let state = self.state();
            let jobs = state.jobs.iter().filter(|it| it.host == SERVICE_HOST && it.is_alive());
            jobs.map(|it| it.stop.clone()).collect()
        };
        for stop in stops {
            stop.cancel();
        }
    }
}

impl Simulation for World {
    fn now(&self) -> Timestamp {
        self.time()
    }

    fn steady(&self) -> Timestamp {
        self.time()
    }

    fn delay(&self) -> Duration {
        let mut state = self.state();
        let Faults { slow, stall_ms, .. } = state.faults;
        match state.random.below(100) {
            0..=3 if slow > 0 => Duration::from_millis(state.random.below(3000)),
            chance if chance < slow => Duration::from_millis(state.random.below(stall_ms.max(40))),
            _ => Duration::ZERO,
        }
    }

    fn start_job(&self, _: &[OsString], dir: &Path, run: RunMark) -> io::Result<SimulatedJob> {
        self.check_order(run.run);
        if self.fault(|it| it.start) {
            self.log(format!("process of run {run} cannot start"));
            return Err(io::Error::from_raw_os_error(11));
        }
        Ok(self.start_process(dir, run.run, SERVICE_HOST))
    }

    fn start_server(&self, session: RunMark) -> io::Result<SimulatedJob> {
        if self.fault(|it| it.start) {
            self.log(format!("server of session {} cannot start", session.run));
            return Err(io::Error::from_raw_os_error(11));
        }
        Ok(self.start_server_process(session.run))
    }

    fn end_orphans(&self, run: RunMark) {
        let caller = runtime::process();
        let is_caller = |job: &Job| caller.as_ref().is_some_and(|it| Arc::ptr_eq(it, &job.process));
        let host =
            self.state().jobs.iter().find(|it| is_caller(it)).map_or(SERVICE_HOST, |it| it.host);
        self.kill(|job| job.run == run.run && job.host == host && !is_caller(job));
    }

    fn cluster(&self, program: &str, args: &[OsString]) -> Answer<Result<String, String>> {
        let args = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        Box::pin(super::cluster::command(self.clone(), program.to_owned(), args))
    }

    fn post(&self, id: &str, body: &str) -> Answer<Result<u16, String>> {
        let (world, id, body) = (self.clone(), id.to_owned(), body.to_owned());
        Box::pin(async move {
            world.pause(200).await;
            if world.fault(|it| it.answer) {
                return Ok(500);
            }
            world.receive(&id, &body);
            world.pause(200).await;
            if world.fault(|it| it.answer) { Err("no answer".into()) } else { Ok(200) }
        })
    }

    fn synced(&self, path: &Path) {
        self.state().files.synced(path);
    }
}

impl World {
    /// A receiver gets a message.
    fn receive(&self, id: &str, body: &str) {
        let changed = {
            let mut state = self.state();
            let message = state.received.entry(id.to_owned()).or_insert((0, body.to_owned()));
            message.0 += 1;
            message.1 != body
        };
        self.log(format!("message {id} arrives"));
        if changed {
            self.broken(format!("message {id} has two texts"));
        }
    }
}
