//! A service in the simulation: opened, recovered, started and stopped in the order of the program.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::Duration,
};

use llmprof_core::domain::{
    command::Commands, device::Device, device_peaks::Devices, ids::FolderId, profiling::Presets,
};
use llmprof_service::{
    artifact::inputs::InputFolders,
    collect::Collector,
    config::{self, Config, ExecutorKind, Models},
    measuring::Measuring,
    runtime::{self, SimulatedProcess, work::SlicedWork},
    scheduler::{
        self, Context, Pool,
        executor::{local::LocalExecutor, slurm::SlurmExecutor},
    },
    store::Store,
    tasks::{self, retention::Keeper, webhooks::WebhookSender},
};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::{disk::Disk, sessions, vfs, world::World};

/// Values that do not depend on the schedule.
static MODELS: LazyLock<Arc<Models>> =
    LazyLock::new(|| Arc::new(config::models(None).unwrap().models));
static COMMANDS: LazyLock<Arc<Commands>> = LazyLock::new(|| Arc::new(sessions::commands()));
static PRESETS: LazyLock<Arc<Presets>> =
    LazyLock::new(|| Arc::new(config::profiling(None).unwrap()));
static DEVICES: LazyLock<Arc<Devices>> = LazyLock::new(|| Arc::new(config::devices().unwrap()));

/// Settings of the service of one schedule.
#[derive(Clone)]
pub struct Settings {
    pub config: Arc<Config>,
    pub data: PathBuf,
    pub devices: Vec<Device>,
}

impl Settings {
    pub fn runs(&self) -> PathBuf {
        self.data.join("runs")
    }

    fn context(&self, store: Store) -> Context {
        Context {
            store,
            folder: FolderId::default(),
            runs: self.runs(),
            alignments: self.data.join("alignments"),
            sessions: self.data.join("sessions"),
            inputs: Arc::new(InputFolders {
                manifests: self.data.clone(),
                samples: self.data.clone(),
                stored: self.data.clone(),
            }),
            models: Arc::clone(&MODELS),
            targets: Arc::clone(&COMMANDS),
            presets: Arc::clone(&PRESETS),
            devices: Arc::clone(&DEVICES),
            collector: Arc::new(Collector::new("none")),
            measuring: Measuring::default(),
            config: Arc::clone(&self.config),
            queued: Arc::new(Notify::new()),
            cancelled: Arc::new(Notify::new()),
        }
    }
}

/// A running service. Clones share it.
#[derive(Clone)]
pub struct Service {
    pub cx: Context,
    pub process: Arc<SimulatedProcess>,
    stop: CancellationToken,
    stopped: CancellationToken,
}

impl Service {
    /// Starts a service; `None` if it was killed or could not start.
    pub async fn start(world: &World, settings: &Settings, disk: &Disk) -> Option<Self> {
        let process = Arc::new(SimulatedProcess::default());
        disk.attach(Some(Arc::clone(&process)));
        let (stop, settings) = (CancellationToken::new(), settings.clone());
        let ((ready, started), stopped) = (oneshot::channel(), CancellationToken::new());
        // Opening a store is not `Send`.
        tokio::task::spawn_local(Arc::clone(&process).run({
            let (world, stop, stopped) = (world.clone(), stop.clone(), stopped.clone());
            async move {
                match start(settings.clone()).await {
                    Ok((cx, pool)) => {
                        let closing = CancellationToken::new();
                        start_tasks(cx.clone(), settings, closing.clone()).await;
                        let store = cx.store.clone();
                        ready.send(cx).ok();
                        stop.cancelled().await;
                        closing.cancel();
                        pool.drain().await;
                        store.close().await.ok();
                        stopped.cancel();
                        // Connections are dropped by the kill, and write nothing any more.
                        std::future::pending::<()>().await;
                    }
                    Err(error) => world.log(format!("the service cannot start: {error}")),
                }
            }
        }));
        let killed = async {
            while !process.is_killed() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            biased;
            cx = started => Some(Self { cx: cx.ok()?, process, stop, stopped }),
            () = killed => None,
        }
    }

    /// Performs a request of a client; `None`: it got no answer.
    pub async fn request<T: Send + 'static>(
        &self,
        act: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (sender, answer) = oneshot::channel();
        tokio::spawn(Arc::clone(&self.process).run(async move {
            sender.send(act.await).ok();
        }));
        answer.await.ok()
    }

    /// Stops the service; returns false if it did not end by itself.
    pub async fn stop(&self) -> bool {
        self.stop.cancel();
        let mut waits = 0;
        while !self.stopped.is_cancelled() && !self.process.is_killed() && waits < 3000 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            waits += 1;
        }
        self.stopped.is_cancelled()
    }
}

async fn start(settings: Settings) -> anyhow::Result<(Context, Pool)> {
    let store = Store::open_simulated(&settings.data.join("llmprof.db"), vfs::NAME).await?;
    let cx = settings.context(store);
    let work = SlicedWork::default();
    scheduler::recover(&cx, true, &work).await?;
    scheduler::imports::recover(&cx).await?;
    tasks::retention::recover(&cx.store, &cx.runs, &cx.alignments, &work).await?;
    cx.store.recover_alignments().await?;
    let program = PathBuf::from("llmprof");
    let children = cx.limited_children();
    let data = settings.data.clone();
    let local = Arc::new(LocalExecutor::new(program.clone(), Vec::new(), data, children));
    let pool = match settings.config.executor.kind {
        ExecutorKind::Local => Pool::for_devices(&cx, &local, &settings.devices),
        ExecutorKind::Slurm => {
            let slurm = settings.config.executor.slurm.clone();
            let (jobs, accepts) = (slurm.jobs as usize, SlurmExecutor::accepts(&slurm));
            let executor = Arc::new(SlurmExecutor::new(slurm, cx.runs.clone(), program));
            Pool::for_scheduler(&cx, &local, &executor, jobs, &accepts)
        }
    };
    Ok((cx, pool))
}

async fn start_tasks(cx: Context, settings: Settings, closing: CancellationToken) {
    let keeper = Keeper {
        store: cx.store.clone(),
        runs: cx.runs.clone(),
        alignments: cx.alignments.clone(),
        packing: settings.data.join("packing"),
        settings: cx.config.retention.clone(),
        measuring: cx.measuring.clone(),
        max_wait: cx.max_wait(),
    };
    keeper.start(closing.clone());
    let webhooks = WebhookSender::read(&cx.config.webhooks).unwrap();
    // An error stops the program; here the webhooks of the next service are started.
    tasks::webhooks::start(cx.store.clone(), webhooks, closing.clone()).await.ok();
}

/// A database with every table, made once.
pub fn template() -> &'static [u8] {
    static TEMPLATE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("llmprof.db");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(&path).await.unwrap();
            store.close().await.unwrap();
        });
        std::fs::read(path).unwrap()
    });
    &TEMPLATE
}

/// Writes what the settings name.
pub fn prepare(data: &Path) {
    for folder in ["runs", "alignments", "sessions", "packing"] {
        std::fs::create_dir_all(data.join(folder)).unwrap();
    }
    // The store checks that its path leads to the same file.
    std::fs::write(data.join("llmprof.db"), "").unwrap();
    std::fs::write(data.join("secret"), format!("whsec_{}", "c2VjcmV0".repeat(4))).unwrap();
}

/// Removes the simulation of this thread when dropped.
pub struct Simulated;

impl Drop for Simulated {
    fn drop(&mut self) {
        runtime::simulate(None);
    }
}
