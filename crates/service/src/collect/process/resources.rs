//! Resource limits of a process that reads untrusted files: memory, CPU time, priority.
//!
//! They are set between fork and exec and are inherited by its children.

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    libc,
    sys::{
        resource::{Resource, setrlimit},
        stat::Mode,
    },
    unistd::write,
};

/// Limits of each process of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Private writable memory, bytes; 0: unlimited.
    pub memory_bytes: u64,
    /// CPU time, seconds; 0: unlimited.
    pub cpu_s: u32,
}

impl ResourceLimits {
    /// Applies the limits to the calling process, with the lowest priority, and as the first victim
    /// when memory runs out. Makes system calls only: it runs between fork and exec.
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
        lower_priority();
        if let Ok(file) = open(c"/proc/self/oom_score_adj", OFlag::O_WRONLY, Mode::empty()) {
            let _ = write(&file, b"1000"); // a process may always raise its own score
        }
        Ok(())
    }
}

/// Gives the calling process CPU time that no other process needs. A failure costs only priority.
fn lower_priority() {
    let idle = libc::sched_param { sched_priority: 0 };
    // SAFETY: both are system calls on the calling process; `idle` outlives the call.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const idle);
    }
}
