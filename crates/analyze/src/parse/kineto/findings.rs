//! Findings on what traces lack, and on what was left out.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::{
        digits::count,
        finding::{Finding, catalogue},
    },
    trace::timeline::Timeline,
};

use super::{
    rows::{FileRows, Oddities},
    text::Header,
};

/// Kernels from which whole microseconds are not a coincidence.
const MIN_WHOLE: u64 = 10;

/// Facts of one file.
#[derive(Debug)]
pub struct FileFacts {
    name: String,
    base_ns: Option<i64>,
    bare: bool,
    trace_id: Option<String>,
    rank: Option<i64>,
    kernels: u64,
    /// Calls of Python functions.
    frames: u64,
    with_stack: bool,
    odd: Oddities,
}

impl FileFacts {
    pub fn of(name: String, header: &Header, rows: &FileRows) -> Self {
        let odd = &rows.odd;
        Self {
            name,
            base_ns: header.base_ns,
            bare: header.bare,
            trace_id: header.trace_id.clone().filter(|id| !id.is_empty()),
            rank: header.distributed.as_ref().and_then(|it| it.rank.value),
            kernels: rows.kernels.len() as u64,
            frames: rows.frames.len() as u64,
            with_stack: header.with_stack,
            odd: Oddities { unknown: odd.unknown.clone(), ..*odd },
        }
    }
}

/// Findings on the files of a timeline.
pub fn findings(
    files: &[FileFacts],
    copies: &[(String, String)],
    trace: &Timeline,
) -> Vec<Finding> {
    let sum = |count: fn(&Oddities) -> u64| files.iter().map(|it| count(&it.odd)).sum::<u64>();
    let mut found = Vec::new();
    let incomplete = sum(|it| it.incomplete);
    if incomplete > 0 {
        let message = format!(
            "{} events of the trace were excluded: they have no name, no type, or no time that is \
             a number.",
            count(incomplete)
        );
        found.push(
            Finding::new(catalogue::TRACE_EVENTS_INCOMPLETE, message)
                .with("excluded", incomplete)
                .advise("Record again without tools that rewrite the trace."),
        );
    }
    let unpaired = sum(|it| it.unpaired);
    let unknown: u64 = files.iter().flat_map(|it| it.odd.unknown.values()).sum();
    if unpaired + unknown > 0 {
        found.push(unread(files, unpaired, unknown));
    }
    let quoted = sum(|it| it.quoted);
    if quoted > 0 {
        let message =
            format!("{} numbers of the trace are written as text; they were read.", count(quoted));
        found.push(
            Finding::new(catalogue::TRACE_NUMBERS_QUOTED, message)
                .advise("A tool rewrote the trace: check that it kept all digits of the times."),
        );
    }
    let repaired = sum(|it| it.repaired);
    if repaired > 0 {
        let message = format!(
            "{} names of the trace have quotes or line ends without a backslash, so it is not \
             JSON; they were read with them.",
            count(repaired)
        );
        found.push(
            Finding::new(catalogue::TRACE_NAMES_REPAIRED, message)
                .with("repaired", repaired)
                .advise("Record with a version of PyTorch in which issue 146900 is fixed."),
        );
    }
    found.extend(coarse(files, sum(|it| it.whole), trace));
    found.extend(stacks(files));
    if files.iter().any(|it| it.bare) {
        let message = "The trace is a list of events without a header: device, driver and rank \
                       are unknown.";
        found.push(
            Finding::new(catalogue::TRACE_HEADER_MISSING, message)
                .advise("Import the file as the profiler wrote it."),
        );
    }
    found.extend(ranks(files, trace));
    found.extend(repeated(files, copies));
    found.extend(clocks(files));
    if !trace.copies.is_empty() && trace.cuda_calls.is_empty() && trace.kernels.is_empty() {
        let message = "The trace has copies, and neither kernels nor calls of the runtime.";
        found.push(
            Finding::new(catalogue::TRACE_ACTIVITIES_MISSING, message)
                .advise("Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."),
        );
    }
    found
}

/// The finding on events of unknown types.
fn unread(files: &[FileFacts], unpaired: u64, unknown: u64) -> Finding {
    let message = format!(
        "{} events of the trace were not read: their category or type is unknown.",
        count(unpaired + unknown)
    );
    let names: BTreeSet<&str> =
        files.iter().flat_map(|it| it.odd.unknown.keys()).map(String::as_str).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let mut finding = Finding::new(catalogue::TRACE_EVENTS_UNKNOWN, message);
    if !names.is_empty() {
        finding = finding.with("categories", names.join(", ")).with("of them", unknown);
    }
    if unpaired > 0 {
        finding = finding.with("start and end events", unpaired);
    }
    finding.advise("Figures cover the kernels, copies, calls, operators and ranges that were read.")
}

/// Time of a kernel that an error of 1 us changes by a tenth and more, nanoseconds.
const SHORT_NS: i64 = 10_000;

/// The finding on times in whole microseconds.
fn coarse(files: &[FileFacts], whole: u64, trace: &Timeline) -> Option<Finding> {
    let kernels: u64 = files.iter().map(|it| it.kernels).sum();
    let of = |is_it: fn(i64) -> bool| {
        trace.kernels.iter().filter(|it| is_it(it.end_ns - it.start_ns)).count() as u64
    };
    let (short, none) = (of(|ns| ns < SHORT_NS), of(|ns| ns == 0));
    if whole < MIN_WHOLE || whole < kernels || short == 0 {
        return None;
    }
    let message = format!(
        "Times of the trace are whole microseconds: each kernel's time is uncertain by up to 1 us. \
         {} of {} kernels take less than 10 us, {} of them 0 us: sums of these kernels and the \
         GPU's busy time are rough.",
        count(short),
        count(kernels),
        count(none)
    );
    Some(
        Finding::new(catalogue::TRACE_TIMES_COARSE, message)
            .with("kernels", kernels)
            .with("kernels of less than 10 us", short)
            .advise("Record with PyTorch 2.4 or newer, which writes nanoseconds."),
    )
}

/// The finding on recorded Python stacks.
fn stacks(files: &[FileFacts]) -> Option<Finding> {
    let frames: u64 = files.iter().map(|it| it.frames).sum();
    let calls = match frames {
        0 if !files.iter().any(|it| it.with_stack) => return None,
        0 => String::new(),
        1 => " (1 call of a function)".to_owned(),
        _ => format!(" ({} calls of functions)", count(frames)),
    };
    let message = format!(
        "The profiler recorded Python stacks{calls}: this lengthens the host's time between \
         launches."
    );
    Some(Finding::new(catalogue::TRACE_STACKS_RECORDED, message).with("calls", frames))
}

/// The finding on ranks that the capture lacks or has twice. A process has one rank in all of its
/// recording windows.
fn ranks(files: &[FileFacts], trace: &Timeline) -> Option<Finding> {
    let owners = || trace.collectives.owners();
    let world = i64::from(owners().filter_map(|it| it.world_size).max()?);
    if world < 2 {
        return None;
    }
    let found: Vec<i64> = owners().filter_map(|it| it.rank).map(i64::from).collect();
    let distinct: BTreeSet<i64> = found.iter().copied().collect();
    let listed = |ranks: &BTreeSet<i64>| {
        ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    let message = if distinct.len() < found.len() {
        format!("Several files of the capture are of one rank; ranks: {}.", listed(&distinct))
    } else if (found.len() as i64) < world {
        format!("The capture has {} of {world} ranks: {}.", found.len(), listed(&distinct))
    } else {
        return None;
    };
    Some(
        Finding::new(catalogue::TRACE_RANKS_INCOMPLETE, message)
            .with("files", files.len())
            .with("world size", world.cast_unsigned())
            .advise("Import one trace of each rank together; sums are of the ranks that are here."),
    )
}

/// The finding on traces that the capture has several times: `copies` were left out, each with the
/// file that has the same events. Other files of one recording count; ranks may share its id.
fn repeated(files: &[FileFacts], copies: &[(String, String)]) -> Option<Finding> {
    let mut names: BTreeMap<(&str, Option<i64>), Vec<&str>> = BTreeMap::new();
    for it in files {
        if let Some(id) = &it.trace_id {
            names.entry((id, it.rank)).or_default().push(&it.name);
        }
    }
    let copied = copies.iter().map(|(copy, first)| {
        format!("{copy} holds the same events as {first} and was left out: they count once.")
    });
    let parts = names.into_values().filter(|of| of.len() > 1).map(|of| {
        format!("Files of the capture are of one recording: {}; each counts.", of.join(" and "))
    });
    let sentences: Vec<String> = copied.chain(parts).collect();
    (!sentences.is_empty()).then(|| {
        Finding::new(catalogue::TRACE_REPEATED, sentences.join(" "))
            .with("traces", sentences.len())
            .advise("Import each trace once.")
    })
}

/// The finding on files whose clocks cannot be compared.
fn clocks(files: &[FileFacts]) -> Option<Finding> {
    let has = files.iter().filter(|it| it.base_ns.is_some()).count();
    if files.len() < 2 || has == 0 || has == files.len() {
        return None;
    }
    let without: Vec<&str> =
        files.iter().filter(|it| it.base_ns.is_none()).map(|it| it.name.as_str()).collect();
    let message = "Some traces of the capture have a base time and some do not: times of different \
                   processes cannot be compared.";
    Some(
        Finding::new(catalogue::TRACE_CLOCKS_DIFFER, message)
            .with("without a base time", without.join(", "))
            .advise("Record all processes with the same version of PyTorch."),
    )
}
