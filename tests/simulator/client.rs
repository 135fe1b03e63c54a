//! Clients of a service: what they ask for, and what was acknowledged to them.

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use llmprof_core::{
    domain::{
        ids::RunId,
        mode::Mode,
        state::RunState,
        subject::{Common, ModelSubject, Passes, RunSpec, Subject, Workload},
    },
    layout,
};
use llmprof_service::{
    artifact::{durable, folder},
    runtime::work::SlicedWork,
    scheduler::Context,
    store::{CancelOutcome, DeleteOutcome, IdempotencyKey, NewRun, Removal, Store, Submitted},
};
use uuid::Uuid;

use super::{random::Random, service::Service, world::World};

/// Knowledge of all clients. Clones share it.
#[derive(Clone, Default)]
pub struct Clients(Arc<Mutex<Vec<Submission>>>);

/// A submission and what became of it, as far as it was acknowledged.
#[derive(Debug, Clone)]
pub struct Submission {
    pub key: String,
    pub spec: RunSpec,
    /// Ids of its tries: one of them exists at most.
    pub tried: Vec<RunId>,
    pub run: Option<RunId>,
    /// `None` while a request has no answer.
    pub pinned: Option<bool>,
    pub delete_requested: bool,
    pub deleted: bool,
    pub cancel_requested: bool,
    pub cancelled_in_queue: bool,
    pub seen_end: Option<RunState>,
}

impl Clients {
    pub fn all(&self) -> MutexGuard<'_, Vec<Submission>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, at: usize, change: impl FnOnce(&mut Submission)) {
        change(&mut self.all()[at]);
    }

    /// One of the acknowledged submissions.
    fn pick(&self, world: &World) -> Option<(usize, RunId)> {
        let all: Vec<_> =
            self.all().iter().enumerate().filter_map(|(at, it)| Some((at, it.run?))).collect();
        (!all.is_empty()).then(|| all[world.below(all.len() as u64) as usize])
    }
}

/// A new id, ordered by time.
pub fn new_id(world: &World) -> RunId {
    let ms = world.time().as_millisecond().unsigned_abs();
    let random = world.state().random.next();
    RunId(Uuid::from_u64_pair((ms << 16) | 0x7000 | (random & 0xfff), (1 << 63) | (random >> 12)))
}

fn run_spec(random: &mut Random) -> RunSpec {
    let labels = if random.chance(15) { vec!["kept".to_owned()] } else { Vec::new() };
    let priority = *random.pick(&[0, 0, 0, 0, 1, 5]);
    let common = Common { labels, priority, timeout_s: 600, revision: None };
    if random.chance(20) {
        return RunSpec { common, ..RunSpec::import_of_nothing() };
    }
    let device = *random.pick(&["auto", "auto", "cpu"]);
    RunSpec { common, ..model_spec(device) }
}

/// A run of a model.
pub fn model_spec(device: &str) -> RunSpec {
    let common = Common { timeout_s: 600, ..Common::default() };
    let workload = Workload {
        model: "deepseek-ocr-tiny".into(),
        inputs_manifest: "inputs.yaml".into(),
        max_new_tokens: 4,
        batch: 1,
        seed: 0,
        dtype: None,
    };
    let device = device.to_owned();
    let passes = Passes { mode: Mode::LIGHT, repeats: 1, warmup: 0, device, profiling: None };
    RunSpec { subject: Subject::Model(ModelSubject { workload, passes }), common }
}

/// Submits any run until it is acknowledged, or the client has no more patience.
pub async fn submit(world: World, clients: Clients, current: impl Fn() -> Option<Service>) {
    let spec = run_spec(&mut world.state().random.fork());
    submit_spec(world, clients, spec, current).await;
}

/// The same with this spec.
pub async fn submit_spec(
    world: World,
    clients: Clients,
    spec: RunSpec,
    current: impl Fn() -> Option<Service>,
) {
    let (at, key) = {
        let mut all = clients.all();
        let key = format!("key {}", all.len());
        all.push(Submission {
            key: key.clone(),
            spec: spec.clone(),
            tried: Vec::new(),
            run: None,
            pinned: Some(false),
            delete_requested: false,
            deleted: false,
            cancel_requested: false,
            cancelled_in_queue: false,
            seen_end: None,
        });
        (all.len() - 1, key)
    };
    for _ in 0..6 {
        if let Some(service) = current() {
            let id = new_id(&world);
            clients.change(at, |it| it.tried.push(id));
            let idempotency = Some(IdempotencyKey { key: key.clone(), body_sha256: [1; 32] });
            let new = NewRun { id: Some(id), spec: spec.clone(), idempotency, owner: None };
            let cx = service.cx.clone();
            let answer = service.request(async move { queue(&cx, id, new).await }).await.flatten();
            let lost = world.fault(|it| it.answer);
            if let Some(run) = answer.filter(|_| !lost) {
                let (id, queued_at) = run;
                world.log(format!("run {id} is acknowledged for {key}"));
                clients.change(at, |it| it.run = Some(id));
                world.queued(id, &spec, &queued_at);
                return;
            }
        }
        world.pause(5_000).await;
    }
}

/// As the handlers do: the upload becomes a folder before the run is committed.
async fn queue(cx: &Context, id: RunId, new: NewRun) -> Option<(RunId, String)> {
    let is_import = new.spec.import().is_some();
    let folder = cx.runs.join(id.to_string());
    if is_import {
        let upload = cx.runs.parent()?.join("packing").join(id.to_string());
        fs::create_dir_all(&upload).ok()?;
        fs::write(upload.join(layout::IMPORT), "{}").ok()?;
        durable::sync_tree(&upload, &SlicedWork::default()).ok()?;
        fs::rename(&upload, &folder).ok()?;
        durable::sync_parent(&folder).ok()?;
    }
    let submitted = cx.store.submit(new).await;
    let run = match submitted {
        Ok(Submitted::New(run)) => run,
        other => {
            if is_import {
                fs::remove_dir_all(&folder).ok();
            }
            match other {
                Ok(Submitted::Same(run)) => run,
                _ => return None,
            }
        }
    };
    cx.queued.notify_waiters();
    Some((run.id, run.queued_at))
}

/// Asks for something about an acknowledged run.
pub async fn act(world: World, clients: Clients, current: impl Fn() -> Option<Service>) {
    let (Some(service), Some((at, id))) = (current(), clients.pick(&world)) else { return };
    match world.below(12) {
        0..=2 => cancel(&world, &clients, &service, (at, id)).await,
        3..=4 => delete(&world, &clients, &service, (at, id)).await,
        5..=7 => pin(&world, &clients, &service, (at, id)).await,
        8 => replay(&world, &service).await,
        _ => look(&world, &clients, &service, (at, id)).await,
    }
}

/// Cancels a run.
pub async fn cancel(world: &World, clients: &Clients, service: &Service, (at, id): (usize, RunId)) {
    world.state().waiting.remove(&id);
    clients.change(at, |it| it.cancel_requested = true);
    let is_import = clients.all()[at].spec.import().is_some();
    let cx = service.cx.clone();
    let answer = service.request(async move {
        let outcome = cx.store.cancel(id).await.ok()?;
        match outcome {
            CancelOutcome::Requested => cx.cancelled.notify_waiters(),
            CancelOutcome::Cancelled if is_import => {
                fs::remove_dir_all(cx.runs.join(id.to_string())).ok();
            }
            _ => {}
        }
        Some(outcome)
    });
    let answer = answer.await.flatten();
    world.log(format!("run {id} is to be cancelled: {answer:?}"));
    if answer == Some(CancelOutcome::Cancelled) {
        clients.change(at, |it| it.cancelled_in_queue = true);
    }
}

async fn delete(world: &World, clients: &Clients, service: &Service, (at, id): (usize, RunId)) {
    clients.change(at, |it| it.delete_requested = true);
    let cx = service.cx.clone();
    let answer = service.request(async move {
        let outcome = cx.store.delete(id).await.ok()?;
        if outcome == DeleteOutcome::Deleted
            && folder::remove(&cx.runs, id, &SlicedWork::default()).is_ok()
        {
            cx.store.removed(Removal::Run(id)).await.ok()?;
        }
        Some(outcome)
    });
    let answer = answer.await.flatten();
    world.log(format!("run {id} is to be deleted: {answer:?}"));
    match answer {
        Some(DeleteOutcome::Deleted) => clients.change(at, |it| it.deleted = true),
        Some(DeleteOutcome::Active) => clients.change(at, |it| it.delete_requested = it.deleted),
        _ => {}
    }
}

async fn pin(world: &World, clients: &Clients, service: &Service, of: (usize, RunId)) {
    let pinned = world.below(3) > 0;
    set_pin(world, clients, service, of, pinned).await;
}

/// Pins a run, or takes its pin.
pub async fn set_pin(
    world: &World,
    clients: &Clients,
    service: &Service,
    (at, id): (usize, RunId),
    pinned: bool,
) {
    clients.change(at, |it| it.pinned = None);
    let store = service.cx.store.clone();
    let answer = service.request(async move { store.pin(id, pinned).await.ok() }).await.flatten();
    world.log(format!("run {id} is pinned = {pinned}: {answer:?}"));
    if answer == Some(true) {
        clients.change(at, |it| it.pinned = Some(pinned));
    }
}

async fn replay(world: &World, service: &Service) {
    let (store, number) = (service.cx.store.clone(), world.below(20));
    let answer = service.request(async move {
        let all = store.deliveries(None, 20).await.ok()?;
        let chosen = all.get(number as usize)?;
        store.replay(chosen.delivery.id).await.ok()?.map(|it| it.delivery.message_id)
    });
    let answer = answer.await.flatten();
    world.log(format!("a message is to be sent again: {answer:?}"));
}

/// An ended run never changes.
async fn look(world: &World, clients: &Clients, service: &Service, (at, id): (usize, RunId)) {
    let store: Store = service.cx.store.clone();
    let Some(Ok(Some(run))) = service.request(async move { store.run(id).await }).await else {
        return;
    };
    world.log(format!("run {id} is {} after {} attempts", run.state, run.attempts));
    saw(world, clients, at, run.state);
}

/// Compares a state with what was seen before.
pub fn saw(world: &World, clients: &Clients, at: usize, state: RunState) {
    let before = clients.all()[at].seen_end;
    if let Some(before) = before.filter(|before| *before != state) {
        let run = clients.all()[at].run;
        world.broken(format!("run {run:?} was {before} and is {state}"));
    }
    if state.is_final() {
        clients.change(at, |it| it.seen_end = Some(state));
    }
}
