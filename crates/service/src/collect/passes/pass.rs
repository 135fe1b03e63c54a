//! One pass: its folder and its commands.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use super::failure::CollectError;
use llmprof_core::{
    domain::{finding::Finding, runner::RunnerRequest},
    layout,
    trace::environment::HostLoad,
};

use crate::{
    artifact::{
        dropped_files::TEMPORARY_FILES,
        folder::remove_tree,
        size_limit::{self, SizedFile},
    },
    collect::{
        Collector,
        process::{
            argv::Argv,
            child::{ExitReason, ProcessLimits, run},
            disk_quota::drop_raw,
            output::{self, Logs, last_lines},
        },
    },
    runtime::work::SlicedWork,
};

/// Lines of output in a failure.
pub(crate) const LAST_WORDS: usize = 12;
/// Lines of output to search for known errors.
const LAST_LINES: usize = 200;
/// Maximum size of a page that a tool prints into a file, bytes.
const PAGE_CAP: u64 = 256 << 20;
/// Remedy if nsys does not find its importer.
pub const LINK_IMPORTER: &str = "run scripts/install-nsight.sh as root: it links the importer to \
                                 the folder in which Debian's nsys expects it";

/// A successful pass.
#[derive(Debug)]
pub struct Pass {
    /// Runtime of its main command.
    pub wall: Duration,
    pub findings: Vec<Finding>,
}

/// Folder of one pass.
pub struct PassFolder<'a> {
    collector: &'a Collector,
    dir: &'a Path,
    name: String,
    path: PathBuf,
}

impl<'a> PassFolder<'a> {
    /// Creates the folder `name` of the run in `dir`; removes the files of an earlier attempt.
    pub fn create(
        collector: &'a Collector,
        dir: &'a Path,
        name: &str,
    ) -> Result<Self, CollectError> {
        let path = dir.join(name);
        let make = || {
            remove_tree(&path, &SlicedWork::default())?;
            fs::create_dir_all(&path)?;
            fs::create_dir_all(dir.join(layout::LOGS))
        };
        make().map_err(|source| CollectError::Write { path: path.clone(), source })?;
        Ok(Self { collector, dir, name: name.to_owned(), path })
    }

    /// Opens the folder `name` of the run in `dir` with its files.
    pub fn open(collector: &'a Collector, dir: &'a Path, name: &str) -> Result<Self, CollectError> {
        let path = dir.join(name);
        fs::create_dir_all(dir.join(layout::LOGS))
            .map_err(|source| CollectError::Write { path: path.clone(), source })?;
        Ok(Self { collector, dir, name: name.to_owned(), path })
    }

    /// The run's folder.
    pub fn dir(&self) -> &Path {
        self.dir
    }

    /// Path in the run's folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the log of its main command.
    pub fn log(&self) -> String {
        self.name.replace('/', "-")
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the runner's request and returns its path.
    pub fn write_request(&self, request: &RunnerRequest) -> Result<PathBuf, CollectError> {
        let path = self.path.join(layout::REQUEST);
        let portable = request.relative_to(&self.path);
        let write = || fs::write(&path, serde_json::to_vec_pretty(&portable)?);
        write().map_err(|source| CollectError::Write { path: path.clone(), source })?;
        Ok(path)
    }

    /// Writes the load of the host during the pass.
    pub fn write_load(&self, load: &HostLoad) -> Result<(), CollectError> {
        let path = self.dir.join(layout::HOST_LOAD);
        let write = || fs::write(&path, serde_json::to_vec_pretty(load)?);
        write().map_err(|source| CollectError::Write { path: path.clone(), source })
    }

    /// Runs one command of the pass, with its output in `logs/NAME.*`; fails unless it succeeds.
    pub async fn run(
        &self,
        what: &'static str,
        name: &str,
        argv: &Argv,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        self.run_logged(what, argv, &self.logs(name), limits).await
    }

    /// Runs one command whose standard output is a file of the pass.
    pub async fn run_into_file(
        &self,
        what: &'static str,
        name: &str,
        argv: &Argv,
        limits: &ProcessLimits,
        file: &str,
    ) -> Result<Pass, CollectError> {
        let logs = Logs { stdout: self.path.join(file), cap: PAGE_CAP, ..self.logs(name) };
        self.run_logged(what, argv, &logs, limits).await
    }

    /// Appends a command of the pass to its record of commands, in shell syntax: paths of the run's
    /// folder are relative to it, and the collector's programs have no folder.
    pub fn record_command(&self, argv: &Argv) -> Result<(), CollectError> {
        let command = self.path.join(layout::COMMAND);
        let append = || {
            writeln!(
                OpenOptions::new().append(true).create(true).open(&command)?,
                "{}",
                argv.portable(self.dir, &self.collector.programs()).shell()
            )
        };
        append().map_err(|source| CollectError::Write { path: command.clone(), source })
    }

    /// Returns the failure of a command; removes its raw data if it exceeded a limit of space.
    pub fn failure(
        &self,
        what: &'static str,
        ended: ExitReason,
        logs: &Logs,
        limits: &ProcessLimits,
    ) -> CollectError {
        match ended {
            ExitReason::QuotaExceeded { temporary } => self.too_large(what, limits, temporary),
            ExitReason::DiskFull => self.disk_full(what, limits),
            ended => CollectError::Ended { what, ended, last_words: logs.last_output(LAST_WORDS) },
        }
    }

    async fn run_logged(
        &self,
        what: &'static str,
        argv: &Argv,
        logs: &Logs,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        self.record_command(argv)?;
        let started = Instant::now();
        let ended = run(argv, logs, limits).await;
        for path in [&logs.stdout, &logs.stderr] {
            // A printed page is not a log.
            if path.starts_with(self.dir.join(layout::LOGS)) {
                output::make_portable(path, self.dir);
            }
        }
        match ended {
            Ok(ExitReason::Exited(0)) => Ok(Pass { wall: started.elapsed(), findings: Vec::new() }),
            Ok(ended) => Err(self.failure(what, ended, logs, limits)),
            Err(source) => Err(CollectError::Run { program: argv.program.clone(), source }),
        }
    }

    /// Removes the raw data of the pass and leaves a note. Large files elsewhere in the run's
    /// folder are removed too: they would end every later pass.
    fn too_large(
        &self,
        what: &'static str,
        limits: &ProcessLimits,
        temporary: u64,
    ) -> CollectError {
        let max_bytes = limits.quota.as_ref().map_or(0, |quota| quota.max_bytes);
        let why = format!(
            "{what} exceeded the disk quota of a run, {max_bytes} bytes (limits.run_bytes), and \
             was ended; dropped here:"
        );
        let drop = || {
            let mut dropped = self.named_in_run(drop_raw(&self.path, &why, temporary)?, limits);
            if let Some(quota) = &limits.quota {
                let others = size_limit::enforce(&quota.dir, max_bytes, &SlicedWork::default())?;
                let name = |file: &SizedFile| file.path.to_string_lossy().into_owned();
                dropped.extend(others.iter().map(|file| (name(file), file.bytes)));
            }
            Ok(dropped)
        };
        match drop() {
            Ok(dropped) => {
                CollectError::TooLarge { what, pass: self.name.clone(), max_bytes, dropped }
            }
            Err(source) => CollectError::Write { path: self.path.clone(), source },
        }
    }

    /// Removes the raw data of the pass to free disk space, and leaves a note.
    fn disk_full(&self, what: &'static str, limits: &ProcessLimits) -> CollectError {
        let free_bytes = limits.quota.as_ref().map_or(0, |quota| quota.free_bytes);
        let why = format!(
            "{what} was ended to keep {free_bytes} bytes free (limits.free_bytes); dropped here:"
        );
        match drop_raw(&self.path, &why, 0) {
            Ok(dropped) => {
                let dropped = self.named_in_run(dropped, limits);
                CollectError::DiskFull { what, free_bytes, dropped }
            }
            Err(source) => CollectError::Write { path: self.path.clone(), source },
        }
    }

    /// Files of the pass with their paths in the run's folder: passes have files of equal names,
    /// and the passes of a mock are in its own folder.
    fn named_in_run(
        &self,
        dropped: Vec<(String, u64)>,
        limits: &ProcessLimits,
    ) -> Vec<(String, u64)> {
        let in_run = limits.quota.as_ref().and_then(|it| self.path.strip_prefix(&it.dir).ok());
        let folder = in_run.unwrap_or(Path::new(&self.name)).display();
        let named = |(name, bytes): (String, u64)| match name == TEMPORARY_FILES {
            true => (name, bytes),
            false => (format!("{folder}/{name}"), bytes),
        };
        dropped.into_iter().map(named).collect()
    }

    /// Returns the last lines of a command's output, standard error last.
    pub fn output(&self, name: &str) -> Vec<String> {
        let logs = self.logs(name);
        [&logs.stdout, &logs.stderr]
            .into_iter()
            .flat_map(|log| last_lines(log, LAST_LINES))
            .collect()
    }

    /// Checks that `file` exists and is not empty.
    pub fn require(&self, file: &str, what: &'static str, log: &str) -> Result<(), CollectError> {
        if fs::metadata(self.path.join(file)).is_ok_and(|meta| meta.is_file() && meta.len() > 0) {
            return Ok(());
        }
        Err(CollectError::Empty {
            what,
            file: file.into(),
            last_words: self.logs(log).last_output(LAST_WORDS),
        })
    }

    /// Returns the failure of a profile that succeeded without a report.
    pub fn missing_report(&self, raw_data: bool, log: &str) -> CollectError {
        let last_words = self.logs(log).last_output(LAST_WORDS);
        if raw_data {
            return CollectError::NotImported { last_words };
        }
        let file = format!("{}/{}", self.name, layout::NSYS_REPORT_FILE);
        CollectError::Empty { what: "nsys profile", file, last_words }
    }

    pub fn logs(&self, name: &str) -> Logs {
        self.collector.logs(self.dir, name)
    }
}
