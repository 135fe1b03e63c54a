//! Pages that ncu printed from its report, back to counters per launch.
//!
//! The raw page holds every metric by name; the details page is read where there is no raw one. A page that was cut gives what
//! it still holds, and says so.

mod csv;
mod metrics;
#[cfg(test)]
mod tests;
mod values;

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use super::ParseError;
use crate::{
    artifact::{layout, packed},
    run::{Finding, Severity},
    trace::{counter::LaunchCounters, names::base_name},
};
use metrics::Metrics;

/// Most of a page that is read. A launch takes some 6 kB of the raw page.
const MAX_PAGE: u64 = 256 << 20;
/// Column of the raw page that names the device.
const DEVICE_NAME: &str = "device__attribute_display_name";

/// What one ncu process profiled.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CounterPage {
    /// In the order in which they were profiled; `stage` is left empty.
    pub launches: Vec<LaunchCounters>,
    /// `kernel: metric` of each counter that is not a number.
    pub not_a_number: Vec<String>,
    /// Warnings and errors of the tool.
    pub messages: Vec<String>,
    /// The page ends in the middle of a record, or is longer than what is read.
    pub truncated: bool,
    /// Name of the device that all launches ran on; `None` where the page does not tell one.
    pub device: Option<String>,
}

/// Stages that ncu profiled, by the names of their folders.
pub fn stages(dir: &Path) -> Result<Vec<String>, ParseError> {
    let path = dir.join(layout::NCU);
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(ParseError::Read { path, source }),
    };
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut stages: Vec<String> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    stages.sort();
    Ok(stages)
}

/// Reads what ncu left in the folder of `stage` below the run's folder; `None` when there is no page.
pub fn read(dir: &Path, stage: &str) -> Result<Option<CounterPage>, ParseError> {
    let folder = dir.join(layout::NCU).join(stage);
    let mut pages = Vec::new();
    for name in [layout::NCU_RAW, layout::NCU_DETAILS] {
        pages.extend(read_page(&folder.join(name))?);
    }
    let Some(best) = pages.iter().position(|page| !page.launches.is_empty()).or((!pages.is_empty()).then_some(0)) else {
        return Ok(None);
    };
    let mut page = pages.swap_remove(best);
    page.launches.iter_mut().for_each(|launch| launch.stage = stage.to_owned());
    Ok(Some(page))
}

/// Reads one page from a file that anybody wrote; one without a launch is an error that names it.
pub fn read_file(path: &Path) -> Result<CounterPage, ParseError> {
    let missing = || ParseError::Read { path: path.into(), source: io::ErrorKind::NotFound.into() };
    let page = read_page(path)?.ok_or_else(missing)?;
    if page.launches.is_empty() {
        return Err(ParseError::Foreign { path: path.into(), what: "no page of ncu with a profiled launch".into() });
    }
    Ok(page)
}

fn read_page(path: &Path) -> Result<Option<CounterPage>, ParseError> {
    let failed = |source| ParseError::Read { path: path.into(), source };
    let file = match packed::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_PAGE + 1).read_to_end(&mut bytes).map_err(failed)?;
    let cut = bytes.len() as u64 > MAX_PAGE;
    let page = parse_page(&String::from_utf8_lossy(&bytes));
    Ok(Some(CounterPage { truncated: page.truncated || cut, ..page }))
}

/// Reads one page, whichever it is.
pub fn parse_page(text: &str) -> CounterPage {
    let page = csv::page(text);
    let column = |name: &str| page.header.iter().position(|head| head == name);
    let mut parsed = CounterPage { messages: page.messages.clone(), truncated: page.truncated, ..CounterPage::default() };
    let mut launches: Vec<(LaunchCounters, Metrics)> = Vec::new();
    let (Some(id), Some(kernel)) = (column("ID"), column("Kernel Name")) else { return parsed };
    let identity = |record: &[String]| {
        let size = |name| column(name).and_then(|at| size(&record[at])).unwrap_or_default();
        let full_name = record[kernel].clone();
        LaunchCounters {
            id: record[id].replace(',', "").parse().unwrap_or_default(),
            kernel: base_name(&full_name).to_owned(),
            grid: size("Grid Size"),
            block: size("Block Size"),
            full_name,
            ..LaunchCounters::default()
        }
    };
    match (column("Section Name"), column("Metric Name"), column("Metric Unit"), column("Metric Value")) {
        (Some(section), Some(label), Some(unit), Some(value)) => {
            let mut last = None;
            for record in &page.records {
                if last != Some(&record[id]) {
                    launches.push((identity(record), Metrics::default()));
                    last = Some(&record[id]);
                }
                let metric = values::labelled(&record[section], &record[label]);
                if let (Some(metric), Some((_, metrics))) = (metric, launches.last_mut()) {
                    metrics.take(metric, &record[unit], &record[value]);
                }
            }
        }
        _ => {
            // The second row of the raw page holds units, and no launch has an empty number.
            let (units, records) = match page.records.split_first() {
                Some((units, records)) if units[id].is_empty() => (units.as_slice(), records),
                _ => (&[][..], page.records.as_slice()),
            };
            if let Some(at) = column(DEVICE_NAME) {
                let mut named = records.iter().map(|record| record[at].trim()).filter(|name| !name.is_empty());
                let first = named.next();
                parsed.device = first.filter(|first| named.all(|name| name == *first)).map(str::to_owned);
            }
            for record in records {
                let mut metrics = Metrics::default();
                for (at, (name, text)) in page.header.iter().zip(record).enumerate() {
                    if name.contains("__") {
                        metrics.take(name, units.get(at).map_or("", String::as_str), text);
                    }
                }
                launches.push((identity(record), metrics));
            }
        }
    }
    for (launch, metrics) in launches {
        let bad = metrics.not_a_number.iter().filter(|name| values::is_used(name));
        parsed.not_a_number.extend(bad.map(|name| format!("{}: {name}", launch.kernel)));
        parsed.launches.push(LaunchCounters { values: values::values(&metrics), ..launch });
    }
    parsed
}

/// `(4, 8, 1)`.
fn size(text: &str) -> Option<[u32; 3]> {
    let mut sides = text.trim().strip_prefix('(')?.strip_suffix(')')?.split(", ").map(|side| side.replace(',', "").parse().ok());
    let size = [sides.next()??, sides.next()??, sides.next()??];
    sides.next().is_none().then_some(size)
}

impl CounterPage {
    /// Why this page is no good capture, in one line; `None` when it is one. `wanted` are the kernels that were asked for.
    pub fn failure(&self, wanted: &[String]) -> Option<String> {
        let said = self.messages.last().map(|line| format!(": {line}")).unwrap_or_default();
        if self.launches.is_empty() {
            return Some(format!("ncu's pages hold no kernel launch{said}"));
        }
        if let Some(first) = self.not_a_number.first() {
            return Some(format!("{} counters are not a number, the first is {first}", self.not_a_number.len()));
        }
        let found = |name: &String| self.launches.iter().any(|launch| launch.kernel == *name);
        if !wanted.is_empty() && !wanted.iter().any(found) {
            return Some(format!("ncu profiled none of the kernels that were asked for: {}", wanted.join(", ")));
        }
        None
    }

    /// What is missing or doubtful in a capture that is used all the same.
    pub fn findings(&self, stage: &str, wanted: &[String]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let missing: Vec<&str> =
            wanted.iter().filter(|name| self.launches.iter().all(|it| it.kernel != **name)).map(String::as_str).collect();
        if !missing.is_empty() {
            let message =
                format!("ncu profiled {} of {} kernels asked for in {stage}", wanted.len() - missing.len(), wanted.len());
            findings.push(
                Finding::new("ncu_kernels_missing", Severity::Warning, message)
                    .with("missing", missing.join(", "))
                    .advise("look at the stage's ncu log: the kernels did not run in this pass, or bear other names"),
            );
        }
        if self.truncated {
            let message = format!("ncu's page for {stage} is cut: {} whole launches were read", self.launches.len());
            findings.push(Finding::new("ncu_page_cut", Severity::Warning, message));
        }
        findings
    }
}
