//! The calls of a capture that launch kernels or bound them in time, with the kernels that each
//! launch must have.

use foldhash::HashMap;
use llmprof_core::trace::{
    call_index::{CallIndex, NO_CALL},
    runtime_call::CallKind,
    timeline::{ApiCall, Timeline},
};

use super::graphs::{GraphLaunch, graph_launches};
use crate::timeline::{capture::Capture, launches::CallSet, running::RunningLaunches};

/// A call, and the kernels of its launch.
pub struct LaunchingCall {
    /// Index of its call site.
    pub site: usize,
    pub kind: CallKind,
    pub call: ApiCall,
    /// True if work of its thread is recorded into a graph.
    pub is_captured: bool,
    /// `None` if it launches nothing that runs.
    pub launch: Option<KernelLaunch>,
}

/// Kernels that a call launched.
#[derive(Debug, Clone, Copy)]
pub struct KernelLaunch {
    pub kernels: u64,
    pub recorded: u64,
    /// Kernels in the capture without a valid time; not part of `recorded`.
    pub untimed: u64,
    /// A graph traced as a whole, which counts as one kernel.
    pub is_whole: bool,
    /// A graph without any recorded work.
    pub is_silent: bool,
    /// Any of its work is recorded.
    pub has_work: bool,
}

impl KernelLaunch {
    /// Kernels that are not in the capture.
    pub const fn missing(&self) -> u64 {
        self.kernels - self.recorded - self.untimed
    }
}

/// Reads the calls in the order of their starts.
pub fn each_launching_call(capture: &Capture, mut read: impl FnMut(&LaunchingCall)) {
    let calls = &capture.trace.cuda_calls;
    let kinds = capture.trace.call_kinds();
    let mut with_work = CallSet::below(calls.len());
    let both = capture.kernel_joins().chain(capture.copy_joins());
    both.filter(|it| it.has_call()).for_each(|it| with_work.insert(it.call));
    let graphs = graph_launches(capture, &kinds, &with_work);
    let untimed = untimed_by_call(capture.trace);
    let mut running = RunningLaunches::of(capture.trace, &kinds);
    for (at, (site, call)) in calls.with_sites().enumerate() {
        let (site, kind) = (site as usize, kinds[site as usize]);
        if matches!(kind, CallKind::Other | CallKind::Prepare | CallKind::Unknown) {
            continue;
        }
        let untimed = untimed.get(&(at as u32)).copied().unwrap_or(0);
        let has_work = with_work.contains(at) || untimed > 0;
        let runs = running.launches(kind, &call);
        let launch = runs.then(|| {
            let launch = match kind {
                CallKind::Graph => graphs.get(&at).copied().unwrap_or_default(),
                _ => GraphLaunch {
                    expected: 1,
                    recorded: u64::from(has_work && untimed == 0),
                    ..GraphLaunch::default()
                },
            };
            let GraphLaunch { recorded, is_whole, .. } = launch;
            let is_silent = launch.is_silent && untimed == 0;
            let kernels = launch.expected.max(recorded + untimed);
            KernelLaunch { kernels, recorded, untimed, is_whole, is_silent, has_work }
        });
        let is_captured = running.is_captured(call.global_tid);
        read(&LaunchingCall { site, kind, call, is_captured, launch });
    }
}

/// Kernels without a valid time by their launching call.
fn untimed_by_call(trace: &Timeline) -> HashMap<u32, u64> {
    let mut found = HashMap::default();
    if trace.untimed.kernels.is_empty() {
        return found;
    }
    let index = CallIndex::of(&trace.cuda_calls);
    let mut lookup = index.lookup();
    for it in trace.untimed.kernels.iter() {
        let call = lookup.find(it.global_pid, it.correlation_id);
        if call != NO_CALL {
            *found.entry(call).or_default() += 1;
        }
    }
    found
}

/// The first recorded call of each process. Correlation ids increase within a process: work with a
/// lower id was launched before the capture started.
pub struct FirstCalls(HashMap<i64, i64>);

impl FirstCalls {
    pub fn of(trace: &Timeline) -> Self {
        let mut first: HashMap<i64, i64> = HashMap::default();
        for call in trace.cuda_calls.iter().filter(|it| it.correlation_id > 0) {
            let (process, id) = call.launch_id();
            first.entry(process).and_modify(|known| *known = id.min(*known)).or_insert(id);
        }
        Self(first)
    }

    /// True if work of a process was launched before its first recorded call.
    pub fn is_before(&self, process: i64, correlation: i64) -> bool {
        self.0.get(&process).is_some_and(|first| correlation < *first)
    }

    /// True for a process with calls.
    pub fn has(&self, process: i64) -> bool {
        self.0.contains_key(&process)
    }
}
