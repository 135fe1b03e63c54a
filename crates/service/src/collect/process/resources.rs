//! Resource limits of a process that reads untrusted files: memory, CPU time, priority.
//!
//! They are set between fork and exec and are inherited by its children. The priority falls once
//! more when it runs next to a pass that measures.

use std::fs;

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    libc,
    sys::{
        resource::{Resource, setrlimit},
        stat::Mode,
    },
    unistd::{Pid, write},
};

/// Least nice value: others come first, but a host that is always busy leaves it enough to end.
const NICE: i32 = 5;

/// Limits of each process of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Private writable memory, bytes; 0: unlimited.
    pub memory_bytes: u64,
    /// CPU time, seconds; 0: unlimited.
    pub cpu_s: u32,
}

impl ResourceLimits {
    /// Applies the limits to the calling process, with a low priority, and as the first victim when
    /// memory runs out. Makes system calls only: it runs between fork and exec.
    pub(super) fn apply(self) -> Result<(), Errno> {
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        if self.memory_bytes > 0 {
            setrlimit(Resource::RLIMIT_DATA, self.memory_bytes, self.memory_bytes)?;
        }
        if self.cpu_s > 0 {
            let cpu_s = u64::from(self.cpu_s);
            // SIGXCPU at the first limit, SIGKILL at the second.
            setrlimit(Resource::RLIMIT_CPU, cpu_s, cpu_s + 1)?;
        }
        // SAFETY: system calls on the calling process. A failure costs only priority.
        unsafe {
            let inherited = libc::getpriority(libc::PRIO_PROCESS, 0);
            libc::setpriority(libc::PRIO_PROCESS, 0, inherited.max(NICE));
        }
        if let Ok(file) = open(c"/proc/self/oom_score_adj", OFlag::O_WRONLY, Mode::empty()) {
            let _ = write(&file, b"1000"); // a process may always raise its own score
        }
        Ok(())
    }
}

/// Gives all threads of the processes only time of CPUs that nothing else needs. A failure costs
/// only priority.
pub(super) fn run_when_idle(processes: &[Pid]) {
    let idle = libc::sched_param { sched_priority: 0 };
    let threads = processes.iter().filter_map(|it| fs::read_dir(format!("/proc/{it}/task")).ok());
    for thread in threads.flatten().flatten() {
        let Some(id) = thread.file_name().to_str().and_then(|it| it.parse().ok()) else { continue };
        // SAFETY: both are system calls; `idle` outlives the call.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, id, 19);
            libc::sched_setscheduler(id.cast_signed(), libc::SCHED_IDLE, &raw const idle);
        }
    }
}
