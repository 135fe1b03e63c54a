//! Runtime of a profiled program without the start and end of its profiler.
//!
//! The start time is the kernel's, to a hundredth of a second; the end is polled every few
//! milliseconds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use llmprof_core::domain::ids::RunMark;
use nix::{
    time::{ClockId, clock_gettime},
    unistd::{Pid, SysconfVar, sysconf},
};
use tokio::task::{JoinError, JoinHandle};

use crate::{
    collect::process::orphans::{stat, targets},
    runtime,
};

/// Time between two searches for the program.
const SEARCH_PERIOD: Duration = Duration::from_millis(20);
/// Time between two checks for its end.
const END_PERIOD: Duration = Duration::from_millis(2);

/// Watches the first profiled process of a run.
pub struct RuntimeWatch {
    done: Arc<AtomicBool>,
    found: JoinHandle<Result<Option<i64>, JoinError>>,
}

impl RuntimeWatch {
    pub fn start(run: RunMark) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&done);
        Self { done, found: tokio::spawn(runtime::blocking(move || watch(run, &stop))) }
    }

    /// Returns its runtime, nanoseconds; `None` if it was never seen or has not ended.
    pub async fn stop(self) -> Option<i64> {
        self.done.store(true, Ordering::Relaxed);
        self.found.await.ok().and_then(Result::ok).flatten()
    }
}

fn watch(run: RunMark, done: &AtomicBool) -> Option<i64> {
    let (pid, started) = loop {
        let first = targets(run)
            .into_iter()
            .filter_map(|pid| Some((pid, start_ticks(pid)?)))
            .min_by_key(|(pid, started)| (*started, *pid));
        match first {
            Some(first) => break first,
            None if done.load(Ordering::Relaxed) => return None,
            None => thread::sleep(SEARCH_PERIOD),
        }
    };
    // Another process with this id has another start time.
    while start_ticks(pid) == Some(started) {
        if done.load(Ordering::Relaxed) {
            return None;
        }
        thread::sleep(END_PERIOD);
    }
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
    let now_ns = now.tv_sec() * 1_000_000_000 + now.tv_nsec();
    Some(now_ns - started * tick_ns()?).filter(|ns| *ns > 0)
}

/// Nanoseconds of a tick, the unit of times in `/proc/PID/stat`.
pub(super) fn tick_ns() -> Option<i64> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().filter(|ticks| *ticks > 0)?;
    Some(1_000_000_000 / ticks)
}

/// Start time of a process, ticks since boot; `None` if it has ended.
fn start_ticks(pid: Pid) -> Option<i64> {
    let fields = stat(pid)?;
    (fields.first()? != "Z").then(|| fields.get(19)?.parse().ok())?
}
