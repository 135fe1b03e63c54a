//! Profilers that hang after their program has ended.
//!
//! nsys 2022.4 often waits forever when it stops to sample the CPU, and meanwhile empties the
//! buffers of the kernel: with less than 1 % of a core, or with a whole one, half of it in the
//! kernel. It writes nothing. One that works computes, reads or writes.

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
/// Share of the CPU time that one which spins is in the kernel, without a read or a write there.
const SPINNING_SHARE: f64 = 0.25;
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

/// Work of the processes of a run so far.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Work {
    /// Time in user mode.
    user_ticks: u64,
    kernel_ticks: u64,
    /// Bytes sent to disks.
    written: u64,
    /// Calls that read or write; `None` if some are not known.
    io_calls: Option<u64>,
}

impl Work {
    fn of(run: RunMark) -> Self {
        let none = Self { user_ticks: 0, kernel_ticks: 0, written: 0, io_calls: Some(0) };
        marked(run).into_iter().filter_map(Self::of_process).fold(none, |sum, it| Self {
            user_ticks: sum.user_ticks + it.user_ticks,
            kernel_ticks: sum.kernel_ticks + it.kernel_ticks,
            written: sum.written + it.written,
            io_calls: sum.io_calls.zip(it.io_calls).map(|(sum, calls)| sum + calls),
        })
    }

    /// `None` if the process has ended.
    fn of_process(pid: Pid) -> Option<Self> {
        let stat = stat(pid)?;
        let ticks = |at: usize| stat.get(at)?.parse().ok();
        let [user_ticks, kernel_ticks] = TIMES.map(ticks);
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let count = |name: &str| -> Option<u64> {
            io.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
        };
        Some(Self {
            user_ticks: user_ticks?,
            kernel_ticks: kernel_ticks?,
            written: count("write_bytes:").unwrap_or(0),
            io_calls: count("syscr:").zip(count("syscw:")).map(|(reads, writes)| reads + writes),
        })
    }

    /// True if this is more than a profiler that hangs does in `after`, or less: then a process
    /// has ended.
    fn is_progress_since(self, before: Self, after: Duration) -> bool {
        let grown = |now: u64, before: u64| now.checked_sub(before);
        let (Some(user), Some(kernel), Some(written)) = (
            grown(self.user_ticks, before.user_ticks),
            grown(self.kernel_ticks, before.kernel_ticks),
            grown(self.written, before.written),
        ) else {
            return true;
        };
        let tick_ns = tick_ns().unwrap_or(10_000_000) as f64;
        let enough = (BUSY_SHARE * after.as_nanos() as f64 / tick_ns).max(1.0);
        let ticks = (user + kernel) as f64;
        let spins = self.io_calls.is_some()
            && self.io_calls == before.io_calls
            && kernel as f64 >= SPINNING_SHARE * ticks;
        written >= WRITTEN || ticks >= enough && !spins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that hang are of nsys 2022.4: one next to six busy loops, and one that spins.
    #[test]
    fn emptying_buffers_is_no_progress_but_computing_writing_and_ending_is() {
        let of = |user_ticks, kernel_ticks, written, io_calls| Work {
            user_ticks,
            kernel_ticks,
            written,
            io_calls: Some(io_calls),
        };
        let before = of(10, 8, 35_655_680, 900);
        let is_progress = |now: Work| now.is_progress_since(before, STALLED_AFTER);
        assert!(!is_progress(of(18, 15, 35_655_680, 900)));
        assert!(is_progress(of(80, 18, 35_655_680, 900)));
        assert!(is_progress(of(11, 8, 35_655_680 + WRITTEN, 900)));
        assert!(is_progress(of(1, 1, 35_655_680, 900)));
        assert!(is_progress(of(12, 8, 12_288, 900)));

        let spinning = of(1_136, 1_207, 9_117_696, 6_858);
        let later = of(1_393, 1_461, 9_117_696, 6_858);
        assert!(!later.is_progress_since(spinning, STALLED_AFTER));
        assert!(of(1_393, 1_461, 9_117_696, 6_859).is_progress_since(spinning, STALLED_AFTER));
        let unknown = |work: Work| Work { io_calls: None, ..work };
        assert!(unknown(later).is_progress_since(unknown(spinning), STALLED_AFTER));
    }
}
