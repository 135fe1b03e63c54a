//! Names of processes, threads and functions, as tables show them.

use llmprof_core::trace::{host_cpu::SampledFunction, timeline::Timeline};

/// Looks up names of one capture.
pub struct Names<'a>(&'a Timeline);

impl<'a> Names<'a> {
    pub const fn of(trace: &'a Timeline) -> Self {
        Self(trace)
    }

    /// The name of a process; `None` if the capture lacks it.
    pub fn process(&self, process: i64) -> Option<String> {
        self.0.processes.get(&process).cloned()
    }

    pub fn thread(&self, thread: i64) -> Option<String> {
        let name = self.0.host_cpu.as_ref()?.names.get(&thread)?;
        Some(self.0.text(*name).to_owned())
    }

    /// The name of a function; `None` if its file has no symbols.
    pub fn function(&self, it: SampledFunction) -> Option<String> {
        it.name.map(|name| self.0.text(name).to_owned())
    }

    /// The name of the file with a function, without its folders.
    pub fn module(&self, it: SampledFunction) -> String {
        let path = self.0.text(it.module);
        path.rsplit('/').next().unwrap_or(path).to_owned()
    }
}
