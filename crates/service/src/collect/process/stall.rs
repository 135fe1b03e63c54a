//! Profilers that hang after their program has ended.
//!
//! nsys 2022.4 often waits forever when it stops to sample the CPU, and meanwhile empties the
//! buffers of the kernel: with less than 1 % of a core, with a whole one, half of it in the kernel,
//! or with nearly a whole one in user mode. It writes nothing. A profiler that works computes,
//! reads or writes, and one that computes writes in the end.

use std::{
    fs,
    path::{Path, PathBuf},
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
    disk_quota::bytes_in,
    orphans::{marked, programs, scratch, stat},
    watch::tick_ns,
};
use crate::runtime;

/// Maximum times that a profiler takes after its program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallLimits {
    /// Without progress.
    pub idle: Duration,
    /// Without output, however busy, plus a second per MiB of raw data: nsys orders all
    /// events in memory before it writes them.
    pub busy: Duration,
}

impl StallLimits {
    /// The limits of a tool that also reads a file of this size outside its folder.
    pub fn with_file(self, bytes: u64) -> Self {
        Self { busy: self.busy + Duration::from_secs(bytes / BYTES_PER_S), ..self }
    }
}

impl Default for StallLimits {
    fn default() -> Self {
        Self { idle: Duration::from_secs(20), busy: Duration::from_secs(300) }
    }
}

/// An exceeded limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    Idle(Duration),
    Busy(Duration),
}

/// Time between two looks at its processes.
const PERIOD: Duration = Duration::from_millis(100);
/// Maximum time that counts between two looks.
const MAX_LOOK: Duration = Duration::from_secs(1);
/// Fields of `/proc/PID/stat` after the name with the times in user and kernel mode, ticks.
const TIMES: [usize; 2] = [11, 12];
/// Share of a core that a profiler which works takes, even on a busy machine.
const BUSY_SHARE: f64 = 0.02;
/// Share of the CPU time that one which spins is in the kernel, without a read or a write there.
const SPINNING_SHARE: f64 = 0.25;
/// Raw data that a profiler orders within a second at least.
const BYTES_PER_S: u64 = 1 << 20;
/// Minimum bytes that count as output.
const WRITTEN: u64 = 1 << 16;

/// Watches the processes of a run, and stops them if they hang.
pub struct StallWatch {
    done: Arc<AtomicBool>,
    ended: JoinHandle<Result<WatchedEnd, JoinError>>,
}

/// Result of a watch.
#[derive(Debug, Clone, Copy, Default)]
pub struct WatchedEnd {
    /// Limit that the profiler exceeded, if it hung.
    pub stall: Option<Stall>,
    /// Last time at which its program was running, if it was seen.
    pub target_seen: Option<Instant>,
}

impl StallWatch {
    /// Starts the watch of a profiler that writes into `folder`; returns it with process limits
    /// whose token stops a profiler that hangs.
    pub fn start(
        limits: &ProcessLimits,
        folder: &Path,
        stall: StallLimits,
    ) -> (Self, ProcessLimits) {
        let done = Arc::new(AtomicBool::new(false));
        let stop = limits.stop.child_token();
        let watched = ProcessLimits { stop: stop.clone(), ..limits.clone() };
        let (run, is_done) = (limits.run, Arc::clone(&done));
        let folders = [folder.to_owned(), scratch(run)];
        let watch = move || watch(run, &folders, stall, &is_done, &stop);
        (Self { done, ended: tokio::spawn(runtime::blocking(watch)) }, watched)
    }

    /// Ends the watch.
    pub async fn stop(self) -> WatchedEnd {
        self.done.store(true, Ordering::Relaxed);
        self.ended.await.ok().and_then(Result::ok).unwrap_or_default()
    }
}

fn watch(
    run: RunMark,
    folders: &[PathBuf],
    limits: StallLimits,
    done: &AtomicBool,
    stop: &CancellationToken,
) -> WatchedEnd {
    let (mut now, mut looked) = (Duration::ZERO, Instant::now());
    let (mut clock, mut target_seen) = (None, None);
    while !done.load(Ordering::Relaxed) {
        // An import is stopped while a pass measures, and this watch with it.
        now += looked.elapsed().min(MAX_LOOK);
        looked = Instant::now();
        if programs(run).is_empty() {
            let work = Work::of(run, folders);
            let clock = clock.get_or_insert_with(|| StallClock::start(work, now));
            if let Some(stall) = clock.check(work, now, limits) {
                stop.cancel();
                return WatchedEnd { stall: Some(stall), target_seen };
            }
        } else {
            (clock, target_seen) = (None, Some(Instant::now()));
        }
        thread::sleep(PERIOD);
    }
    WatchedEnd { stall: None, target_seen }
}

/// Last progress and last output of a profiler, each with its time.
#[derive(Debug, Clone, Copy)]
struct StallClock {
    progress: (Work, Duration),
    output: (Work, Duration),
}

impl StallClock {
    /// Starts both times `now`, when the program is not running.
    fn start(work: Work, now: Duration) -> Self {
        Self { progress: (work, now), output: (work, now) }
    }

    /// Returns the limit that the profiler exceeds, if any.
    fn check(&mut self, work: Work, now: Duration, limits: StallLimits) -> Option<Stall> {
        if work.is_progress_since(self.progress.0, limits.idle) {
            self.progress = (work, now);
        }
        if work.is_output_since(self.output.0) {
            self.output = (work, now);
        }
        if now.saturating_sub(self.progress.1) >= limits.idle {
            return Some(Stall::Idle(limits.idle));
        }
        let busy = limits.busy + Duration::from_secs(work.file_bytes / BYTES_PER_S);
        (now.saturating_sub(self.output.1) >= busy).then_some(Stall::Busy(busy))
    }
}

/// Work of the processes of a run so far.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Work {
    /// Time in user mode.
    user_ticks: u64,
    kernel_ticks: u64,
    /// Bytes sent to disks.
    written: u64,
    /// Size of its files, on a disk or in memory.
    file_bytes: u64,
    /// Calls that read or write; `None` if some are not known.
    io_calls: Option<u64>,
}

impl Work {
    fn of(run: RunMark, folders: &[PathBuf]) -> Self {
        let file_bytes = folders.iter().map(|folder| bytes_in(folder)).sum();
        let none =
            Self { user_ticks: 0, kernel_ticks: 0, written: 0, file_bytes, io_calls: Some(0) };
        marked(run).into_iter().filter_map(Self::of_process).fold(none, |sum, it| Self {
            user_ticks: sum.user_ticks + it.user_ticks,
            kernel_ticks: sum.kernel_ticks + it.kernel_ticks,
            written: sum.written + it.written,
            file_bytes: sum.file_bytes,
            io_calls: sum.io_calls.zip(it.io_calls).map(|(sum, calls)| sum + calls),
        })
    }

    /// Work of one process, without its files; `None` if it has ended.
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
            file_bytes: 0,
            io_calls: count("syscr:").zip(count("syscw:")).map(|(reads, writes)| reads + writes),
        })
    }

    /// True if this is more than a profiler that hangs does in `after`, or less: then a process
    /// has ended.
    fn is_progress_since(self, before: Self, after: Duration) -> bool {
        let (Some(user), Some(kernel)) = (
            self.user_ticks.checked_sub(before.user_ticks),
            self.kernel_ticks.checked_sub(before.kernel_ticks),
        ) else {
            return true;
        };
        let tick_ns = tick_ns().unwrap_or(10_000_000) as f64;
        let enough = (BUSY_SHARE * after.as_nanos() as f64 / tick_ns).max(1.0);
        let ticks = (user + kernel) as f64;
        let spins = self.io_calls.is_some()
            && self.io_calls == before.io_calls
            && kernel as f64 >= SPINNING_SHARE * ticks;
        self.is_output_since(before) || ticks >= enough && !spins
    }

    /// True if it has written since, or a process or file of it has gone.
    fn is_output_since(self, before: Self) -> bool {
        let written = self.written.checked_sub(before.written);
        written.is_none_or(|bytes| bytes >= WRITTEN)
            || self.file_bytes.abs_diff(before.file_bytes) >= WRITTEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StallLimits =
        StallLimits { idle: Duration::from_secs(20), busy: Duration::from_secs(300) };

    fn work(user_ticks: u64, kernel_ticks: u64, written: u64, io_calls: u64) -> Work {
        Work { user_ticks, kernel_ticks, written, file_bytes: 0, io_calls: Some(io_calls) }
    }

    /// Those that hang are of nsys 2022.4: one next to six busy loops, and one that spins.
    #[test]
    fn emptying_buffers_is_no_progress_but_computing_writing_and_ending_is() {
        let before = work(10, 8, 35_655_680, 900);
        let is_progress = |now: Work| now.is_progress_since(before, LIMITS.idle);
        assert!(!is_progress(work(18, 15, 35_655_680, 900)));
        assert!(is_progress(work(80, 18, 35_655_680, 900)));
        assert!(is_progress(work(11, 8, 35_655_680 + WRITTEN, 900)));
        assert!(is_progress(work(1, 1, 35_655_680, 900)));
        assert!(is_progress(work(12, 8, 12_288, 900)));

        let spinning = work(1_136, 1_207, 9_117_696, 6_858);
        let later = work(1_393, 1_461, 9_117_696, 6_858);
        assert!(!later.is_progress_since(spinning, LIMITS.idle));
        assert!(work(1_393, 1_461, 9_117_696, 6_859).is_progress_since(spinning, LIMITS.idle));
        let unknown = |work: Work| Work { io_calls: None, ..work };
        assert!(unknown(later).is_progress_since(unknown(spinning), LIMITS.idle));
    }

    /// Second at which a profiler that does `work` in each second exceeds a limit, within an hour.
    fn stalls_at(work: impl Fn(u64) -> Work) -> Option<(u64, Stall)> {
        let mut clock = StallClock::start(work(0), Duration::ZERO);
        (1..3_600).find_map(|second| {
            let now = Duration::from_secs(second);
            Some((second, clock.check(work(second), now, LIMITS)?))
        })
    }

    #[test]
    fn a_profiler_without_output_has_stalled_however_busy_and_one_that_writes_late_has_not() {
        let (idle, busy) = (Stall::Idle(LIMITS.idle), Stall::Busy(LIMITS.busy));
        assert_eq!(stalls_at(|_| work(0, 0, 0, 0)), Some((20, idle)));
        // 90 % of a core in user mode, with calls that read nothing.
        assert_eq!(stalls_at(|s| work(90 * s, s, 0, s)), Some((300, busy)));
        // It computes for four minutes before each output.
        assert_eq!(stalls_at(|s| work(90 * s, s, s / 240 * WRITTEN, s)), None);
        let in_memory = |s: u64| Work { file_bytes: s / 240 * WRITTEN, ..work(90 * s, s, 0, s) };
        assert_eq!(stalls_at(in_memory), None);
        // A few bytes are a log, not a report.
        assert_eq!(stalls_at(|s| work(90 * s, s, s * 80, s)), Some((300, busy)));
    }

    #[test]
    fn a_busy_profiler_has_a_second_more_per_mebibyte_of_raw_data_and_an_idle_one_has_not() {
        let mib = |mib: u64, work: Work| Work { file_bytes: mib << 20, ..work };
        for (raw, seconds) in [(0, 300), (1, 301), (500, 800)] {
            let busy = stalls_at(|s| mib(raw, work(90 * s, s, 0, s)));
            let limit = Stall::Busy(Duration::from_secs(seconds));
            assert_eq!(busy, Some((seconds, limit)), "{raw}");
            let idle = stalls_at(|_| mib(raw, work(0, 0, 0, 0)));
            assert_eq!(idle, Some((20, Stall::Idle(LIMITS.idle))), "{raw}");
        }
        // Less than a mebibyte adds nothing.
        let logs = stalls_at(|s| Work { file_bytes: 65_536, ..work(90 * s, s, 0, s) });
        assert_eq!(logs, Some((300, Stall::Busy(LIMITS.busy))));
    }

    #[test]
    fn the_limits_count_from_the_end_of_the_program() {
        let idle = work(9, 0, 0, 0);
        let mut clock = StallClock::start(idle, Duration::from_secs(600));
        assert_eq!(clock.check(idle, Duration::from_secs(619), LIMITS), None);
        let stall = clock.check(idle, Duration::from_secs(620), LIMITS);
        assert_eq!(stall, Some(Stall::Idle(LIMITS.idle)));
    }
}
