//! Migrations: embedded completely, and applied to a database of an earlier version.

use std::{path::Path, time::Duration};

use llmprof_core::domain::{
    ids::RunId,
    mode::Mode,
    profiling::Profiling,
    subject::{RunSpec, SubjectKind},
    webhook_event::{EventMessage, WebhookEvent},
};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use super::*;
use crate::store::{Filter, GateFilter, NewGate, Store, key};

const LEASE: Duration = Duration::from_secs(60);

#[test]
fn every_file_of_the_folder_is_embedded() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut files: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    files.sort();
    let embedded: Vec<String> = FILES.iter().map(|(name, _)| format!("{name}.sql")).collect();
    assert_eq!(files, embedded);
    assert_eq!(migrator().iter().count(), files.len());
}

/// Creates a database of version 0.1 with one run of each subject; returns ids and stored specs.
async fn stored_by_version_0_1(path: &Path) -> Vec<(RunId, serde_json::Value)> {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut old = SqliteConnection::connect_with(&options).await.unwrap();
    let before = migrator().iter().filter(|it| it.version < 60).cloned().collect();
    Migrator::with_migrations(before).run(&mut old).await.unwrap();
    let flat = |more: serde_json::Value| {
        let mut spec = serde_json::json!({
            "model": "tiny", "inputs_manifest": "inputs.yaml", "mode": "deep", "repeats": 3,
            "warmup": 2, "max_new_tokens": 64, "seed": 9007199254740991u64, "dtype": null,
            "device": "auto", "timeout_s": 1800, "labels": ["it's"], "priority": -3,
            "profiling": Profiling::bundled(&Mode::DEEP).unwrap(),
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let import = serde_json::json!({
        "files": [{ "name": "a\"b.sqlite", "kind": "timeline", "bytes": 7,
                    "path": "nsys/run.sqlite" }],
        "stages": ["prefill=ctx@vllm"], "within": [], "without": ["warm"],
    });
    let params = serde_json::json!({ "n": 3, "text": "x", "on": true });
    let call = serde_json::json!({ "command": "go", "params": params, "gpus": 2 });
    let part = serde_json::json!({
        "target": "decoder.layers.1.mlp", "align_with": "e2e", "mock": { "dtype": "f16" },
        "dtype": "bf16",
    });
    let imported = serde_json::json!({
        "model": "a", "device": "none", "mode": "light", "import": import, "profiling": null,
    });
    let specs = [
        flat(serde_json::json!({})),
        flat(part),
        flat(serde_json::json!({ "target": "decoder.layers.1" })),
        flat(serde_json::json!({ "model": "go", "target": call })),
        flat(imported),
    ];
    let mut ids = Vec::new();
    for spec in specs {
        let id = RunId::now();
        sqlx::query(
            "insert into runs (id, model, mode, device, priority, spec, state, queued_at)
             values (?, ?, ?, ?, ?, ?, 'queued', 1)",
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
        let text: String = sqlx::query_scalar("select spec from runs where id = ?")
            .bind(key(id))
            .fetch_one(&mut *store.reader().await.unwrap())
            .await
            .unwrap();
        let rewritten: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(
            rewritten["subject"]["kind"].is_string() && rewritten.get("model").is_none(),
            "{text}"
        );
    }
    let kinds = async |kind| {
        store.list(&Filter { kind: Some(kind), ..Filter::default() }, None, 10).await.unwrap().len()
    };
    assert_eq!(
        [
            kinds(SubjectKind::Model).await,
            kinds(SubjectKind::Part).await,
            kinds(SubjectKind::Import).await
        ],
        [1, 2, 1]
    );
    let named = async |name: &str| {
        store
            .list(&Filter { model: Some(name.into()), ..Filter::default() }, None, 10)
            .await
            .unwrap()
            .len()
    };
    assert_eq!(
        [named("tiny").await, named("go").await, named("a").await],
        [3, 0, 0],
        "commands and captures name no model"
    );
    assert_eq!(store.claim_import("w", LEASE).await.unwrap().unwrap().id, stored[4].0);
    assert!(store.claim_import("w", LEASE).await.unwrap().is_none());
    let mut claimed = Vec::new();
    while let Some(run) = store.claim("w", &["cpu"], LEASE).await.unwrap() {
        claimed.push(run.id);
    }
    assert_eq!(claimed, stored[..4].iter().map(|(id, _)| *id).collect::<Vec<_>>());
}

#[tokio::test]
async fn processes_that_open_a_new_database_at_once_all_open_it() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("llmprof.db");
        let open = async || Store::open(&path).await.map(|_| ());
        let (first, second, third) = tokio::join!(open(), open(), open());
        for opened in [first, second, third] {
            opened.unwrap();
        }
    }
}

#[tokio::test]
async fn accepted_regressions_become_gates_and_messages_keep_their_ids() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llmprof.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut old = SqliteConnection::connect_with(&options).await.unwrap();
    let before = migrator().iter().filter(|it| it.version < 150).cloned().collect();
    Migrator::with_migrations(before).run(&mut old).await.unwrap();
    let [first, second, third] = [(); 3].map(|()| RunId::now());
    for run in [first, second, third] {
        sqlx::query(
            "insert into runs (id, name, priority, spec, state, queued_at)
             values (?, 'a', 0, '{}', 'succeeded', 1)",
        )
        .bind(key(&run))
        .execute(&mut old)
        .await
        .unwrap();
    }
    // One gate of two runs, and another one a minute later.
    for (run, at) in [(first, 1_000_001), (second, 1_000_004), (third, 1_061_000)] {
        sqlx::query(
            "insert into accepted_regressions (baseline, run_id, reason, at, by)
             values ('main', ?, 'a \"trade\"', ?, 'ann')",
        )
        .bind(key(&run))
        .bind(at)
        .execute(&mut old)
        .await
        .unwrap();
    }
    let messages = "insert into webhooks values ('t'), ('u');
        insert into deliveries (message_id, run_id, target, body, created_at, next_at)
        values ('m', x'00000000000000000000000000000001', 't', '{}', 1, 1),
            ('n', x'00000000000000000000000000000001', 'u', '{}', 1, 1);
        delete from deliveries where message_id = 'n'";
    sqlx::raw_sql(messages).execute(&mut old).await.unwrap();
    old.close().await.unwrap();

    let store = Store::open(&path).await.unwrap();
    let gates = store.gates(GateFilter::default(), 9).await.unwrap();
    let runs = |at: usize| {
        let report: serde_json::Value = serde_json::from_str(&gates[at].report).unwrap();
        assert_eq!(
            (&report["accepted"], &report["verdict"]),
            (&"a \"trade\"".into(), &"regression".into())
        );
        report["runs"].clone()
    };
    assert_eq!(gates.len(), 2);
    assert_eq!(
        [runs(0), runs(1)],
        [serde_json::json!([third]), serde_json::json!([first, second])]
    );
    assert_eq!(
        (gates[1].at.as_str(), gates[1].by.as_deref()),
        ("1970-01-01T00:16:40.001Z", Some("ann"))
    );
    let kept = store.deliveries(None, 9).await.unwrap();
    assert_eq!((kept.len(), kept[0].delivery.id), (1, 1));
    let event = WebhookEvent::GateFailed;
    store.set_webhooks(&["t".into()], &[event]).await.unwrap();
    let message = EventMessage { event, run: first, body: serde_json::Map::new() };
    let gate = NewGate { baseline: "main", accepted: None, report: "{}", by: None };
    store.add_gate(gate, Some(&message)).await.unwrap();
    assert_eq!(store.deliveries(None, 9).await.unwrap()[0].delivery.id, 3, "2 was used");
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llmprof.db");
    drop(Store::open(&path).await.unwrap());
    let options = SqliteConnectOptions::new().filename(&path);
    let mut database = SqliteConnection::connect_with(&options).await.unwrap();
    let newer = "insert into _sqlx_migrations (version, description, success, checksum,
        execution_time) values (9000, 'newer', true, x'00', 0)";
    sqlx::query(newer).execute(&mut database).await.unwrap();
    let error = Store::open(&path).await.unwrap_err().to_string();
    assert!(error.contains("has migration 9000 of a newer version"), "{error}");
    assert!(error.contains("llmprof restore"), "{error}");
    let versions: i64 = sqlx::query_scalar("select count(*) from _sqlx_migrations")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(usize::try_from(versions).unwrap(), migrator().iter().count() + 1);
}
