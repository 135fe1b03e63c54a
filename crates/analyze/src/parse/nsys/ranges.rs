//! NVTX ranges: read without names first, since strings are resolved once for all tables.

use std::{collections::HashMap, sync::Arc};

use foldhash::HashMap as FastMap;
use llmprof_core::trace::{
    interner::Interner,
    names::without_call_numbers,
    packed::PackedRows,
    range::{Range, RangeLabel, RangeSite, RangeSites},
    xla,
};
use rusqlite::{Result, Row};

use super::{
    super::{ParseError, possible_interval as possible},
    export::{self, Export},
    names::StringTable,
};

/// Maximum memory of the names of all ranges, bytes.
const MAX_NAMES: usize = 256 << 20;
/// Maximum length of a name, bytes; the rest of a longer one is left out.
const MAX_NAME: usize = 4 << 10;
/// End of a range that the capture did not record, in place of its length.
const UNCLOSED: i64 = -1;

/// Ranges whose names are not read yet.
pub(super) struct UnnamedRanges {
    domains: Vec<(DomainKey, StoredText)>,
    /// Registered texts. The timeline keeps the names of ranges apart from its strings.
    names: StringTable,
    /// Texts that the rows contain.
    inline: InlineTexts,
    labels: Interner<UnnamedLabel>,
    sites: Interner<UnnamedSite>,
    /// Start, length and site.
    rows: PackedRows<3>,
    /// End of the recording: nsys ends there the ranges that are still open.
    pub recorded_until: Option<i64>,
    /// Rows left out for impossible times.
    pub impossible: u64,
}

/// Domain and name of ranges.
type UnnamedLabel = (DomainKey, StoredText);

/// Number of the label, style and thread of ranges.
type UnnamedSite = (u32, bool, i64);

/// Reads domains and ranges, without their names.
pub(super) fn unnamed(export: &Export) -> std::result::Result<UnnamedRanges, ParseError> {
    let (mut inline, mut names): (InlineTexts, StringTable) = Default::default();
    let domains = export.rows("NVTX_EVENTS", include_str!("sql/domains.sql"), |row| {
        Ok((domain_key(row.get(0)?, row.get(1)?), inline.stored(row, [2, 3], &mut names)?))
    })?;
    let recording = include_str!("sql/recording.sql");
    let ends = export.rows("ANALYSIS_DETAILS", recording, |row| row.get::<_, Option<i64>>(0))?;
    let (labels, sites, rows) = Default::default();
    let recorded_until = ends.into_iter().flatten().max();
    let mut all = UnnamedRanges {
        domains,
        names,
        inline,
        labels,
        sites,
        rows,
        recorded_until,
        impossible: 0,
    };
    export.each("NVTX_EVENTS", include_str!("sql/ranges.sql"), |row| all.add(row))?;
    if all.inline.bytes > MAX_NAMES {
        return Err(too_long(export));
    }
    Ok(all)
}

impl UnnamedRanges {
    fn add(&mut self, row: &Row) -> Result<()> {
        let (start_ns, end_ns): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
        let thread: Option<i64> = row.get(4)?;
        let key = domain_key(row.get(3)?, thread);
        let label = (key, self.inline.stored(row, [5, 6], &mut self.names)?);
        let site = (self.labels.number(label), row.get(2)?, thread.unwrap_or_default());
        // An end before the start is not recorded as an end.
        let is_reversed = |end_ns: &i64| *end_ns < start_ns && possible(*end_ns, start_ns);
        let is_recorded =
            |end_ns: &i64| !is_reversed(end_ns) && Some(*end_ns) != self.recorded_until;
        let end_ns = end_ns.filter(is_recorded);
        if possible(start_ns, end_ns.unwrap_or(start_ns)) {
            let length = end_ns.map_or(UNCLOSED, |end| end - start_ns);
            self.rows.push([start_ns, length, self.sites.number(site).into()]);
        } else {
            self.impossible += 1;
        }
        Ok(())
    }

    /// The ranges with their own names and domain names.
    pub fn named(self, export: &Export) -> std::result::Result<Vec<Range>, ParseError> {
        let Self { domains, names, inline, labels, sites, rows, .. } = self;
        let (labels, sites) = (labels.into_values(), sites.into_values());
        let strings = names.resolve(export)?;
        let text = |stored: StoredText| match stored {
            StoredText::Inline(at) => &*inline.texts[at as usize],
            StoredText::Registered(at) => strings.get(at as usize).map_or("", String::as_str),
        };
        let domains: HashMap<DomainKey, String> =
            domains.into_iter().map(|(key, name)| (key, short(text(name)).to_owned())).collect();
        let (mut known, mut bytes) = (RangeSites::default(), 0);
        let label = |(key, name): UnnamedLabel| {
            let domain = domains.get(&key).cloned().unwrap_or_else(|| unnamed_domain(key));
            let label = RangeLabel { name: range_name(&domain, text(name)), domain };
            bytes += label.name.len() + label.domain.len();
            known.label(label)
        };
        let labels: Vec<Arc<RangeLabel>> = labels.into_iter().map(label).collect();
        if bytes > MAX_NAMES {
            return Err(too_long(export));
        }
        drop((known, strings));
        let site = |(label, push_pop, thread): UnnamedSite| {
            Arc::new(RangeSite::new(labels[label as usize].clone(), (thread, push_pop)))
        };
        let sites: Vec<Arc<RangeSite>> = sites.into_iter().map(site).collect();
        let range = |[start_ns, length, site]: [i64; 3]| {
            let end_ns = (length != UNCLOSED).then(|| start_ns + length);
            Range::at(sites[site as usize].clone(), (start_ns, end_ns))
        };
        Ok(rows.iter().map(range).collect())
    }
}

/// Many long names would take more memory than the file.
fn too_long(export: &Export) -> ParseError {
    export.foreign("its range names take more room than the range names of any program")
}

/// The name as tables have it: instances of one range share a name.
fn range_name(domain: &str, name: &str) -> String {
    let name = short(name);
    let of_xla = (domain == xla::DOMAIN).then(|| xla::short_name(name)).flatten();
    of_xla.unwrap_or_else(|| without_call_numbers(name).to_owned())
}

fn short(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME)]
}

/// Ids of domains are unique per process, which the upper bits of a thread's id identify.
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

/// A text of NVTX, inline or registered: index into [`InlineTexts`] or the strings of the export.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum StoredText {
    Inline(u32),
    Registered(u32),
}

/// Texts that rows contain, each once.
#[derive(Default)]
struct InlineTexts {
    numbers: FastMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
    bytes: usize,
}

impl InlineTexts {
    /// The text in two columns: the text itself and the id of a registered one.
    fn stored(
        &mut self,
        row: &Row,
        [text, id]: [usize; 2],
        names: &mut StringTable,
    ) -> Result<StoredText> {
        if let Some(id) = row.get::<_, Option<i64>>(id)? {
            return Ok(StoredText::Registered(names.index(id)));
        }
        let text = export::string(row, text)?;
        let text = without_call_numbers(short(&text));
        if let Some(number) = self.numbers.get(text) {
            return Ok(StoredText::Inline(*number));
        }
        let number = self.texts.len() as u32;
        // Beyond the limit the export is refused.
        if self.bytes <= MAX_NAMES {
            let text: Arc<str> = text.into();
            self.bytes += text.len();
            self.numbers.insert(text.clone(), number);
            self.texts.push(text);
        }
        Ok(StoredText::Inline(number))
    }
}
