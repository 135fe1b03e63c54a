//! Calls of a framework's operators and ranges that are operators, nested by thread, and the
//! innermost one of each launch.
//!
//! The profiler records the operator of a launch (`External id`); if it does not, the operator is
//! the innermost one open on the launching thread when the launching call started.

use std::{cmp::Reverse, collections::BTreeMap};

use foldhash::{HashMap, HashSet};
use llmprof_core::trace::{
    kernel::TracedKernel,
    timeline::{Timeline, process_of},
};

use super::{
    capture::{Capture, Join},
    device_time::{DeviceTime, DeviceTimes, is_operator},
    graph_replays::GraphReplays,
    launches::Cursor,
    open_ranges::{NONE, OpenNest, Segments, nest},
};

/// A call or a range of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NestItem {
    /// Index of a call of an operator.
    Call(u32),
    /// Index of a range.
    Range(u32),
    /// Index of an operator or range of the capture of a graph.
    Captured(u32),
}

/// The items of one thread.
#[derive(Debug, Default)]
pub struct ThreadNest {
    pub thread: i64,
    pub items: Vec<NestItem>,
    /// Entries are indices into `items`, in order of start, with their enclosing entries.
    pub nest: OpenNest,
}

/// The items of all threads, and the innermost one of each kernel.
#[derive(Debug, Default)]
pub struct FrameworkIndex {
    /// Threads of the host, then the captures of graphs, whose items did not run.
    pub threads: Vec<ThreadNest>,
    /// Number of threads of the host.
    pub hosts: usize,
    pub replays: GraphReplays,
    /// Thread and entry by kernel; [`NONE`] without an operator.
    kernels: Vec<(u32, u32)>,
}

impl FrameworkIndex {
    /// Nests the calls of a capture.
    pub fn of(capture: &Capture) -> Self {
        let trace = capture.trace;
        let mut threads: BTreeMap<i64, Vec<NestItem>> = BTreeMap::new();
        let mut is_operator = is_operator(trace);
        for (at, range) in trace.ranges.iter().enumerate() {
            if is_operator(range) && range.end_ns.is_some_and(|end| range.start_ns < end) {
                threads.entry(range.global_tid).or_default().push(NestItem::Range(at as u32));
            }
        }
        for (at, call) in trace.framework.iter().enumerate() {
            threads.entry(call.global_tid).or_default().push(NestItem::Call(at as u32));
        }
        let mut index = Self::default();
        let mut entries = vec![NONE; trace.framework.len()];
        for (thread, mut items) in threads {
            items.sort_by_key(|it| {
                let (start, end) = it.span(trace);
                (start, Reverse(end))
            });
            let order: Vec<u32> = (0..items.len() as u32).collect();
            let nest = nest(|at| items[at as usize].span(trace), &order);
            for (entry, item) in items.iter().enumerate() {
                if let NestItem::Call(row) = item {
                    entries[*row as usize] = entry as u32;
                }
            }
            index.threads.push(ThreadNest { thread, items, nest });
        }
        index.hosts = index.threads.len();
        index.replays = GraphReplays::of(capture);
        index.kernels = index.of_kernels(capture, &entries);
        index.threads.append(&mut index.replays.nests);
        // Launches are looked up once.
        index.threads.iter_mut().for_each(|it| it.nest.segments = Segments::default());
        index
    }

    fn place(&self, thread: i64) -> Option<usize> {
        self.threads.binary_search_by_key(&thread, |it| it.thread).ok()
    }

    /// The innermost operator of a kernel: its thread, the nest of that thread, and its entry.
    #[inline]
    pub fn innermost(&self, kernel: usize) -> Option<(u32, &ThreadNest, u32)> {
        let (thread, entry) = *self.kernels.get(kernel)?;
        Some((thread, self.threads.get(thread as usize)?, entry))
    }

    /// Thread and entry of the innermost operator of each kernel that has one.
    pub fn launching(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let known = self.kernels.iter().filter(|it| it.0 != NONE);
        known.map(|(thread, entry)| (*thread as usize, *entry as usize))
    }

    /// Thread and entry of the innermost operator of each kernel, in the order of the capture.
    fn of_kernels(&self, capture: &Capture, entries: &[u32]) -> Vec<(u32, u32)> {
        let trace = capture.trace;
        let (mut cursor, mut calls) = (Cursor::default(), trace.cuda_calls.reader());
        let mut one = |kernel: TracedKernel, join: Join| {
            let process = process_of(kernel.global_pid);
            let recorded = trace.framework.operators.get(process, kernel.correlation_id);
            if let Some(row) = recorded {
                let thread = trace.framework.get(row as usize).global_tid;
                return Some((self.place(thread)? as u32, entries[row as usize]));
            }
            if !join.has_call() {
                return None;
            }
            let call = calls.get(join.call);
            let place = self.place(call.global_tid)?;
            let segments = |_| Some(&self.threads[place].nest.segments);
            let entry = cursor.at(call.global_tid, call.start_ns, segments);
            (entry != NONE).then_some((place as u32, entry))
        };
        let kernels = capture.kernels().enumerate();
        let all = kernels.map(|(at, (kernel, join))| match self.replays.operator(at) {
            Some((graph, entry)) => (self.hosts as u32 + graph, entry),
            // The operator that launches a graph did not launch its kernels.
            None if self.replays.has_launch(at) => (NONE, NONE),
            None => one(kernel, join).unwrap_or((NONE, NONE)),
        });
        all.collect()
    }

    /// The call of a replay, which executes a captured item once; [`NONE`] for items of the host.
    pub fn replay_of(&self, thread: u32, call: u32) -> u32 {
        if (thread as usize) < self.hosts { NONE } else { call }
    }

    /// Name of the innermost operator of the kernel at an index.
    pub fn name_of<'a>(&self, trace: &'a Timeline, kernel: usize) -> Option<&'a str> {
        let (thread, entry) = *self.kernels.get(kernel)?;
        Some(self.threads.get(thread as usize)?.items.get(entry as usize)?.name(trace))
    }
}

impl NestItem {
    /// Start and end.
    pub fn span(self, trace: &Timeline) -> (i64, i64) {
        match self {
            Self::Call(at) => {
                let call = trace.framework.get(at as usize);
                (call.start_ns, call.end_ns)
            }
            Self::Range(at) => {
                let range = &trace.ranges[at as usize];
                (range.start_ns, range.end_ns.unwrap_or(range.start_ns))
            }
            Self::Captured(at) => {
                let operator = trace.graph_captures.operators[at as usize];
                (operator.start_ns, operator.end_ns)
            }
        }
    }

    /// Index of the signature of an operator, or of a captured range; `None` for other ranges.
    pub fn signature(self, trace: &Timeline) -> Option<usize> {
        match self {
            Self::Call(at) => Some(trace.framework.get(at as usize).signature as usize),
            Self::Captured(at) => {
                Some(trace.graph_captures.operators[at as usize].signature as usize)
            }
            Self::Range(_) => None,
        }
    }

    /// True for a range of the program, also a captured one.
    pub fn is_range(self, trace: &Timeline) -> bool {
        match self {
            Self::Call(_) => false,
            Self::Range(_) => true,
            Self::Captured(at) => trace.graph_captures.operators[at as usize].is_range,
        }
    }

    pub fn name(self, trace: &Timeline) -> &str {
        match self {
            Self::Range(at) => &trace.ranges[at as usize].name,
            Self::Call(_) | Self::Captured(_) => {
                let known = self.signature(trace).and_then(|at| trace.framework.signatures.get(at));
                known.map_or("", |it| it.name.as_str())
            }
        }
    }
}

/// Sums the kernels of a capture by operator.
pub fn device_times(capture: &Capture, index: &FrameworkIndex) -> DeviceTimes {
    let mut times = DeviceTimes::default();
    let mut sums: HashMap<(usize, &str), DeviceTime> = HashMap::default();
    let mut called: HashSet<(u32, u32, usize, u32)> = HashSet::default();
    let mut names: Vec<&str> = Vec::new();
    let kernels = capture.kernels();
    for (at, (kernel, Join { instance, call })) in kernels.enumerate() {
        let replayed = if kernel.graph_node.is_some() { kernel.ns() } else { 0 };
        times.replayed_ns += replayed;
        let Some((thread, nest, innermost)) = index.innermost(at) else { continue };
        times.replayed_known_ns += replayed;
        let stage = capture.stage_number(instance);
        let replay = index.replay_of(thread, call);
        names.clear();
        let mut entry = innermost;
        while let Some((_, parent)) = nest.nest.entries.get(entry as usize) {
            let name = nest.name(capture.trace, entry);
            let sum = sums.entry((stage, name)).or_default();
            if entry == innermost {
                sum.exclusive_ns += kernel.ns();
            }
            // A name nested inside itself counts once, as the outermost.
            if !names.contains(&name) {
                names.push(name);
                sum.kernels += 1;
                sum.total_ns += kernel.ns();
            }
            let is_outermost = !nest.outer(entry).any(|it| nest.name(capture.trace, it) == name);
            if is_outermost && called.insert((thread, entry, stage, replay)) {
                sum.calls += 1;
            }
            entry = *parent;
        }
    }
    let named = |((number, name), time): ((usize, &str), DeviceTime)| {
        // Operators outside every stage have an empty stage, unlike their kernels.
        let stage = if number == 0 { "" } else { capture.stage_label(number) };
        ((stage.to_owned(), name.to_owned()), time)
    };
    times.operators = sums.into_iter().map(named).collect();
    times
}

impl ThreadNest {
    /// Name of an entry.
    pub fn name<'a>(&self, trace: &'a Timeline, entry: u32) -> &'a str {
        self.items[entry as usize].name(trace)
    }

    /// An entry and the entries around it, innermost first.
    pub fn with_outer(&self, entry: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(entry).chain(self.outer(entry))
    }

    /// The entries around an entry, innermost first.
    pub fn outer(&self, entry: u32) -> impl Iterator<Item = u32> + '_ {
        let parent = |entry: &u32| self.nest.entries.get(*entry as usize).map(|it| it.1);
        std::iter::successors(parent(&entry), move |it| parent(it)).take_while(|it| *it != NONE)
    }
}
