//! Orphans: processes of a run that are still running after their child has ended.
//!
//! Every process of a run inherits the ids of the run and of the data folder in its environment. A
//! daemon that left its process group, or a child of a killed service, is therefore found under
//! `/proc` and ended.
//!
//! A process that left the group and cleared its environment is found by its parent. Each child is
//! the subreaper of its descendants, and the service is the subreaper of its children: a process
//! that the service has as a child and did not start is a leftover of a child that has ended. Such
//! a process of a killed service is out of reach.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io, iter,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use llmprof_core::domain::ids::RunMark;
use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, kill},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

use crate::{
    artifact::{folder::remove_tree, temporary},
    config::environment,
    runtime::{self, work::SlicedWork},
};

/// Variable that marks the processes of a run, with its id.
pub const MARKER: &str = "LLMPROF_RUN_ID";

/// Variable that marks the processes of all runs of a data folder, with its id.
pub const FOLDER_MARKER: &str = "LLMPROF_FOLDER_ID";

/// Variable that marks the profiled process and its descendants, but not the profiler.
pub const TARGET: (&str, &str) = ("LLMPROF_TARGET", "1");

/// Number of searches for processes that were just started or have not ended yet.
const SEARCHES: u32 = 200;
/// Ancestors of a process that are looked at: parents that end meanwhile could form a circle.
const MAX_ANCESTORS: usize = 64;
const PAUSE: Duration = Duration::from_millis(10);
/// Digits of the data folder's id in the name of a folder for temporary files.
const FOLDER_DIGITS: usize = 8;

/// True if this process ends the orphans of its children.
static ADOPTS: AtomicBool = AtomicBool::new(false);
/// Processes that this process started and still waits for.
static STARTED: Mutex<BTreeSet<Pid>> = Mutex::new(BTreeSet::new());

/// Makes this process the parent of its children's orphans, which are ended with a run. Only for a
/// program that starts all of its children through this module.
pub fn adopt_orphans() -> Result<(), Errno> {
    prctl::set_child_subreaper(true)?;
    ADOPTS.store(true, Ordering::Relaxed);
    Ok(())
}

/// The started processes, locked: none is started meanwhile.
pub(super) fn started() -> MutexGuard<'static, BTreeSet<Pid>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that this process started, until the value is dropped.
#[derive(Debug)]
pub(in crate::collect) struct StartedProcess(pub Pid);

impl Drop for StartedProcess {
    fn drop(&mut self) {
        started().remove(&self.0);
    }
}

/// Folder for temporary files of a run's tools. Its path is short, because tools bind sockets in it
/// and their paths are limited to 107 bytes.
pub fn scratch(of: impl Into<RunMark>) -> PathBuf {
    let RunMark { folder, run } = of.into();
    let folder = folder.0.simple().to_string();
    let name = format!("{}{}.{}", temporary::PREFIX, &folder[..FOLDER_DIGITS], run.0.simple());
    environment::temp_dir().join(name)
}

/// Creates that folder, empty and closed to other users. It is in use while the file is open.
pub fn make_scratch(of: impl Into<RunMark>) -> io::Result<(PathBuf, File)> {
    let path = scratch(of);
    remove_tree(&path, &SlicedWork::default())?;
    temporary::create_folder(&path).map(|lock| (path, lock))
}

/// Ids of all processes.
fn processes() -> impl Iterator<Item = Pid> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
}

/// Processes with this mark, except the caller.
pub fn marked(of: impl Into<RunMark>) -> Vec<Pid> {
    with_entries(&entries(&variables(of)))
}

/// The variables of a process with this mark, with their values.
pub fn variables(of: impl Into<RunMark>) -> [(&'static str, String); 2] {
    let RunMark { folder, run } = of.into();
    [(MARKER, run.to_string()), (FOLDER_MARKER, folder.0.to_string())]
}

/// Variables as they are in an environment.
fn entries(variables: &[(&str, String)]) -> Vec<String> {
    variables.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// Processes with all these variables, except the caller.
fn with_entries(wanted: &[String]) -> Vec<Pid> {
    let own = Pid::this();
    processes().filter(|&pid| pid != own && has_entries(pid, wanted)).collect()
}

/// Fields of `/proc/PID/stat` after the name, which is in brackets and may contain any character:
/// state, parent and others. `None` if the process was reaped.
pub(super) fn stat(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// True if the process was reaped or is a zombie: its children have another parent.
fn has_ended(pid: Pid) -> bool {
    stat(pid).is_none_or(|stat| stat.first().is_none_or(|state| state == "Z"))
}

/// Ends the children of this process that it did not start, unless they have the mark of another
/// run. Returns the number of those that were alive.
fn end_adopted(run: RunMark) -> usize {
    if !ADOPTS.load(Ordering::Relaxed) {
        return 0;
    }
    let (own, started) = (Pid::this().to_string(), started());
    let mark = entries(&variables(run));
    let mut alive = 0;
    for pid in processes().filter(|pid| !started.contains(pid)) {
        let Some(stat) = stat(pid).filter(|stat| stat.get(1) == Some(&own)) else { continue };
        if stat[0] == "Z" {
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG)); // it may be reaped already
        } else if !is_ours(pid.as_raw().unsigned_abs()) || has_entries(pid, &mark) {
            let _ = kill(pid, Signal::SIGKILL); // it may have ended
            alive += 1;
        }
    }
    alive
}

/// Profiled processes of a run and their descendants.
pub fn targets(of: impl Into<RunMark>) -> Vec<Pid> {
    let [run, folder] = variables(of);
    with_entries(&entries(&[run, folder, (TARGET.0, TARGET.1.to_owned())]))
}

/// Processes of the program that a profiler runs: its targets; if there are none, processes without
/// a mark that a process of the run has started. `env -i` clears the environment with the mark, and
/// a program that writes its title overwrites it.
pub fn programs(of: RunMark) -> Vec<Pid> {
    let found = targets(of);
    if !found.is_empty() {
        return found;
    }
    let mark = entries(&variables(of));
    let marked: BTreeSet<Pid> = with_entries(&mark).into_iter().collect();
    let parent = |pid: Pid| Some((pid, Pid::from_raw(stat(pid)?.get(1)?.parse().ok()?)));
    let parents: BTreeMap<Pid, Pid> = processes().filter_map(parent).collect();
    let is_started = |pid: &Pid| {
        let ancestors = iter::successors(parents.get(pid), |it| parents.get(it));
        !marked.contains(pid) && ancestors.take(MAX_ANCESTORS).any(|it| marked.contains(it))
    };
    // It may have been started, replaced its program or ended since the first look.
    let is_unmarked = |pid: &Pid| !has_entries(*pid, &mark) && !has_ended(*pid);
    parents.keys().copied().filter(|pid| is_started(pid) && is_unmarked(pid)).collect()
}

/// True if a process belongs to a run of any service.
pub fn is_ours(pid: u32) -> bool {
    let mark = format!("{MARKER}=");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|it| it.split(|&b| b == 0).any(|entry| entry.starts_with(mark.as_bytes())))
}

fn has_entries(pid: Pid, wanted: &[String]) -> bool {
    // Unreadable for other users and ended processes; empty for a zombie.
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
        let has = |wanted: &[u8]| environ.split(|&b| b == 0).any(|entry| entry == wanted);
        wanted.iter().all(|entry| has(entry.as_bytes()))
    })
}

/// Kills every process of a run and returns their number.
fn kill_marked(of: RunMark) -> usize {
    let found = marked(of);
    for &pid in &found {
        let _ = kill(pid, Signal::SIGKILL); // it may have ended
    }
    found.len()
}

/// Ends every remaining process of a run, removes its temporary files, and returns the number of
/// processes.
///
/// Blocks until they have ended, at most two seconds. Called when a run's child has ended, and for
/// each unfinished run when the service starts.
pub fn end_orphans(of: impl Into<RunMark>) -> usize {
    let run = of.into();
    if runtime::simulated(|it| it.end_orphans(run)).is_some() {
        return 0;
    }
    end_with(run, None)
}

/// The same; `leader` is the run's child if it has not been reaped. Its children are orphans once
/// it has ended.
pub(super) fn end_with(run: RunMark, leader: Option<Pid>) -> usize {
    let end = || {
        let ended = leader.is_none_or(has_ended);
        kill_marked(run) + end_adopted(run) + usize::from(!ended)
    };
    let first = end();
    let mut left = first;
    for _ in 0..SEARCHES {
        if left == 0 {
            break;
        }
        thread::sleep(PAUSE);
        left = end();
    }
    if left > 0 {
        tracing::warn!(%run, left, "processes of a run ignore SIGKILL");
    }
    if let Err(error) = remove_tree(&scratch(run), &SlicedWork::default()) {
        tracing::warn!(%run, %error, "cannot remove a run's temporary files");
    }
    first
}
