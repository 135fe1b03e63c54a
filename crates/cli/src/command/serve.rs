//! `llmprof serve`: options, logging and signals.

mod folders;
mod process_limits;
mod recovery;
mod service;
mod settings;

use std::{ffi::OsString, io::IsTerminal, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use tokio::signal::unix;
use tracing_subscriber::EnvFilter;

pub use self::{
    process_limits::create_private_files,
    service::Service,
    settings::{collector, settings},
};
use super::client::terminal::print_line;
use crate::allocator;

/// Time for work on blocking threads to end after the service has stopped.
const BLOCKING_GRACE: Duration = Duration::from_secs(5);
/// Default level of logs.
const LEVEL: &str = "info";

/// Serve the HTTP API and execute runs
///
/// Runs are queued in a SQLite database in the data folder and executed one at a time per device.
/// The API is documented at /docs. SIGTERM or Ctrl-C stops the service: running runs are requeued.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Order of settings, later ones override: conf/default.toml (embedded), --config, \
                  LLMPROF__SECTION__KEY, flags."
)]
pub struct ServeOptions {
    /// Address to serve on [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// A proxy in front terminates TLS, and only the proxy can reach this address
    #[arg(long)]
    pub behind_proxy: bool,
    /// Folder of the database and the runs [default: ./data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Folder whose input manifests requests may name [default: the bundled samples]
    #[arg(long, value_name = "DIR")]
    pub inputs: Option<PathBuf>,
    /// File with settings that override the defaults
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Format of log lines on standard error; LLMPROF_LOG sets the level (`info`, `llmprof=debug`)
    #[arg(long, value_enum, default_value_t = LogFormat::Human)]
    pub log: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Human,
    Json,
}

impl LogFormat {
    /// Its name on the command line.
    fn as_str(self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::Json => "json",
        }
    }
}

pub fn run(options: ServeOptions) -> Result<()> {
    create_private_files();
    allocator::limit_heaps();
    start_logging(options.log, LEVEL);
    let config = settings(&options)?;
    block_on(async {
        let mut stopped = StopSignals::catch()?;
        let service = Service::start(config, Logging { format: options.log, level: LEVEL }).await?;
        print_line(format_args!("listening on {}", service.base()))?;
        let trimming = tokio::spawn(allocator::trim_memory());
        stopped.signalled().await;
        trimming.abort();
        tracing::info!("stopping: running runs are requeued");
        service.stop().await
    })
}

/// Logging of the service and its jobs.
#[derive(Debug, Clone, Copy)]
pub struct Logging {
    pub format: LogFormat,
    /// Default level.
    pub level: &'static str,
}

impl Logging {
    /// Options of `llmprof execute` for the same logging.
    fn job_options(self) -> Vec<OsString> {
        ["--log", self.format.as_str(), "--log-level", self.level].map(Into::into).into()
    }
}

/// Starts logging to standard error with the level of `LLMPROF_LOG`.
pub fn start_logging(format: LogFormat, level: &str) {
    // The library of the agents' protocol logs each request, and an error for each client that
    // hangs up before its answer.
    let default = || EnvFilter::new(format!("{level},rmcp=off"));
    let filter = EnvFilter::try_from_env("LLMPROF_LOG").unwrap_or_else(|_| default());
    // tracing reports a failed write by `eprintln!`, which panics if the reader has left.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Human => {
            log.with_target(false).with_ansi(std::io::stderr().is_terminal()).init()
        }
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Executes a command that serves. Work on blocking threads that does not end is left behind.
pub fn block_on<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    let ended = runtime.block_on(command);
    runtime.shutdown_timeout(BLOCKING_GRACE);
    ended
}

/// Creates the runtime of a command, with one thread per core.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// SIGTERM and SIGINT, caught from the creation of the value.
pub struct StopSignals {
    term: unix::Signal,
    interrupt: unix::Signal,
}

impl StopSignals {
    pub fn catch() -> Result<Self> {
        let term = unix::signal(unix::SignalKind::terminate())?;
        let interrupt = unix::signal(unix::SignalKind::interrupt())?;
        Ok(Self { term, interrupt })
    }

    /// Waits for the next of them.
    pub async fn signalled(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
