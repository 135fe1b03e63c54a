//! Profilers that hang after their program has ended.
//!
//! nsys 2022.4 often waits forever when it stops to sample the CPU, and meanwhile empties the
//! buffers of the kernel, which takes less than 1 % of a core and writes nothing. One that works
//! computes or writes.

use std::{
    fs,
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
    watch::tick_ns,
};
use crate::runtime;

/// Default time without progress after which a profiler hangs.
pub const STALLED_AFTER: Duration = Duration::from_secs(20);
/// Time between two looks at its processes.
const PERIOD: Duration = Duration::from_millis(100);
/// Fields of `/proc/PID/stat` after the name with the times in user and kernel mode, ticks.
const TIMES: [usize; 2] = [11, 12];
/// Share of a core that a profiler which works takes, even on a busy machine.
const BUSY_SHARE: f64 = 0.02;
/// Bytes that one which waits for a disk has written meanwhile.
const WRITTEN: u64 = 1 << 16;

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
    let (mut last, mut since) = (Work::of(run), Instant::now());
    while !done.load(Ordering::Relaxed) {
        let work = Work::of(run);
        if !targets(run).is_empty() || work.is_progress_since(last, after) {
            (last, since) = (work, Instant::now());
        } else if since.elapsed() >= after {
            stop.cancel();
            return true;
        }
        thread::sleep(PERIOD);
    }
    false
}

/// CPU time and writes of the processes of a run so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Work {
    ticks: u64,
    written: u64,
}

impl Work {
    fn of(run: RunMark) -> Self {
        let each = marked(run)
            .into_iter()
            .map(|pid| Self { ticks: ticks(pid).unwrap_or(0), written: written(pid).unwrap_or(0) });
        each.fold(Self::default(), |sum, it| Self {
            ticks: sum.ticks + it.ticks,
            written: sum.written + it.written,
        })
    }

    /// True if this is more than a profiler that hangs does in `after`, or less: then a process
    /// has ended.
    fn is_progress_since(self, before: Self, after: Duration) -> bool {
        let tick_ns = tick_ns().unwrap_or(10_000_000) as f64;
        let enough = (BUSY_SHARE * after.as_nanos() as f64 / tick_ns).max(1.0);
        self.ticks < before.ticks
            || (self.ticks - before.ticks) as f64 >= enough
            || self.written < before.written
            || self.written - before.written >= WRITTEN
    }
}

/// Time that a process has used of CPUs, ticks.
fn ticks(pid: Pid) -> Option<u64> {
    let stat = stat(pid)?;
    TIMES.iter().map(|at| stat.get(*at)?.parse::<u64>().ok()).sum()
}

/// Bytes that a process has sent to disks; `None` if it may not be read.
fn written(pid: Pid) -> Option<u64> {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first are of an nsys that hung for 20 s next to six busy loops.
    #[test]
    fn emptying_buffers_is_no_progress_but_computing_writing_and_ending_is() {
        let before = Work { ticks: 18, written: 35_655_680 };
        let is_progress =
            |ticks, written| Work { ticks, written }.is_progress_since(before, STALLED_AFTER);
        assert!(!is_progress(33, 35_655_680));
        assert!(is_progress(18 + 80, 35_655_680));
        assert!(is_progress(19, 35_655_680 + WRITTEN));
        assert!(is_progress(2, 35_655_680));
        assert!(is_progress(20, 12_288));
    }
}
