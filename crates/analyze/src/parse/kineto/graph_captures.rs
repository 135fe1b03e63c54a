//! Captures of graphs in a trace: the launches between the start and the end of a capture on its
//! thread, with the operators around them.
//!
//! A trace is of captures alone if nearly none of its launches has a kernel: the launches of a
//! stream under capture are recorded into the graph and do not run.

use std::{cmp::Reverse, collections::BTreeMap};

use foldhash::{HashMap, HashSet};
use llmprof_core::trace::{
    graph_capture::{
        CapturedGraph, CapturedLaunch, CapturedOperator, GraphCaptures, NodeWork, capture_range,
    },
    range::Range,
    runtime_call::CallKind,
    timeline::ApiCall,
};

use super::{
    launch_args::LaunchArgs,
    rows::{FileRows, HostRow},
    sites,
    text::{Header, Tables},
};
use crate::parse::capture_path::CapturePath;

/// Minimum number of launches for each kernel in a trace of captures only.
const MIN_LAUNCHES: usize = 4;

/// Captures of one trace.
#[derive(Debug, Default)]
pub struct FileCaptures {
    pub graphs: Vec<CapturedGraph>,
    pub operators: Vec<CapturedOperator>,
    /// True if the trace has captures and no other work.
    pub is_alone: bool,
}

/// Finds the captures of a trace.
pub fn captures(
    path: &CapturePath,
    header: &Header,
    rows: &FileRows,
    tables: &mut Tables,
) -> FileCaptures {
    let kinds: Vec<CallKind> = rows
        .calls
        .sites()
        .iter()
        .map(|(name, _)| CallKind::of(tables.strings.get(*name)))
        .collect();
    let is_named = rows.ranges.iter().any(|it| capture_range(&it.name).is_some());
    if !is_named && !kinds.iter().any(|it| it.bounds_capture()) {
        return FileCaptures::default();
    }
    let spans = spans(rows, &kinds);
    let captured: usize = spans.iter().map(|it| it.calls.len()).sum();
    let launches = if is_named { launches(rows, &kinds) } else { captured };
    let mut found = FileCaptures {
        is_alone: launches > 0
            && rows.kernels.len() * MIN_LAUNCHES <= launches
            && !kinds.contains(&CallKind::Graph),
        ..FileCaptures::default()
    };
    let args: HashMap<u32, LaunchArgs> = rows.launch_args.iter().collect();
    let sites: HashMap<u32, u32> =
        sites::call_sites(rows, rows.threads.len(), &tables.strings).into_iter().collect();
    let mut open = OpenOperators::of(rows, &spans, tables);
    let named = rows.ranges.iter().filter(|it| capture_range(&it.name).is_some());
    let named: Vec<&Range> = named.collect();
    for span in spans.iter().filter(|it| !it.calls.is_empty()) {
        let launch = |(kind, call): &(CallKind, ApiCall)| {
            let id = u32::try_from(call.correlation_id).unwrap_or(0);
            let args = args.get(&id).copied().unwrap_or_default();
            CapturedLaunch {
                at_ns: call.start_ns,
                work: node_work(*kind),
                call: call.name,
                kernel: args.kernel,
                grid: args.grid,
                block: args.block,
                call_site: sites.get(&id).copied(),
            }
        };
        let name = span.range(&named).and_then(|it| capture_range(&it.name));
        let first = found.operators.len() as u32;
        found.operators.extend(open.during(span));
        found.graphs.push(CapturedGraph {
            file: path.name(),
            process: None,
            rank: rank(&path.name(), header),
            batch: name.map(|it| it.0),
            mode: name.map(|it| it.1.to_owned()),
            launches: span.calls.iter().map(launch).collect(),
            operators: first..found.operators.len() as u32,
            is_whole: span.has_start && span.end_ns.is_some(),
            is_forked: span.is_forked,
        });
    }
    found
}

const fn node_work(kind: CallKind) -> NodeWork {
    match kind {
        CallKind::Copy { .. } => NodeWork::Copy,
        CallKind::Fill { .. } => NodeWork::Fill,
        _ => NodeWork::Kernel,
    }
}

/// Launches of kernels in a trace, each once.
fn launches(rows: &FileRows, kinds: &[CallKind]) -> usize {
    let sites: Vec<bool> = kinds.iter().map(|it| *it == CallKind::Kernel).collect();
    let ids: HashSet<i64> = rows.calls.at_sites(&sites).map(|it| it.2.correlation_id).collect();
    ids.len()
}

/// Rank of the process, by the header or by the name of the file: `bs_32_rank0.json.gz`.
fn rank(name: &str, header: &Header) -> Option<u32> {
    let written = header.distributed.as_ref().and_then(|it| it.rank.value);
    let from_name = || {
        let (_, after) = name.rsplit_once("rank")?;
        let after = after.trim_start_matches(['_', '-']);
        after.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
    };
    written.and_then(|it| u32::try_from(it).ok()).or_else(from_name)
}

/// The calls of one capture.
#[derive(Debug)]
struct CaptureSpan {
    thread: u32,
    start_ns: i64,
    /// `None` if the trace ends before.
    end_ns: Option<i64>,
    has_start: bool,
    is_forked: bool,
    calls: Vec<(CallKind, ApiCall)>,
}

/// The captures of a trace in order of thread and time.
fn spans(rows: &FileRows, kinds: &[CallKind]) -> Vec<CaptureSpan> {
    let is_node = |it: CallKind| {
        matches!(it, CallKind::Kernel | CallKind::Copy { .. } | CallKind::Fill { .. })
    };
    let sites: Vec<bool> = kinds
        .iter()
        .zip(rows.calls.sites())
        .map(|(kind, (name, _))| {
            is_node(*kind) || kind.bounds_capture() || rows.waits_on_stream.contains(name)
        })
        .collect();
    let mut threads: BTreeMap<i64, Vec<(CallKind, ApiCall)>> = BTreeMap::new();
    for (_, site, call) in rows.calls.at_sites(&sites) {
        threads.entry(call.global_tid).or_default().push((kinds[site as usize], call));
    }
    threads.retain(|_, calls| calls.iter().any(|(kind, _)| kind.bounds_capture()));
    let mut found = Vec::new();
    for (thread, mut calls) in threads {
        calls.sort_by_key(|(_, call)| (call.start_ns, Reverse(call.end_ns)));
        let bounds = calls.iter().map(|(kind, _)| *kind).find(|it| it.bounds_capture());
        let new = |start_ns, has_start| CaptureSpan {
            thread: thread as u32,
            start_ns,
            end_ns: None,
            has_start,
            is_forked: false,
            calls: Vec::new(),
        };
        let mut open = (bounds == Some(CallKind::EndCapture)).then(|| new(i64::MIN, false));
        for (kind, call) in calls {
            match (kind, &mut open) {
                (CallKind::BeginCapture, _) => {
                    found.extend(open.take());
                    open = Some(new(call.start_ns, true));
                }
                (CallKind::EndCapture, Some(span)) => {
                    span.end_ns = Some(call.end_ns);
                    found.extend(open.take());
                }
                (kind, Some(span)) if is_node(kind) => span.add(kind, call),
                (_, Some(span)) => span.is_forked = true,
                _ => {}
            }
        }
        found.extend(open);
    }
    found
}

impl CaptureSpan {
    /// Adds a launch, unless it is the driver's row of the runtime's call before.
    fn add(&mut self, kind: CallKind, call: ApiCall) {
        let last = self.calls.last().map(|(_, last)| last.correlation_id);
        if call.correlation_id <= 0 || last != Some(call.correlation_id) {
            self.calls.push((kind, call));
        }
    }

    /// Innermost range of a capture around it.
    fn range<'a>(&self, named: &[&'a Range]) -> Option<&'a Range> {
        let (_, call) = self.calls.first()?;
        let is_around = |it: &&&Range| {
            let until = it.end_ns.unwrap_or(it.start_ns);
            call.global_tid == it.global_tid && (it.start_ns..until).contains(&call.start_ns)
        };
        named.iter().filter(is_around).max_by_key(|it| it.start_ns).copied()
    }
}

/// Operators and ranges of capturing threads, read in the order of the captures.
struct OpenOperators {
    /// In order of thread and start, from the outermost.
    rows: Vec<(u32, CapturedOperator)>,
    next: usize,
    /// Items before `next` that may still be open.
    open: Vec<(u32, CapturedOperator)>,
}

impl OpenOperators {
    fn of(rows: &FileRows, spans: &[CaptureSpan], tables: &mut Tables) -> Self {
        let threads: HashSet<u32> = spans.iter().map(|it| it.thread).collect();
        let of_row = |it: &HostRow| {
            let HostRow { start_ns, end_ns, name: signature, .. } = *it;
            (it.thread, CapturedOperator { start_ns, end_ns, signature, is_range: false })
        };
        let calls = rows.operators.iter().filter(|it| threads.contains(&it.thread));
        let mut found: Vec<(u32, CapturedOperator)> = calls.map(of_row).collect();
        for it in rows.ranges.iter().filter(|it| capture_range(&it.name).is_none()) {
            let thread = it.global_tid as u32;
            if threads.contains(&thread) {
                let signature = tables.signatures.index(&it.name, "", "", "");
                let (start_ns, end_ns) = (it.start_ns, it.end_ns.unwrap_or(it.start_ns));
                let range = CapturedOperator { start_ns, end_ns, signature, is_range: true };
                found.push((thread, range));
            }
        }
        found.sort_by_key(|(thread, it)| (*thread, it.start_ns, Reverse(it.end_ns)));
        Self { rows: found, next: 0, open: Vec::new() }
    }

    /// The operators that were open during a capture, which follows the one before.
    fn during(&mut self, span: &CaptureSpan) -> Vec<CapturedOperator> {
        let until = span.end_ns.unwrap_or(i64::MAX);
        while let Some((thread, it)) = self.rows.get(self.next)
            && (*thread, it.start_ns) < (span.thread, until)
        {
            self.open.push((*thread, *it));
            self.next += 1;
        }
        self.open.retain(|(thread, it)| *thread == span.thread && it.end_ns > span.start_ns);
        self.open.iter().map(|(_, it)| *it).collect()
    }
}

impl FileCaptures {
    /// Adds the captures of this file; `process` captured them if the trace has other work.
    pub fn add_to(self, all: &mut GraphCaptures, process: Option<i64>) {
        let first = all.operators.len() as u32;
        all.operators.extend(self.operators);
        all.graphs.extend(self.graphs.into_iter().map(|it| CapturedGraph {
            process,
            operators: it.operators.start + first..it.operators.end + first,
            ..it
        }));
    }
}
