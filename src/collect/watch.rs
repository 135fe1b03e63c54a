//! How long the program that a tool watches runs, from outside: the tool's own start and end are no part of it.
//!
//! Its beginning is what the kernel notes of it, to a hundredth of a second; its end is looked for every few milliseconds.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    time::{ClockId, clock_gettime},
    unistd::{Pid, SysconfVar, sysconf},
};
use tokio::task::{JoinHandle, spawn_blocking};

use super::sweep::targets;
use crate::run::RunId;

/// Time between looks for the program, and for its end.
const LOOK: Duration = Duration::from_millis(20);
const END: Duration = Duration::from_millis(2);

/// Watches for the first process of a run that is profiled.
pub struct Watch {
    done: Arc<AtomicBool>,
    found: JoinHandle<Option<i64>>,
}

impl Watch {
    pub fn start(run: RunId) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&done);
        Self { done, found: spawn_blocking(move || watch(run, &told)) }
    }

    /// How long it ran, nanoseconds; `None` where it came and went between two looks, or has not ended.
    pub async fn stop(self) -> Option<i64> {
        self.done.store(true, Ordering::Relaxed);
        self.found.await.ok().flatten()
    }
}

fn watch(run: RunId, done: &AtomicBool) -> Option<i64> {
    let (pid, began) = loop {
        let first = targets(run).into_iter().filter_map(|pid| Some((pid, began(pid)?))).min_by_key(|(pid, began)| (*began, *pid));
        match first {
            Some(first) => break first,
            None if done.load(Ordering::Relaxed) => return None,
            None => thread::sleep(LOOK),
        }
    };
    while began_as(pid, began) {
        if done.load(Ordering::Relaxed) {
            return None;
        }
        thread::sleep(END);
    }
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
    let tick_ns = 1_000_000_000 / sysconf(SysconfVar::CLK_TCK).ok().flatten().filter(|ticks| *ticks > 0)?;
    Some(now.tv_sec() * 1_000_000_000 + now.tv_nsec() - began * tick_ns).filter(|ns| *ns > 0)
}

/// When a process began, in ticks since the host was started; `None` of one that has ended.
fn began(pid: Pid) -> Option<i64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    (*fields.first()? != "Z").then(|| fields.get(19)?.parse().ok())?
}

fn began_as(pid: Pid, when: i64) -> bool {
    began(pid) == Some(when)
}
