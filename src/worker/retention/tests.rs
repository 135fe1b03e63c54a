//! Keeping old runs small and few, on real folders and a real database.

use std::{fs, time::Instant};

use super::*;
use crate::{
    artifact::{
        bundle::{self, Bundle},
        manifest,
    },
    run::{Mode, RunSpec, RunState, Step, StepRecord, StepState},
    store::{Claimed, NewRun, Outcome},
};

struct House {
    keeper: Keeper,
    stop: CancellationToken,
    _dir: tempfile::TempDir,
}

/// What of a run's folder anybody sees: every file's content, by path.
type Seen = Vec<(String, (u64, String))>;

impl House {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        fs::create_dir(&runs).unwrap();
        let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
        let settings = Retention { as_they_are: 1, pack: true, most_runs: 0, most_days: 0, most_bytes: 0, every_s: 1 };
        Self { keeper: Keeper { store, runs, settings, yields: true }, stop: CancellationToken::new(), _dir: dir }
    }

    /// A run that a worker has taken, with a folder.
    async fn started(&self, labels: &[&str]) -> Claimed {
        let spec = RunSpec::tiny(Mode::Deep, 0, labels);
        let store = &self.keeper.store;
        store.submit(NewRun { id: None, spec, idempotency: None, owner: None }).await.unwrap();
        let run = store.claim("cpu:worker", &["cpu"], Duration::from_secs(60)).await.unwrap().unwrap();
        fs::create_dir_all(folder::of(&self.keeper.runs, run.id).join("nsys")).unwrap();
        run
    }

    async fn ended(&self, labels: &[&str]) -> RunId {
        let run = self.started(labels).await;
        let dir = folder::of(&self.keeper.runs, run.id);
        fs::write(dir.join("nsys/run.sqlite"), "a row of an export\n".repeat(50_000)).unwrap();
        fs::write(dir.join("report.md"), "# report\n".repeat(1000)).unwrap();
        let artifacts = manifest::seal(&dir).unwrap();
        let outcome = Outcome { state: RunState::Succeeded, failed_step: None, message: None, findings: vec![], artifacts };
        assert!(self.keeper.store.finish(&run, &outcome).await.unwrap());
        run.id
    }

    async fn seen(&self, id: RunId) -> Seen {
        let artifacts = self.keeper.store.artifacts(id).await.unwrap();
        let content = |path: &str| packed::hash_content(&folder::of(&self.keeper.runs, id).join(path)).unwrap();
        artifacts.into_iter().map(|it| (it.path.clone(), content(&it.path))).collect()
    }

    fn packed(&self, id: RunId) -> bool {
        packed::stored(&folder::of(&self.keeper.runs, id).join("nsys/run.sqlite")).unwrap().1
    }

    async fn bundle(&self, id: RunId) -> Vec<u8> {
        let artifacts = self.keeper.store.artifacts(id).await.unwrap();
        let mut bytes = Vec::new();
        bundle::write(Bundle::new(folder::of(&self.keeper.runs, id), id, artifacts), &mut bytes).unwrap();
        bytes
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_run_is_packed_and_nobody_sees_a_difference() {
    let house = House::new().await;
    let (old, new) = (house.ended(&[]).await, house.ended(&[]).await);
    let (seen, bundle) = (house.seen(old).await, house.bundle(old).await);
    let before = house.keeper.store.plan(&house.keeper.settings).await.unwrap();
    assert_eq!(before.pack.iter().map(|due| due.run.id).collect::<Vec<_>>(), [old]);
    house.keeper.round(&house.stop).await.unwrap();
    assert!(house.packed(old) && !house.packed(new));
    assert_eq!(house.seen(old).await, seen);
    assert_eq!(house.bundle(old).await, bundle, "the bundle is the same, byte for byte");
    let after = house.keeper.store.plan(&house.keeper.settings).await.unwrap();
    assert!(after.pack.is_empty() && after.bytes < before.bytes - 800_000, "{} of {}", after.bytes, before.bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_budget_the_oldest_goes_and_pinned_and_labelled_ones_stay() {
    let mut house = House::new().await;
    let (pinned, labelled) = (house.ended(&[]).await, house.ended(&["release"]).await);
    let (old, new) = (house.ended(&[]).await, house.ended(&[]).await);
    assert!(house.keeper.store.pin(pinned, true).await.unwrap());
    house.keeper.settings.most_runs = 1;
    house.keeper.round(&house.stop).await.unwrap();
    let there = |id| folder::of(&house.keeper.runs, id).is_dir();
    assert_eq!([pinned, labelled, old, new].map(there), [true, true, false, true]);
    assert!(!house.packed(pinned) && house.packed(labelled));
    assert!(house.keeper.store.run(old).await.unwrap().is_none());
    let plan = house.keeper.store.plan(&house.keeper.settings).await.unwrap();
    assert_eq!((plan.runs, plan.notes.len()), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_packed_while_a_pass_runs_and_what_was_begun_ends_after_it() {
    let house = House::new().await;
    let old = house.ended(&[]).await;
    house.ended(&[]).await;
    let run = house.started(&[]).await;
    let step = |state| StepRecord {
        step: Step::Baseline,
        state,
        started_at: "2026-11-20T09:00:00Z".into(),
        ended_at: None,
        exit_code: None,
        message: None,
    };
    let store = house.keeper.store.clone();
    store.save_steps(&run, &[step(StepState::Running)]).await.unwrap();
    assert!(store.measuring().await.unwrap());
    let (keeper, stop) = (house.keeper.clone(), house.stop.clone());
    let round = tokio::spawn(async move { keeper.round(&stop).await });
    tokio::time::sleep(PAUSE * 3).await;
    assert!(!round.is_finished() && !house.packed(old));
    store.save_steps(&run, &[step(StepState::Succeeded)]).await.unwrap();
    round.await.unwrap().unwrap();
    assert!(house.packed(old));
    // A service that stops does not wait for the pass.
    store.save_steps(&run, &[step(StepState::Running)]).await.unwrap();
    house.stop.cancel();
    let begun = Instant::now();
    assert!(!house.keeper.quiet(&house.stop).await);
    assert!(begun.elapsed() < Duration::from_secs(30));
    // Where passes run on other hosts, nothing is disturbed.
    let apart = Keeper { yields: false, ..house.keeper.clone() };
    assert!(apart.quiet(&CancellationToken::new()).await);
}

#[tokio::test]
async fn a_run_that_was_being_forgotten_is_forgotten_or_comes_back() {
    let house = House::new().await;
    let (known, gone) = (house.ended(&[]).await, house.ended(&[]).await);
    folder::set_aside(&house.keeper.runs, known).unwrap();
    folder::set_aside(&house.keeper.runs, gone).unwrap();
    house.keeper.store.delete(gone).await.unwrap();
    recover(&house.keeper.store, &house.keeper.runs).await.unwrap();
    assert_eq!(house.seen(known).await.len(), 3);
    assert!(!folder::of(&house.keeper.runs, gone).exists() && folder::all_aside::<RunId>(&house.keeper.runs).unwrap().is_empty());
}
