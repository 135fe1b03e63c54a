//! Failures of passes, and the findings of those with a known remedy.

use std::{io, path::PathBuf, time::Duration};

use llmprof_core::domain::finding::{Finding, catalogue};

use super::pass::LINK_IMPORTER;
use crate::{
    artifact::dropped_files,
    collect::{
        process::{child::ExitReason, loader_errors, output::is_error_line, stall::Stall},
        tools::CounterRefusal,
    },
};

/// Remedy if nsys hangs, recorded or not.
const SAMPLE_LESS: &str =
    "if it samples the CPU, set nsys.sample and nsys.cpuctxsw to none, or update nsys";
/// Remedy if nsys does not finish the report of a recorded program, or its export.
const RECORD_LESS: &str = "record less (nsys.trace, nsys.duration_s)";
/// The server of a pass, or of a session that fails.
pub(super) const THE_SERVER: &str = "the server";
/// The server of a session in which a run fails.
pub(super) const SESSION_SERVER: &str = "the session's server";
/// Remedy if the command of a server ends before it is stopped.
const FOREGROUND: &str = "a server's command has to stay in the foreground until it is stopped; if \
                          it starts the server in the background (--daemon, &), remove that from \
                          the command in targets.toml";
/// Time from the end of a delay to the start of the recording, at most: nsys itself takes time.
const DELAY_MARGIN: Duration = Duration::from_secs(1);
/// Time after the end of a program from which the deadline of a run counts as its profiler's.
const ALONE: Duration = Duration::from_secs(5);

/// A failed pass. Its folder and logs are kept.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error("{tool} is not installed")]
    NotInstalled { tool: &'static str },
    #[error("{refusal}")]
    SamplingForbidden { refusal: String },
    #[error("nsys did not finish its report: {}", describe_stall(*stall, *target_seen))]
    Hung { stall: Stall, target_seen: bool },
    #[error("{what} did not finish: {}; update nsys, or {RECORD_LESS}", stalled(*stall))]
    HungReader { what: &'static str, stall: Stall },
    #[error(
        "nsys did not finish its report: the run's deadline was {} s after the end of the program; \
         raise timeout_s; {SAMPLE_LESS}; else {RECORD_LESS}",
        alone.as_secs()
    )]
    Unfinished { alone: Duration },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot run {}", program.display())]
    Run { program: PathBuf, source: io::Error },
    #[error("program {} not found on this host", program.display())]
    NoProgram { program: PathBuf },
    #[error("the server was not ready within {within_s} s: {how}{}", quote_error(last_words))]
    NotReady { how: String, within_s: u32, last_words: Vec<String> },
    #[error("{what} {}", describe_end(what, *ended, last_words))]
    Ended { what: &'static str, ended: ExitReason, last_words: Vec<String> },
    #[error(
        "the program ended before recording started (delay {delay_s} s, runtime {}{:.1} s): it \
         {ended}{}; set nsys.delay_s to at least {} s less than its runtime, or to 0 to record it \
         from its start",
        if *is_seen { "" } else { "at most " },
        ran.as_secs_f64(),
        if *ended == ExitReason::Exited(0) { String::new() } else { quote(last_words) },
        DELAY_MARGIN.as_secs()
    )]
    EndedEarly {
        delay_s: u32,
        /// Its runtime; an upper bound unless `is_seen`.
        ran: Duration,
        is_seen: bool,
        ended: ExitReason,
        last_words: Vec<String>,
    },
    #[error("{what} exited with code 0 but left no {file}{}", quote(last_words))]
    Empty { what: &'static str, file: String, last_words: Vec<String> },
    #[error(
        "no new trace matches {file} {within_s} s after the server's profiler was stopped; correct \
         gate.collect of the command or raise its within_s"
    )]
    NoTrace { file: String, within_s: u32 },
    #[error("nsys recorded no window: {why}")]
    NoWindow { why: String },
    #[error("the command of the session has no load any more; restore its load in targets.toml")]
    NoLoad,
    #[error("the server's profiler did not start: {why}; correct gate.start of the command")]
    GateClosed { why: String },
    #[error(
        "{what} was ended: disk quota exceeded ({}){}",
        shown_quota(*max_bytes),
        list_dropped(dropped)
    )]
    TooLarge {
        what: &'static str,
        /// Folder of the pass.
        pass: String,
        max_bytes: u64,
        dropped: Vec<(String, u64)>,
    },
    #[error("{what} {}{}", ExitReason::DiskFull, list_dropped(dropped))]
    DiskFull { what: &'static str, free_bytes: u64, dropped: Vec<(String, u64)> },
    #[error("{tool} read no counters in {process}: {}; {}", complaint.why, complaint.remedy)]
    NoCounters {
        tool: &'static str,
        /// Folder of the pass, or name of the process.
        process: String,
        complaint: CounterRefusal,
        ended: ExitReason,
    },
    #[error(
        "the report needs nsys {needs}, newer than the nsys of this host{}: export it with that \
         version (nsys export --type sqlite --output run.sqlite REPORT.nsys-rep) and import \
         run.sqlite",
        installed.as_ref().map(|version| format!(" ({version})")).unwrap_or_default()
    )]
    NewerReport { needs: String, installed: Option<String> },
    #[error(
        "the ncu of this host printed no page of the report ({reason}): print it with the ncu that \
         wrote it (ncu --import REPORT --csv --page raw) and import the page"
    )]
    UnreadableCounters { reason: String },
    #[error(
        "the importer of nsys did not run and left raw data; {LINK_IMPORTER}{}",
        quote(last_words)
    )]
    NotImported { last_words: Vec<String> },
}

/// Describes the end of a command, with the remedy for a server that succeeded: it started its
/// processes in the background, where they are neither profiled nor stopped.
pub(super) fn describe_end(what: &str, ended: ExitReason, last_words: &[String]) -> String {
    let described = describe_exit(ended, last_words);
    if ended == ExitReason::Exited(0) && [THE_SERVER, SESSION_SERVER].contains(&what) {
        return format!("{described}; {FOREGROUND}");
    }
    described
}

/// Describes the exit of a command, with the reason from its output.
fn describe_exit(ended: ExitReason, last_words: &[String]) -> String {
    let not_loaded = if ended == ExitReason::Exited(loader_errors::EXIT) {
        loader_errors::explain(last_words)
    } else {
        None
    };
    let quoted = match ended {
        // The output of a program that was stopped is not the reason.
        ExitReason::Stopped => String::new(),
        ExitReason::DeadlinePassed => quote_error(last_words),
        _ => quote(last_words),
    };
    not_loaded.map_or_else(|| format!("{ended}{quoted}"), |why| format!("cannot start: {why}"))
}

/// Describes an exceeded limit.
fn stalled(stall: Stall) -> String {
    let (failed, after) = match stall {
        Stall::Idle(after) => ("made no progress", after),
        Stall::Busy(after) => ("used the CPU and wrote nothing", after),
    };
    format!("it {failed} for {} s", after.as_secs_f64())
}

/// Describes a hang with its remedy; `target_seen`: the program was seen running before.
fn describe_stall(stall: Stall, target_seen: bool) -> String {
    let failed = stalled(stall);
    match target_seen {
        true => format!("{failed} after the program had ended; {SAMPLE_LESS}; else {RECORD_LESS}"),
        false => format!("{failed}, and its program was not seen running; {SAMPLE_LESS}"),
    }
}

/// Quotes the last line.
fn quote(last_words: &[String]) -> String {
    last_words.last().map(|line| format!(": {line}")).unwrap_or_default()
}

/// Quotes the last line if it reports an error: time passes without one, too, and any other line is
/// not the reason.
fn quote_error(last_words: &[String]) -> String {
    let is_reason = last_words.last().is_some_and(|line| is_error_line(line));
    if is_reason { quote(last_words) } else { String::new() }
}

/// A quota of at least a megabyte, the minimum of `limits.run_bytes`.
fn shown_quota(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes < 1e9 { format!("{:.1} MB", bytes / 1e6) } else { format!("{:.1} GB", bytes / 1e9) }
}

fn list_dropped(dropped: &[(String, u64)]) -> String {
    let names: Vec<String> =
        dropped.iter().map(|(name, bytes)| format!("{name} ({bytes} bytes)")).collect();
    if names.is_empty() { String::new() } else { format!("; dropped: {}", names.join(", ")) }
}

impl CollectError {
    /// The same for an imported report of counters, whose ncu may have been a newer one.
    pub fn of_imported_counters(self) -> Self {
        match &self {
            Self::Ended { ended: ExitReason::Exited(_), last_words, .. }
            | Self::Empty { last_words, .. } => {
                let reason = last_words.last().cloned().unwrap_or_else(|| self.to_string());
                Self::UnreadableCounters { reason }
            }
            _ => self,
        }
    }

    /// Returns the finding of a failure with a known remedy.
    pub fn finding(&self) -> Option<Finding> {
        let message = self.to_string();
        match self {
            Self::TooLarge { pass, max_bytes, dropped, .. } => {
                let finding =
                    Finding::new(catalogue::RUN_TOO_LARGE, message).with("limit, bytes", max_bytes);
                let files = dropped.iter().map(|(path, bytes)| (path.as_str(), *bytes));
                let remedy = dropped_files::remedy(pass, files);
                Some(with_dropped(finding, dropped).advise(remedy))
            }
            Self::DiskFull { free_bytes, dropped, .. } => {
                let finding = Finding::new(catalogue::DISK_FULL, message)
                    .with("least free, bytes", free_bytes);
                Some(with_dropped(finding, dropped).advise(
                    "delete runs, or set budgets in [retention]; limits.free_bytes is the space to \
                     keep free",
                ))
            }
            Self::NoCounters { tool, process, complaint, .. } => {
                let message = format!("{tool} read no counters in {process}: {}", complaint.why);
                Some(Finding::new(complaint.id, message).advise(complaint.remedy))
            }
            Self::NewerReport { needs, installed } => {
                let message =
                    format!("the report needs nsys {needs}, newer than the nsys of this host");
                let finding = Finding::new(catalogue::NSYS_REPORT_NEWER, message)
                    .with("required", needs)
                    .with("installed", installed.as_deref().unwrap_or("unknown"));
                Some(finding.advise(format!(
                    "run `nsys export --type sqlite --output run.sqlite REPORT.nsys-rep` with nsys \
                     {needs} or newer and import run.sqlite, or install that version here"
                )))
            }
            Self::UnreadableCounters { reason } => {
                let message = "the ncu of this host printed no page of an imported report";
                let finding =
                    Finding::new(catalogue::NCU_REPORT_UNREADABLE, message).with("ncu", reason);
                Some(finding.advise(
                    "run `ncu --import REPORT --csv --page raw` with the ncu that wrote it and \
                     import the page, or install that version here",
                ))
            }
            Self::NoWindow { .. } => Some(Finding::new(catalogue::WINDOW_FAILED, message).advise(
                "read logs/server.stdout.log and logs/server.stderr.log, which have the output of \
                 nsys; start another session, or update nsys",
            )),
            Self::NotReady { how, within_s, last_words } => {
                let finding =
                    Finding::new(catalogue::SERVER_NOT_READY, message).with("looked for", how);
                let last = last_words.last().into_iter();
                let finding = last.fold(finding, |finding, line| finding.with("last line", line));
                Some(finding.with("within, s", within_s).advise(
                    "check the server's log; raise ready.within_s of the command in targets.toml, \
                     or correct its url or log",
                ))
            }
            Self::Unfinished { .. } => {
                Some(Finding::new(catalogue::RUN_OUT_OF_TIME, message).advise(format!(
                    "raise timeout_s up to limits.run_s; {SAMPLE_LESS}; else {RECORD_LESS}"
                )))
            }
            Self::Ended { ended: ExitReason::DeadlinePassed, .. } => {
                Some(Finding::new(catalogue::RUN_OUT_OF_TIME, message).advise(
                    "raise timeout_s up to limits.run_s, or reduce the run: fewer repeats and \
                     tokens, a smaller profiling.ncu.max_launches",
                ))
            }
            _ => None,
        }
    }

    /// The same for a profile of nsys without a report, of a target whose recording starts after
    /// `delay_s`: the target ended earlier. `ran`: its runtime, if it was seen; `elapsed`: of nsys,
    /// which may have failed by itself. An nsys that succeeded without a report recorded nothing,
    /// so its target may have ended up to [`DELAY_MARGIN`] after the delay.
    pub fn of_delayed(self, delay_s: u32, ran: Option<Duration>, elapsed: Duration) -> Self {
        let delay = Duration::from_secs(delay_s.into());
        let is_early = match &self {
            _ if delay.is_zero() => false,
            Self::Ended { ended: ExitReason::Exited(_), .. } => ran.is_some_and(|ran| ran < delay),
            Self::Empty { .. } => ran.unwrap_or(elapsed) < delay + DELAY_MARGIN,
            _ => false,
        };
        match self.ended() {
            Some(ended) if is_early => Self::EndedEarly {
                delay_s,
                ran: ran.unwrap_or(elapsed),
                is_seen: ran.is_some(),
                ended,
                last_words: self.last_words().to_vec(),
            },
            _ => self,
        }
    }

    /// The same for a profiler whose program was last running `alone` before the deadline.
    pub fn of_profiler(self, alone: Option<Duration>) -> Self {
        match alone.filter(|alone| *alone >= ALONE) {
            Some(alone) if self.ended() == Some(ExitReason::DeadlinePassed) => {
                Self::Unfinished { alone }
            }
            _ => self,
        }
    }

    /// Returns the exit of the command, if that is the failure.
    pub fn ended(&self) -> Option<ExitReason> {
        match self {
            Self::Ended { ended, .. }
            | Self::EndedEarly { ended, .. }
            | Self::NoCounters { ended, .. } => Some(*ended),
            Self::Unfinished { .. } => Some(ExitReason::DeadlinePassed),
            Self::TooLarge { .. } => Some(ExitReason::QuotaExceeded { temporary: 0 }),
            Self::DiskFull { .. } => Some(ExitReason::DiskFull),
            Self::Empty { .. } | Self::NotImported { .. } => Some(ExitReason::Exited(0)),
            _ => None,
        }
    }

    /// Returns the last lines of the command's output.
    pub fn last_words(&self) -> &[String] {
        match self {
            Self::Ended { last_words, .. }
            | Self::EndedEarly { last_words, .. }
            | Self::Empty { last_words, .. }
            | Self::NotImported { last_words } => last_words,
            _ => &[],
        }
    }
}

fn with_dropped(finding: Finding, dropped: &[(String, u64)]) -> Finding {
    dropped.iter().fold(finding, |finding, (name, bytes)| {
        finding.with(name, format!("{bytes} bytes, dropped"))
    })
}

#[cfg(test)]
mod tests;
