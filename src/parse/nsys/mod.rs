//! An nsys SQLite export, to values: those of 2021 without a schema's number, and schemas 3.0 (2022.4) to 3.20 (2025.3). The long tables are scanned; for each other one there is a
//! query in a file under `sql/`.
//!
//! Tables exist only where something was recorded, and columns come and go with versions: what is missing is a gap. An export also
//! holds the environments of processes; of its strings only those are read that name a process, a kernel, a call or a range.

mod columns;
mod export;
mod log;
mod names;
mod pages;
mod target;

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    thread,
};

use rusqlite::{Result, Row};

use self::{
    export::{Export, Numbers, Odd},
    names::Names,
};
use super::ParseError;
use crate::{
    artifact::packed,
    run::{Finding, Severity},
    trace::{
        environment::Environment,
        kernel::{Kernel, Kernels},
        nsys::{ApiCall, ApiCalls, CopyKind, GraphLaunch, GraphNode, MemoryOp, NsysTrace, pid_of, process_of},
        range::Range,
        stage::{StageRules, UnknownRange},
    },
};

/// Farthest from zero that a time may lie, nanoseconds: 73 years, in which clocks that count from 1970 have room.
const FARTHEST: i64 = 1 << 61;
/// Longest that something may last, nanoseconds: 52 days. With it a thousand rows that lie still sum up to a number.
const LONGEST: i64 = 1 << 52;
/// Room for the names of all ranges, bytes.
const MAX_NAMES: usize = 256 << 20;

/// Whether something can have begun and ended so.
const fn possible(start_ns: i64, end_ns: i64) -> bool {
    -FARTHEST <= start_ns && start_ns <= end_ns && end_ns <= FARTHEST && end_ns - start_ns <= LONGEST
}

/// Says whether an export in `path` can be read, by its header, its schema and what it says of itself alone.
pub fn check(path: &Path) -> std::result::Result<(), ParseError> {
    log::refuse(path)?;
    Export::open(path)?.facts().map(|_| ())
}

/// Reads the export in `path`. Blocks, in time and memory linear in the size of the file. A packed one is unpacked first.
pub fn read(path: &Path) -> std::result::Result<NsysTrace, ParseError> {
    log::refuse(path)?;
    let unread = |source| ParseError::Read { path: path.into(), source };
    let plain = packed::plain(path).map_err(unread)?;
    let logged = || log::finding(plain.path()).map_err(unread);
    let path = plain.path();
    let export = Export::open(path)?;
    // The two long tables are read side by side, each by a connection of its own.
    let (rest, calls) = thread::scope(|scope| {
        let calls = scope.spawn(|| cuda_calls(path));
        let rest = others(&export);
        (rest, calls.join())
    });
    let (mut trace, mut names, unnamed) = rest?;
    let (mut calls, theirs, impossible) = calls.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let indices: Vec<u32> = theirs.ids().iter().map(|id| names.index(*id)).collect();
    calls.rename(|name| indices[name as usize]);
    trace.cuda_calls = calls;
    trace.impossible_rows += impossible;

    trace.strings = names.resolve(&export)?;
    trace.ranges = named(unnamed, &trace.strings, &export)?;

    trace.findings.extend(logged()?);
    trace.findings.extend(gaps(&export)?);

    // Launch order and start order are what analysis walks in; the exports come in it, but nothing promises that.
    trace.kernels.sort();
    trace.cuda_calls.sort();
    trace.os_calls.sort();
    trace.copies.sort_by_key(|copy| copy.start_ns);
    trace.graphs.sort_by_key(|graph| graph.start_ns);
    trace.ranges.sort_by_key(|r| (r.start_ns, std::cmp::Reverse(r.end_ns.unwrap_or(i64::MAX))));
    Ok(trace)
}

/// Checks that the export in `path` holds the ranges that `rules` name.
pub fn check_rules(path: &Path, rules: &StageRules) -> std::result::Result<std::result::Result<(), UnknownRange>, ParseError> {
    if !rules.names_ranges() {
        return Ok(Ok(()));
    }
    let (export, mut names) = (Export::open(path)?, Names::default());
    let unnamed = unnamed(&export, &mut names)?;
    let ranges = named(unnamed, &names.resolve(&export)?, &export)?;
    Ok(rules.check(ranges.iter().map(|it| (it.domain.as_str(), it.name.as_str()))))
}

/// Reads the names of ranges and of their domains.
fn named((domains, ranges): Unnamed, strings: &[String], export: &Export) -> std::result::Result<Vec<Range>, ParseError> {
    let domains: HashMap<_, _> = domains.into_iter().map(|(key, name)| (key, name.read(strings))).collect();
    // A few long names that many ranges bear would take more room than the file.
    let length = |(_, key, name): &(Range, DomainKey, Text)| name.len(strings) + domains.get(key).map_or(0, String::len);
    if ranges.iter().map(length).sum::<usize>() > MAX_NAMES {
        return Err(export.foreign("the names of its ranges take more room than those of any program"));
    }
    let named = |(range, key, name): (Range, DomainKey, Text)| Range {
        domain: domains.get(&key).cloned().unwrap_or_else(|| unnamed_domain(key)),
        name: name.read(strings),
        ..range
    };
    Ok(ranges.into_iter().map(named).collect())
}

/// Domains and ranges, without their names.
fn unnamed(export: &Export, names: &mut Names) -> std::result::Result<Unnamed, ParseError> {
    let domains = export.rows("NVTX_EVENTS", include_str!("sql/domains.sql"), |row| {
        Ok((domain_key(row.get("domain")?, row.get("thread")?), text(row, names)?))
    })?;
    let ranges = export.rows("NVTX_EVENTS", include_str!("sql/ranges.sql"), |row| range(row, names))?;
    Ok((domains, ranges))
}

/// Domains and ranges whose names are not read yet.
type Unnamed = (Vec<(DomainKey, Text)>, Vec<(Range, DomainKey, Text)>);

/// Everything but the CUDA calls.
fn others(export: &Export) -> std::result::Result<(NsysTrace, Names, Unnamed), ParseError> {
    let mut names = Names::default();
    let mut trace = NsysTrace { tables: export.tables().to_vec(), ..NsysTrace::default() };
    for (name, value) in export.facts()? {
        match name.as_str() {
            "EXPORT_PRODUCT_VERSION" => trace.tool_version = Some(value),
            "EXPORT_SCHEMA_VERSION" => trace.schema_version = Some(value),
            _ => {}
        }
    }
    let process = |row: &Row| Ok((process_of(or_zero(row, 0)?), export::string(row, 1)?));
    trace.processes = export.rows("PROCESSES", include_str!("sql/processes.sql"), process)?.into_iter().collect();
    trace.processes.retain(|_, name| !name.is_empty());
    let gpus = Gpus(export.rows("TARGET_INFO_CUDA_DEVICE", include_str!("sql/cuda_devices.sql"), gpu)?);
    let (mut kernels, mut impossible) = (Kernels::default(), 0);
    export.scan("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, |row| {
        let mut kernel = kernel(row, &mut names)?;
        kernel.device = gpus.of(kernel.global_pid, kernel.device);
        if possible(kernel.start_ns, kernel.end_ns) {
            kernels.push(kernel)
        } else {
            impossible += 1
        }
        Ok(())
    })?;
    trace.kernels = kernels;
    trace.copies = export.rows("CUPTI_ACTIVITY_KIND_MEMCPY", include_str!("sql/copies.sql"), memory_op)?;
    trace.copies.extend(export.rows("CUPTI_ACTIVITY_KIND_MEMSET", include_str!("sql/sets.sql"), memory_op)?);
    trace.copies.iter_mut().for_each(|it| it.device = gpus.of(it.global_pid, it.device));
    let read = trace.copies.len();
    trace.copies.retain(|it| possible(it.start_ns, it.end_ns));
    impossible += (read - trace.copies.len()) as u64;
    impossible += graph_launches(export, &gpus, &mut trace)?;
    trace.graph_nodes = export.rows("CUDA_GRAPH_NODE_EVENTS", include_str!("sql/graph_nodes.sql"), graph_node)?;
    let copied = trace.copies.iter().map(|it| it.device).chain(trace.graphs.iter().map(|it| it.device));
    let used: BTreeSet<u32> = trace.kernels.kinds().iter().map(|kind| kind.device).chain(copied).collect();
    trace.target = Environment { nsys: trace.tool_version.clone(), ..target::read(export, &used)? };
    let (calls, left_out) = calls(export, "OSRT_API", OS_CALL, &mut names)?;
    trace.os_calls = calls;
    impossible += left_out;
    let (domains, mut ranges) = unnamed(export, &mut names)?;
    let read = ranges.len();
    ranges.retain(|(it, ..)| possible(it.start_ns, it.end_ns.unwrap_or(it.start_ns)));
    trace.impossible_rows = impossible + (read - ranges.len()) as u64;
    trace.diagnostics = export
        .rows("DIAGNOSTIC_EVENT", include_str!("sql/diagnostics.sql"), |row| Ok(export::string(row, 0)?.trim().to_owned()))?;
    Ok((trace, names, (domains, ranges)))
}

/// Columns without which rows are read and joined to nothing: what they are for is left out of the figures.
const JOINS: [(&str, &[&str], &str); 3] = [
    ("CUPTI_ACTIVITY_KIND_KERNEL", &["correlationId", "globalPid"], "kernels have no launch, so no stage and no operator"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", &["correlationId", "globalTid"], "launches belong to no thread, so to no range"),
    ("NVTX_EVENTS", &["globalTid", "eventType", "start"], "ranges belong to no thread, or are not told from marks"),
];

/// What the export's tables lack, as findings.
fn gaps(export: &Export) -> std::result::Result<Vec<Finding>, ParseError> {
    let mut findings = Vec::new();
    for (table, columns, effect) in JOINS {
        let lacks = export.lacks(table, columns)?;
        if !lacks.is_empty() {
            let message = format!("{table} lacks the columns {}: {effect}", lacks.join(", "));
            let advice = "export the report again with the nsys that took it (nsys export --type sqlite)";
            findings.push(Finding::new("nsys_columns_missing", Severity::Warning, message).advise(advice));
        }
    }
    Ok(findings)
}

/// The calls of CUDA, their names, and how many were left out.
fn cuda_calls(path: &Path) -> std::result::Result<(ApiCalls, Names, u64), ParseError> {
    let mut names = Names::default();
    let (calls, left_out) = calls(&Export::open(path)?, "CUPTI_ACTIVITY_KIND_RUNTIME", CUDA_CALL, &mut names)?;
    Ok((calls, names, left_out))
}

/// The calls in `table`, and how many were left out since they cannot have been.
fn calls<const N: usize>(
    export: &Export,
    table: &'static str,
    columns: [&'static str; N],
    names: &mut Names,
) -> std::result::Result<(ApiCalls, u64), ParseError> {
    let (mut calls, mut impossible) = (ApiCalls::default(), 0);
    export.scan(table, columns, |row| {
        let call = call(row, names)?;
        if possible(call.start_ns, call.end_ns) {
            calls.push(call)
        } else {
            impossible += 1
        }
        Ok(())
    })?;
    Ok((calls, impossible))
}

/// Reads the launches of graphs that were traced as a whole; returns how many were left out.
fn graph_launches(export: &Export, gpus: &Gpus, trace: &mut NsysTrace) -> std::result::Result<u64, ParseError> {
    let graphs = export.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", include_str!("sql/graphs.sql"), graph_launch)?;
    let read = graphs.len();
    let timed = graphs.into_iter().filter(|it| (it.start_ns, it.end_ns) != (0, 0) && possible(it.start_ns, it.end_ns));
    trace.graphs = timed.map(|it| GraphLaunch { device: gpus.of(it.global_pid, it.device), ..it }).collect();
    // A graph whose first node runs on the host has no device of its own: it is that of its process, where there is one.
    for at in (0..trace.graphs.len()).filter(|at| trace.graphs[*at].device == ON_HOST).collect::<Vec<_>>() {
        let process = process_of(trace.graphs[at].global_pid);
        let kernels = trace.kernels.kinds().iter().map(|it| (it.global_pid, it.device));
        let others = kernels.chain(trace.graphs.iter().map(|it| (it.global_pid, it.device)));
        let mut devices: Vec<u32> = others.filter(|it| process_of(it.0) == process && it.1 != ON_HOST).map(|it| it.1).collect();
        devices.sort_unstable();
        devices.dedup();
        trace.graphs[at].device = if let [device] = devices[..] { device } else { ON_HOST };
    }
    Ok((read - trace.graphs.len()) as u64)
}

/// CUPTI's device of a graph that starts on the host: `INT_MAX`.
const ON_HOST: u32 = i32::MAX as u32;

/// Devices that a process numbers in another way than the host: the process, its number, the host's.
struct Gpus(Vec<Option<(u32, u32, u32)>>);

impl Gpus {
    /// The number of the host's GPU that `process` calls `device`; that one where the export does not tell.
    fn of(&self, process: i64, device: u32) -> u32 {
        let of_process = |known: &&(u32, u32, u32)| (known.0, known.1) == (pid_of(process), device);
        self.0.iter().flatten().find(of_process).map_or(device, |known| known.2)
    }
}

fn gpu(row: &Row) -> Result<Option<(u32, u32, u32)>> {
    let (pid, device, gpu): (Option<u32>, Option<u32>, Option<u32>) = (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(pid.zip(device).zip(gpu).map(|((pid, device), gpu)| (pid, device, gpu)).filter(|(_, device, gpu)| device != gpu))
}

/// One row per kernel that ran on a device. `correlationId` is that of the call that launched it, in the same process; `graphNodeId` is
/// null unless a CUDA graph was traced by node.
const KERNEL: [&str; 16] = [
    "start",
    "end",
    "deviceId",
    "streamId",
    "correlationId",
    "globalPid",
    "shortName",
    "demangledName",
    "registersPerThread",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "graphNodeId",
];

fn kernel(row: &Numbers<16>, names: &mut Names) -> std::result::Result<Kernel, Odd> {
    Ok(Kernel {
        start_ns: row.get(0)?,
        end_ns: row.get(1)?,
        device: row.get(2)?,
        stream: row.get(3)?,
        correlation_id: row.some(4)?.unwrap_or_default(),
        global_pid: row.some(5)?.unwrap_or_default(),
        name: names.index(row.get(6)?),
        full_name: names.index(row.get(7)?),
        registers: row.get(8)?,
        grid: [row.get(9)?, row.get(10)?, row.get(11)?],
        block: [row.get(12)?, row.get(13)?, row.get(14)?],
        graph_node: row.some(15)?.map(i64::cast_unsigned),
    })
}

/// One row per call of the CUDA runtime or driver.
const CUDA_CALL: [&str; 5] = ["start", "end", "globalTid", "nameId", "correlationId"];
/// One row per call of the operating system that took long enough to be traced. They launch nothing that could correlate with them.
const OS_CALL: [&str; 4] = ["start", "end", "globalTid", "nameId"];

fn call<const N: usize>(row: &Numbers<N>, names: &mut Names) -> std::result::Result<ApiCall, Odd> {
    Ok(ApiCall {
        start_ns: row.get(0)?,
        end_ns: row.get(1)?,
        global_tid: row.some(2)?.unwrap_or_default(),
        name: names.index(row.get(3)?),
        correlation_id: if N > OS_CALL.len() { row.some(4)?.unwrap_or_default() } else { 0 },
    })
}

fn memory_op(row: &Row) -> Result<MemoryOp> {
    // CUPTI's numbers of what a copy connects; a fill has none.
    let kind = match row.get::<_, Option<i64>>(2)? {
        None => CopyKind::Set,
        Some(1 | 3 | 11) => CopyKind::HostToDevice,
        Some(2 | 4 | 12) => CopyKind::DeviceToHost,
        Some(5..=8) => CopyKind::DeviceToDevice,
        Some(_) => CopyKind::Other,
    };
    Ok(MemoryOp {
        start_ns: row.get(0)?,
        end_ns: row.get(1)?,
        kind,
        bytes: or_zero(row, 3)?.cast_unsigned(),
        device: row.get(4)?,
        global_pid: or_zero(row, 5)?,
        correlation_id: or_zero(row, 6)?,
        graph_node: row.get::<_, Option<i64>>(7)?.map(i64::cast_unsigned),
    })
}

fn graph_launch(row: &Row) -> Result<GraphLaunch> {
    Ok(GraphLaunch {
        start_ns: row.get(0)?,
        end_ns: row.get(1)?,
        device: row.get::<_, Option<u32>>(2)?.unwrap_or_default(),
        stream: row.get::<_, Option<u32>>(3)?.unwrap_or_default(),
        global_pid: or_zero(row, 4)?,
        correlation_id: or_zero(row, 5)?,
        graph: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
    })
}

fn graph_node(row: &Row) -> Result<GraphNode> {
    Ok(GraphNode {
        at_ns: row.get(0)?,
        global_tid: or_zero(row, 1)?,
        id: row.get::<_, i64>(2)?.cast_unsigned(),
        original: row.get::<_, Option<i64>>(3)?.map(i64::cast_unsigned),
    })
}

fn or_zero(row: &Row, column: usize) -> Result<i64> {
    Ok(row.get::<_, Option<i64>>(column)?.unwrap_or_default())
}

/// A domain's id counts per process, which the upper bits of a thread's id tell.
type DomainKey = (Option<i64>, i64);

fn domain_key(domain: Option<i64>, thread: Option<i64>) -> DomainKey {
    const THREAD_BITS: u32 = 24;
    (domain, thread.unwrap_or_default() >> THREAD_BITS)
}

fn unnamed_domain((domain, _): DomainKey) -> String {
    match domain {
        None | Some(0) => String::new(),
        Some(id) => format!("#{id}"),
    }
}

/// A range without its names yet, the key of its domain, and its name.
fn range(row: &Row, names: &mut Names) -> Result<(Range, DomainKey, Text)> {
    let thread: Option<i64> = row.get("thread")?;
    let range = Range {
        domain: String::new(),
        name: String::new(),
        start_ns: row.get("start_ns")?,
        end_ns: row.get("end_ns")?,
        global_tid: thread.unwrap_or_default(),
        push_pop: row.get("push_pop")?,
    };
    Ok((range, domain_key(row.get("domain")?, thread), text(row, names)?))
}

/// A text of NVTX: inline, or a registered string.
enum Text {
    Inline(String),
    Registered(u32),
}

fn text(row: &Row, names: &mut Names) -> Result<Text> {
    Ok(match row.get::<_, Option<i64>>("text_id")? {
        Some(id) => Text::Registered(names.index(id)),
        None => Text::Inline(export::string(row, "text")?),
    })
}

impl Text {
    fn len(&self, strings: &[String]) -> usize {
        match self {
            Self::Inline(text) => text.len(),
            Self::Registered(index) => strings.get(*index as usize).map_or(0, String::len),
        }
    }

    fn read(self, strings: &[String]) -> String {
        match self {
            Self::Inline(text) => text,
            Self::Registered(index) => strings.get(index as usize).cloned().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
