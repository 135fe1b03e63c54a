//! Guarantees of the store, with a real database file.

use std::time::Duration;

use llmprof_core::domain::{
    mode::Mode, outcome::Outcome, run_files::ArtifactRecord, state::StepState,
};

use super::*;

const LEASE: Duration = Duration::from_secs(60);

async fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
    (dir, store)
}

fn spec(priority: i32) -> RunSpec {
    RunSpec::tiny(Mode::BASIC, priority, &["night"])
}

async fn submit(store: &Store, priority: i32) -> StoredRun {
    match store
        .submit(NewRun { id: None, spec: spec(priority), idempotency: None, owner: None })
        .await
        .unwrap()
    {
        Submitted::New(run) => *run,
        other => panic!("{other:?}"),
    }
}

async fn keyed(store: &Store, key: &str, body: u8) -> Submitted {
    let idempotency = Some(IdempotencyKey { key: key.into(), body_sha256: [body; 32] });
    store.submit(NewRun { id: None, spec: spec(0), idempotency, owner: None }).await.unwrap()
}

async fn recover(store: &Store, all: bool) -> Result<Vec<RunId>, StoreError> {
    let abandoned = store.abandoned(all, false).await?;
    store.recover(&abandoned, all).await
}

fn succeeded() -> Outcome {
    let artifact = ArtifactRecord {
        path: "report.md".into(),
        bytes: 3,
        sha256: "00".into(),
        media_type: "text/markdown".into(),
        step: Some(Step::Report),
    };
    Outcome {
        state: RunState::Succeeded,
        failed_step: None,
        message: None,
        findings: vec![],
        artifacts: vec![artifact],
        series: None,
    }
}

#[tokio::test]
async fn concurrent_submissions_get_their_places_in_the_queue() {
    let (_dir, store) = store().await;
    for _ in 0..3 {
        submit(&store, 5).await;
    }
    let submissions = (0..60).map(|number| {
        let store = store.clone();
        tokio::spawn(async move { submit(&store, number % 2).await })
    });
    let mut submitted = Vec::new();
    for run in submissions.collect::<Vec<_>>() {
        submitted.push(run.await.unwrap());
    }
    let mut places: [Vec<u64>; 2] = Default::default();
    for run in &submitted {
        let (then, now) = (
            run.queue_position.unwrap(),
            store.run(run.id).await.unwrap().unwrap().queue_position.unwrap(),
        );
        // Only a run of higher priority overtakes a queued one.
        assert!(
            if run.spec.common.priority == 1 { then == now } else { then <= now },
            "{then} {now}"
        );
        places[run.spec.common.priority as usize].push(now);
    }
    places.iter_mut().for_each(|places| places.sort_unstable());
    assert_eq!(places, [(34..=63).collect::<Vec<_>>(), (4..=33).collect()]);
}

#[tokio::test]
async fn a_place_is_counted_by_the_index_only() {
    let (_dir, store) = store().await;
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!("explain query plan {}", read::PLACES)));
    let rows = rows.bind("[]").fetch_all(&mut *store.reader().await.unwrap()).await.unwrap();
    let plan: Vec<String> = rows.iter().map(|row| sqlx::Row::get(row, "detail")).collect();
    assert!(
        plan.iter().any(|step| step.contains("SEARCH runs USING COVERING INDEX runs_waiting")),
        "{plan:#?}"
    );
}

#[tokio::test]
async fn higher_priorities_go_first_and_have_the_first_positions() {
    let (_dir, store) = store().await;
    let (first, second) = (submit(&store, 0).await, submit(&store, 0).await);
    let urgent = submit(&store, 5).await;
    assert_eq!(
        [first.queue_position, second.queue_position, urgent.queue_position],
        [Some(1), Some(2), Some(1)]
    );
    let mut positions = Vec::new();
    for id in [first.id, second.id, urgent.id] {
        positions.push(store.run(id).await.unwrap().unwrap().queue_position.unwrap());
    }
    assert_eq!(positions, [2, 3, 1]);
    let mut order = Vec::new();
    while let Some(run) = store.claim("w", &["cpu"], LEASE).await.unwrap() {
        order.push(run.id);
    }
    assert_eq!(order, [urgent.id, first.id, second.id]);
}

#[tokio::test]
async fn a_run_for_another_device_stays_queued() {
    let (_dir, store) = store().await;
    let new =
        NewRun { id: None, spec: spec(0).on_device("cuda:1"), idempotency: None, owner: None };
    store.submit(new).await.unwrap();
    assert!(store.claim("w", &["cpu"], LEASE).await.unwrap().is_none());
    assert!(store.claim("w", &["cuda:1"], LEASE).await.unwrap().is_some());
}

#[tokio::test]
async fn a_key_gives_its_run_again_and_refuses_another_body() {
    let (_dir, store) = store().await;
    let Submitted::New(run) = keyed(&store, "k", 1).await else { panic!() };
    let Submitted::Same(same) = keyed(&store, "k", 1).await else { panic!() };
    assert_eq!(run, same);
    assert!(matches!(keyed(&store, "k", 2).await, Submitted::KeyReused));
    assert_eq!(store.list(&Filter::default(), None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn concurrent_submissions_are_all_stored() {
    let (_dir, store) = store().await;
    let tasks: Vec<_> = (0..300)
        .map(|_| {
            tokio::spawn({
                let store = store.clone();
                async move { submit(&store, 0).await.id }
            })
        })
        .collect();
    let mut ids = Vec::new();
    for task in tasks {
        ids.push(task.await.unwrap());
    }
    ids.sort();
    let mut listed: Vec<_> = store
        .list(&Filter::default(), None, 1000)
        .await
        .unwrap()
        .iter()
        .map(|run| run.id)
        .collect();
    listed.sort();
    assert_eq!(ids, listed);
}

#[tokio::test]
async fn a_lost_lease_is_claimed_again_and_its_old_worker_changes_nothing() {
    let (_dir, store) = store().await;
    submit(&store, 0).await;
    let old = store.claim("old", &["cpu"], Duration::ZERO).await.unwrap().unwrap();
    // A lease of no length is over at the next millisecond of the wall clock.
    while recover(&store, false).await.unwrap().is_empty() {}
    let new = store.claim("new", &["cpu"], LEASE).await.unwrap().unwrap();
    assert_eq!((new.id, new.attempt), (old.id, 2));
    assert_eq!(store.renew(&old, LEASE).await.unwrap(), Renewal::Lost);
    assert!(!store.finish(&old, &succeeded()).await.unwrap());
    assert!(!store.release(&old).await.unwrap());
    assert!(store.finish(&new, &succeeded()).await.unwrap());
    let run = store.run(new.id).await.unwrap().unwrap();
    assert_eq!((run.state, run.attempts), (RunState::Succeeded, 2));
    assert_eq!(store.artifacts(new.id).await.unwrap(), succeeded().artifacts);
}

#[tokio::test]
async fn a_lease_that_expires_after_the_search_is_left_to_the_next_one() {
    let (_dir, store) = store().await;
    let abandoned = store.abandoned(false, false).await.unwrap();
    let id = submit(&store, 0).await.id;
    store.claim("stalled", &["cpu"], Duration::ZERO).await.unwrap().unwrap();
    while store.abandoned(false, false).await.unwrap().is_empty() {}
    assert_eq!(store.recover(&abandoned, false).await.unwrap(), []);
    assert_eq!(store.abandoned(false, true).await.unwrap(), [], "it is not an import");
    assert_eq!(recover(&store, false).await.unwrap(), [id]);
}

#[tokio::test]
async fn a_run_that_takes_the_service_down_fails_after_three_attempts() {
    let (_dir, store) = store().await;
    let id = submit(&store, 0).await.id;
    for attempt in 1..=3 {
        assert_eq!(store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap().attempt, attempt);
        assert_eq!(recover(&store, true).await.unwrap(), [id]);
    }
    let run = store.run(id).await.unwrap().unwrap();
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(
        run.message.as_deref(),
        Some("given up: the service ended during each of 3 attempts")
    );
}

#[tokio::test]
async fn the_end_of_a_service_that_analyses_an_import_is_charged_to_the_import_alone() {
    let (_dir, store) = store().await;
    let run = submit(&store, 0).await.id;
    let import =
        NewRun { id: None, spec: RunSpec::import_of_nothing(), idempotency: None, owner: None };
    let Submitted::New(import) = store.submit(import).await.unwrap() else { panic!() };
    for crash in 1..=3 {
        store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
        store.claim_import("import", LEASE).await.unwrap().unwrap();
        assert_eq!(recover(&store, true).await.unwrap().len(), 2);
        let attempts = async |id| store.run(id).await.unwrap().unwrap().attempts;
        assert_eq!((attempts(run).await, attempts(import.id).await), (0, crash));
    }
    assert_eq!(store.run(import.id).await.unwrap().unwrap().state, RunState::Failed);
    assert_eq!(store.run(run).await.unwrap().unwrap().state, RunState::Queued);
}

#[tokio::test]
async fn a_released_run_is_requeued_without_charging_the_attempt() {
    let (_dir, store) = store().await;
    let id = submit(&store, 0).await.id;
    let claimed = store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert!(store.release(&claimed).await.unwrap());
    let run = store.run(id).await.unwrap().unwrap();
    assert_eq!((run.state, run.attempts, run.queue_position), (RunState::Queued, 0, Some(1)));
}

#[tokio::test]
async fn a_run_to_be_cancelled_does_not_wait_for_the_host() {
    let (_dir, store) = store().await;
    let id = submit(&store, 0).await.id;
    let claimed = store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert_eq!(store.cancel(id).await.unwrap(), CancelOutcome::Requested);
    assert!(store.requeue(&claimed, "low disk space").await.unwrap());
    let run = store.run(id).await.unwrap().unwrap();
    assert_eq!((run.state, run.ended_at.is_some()), (RunState::Cancelled, true));
}

#[tokio::test]
async fn a_cancellation_returns_the_state_it_found() {
    let (_dir, store) = store().await;
    let (running, queued) = (submit(&store, 0).await.id, submit(&store, 0).await.id);
    let claimed = store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert_eq!(store.cancel(queued).await.unwrap(), CancelOutcome::Cancelled);
    assert_eq!(
        store.cancel(queued).await.unwrap(),
        CancelOutcome::AlreadyEnded(RunState::Cancelled)
    );
    assert_eq!(store.cancel(running).await.unwrap(), CancelOutcome::Requested);
    assert_eq!(store.cancel(running).await.unwrap(), CancelOutcome::AlreadyRequested);
    assert_eq!(store.renew(&claimed, LEASE).await.unwrap(), Renewal::CancelRequested);
    assert_eq!(store.cancel(RunId::now()).await.unwrap(), CancelOutcome::NotFound);
    assert_eq!(store.delete(running).await.unwrap(), DeleteOutcome::Active);
    assert_eq!(store.delete(queued).await.unwrap(), DeleteOutcome::Deleted);
    assert_eq!(store.delete(queued).await.unwrap(), DeleteOutcome::NotFound);
    // Cancelled and deleted runs do not count as queued.
    assert_eq!(submit(&store, 0).await.queue_position, Some(1));
}

#[tokio::test]
async fn lists_filter_and_page_from_newest_to_oldest() {
    let (_dir, store) = store().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(submit(&store, 0).await.id);
    }
    ids.reverse();
    let page = |runs: Vec<StoredRun>| runs.iter().map(|run| run.id).collect::<Vec<_>>();
    let first = page(store.list(&Filter::default(), None, 2).await.unwrap());
    let rest = page(store.list(&Filter::default(), Some(first[1]), 10).await.unwrap());
    assert_eq!([first, rest].concat(), ids);
    let by = |state, model: &str, label: &str| Filter {
        state,
        model: Some(model.into()),
        labels: vec![label.into()],
        ..Filter::default()
    };
    assert_eq!(
        store.list(&by(Some(RunState::Queued), "tiny", "night"), None, 10).await.unwrap().len(),
        5
    );
    for none in [
        by(None, "tiny", "day"),
        by(None, "other", "night"),
        by(Some(RunState::Failed), "tiny", "night"),
    ] {
        assert!(store.list(&none, None, 10).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn steps_are_saved_as_they_change_and_cleared_by_the_next_attempt() {
    let (_dir, store) = store().await;
    let id = submit(&store, 0).await.id;
    let claimed = store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    let mut step = StepRecord {
        step: Step::Preflight,
        state: StepState::Running,
        started_at: "2026-01-01T00:00:00Z".into(),
        ended_at: None,
        exit_code: None,
        message: None,
    };
    store.save_steps(&claimed, std::slice::from_ref(&step)).await.unwrap();
    step = StepRecord {
        state: StepState::Failed,
        exit_code: Some(2),
        message: Some("no".into()),
        ..step
    };
    store.save_steps(&claimed, std::slice::from_ref(&step)).await.unwrap();
    assert_eq!(store.run(id).await.unwrap().unwrap().steps, [step]);
    recover(&store, true).await.unwrap();
    store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert!(store.run(id).await.unwrap().unwrap().steps.is_empty());
}

#[tokio::test]
async fn ten_minutes_in_the_queue_are_worth_a_point_of_priority() {
    let (_dir, store) = store().await;
    let old = submit(&store, 0).await;
    sqlx::query("update runs set rank = rank - 61 * 60000")
        .execute(&mut *store.writer.lock().await)
        .await
        .unwrap();
    let (six, seven) = (submit(&store, 6).await, submit(&store, 7).await);
    let mut order = Vec::new();
    while let Some(run) = store.claim("w", &["cpu"], LEASE).await.unwrap() {
        order.push(run.id);
    }
    assert_eq!(order, [seven.id, old.id, six.id]);
}

#[tokio::test]
async fn no_run_overtakes_after_a_clock_was_set_back_and_priority_counts() {
    let (_dir, store) = store().await;
    let first = submit(&store, 0).await;
    sqlx::query("update runs set rank = rank + 2 * 86400000")
        .execute(&mut *store.writer.lock().await)
        .await
        .unwrap();
    let (second, urgent) = (submit(&store, 0).await, submit(&store, 1).await);
    let mut order = Vec::new();
    while let Some(run) = store.claim("w", &["cpu"], LEASE).await.unwrap() {
        order.push(run.id);
    }
    assert_eq!(order, [urgent.id, first.id, second.id]);
}

#[tokio::test]
async fn an_owner_at_the_limit_of_running_runs_waits_and_others_do_not() {
    let (_dir, store) = store().await;
    let store = store.with_running_per_owner(1);
    let mut ids = Vec::new();
    for name in ["ann", "ann", "bob"] {
        let owner = Some(Owner { name: name.into(), quota: Quota::default() });
        let Submitted::New(run) = store
            .submit(NewRun { id: None, spec: spec(0), idempotency: None, owner })
            .await
            .unwrap()
        else {
            panic!()
        };
        ids.push(run.id);
    }
    let first = store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    let second = store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert_eq!([first.id, second.id], [ids[0], ids[2]]);
    assert!(store.claim("w", &["cpu"], LEASE).await.unwrap().is_none());
    assert!(store.finish(&first, &succeeded()).await.unwrap());
    assert_eq!(store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap().id, ids[1]);
}
