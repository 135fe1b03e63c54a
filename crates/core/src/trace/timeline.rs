//! Contents of one timeline, of an nsys export or of traces by the profiler of PyTorch, as plain
//! values.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    call_index::LaunchId,
    clocks::{UnequalClock, WaitTarget},
    collectives::Collectives,
    environment::Environment,
    framework::{FrameworkCalls, TimelineTool},
    gpu_metrics::GpuSamples,
    graph_capture::GraphCaptures,
    host_cpu::HostCpu,
    inferred_steps::InferredSteps,
    interner::Interner,
    interval::Interval,
    kernel::KernelTrace,
    packed::{PackedIter, PackedReader, PackedRows},
    range::Range,
    runtime_call::{CallKind, is_hip},
    stage::{StageRules, UnknownRange},
    unclosed::{self, Unclosed},
    untimed::UntimedWork,
};
use crate::domain::finding::{Finding, catalogue};

pub use super::copies::{CopyKind, MemoryOp};

/// One timeline. A table missing from the export is an empty list here and absent from `tables`.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// The profiler that recorded it.
    pub tool: TimelineTool,
    /// As printed in the export: `2022.4.2.1-df9881f`.
    pub tool_version: Option<String>,
    pub schema_version: Option<String>,
    /// The profiled host, with the GPUs that ran work.
    pub target: Environment,
    pub tables: Vec<String>,
    /// Kinds of events that nsys was to record, such as `Cuda`; empty if they are unknown.
    pub requested: Vec<String>,
    /// Wall-clock time of the zero of its times, nanoseconds since 1970, if it is recorded.
    pub started_unix_ns: Option<i64>,
    /// Length of the recording, nanoseconds, if the export states it.
    pub recorded_ns: Option<i64>,
    /// By process: start and end of the recording, if the profiler wrote them; empty for nsys.
    pub windows: BTreeMap<i64, Interval>,
    /// Process names by nsys process id, idle processes included.
    pub processes: HashMap<i64, String>,
    /// String table; names are indices into it.
    pub strings: Vec<String>,
    /// In the order of [`range::sort`](super::range::sort).
    pub ranges: Vec<Range>,
    /// Steps inferred without ranges; empty if ranges are stages.
    pub inferred: InferredSteps,
    /// Ranges recorded without an end, with the ends that [`Self::with_rules`] assigned.
    pub unclosed: Vec<Unclosed>,
    pub kernels: KernelTrace,
    /// Work whose time is not valid, which is in no other list.
    pub untimed: UntimedWork,
    /// Devices and streams that calls waited for, if they are recorded, sorted.
    pub wait_targets: Vec<WaitTarget>,
    /// Devices whose times cannot be compared with the host's.
    pub unequal_clocks: Vec<UnequalClock>,
    /// Clocks of devices that differ from the host's, corrected or not.
    pub clock_findings: Vec<Finding>,
    /// Linker symbols of kernels by their full names, both indices into `strings`; empty for an
    /// export without them.
    pub symbols: BTreeMap<u32, u32>,
    /// Memory copies and fills on the device.
    pub copies: Vec<MemoryOp>,
    /// Launches of CUDA graphs traced as a whole.
    pub graphs: Vec<GraphLaunch>,
    /// Creation of CUDA graph nodes.
    pub graph_nodes: Vec<GraphNode>,
    /// Calls of a framework's operators; empty for nsys.
    pub framework: FrameworkCalls,
    /// Captures of graphs by the profiler of PyTorch; empty for nsys, which records their nodes.
    pub graph_captures: GraphCaptures,
    /// Parameters of collective operations, and ranks of processes; empty for nsys.
    pub collectives: Collectives,
    /// CUDA runtime and driver calls.
    pub cuda_calls: ApiCalls,
    /// Samples of the GPUs' metrics; `None` if none were requested.
    pub samples: Option<GpuSamples>,
    /// Threads on the cores of the host; `None` if neither switches nor samples were recorded.
    pub host_cpu: Option<HostCpu>,
    /// Operating system calls that blocked or took long, as traced by nsys.
    pub os_calls: ApiCalls,
    /// Rows dropped for impossible times: missing, ending before the start, or out of range.
    pub impossible_rows: u64,
    /// Diagnostics of nsys itself, worst first.
    pub diagnostics: Vec<String>,
    /// Gaps in the export.
    pub findings: Vec<Finding>,
    /// Rules that map ranges to stages.
    pub rules: StageRules,
}

impl Timeline {
    /// The string at an index of [`Self::strings`]; empty if the export lacks it.
    #[inline]
    pub fn text(&self, at: u32) -> &str {
        self.strings.get(at as usize).map_or("", String::as_str)
    }

    /// Kind of the calls of each site of [`Self::cuda_calls`].
    pub fn call_kinds(&self) -> Vec<CallKind> {
        self.cuda_calls.sites().iter().map(|(at, _)| CallKind::of(self.text(*at))).collect()
    }

    /// True for a trace with calls of HIP, which a GPU of AMD runs.
    pub fn calls_hip(&self) -> bool {
        let mut sites = self.cuda_calls.sites().iter();
        self.tool == TimelineTool::Pytorch && sites.any(|(name, _)| is_hip(self.text(*name)))
    }

    /// Counts each kernel once, with a finding if the capture has some of them twice. The kernels
    /// are sorted.
    pub fn drop_repeated_kernels(&mut self) {
        let repeated = self.kernels.drop_repeated();
        if repeated == 0 {
            return;
        }
        let message = format!(
            "{repeated} kernel records are repetitions of others, with the same launch, stream, \
             start and end; each is counted once."
        );
        self.findings.push(
            Finding::new(catalogue::KERNEL_RECORDS_REPEATED, message)
                .with("repetitions", repeated)
                .advise("Export the report again, and check programs that merge or edit exports."),
        );
    }

    /// Counts each call once if kernels are repeated. The calls are sorted.
    pub fn drop_repeated_calls(&mut self) {
        let is_of_kernels = |it: &&mut Finding| it.id == catalogue::KERNEL_RECORDS_REPEATED;
        let Some(finding) = self.findings.iter_mut().find(is_of_kernels) else { return };
        let repeated = self.cuda_calls.drop_repeated();
        if repeated > 0 {
            finding.add_evidence("repetitions of calls", repeated);
        }
    }

    /// Excludes work without a valid time, and moves the times of a device to the host's clock.
    /// Kernels and calls are sorted before and after.
    pub fn settle_device_times(&mut self) {
        self.exclude_overlong();
        self.align_clocks();
    }

    /// Returns true if times of a device can be compared with the times of a process.
    pub fn has_common_clock(&self, process: i64, device: u32) -> bool {
        let is_here = |it: &UnequalClock| (it.process, it.device) == (process_of(process), device);
        !self.unequal_clocks.iter().any(is_here)
    }

    /// Sets the rules and closes unclosed ranges by them.
    pub fn with_rules(mut self, rules: StageRules) -> Self {
        self.unclosed.extend(unclosed::close(&mut self.ranges, &rules));
        Self { rules, ..self }
    }

    /// Checks that each range named in `rules` is in the capture, closed or not.
    pub fn check_rules(&self, rules: &StageRules) -> Result<(), UnknownRange> {
        let all = self.ranges.iter().chain(self.unclosed.iter().map(|it| &it.range));
        rules.check(all.map(|range| (range.domain.as_str(), range.name.as_str())))
    }
}

/// A traced call on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApiCall {
    /// Index into [`Timeline::strings`].
    pub name: u32,
    pub start_ns: i64,
    pub end_ns: i64,
    pub global_tid: i64,
    /// Joins the call to the work that it launched; 0 if none.
    pub correlation_id: i64,
}

impl ApiCall {
    #[inline]
    pub const fn launch_id(&self) -> LaunchId {
        (process_of(self.global_tid), self.correlation_id)
    }
}

/// Device of a graph that starts on the host, if its GPU is unknown.
pub const ON_HOST: u32 = i32::MAX as u32;

/// A launch of a CUDA graph traced as a whole: its kernels and copies are not recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphLaunch {
    /// Device time from the start of the first node to the end of the last, gaps between nodes
    /// included.
    pub start_ns: i64,
    pub end_ns: i64,
    /// Device and stream of the first node; the device may be [`ON_HOST`].
    pub device: u32,
    pub stream: u32,
    pub global_pid: i64,
    /// Joins the launch to its call within the process; 0 if unknown.
    pub correlation_id: i64,
    /// Graph id of nsys; `None` if the export lacks it.
    pub graph: Option<u64>,
}

impl GraphLaunch {
    #[inline]
    pub const fn launch_id(&self) -> LaunchId {
        (process_of(self.global_pid), self.correlation_id)
    }
}

/// Creation time and thread of a CUDA graph node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphNode {
    pub at_ns: i64,
    pub global_tid: i64,
    pub id: u64,
    /// The node that this one was cloned from when a captured graph was instantiated.
    pub original: Option<u64>,
}

/// Packed list of calls: a capture holds millions of a few functions on a few threads.
#[derive(Debug, Clone, Default)]
pub struct ApiCalls {
    /// Start, duration, site, correlation id.
    rows: PackedRows<4>,
    /// Name and thread.
    sites: Interner<(u32, i64)>,
}

/// Looks up calls that are near each other.
pub struct CallReader<'a> {
    calls: &'a ApiCalls,
    rows: PackedReader<'a, 4>,
}

impl CallReader<'_> {
    /// The call at index `at`.
    #[inline]
    pub fn get(&mut self, at: u32) -> ApiCall {
        self.calls.call(self.rows.get(at as usize)).1
    }
}

/// A part of all calls, each after its index into [`ApiCalls::sites`].
pub struct CallPart<'a> {
    calls: &'a ApiCalls,
    rows: PackedIter<'a, 4>,
}

impl Iterator for CallPart<'_> {
    type Item = (u32, ApiCall);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next().map(|row| self.calls.call(row))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

impl ExactSizeIterator for CallPart<'_> {}

impl ApiCalls {
    #[inline]
    pub fn push(&mut self, call: ApiCall) {
        let site = self.sites.number((call.name, call.global_tid));
        self.rows.push([
            call.start_ns,
            call.end_ns.wrapping_sub(call.start_ns),
            site.into(),
            u32::try_from(call.correlation_id).unwrap_or(0).into(),
        ]);
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    #[inline(always)]
    fn call(&self, [start_ns, ns, site, correlation_id]: [i64; 4]) -> (u32, ApiCall) {
        let site = site as u32;
        let (name, global_tid) = self.sites.values()[site as usize];
        let end_ns = start_ns.wrapping_add(ns);
        (site, ApiCall { name, start_ns, end_ns, global_tid, correlation_id })
    }

    /// The call at index `at`; [`Self::reader`] is faster for many.
    pub fn get(&self, at: usize) -> ApiCall {
        self.call(self.rows.get(at)).1
    }

    pub fn reader(&self) -> CallReader<'_> {
        CallReader { calls: self, rows: self.rows.reader() }
    }

    /// Distinct pairs of function name and thread.
    #[inline]
    pub fn sites(&self) -> &[(u32, i64)] {
        self.sites.values()
    }

    /// Threads that made calls.
    pub fn threads(&self) -> BTreeSet<i64> {
        self.sites().iter().map(|(_, thread)| *thread).collect()
    }

    /// Maps the string indices of all names through `names`.
    pub fn rename(&mut self, names: impl Fn(u32) -> u32) {
        self.sites.change(|(name, _)| *name = names(*name));
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = ApiCall> + Clone + '_ {
        self.with_sites().map(|(_, call)| call)
    }

    /// All calls, each after its index into [`Self::sites`].
    pub fn with_sites(&self) -> impl ExactSizeIterator<Item = (u32, ApiCall)> + Clone + '_ {
        self.rows.iter().map(|row| self.call(row))
    }

    /// The calls at the sites that `is_wanted` selects, each after its index and its site's index.
    /// Fast if they are rare: calls between them are not decoded.
    pub fn at_sites<'a>(
        &'a self,
        is_wanted: &'a [bool],
    ) -> impl Iterator<Item = (usize, u32, ApiCall)> + 'a {
        const SITE: usize = 2;
        let rows = || self.rows.matching(SITE, |site| is_wanted[site as usize]);
        let rows = is_wanted.contains(&true).then(rows).into_iter().flatten();
        rows.map(|(at, row)| {
            let (site, call) = self.call(row);
            (at, site, call)
        })
    }

    /// All calls in about `count` parts of the same length.
    pub fn parts(&self, count: usize) -> impl Iterator<Item = CallPart<'_>> {
        self.rows.parts(count).map(|rows| CallPart { calls: self, rows })
    }

    /// Sorts by start time unless already sorted.
    pub fn sort(&mut self) {
        self.rows.sort();
    }

    /// Drops each call that equals an earlier one in all fields and has a correlation id. Returns
    /// the number of dropped ones. The calls are sorted.
    pub fn drop_repeated(&mut self) -> u64 {
        self.rows.drop_repeated(|[_, ns, _, correlation_id]| *ns > 0 && *correlation_id != 0)
    }
}

impl FromIterator<ApiCall> for ApiCalls {
    fn from_iter<I: IntoIterator<Item = ApiCall>>(calls: I) -> Self {
        let mut packed = Self::default();
        calls.into_iter().for_each(|call| packed.push(call));
        packed
    }
}

/// The process part of an nsys global id; the low 24 bits are the thread.
#[inline]
pub const fn process_of(global_id: i64) -> i64 {
    global_id & !0xff_ffff
}

/// The operating system's thread id within an nsys global id.
pub const fn tid_of(global_id: i64) -> u32 {
    (global_id & 0xff_ffff) as u32
}

/// The operating system's process id within an nsys global id.
pub const fn pid_of(global_id: i64) -> u32 {
    ((global_id >> 24) & 0xff_ffff) as u32
}
