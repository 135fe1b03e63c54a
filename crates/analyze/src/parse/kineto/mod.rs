//! Reader of traces by the profiler of PyTorch (Kineto, Chrome's JSON), versions 1.13 to 2.11.
//!
//! A capture is one file per process; each becomes a process of one timeline. Traces of the capture
//! of a graph, during which nothing runs, become captures of the timeline instead. Files are
//! streams: memory grows with the number of events, not with the size of the text. What a trace
//! lacks stays absent, and what it holds beyond the known is counted in a finding.

mod category;
mod collectives;
mod copies;
mod device_ranges;
mod event;
mod execution_details;
mod findings;
mod graph_captures;
mod launch_args;
mod merge;
mod number;
mod open;
mod pairs;
mod repair;
mod rows;
mod signatures;
mod sites;
mod strings;
mod text;
mod waits;
mod windows;

pub use self::open::{head, is_json};
use llmprof_core::trace::{
    stage::{StageRules, UnknownRange},
    timeline::Timeline,
};

use self::{merge::Merged, text::Tables};
use super::{ParseError, capture_path::CapturePath};

/// Reads traces, one per process, as one timeline. Blocks; time is linear in the size of the text.
pub fn read<T: Into<CapturePath>>(
    files: impl IntoIterator<Item = T>,
) -> Result<Timeline, ParseError> {
    let (mut tables, mut merged) = (Tables::default(), Merged::default());
    for file in files {
        let file: CapturePath = file.into();
        if let Some(batches) = execution_details::batches(&file) {
            merged.list_captures(&file, batches);
            continue;
        }
        let (header, rows) = text::read(&file, &mut tables)?;
        merged.add(&file, &header, rows, &mut tables)?;
    }
    Ok(merged.finish(tables))
}

/// Checks that a trace is readable as a whole, and holds the ranges that `rules` name.
/// Captures of graphs and their list hold none: the ranges are of the window next to them.
pub fn check(
    file: impl Into<CapturePath>,
    rules: &StageRules,
) -> Result<Result<(), UnknownRange>, ParseError> {
    let trace = read([file])?;
    let is_window = trace.graph_captures.files.is_empty();
    Ok(if rules.names_ranges() && is_window { trace.check_rules(rules) } else { Ok(()) })
}

#[cfg(test)]
mod tests;
