//! Reader of nsys SQLite exports: exports of 2021 without a schema number, and schemas 3.0 (2022.4)
//! to 3.20 (2025.3). The long tables are scanned; each other table has a query in a file under
//! `sql/`.
//!
//! Tables exist only if something was recorded, and columns differ between versions: missing ones
//! are gaps. An export also contains the environments of processes; only strings that name a
//! process, a kernel, a call or a range are read.

mod columns;
mod export;
mod gpu_metrics;
mod host_cpu;
mod layout;
mod log;
mod names;
mod open;
mod pages;
mod ranges;
mod rows;
mod target;

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
};

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::{
        clocks::WaitTarget,
        environment::Environment,
        kernel::KernelTrace,
        range,
        stage::{StageRules, UnknownRange},
        timeline::{ApiCalls, GraphLaunch, ON_HOST, Timeline, process_of},
        untimed::TimeFault,
    },
};
use rusqlite::Row;

use self::{
    export::Export,
    names::StringTable,
    ranges::{UnnamedRanges, unnamed},
    rows::{
        CUDA_CALL, Gpus, KERNEL, OS_CALL, call, gpu, graph_launch, graph_node, kernel, memory_op,
        or_zero, symbol, wait_target,
    },
};
use super::{ParseError, capture_path::CapturePath, kernel_fault, possible_interval as possible};

/// Checks that an export is readable, by only its header, schema and metadata.
pub fn check(file: impl Into<CapturePath>) -> Result<(), ParseError> {
    let file = file.into();
    log::refuse(&file)?;
    Export::open(&file)?.facts().map(|_| ())
}

/// Reads an export. Blocks; time and memory are linear in the size of the file. A packed one is
/// unpacked first.
pub fn read(file: impl Into<CapturePath>) -> Result<Timeline, ParseError> {
    let named = file.into();
    log::refuse(&named)?;
    let unread = |source| ParseError::Read { path: named.shown().into(), source };
    let plain = named.plain().map_err(unread)?;
    let logged = || log::finding(plain.path()).map_err(unread);
    let file = &named.with_data(plain.path());
    let export = Export::open(file)?;
    // The long tables are read concurrently over separate connections.
    let (rest, calls, samples, host_cpu) = thread::scope(|scope| {
        let calls = scope.spawn(|| cuda_calls(file));
        let samples = scope.spawn(|| gpu_metrics::read(&Export::open(file)?));
        let host_cpu = scope.spawn(|| host_cpu::read(&Export::open(file)?));
        let rest = others(&export);
        (rest, calls.join(), samples.join(), host_cpu.join())
    });
    let (mut trace, mut names, unnamed) = rest?;
    trace.samples = samples.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let (mut calls, theirs, impossible) =
        calls.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let indices: Vec<u32> = theirs.ids().iter().map(|id| names.index(*id)).collect();
    calls.rename(|name| indices[name as usize]);
    trace.cuda_calls = calls;
    let host_cpu = host_cpu.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    trace.host_cpu = host_cpu.map(|(mut host, theirs)| {
        let indices: Vec<u32> = theirs.ids().iter().map(|id| names.index(*id)).collect();
        host.rename(|name| indices[name as usize]);
        host
    });
    trace.impossible_rows += impossible;
    trace.drop_repeated_calls();

    trace.strings = names.resolve(&export)?;
    trace.recorded_ns = unnamed.recorded_until;
    trace.ranges = unnamed.named(&export)?;

    trace.findings.extend(logged()?);
    trace.findings.extend(gaps(&export)?);
    trace.findings.extend(names::absent_names(&trace.strings));

    // Analysis requires launch order and start order; exports usually have it, without a guarantee.
    trace.os_calls.sort();
    trace.copies.sort_by_key(|copy| copy.start_ns);
    trace.graphs.sort_by_key(|graph| graph.start_ns);
    range::sort(&mut trace.ranges);
    trace.settle_device_times();
    Ok(trace)
}

/// Checks that an export holds the ranges that `rules` name.
pub fn check_rules(
    file: impl Into<CapturePath>,
    rules: &StageRules,
) -> Result<Result<(), UnknownRange>, ParseError> {
    if !rules.names_ranges() {
        return Ok(Ok(()));
    }
    let export = Export::open(&file.into())?;
    let ranges = unnamed(&export)?.named(&export)?;
    Ok(rules.check(ranges.iter().map(|it| (it.domain.as_str(), it.name.as_str()))))
}

/// Everything but the CUDA calls.
fn others(export: &Export) -> Result<(Timeline, StringTable, UnnamedRanges), ParseError> {
    let mut names = StringTable::default();
    let mut trace = Timeline { tables: export.tables().to_vec(), ..Timeline::default() };
    for (name, value) in export.facts()? {
        match name.as_str() {
            "EXPORT_PRODUCT_VERSION" => trace.tool_version = Some(value),
            "EXPORT_SCHEMA_VERSION" => trace.schema_version = Some(value),
            _ => {}
        }
    }
    trace.requested = requested(export)?;
    let process = |row: &Row| Ok((process_of(or_zero(row, 0)?), export::string(row, 1)?));
    trace.processes =
        export.rows("PROCESSES", include_str!("sql/processes.sql"), process)?.into_iter().collect();
    trace.processes.retain(|_, name| !name.is_empty());
    let gpus =
        Gpus(export.rows("TARGET_INFO_CUDA_DEVICE", include_str!("sql/cuda_devices.sql"), gpu)?);
    let mut impossible = kernels(export, &gpus, &mut names, &mut trace)?;
    trace.copies =
        export.rows("CUPTI_ACTIVITY_KIND_MEMCPY", include_str!("sql/copies.sql"), memory_op)?;
    trace.copies.extend(export.rows(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        include_str!("sql/sets.sql"),
        memory_op,
    )?);
    trace.copies.iter_mut().for_each(|it| it.device = gpus.of(it.global_pid, it.device));
    trace.copies.retain(|it| match TimeFault::of(it.start_ns, it.end_ns) {
        Some(fault) => {
            trace.untimed.add_copy(fault);
            false
        }
        None => true,
    });
    let read = trace.copies.len();
    trace.copies.retain(|it| possible(it.start_ns, it.end_ns));
    impossible += (read - trace.copies.len()) as u64;
    impossible += graph_launches(export, &gpus, &mut trace)?;
    trace.wait_targets = wait_targets(export, &gpus)?;
    trace.graph_nodes =
        export.rows("CUDA_GRAPH_NODE_EVENTS", include_str!("sql/graph_nodes.sql"), graph_node)?;
    trace.number_graphs();
    let copied =
        trace.copies.iter().map(|it| it.device).chain(trace.graphs.iter().map(|it| it.device));
    let used = trace.kernels.kinds().iter().map(|kind| kind.device).chain(copied);
    let used: BTreeSet<u32> = used.filter(|device| *device != ON_HOST).collect();
    trace.started_unix_ns = export
        .rows("TARGET_INFO_SESSION_START_TIME", include_str!("sql/session.sql"), |row| row.get(0))?
        .into_iter()
        .find(|started: &i64| *started > 0);
    trace.target = Environment { nsys: trace.tool_version.clone(), ..target::read(export, &used)? };
    let (calls, left_out) = calls(export, "OSRT_API", OS_CALL, &mut names)?;
    trace.os_calls = calls;
    impossible += left_out;
    let ranges = unnamed(export)?;
    trace.impossible_rows = impossible + ranges.impossible;
    trace.diagnostics =
        export.rows("DIAGNOSTIC_EVENT", include_str!("sql/diagnostics.sql"), |row| {
            Ok(export::string(row, 0)?.trim().to_owned())
        })?;
    Ok((trace, names, ranges))
}

/// Kinds of events that nsys was to record. Older exports do not list them: there, the profiler's
/// own work shows whether a process started to record CUDA.
fn requested(export: &Export) -> Result<Vec<String>, ParseError> {
    let sql = include_str!("sql/requested.sql");
    let listed = export.rows("META_DATA_CAPTURE", sql, |row| export::string(row, 0))?;
    if !listed.is_empty() {
        return Ok(listed);
    }
    // An id of another type is not one of these.
    let id = |row: &Row| Ok(row.get::<_, Option<i64>>(0).unwrap_or_default());
    let started = export.rows("StringIds", include_str!("sql/initialization.sql"), id)?;
    let works = export.rows("PROFILER_OVERHEAD", include_str!("sql/overheads.sql"), id)?;
    let is_started = started.iter().any(|it| it.is_some() && works.contains(it));
    Ok(is_started.then(|| "Cuda".to_owned()).into_iter().collect())
}

/// Reads the kernels and their symbols, sorted; returns the number of impossible rows.
fn kernels(
    export: &Export,
    gpus: &Gpus,
    names: &mut StringTable,
    trace: &mut Timeline,
) -> Result<u64, ParseError> {
    let (mut kernels, mut impossible) = (KernelTrace::default(), 0);
    // By index of the full name.
    let mut symbols: Vec<Option<u32>> = Vec::new();
    export.scan("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, |row| {
        let mut kernel = kernel(row, names)?;
        let full_name = kernel.full_name as usize;
        if symbols.get(full_name).is_none_or(Option::is_none) {
            symbols.resize(symbols.len().max(full_name + 1), None);
            symbols[full_name] = symbol(row)?.map(|id| names.index(id));
        }
        kernel.device = gpus.of(kernel.global_pid, kernel.device);
        if let Some(fault) = kernel_fault(kernel.start_ns, kernel.end_ns) {
            let by_ns = kernel.start_ns - kernel.end_ns;
            trace.untimed.add_kernel(kernel, fault, by_ns);
        } else if possible(kernel.start_ns, kernel.end_ns) {
            kernels.push(kernel)
        } else {
            impossible += 1
        }
        Ok(())
    })?;
    trace.kernels = kernels;
    let known = symbols.iter().zip(0..).filter_map(|(symbol, full)| Some((full, (*symbol)?)));
    trace.symbols = known.collect();
    // While the other tables are read.
    trace.kernels.sort();
    trace.drop_repeated_kernels();
    Ok(impossible)
}

/// Reads the targets of waits, sorted.
fn wait_targets(export: &Export, gpus: &Gpus) -> Result<Vec<WaitTarget>, ParseError> {
    let (table, sql) = ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", include_str!("sql/waits.sql"));
    let mut targets = Vec::new();
    export.each(table, sql, |row| {
        targets.extend(wait_target(row)?.map(|it| {
            let device = it.device.map(|device| gpus.of(it.process, device));
            WaitTarget { device, ..it }
        }));
        Ok(())
    })?;
    targets.sort_unstable();
    Ok(targets)
}

/// Columns that join rows: without them rows are read, but the figures that need the join are
/// missing.
const JOINS: [(&str, &[&str], &str); 3] = [
    (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        &["correlationId", "globalPid"],
        "kernels have no launch, so no stage and no operator",
    ),
    (
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        &["correlationId", "globalTid"],
        "launches belong to no thread, so to no range",
    ),
    (
        "NVTX_EVENTS",
        &["globalTid", "eventType", "start"],
        "ranges belong to no thread, or cannot be distinguished from marks",
    ),
];

/// The remedy for an export that lacks what its report has.
const EXPORT_AGAIN: &str =
    "export the report again with the nsys that took it (nsys export --type sqlite)";

/// Findings on missing columns.
fn gaps(export: &Export) -> Result<Vec<Finding>, ParseError> {
    let mut findings = Vec::new();
    for (table, columns, effect) in JOINS {
        let lacks = export.lacks(table, columns)?;
        if !lacks.is_empty() {
            let message = format!("{table} lacks the columns {}: {effect}", lacks.join(", "));
            findings
                .push(Finding::new(catalogue::NSYS_COLUMNS_MISSING, message).advise(EXPORT_AGAIN));
        }
    }
    Ok(findings)
}

/// The CUDA calls, their names, and the number of impossible rows.
fn cuda_calls(file: &CapturePath) -> Result<(ApiCalls, StringTable, u64), ParseError> {
    let mut names = StringTable::default();
    let (mut calls, left_out) =
        calls(&Export::open(file)?, "CUPTI_ACTIVITY_KIND_RUNTIME", CUDA_CALL, &mut names)?;
    calls.sort();
    Ok((calls, names, left_out))
}

/// The calls in `table`, and the number of impossible rows.
fn calls<const N: usize>(
    export: &Export,
    table: &'static str,
    columns: [&'static str; N],
    names: &mut StringTable,
) -> Result<(ApiCalls, u64), ParseError> {
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

/// Reads the launches of whole-traced graphs; returns the number of impossible rows.
fn graph_launches(export: &Export, gpus: &Gpus, trace: &mut Timeline) -> Result<u64, ParseError> {
    let graphs = export.rows(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        include_str!("sql/graphs.sql"),
        graph_launch,
    )?;
    let read = graphs.len();
    let is_timed = |it: &GraphLaunch| {
        TimeFault::of(it.start_ns, it.end_ns).is_none() && possible(it.start_ns, it.end_ns)
    };
    let timed = graphs.into_iter().filter(is_timed);
    trace.graphs =
        timed.map(|it| GraphLaunch { device: gpus.of(it.global_pid, it.device), ..it }).collect();
    let listed: Vec<Option<u32>> =
        export.rows("TARGET_INFO_GPU", "select {id} from TARGET_INFO_GPU", |row| row.get(0))?;
    place_graphs(trace, if let [only] = listed[..] { only } else { None });
    Ok((read - trace.graphs.len()) as u64)
}

/// Gives graphs whose first node runs on the host, which have no device, the only one of their
/// process; of several, the only one with work of the process on their stream; of none, the only
/// GPU of the host.
fn place_graphs(trace: &mut Timeline, only_gpu: Option<u32>) {
    if trace.graphs.iter().all(|it| it.device != ON_HOST) {
        return;
    }
    let mut devices: BTreeMap<(i64, Option<u32>), BTreeSet<u32>> = BTreeMap::new();
    let mut add = |process: i64, stream: Option<u32>, device: u32| {
        for stream in [None, stream].into_iter().filter(|_| device != ON_HOST) {
            devices.entry((process_of(process), stream)).or_default().insert(device);
        }
    };
    trace.kernels.kinds().iter().for_each(|it| add(it.global_pid, Some(it.stream), it.device));
    trace.graphs.iter().for_each(|it| add(it.global_pid, Some(it.stream), it.device));
    trace.copies.iter().for_each(|it| add(it.global_pid, None, it.device));
    let only = |process: i64, stream: Option<u32>| {
        let devices = devices.get(&(process_of(process), stream))?;
        devices.first().copied().filter(|_| devices.len() == 1)
    };
    for it in trace.graphs.iter_mut().filter(|it| it.device == ON_HOST) {
        let of_process = only(it.global_pid, None);
        let device = of_process.or_else(|| only(it.global_pid, Some(it.stream))).or(only_gpu);
        it.device = device.unwrap_or(ON_HOST);
    }
}

#[cfg(test)]
mod tests;
