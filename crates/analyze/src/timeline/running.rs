//! Launches that run, each once.
//!
//! A stream under capture records work into a graph instead of running it. One launch may have two
//! rows with one correlation id: the runtime's call, and the driver's call inside.

use foldhash::{HashMap, HashSet};
use llmprof_core::trace::{
    runtime_call::CallKind,
    timeline::{ApiCall, Timeline},
};

/// Reads the launches of one kind that run, each with the index of its call.
pub fn each_running(trace: &Timeline, wanted: CallKind, mut read: impl FnMut(usize, &ApiCall)) {
    let kinds = trace.call_kinds();
    if !kinds.contains(&wanted) {
        return;
    }
    let mut running = RunningLaunches::of(trace, &kinds);
    let sites: Vec<bool> = kinds.iter().map(|it| *it == wanted || it.bounds_capture()).collect();
    for (at, site, call) in trace.cuda_calls.at_sites(&sites) {
        if running.launches(kinds[site as usize], &call) {
            read(at, &call);
        }
    }
}

/// Reads the calls of a timeline in the order of their starts.
pub struct RunningLaunches {
    /// Threads with a stream under capture.
    capturing: HashSet<i64>,
    /// Thread and correlation id of the last launch, and the id of the last one of other threads.
    last: (i64, i64),
    others: HashMap<i64, i64>,
}

impl RunningLaunches {
    /// `kinds` is by call site, see [`Timeline::call_kinds`]. A thread whose first call about a
    /// capture ends one is under capture from the start.
    pub fn of(trace: &Timeline, kinds: &[CallKind]) -> Self {
        let mut first: HashMap<i64, bool> = HashMap::default();
        let sites: Vec<bool> = kinds.iter().map(|it| it.bounds_capture()).collect();
        for (_, site, call) in trace.cuda_calls.at_sites(&sites) {
            let ends = kinds[site as usize] == CallKind::EndCapture;
            first.entry(call.global_tid).or_insert(ends);
        }
        let capturing = first.into_iter().filter(|(_, ends)| *ends).map(|(thread, _)| thread);
        Self { capturing: capturing.collect(), last: (0, 0), others: HashMap::default() }
    }

    /// Takes the next call. Returns whether it launches work that runs, and is the first row of
    /// that launch.
    #[inline]
    pub fn launches(&mut self, kind: CallKind, call: &ApiCall) -> bool {
        let thread = call.global_tid;
        match kind {
            CallKind::BeginCapture => _ = self.capturing.insert(thread),
            CallKind::EndCapture => _ = self.capturing.remove(&thread),
            _ => {}
        }
        kind.is_launch() && !self.is_captured(thread) && self.is_new(thread, call.correlation_id)
    }

    /// Returns true if work of the thread is recorded into a graph at the last call.
    #[inline]
    pub fn is_captured(&self, thread: i64) -> bool {
        !self.capturing.is_empty() && self.capturing.contains(&thread)
    }

    #[inline]
    fn is_new(&mut self, thread: i64, correlation: i64) -> bool {
        if thread != self.last.0 {
            self.others.insert(self.last.0, self.last.1);
            self.last = (thread, self.others.get(&thread).copied().unwrap_or_default());
        }
        let is_new = correlation <= 0 || correlation != self.last.1;
        self.last.1 = correlation;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    /// Which of the calls of a sketch, named in order, launch work that runs.
    fn launches(sketch: &str, names: &[&str]) -> Vec<bool> {
        let mut trace = capture(sketch);
        let first = trace.strings.len() as u32;
        trace.strings.extend(names.iter().map(|name| (*name).to_owned()));
        let named = |(at, call)| ApiCall { name: first + at as u32, ..call };
        trace.cuda_calls = trace.cuda_calls.iter().enumerate().map(named).collect();
        let kinds = trace.call_kinds();
        let mut running = RunningLaunches::of(&trace, &kinds);
        let calls = trace.cuda_calls.with_sites();
        calls.map(|(site, call)| running.launches(kinds[site as usize], &call)).collect()
    }

    #[test]
    fn a_capture_that_began_before_the_timeline_runs_nothing_until_its_end() {
        let sketch = "call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 5..6\ncall 2 4 7..8";
        let names =
            ["cudaLaunchKernel", "cudaStreamEndCapture", "hipLaunchKernel", "cuGraphLaunch"];
        assert_eq!(launches(sketch, &names), [false, false, true, true]);
    }

    #[test]
    fn the_drivers_row_inside_the_runtimes_is_no_second_launch() {
        let sketch = "call 1 1 1..9\ncall 2 1 2..3\ncall 1 1 4..5\ncall 1 2 10..11";
        let names = ["cudaLaunchKernel", "cudaLaunchKernel", "cuLaunchKernel", "cuLaunchKernelEx"];
        assert_eq!(launches(sketch, &names), [true, true, false, true]);
    }
}
