//! Promises that hold once everything has ended.

use std::{collections::BTreeMap, fs, time::Duration};

use llmprof_core::domain::{ids::RunId, state::RunState};
use llmprof_service::{
    artifact::{
        manifest,
        verify::{self, FileFault},
    },
    runtime::work::SlicedWork,
    store::{DeliveryState, Filter, StoredDelivery, StoredRun, StoredSession},
};

use super::{
    client::{self, Clients, Submission},
    service::{Service, Settings},
    sessions::Sessions,
    world::World,
};

/// Attempts of a run.
const MAX_ATTEMPTS: u32 = 3;

/// State of a service.
struct Facts {
    runs: Vec<StoredRun>,
    sessions: Vec<StoredSession>,
    deliveries: Vec<StoredDelivery>,
    removals: usize,
}

async fn facts(service: &Service) -> Option<Facts> {
    let store = service.cx.store.clone();
    let facts = service.request(async move {
        let runs = store.list(&Filter::default(), None, 10_000).await.ok()?;
        let deliveries = store.deliveries(None, 10_000).await.ok()?;
        let removals = store.removals().await.ok()?.len();
        let sessions = store.sessions(10_000).await.ok()?;
        Some(Facts { runs, sessions, deliveries, removals })
    });
    facts.await.flatten()
}

/// Waits until nothing is left to do; returns false if that takes too long.
pub async fn becomes_quiet<S: Future<Output = ()>>(
    world: &World,
    current: impl Fn() -> Option<Service>,
    start: impl Fn() -> S,
) -> bool {
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_secs(6)).await;
        let Some(service) = current() else {
            start().await;
            continue;
        };
        let Some(facts) = facts(&service).await else { continue };
        let is_quiet = facts.runs.iter().all(|it| it.state.is_final())
            && facts.sessions.iter().all(|it| it.state.is_final())
            && facts.deliveries.iter().all(|it| it.state != DeliveryState::Pending)
            && facts.removals == 0
            && world.state().jobs.iter().all(|it| !it.is_alive());
        if is_quiet {
            // Once more, for tasks that have a period.
            tokio::time::sleep(Duration::from_secs(20)).await;
            return true;
        }
    }
    false
}

/// Checks every promise.
pub async fn check(
    world: &World,
    (clients, sessions): (&Clients, &Sessions),
    settings: &Settings,
    service: &Service,
    is_calm: bool,
) {
    let Some(facts) = facts(service).await else {
        return world.broken("the service does not answer");
    };
    let runs: BTreeMap<RunId, &StoredRun> = facts.runs.iter().map(|run| (run.id, run)).collect();
    let submissions = clients.all().clone();
    for (at, submission) in submissions.iter().enumerate() {
        check_submission(world, settings, submission, &runs);
        if let Some(run) = submission.run.and_then(|id| runs.get(&id)) {
            client::saw(world, clients, at, run.state);
        }
    }
    for run in &facts.runs {
        check_run(world, service, run, is_calm).await;
    }
    sessions.check(world, &facts.sessions);
    check_folders(world, settings, &runs);
    check_deliveries(world, &facts, &runs);
}

fn check_submission(
    world: &World,
    settings: &Settings,
    submission: &Submission,
    runs: &BTreeMap<RunId, &StoredRun>,
) {
    let key = &submission.key;
    let found = submission.tried.iter().filter(|id| runs.contains_key(id)).count();
    if found > 1 {
        world.broken(format!("{found} runs of {key}"));
    }
    let Some(id) = submission.run else { return };
    let Some(run) = runs.get(&id) else {
        let may_be_removed = settings.config.retention.max_runs > 0
            && submission.spec.common.labels.is_empty()
            && submission.pinned != Some(true);
        if !submission.delete_requested && !may_be_removed {
            world.broken(format!("run {id} was acknowledged and is lost"));
        }
        return;
    };
    if submission.deleted {
        world.broken(format!("run {id} was deleted and exists"));
    }
    if submission.pinned.is_some_and(|pinned| pinned != run.pinned) {
        world.broken(format!("run {id}: pinned is {}", run.pinned));
    }
    if submission.cancelled_in_queue && run.state != RunState::Cancelled {
        world.broken(format!("run {id} was cancelled in the queue and is {}", run.state));
    }
    if !submission.cancel_requested && run.state == RunState::Cancelled {
        world.broken(format!("run {id} is cancelled without a request"));
    }
}

async fn check_run(world: &World, service: &Service, run: &StoredRun, is_calm: bool) {
    let id = run.id;
    if run.attempts > MAX_ATTEMPTS {
        world.broken(format!("run {id} has {} attempts", run.attempts));
    }
    if is_calm && run.attempts > 1 {
        world.broken(format!("run {id}: a stop was charged as an attempt"));
    }
    let finished = world.state().runs.get(&id).map_or(0, |it| it.finished.len());
    if finished > 1 {
        world.broken(format!("run {id} was executed {finished} times"));
    }
    let store = service.cx.store.clone();
    let artifacts = service.request(async move { store.artifacts(id).await.ok() }).await.flatten();
    let artifacts = artifacts.unwrap_or_default();
    let dir = service.cx.runs.join(id.to_string());
    if matches!(run.state, RunState::Succeeded | RunState::Partial) {
        if artifacts.is_empty() {
            world.broken(format!("run {id} succeeded without files"));
        }
        if manifest::read(&dir).ok().as_ref() != Some(&artifacts) {
            world.broken(format!("run {id}: its files are not those of its manifest"));
        }
    }
    if !artifacts.is_empty() {
        let faults =
            verify::faults(&dir, &artifacts, true, &SlicedWork::default()).unwrap_or_default();
        for (path, fault) in faults.iter().filter(|(_, fault)| *fault != FileFault::Unlisted) {
            world.broken(format!("run {id}: {path} {fault}"));
        }
    }
}

/// Every folder belongs to a run.
fn check_folders(world: &World, settings: &Settings, runs: &BTreeMap<RunId, &StoredRun>) {
    for entry in fs::read_dir(settings.runs()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.parse().is_ok_and(|id: RunId| runs.contains_key(&id)) {
            world.broken(format!("folder {name} belongs to no run"));
        }
    }
}

/// Every end of a run has one message, with the same state.
fn check_deliveries(world: &World, facts: &Facts, runs: &BTreeMap<RunId, &StoredRun>) {
    let received = world.state().received.clone();
    let mut messages: BTreeMap<RunId, u32> = BTreeMap::new();
    for stored in &facts.deliveries {
        let delivery = &stored.delivery;
        *messages.entry(delivery.run).or_default() += 1;
        let arrived = received.contains_key(&delivery.message_id);
        if stored.state == DeliveryState::Delivered && !arrived {
            world.broken(format!("message {} did not arrive", delivery.message_id));
        }
        if let Some(run) = runs.get(&delivery.run)
            && !delivery.body.contains(&format!("\"state\":\"{}\"", run.state))
        {
            world.broken(format!("run {} is {}, and its message differs", run.id, run.state));
        }
    }
    for id in runs.keys() {
        let messages = messages.get(id).copied().unwrap_or_default();
        if messages != 1 {
            world.broken(format!("{messages} messages about run {id}"));
        }
    }
}
