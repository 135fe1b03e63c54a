//! NVTX ranges: read without names first, since strings are resolved once for all tables.

use std::collections::HashMap;

use llmprof_core::trace::{range::Range, xla};
use rusqlite::{Result, Row};

use super::{
    super::ParseError,
    export::{self, Export},
    names::StringTable,
};

/// Maximum memory of the names of all ranges, bytes.
const MAX_NAMES: usize = 256 << 20;

/// Reads the names of ranges and of their domains.
pub(super) fn named(
    (domains, ranges): Unnamed,
    strings: &[String],
    export: &Export,
) -> std::result::Result<Vec<Range>, ParseError> {
    let domains: HashMap<_, _> =
        domains.into_iter().map(|(key, name)| (key, name.read(strings))).collect();
    // A few long names of many ranges would take more memory than the file.
    let length = |(_, key, name): &(Range, DomainKey, StoredText)| {
        name.len(strings) + domains.get(key).map_or(0, String::len)
    };
    if ranges.iter().map(length).sum::<usize>() > MAX_NAMES {
        return Err(
            export.foreign("the names of its ranges take more room than those of any program")
        );
    }
    let named = |(range, key, name): (Range, DomainKey, StoredText)| {
        let domain = domains.get(&key).cloned().unwrap_or_else(|| unnamed_domain(key));
        let name = name.read(strings);
        let short = (domain == xla::DOMAIN).then(|| xla::short_name(&name)).flatten();
        Range { domain, name: short.unwrap_or(name), ..range }
    };
    Ok(ranges.into_iter().map(named).collect())
}

/// Domains and ranges, without their names.
pub(super) fn unnamed(
    export: &Export,
    names: &mut StringTable,
) -> std::result::Result<Unnamed, ParseError> {
    let domains = export.rows("NVTX_EVENTS", include_str!("sql/domains.sql"), |row| {
        Ok((domain_key(row.get("domain")?, row.get("thread")?), text(row, names)?))
    })?;
    let ranges =
        export.rows("NVTX_EVENTS", include_str!("sql/ranges.sql"), |row| range(row, names))?;
    Ok((domains, ranges))
}

/// Domains and ranges whose names are not read yet.
pub(super) type Unnamed = (Vec<(DomainKey, StoredText)>, Vec<(Range, DomainKey, StoredText)>);

/// Ids of domains are unique per process, which the upper bits of a thread's id identify.
pub(super) type DomainKey = (Option<i64>, i64);

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

/// A range without its names, the key of its domain, and its name.
fn range(row: &Row, names: &mut StringTable) -> Result<(Range, DomainKey, StoredText)> {
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

/// A text of NVTX: inline or registered.
pub(super) enum StoredText {
    Inline(String),
    Registered(u32),
}

fn text(row: &Row, names: &mut StringTable) -> Result<StoredText> {
    Ok(match row.get::<_, Option<i64>>("text_id")? {
        Some(id) => StoredText::Registered(names.index(id)),
        None => StoredText::Inline(export::string(row, "text")?),
    })
}

impl StoredText {
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
