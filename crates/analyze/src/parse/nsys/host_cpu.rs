//! Threads on the cores of the host, from `SCHED_EVENTS`, and samples of them, from
//! `COMPOSITE_EVENTS` with the innermost functions of `SAMPLING_CALLCHAINS`.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::trace::{
    host_cpu::{CpuSample, HostCpu, SampledFunction, Switch, Switches},
    timeline::process_of,
};

use super::{
    super::ParseError,
    export::{Export, string},
    names::StringTable,
    or_zero, possible,
};

const SWITCH: [&str; 4] = ["start", "cpu", "isSchedIn", "globalTid"];
/// Starts of the names of threads of the kernel, which no profiled command starts.
const KERNEL_THREADS: [&str; 4] = ["ksoftirqd/", "kworker/", "migration/", "rcu_"];

/// Reads the threads on cores; `None` for an export without switches and samples.
pub(super) fn read(export: &Export) -> Result<Option<(HostCpu, StringTable)>, ParseError> {
    let has = |name: &str| export.tables().iter().any(|table| table == name);
    if !has("SCHED_EVENTS") && !has("COMPOSITE_EVENTS") {
        return Ok(None);
    }
    let (mut switches, mut names) = (Switches::default(), StringTable::default());
    if export.lacks("SCHED_EVENTS", &SWITCH)?.is_empty() {
        export.scan("SCHED_EVENTS", SWITCH, |row| {
            let (at_ns, core) = (row.get(0)?, row.get(1)?);
            if possible(at_ns, at_ns) {
                let global_tid = row.some(3)?.unwrap_or_default();
                let is_to_core = row.get::<i64>(2)? != 0;
                switches.push(Switch { at_ns, core, global_tid, is_to_core });
            }
            Ok(())
        })?;
    }
    let mut host = HostCpu::of(switches);
    samples(export, &mut host, &mut names)?;
    if host.is_empty() {
        return Ok(None);
    }
    let threads: BTreeSet<i64> =
        host.runs().map(|it| it.global_tid).chain(host.samples().map(|it| it.global_tid)).collect();
    export.each("ThreadNames", include_str!("sql/thread_names.sql"), |row| {
        let (thread, name) = (or_zero(row, 0)?, row.get::<_, Option<i64>>(1)?);
        if let Some(name) = name.filter(|_| threads.contains(&thread)) {
            host.names.insert(thread, names.index(name));
        }
        Ok(())
    })?;
    host.is_system_wide = is_system_wide(export, &threads)?;
    Ok(Some((host, names)))
}

/// Reads the samples with their innermost functions.
fn samples(export: &Export, host: &mut HostCpu, names: &mut StringTable) -> Result<(), ParseError> {
    if !export.lacks("COMPOSITE_EVENTS", &["id", "start", "globalTid"])?.is_empty() {
        return Ok(());
    }
    let mut functions: HashMap<i64, SampledFunction> = HashMap::default();
    export.each("SAMPLING_CALLCHAINS", include_str!("sql/sampled_functions.sql"), |row| {
        let (symbol, module) = (row.get::<_, Option<i64>>(1)?, row.get::<_, Option<i64>>(2)?);
        let is_unresolved = row.get::<_, Option<i64>>(3)?.unwrap_or_default() != 0;
        if let Some(module) = module {
            let name = symbol.filter(|_| !is_unresolved).map(|it| names.index(it));
            let function = SampledFunction { name, module: names.index(module) };
            functions.insert(or_zero(row, 0)?, function);
        }
        Ok(())
    })?;
    export.each("COMPOSITE_EVENTS", include_str!("sql/samples.sql"), |row| {
        let (id, at_ns, global_tid) = (or_zero(row, 0)?, row.get(1)?, or_zero(row, 2)?);
        if possible(at_ns, at_ns) {
            host.push_sample(CpuSample {
                at_ns,
                global_tid,
                function: functions.get(&id).copied(),
            });
        }
        Ok(())
    })
}

/// Returns whether all processes were recorded: by the settings of the recording, else by threads
/// of the kernel, which a recording of one command lacks.
fn is_system_wide(export: &Export, threads: &BTreeSet<i64>) -> Result<Option<bool>, ParseError> {
    let sql = include_str!("sql/sampled_scope.sql");
    let stated = export.rows("META_DATA_CAPTURE", sql, |row| string(row, 0))?;
    match stated.first().map(|it| it.trim()) {
        Some("SystemWide") => return Ok(Some(true)),
        Some("ProcessTree") => return Ok(Some(false)),
        _ => {}
    }
    let process = |row: &rusqlite::Row| Ok((process_of(or_zero(row, 0)?), string(row, 1)?));
    let processes: BTreeMap<i64, String> =
        export.rows("PROCESSES", include_str!("sql/processes.sql"), process)?.into_iter().collect();
    let is_of_kernel = |thread: &i64| {
        let name = processes.get(&process_of(*thread));
        name.is_some_and(|name| KERNEL_THREADS.iter().any(|start| name.starts_with(start)))
    };
    Ok(threads.iter().any(is_of_kernel).then_some(true))
}
