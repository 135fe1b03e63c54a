//! Readers of the files of a run.
//!
//! A missing file or table is a gap: the trace is empty at that place. A file that the manifest of
//! a sealed folder lists and that is missing, and an unreadable or foreign file, is an error with
//! its name. No input causes a panic, and nothing is judged.

pub mod aliases;
pub mod capture_path;
pub mod command;
pub mod compressed;
pub mod cublas;
pub mod encoding;
pub mod events;
pub mod foreign;
pub mod journal;
pub mod kineto;
pub mod ncu;
pub mod nsys;
pub mod power;
pub mod requests;
pub mod saved;
pub mod sealed;
pub mod stored;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use llmprof_core::{
    domain::{import::Import, runner},
    layout,
    trace::{Trace, operator_ranges, timeline::Timeline, untimed::TimeFault},
};
use serde::de::DeserializeOwned;

use self::capture_path::CapturePath;

/// A file that cannot be read or has unexpected contents.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}, line {line}: not an event", path.display())]
    Line { path: PathBuf, line: u64, source: serde_json::Error },
    #[error("{}, line {line}: {what}", path.display())]
    Order { path: PathBuf, line: u64, what: &'static str },
    #[error(
        "{}: format {found} is newer than {known}, the newest known; use a newer llmprof",
        path.display()
    )]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error("{}: {what}", path.display())]
    Foreign { path: PathBuf, what: String },
    #[error("cannot query {} of {}", what, path.display())]
    Query { path: PathBuf, what: &'static str, source: rusqlite::Error },
    #[error("{}: not the JSON of {what}", path.display())]
    Json { path: PathBuf, what: &'static str, source: serde_json::Error },
}

/// Maximum distance of a time from zero, nanoseconds: 73 years, enough for clocks that count from
/// 1970.
const FARTHEST: i64 = 1 << 61;
/// Maximum duration, nanoseconds: 52 days. A thousand such rows still sum up without overflow.
const LONGEST: i64 = 1 << 52;

/// Returns true if an interval of a timeline is possible.
const fn possible_interval(start_ns: i64, end_ns: i64) -> bool {
    -FARTHEST <= start_ns
        && start_ns <= end_ns
        && end_ns <= FARTHEST
        && end_ns - start_ns <= LONGEST
}

/// The fault of a kernel's times; `None` for possible times, and for others that are too far away.
fn kernel_fault(start_ns: i64, end_ns: i64) -> Option<TimeFault> {
    TimeFault::of(start_ns, end_ns).or_else(|| {
        let is_near = possible_interval(end_ns, start_ns);
        let fault =
            if start_ns == end_ns { TimeFault::NoDuration } else { TimeFault::EndsBeforeStart };
        is_near.then_some(fault)
    })
}

/// Reads the trace in a run's folder. Blocks: an export may have millions of rows.
pub fn read(dir: &Path) -> Result<Trace, ParseError> {
    read_parsed(dir, None)
}

/// Like [`read`], with the nsys export of `dir` as it was parsed earlier. The files of a sealed
/// folder are complete, or it is an error.
pub fn read_parsed(dir: &Path, timeline: Option<Timeline>) -> Result<Trace, ParseError> {
    sealed::check(dir)?;
    let mut trace = Trace {
        environment: json(&dir.join(layout::ENV), "an environment")?.unwrap_or_default(),
        ..Trace::default()
    };
    trace.environment.load = json(&dir.join(layout::HOST_LOAD), "the load of a host")?;
    for (folder, events) in
        [(layout::BASELINE, &mut trace.baseline), (layout::NSYS, &mut trace.traced)]
    {
        let path = dir.join(folder).join(runner::EVENTS);
        if path.exists() {
            let log = events::read(&path)?;
            *events = log.events;
            trace.findings.extend(log.findings);
        }
    }
    if let Some(plan) = command::plan(dir)? {
        let (command, [baseline, traced]) = command::read(dir, &plan)?;
        trace = Trace { command: Some(command), baseline, traced, ..trace };
    }
    let (log, findings) = power::read_all(dir)?;
    trace.power = log;
    trace.findings.extend(findings);
    let export = dir.join(layout::NSYS_EXPORT);
    let parsed = match timeline {
        None if stored::exists(&export) => Some(nsys::read(&export)?),
        None => match imported_traces(dir) {
            traces if traces.is_empty() => None,
            traces => Some(named_as_imported(dir, kineto::read(&traces)?)?),
        },
        parsed => parsed,
    };
    let profiled = torch_traces(dir)?;
    if !profiled.is_empty() {
        let pytorch = kineto::read(&profiled)?;
        trace.findings.extend_from_slice(&pytorch.findings);
        trace.pytorch = Some(pytorch);
    }
    if let Some(mut nsys) = parsed {
        operator_ranges::add(&mut nsys, &trace.traced);
        trace.findings.extend_from_slice(&nsys.findings);
        trace.timeline = Some(nsys);
    }
    for path in sampled_exports(dir)? {
        let sampled = nsys::read(&path)?;
        trace.findings.extend_from_slice(&sampled.findings);
        trace.sampled.push(sampled);
    }
    for process in ncu::folders(dir)? {
        trace.counters.extend(ncu::read(dir, &process)?.unwrap_or_default().launches);
    }
    trace.gemms = cublas::read(dir)?;
    Ok(trace)
}

/// Reads a bare capture that arguments name, maybe by links: one export of nsys, or traces by the
/// profiler of PyTorch, one per process.
pub fn timeline(files: &[PathBuf]) -> Result<Timeline, ParseError> {
    let files = files.iter().map(|file| CapturePath::named(file));
    bare_capture(&files.collect::<Result<Vec<_>, _>>()?)
}

/// Reads such a capture in the folder of a run, without following a link.
pub fn own_timeline(files: &[PathBuf]) -> Result<Timeline, ParseError> {
    bare_capture(&files.iter().map(CapturePath::from).collect::<Vec<_>>())
}

fn bare_capture(files: &[CapturePath]) -> Result<Timeline, ParseError> {
    if let [export] = files
        && !kineto::is_json(export).unwrap_or(false)
    {
        return nsys::read(export);
    }
    match files.iter().find(|file| matches!(kineto::is_json(file), Ok(false))) {
        // Times of different exports have no common zero.
        Some(file) => Err(ParseError::Foreign {
            path: file.shown().into(),
            what: "not a trace by the profiler of PyTorch; of several files each is one, and nsys \
                   records all ranks in one capture (nsys profile torchrun ...)"
                .into(),
        }),
        None => kineto::read(files),
    }
}

/// Traces of a command's pass under the profiler of PyTorch, one per process.
pub fn torch_traces(dir: &Path) -> Result<Vec<PathBuf>, ParseError> {
    let folder = dir.join(layout::TORCH_PROFILER);
    let unread = |source| ParseError::Read { path: folder.clone(), source };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(unread(source)),
    };
    let paths: Vec<PathBuf> =
        entries.map(|it| Ok(it?.path())).collect::<io::Result<_>>().map_err(unread)?;
    let is_trace = |it: &PathBuf| {
        it.file_name().and_then(|name| name.to_str()).is_some_and(layout::is_torch_trace)
    };
    let mut traces: Vec<PathBuf> = paths.into_iter().filter(is_trace).collect();
    traces.sort();
    Ok(traces)
}

/// The timeline with the client's names of the imported files in its findings.
fn named_as_imported(dir: &Path, mut timeline: Timeline) -> Result<Timeline, ParseError> {
    let import: Option<Import> = json(&dir.join(layout::IMPORT), "an import")?;
    for finding in &mut timeline.findings {
        for file in import.iter().flat_map(|it| &it.files) {
            let stored = file.path.rsplit('/').next().unwrap_or_default();
            finding.rename_file(stored, &file.name);
        }
    }
    Ok(timeline)
}

/// Imported traces by the profiler of PyTorch, in the order of the import.
fn imported_traces(dir: &Path) -> Vec<PathBuf> {
    let traces = (1..).map(|number| dir.join(layout::imported_trace(number)));
    traces.take_while(|path| stored::exists(path)).collect()
}

/// Exports of the passes that sampled metrics, lowest rate first.
fn sampled_exports(dir: &Path) -> Result<Vec<PathBuf>, ParseError> {
    let folder = dir.join(layout::GPU_METRICS);
    let unread = |source| ParseError::Read { path: folder.clone(), source };
    let mut rates: Vec<u32> = match fs::read_dir(&folder) {
        Ok(entries) => {
            let names = entries.map(|entry| Ok(entry?.file_name()));
            let names: Vec<_> = names.collect::<io::Result<_>>().map_err(unread)?;
            names.iter().filter_map(|name| layout::metrics_rate(name.to_str()?)).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(unread(source)),
    };
    rates.sort_unstable();
    let export = |rate: u32| dir.join(layout::metrics_pass(rate)).join(layout::NSYS_EXPORT_FILE);
    Ok(rates.into_iter().map(export).filter(|path| stored::exists(path)).collect())
}

/// Reads a file of JSON; `None` without the file.
fn json<T: DeserializeOwned>(path: &Path, what: &'static str) -> Result<Option<T>, ParseError> {
    match stored::read_own(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|source| ParseError::Json {
            path: path.into(),
            what,
            source,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ParseError::Read { path: path.into(), source }),
    }
}
