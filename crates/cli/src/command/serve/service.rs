//! The running service: start, recovery and stop of store, workers and HTTP, in order.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use llmprof_core::domain::{command::Commands, device::Device, profiling::Presets};
use llmprof_service::{
    artifact::{data_folder::FolderLock, import_staging},
    collect::{Collector, gpu::gpu_monitor::watch_gpus, process::orphans},
    config::{self, AccessSettings, Config, ExecutorKind},
    http::{self, Certificate},
    measuring::Measuring,
    scheduler::{
        self, Pool,
        executor::{local::LocalExecutor, slurm::SlurmExecutor},
        inspection::ReportTools,
    },
    store::{
        Store,
        audit::{AuditLimits, AuditLog},
    },
    tasks::{self, webhooks::WebhookSender},
};
use tokio::{net::TcpListener, signal::unix, sync::Notify, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Logging,
    folders::{INCOMING, ServiceFolders, create_folder},
    process_limits,
    recovery::{self, Recovery},
    settings::{certificate, check_address, collector, connection_limits, devices, given, slurm},
};

/// Time between two checks of the certificate's files.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(10);
/// Time for open connections to end when the service stops.
const CONNECTION_GRACE: Duration = Duration::from_secs(5);

/// A running service.
pub struct Service {
    pub address: SocketAddr,
    encrypted: bool,
    /// Recovers the state of an earlier service, then starts the workers; `None` if it was stopped.
    pool: JoinHandle<Option<Pool>>,
    http: JoinHandle<std::io::Result<()>>,
    closing: CancellationToken,
    store: Store,
    /// Maximum time of a stop.
    stop_limit: Duration,
    _lock: Arc<FolderLock>,
}

/// Models, commands and presets of the service.
struct Catalog {
    models: Arc<config::Models>,
    refused_models: Arc<Vec<config::RefusedModel>>,
    targets: Arc<Commands>,
    presets: Arc<Presets>,
}

impl Service {
    /// Opens the data folder and starts to serve. The state of an earlier service is recovered in
    /// the background; the short part that a request could race with is done first.
    pub async fn start(config: Config, log: Logging) -> Result<Self> {
        let server = &config.server;
        orphans::adopt_orphans().context("cannot become the parent of orphaned processes")?;
        let data = create_folder(&server.data)?;
        process_limits::tighten(&data);
        let folders = ServiceFolders::prepare(data, server)?;
        let catalog = Catalog::load(server)?;
        let collector = Arc::new(Collector {
            state: Some(folders.data.clone()),
            ..collector(&config.tools, &config.limits)?
        });
        let store = Store::open(&folders.data.join("llmprof.db"))
            .await?
            .with_running_per_owner(config.access.running_runs_per_owner);
        let certificate = certificate(server)?;
        let webhooks = WebhookSender::read(&config.webhooks)?;
        let (listener, address) = listen(&config, &store, certificate.is_some()).await?;
        let access = access_control(&config, &folders.data, address, certificate.is_some())?;
        let head = Duration::from_secs(server.header_s.max(1).into());
        let connections = connection_limits(server, address, process_limits::raise_descriptors());
        let (devices, accepts) = match config.executor.kind {
            ExecutorKind::Local => (devices(&config, &collector).await?, Vec::new()),
            ExecutorKind::Slurm => (Vec::new(), SlurmExecutor::accepts(&config.executor.slurm)),
        };
        let cx = context(store, &folders, &catalog, &collector, config)?;
        recovery::prepare(&cx).await?;
        let closing = CancellationToken::new();
        let recovery = Recovery::new(&cx, &folders, &closing);
        let app =
            app(&cx, &folders, catalog.refused_models, access, (&devices, &accepts), &recovery)?;
        let encrypted = certificate.is_some();
        if let Some(certificate) = certificate.clone() {
            reload_certificate(certificate, closing.clone())?;
        }
        let http = http::serve(listener.into_std()?, certificate, head, connections, app)?;
        let workers = Workers::new(&cx, &folders.data, log)?;
        start_retention(&cx, &folders, &closing);
        drop(tokio::spawn(scheduler::series::add_missing(cx.clone(), closing.clone())));
        tasks::webhooks::start(cx.store.clone(), webhooks, closing.clone()).await?;
        let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
        let store = cx.store.clone();
        let stop_limit = Duration::from_secs(cx.config.worker.stop_s.into());
        let pool = tokio::spawn(async move {
            recovery.run().await.then(|| workers.start(&cx, &devices, &accepts))
        });
        let _lock = folders.lock;
        let service = Self { address, encrypted, pool, http, closing, store, stop_limit, _lock };
        let (base, data) = (service.base(), folders.data.display());
        tracing::info!(%address, devices = ?names, %data, "serving; the API is at {base}/docs");
        Ok(service)
    }

    /// Base URL of the service.
    pub fn base(&self) -> String {
        format!("{}://{}", if self.encrypted { "https" } else { "http" }, self.address)
    }

    /// Stops serving and requeues running runs; returns when everything has ended, or with an error
    /// after `worker.stop_s`.
    pub async fn stop(self) -> Result<()> {
        let Self { pool, http, closing, store, stop_limit, _lock, .. } = self;
        closing.cancel();
        let stopped = async {
            if let Some(pool) = pool.await? {
                pool.drain().await;
            }
            // Slow downloads do not delay the stop; all durable data is already written.
            let served = match timeout(CONNECTION_GRACE, http).await {
                Ok(served) => served?.map_err(Into::into),
                Err(_) => Ok(()),
            };
            store.close().await?;
            served
        };
        timeout(stop_limit, stopped).await.unwrap_or_else(|_| {
            let limit = stop_limit.as_secs();
            let stall = store.writer_stall().map(|it| format!("; the database is blocked: {it}"));
            let stall = stall.unwrap_or_default();
            bail!(
                "cannot stop within {limit} s (worker.stop_s); the next start recovers the runs \
                 that have not ended{stall}"
            )
        })
    }
}

impl Catalog {
    fn load(server: &config::ServerSettings) -> Result<Self> {
        let found = config::models(given(&server.models))?;
        for model in &found.refused {
            tracing::warn!(model = model.name, reason = model.reason, "model rejected");
        }
        let (models, refused_models) = (Arc::new(found.models), Arc::new(found.refused));
        let targets = Arc::new(config::targets(given(&server.targets), &models)?);
        let presets = Arc::new(config::profiling(given(&server.profiling))?);
        Ok(Self { models, refused_models, targets, presets })
    }
}

/// Listens on the configured address, if it is allowed.
async fn listen(
    config: &Config,
    store: &Store,
    encrypted: bool,
) -> Result<(TcpListener, SocketAddr)> {
    let listen = &config.server.listen;
    let listener =
        TcpListener::bind(listen).await.with_context(|| match listen.rsplit_once(':') {
            Some((host, _)) => {
                format!("cannot listen on {listen}; choose another (--listen {host}:PORT)")
            }
            None => format!("cannot listen on {listen}; expected ADDRESS:PORT"),
        })?;
    let address = listener.local_addr()?;
    let valid_token = store.tokens().await?.iter().any(|token| token.valid);
    check_address(address, config, encrypted, valid_token)?;
    Ok((listener, address))
}

fn access_control(
    config: &Config,
    data: &Path,
    address: SocketAddr,
    encrypted: bool,
) -> Result<http::AccessControl> {
    let AccessSettings { audit_bytes, audit_files, .. } = config.access;
    let limits = AuditLimits { file_bytes: audit_bytes, files: audit_files };
    let audit = AuditLog::open_limited(data, limits)
        .with_context(|| format!("cannot write the audit log in {}", data.display()))?;
    Ok(http::AccessControl::new(
        &config.access,
        !address.ip().is_loopback(),
        config.server.behind_proxy,
        Some(audit),
    )
    .with_tls(encrypted))
}

fn context(
    store: Store,
    folders: &ServiceFolders,
    catalog: &Catalog,
    collector: &Arc<Collector>,
    config: Config,
) -> Result<scheduler::Context> {
    Ok(scheduler::Context {
        store,
        folder: folders.identity,
        runs: folders.runs.clone(),
        alignments: folders.alignments.clone(),
        sessions: folders.sessions.clone(),
        inputs: Arc::clone(&folders.inputs),
        models: Arc::clone(&catalog.models),
        targets: Arc::clone(&catalog.targets),
        presets: Arc::clone(&catalog.presets),
        devices: Arc::new(config::devices_with(&config.tools.devices)?),
        collector: Arc::clone(collector),
        measuring: Measuring::default(),
        config: Arc::new(config),
        queued: Arc::new(Notify::new()),
        cancelled: Arc::new(Notify::new()),
    })
}

fn app(
    cx: &scheduler::Context,
    folders: &ServiceFolders,
    refused_models: Arc<Vec<config::RefusedModel>>,
    access: http::AccessControl,
    (devices, accepts): (&[Device], &[String]),
    recovery: &Recovery,
) -> Result<http::App> {
    let (collector, data, closing) = (&cx.collector, &folders.data, &recovery.stop);
    let uuids = devices.iter().filter_map(|device| device.uuid.clone()).collect();
    Ok(http::App {
        store: cx.store.clone(),
        access: Arc::new(access),
        folder: Arc::clone(&folders.lock),
        runs: cx.runs.clone(),
        alignments: cx.alignments.clone(),
        inputs: Arc::clone(&cx.inputs),
        input_storage: folders.input_storage.clone(),
        models: Arc::clone(&cx.models),
        refused_models,
        targets: Arc::clone(&cx.targets),
        presets: Arc::clone(&cx.presets),
        devices: devices.into(),
        accepts: accepts.into(),
        intake: Arc::new(intake(cx, data, closing)?),
        doctor: tasks::host_checks::start(Arc::clone(collector), data.clone(), closing.clone()),
        gpus: watch_gpus(uuids, closing),
        measuring: cx.measuring.clone(),
        recovery: recovery.progress.subscribe(),
        config: Arc::clone(&cx.config),
        queued: Arc::clone(&cx.queued),
        cancelled: Arc::clone(&cx.cancelled),
        closing: closing.clone(),
    })
}

/// Executors of the workers, which start after the recovery.
struct Workers {
    local: Arc<LocalExecutor>,
    slurm: Option<Arc<SlurmExecutor>>,
}

impl Workers {
    /// Creates the configured executors.
    fn new(cx: &scheduler::Context, data: &Path, log: Logging) -> Result<Self> {
        let config = &cx.config;
        // Jobs are of this version, also after the file of the program was replaced.
        let program = config::environment::SELF.into();
        let local = Arc::new(LocalExecutor::new(
            program,
            log.job_options(),
            data.to_owned(),
            cx.limited_children(),
        ));
        let slurm = match config.executor.kind {
            ExecutorKind::Local => None,
            ExecutorKind::Slurm => Some(slurm(config, cx)?),
        };
        Ok(Self { local, slurm })
    }

    fn start(self, cx: &scheduler::Context, devices: &[Device], accepts: &[String]) -> Pool {
        let (config, Self { local, slurm }) = (&cx.config, self);
        let Some(slurm) = slurm else { return Pool::for_devices(cx, &local, devices) };
        let jobs = if config.worker.paused { 0 } else { config.executor.slurm.jobs as usize };
        Pool::for_scheduler(cx, &local, &slurm, jobs, accepts)
    }
}

fn start_retention(cx: &scheduler::Context, folders: &ServiceFolders, closing: &CancellationToken) {
    let keeper = tasks::retention::Keeper {
        store: cx.store.clone(),
        runs: cx.runs.clone(),
        alignments: cx.alignments.clone(),
        packing: folders.packing.clone(),
        settings: cx.config.retention.clone(),
        measuring: cx.measuring.clone(),
        max_wait: cx.max_wait(),
    };
    let days = cx.config.inputs.unused_days;
    tasks::inputs::start(cx.store.clone(), folders.input_storage.clone(), days, closing.clone());
    tasks::scrub::start(keeper.clone(), closing.clone());
    keeper.start(closing.clone());
}

/// Opens the folder for uploads and removes the files of an earlier service.
fn intake(
    cx: &scheduler::Context,
    data: &Path,
    closing: &CancellationToken,
) -> Result<http::Intake> {
    let (folder, limits) = (data.join(INCOMING), &cx.config.limits);
    let tools = ReportTools { nsys: cx.collector.nsys.is_some(), ncu: cx.collector.ncu.is_some() };
    let inspector = scheduler::inspection::start(cx.limited_children(), tools, closing.clone());
    let limits = import_staging::UploadLimits {
        max_bytes: limits.capture_bytes,
        least_free: limits.free_bytes,
    };
    http::Intake::open(folder.clone(), limits, inspector)
        .with_context(|| format!("cannot use the folder {}", folder.display()))
}

/// Reloads the certificate when its files change and on SIGHUP. An invalid one is logged, and the
/// current one stays in use.
fn reload_certificate(certificate: Certificate, closing: CancellationToken) -> Result<()> {
    let mut hangup = unix::signal(unix::SignalKind::hangup())?;
    tokio::spawn(async move {
        let mut modified = certificate.modified();
        loop {
            let requested = tokio::select! {
                _ = closing.cancelled() => return,
                _ = hangup.recv() => true,
                () = tokio::time::sleep(CERTIFICATE_PERIOD) => false,
            };
            let now = certificate.modified();
            if !requested && now == modified {
                continue;
            }
            modified = now;
            match certificate.reload() {
                Ok(()) => tracing::info!("certificate reloaded"),
                Err(error) => tracing::error!(
                    "certificate not reloaded, the current one stays in use: {}",
                    llmprof_core::chain(&error)
                ),
            }
        }
    });
    Ok(())
}
