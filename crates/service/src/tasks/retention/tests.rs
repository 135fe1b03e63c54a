//! Retention with real folders and a real database.

use std::fs;

use llmprof_core::domain::{mode::Mode, outcome::Outcome, state::RunState, subject::RunSpec};

use super::*;
use crate::{
    artifact::{
        bundle::{self, Bundle},
        manifest,
    },
    store::{ClaimedRun, NewRun},
};

struct TestFolder {
    keeper: Keeper,
    stop: CancellationToken,
    _dir: tempfile::TempDir,
}

/// Length and hash of every file of a run, by path.
type FolderContents = Vec<(String, (u64, String))>;

impl TestFolder {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let alignments = dir.path().join("alignments");
        fs::create_dir(&runs).unwrap();
        fs::create_dir(&alignments).unwrap();
        let packing = dir.path().join("packing");
        fs::create_dir(&packing).unwrap();
        let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
        let settings = RetentionSettings {
            keep_newest: 1,
            pack: true,
            max_runs: 0,
            max_days: 0,
            max_bytes: 0,
            interval_s: 1,
            scrub_days: 1,
            scrub_bytes_per_s: 0,
        };
        Self {
            keeper: Keeper {
                store,
                runs,
                packing,
                alignments,
                settings,
                measuring: Measuring::default(),
                max_wait: Duration::from_secs(600),
            },
            stop: CancellationToken::new(),
            _dir: dir,
        }
    }

    /// A claimed run with a folder.
    async fn started(&self, labels: &[&str]) -> ClaimedRun {
        let spec = RunSpec::tiny(Mode::DEEP, 0, labels);
        let store = &self.keeper.store;
        store.submit(NewRun { id: None, spec, idempotency: None, owner: None }).await.unwrap();
        let run =
            store.claim("cpu:worker", &["cpu"], Duration::from_secs(60)).await.unwrap().unwrap();
        fs::create_dir_all(folder::of(&self.keeper.runs, run.id).join("nsys")).unwrap();
        run
    }

    async fn ended(&self, labels: &[&str]) -> RunId {
        let run = self.started(labels).await;
        let dir = folder::of(&self.keeper.runs, run.id);
        fs::write(dir.join("nsys/run.sqlite"), "a row of an export\n".repeat(50_000)).unwrap();
        fs::write(dir.join("report.md"), "# report\n".repeat(1000)).unwrap();
        let artifacts = manifest::seal(&dir, u64::MAX, &SlicedWork::default()).unwrap().artifacts;
        let outcome = Outcome {
            state: RunState::Succeeded,
            failed_step: None,
            message: None,
            findings: vec![],
            artifacts,
            series: None,
        };
        assert!(self.keeper.store.finish(&run, &outcome).await.unwrap());
        run.id
    }

    async fn seen(&self, id: RunId) -> FolderContents {
        let artifacts = self.keeper.store.artifacts(id).await.unwrap();
        let content = |path: &str| {
            packed::hash_content(
                &folder::of(&self.keeper.runs, id).join(path),
                &SlicedWork::default(),
            )
            .unwrap()
        };
        artifacts.into_iter().map(|it| (it.path.clone(), content(&it.path))).collect()
    }

    fn packed(&self, id: RunId) -> bool {
        packed::stored(&folder::of(&self.keeper.runs, id).join("nsys/run.sqlite")).unwrap().1
    }

    async fn bundle(&self, id: RunId) -> Vec<u8> {
        let artifacts = self.keeper.store.artifacts(id).await.unwrap();
        let mut bytes = Vec::new();
        bundle::write(Bundle::new(folder::of(&self.keeper.runs, id), id, artifacts), &mut bytes)
            .unwrap();
        bytes
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_run_is_packed_without_a_visible_difference() {
    let house = TestFolder::new().await;
    let (old, new) = (house.ended(&[]).await, house.ended(&[]).await);
    let (seen, bundle) = (house.seen(old).await, house.bundle(old).await);
    let before = house.keeper.store.plan(&house.keeper.settings).await.unwrap();
    assert_eq!(before.pack.iter().map(|due| due.run.id).collect::<Vec<_>>(), [old]);
    house.keeper.round(&house.stop).await.unwrap();
    assert!(house.packed(old) && !house.packed(new));
    assert_eq!(house.seen(old).await, seen);
    assert_eq!(house.bundle(old).await, bundle, "the bundle is the same, byte for byte");
    let after = house.keeper.store.plan(&house.keeper.settings).await.unwrap();
    assert!(
        after.pack.is_empty() && after.bytes < before.bytes - 800_000,
        "{} of {}",
        after.bytes,
        before.bytes
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_budget_the_oldest_run_is_removed_and_pinned_and_labelled_runs_stay() {
    let mut house = TestFolder::new().await;
    let (pinned, labelled) = (house.ended(&[]).await, house.ended(&["release"]).await);
    let (old, new) = (house.ended(&[]).await, house.ended(&[]).await);
    assert!(house.keeper.store.pin(pinned, true).await.unwrap());
    house.keeper.settings.max_runs = 1;
    house.keeper.round(&house.stop).await.unwrap();
    let there = |id| folder::of(&house.keeper.runs, id).is_dir();
    assert_eq!([pinned, labelled, old, new].map(there), [true, true, false, true]);
    assert!(!house.packed(pinned) && house.packed(labelled));
    assert!(house.keeper.store.run(old).await.unwrap().is_none());
    let plan = house.keeper.store.plan(&house.keeper.settings).await.unwrap();
    assert_eq!((plan.runs, plan.notes.len()), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_packed_while_a_pass_runs_and_packing_continues_after_it() {
    let house = TestFolder::new().await;
    let old = house.ended(&[]).await;
    house.ended(&[]).await;
    let pass = house.keeper.measuring.start();
    let (keeper, stop) = (house.keeper.clone(), house.stop.clone());
    let mut round = tokio::spawn(async move { keeper.round(&stop).await });
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut round).await.is_err());
    assert!(!house.packed(old));
    drop(pass);
    round.await.unwrap().unwrap();
    assert!(house.packed(old));
    // A service that stops does not wait for the pass.
    let _pass = house.keeper.measuring.start();
    house.stop.cancel();
    assert!(!house.keeper.wait_for_quiet(&house.stop).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_always_measures_packs_after_the_longest_wait() {
    let mut house = TestFolder::new().await;
    house.keeper.max_wait = Duration::from_millis(1);
    let old = house.ended(&[]).await;
    house.ended(&[]).await;
    let _pass = house.keeper.measuring.start();
    house.keeper.round(&house.stop).await.unwrap();
    assert!(house.packed(old));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_pinned_while_its_removal_waits_for_a_pass_is_kept() {
    let mut house = TestFolder::new().await;
    let (old, _) = (house.ended(&[]).await, house.ended(&[]).await);
    house.keeper.settings.max_runs = 1;
    house.keeper.settings.pack = false;
    let pass = house.keeper.measuring.start();
    let store = house.keeper.store.clone();
    let due = store.plan(&house.keeper.settings).await.unwrap().remove;
    assert_eq!(due.iter().map(|due| due.run.id).collect::<Vec<_>>(), [old]);
    let (keeper, stop) = (house.keeper.clone(), house.stop.clone());
    let mut round = Box::pin(keeper.round(&stop));
    // The round waits for the pass.
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut round).await.is_err());
    assert!(store.pin(old, true).await.unwrap());
    drop(pass);
    round.await.unwrap();
    assert!(store.run(old).await.unwrap().is_some());
    assert_eq!(house.seen(old).await.len(), 3);
    // A pin between the plan and the deletion counts, too.
    assert_eq!(store.delete_unpinned(old).await.unwrap(), DeleteOutcome::Active);
}

#[tokio::test]
async fn a_folder_whose_row_is_deleted_is_removed_by_the_next_round_or_start() {
    let house = TestFolder::new().await;
    let (first, second) = (house.ended(&[]).await, house.ended(&[]).await);
    let (store, keeper) = (&house.keeper.store, &house.keeper);
    // Killed between the commit and the removal.
    assert_eq!(store.delete(first).await.unwrap(), DeleteOutcome::Deleted);
    assert!(folder::of(&keeper.runs, first).exists());
    recover(store, &keeper.runs, &keeper.alignments, &SlicedWork::default()).await.unwrap();
    assert!(!folder::of(&keeper.runs, first).exists());
    // A file that cannot be removed: a file stands in the place of the folder set aside.
    assert_eq!(store.delete(second).await.unwrap(), DeleteOutcome::Deleted);
    let obstacle = keeper.runs.join(format!("{second}.removed"));
    fs::write(&obstacle, "").unwrap();
    keeper.round(&house.stop).await.unwrap();
    assert_eq!(store.removals().await.unwrap(), [Removal::Run(second)]);
    fs::remove_file(obstacle).unwrap();
    keeper.round(&house.stop).await.unwrap();
    assert_eq!(store.removals().await.unwrap(), []);
    assert!(!folder::of(&keeper.runs, second).exists());
}

#[tokio::test]
async fn a_deletion_that_version_0_1_left_half_done_is_finished_or_undone() {
    let house = TestFolder::new().await;
    let (known, gone) = (house.ended(&[]).await, house.ended(&[]).await);
    folder::set_aside(&house.keeper.runs, known).unwrap();
    folder::set_aside(&house.keeper.runs, gone).unwrap();
    house.keeper.store.delete(gone).await.unwrap();
    let keeper = &house.keeper;
    recover(&keeper.store, &keeper.runs, &keeper.alignments, &SlicedWork::default()).await.unwrap();
    assert_eq!(house.seen(known).await.len(), 3);
    assert!(
        !folder::of(&house.keeper.runs, gone).exists()
            && folder::all_aside::<RunId>(&house.keeper.runs).unwrap().is_empty()
    );
}
