//! `llmprof serve`: puts settings, store, workers and HTTP together, and takes them apart in order.

use std::{
    fs::File,
    io::IsTerminal,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::backup::RESTORING;
use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use llmprof::{
    artifact::intake,
    collect::{Collector, gauge::watch_gpus, tools::is_program},
    config::{self, Asked, Config, ExecutorKind, Limits, Tools},
    http::{self, Certificate},
    store::{Store, audit::AuditLog},
    trace::device::{Device, is_device},
    worker::{
        self, Pool,
        executor::{local::Local, slurm::Slurm},
        webhooks::Webhooks,
    },
};
use tokio::{net::TcpListener, signal::unix, sync::Notify};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// A tool's setting that means: do not use it, even where it is installed.
const OFF: &str = "none";
/// Seconds between looks at the certificate's files.
const LOOK: Duration = Duration::from_secs(10);
/// How long open connections may take to end once the service stops.
const LINGER: Duration = Duration::from_secs(5);

/// Serve the HTTP API and carry out runs
///
/// Runs are queued in a SQLite database under the data folder and carried out one at a time per device. The API is explained
/// at /docs. SIGTERM or Ctrl-C ends the service cleanly: what runs goes back to the queue.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Settings come from conf/default.toml (embedded), then --config, then LLMPROF__SECTION__KEY, then the flags."
)]
pub struct Options {
    /// Address to serve on [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// A proxy in front speaks TLS with the clients, and nobody else reaches this address
    #[arg(long)]
    pub behind_proxy: bool,
    /// Folder of the database and the runs [default: ./data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Folder whose input manifests requests may name [default: the bundled samples]
    #[arg(long, value_name = "DIR")]
    pub inputs: Option<PathBuf>,
    /// File with settings that go over the defaults
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How log lines look on standard error; LLMPROF_LOG chooses which (`info`, `llmprof=debug`)
    #[arg(long, value_enum, default_value_t = LogFormat::Human)]
    pub log: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Human,
    Json,
}

pub fn run(options: Options) -> Result<()> {
    start_logging(options.log, "info");
    let config = settings(&options)?;
    runtime()?.block_on(async {
        let stopped = stop_signal()?;
        let service = Service::start(config).await?;
        println!("listening on {}", service.base());
        stopped.await;
        tracing::info!("stopping: what runs goes back to the queue");
        service.stop().await
    })
}

/// Writes log lines to standard error, in the level that `LLMPROF_LOG` asks for.
pub fn start_logging(format: LogFormat, level: &str) {
    let filter = EnvFilter::try_from_env("LLMPROF_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Human => log.with_target(false).with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// The runtime of a command: as many threads as there are cores.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// The settings of all sources, flags last.
pub fn settings(options: &Options) -> Result<Config> {
    let mut config = Config::load(options.config.as_deref(), std::env::vars())?;
    let server = &mut config.server;
    if let Some(listen) = &options.listen {
        server.listen.clone_from(listen);
    }
    if let Some(data) = &options.data {
        server.data.clone_from(data);
    }
    if let Some(inputs) = &options.inputs {
        server.inputs.clone_from(inputs);
    }
    server.behind_proxy |= options.behind_proxy;
    Ok(config)
}

/// A service that runs.
pub struct Service {
    pub address: SocketAddr,
    encrypted: bool,
    pool: Pool,
    http: tokio::task::JoinHandle<std::io::Result<()>>,
    closing: CancellationToken,
    _lock: File,
}

impl Service {
    /// Opens the data folder, takes up what an earlier service left, and begins to serve.
    pub async fn start(config: Config) -> Result<Self> {
        let server = &config.server;
        let data = make_folder(&server.data)?;
        let lock = lock(&data)?;
        if data.join(RESTORING).exists() {
            bail!("{} holds half a backup: a restore was broken off there; empty the folder and restore again", data.display());
        }
        let inputs = if server.inputs.as_os_str().is_empty() {
            let samples = data.join("samples");
            llmprof::samples::unpack(&samples).with_context(|| format!("cannot write the samples to {}", samples.display()))?;
            samples
        } else {
            server.inputs.canonicalize().with_context(|| format!("cannot use the inputs folder {}", server.inputs.display()))?
        };
        let runs = make_folder(&data.join("runs"))?;
        let alignments = make_folder(&data.join("alignments"))?;
        let found = config::models(given(&server.models))?;
        for model in &found.refused {
            tracing::warn!(model = model.name, reason = model.reason, "model refused");
        }
        let (models, refused_models) = (Arc::new(found.models), Arc::new(found.refused));
        let targets = Arc::new(config::targets(given(&server.targets), &models)?);
        let presets = Arc::new(config::profiling(given(&server.profiling))?);
        let collector = Arc::new(Collector { state: Some(data.clone()), ..collector(&config.tools, &config.limits)? });
        let store = Store::open(&data.join("llmprof.db")).await?.with_running_per_owner(config.access.running_runs_per_owner);
        let certificate = certificate(server)?;
        let webhooks = Webhooks::read(&config.webhooks)?;
        let listener = TcpListener::bind(&server.listen).await.with_context(|| format!("cannot listen on {}", server.listen))?;
        let address = listener.local_addr()?;
        let valid = store.tokens().await?.iter().any(|token| token.valid);
        may_serve(address, &config, certificate.is_some(), valid)?;
        let audit = AuditLog::open(&data).with_context(|| format!("cannot write the audit log in {}", data.display()))?;
        let access = http::Access::new(&config.access, !address.ip().is_loopback(), server.behind_proxy, Some(audit));
        let head = Duration::from_secs(server.header_s.max(1).into());
        let (devices, accepts) = match config.executor.kind {
            ExecutorKind::Local => (devices(&config, &collector).await?, Vec::new()),
            ExecutorKind::Slurm => (Vec::new(), Slurm::accepts(&config.executor.slurm)),
        };
        let config = Arc::new(config);

        let cx = worker::Context {
            store,
            runs,
            alignments,
            inputs,
            models,
            targets,
            presets,
            devices: Arc::new(config::devices()?),
            collector: Arc::clone(&collector),
            config: Arc::clone(&config),
            queued: Arc::new(Notify::new()),
            cancelled: Arc::new(Notify::new()),
        };
        worker::recover(&cx, true).await?;
        worker::import::recover(&cx).await?;
        worker::retention::recover(&cx.store, &cx.runs).await?;
        worker::align::recover(&cx.store, &cx.alignments).await?;
        cx.store.recover_alignments().await?;
        let closing = CancellationToken::new();
        let app = http::App {
            store: cx.store.clone(),
            access: Arc::new(access),
            runs: cx.runs.clone(),
            alignments: cx.alignments.clone(),
            inputs: cx.inputs.clone(),
            models: Arc::clone(&cx.models),
            refused_models,
            targets: Arc::clone(&cx.targets),
            presets: Arc::clone(&cx.presets),
            devices: devices.clone().into(),
            accepts: accepts.clone().into(),
            intake: Arc::new(intake(&config.limits, &data, &collector)?),
            doctor: worker::doctor::start(Arc::clone(&collector), data.clone(), closing.clone()),
            gpus: watch_gpus(devices.iter().filter_map(|device| device.uuid.clone()).collect(), &closing),
            config: Arc::clone(&cx.config),
            queued: Arc::clone(&cx.queued),
            cancelled: Arc::clone(&cx.cancelled),
            closing: closing.clone(),
        };
        let encrypted = certificate.is_some();
        if let Some(certificate) = certificate.clone() {
            renew(certificate, closing.clone())?;
        }
        let http = http::serve(listener.into_std()?, certificate, head, app)?;
        let pool = match config.executor.kind {
            ExecutorKind::Local => {
                let host = worker::Host { collector, devices: Arc::clone(&cx.devices) };
                Pool::of_devices(&cx, &Arc::new(Local::new(host, cx.runs.clone())), &devices)
            }
            ExecutorKind::Slurm => {
                let most = if config.worker.paused { 0 } else { config.executor.slurm.jobs as usize };
                Pool::of_jobs(&cx, &slurm(&config, &cx)?, most, &accepts)
            }
        };
        let keeper = worker::retention::Keeper {
            store: cx.store.clone(),
            runs: cx.runs.clone(),
            settings: config.retention.clone(),
            yields: config.executor.kind == ExecutorKind::Local,
        };
        keeper.start(closing.clone());
        worker::webhooks::start(cx.store.clone(), webhooks, closing.clone()).await?;
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        let service = Self { address, encrypted, pool, http, closing, _lock: lock };
        let base = service.base();
        tracing::info!(%address, devices = ?names, data = %data.display(), "serving; the API is explained at {base}/docs");
        Ok(service)
    }

    /// Where it is reached.
    pub fn base(&self) -> String {
        format!("{}://{}", if self.encrypted { "https" } else { "http" }, self.address)
    }

    /// Stops serving, gives running runs back to the queue, and returns when nothing is left.
    pub async fn stop(self) -> Result<()> {
        self.closing.cancel();
        self.pool.drain().await;
        // Slow downloads do not hold the service up; everything durable is already kept.
        match tokio::time::timeout(LINGER, self.http).await {
            Ok(served) => Ok(served??),
            Err(_) => Ok(()),
        }
    }
}

/// Where captures arrive; what an earlier service left there is removed.
fn intake(limits: &Limits, data: &Path, collector: &Arc<Collector>) -> Result<http::Intake> {
    let folder = data.join("incoming");
    let limits = intake::Limits { most_bytes: limits.capture_bytes, least_free: limits.free_bytes };
    let inspector = worker::import::inspector(Arc::clone(collector));
    http::Intake::open(folder.clone(), limits, inspector).with_context(|| format!("cannot use the folder {}", folder.display()))
}

/// The cluster, where this host has the commands to speak to it.
fn slurm(config: &Config, cx: &worker::Context) -> Result<Arc<Slurm>> {
    if let Some(missing) = llmprof::collect::slurm::missing(std::env::var_os("PATH").as_deref()) {
        bail!("setting executor.kind: there is no {missing} on PATH; install Slurm's commands here, or carry runs out locally");
    }
    let settings = config.executor.slurm.clone();
    let program = match given(&settings.program) {
        Some(program) => program.to_owned(),
        None => std::env::current_exe().context("cannot tell the path of llmprof: set executor.slurm.program")?,
    };
    Ok(Arc::new(Slurm::new(settings, cx.runs.clone(), program)))
}

/// The certificate of the settings, if they name one.
fn certificate(server: &config::Server) -> Result<Option<Certificate>> {
    match (given(&server.tls.certificate), given(&server.tls.key)) {
        (None, None) => Ok(None),
        (Some(chain), Some(key)) => Ok(Some(Certificate::read(chain, key).context("settings server.tls")?)),
        _ => bail!("settings server.tls: certificate and key belong together, and one of them is not set"),
    }
}

/// Reads the certificate again when its files change and on SIGHUP. What does not fit is told, and the one before stays.
fn renew(certificate: Certificate, closing: CancellationToken) -> Result<()> {
    let mut hangup = unix::signal(unix::SignalKind::hangup())?;
    tokio::spawn(async move {
        let mut written = certificate.written();
        loop {
            let asked = tokio::select! {
                _ = closing.cancelled() => return,
                _ = hangup.recv() => true,
                () = tokio::time::sleep(LOOK) => false,
            };
            let now = certificate.written();
            if !asked && now == written {
                continue;
            }
            written = now;
            match certificate.reload() {
                Ok(()) => tracing::info!("the certificate was read again"),
                Err(error) => tracing::error!("the certificate before stays in use: {}", llmprof::chain(&error)),
            }
        }
    });
    Ok(())
}

/// Refuses an address where tokens could be read on the way, or where nobody asks for one.
fn may_serve(address: SocketAddr, config: &Config, encrypted: bool, valid_token: bool) -> Result<()> {
    let (proxy, asked) = (config.server.behind_proxy, config.access.tokens);
    if address.ip().is_loopback() && !proxy {
        return Ok(());
    }
    if !encrypted && !proxy {
        bail!(
            "{address} is no loopback address, and what is sent there in plain HTTP can be read on the way: set server.tls.certificate \
             and server.tls.key, or serve on 127.0.0.1, or give --behind-proxy if a proxy in front speaks TLS"
        );
    }
    if asked == Asked::Off && !proxy {
        bail!("{address} is no loopback address, and access.tokens = \"off\" lets in everybody: set it to \"auto\"");
    }
    if asked != Asked::Off && !valid_token {
        bail!(
            "others reach {address}, and there is no valid token: make one with `llmprof token create --role admin --name NAME --data {}`",
            config.server.data.display()
        );
    }
    Ok(())
}

/// The devices to work on; none while the service is paused.
async fn devices(config: &Config, collector: &Collector) -> Result<Vec<Device>> {
    let configured = &config.worker.devices;
    if let Some(wrong) = configured.iter().find(|name| !is_device(name) || *name == "auto") {
        bail!("setting worker.devices: {wrong:?} is none of cpu, cuda:INDEX, and no UUID of a GPU");
    }
    if config.worker.paused {
        return Ok(Vec::new());
    }
    let chosen = collector.devices(configured).await;
    chosen.notes.iter().for_each(|note| tracing::warn!("{note}"));
    Ok(chosen.devices)
}

/// The programs that collect, as the settings name them.
pub fn collector(tools: &Tools, limits: &Limits) -> Result<Collector> {
    let Tools { model_runner, nsys, ncu } = tools;
    for (setting, path) in [("tools.model_runner", model_runner), ("tools.nsys", nsys), ("tools.ncu", ncu)] {
        if given(path).is_some_and(|path| path != Path::new(OFF) && !is_program(path)) {
            bail!("setting {setting}: {} is no program", path.display());
        }
    }
    let tool = |path| given(path).filter(|path| *path != Path::new(OFF));
    let mut found = Collector::find(given(model_runner), tool(nsys), tool(ncu));
    found.nsys = found.nsys.filter(|_| nsys != Path::new(OFF));
    found.ncu = found.ncu.filter(|_| ncu != Path::new(OFF));
    Ok(Collector { log_cap: limits.log_bytes, min_free_bytes: limits.free_bytes.max(limits.run_bytes), ..found })
}

/// A path that is set: the defaults leave it empty.
fn given(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| !path.as_os_str().is_empty())
}

fn make_folder(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))?;
    path.canonicalize().with_context(|| format!("cannot use the folder {}", path.display()))
}

/// Takes the data folder for this process alone, until it ends.
pub fn lock(data: &Path) -> Result<File> {
    let path = data.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => bail!("{} is in use by another llmprof", data.display()),
        Err(std::fs::TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Takes SIGTERM and SIGINT from now on; what it returns ends with the first of them, however early it came.
pub fn stop_signal() -> Result<impl Future<Output = ()>> {
    let mut term = unix::signal(unix::SignalKind::terminate())?;
    let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
