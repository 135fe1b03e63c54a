//! One schedule: actions of clients and faults by a seed, then quiet, then the checks.

use std::{
    path::Path,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use llmprof_core::domain::device::Device;
use llmprof_service::{
    config::{Config, ExecutorKind},
    runtime,
};

use super::{
    checks,
    client::{self, Clients},
    disk::Disk,
    random::Random,
    service::{self, Service, Settings, Simulated},
    sessions::{self, Sessions},
    vfs,
    world::{Faults, SERVICE_HOST, World},
};

/// Result of a schedule.
pub struct Report {
    pub log: Vec<String>,
    /// Broken promises.
    pub broken: Vec<String>,
}

/// Kind of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Everything may happen.
    Rough,
    /// The service is stopped and started; nothing fails.
    Calm,
}

/// A world with its clients and, most of the time, a service.
pub struct Schedule {
    pub world: World,
    settings: Settings,
    pub disk: Disk,
    pub clients: Clients,
    pub sessions: Sessions,
    current: Arc<Mutex<Option<Service>>>,
    kind: Kind,
}

/// Executes the schedule of a seed.
pub fn run(seed: u64) -> Report {
    simulate(seed, |_| {}, async |schedule| schedule.run().await)
}

/// Executes `act` in the world of a seed, in which no service runs yet.
pub fn simulate(
    seed: u64,
    change: impl FnOnce(&mut Config),
    act: impl AsyncFnOnce(&Schedule),
) -> Report {
    service::template();
    let data =
        tempfile::Builder::new().prefix("llmprof-simulator-").tempdir_in("/dev/shm").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let report = tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut random = Random::new(seed);
        let kind = if random.chance(15) { Kind::Calm } else { Kind::Rough };
        let settings = settings(data.path(), &mut random, change);
        service::prepare(data.path());
        let world = World::new(random.next(), settings.runs());
        runtime::simulate(Some(Rc::new(world.clone())));
        let _simulated = Simulated;
        let disk = Disk::default();
        disk.put(&data.path().join("llmprof.db").to_string_lossy(), service::template());
        vfs::register(data.path(), &disk);
        let (clients, sessions, current) =
            (Clients::default(), Sessions::default(), Arc::default());
        let schedule = Schedule { world, settings, disk, clients, sessions, current, kind };
        act(&schedule).await;
        if let Some(service) = schedule.current() {
            service.process.kill();
        }
        vfs::unregister(data.path());
        let mut state = schedule.world.state();
        Report { log: std::mem::take(&mut state.log), broken: std::mem::take(&mut state.broken) }
    });
    // Threads of killed connections end by themselves.
    runtime.shutdown_background();
    report
}

fn settings(data: &Path, random: &mut Random, change: impl FnOnce(&mut Config)) -> Settings {
    let mut config = Config::default();
    config.webhooks.urls = vec!["https://receiver.example/runs".into()];
    config.webhooks.secret_file = data.join("secret");
    config.webhooks.retry_s = 2;
    config.worker.background_wait_s = 60;
    config.retention.pack = false;
    config.retention.scrub_days = 0;
    config.retention.interval_s = *random.pick(&[1, 5]);
    (config.retention.keep_newest, config.retention.max_runs) =
        *random.pick(&[(1, 2), (2, 4), (0, 1), (0, 3), (20, 0)]);
    if random.chance(30) {
        config.executor.kind = ExecutorKind::Slurm;
        config.executor.slurm.poll_s = 2;
        config.executor.slurm.lost_after_s = 20;
        config.executor.slurm.jobs = 3;
        config.executor.slurm.separate_analysis_job = false;
    }
    change(&mut config);
    let mut devices = vec![Device::cpu()];
    devices.extend(random.chance(50).then(|| Device::unknown("cuda:0")));
    Settings { config: Arc::new(config), data: data.to_owned(), devices }
}

fn running(current: &Mutex<Option<Service>>) -> Option<Service> {
    let current = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
    current.filter(|it| !it.process.is_killed())
}

impl Schedule {
    fn is_cluster(&self) -> bool {
        self.settings.config.executor.kind == ExecutorKind::Slurm
    }

    /// The running service.
    pub fn current(&self) -> Option<Service> {
        running(&self.current)
    }

    fn set_current(&self, service: Option<Service>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = service;
    }

    pub async fn run(&self) {
        if self.kind == Kind::Rough {
            self.world.state().faults = self.faults();
        }
        self.start().await;
        let events = 5 + self.world.below(25);
        for _ in 0..events {
            self.world.pause(8_000).await;
            self.event().await;
        }
        self.finish_as(self.kind).await;
    }

    /// Ends all faults, waits until nothing is left to do, and checks every promise.
    pub async fn finish(&self) {
        self.finish_as(Kind::Rough).await;
    }

    /// The same with the promises that hold for this kind of schedule.
    async fn finish_as(&self, kind: Kind) {
        self.world.log("quiet from now on");
        self.world.state().faults = Faults::default();
        self.disk.end_faults();
        if !checks::becomes_quiet(&self.world, || self.current(), || self.start()).await {
            self.world.broken("the service does not come to rest");
        }
        if let Some(service) = self.current() {
            let is_calm = kind == Kind::Calm;
            let clients = (&self.clients, &self.sessions);
            checks::check(&self.world, clients, &self.settings, &service, is_calm).await;
            if !service.stop().await {
                self.world.broken("the service does not stop");
            }
        }
    }

    fn faults(&self) -> Faults {
        let rarely = |percent: u64| {
            let below = self.world.below(3);
            if below == 0 { 0 } else { self.world.below(percent) }
        };
        Faults {
            start: rarely(10),
            crash: rarely(15),
            exhausted: rarely(8),
            step: rarely(6),
            stubborn: rarely(10),
            answer: rarely(20),
            slow: rarely(60),
            stall_ms: rarely(1_000),
            requeue: rarely(30),
        }
    }

    /// A client asks, or something happens to the service.
    async fn event(&self) {
        let number = self.world.below(100);
        let (world, clients) = (self.world.clone(), self.clients.clone());
        let shared = Arc::clone(&self.current);
        let current = move || running(&shared);
        match (number, self.kind) {
            (0..=31, _) => drop(tokio::spawn(client::submit(world, clients, current))),
            // A cluster has no sessions.
            (32..=39, _) if !self.is_cluster() => {
                let sessions = self.sessions.clone();
                drop(tokio::spawn(sessions::act(world, clients, sessions, current)));
            }
            (32..=74, _) => drop(tokio::spawn(client::act(world, clients, current))),
            (75..=79, _) | (_, Kind::Calm) => self.drain().await,
            (80..=85, _) => {
                self.world.log("kill");
                self.kill().await;
            }
            (86..=90, _) => {
                let operations = 1 + self.world.below(30);
                self.world.log(format!("kill after {operations} operations"));
                self.disk.kill_after(operations);
                self.world.pause(3_000).await;
                self.kill().await;
            }
            (91..=93, _) => {
                let operations = 1 + self.world.below(10);
                self.world.log(format!("operation {operations} fails"));
                self.disk.fail_after(operations);
            }
            (94..=95, _) => {
                self.world.log("the disk is full");
                self.disk.set_full(true);
                self.world.pause(40_000).await;
                self.disk.set_full(false);
            }
            _ => self.cut_power().await,
        }
    }

    /// SIGTERM, and a new start.
    pub async fn drain(&self) {
        let Some(service) = self.current() else { return self.start().await };
        self.world.log("stop");
        let stopped = service.stop().await;
        self.world.log(format!("stopped: {stopped}"));
        if !stopped && !service.process.is_killed() {
            self.world.broken("the service does not stop");
        }
        self.set_current(None);
        service.process.kill();
        self.world.service_killed();
        self.world.pause(5_000).await;
        self.start().await;
    }

    /// SIGKILL, and a new start.
    async fn kill(&self) {
        if let Some(service) = self.current.lock().unwrap_or_else(PoisonError::into_inner).take() {
            service.process.kill();
        }
        self.world.service_killed();
        self.world.pause(10_000).await;
        self.start().await;
    }

    /// The host loses power, and starts again.
    async fn cut_power(&self) {
        self.world.log("power cut");
        if let Some(service) = self.current.lock().unwrap_or_else(PoisonError::into_inner).take() {
            service.process.kill();
        }
        self.disk.attach(None);
        self.world.kill(|job| job.host == SERVICE_HOST);
        {
            let mut state = self.world.state();
            let mut random = state.random.fork();
            self.disk.cut_power(&mut random);
            if !self.is_cluster() {
                state.files.cut_power(&mut random);
            }
        }
        self.world.pause(20_000).await;
        self.start().await;
    }

    /// Starts services until one runs.
    pub async fn start(&self) {
        for _ in 0..20 {
            self.world.log("start");
            let service = Service::start(&self.world, &self.settings, &self.disk).await;
            if service.is_some() {
                return self.set_current(service);
            }
            self.world.service_killed();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        self.world.broken("the service does not start");
    }
}
