//! Profilers that hang after their program has ended.
//!
//! nsys 2022.4 often waits forever when it stops to sample the CPU. A profiler that works uses a
//! CPU, so one that uses none for a while, without a program to wait for, hangs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use llmprof_core::domain::ids::RunMark;
use nix::unistd::Pid;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{
    child::ProcessLimits,
    orphans::{marked, stat, targets},
};
use crate::runtime;

/// Default time without use of a CPU after which a profiler hangs.
pub const STALLED_AFTER: Duration = Duration::from_secs(20);
/// Time between two looks at its processes.
const PERIOD: Duration = Duration::from_millis(100);
/// Fields of `/proc/PID/stat` after the name with the times in user and kernel mode, ticks.
const TIMES: [usize; 2] = [11, 12];

/// Watches the processes of a run, and stops them if they hang.
pub struct StallWatch {
    done: Arc<AtomicBool>,
    hung: JoinHandle<Result<bool, JoinError>>,
}

impl StallWatch {
    /// Starts the watch; returns it with limits whose token stops a profiler that hangs.
    pub fn start(limits: &ProcessLimits, after: Duration) -> (Self, ProcessLimits) {
        let done = Arc::new(AtomicBool::new(false));
        let stop = limits.stop.child_token();
        let watched = ProcessLimits { stop: stop.clone(), ..limits.clone() };
        let (run, is_done) = (limits.run, Arc::clone(&done));
        let watch = move || watch(run, after, &is_done, &stop);
        (Self { done, hung: tokio::spawn(runtime::blocking(watch)) }, watched)
    }

    /// Ends the watch; returns whether the profiler hung.
    pub async fn stop(self) -> bool {
        self.done.store(true, Ordering::Relaxed);
        self.hung.await.ok().and_then(Result::ok).unwrap_or(false)
    }
}

fn watch(run: RunMark, after: Duration, done: &AtomicBool, stop: &CancellationToken) -> bool {
    let (mut last, mut since) = (None, Instant::now());
    while !done.load(Ordering::Relaxed) {
        let has_target = !targets(run).is_empty();
        let ticks: u64 = marked(run).into_iter().filter_map(ticks).sum();
        if has_target || last != Some(ticks) {
            (last, since) = (Some(ticks), Instant::now());
        } else if since.elapsed() >= after {
            stop.cancel();
            return true;
        }
        thread::sleep(PERIOD);
    }
    false
}

/// Time that a process has used of CPUs, ticks.
fn ticks(pid: Pid) -> Option<u64> {
    let stat = stat(pid)?;
    TIMES.iter().map(|at| stat.get(*at)?.parse::<u64>().ok()).sum()
}
