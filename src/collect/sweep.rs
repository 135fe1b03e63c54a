//! Ends what a run left running.
//!
//! Every process of a run carries the run's id in its environment, inherited by all that it starts. So a daemon that left its
//! process group, or a child whose service was killed, is still found under `/proc` and ended. Out of reach is only a process
//! that both left the group and dropped its environment.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::run::RunId;

/// The variable that marks a process as part of a run.
pub const MARKER: &str = "LLMPROF_RUN_ID";

/// What the process that is profiled carries besides, and all that it starts; its profiler does not.
pub const TARGET: (&str, &str) = ("LLMPROF_TARGET", "1");

/// How often a sweep looks again for processes that were just being started, or that have not quite ended.
const PASSES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// Folder for the temporary files of a run's tools: short, because they bind sockets in it, whose paths have at most 107 bytes.
pub fn scratch(run: RunId) -> PathBuf {
    std::env::temp_dir().join(format!("llmprof-{}", run.0.simple()))
}

/// Makes that folder, empty and closed to other users.
pub fn make_scratch(run: RunId) -> io::Result<PathBuf> {
    let path = scratch(run);
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => DirBuilder::new().mode(0o700).create(&path)?, // fails on a link that someone puts there
    }
    Ok(path)
}

/// Processes that carry the mark of `run`, the caller aside.
pub fn marked(run: RunId) -> Vec<Pid> {
    let mark = format!("{MARKER}={run}");
    let own = Pid::this();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
        .filter(|&pid| pid != own && carries(pid, mark.as_bytes()))
        .collect()
}

/// Processes of `run` that are profiled, or were started by one that is.
pub fn targets(run: RunId) -> Vec<Pid> {
    let mark = format!("{}={}", TARGET.0, TARGET.1);
    marked(run).into_iter().filter(|pid| carries(*pid, mark.as_bytes())).collect()
}

/// Says whether a process belongs to a run, of whichever service.
pub fn is_ours(pid: u32) -> bool {
    let mark = format!("{MARKER}=");
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|it| it.split(|&b| b == 0).any(|entry| entry.starts_with(mark.as_bytes())))
}

fn carries(pid: Pid, mark: &[u8]) -> bool {
    // Unreadable: another user's, or ended since; a zombie's is empty.
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| environ.split(|&b| b == 0).any(|entry| entry == mark))
}

/// Sends `signal` to every process of `run`, and says to how many.
pub fn signal(run: RunId, signal: Signal) -> usize {
    let found = marked(run);
    for &pid in &found {
        let _ = kill(pid, signal); // it may have ended by itself
    }
    found.len()
}

/// Ends every process that `run` left behind, removes its temporary files, and says how many processes there were.
///
/// Blocks until they are gone, two seconds at most. To be called when a run's child has ended, and for each run that a service
/// finds unfinished when it starts.
pub fn sweep(run: RunId) -> usize {
    let first = signal(run, Signal::SIGKILL);
    let mut left = first;
    for _ in 0..PASSES {
        if left == 0 {
            break;
        }
        thread::sleep(PAUSE);
        left = signal(run, Signal::SIGKILL);
    }
    if left > 0 {
        tracing::warn!(%run, left, "processes of a run do not end");
    }
    if let Err(error) = fs::remove_dir_all(scratch(run))
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%run, %error, "cannot remove a run's temporary files");
    }
    first
}
