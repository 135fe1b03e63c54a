//! Calls of a framework's operators and ranges that are operators, nested by thread, and the
//! innermost one of each launch.
//!
//! The profiler records the operator of a launch (`External id`); where it does not, the operator
//! is the innermost one open on the launching thread when the launching call started.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    device_time::{DeviceTime, DeviceTimes, is_operator},
    launches::{Cursor, LaunchIndex},
    open_ranges::{NONE, OpenNest, nest},
};
use crate::trace::nsys::{NsysTrace, process_of};
use foldhash::{HashMap, HashSet};

/// A call or a range of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NestItem {
    /// Index of a call of an operator.
    Call(u32),
    /// Index of a range.
    Range(u32),
}

/// The items of one thread.
#[derive(Debug, Default)]
pub struct ThreadNest {
    pub thread: i64,
    pub items: Vec<NestItem>,
    /// Entries are indices into `items`, in order of start, with their enclosing entries.
    pub nest: OpenNest,
}

/// The items of all threads, and lookups of launches in them.
pub struct FrameworkNests<'a> {
    trace: &'a NsysTrace,
    pub threads: Vec<ThreadNest>,
    /// Entry of each call of an operator.
    entries: Vec<u32>,
}

impl<'a> FrameworkNests<'a> {
    pub fn of(trace: &'a NsysTrace) -> Self {
        let mut threads: BTreeMap<i64, Vec<NestItem>> = BTreeMap::new();
        let is_operator = is_operator(trace);
        for (at, range) in trace.ranges.iter().enumerate() {
            if is_operator(range) && range.end_ns.is_some_and(|end| range.start_ns < end) {
                threads.entry(range.global_tid).or_default().push(NestItem::Range(at as u32));
            }
        }
        for (at, call) in trace.framework.iter().enumerate() {
            threads.entry(call.global_tid).or_default().push(NestItem::Call(at as u32));
        }
        let mut nests = Self { trace, threads: vec![], entries: vec![NONE; trace.framework.len()] };
        for (thread, mut items) in threads {
            items.sort_by_key(|it| {
                let (start, end) = nests.span(*it);
                (start, Reverse(end))
            });
            let order: Vec<u32> = (0..items.len() as u32).collect();
            let nest = nest(|at| nests.span(items[at as usize]), &order);
            for (entry, item) in items.iter().enumerate() {
                if let NestItem::Call(row) = item {
                    nests.entries[*row as usize] = entry as u32;
                }
            }
            nests.threads.push(ThreadNest { thread, items, nest });
        }
        nests
    }

    /// Start and end of an item.
    pub fn span(&self, item: NestItem) -> (i64, i64) {
        match item {
            NestItem::Call(at) => {
                let call = self.trace.framework.get(at as usize);
                (call.start_ns, call.end_ns)
            }
            NestItem::Range(at) => {
                let range = &self.trace.ranges[at as usize];
                (range.start_ns, range.end_ns.unwrap_or(range.start_ns))
            }
        }
    }

    /// Name of an item.
    pub fn name(&self, item: NestItem) -> &'a str {
        match item {
            NestItem::Call(at) => {
                let signature = self.trace.framework.get(at as usize).signature;
                self.trace
                    .framework
                    .signatures
                    .get(signature as usize)
                    .map_or("", |it| it.name.as_str())
            }
            NestItem::Range(at) => &self.trace.ranges[at as usize].name,
        }
    }

    fn place(&self, thread: i64) -> Option<usize> {
        self.threads.binary_search_by_key(&thread, |it| it.thread).ok()
    }

    /// Thread and entry of the innermost operator of each kernel, in the order of the capture.
    pub fn of_kernels(&self, launches: &LaunchIndex) -> Vec<Option<(u32, u32)>> {
        let mut cursor = Cursor::default();
        let calls = &self.trace.cuda_calls;
        let one = |(kernel, (call, _)): (crate::trace::kernel::Kernel, &(u32, u32))| {
            let process = process_of(kernel.global_pid);
            let recorded = self.trace.framework.operators.get(process, kernel.correlation_id);
            if let Some(row) = recorded {
                let thread = self.trace.framework.get(row as usize).global_tid;
                let entry = self.entries[row as usize];
                return Some((self.place(thread)? as u32, entry));
            }
            if *call == NONE {
                return None;
            }
            let call = calls.get(*call as usize);
            let segments =
                |thread| Some(&self.threads[self.place(thread)?].nest.segments);
            let entry = cursor.at(call.global_tid, call.start_ns, segments);
            (entry != NONE).then(|| self.place(call.global_tid)).flatten().map(|at| (at as u32, entry))
        };
        self.trace.kernels.iter().zip(&launches.kernels).map(one).collect()
    }
}

/// Sums the kernels of a capture by operator.
pub fn device_times(trace: &NsysTrace, launches: &LaunchIndex) -> DeviceTimes {
    let nests = FrameworkNests::of(trace);
    let of_kernels = nests.of_kernels(launches);
    let mut times = DeviceTimes::default();
    let mut sums: HashMap<(usize, &str), DeviceTime> = HashMap::default();
    let mut called: HashSet<(u32, u32, usize)> = HashSet::default();
    let mut names: Vec<&str> = Vec::new();
    for (at, kernel) in trace.kernels.iter().enumerate() {
        let replayed = if kernel.graph_node.is_some() { kernel.ns() } else { 0 };
        times.replayed_ns += replayed;
        let Some((thread, innermost)) = of_kernels[at] else { continue };
        times.replayed_known_ns += replayed;
        let stage = launches.stage_number(launches.kernels[at].1);
        let nest = &nests.threads[thread as usize];
        names.clear();
        let mut entry = innermost;
        while let Some((_, parent)) = nest.nest.entries.get(entry as usize) {
            let name = nests.name(nest.items[entry as usize]);
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
            let is_outermost = !outer(nest, entry).any(|it| nests.name(nest.items[it as usize]) == name);
            if is_outermost && called.insert((thread, entry, stage)) {
                sum.calls += 1;
            }
            entry = *parent;
        }
    }
    let named = |((number, name), time): ((usize, &str), DeviceTime)| {
        // Operators outside every stage have an empty stage, unlike their kernels.
        let stage = if number == 0 { "" } else { launches.stage_label(number) };
        ((stage.to_owned(), name.to_owned()), time)
    };
    times.operators = sums.into_iter().map(named).collect();
    times
}

/// The entries around an entry, innermost first.
pub fn outer(nest: &ThreadNest, entry: u32) -> impl Iterator<Item = u32> + '_ {
    let parent = |entry: &u32| nest.nest.entries.get(*entry as usize).map(|it| it.1);
    std::iter::successors(parent(&entry), move |it| parent(it)).take_while(|it| *it != NONE)
}
