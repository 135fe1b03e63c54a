//! An nsys SQLite export, to values: schemas 3.0 (2022.4) to 3.20 (2025.3), one query per file under `sql/`.
//!
//! Tables exist only where something was recorded, and columns come and go with versions: what is missing is a gap. An export also
//! holds the environments of processes; of its strings only those are read that name a kernel, a call or a range.

mod export;
mod names;

use std::{collections::HashMap, path::Path};

use rusqlite::{Result, Row};

use self::{export::Export, names::Names};
use super::ParseError;
use crate::trace::{
    kernel::Kernel,
    nsys::{ApiCall, NsysTrace},
    range::Range,
};

/// Reads the export in `path`. Blocks, in time and memory linear in the size of the file.
pub fn read(path: &Path) -> std::result::Result<NsysTrace, ParseError> {
    let export = Export::open(path)?;
    let mut names = Names::default();
    let mut trace = NsysTrace { tables: export.tables().to_vec(), ..NsysTrace::default() };
    for (name, value) in export.facts()? {
        match name.as_str() {
            "EXPORT_PRODUCT_VERSION" => trace.tool_version = Some(value),
            "EXPORT_SCHEMA_VERSION" => trace.schema_version = Some(value),
            _ => {}
        }
    }

    trace.kernels = export.rows("CUPTI_ACTIVITY_KIND_KERNEL", include_str!("sql/kernels.sql"), |row| kernel(row, &mut names))?;
    let call = |row: &Row, names: &mut Names| call(row, names);
    trace.cuda_calls =
        export.rows("CUPTI_ACTIVITY_KIND_RUNTIME", include_str!("sql/cuda_calls.sql"), |row| call(row, &mut names))?;
    trace.os_calls = export.rows("OSRT_API", include_str!("sql/os_calls.sql"), |row| call(row, &mut names))?;
    let domains = export.rows("NVTX_EVENTS", include_str!("sql/domains.sql"), |row| {
        Ok((domain_key(row.get("domain")?, row.get("thread")?), text(row, &mut names)?))
    })?;
    let ranges = export.rows("NVTX_EVENTS", include_str!("sql/ranges.sql"), |row| range(row, &mut names))?;
    trace.diagnostics = export
        .rows("DIAGNOSTIC_EVENT", include_str!("sql/diagnostics.sql"), |row| Ok(export::string(row, 0)?.trim().to_owned()))?;

    trace.strings = names.resolve(&export)?;
    let domains: HashMap<_, _> = domains.into_iter().map(|(key, name)| (key, name.read(&trace.strings))).collect();
    trace.ranges = ranges
        .into_iter()
        .map(|(range, key, name)| Range {
            domain: domains.get(&key).cloned().unwrap_or_else(|| unnamed(key)),
            name: name.read(&trace.strings),
            ..range
        })
        .collect();

    // Launch order and start order are what analysis walks in; the exports come in it, but nothing promises that.
    trace.kernels.sort_by_key(|k| k.start_ns);
    trace.cuda_calls.sort_by_key(|c| c.start_ns);
    trace.os_calls.sort_by_key(|c| c.start_ns);
    trace.ranges.sort_by_key(|r| (r.start_ns, std::cmp::Reverse(r.end_ns.unwrap_or(i64::MAX))));
    Ok(trace)
}

fn kernel(row: &Row, names: &mut Names) -> Result<Kernel> {
    Ok(Kernel {
        name: names.index(row.get("name")?),
        full_name: names.index(row.get("full_name")?),
        device: row.get("device")?,
        stream: row.get("stream")?,
        start_ns: row.get("start_ns")?,
        end_ns: row.get("end_ns")?,
        global_pid: row.get::<_, Option<i64>>("process")?.unwrap_or_default(),
        correlation_id: row.get::<_, Option<i64>>("correlation")?.unwrap_or_default(),
        grid: [row.get("grid_x")?, row.get("grid_y")?, row.get("grid_z")?],
        block: [row.get("block_x")?, row.get("block_y")?, row.get("block_z")?],
        registers: row.get("registers")?,
        graph_node: row.get::<_, Option<i64>>("graph_node")?.map(i64::cast_unsigned),
    })
}

fn call(row: &Row, names: &mut Names) -> Result<ApiCall> {
    Ok(ApiCall {
        name: names.index(row.get("name")?),
        start_ns: row.get("start_ns")?,
        end_ns: row.get("end_ns")?,
        global_tid: row.get::<_, Option<i64>>("thread")?.unwrap_or_default(),
        correlation_id: row.get::<_, Option<i64>>("correlation")?.unwrap_or_default(),
    })
}

/// A domain's id counts per process, which the upper bits of a thread's id tell.
type DomainKey = (Option<i64>, i64);

fn domain_key(domain: Option<i64>, thread: Option<i64>) -> DomainKey {
    const THREAD_BITS: u32 = 24;
    (domain, thread.unwrap_or_default() >> THREAD_BITS)
}

fn unnamed((domain, _): DomainKey) -> String {
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
    fn read(self, strings: &[String]) -> String {
        match self {
            Self::Inline(text) => text,
            Self::Registered(index) => strings.get(index as usize).cloned().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
