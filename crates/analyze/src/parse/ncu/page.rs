//! Parser of a printed page, raw or details, to launches with their counters.
//!
//! Unreadable data is listed, never guessed: numbers of an undecided locale, unknown sections and
//! metrics, grids and blocks that older versions did not print.

use std::collections::BTreeSet;

use llmprof_core::trace::{
    counter::LaunchCounters,
    names::{base_name, signature},
};

use super::{
    CounterPage, csv,
    labels::{self, REQUESTED},
    metrics::LaunchMetrics,
    numbers::{DecimalMark, decimal_mark},
    ranges, values,
};

/// Column of the raw page that names the device.
const DEVICE_NAME: &str = "device__attribute_display_name";
/// Reason to refuse a file.
const OTHER_COLUMNS: &str = "it holds pages with different columns; give each page its own file";
/// Name of a kernel whose name was not printed.
const UNNAMED: &str = "(unnamed)";

/// Reads one page of either kind.
pub fn parse_page(text: &str) -> CounterPage {
    let page = csv::page(text);
    let mut parsed = CounterPage {
        messages: page.messages.clone(),
        truncated: page.truncated,
        ..CounterPage::default()
    };
    let Some(columns) = PageColumns::of(&page.header) else { return parsed };
    if page.has_other_columns {
        parsed.refused = Some(OTHER_COLUMNS.into());
        return parsed;
    }
    let launches = match columns.details {
        Some(details) => read_details(&page.records, &columns, details, &mut parsed),
        None => read_raw(&page, &columns, &mut parsed),
    };
    for (launch, metrics) in launches.unwrap_or_default() {
        let used = |names: &[String]| -> Vec<String> {
            names
                .iter()
                .filter(|name| values::is_used(name))
                .map(|name| format!("{}: {name}", launch.kernel))
                .collect()
        };
        parsed.not_a_number.extend(used(&metrics.not_a_number));
        parsed.unreadable.extend(used(&metrics.unreadable));
        let side = |of: &str, axis: &str| {
            metrics.get(&format!("launch__{of}_dim_{axis}")).map(|side| side as u32)
        };
        let sides = |of: &str| Some([side(of, "x")?, side(of, "y")?, side(of, "z")?]);
        parsed.launches.push(LaunchCounters {
            grid: launch.grid.or_else(|| sides("grid")),
            block: launch.block.or_else(|| sides("block")),
            values: values::values(&metrics),
            ..launch
        });
    }
    parsed
}

type PageLaunches = Vec<(LaunchCounters, LaunchMetrics)>;

/// Indices of the columns that both kinds of pages have.
struct PageColumns {
    id: usize,
    kernel: usize,
    process: Option<usize>,
    grid: Option<usize>,
    block: Option<usize>,
    ranges: Vec<usize>,
    details: Option<Details>,
    device_name: Option<usize>,
}

/// The columns of the details page.
#[derive(Clone, Copy)]
struct Details {
    section: usize,
    label: usize,
    unit: usize,
    value: usize,
}

impl PageColumns {
    fn of(header: &[String]) -> Option<Self> {
        let column = |name: &str| header.iter().position(|head| head == name);
        let details = || {
            let (section, label) = (column("Section Name")?, column("Metric Name")?);
            Some(Details {
                section,
                label,
                unit: column("Metric Unit")?,
                value: column("Metric Value")?,
            })
        };
        Some(Self {
            id: column("ID")?,
            kernel: column("Kernel Name")?,
            process: column("Process ID"),
            grid: column("Grid Size"),
            block: column("Block Size"),
            ranges: ranges::columns(header),
            details: details(),
            device_name: column(DEVICE_NAME),
        })
    }

    /// The launch of a record without its counters; `None` if its id is not a number.
    fn launch(&self, record: &[String]) -> Option<LaunchCounters> {
        let id: String = record[self.id].chars().filter(char::is_ascii_digit).collect();
        let size = |column: Option<usize>| column.and_then(|at| size(&record[at]));
        let name = record[self.kernel].trim();
        let full_name = if name.is_empty() { UNNAMED } else { name };
        Some(LaunchCounters {
            id: id.parse().ok()?,
            kernel: base_name(full_name).to_owned(),
            grid: size(self.grid),
            block: size(self.block),
            full_name: full_name.to_owned(),
            signature: signature(full_name),
            ranges: self.ranges.iter().flat_map(|at| ranges::ranges(&record[*at])).collect(),
            ..LaunchCounters::default()
        })
    }

    /// The key of a launch: several processes may use the same ids.
    fn key<'a>(&self, record: &'a [String]) -> (&'a str, &'a str) {
        (record[self.id].as_str(), self.process.map_or("", |at| record[at].as_str()))
    }
}

/// One row per launch and metric; `None` if the page is refused.
fn read_details(
    records: &[Vec<String>],
    columns: &PageColumns,
    at: Details,
    parsed: &mut CounterPage,
) -> Option<PageLaunches> {
    let mut launches = PageLaunches::new();
    let (mut seen, mut used): (BTreeSet<&str>, BTreeSet<&str>) = Default::default();
    let mut requested = BTreeSet::new();
    for records in records.split(|record| csv::is_header(record)) {
        // A row of a rule has no metric.
        let rows = || records.iter().filter(|record| !record[at.label].is_empty());
        let cells = rows().map(|record| (record[at.unit].as_str(), record[at.value].as_str()));
        let mark = decided(decimal_mark(cells), parsed)?;
        let mut last = None;
        for record in records {
            if last != Some(columns.key(record)) {
                let Some(launch) = columns.launch(record) else {
                    parsed.truncated = true;
                    continue;
                };
                launches.push((launch, LaunchMetrics::default()));
                last = Some(columns.key(record));
            }
            let (section, label) = (record[at.section].as_str(), record[at.label].as_str());
            if label.is_empty() {
                continue;
            }
            seen.insert(section);
            if let (Some(metric), Some((_, metrics))) =
                (labels::metric(section, label), launches.last_mut())
            {
                metrics.take(metric, &record[at.unit], &record[at.value], mark);
                if is_read(metric) {
                    used.insert(section);
                    continue;
                }
            }
            if section == REQUESTED {
                requested.insert(label);
            }
        }
    }
    seen.remove(REQUESTED);
    parsed.unread =
        seen.difference(&used).chain(&requested).map(|name| (*name).to_owned()).collect();
    Some(launches)
}

/// Records of launches with one row of units, which is empty if the page has none.
#[derive(Default)]
struct RawPart<'a> {
    units: &'a [String],
    launches: Vec<&'a [String]>,
}

/// The parts of a raw page. A row of units has no number, and a repeated header ends its validity.
fn raw_parts(records: &[Vec<String>], id: usize) -> Vec<RawPart<'_>> {
    let mut parts = vec![RawPart::default()];
    for record in records {
        if csv::is_header(record) {
            parts.push(RawPart::default());
        } else if record[id].is_empty() {
            parts.push(RawPart { units: record, ..RawPart::default() });
        } else if let Some(part) = parts.last_mut() {
            part.launches.push(record);
        }
    }
    parts
}

/// One row per launch, with every metric in a column of its own name; `None` if the page is
/// refused.
fn read_raw(
    page: &csv::PrintedPage,
    columns: &PageColumns,
    parsed: &mut CounterPage,
) -> Option<PageLaunches> {
    let parts = raw_parts(&page.records, columns.id);
    if let Some(at) = columns.device_name {
        let records = parts.iter().flat_map(|part| &part.launches);
        let mut named = records.map(|record| record[at].trim()).filter(|name| !name.is_empty());
        let first = named.next();
        parsed.device = first.filter(|first| named.all(|name| name == *first)).map(str::to_owned);
    }
    let names = page.header.iter().enumerate();
    let metrics: Vec<(usize, &str)> = names
        .filter(|(_, name)| name.contains("__"))
        .map(|(at, name)| (at, name.as_str()))
        .collect();
    let mut launches = PageLaunches::new();
    for RawPart { units, launches: records } in parts {
        let unit = |at: usize| units.get(at).map_or("", String::as_str);
        let cells = records
            .iter()
            .flat_map(|record| metrics.iter().map(|(at, _)| (unit(*at), record[*at].as_str())));
        let mark = decided(decimal_mark(cells), parsed)?;
        for record in records {
            let Some(launch) = columns.launch(record) else {
                parsed.truncated = true;
                continue;
            };
            let mut read = LaunchMetrics::default();
            metrics.iter().for_each(|(at, name)| read.take(name, unit(*at), &record[*at], mark));
            launches.push((launch, read));
        }
    }
    if !metrics.iter().any(|(_, name)| is_read(name)) {
        parsed.unread = metrics.iter().map(|(_, name)| (*name).to_owned()).collect();
    }
    Some(launches)
}

/// Returns true if a value is computed from this metric, grid and block included.
fn is_read(metric: &str) -> bool {
    values::is_used(metric)
        || metric.starts_with("launch__grid_dim_")
        || metric.starts_with("launch__block_dim_")
}

/// The mark; if there is none, the page records the reason.
fn decided(mark: Result<DecimalMark, String>, parsed: &mut CounterPage) -> Option<DecimalMark> {
    mark.map_err(|why| parsed.refused = Some(why)).ok()
}

/// `(4, 8, 1)`.
fn size(text: &str) -> Option<[u32; 3]> {
    let side = |side: &str| {
        side.chars()
            .filter(|c| !matches!(c, ',' | '.' | '\'' | '\u{a0}' | '\u{202f}'))
            .collect::<String>()
    };
    let mut sides = text
        .trim()
        .strip_prefix('(')?
        .strip_suffix(')')?
        .split(", ")
        .map(|it| side(it).parse().ok());
    let size = [sides.next()??, sides.next()??, sides.next()??];
    sides.next().is_none().then_some(size)
}
