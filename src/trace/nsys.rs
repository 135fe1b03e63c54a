//! What one nsys export holds, as plain values.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::{
    environment::Environment,
    kernel::Kernels,
    range::Range,
    stage::{StageRules, UnknownRange},
    unclosed::{self, Unclosed},
};
use crate::run::Finding;

/// One nsys capture. A table that the export lacks is an empty list: `tables` tells which were there.
#[derive(Debug, Clone, Default)]
pub struct NsysTrace {
    /// As the export says: `2022.4.2.1-df9881f` or the like.
    pub tool_version: Option<String>,
    pub schema_version: Option<String>,
    /// The host that was profiled, with the GPUs that something ran on.
    pub target: Environment,
    pub tables: Vec<String>,
    /// Names of processes, by the tool's id of each; of those that did nothing, too.
    pub processes: HashMap<i64, String>,
    /// Names, referred to by index.
    pub strings: Vec<String>,
    pub ranges: Vec<Range>,
    /// Ranges that the capture records without an end, as [`Self::with_rules`] closed them.
    pub unclosed: Vec<Unclosed>,
    pub kernels: Kernels,
    /// Copies and fills on the device.
    pub copies: Vec<MemoryOp>,
    /// Launches of CUDA graphs that were traced as a whole.
    pub graphs: Vec<GraphLaunch>,
    /// Where the nodes of CUDA graphs were made.
    pub graph_nodes: Vec<GraphNode>,
    /// CUDA runtime and driver calls.
    pub cuda_calls: ApiCalls,
    /// Operating system calls that blocked or took long, as nsys traces them.
    pub os_calls: ApiCalls,
    /// Rows without times, that end before they start, or that lie in no age of computers: left out.
    pub impossible_rows: u64,
    /// What the tool itself complained of, worst first.
    pub diagnostics: Vec<String>,
    /// What the export lacks.
    pub findings: Vec<Finding>,
    /// Which ranges are stages.
    pub rules: StageRules,
}

impl NsysTrace {
    /// Sets the rules, and closes by them the ranges that have no end.
    pub fn with_rules(mut self, rules: StageRules) -> Self {
        self.unclosed.extend(unclosed::close(&mut self.ranges, &rules));
        Self { rules, ..self }
    }

    /// Checks that each range which `rules` name is in the capture, with an end or without.
    pub fn check_rules(&self, rules: &StageRules) -> Result<(), UnknownRange> {
        let all = self.ranges.iter().chain(self.unclosed.iter().map(|it| &it.range));
        rules.check(all.map(|range| (range.domain.as_str(), range.name.as_str())))
    }
}

/// A traced call on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApiCall {
    /// Index into [`NsysTrace::strings`].
    pub name: u32,
    pub start_ns: i64,
    pub end_ns: i64,
    pub global_tid: i64,
    /// Joins the call to what it launched; 0 without.
    pub correlation_id: i64,
}

/// A copy or a fill of memory by the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryOp {
    pub start_ns: i64,
    pub end_ns: i64,
    pub bytes: u64,
    pub kind: CopyKind,
    pub device: u32,
    pub global_pid: i64,
    /// Joins it to the call that launched it, within its process; 0 without.
    pub correlation_id: i64,
    pub graph_node: Option<u64>,
}

/// A launch of a CUDA graph that was traced as a whole: the kernels and copies inside are not recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphLaunch {
    /// On the device, from the start of its first node to the end of its last one. Gaps between nodes are inside.
    pub start_ns: i64,
    pub end_ns: i64,
    /// Device and stream of its first node.
    pub device: u32,
    pub stream: u32,
    pub global_pid: i64,
    /// Joins it to the call that launched it, within its process; 0 without.
    pub correlation_id: i64,
    /// The tool's number of the graph; `None` where the export does not have it.
    pub graph: Option<u64>,
}

/// Where a copy went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyKind {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    /// A fill.
    Set,
    Other,
}

impl CopyKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HostToDevice => "host_to_device",
            Self::DeviceToHost => "device_to_host",
            Self::DeviceToDevice => "device_to_device",
            Self::Set => "set",
            Self::Other => "other",
        }
    }
}

/// When and on which thread a node of a CUDA graph was made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphNode {
    pub at_ns: i64,
    pub global_tid: i64,
    pub id: u64,
    /// The node that this one was made from, when a captured graph was instantiated.
    pub original: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Packed {
    start_ns: i64,
    end_ns: i64,
    correlation_id: u32,
    site: u32,
}

/// Many calls, packed: a capture holds millions, of a few functions on a few threads.
#[derive(Debug, Clone, Default)]
pub struct ApiCalls {
    rows: Vec<Packed>,
    /// Name and thread.
    sites: Vec<(u32, i64)>,
    index: HashMap<(u32, i64), u32, RandomState>,
}

impl ApiCalls {
    pub fn push(&mut self, call: ApiCall) {
        let site = (call.name, call.global_tid);
        let site = *self.index.entry(site).or_insert_with(|| {
            self.sites.push(site);
            self.sites.len() as u32 - 1
        });
        let correlation_id = u32::try_from(call.correlation_id).unwrap_or(0);
        self.rows.push(Packed { start_ns: call.start_ns, end_ns: call.end_ns, correlation_id, site });
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The call at `at`, as a value.
    pub fn get(&self, at: usize) -> ApiCall {
        let row = self.rows[at];
        let (name, global_tid) = self.sites[row.site as usize];
        let correlation_id = i64::from(row.correlation_id);
        ApiCall { name, start_ns: row.start_ns, end_ns: row.end_ns, global_tid, correlation_id }
    }

    /// Index into [`Self::sites`] of the call at `at`.
    pub fn site(&self, at: usize) -> u32 {
        self.rows[at].site
    }

    /// Each function on each thread: its name and the thread.
    pub fn sites(&self) -> &[(u32, i64)] {
        &self.sites
    }

    /// Puts other indices of names in the place of the ones that they were pushed with.
    pub fn rename(&mut self, names: impl Fn(u32) -> u32) {
        self.sites.iter_mut().for_each(|(name, _)| *name = names(*name));
        self.index = self.sites.iter().enumerate().map(|(at, site)| (*site, at as u32)).collect();
    }

    /// What joins the call at `at` to what it launched; 0 without.
    pub fn correlation(&self, at: usize) -> u32 {
        self.rows[at].correlation_id
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = ApiCall> + DoubleEndedIterator + Clone + '_ {
        (0..self.rows.len()).map(|at| self.get(at))
    }

    /// Sorts by start, unless they are.
    pub fn sort(&mut self) {
        if !self.rows.is_sorted_by_key(|row| row.start_ns) {
            self.rows.sort_by_key(|row| row.start_ns);
        }
    }
}

impl FromIterator<ApiCall> for ApiCalls {
    fn from_iter<I: IntoIterator<Item = ApiCall>>(calls: I) -> Self {
        let mut packed = Self::default();
        calls.into_iter().for_each(|call| packed.push(call));
        packed
    }
}

/// The process part of a tool's id of process and thread: its low 24 bits number the thread.
pub const fn process_of(global_id: i64) -> i64 {
    global_id & !0xff_ffff
}

/// The number that the operating system gave the process of such an id.
pub const fn pid_of(global_id: i64) -> u32 {
    ((global_id >> 24) & 0xff_ffff) as u32
}
