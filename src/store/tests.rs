//! The store's promises, on a real database file.

use std::{path::Path, time::Duration};

use sqlx::migrate::Migrator;

use super::*;
use crate::{
    profiling::Profiling,
    run::{ArtifactRecord, Mode, StepState, SubjectKind},
};

const LEASE: Duration = Duration::from_secs(60);

async fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
    (dir, store)
}

fn spec(priority: i32) -> RunSpec {
    RunSpec::tiny(Mode::Basic, priority, &["night"])
}

async fn submit(store: &Store, priority: i32) -> Run {
    match store.submit(NewRun { id: None, spec: spec(priority), idempotency: None, owner: None }).await.unwrap() {
        Submitted::New(run) => *run,
        other => panic!("{other:?}"),
    }
}

async fn keyed(store: &Store, key: &str, body: u8) -> Submitted {
    let idempotency = Some(Idempotency { key: key.into(), body_sha256: [body; 32] });
    store.submit(NewRun { id: None, spec: spec(0), idempotency, owner: None }).await.unwrap()
}

fn succeeded() -> Outcome {
    let artifact = ArtifactRecord {
        path: "report.md".into(),
        bytes: 3,
        sha256: "00".into(),
        media_type: "text/markdown".into(),
        step: Some(Step::Report),
    };
    Outcome { state: RunState::Succeeded, failed_step: None, message: None, findings: vec![], artifacts: vec![artifact] }
}

#[tokio::test]
async fn runs_that_come_together_are_told_the_places_that_they_have() {
    let (_dir, store) = store().await;
    for _ in 0..3 {
        submit(&store, 5).await;
    }
    let submitted = (0..60).map(|number| {
        let store = store.clone();
        tokio::spawn(async move { submit(&store, number % 2).await })
    });
    let mut told = Vec::new();
    for run in submitted.collect::<Vec<_>>() {
        told.push(run.await.unwrap());
    }
    let mut places: [Vec<u64>; 2] = Default::default();
    for run in &told {
        let (then, now) = (run.queue_position.unwrap(), store.run(run.id).await.unwrap().unwrap().queue_position.unwrap());
        // Only the more urgent pass one that waits.
        assert!(if run.spec.common.priority == 1 { then == now } else { then <= now }, "{then} {now}");
        places[run.spec.common.priority as usize].push(now);
    }
    places.iter_mut().for_each(|places| places.sort_unstable());
    assert_eq!(places, [(34..=63).collect::<Vec<_>>(), (4..=33).collect()]);
}

#[tokio::test]
async fn a_place_is_counted_in_the_index_alone() {
    let (_dir, store) = store().await;
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!("explain query plan {}", read::PLACES)));
    let rows = rows.bind("[]").fetch_all(&store.readers).await.unwrap();
    let plan: Vec<String> = rows.iter().map(|row| sqlx::Row::get(row, "detail")).collect();
    assert!(plan.iter().any(|step| step.contains("SEARCH runs USING COVERING INDEX runs_waiting")), "{plan:#?}");
}

#[tokio::test]
async fn higher_priorities_go_first_and_positions_tell_so() {
    let (_dir, store) = store().await;
    let (first, second) = (submit(&store, 0).await, submit(&store, 0).await);
    let urgent = submit(&store, 5).await;
    assert_eq!([first.queue_position, second.queue_position, urgent.queue_position], [Some(1), Some(2), Some(1)]);
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
async fn a_run_for_another_device_is_left_waiting() {
    let (_dir, store) = store().await;
    let new = NewRun { id: None, spec: spec(0).on("cuda:1"), idempotency: None, owner: None };
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
async fn submissions_that_arrive_together_are_all_kept() {
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
    let mut listed: Vec<_> = store.list(&Filter::default(), None, 1000).await.unwrap().iter().map(|run| run.id).collect();
    listed.sort();
    assert_eq!(ids, listed);
}

#[tokio::test]
async fn a_lost_lease_is_claimed_again_and_its_old_worker_changes_nothing() {
    let (_dir, store) = store().await;
    submit(&store, 0).await;
    let old = store.claim("old", &["cpu"], Duration::ZERO).await.unwrap().unwrap();
    // A lease of no length is over at the next millisecond of the wall clock.
    while store.recover(false).await.unwrap().is_empty() {}
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
async fn a_run_that_takes_the_service_down_is_given_up_after_three_attempts() {
    let (_dir, store) = store().await;
    let id = submit(&store, 0).await.id;
    for attempt in 1..=3 {
        assert_eq!(store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap().attempt, attempt);
        assert_eq!(store.recover(true).await.unwrap(), [id]);
    }
    let run = store.run(id).await.unwrap().unwrap();
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(run.message.as_deref(), Some("given up: the service ended during each of 3 attempts"));
}

#[tokio::test]
async fn a_run_given_back_waits_again_without_a_mark() {
    let (_dir, store) = store().await;
    let id = submit(&store, 0).await.id;
    let claimed = store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert!(store.release(&claimed).await.unwrap());
    let run = store.run(id).await.unwrap().unwrap();
    assert_eq!((run.state, run.attempts, run.queue_position), (RunState::Queued, 0, Some(1)));
}

#[tokio::test]
async fn cancelling_says_what_it_met() {
    let (_dir, store) = store().await;
    let (running, queued) = (submit(&store, 0).await.id, submit(&store, 0).await.id);
    let claimed = store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert_eq!(store.cancel(queued).await.unwrap(), Cancel::Cancelled);
    assert_eq!(store.cancel(queued).await.unwrap(), Cancel::AlreadyEnded(RunState::Cancelled));
    assert_eq!(store.cancel(running).await.unwrap(), Cancel::Requested);
    assert_eq!(store.cancel(running).await.unwrap(), Cancel::AlreadyRequested);
    assert_eq!(store.renew(&claimed, LEASE).await.unwrap(), Renewal::CancelRequested);
    assert_eq!(store.cancel(RunId::now()).await.unwrap(), Cancel::NotFound);
    assert_eq!(store.delete(running).await.unwrap(), Delete::Active);
    assert_eq!(store.delete(queued).await.unwrap(), Delete::Deleted);
    assert_eq!(store.delete(queued).await.unwrap(), Delete::NotFound);
    // What is cancelled and deleted no longer counts as waiting.
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
    let page = |runs: Vec<Run>| runs.iter().map(|run| run.id).collect::<Vec<_>>();
    let first = page(store.list(&Filter::default(), None, 2).await.unwrap());
    let rest = page(store.list(&Filter::default(), Some(first[1]), 10).await.unwrap());
    assert_eq!([first, rest].concat(), ids);
    let by = |state, model: &str, label: &str| Filter {
        state,
        model: Some(model.into()),
        label: Some(label.into()),
        ..Filter::default()
    };
    assert_eq!(store.list(&by(Some(RunState::Queued), "tiny", "night"), None, 10).await.unwrap().len(), 5);
    for none in [by(None, "tiny", "day"), by(None, "other", "night"), by(Some(RunState::Failed), "tiny", "night")] {
        assert!(store.list(&none, None, 10).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn steps_are_kept_as_they_change_and_cleared_by_the_next_attempt() {
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
    step = StepRecord { state: StepState::Failed, exit_code: Some(2), message: Some("no".into()), ..step };
    store.save_steps(&claimed, std::slice::from_ref(&step)).await.unwrap();
    assert_eq!(store.run(id).await.unwrap().unwrap().steps, [step]);
    store.recover(true).await.unwrap();
    store.claim("w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert!(store.run(id).await.unwrap().unwrap().steps.is_empty());
}

#[tokio::test]
async fn a_run_that_waits_for_ten_minutes_is_worth_a_point_of_priority() {
    let (_dir, store) = store().await;
    let old = submit(&store, 0).await;
    sqlx::query("update runs set rank = rank - 61 * 60000").execute(&mut *store.writer.lock().await).await.unwrap();
    let (six, seven) = (submit(&store, 6).await, submit(&store, 7).await);
    let mut order = Vec::new();
    while let Some(run) = store.claim("w", &["cpu"], LEASE).await.unwrap() {
        order.push(run.id);
    }
    assert_eq!(order, [seven.id, old.id, six.id]);
}

#[tokio::test]
async fn a_clock_that_was_set_back_lets_nobody_overtake_those_that_wait_and_points_count() {
    let (_dir, store) = store().await;
    let first = submit(&store, 0).await;
    sqlx::query("update runs set rank = rank + 2 * 86400000").execute(&mut *store.writer.lock().await).await.unwrap();
    let (second, urgent) = (submit(&store, 0).await, submit(&store, 1).await);
    let mut order = Vec::new();
    while let Some(run) = store.claim("w", &["cpu"], LEASE).await.unwrap() {
        order.push(run.id);
    }
    assert_eq!(order, [urgent.id, first.id, second.id]);
}

#[tokio::test]
async fn an_owner_with_enough_running_runs_waits_and_others_do_not() {
    let (_dir, store) = store().await;
    let store = store.with_running_per_owner(1);
    let mut ids = Vec::new();
    for name in ["ann", "ann", "bob"] {
        let owner = Some(Owner { name: name.into(), quota: Quota::default() });
        let Submitted::New(run) = store.submit(NewRun { id: None, spec: spec(0), idempotency: None, owner }).await.unwrap()
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

/// A database as version 0.1 left it, with one run of each subject; and the specs as they were stored.
async fn stored_by_version_0_1(path: &Path) -> Vec<(RunId, serde_json::Value)> {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut old = SqliteConnection::connect_with(&options).await.unwrap();
    let before = sqlx::migrate!().iter().filter(|it| it.version < 60).cloned().collect();
    Migrator::with_migrations(before).run(&mut old).await.unwrap();
    let flat = |more: serde_json::Value| {
        let mut spec = serde_json::json!({
            "model": "tiny", "inputs_manifest": "inputs.yaml", "mode": "deep", "repeats": 3, "warmup": 2, "max_new_tokens": 64,
            "seed": 9007199254740991u64, "dtype": null, "device": "auto", "timeout_s": 1800, "labels": ["it's"], "priority": -3,
            "profiling": Profiling::bundled(Mode::Deep).unwrap(),
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let import = serde_json::json!({ "files": [{ "name": "a\"b.sqlite", "kind": "timeline", "bytes": 7, "path": "nsys/run.sqlite" }],
        "stages": ["prefill=ctx@vllm"], "within": [], "without": ["warm"] });
    let call = serde_json::json!({ "command": "go", "params": { "n": 3, "text": "x", "on": true }, "gpus": 2 });
    let specs = [
        flat(serde_json::json!({})),
        flat(
            serde_json::json!({ "target": "decoder.layers.1.mlp", "align_with": "e2e", "mock": { "dtype": "f16" }, "dtype": "bf16" }),
        ),
        flat(serde_json::json!({ "target": "decoder.layers.1" })),
        flat(serde_json::json!({ "model": "go", "target": call })),
        flat(serde_json::json!({ "model": "a", "device": "none", "mode": "light", "import": import, "profiling": null })),
    ];
    let mut ids = Vec::new();
    for spec in specs {
        let id = RunId::now();
        sqlx::query(
            "insert into runs (id, model, mode, device, priority, spec, state, queued_at) values (?, ?, ?, ?, ?, ?, 'queued', 1)",
        )
        .bind(key(&id))
        .bind(spec["model"].as_str())
        .bind(spec["mode"].as_str())
        .bind(spec["device"].as_str())
        .bind(spec["priority"].as_i64())
        .bind(spec.to_string())
        .execute(&mut old)
        .await
        .unwrap();
        ids.push((id, spec));
    }
    old.close().await.unwrap();
    ids
}

#[tokio::test]
async fn runs_that_version_0_1_stored_are_migrated_to_their_subjects_and_claimed_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llmprof.db");
    let stored = stored_by_version_0_1(&path).await;
    let store = Store::open(&path).await.unwrap();
    for (id, flat) in &stored {
        let run = store.run(*id).await.unwrap().unwrap();
        let read: RunSpec = serde_json::from_value(flat.clone()).unwrap();
        assert_eq!(run.spec, read, "the migration and the reader of sealed folders agree");
        let text: String =
            sqlx::query_scalar("select spec from runs where id = ?").bind(key(id)).fetch_one(&store.readers).await.unwrap();
        let rewritten: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(rewritten["subject"]["kind"].is_string() && rewritten.get("model").is_none(), "{text}");
    }
    let kinds = async |kind| store.list(&Filter { kind: Some(kind), ..Filter::default() }, None, 10).await.unwrap().len();
    assert_eq!([kinds(SubjectKind::Model).await, kinds(SubjectKind::Part).await, kinds(SubjectKind::Import).await], [1, 2, 1]);
    let named =
        async |name: &str| store.list(&Filter { model: Some(name.into()), ..Filter::default() }, None, 10).await.unwrap().len();
    assert_eq!([named("tiny").await, named("go").await, named("a").await], [3, 0, 0], "commands and captures name no model");
    assert_eq!(store.claim_import("w", LEASE).await.unwrap().unwrap().id, stored[4].0);
    assert!(store.claim_import("w", LEASE).await.unwrap().is_none());
    let mut claimed = Vec::new();
    while let Some(run) = store.claim("w", &["cpu"], LEASE).await.unwrap() {
        claimed.push(run.id);
    }
    assert_eq!(claimed, stored[..4].iter().map(|(id, _)| *id).collect::<Vec<_>>());
}
