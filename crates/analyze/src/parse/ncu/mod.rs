//! Reader of pages that ncu printed from its report: counters per launch.
//!
//! The raw page has every metric by name; the details page is read if there is no raw one. A
//! truncated page yields its complete launches and a finding.

mod csv;
mod flops;
mod labels;
mod metrics;
mod numbers;
mod page;
mod ranges;
#[cfg(test)]
mod tests;
mod values;

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

pub use self::page::parse_page;
use llmprof_core::{
    domain::finding::{Finding, Severity, catalogue},
    layout,
    trace::counter::{CounterValues, LaunchCounters},
};

use super::ParseError;
use crate::parse::{capture_path::CapturePath, encoding::decoded, foreign};

/// Maximum length of a page. A launch takes some 6 kB of the raw page.
const MAX_PAGE: u64 = 256 << 20;
/// Characters of a message of ncu that an error quotes.
const MAX_QUOTED: usize = 200;
/// Names that a finding lists; further ones are counted.
const MAX_LISTED: usize = 20;

/// The launches that one ncu process profiled.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CounterPage {
    /// In the order of profiling; `stage` is empty unless the page is of one stage.
    pub launches: Vec<LaunchCounters>,
    /// `kernel: metric` of each counter that is not a number.
    pub not_a_number: Vec<String>,
    /// `kernel: metric` of each counter whose text starts like a number but is not one in the
    /// page's locale, or whose unit is unknown.
    pub unreadable: Vec<String>,
    /// Sections without a known metric, and unknown metrics that were requested by name.
    pub unread: Vec<String>,
    /// Reason why no number of the page is reliable; it then has no launches.
    pub refused: Option<String>,
    /// Warnings and errors of the tool.
    pub messages: Vec<String>,
    /// The page ends inside a record, or is longer than the limit.
    pub truncated: bool,
    /// Name of the device that all launches ran on; `None` if the page has none or several.
    pub device: Option<String>,
}

/// Folders of the ncu processes: `process-1` and the like; in runs of older versions `STAGE`, each
/// with one stage.
pub fn folders(dir: &Path) -> Result<Vec<String>, ParseError> {
    let path = dir.join(layout::NCU);
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(ParseError::Read { path, source }),
    };
    let folders =
        entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut names: Vec<String> =
        folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Reads the pages of `process`, a folder of the run; `None` if there is no page.
pub fn read(dir: &Path, process: &str) -> Result<Option<CounterPage>, ParseError> {
    let folder = dir.join(layout::NCU).join(process);
    let mut pages = Vec::new();
    for name in [layout::NCU_RAW, layout::NCU_DETAILS] {
        pages.extend(read_page(&CapturePath::from(&folder.join(name)))?);
    }
    let Some(best) = pages
        .iter()
        .position(|page| !page.launches.is_empty())
        .or((!pages.is_empty()).then_some(0))
    else {
        return Ok(None);
    };
    let mut page = pages.swap_remove(best);
    let all_stages = layout::is_ncu_process(process);
    for launch in &mut page.launches {
        launch.all_stages = all_stages;
        launch.stage = if all_stages { String::new() } else { process.to_owned() };
    }
    Ok(Some(page))
}

/// Reads one page from an untrusted file; a page without launches is an error.
pub fn read_file(file: impl Into<CapturePath>) -> Result<CounterPage, ParseError> {
    read_or(&file.into(), foreign::not_a_page)
}

/// Checks an uploaded file that is a page or not a capture.
pub fn check(file: impl Into<CapturePath>) -> Result<(), ParseError> {
    read_or(&file.into(), foreign::not_a_capture).map(|_| ())
}

/// `refused` is the message for a file of another format.
fn read_or(
    file: &CapturePath,
    refused: fn(&CapturePath) -> Option<String>,
) -> Result<CounterPage, ParseError> {
    let path = file.shown();
    let missing = || ParseError::Read { path: path.into(), source: io::ErrorKind::NotFound.into() };
    let page = read_page(file)?.ok_or_else(missing)?;
    if page.launches.is_empty() {
        let foreign = || refused(file).filter(|_| page.messages.is_empty());
        let what = page.refused.clone().or_else(foreign).unwrap_or_else(|| page.why_empty());
        return Err(ParseError::Foreign { path: path.into(), what });
    }
    Ok(page)
}

fn read_page(file: &CapturePath) -> Result<Option<CounterPage>, ParseError> {
    let failed = |source| ParseError::Read { path: file.shown().into(), source };
    let content = match file.open() {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    let mut bytes = Vec::new();
    content.take(MAX_PAGE + 1).read_to_end(&mut bytes).map_err(failed)?;
    let cut = bytes.len() as u64 > MAX_PAGE;
    let page = parse_page(&decoded(&bytes));
    Ok(Some(CounterPage { truncated: page.truncated || cut, ..page }))
}

impl CounterPage {
    /// Reason why a page has no launches, with the remedy if ncu itself states the reason.
    fn why_empty(&self) -> String {
        let with_text = |text: &str| self.messages.iter().find(|line| line.contains(text));
        if with_text("ERR_NVGPUCTRPERM").is_some() {
            return "ncu had no permission to read counters (ERR_NVGPUCTRPERM) and profiled \
                    nothing; run it as root, or load NVIDIA's module with \
                    NVreg_RestrictProfilingToAdminUsers=0"
                .into();
        }
        let message = with_text("==ERROR==").or(self.messages.last());
        let message = message.map(|line| {
            let plain = line.chars().filter(|c| !c.is_control()).take(MAX_QUOTED);
            format!(": {}", plain.collect::<String>())
        });
        format!("not a page of ncu with a profiled launch{}", message.unwrap_or_default())
    }

    /// Reason why this page is unusable, in one line; `None` if it is usable. `wanted` are the
    /// requested kernels.
    pub fn failure(&self, wanted: &[String]) -> Option<String> {
        if let Some(why) = &self.refused {
            return Some(format!("ncu's page cannot be read: {why}"));
        }
        let message = self.messages.last().map(|line| format!(": {line}")).unwrap_or_default();
        if self.launches.is_empty() {
            return Some(format!("ncu's pages have no kernel launch{message}"));
        }
        if let Some(first) = self.not_a_number.first() {
            return Some(format!(
                "{} counters are not numbers; the first is {first}",
                self.not_a_number.len()
            ));
        }
        let found = |name: &String| self.launches.iter().any(|launch| launch.kernel == *name);
        if !wanted.is_empty() && !wanted.iter().any(found) {
            return Some(format!(
                "ncu profiled none of the requested kernels: {}",
                wanted.join(", ")
            ));
        }
        None
    }

    /// Findings on unreadable parts of the page `name`: a file, or a process.
    pub fn gaps(&self, name: &str) -> Vec<Finding> {
        let finding = |id, message: String| Finding::new(id, message).with("page", name);
        let mut findings = Vec::new();
        if self.truncated {
            let message = format!(
                "ncu's page for {name} is cut: {} whole launches were read",
                self.launches.len()
            );
            findings.push(Finding::new(catalogue::NCU_PAGE_CUT, message));
        }
        if !self.unread.is_empty() {
            let nothing =
                self.launches.iter().all(|launch| launch.values == CounterValues::default());
            let severity = if nothing { Severity::Warning } else { Severity::Info };
            let message = format!(
                "{} sections or metrics of ncu's page for {name} were not read",
                self.unread.len()
            );
            findings.push(
                finding(catalogue::NCU_SECTIONS_UNREAD, message)
                    .severity(severity)
                    .with("unread", listed(&self.unread))
                    .advise(
                        "Print the raw page, which has every metric by its name: ncu --import \
                             REPORT --csv --page raw",
                    ),
            );
        }
        let bad: Vec<String> = self.unreadable.iter().chain(&self.not_a_number).cloned().collect();
        if !bad.is_empty() {
            let message = format!(
                "{} counters of ncu's page for {name} are not numbers or have no known unit, and \
                 were left out",
                bad.len()
            );
            findings.push(
                finding(catalogue::NCU_VALUES_UNREADABLE, message).with("counters", listed(&bad)),
            );
        }
        let unknown = self
            .launches
            .iter()
            .filter(|launch| launch.grid.is_none() || launch.block.is_none())
            .count();
        if unknown > 0 {
            let message = format!(
                "ncu's page for {name} lacks the grid or block of {unknown} launches: they are \
                 matched by name alone"
            );
            findings.push(finding(catalogue::NCU_GEOMETRY_MISSING, message).advise(
                "Print the page with ncu 2020.1.1 or newer, or ask for launch__grid_dim_x and \
                     the like by --metrics",
            ));
        }
        findings
    }
}

/// The first names and the number of further ones.
fn listed(names: &[String]) -> String {
    let first = names.iter().take(MAX_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED {
        format!("{first} and {} more", names.len() - MAX_LISTED)
    } else {
        first
    }
}
