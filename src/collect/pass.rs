//! One pass: a folder, the commands that ran for it, and how they ended.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    Collector,
    argv::Argv,
    child::{Ended, Leash, run},
    loader,
    ncu::Complaint,
    output::{Logs, last_lines},
    space::drop_raw,
};
use crate::{
    artifact::layout,
    run::{Finding, Severity},
    runner::RunnerRequest,
};

/// Lines of its output that a failure quotes.
pub(super) const LAST_WORDS: usize = 12;
/// Lines of its output that are looked through for complaints.
const LAST_LINES: usize = 200;
/// Most bytes of a page that a tool prints into a file of its own.
const PAGE_CAP: u64 = 256 << 20;
/// What to do where nsys does not find its importer.
pub const LINK_IMPORTER: &str =
    "run scripts/install-nsight.sh as root: it links the importer to where Debian's nsys looks for it";

/// A pass that went well.
#[derive(Debug)]
pub struct Pass {
    /// How long its main command ran.
    pub wall: Duration,
    pub findings: Vec<Finding>,
}

/// A pass that did not. Its folder and logs are kept.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error("{tool} is not installed")]
    NotInstalled { tool: &'static str },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot run {}", program.display())]
    Run { program: PathBuf, source: io::Error },
    #[error("there is no program {} on this host", program.display())]
    NoProgram { program: PathBuf },
    #[error("the server was not ready within {within_s} s: {how}{}", quote(last_words))]
    NotReady { how: String, within_s: u32, last_words: Vec<String> },
    #[error("{what} {}", told(*ended, last_words))]
    Ended { what: &'static str, ended: Ended, last_words: Vec<String> },
    #[error("{what} exited with code 0 but left no {file}{}", quote(last_words))]
    Empty { what: &'static str, file: String, last_words: Vec<String> },
    #[error("{what} {}{}", Ended::SpacePassed, tell(dropped))]
    TooLarge { what: &'static str, most_bytes: u64, dropped: Vec<(String, u64)> },
    #[error("{what} {}{}", Ended::DiskFull, tell(dropped))]
    DiskFull { what: &'static str, free_bytes: u64, dropped: Vec<(String, u64)> },
    #[error("ncu read no counters in {stage}: {}; {}", complaint.why, complaint.remedy)]
    NoCounters { stage: String, complaint: Complaint, ended: Ended },
    #[error(
        "the report was taken with nsys {needs}, newer than the nsys of this host{}: export it by hand with that version \
         (nsys export --type sqlite --output run.sqlite REPORT.nsys-rep) and import run.sqlite",
        installed.as_ref().map(|version| format!(" ({version})")).unwrap_or_default()
    )]
    NewerReport { needs: String, installed: Option<String> },
    #[error("nsys left raw data that its importer did not read; {LINK_IMPORTER}{}", quote(last_words))]
    NotImported { last_words: Vec<String> },
}

/// How a command ended, and why where its output tells.
fn told(ended: Ended, last_words: &[String]) -> String {
    let not_loaded = if ended == Ended::Exited(loader::EXIT) { loader::explain(last_words) } else { None };
    not_loaded.map_or_else(|| format!("{ended}{}", quote(last_words)), |why| format!("cannot start: {why}"))
}

/// The line that says most: the last.
fn quote(last_words: &[String]) -> String {
    last_words.last().map(|line| format!(": {line}")).unwrap_or_default()
}

fn tell(dropped: &[(String, u64)]) -> String {
    let names: Vec<String> = dropped.iter().map(|(name, bytes)| format!("{name} ({bytes} bytes)")).collect();
    if names.is_empty() { String::new() } else { format!("; dropped: {}", names.join(", ")) }
}

impl CollectError {
    /// What a person should know beside that the step failed: a failure with a name and a remedy.
    pub fn finding(&self) -> Option<Finding> {
        let message = self.to_string();
        match self {
            Self::TooLarge { most_bytes, dropped, .. } => {
                let mut finding = Finding::new("run_too_large", Severity::Warning, message).with("limit, bytes", most_bytes);
                for (name, bytes) in dropped {
                    finding = finding.with(name, format!("{bytes} bytes, dropped"));
                }
                Some(finding.advise(
                    "generate fewer tokens, trace less (profiling.nsys: trace, duration_s, cuda_graph_trace graph), or raise \
                     limits.run_bytes",
                ))
            }
            Self::DiskFull { free_bytes, dropped, .. } => {
                let mut finding = Finding::new("disk_full", Severity::Warning, message).with("least free, bytes", free_bytes);
                for (name, bytes) in dropped {
                    finding = finding.with(name, format!("{bytes} bytes, dropped"));
                }
                Some(finding.advise("delete runs, or set budgets in [retention]; limits.free_bytes is what has to stay free"))
            }
            Self::NoCounters { stage, complaint, .. } => {
                let message = format!("ncu read no counters in {stage}: {}", complaint.why);
                Some(Finding::new(complaint.id, Severity::Warning, message).advise(complaint.remedy))
            }
            Self::NewerReport { needs, installed } => {
                let message = format!("the report was taken with nsys {needs}, which is newer than the nsys of this host");
                let finding = Finding::new("nsys_report_newer", Severity::Critical, message).with("required", needs);
                let finding = finding.with("installed", installed.as_deref().unwrap_or("unknown"));
                Some(finding.advise(format!(
                    "run `nsys export --type sqlite --output run.sqlite REPORT.nsys-rep` with nsys {needs} or newer and import \
                     run.sqlite, or install that version here"
                )))
            }
            Self::NotReady { how, within_s, last_words } => {
                let finding = Finding::new("server_not_ready", Severity::Warning, message).with("looked for", how);
                let finding = last_words.last().into_iter().fold(finding, |finding, line| finding.with("last line", line));
                Some(finding.with("within, s", within_s).advise(
                    "look at the server's log; raise ready.within_s of the command in targets.toml, or correct its url or log",
                ))
            }
            Self::Ended { ended: Ended::DeadlinePassed, .. } => {
                Some(Finding::new("run_out_of_time", Severity::Warning, message).advise(
                    "raise timeout_s up to limits.run_s, or ask for less: fewer repeats and tokens, a smaller profiling.ncu.top_n",
                ))
            }
            _ => None,
        }
    }

    /// How the command ended, when it is that which went wrong.
    pub fn ended(&self) -> Option<Ended> {
        match self {
            Self::Ended { ended, .. } | Self::NoCounters { ended, .. } => Some(*ended),
            Self::TooLarge { .. } => Some(Ended::SpacePassed),
            Self::DiskFull { .. } => Some(Ended::DiskFull),
            Self::Empty { .. } | Self::NotImported { .. } => Some(Ended::Exited(0)),
            _ => None,
        }
    }

    /// The last lines that the command wrote.
    pub fn last_words(&self) -> &[String] {
        match self {
            Self::Ended { last_words, .. } | Self::Empty { last_words, .. } | Self::NotImported { last_words } => last_words,
            _ => &[],
        }
    }
}

/// The folder of one pass.
pub(super) struct Folder<'a> {
    collector: &'a Collector,
    dir: &'a Path,
    path: PathBuf,
}

impl<'a> Folder<'a> {
    /// Makes the folder `name` of the run in `dir`, without anything that an earlier attempt left.
    pub fn fresh(collector: &'a Collector, dir: &'a Path, name: &str) -> Result<Self, CollectError> {
        let path = dir.join(name);
        let make = || {
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => fs::create_dir_all(&path)?,
            }
            fs::create_dir_all(dir.join(layout::LOGS))
        };
        make().map_err(|source| CollectError::Write { path: path.clone(), source })?;
        Ok(Self { collector, dir, path })
    }

    /// The folder `name` of the run in `dir` with what lies in it already.
    pub fn at(collector: &'a Collector, dir: &'a Path, name: &str) -> Result<Self, CollectError> {
        let path = dir.join(name);
        fs::create_dir_all(dir.join(layout::LOGS)).map_err(|source| CollectError::Write { path: path.clone(), source })?;
        Ok(Self { collector, dir, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the runner's request and says where.
    pub fn write_request(&self, request: &RunnerRequest) -> Result<PathBuf, CollectError> {
        let path = self.path.join(layout::REQUEST);
        let write = || fs::write(&path, serde_json::to_vec_pretty(request)?);
        write().map_err(|source| CollectError::Write { path: path.clone(), source })?;
        Ok(path)
    }

    /// Runs one command of the pass to a good end, with its output in `logs/NAME.*`.
    pub async fn run(&self, what: &'static str, name: &str, argv: &Argv, leash: &Leash) -> Result<Pass, CollectError> {
        self.started(what, argv, &self.logs(name), leash).await
    }

    /// Runs one command whose output is a file of the pass.
    pub async fn print(
        &self,
        what: &'static str,
        name: &str,
        argv: &Argv,
        leash: &Leash,
        file: &str,
    ) -> Result<Pass, CollectError> {
        let logs = Logs { stdout: self.path.join(file), cap: PAGE_CAP, ..self.logs(name) };
        self.started(what, argv, &logs, leash).await
    }

    /// Notes a command of the pass as a shell reads it.
    pub fn note(&self, argv: &Argv) -> Result<(), CollectError> {
        let command = self.path.join(layout::COMMAND);
        let note = || writeln!(OpenOptions::new().append(true).create(true).open(&command)?, "{}", argv.shell());
        note().map_err(|source| CollectError::Write { path: command.clone(), source })
    }

    /// The failure of a command that did not come to a good end, and room where it took too much.
    pub fn failed(&self, what: &'static str, ended: Ended, logs: &Logs, leash: &Leash) -> CollectError {
        match ended {
            Ended::SpacePassed => self.too_large(what, leash),
            Ended::DiskFull => self.disk_full(what, leash),
            ended => CollectError::Ended { what, ended, last_words: logs.last_words(LAST_WORDS) },
        }
    }

    async fn started(&self, what: &'static str, argv: &Argv, logs: &Logs, leash: &Leash) -> Result<Pass, CollectError> {
        self.note(argv)?;
        let started = Instant::now();
        match run(argv, logs, leash).await {
            Ok(Ended::Exited(0)) => Ok(Pass { wall: started.elapsed(), findings: Vec::new() }),
            Ok(ended) => Err(self.failed(what, ended, logs, leash)),
            Err(source) => Err(CollectError::Run { program: argv.program.clone(), source }),
        }
    }

    /// Makes room: the pass has no raw data any more, and a note says so.
    fn too_large(&self, what: &'static str, leash: &Leash) -> CollectError {
        let most_bytes = leash.space.as_ref().map_or(0, |space| space.most_bytes);
        let why =
            format!("A run may hold {most_bytes} bytes (limits.run_bytes). {what} passed that and was ended; dropped here:");
        match drop_raw(&self.path, &why) {
            Ok(dropped) => CollectError::TooLarge { what, most_bytes, dropped },
            Err(source) => CollectError::Write { path: self.path.clone(), source },
        }
    }

    /// Makes room on the disk, the same way.
    fn disk_full(&self, what: &'static str, leash: &Leash) -> CollectError {
        let free_bytes = leash.space.as_ref().map_or(0, |space| space.free_bytes);
        let why = format!("{free_bytes} bytes have to stay free (limits.free_bytes), so {what} was ended; dropped here:");
        match drop_raw(&self.path, &why) {
            Ok(dropped) => CollectError::DiskFull { what, free_bytes, dropped },
            Err(source) => CollectError::Write { path: self.path.clone(), source },
        }
    }

    /// The last lines that a command wrote, its errors after its normal output.
    pub fn output(&self, name: &str) -> Vec<String> {
        let logs = self.logs(name);
        [&logs.stdout, &logs.stderr].into_iter().flat_map(|log| last_lines(log, LAST_LINES)).collect()
    }

    /// Checks that `file` is there and holds something.
    pub fn holds(&self, file: &str, what: &'static str, log: &str) -> Result<(), CollectError> {
        if fs::metadata(self.path.join(file)).is_ok_and(|meta| meta.is_file() && meta.len() > 0) {
            return Ok(());
        }
        Err(CollectError::Empty { what, file: file.into(), last_words: self.logs(log).last_words(LAST_WORDS) })
    }

    /// The failure of a profile that ended well and left no report: perhaps raw data, perhaps nothing.
    pub fn no_report(&self, raw_data: bool, log: &str) -> CollectError {
        let last_words = self.logs(log).last_words(LAST_WORDS);
        if raw_data {
            return CollectError::NotImported { last_words };
        }
        CollectError::Empty { what: "nsys profile", file: layout::NSYS_REPORT.into(), last_words }
    }

    /// The first line of a command's output that holds `words`.
    pub fn says(&self, log: &str, words: &str) -> Option<String> {
        self.output(log).into_iter().find(|line| line.contains(words))
    }

    /// What nsys says where an import lost data although it exits with 0.
    pub fn import_errors(&self, log: &str) -> Option<Finding> {
        let line = self.says(log, "non-fatal error")?;
        let message = "nsys imported its data with errors: the timeline may lack most of what ran";
        let remedy =
            "use an nsys as new as the driver, and look at the kernels against their launches before trusting the timeline";
        Some(Finding::new("nsys_import_errors", Severity::Warning, message).with("nsys", line).advise(remedy))
    }

    pub fn logs(&self, name: &str) -> Logs {
        self.collector.logs(self.dir, name)
    }
}
