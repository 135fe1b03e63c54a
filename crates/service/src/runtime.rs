//! Tasks, blocking work, time of day and foreign processes of a service.
//!
//! In a service these are tokio's and the system's. A simulator replaces them for its thread, so
//! that the same seed gives the same events: every task belongs to a [`SimulatedProcess`], which
//! can be killed between any two polls and within a database call; blocking work and database calls
//! complete within the poll that starts them.

pub mod work;

use std::{
    cell::RefCell,
    ffi::OsString,
    io,
    path::Path,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use llmprof_core::domain::ids::RunMark;
use tokio::{sync::watch, task::JoinError};
use tokio_util::sync::CancellationToken;

use self::work::SlicedWork;

/// Longest time for which a kill within a database call waits for the thread of the tasks.
const MAX_UNSEEN: Duration = Duration::from_secs(5);

/// Answer that a simulation gives later.
pub type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The parts of the system that a simulator replaces on its thread.
pub trait Simulation {
    /// The time of day.
    fn now(&self) -> Timestamp;
    /// A time of day that never jumps.
    fn steady(&self) -> Timestamp;
    /// Delay before a database call or blocking work.
    fn delay(&self) -> Duration;
    /// Starts the job of a run in its folder, with this command line.
    fn start_job(&self, args: &[OsString], dir: &Path, run: RunMark) -> io::Result<SimulatedJob>;
    /// Starts the server of a session.
    fn start_server(&self, session: RunMark) -> io::Result<SimulatedJob>;
    /// Ends the processes of a run or session.
    fn end_orphans(&self, run: RunMark);
    /// Output of a command of a cluster; an error is its message.
    fn cluster(&self, program: &str, args: &[OsString]) -> Answer<Result<String, String>>;
    /// Status of the response to a message; an error is the reason why there is none.
    fn post(&self, id: &str, body: &str) -> Answer<Result<u16, String>>;
    /// Called when a file or folder was made durable.
    fn synced(&self, path: &Path);
}

/// A job, or the server of a session, in a simulation.
#[derive(Debug, Clone)]
pub struct SimulatedJob {
    /// Requests that it ends.
    pub stop: CancellationToken,
    /// Its exit code; negative: a signal.
    pub end: watch::Receiver<Option<i32>>,
}

impl SimulatedJob {
    /// Waits for its end.
    pub async fn wait(&mut self) -> i32 {
        // Without a sender its process is gone.
        self.end.wait_for(Option::is_some).await.ok().and_then(|end| *end).unwrap_or(-9)
    }
}

thread_local! {
    static SIMULATION: RefCell<Option<Rc<dyn Simulation>>> = const { RefCell::new(None) };
    static PROCESS: RefCell<Option<Arc<SimulatedProcess>>> = const { RefCell::new(None) };
}

/// The simulated process to which the task under way belongs.
pub fn process() -> Option<Arc<SimulatedProcess>> {
    PROCESS.with_borrow(Clone::clone)
}

/// Replaces the system by a simulation for this thread; `None` restores it.
pub fn simulate(simulation: Option<Rc<dyn Simulation>>) {
    SIMULATION.set(simulation);
}

/// The answer of this thread's simulation; `None` in a service.
pub fn simulated<T>(ask: impl FnOnce(&dyn Simulation) -> T) -> Option<T> {
    let simulation = SIMULATION.with_borrow(Clone::clone);
    simulation.map(|it| ask(&*it))
}

/// True on the thread of a simulator.
pub fn is_simulated() -> bool {
    SIMULATION.with_borrow(Option::is_some)
}

/// The time of day.
pub fn now() -> Timestamp {
    simulated(|it| it.now()).unwrap_or_else(Timestamp::now)
}

/// The time of day when the process started, plus the time elapsed since by a monotonic clock.
pub fn steady() -> Timestamp {
    static STARTED: std::sync::LazyLock<(Timestamp, Instant)> =
        std::sync::LazyLock::new(|| (Timestamp::now(), Instant::now()));
    let system = || STARTED.0.checked_add(STARTED.1.elapsed()).unwrap_or(STARTED.0);
    simulated(|it| it.steady()).unwrap_or_else(system)
}

/// Executes `work` of bounded size on a thread where it may block: milliseconds, at most a second
/// on a slow disk. [`stoppable`] is for any other work.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if !is_simulated() {
        return tokio::task::spawn_blocking(work).await;
    }
    delay().await;
    let done = work();
    delay().await;
    Ok(done)
}

/// Executes `act`, whose size is unbounded, on a thread where it may block. It ends within a slice
/// once `work` is stopped or the caller is dropped.
pub async fn stoppable<T: Send + 'static>(
    work: &SlicedWork,
    act: impl FnOnce(&SlicedWork) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (work, stop) = work.child();
    let _stops_with_caller = stop.drop_guard();
    blocking(move || act(&work)).await.map_err(io::Error::other)?
}

/// Waits as the simulation wants; not at all in a service.
pub async fn delay() {
    if let Some(delay) = simulated(|it| it.delay()).filter(|delay| !delay.is_zero()) {
        tokio::time::sleep(delay).await;
    }
}

/// A task of a service, or a future that uses the database and is polled next to others. Each is
/// wrapped by this.
pub fn task<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let process = process();
    async move {
        match process {
            None => future.await,
            Some(process) => process.run(future).await,
        }
    }
}

/// A database call, which a simulated process completes within a poll.
#[derive(Debug)]
pub struct DatabaseCall(Option<Arc<SimulatedProcess>>);

impl DatabaseCall {
    pub fn start() -> Self {
        let process = process();
        if let Some(process) = &process {
            process.calls.fetch_add(1, Ordering::Relaxed);
        }
        Self(process)
    }
}

impl Drop for DatabaseCall {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            process.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A simulated process: tasks that end together.
#[derive(Debug, Default)]
pub struct SimulatedProcess {
    killed: AtomicBool,
    /// Database calls under way.
    calls: AtomicUsize,
    /// Wakers of its tasks.
    wakers: Mutex<Vec<Option<Waker>>>,
    /// Polls that may wait for a database call, the innermost last.
    polls: Mutex<Vec<Arc<Parked>>>,
    /// True once the thread of the tasks has seen a kill within a call.
    seen: Mutex<bool>,
    is_seen: Condvar,
}

impl SimulatedProcess {
    /// Ends all tasks before their next poll, on their thread.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::SeqCst);
        let wakers: Vec<Waker> = self.wakers().iter().flatten().cloned().collect();
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    /// The same within a database call, on the thread of its connection. Returns once the thread of
    /// the tasks has seen the kill, so that no task acts on the answer to the call.
    pub fn kill_in_call(&self) {
        self.killed.store(true, Ordering::SeqCst);
        lock(&self.polls).iter().for_each(|it| it.wake());
        let seen = self.is_seen.wait_timeout_while(lock(&self.seen), MAX_UNSEEN, |seen| !*seen);
        drop(seen);
    }

    /// True once it is killed, which lets the call within which it was killed end.
    fn sees_kill(&self) -> bool {
        let is_killed = self.is_killed();
        if is_killed {
            *lock(&self.seen) = true;
            self.is_seen.notify_all();
        }
        is_killed
    }

    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Option<Waker>>> {
        lock(&self.wakers)
    }

    /// Executes a task of this process; it never ends once the process is killed.
    pub async fn run<F: Future>(self: Arc<Self>, future: F) -> F::Output {
        let mut future = Some(Box::pin(future));
        let slot = {
            let mut wakers = self.wakers();
            wakers.push(None);
            wakers.len() - 1
        };
        let parked = Arc::new(Parked { thread: thread::current(), woken: AtomicBool::default() });
        std::future::poll_fn(move |cx| {
            self.wakers()[slot] = Some(cx.waker().clone());
            let _entered = Entered::into(&self);
            let polled = match &mut future {
                Some(future) if !self.is_killed() => self.poll(future.as_mut(), &parked, cx),
                _ => Poll::Pending,
            };
            if self.is_killed() {
                if future.take().is_some() {
                    self.kill();
                }
                return Poll::Pending;
            }
            if polled.is_ready() {
                self.wakers()[slot] = None;
            }
            polled
        })
        .await
    }

    /// Polls until neither progress nor a database call is under way.
    fn poll<F: Future>(
        &self,
        mut future: Pin<&mut F>,
        parked: &Arc<Parked>,
        cx: &Context<'_>,
    ) -> Poll<F::Output> {
        let waker =
            Waker::from(Arc::new(Both { parked: Arc::clone(parked), task: cx.waker().clone() }));
        let _poll = BlockingPoll::enter(self, parked);
        loop {
            parked.woken.store(false, Ordering::SeqCst);
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            if polled.is_ready() || self.calls.load(Ordering::Relaxed) == 0 {
                return polled;
            }
            while !parked.woken.load(Ordering::SeqCst) && !self.is_killed() {
                thread::park();
            }
            if self.sees_kill() {
                return Poll::Pending;
            }
        }
    }
}

/// A poll within which a database call may kill the process.
struct BlockingPoll<'a>(&'a SimulatedProcess);

impl<'a> BlockingPoll<'a> {
    fn enter(process: &'a SimulatedProcess, parked: &Arc<Parked>) -> Self {
        lock(&process.polls).push(Arc::clone(parked));
        Self(process)
    }
}

impl Drop for BlockingPoll<'_> {
    fn drop(&mut self) {
        self.0.sees_kill();
        lock(&self.0.polls).pop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a process the current one of this thread, until it is dropped.
struct Entered(Option<Arc<SimulatedProcess>>);

impl Entered {
    fn into(process: &Arc<SimulatedProcess>) -> Self {
        Self(PROCESS.replace(Some(Arc::clone(process))))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        PROCESS.set(self.0.take());
    }
}

/// The thread of a simulation, waiting for a database call.
#[derive(Debug)]
struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Parked {
    fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Wakes a task, or the thread blocked by its database call.
struct Both {
    parked: Arc<Parked>,
    task: Waker,
}

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        // Another thread is one of a database connection, for whose call the thread is parked.
        if thread::current().id() == self.parked.thread.id() {
            self.task.wake_by_ref();
        } else {
            self.parked.wake();
        }
    }
}
