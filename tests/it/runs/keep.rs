//! Retention over HTTP: pins, plans, and packed files in responses.

use std::fs;

use axum::http::{Method, header};
use llmprof_core::domain::{run_files::ArtifactRecord, state::RunState};
use llmprof_service::{artifact::packed, runtime::work::SlicedWork};
use serde_json::{Value, json};

use crate::api::router::Api;

/// An API with one ended run that has an export and a log.
async fn with_raw() -> (Api, String, Vec<ArtifactRecord>) {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let rows: String = (0..40_000).map(|row| format!("row {row}\n")).collect();
    let files = [
        ("nsys/run.sqlite", rows.as_str()),
        ("logs/nsys.stderr.log", &rows[..100_000]),
        ("report.md", "# report"),
    ];
    api.end(&run, RunState::Succeeded, &files).await;
    let artifacts = api.store.artifacts(run.id).await.unwrap();
    (api, id, artifacts)
}

fn pack_all(api: &Api, id: &str, artifacts: &[ArtifactRecord]) {
    let raw: Vec<_> = artifacts.iter().filter(|artifact| packed::is_raw(artifact)).collect();
    assert_eq!(raw.len(), 2);
    for artifact in raw {
        let packing = api.folder(id).join("..");
        let done =
            packed::pack(&api.folder(id), artifact, &packing, &SlicedWork::default()).unwrap();
        assert!(matches!(done, packed::PackOutcome::Packed(_)), "{done:?}");
        assert!(!api.folder(id).join(&artifact.path).exists());
    }
}

#[tokio::test]
async fn a_packed_file_is_served_unpacked_in_full_in_ranges_and_in_the_bundle() {
    let (api, id, artifacts) = with_raw().await;
    let path = format!("/runs/{id}/artifacts/nsys/run.sqlite");
    let (whole, bundle) = (api.get(&path).await, api.get(&format!("/runs/{id}/bundle")).await);
    pack_all(&api, &id, &artifacts);
    let again = api.get(&path).await;
    assert_eq!((again.status, again.body == whole.body), (whole.status, true));
    for name in
        [header::ETAG, header::CONTENT_LENGTH, header::CONTENT_TYPE, header::CONTENT_DISPOSITION]
    {
        assert_eq!(again.header(name.clone()), whole.header(name.clone()), "{name}");
    }
    assert_eq!(api.get(&format!("/runs/{id}/bundle")).await.body, bundle.body);
    let part = api.ask(Method::GET, &path, &[("range", "bytes=200000-200099")], "").await;
    assert_eq!((part.status.as_u16(), part.body.as_slice()), (206, &whole.body[200_000..200_100]));
    assert_eq!(
        api.ask(Method::GET, &path, &[("range", "bytes=-7")], "").await.body,
        whole.body[whole.body.len() - 7..]
    );
    let head = api.ask(Method::HEAD, &path, &[], "").await;
    assert_eq!(
        (head.status.as_u16(), head.header(header::CONTENT_LENGTH)),
        (200, whole.body.len().to_string().as_str())
    );
    assert_eq!(
        api.ask(Method::GET, &path, &[("if-none-match", again.header(header::ETAG))], "")
            .await
            .status,
        304
    );
}

#[tokio::test]
async fn a_truncated_packed_file_ends_its_response_early() {
    let (api, id, artifacts) = with_raw().await;
    pack_all(&api, &id, &artifacts);
    let packed = api.folder(&id).join("nsys/run.sqlite.zst");
    let bytes = fs::read(&packed).unwrap();
    fs::write(&packed, &bytes[..bytes.len() / 2]).unwrap();
    let get = |path: &str| {
        axum::http::Request::get(format!("/runs/{id}/{path}"))
            .body(axum::body::Body::empty())
            .unwrap()
    };
    assert!(api.read_all(get("artifacts/nsys/run.sqlite")).await.is_err());
    assert!(api.read_all(get("bundle")).await.is_err());
    // Not even a link that was put in its place is followed.
    fs::remove_file(&packed).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &packed).unwrap();
    assert_eq!(
        api.read_all(get("artifacts/nsys/run.sqlite")).await.unwrap().error(),
        (500, "file_damaged".into())
    );
}

#[tokio::test]
async fn runs_of_a_part_displace_no_run_of_its_model() {
    let api = Api::configured(|config| config.retention.keep_newest = 1).await;
    let ended = async |settings: Value| {
        let id = api.submit(settings).await;
        let run = api.start().await;
        api.end(&run, RunState::Succeeded, &[("report.md", "# report")]).await;
        id
    };
    ended(json!({})).await;
    let part = json!({ "target": "decoder.layers.3.self_attn" });
    let mut planned = json!({ "model": "deepseek-ocr-tiny", "dry_run": true });
    planned["target"] = part["target"].clone();
    let plan = api.post(&planned).await;
    let unknown = "no estimate: no run of decoder.layers.3.self_attn of deepseek-ocr-tiny in mode";
    assert!(plan.text().contains(unknown), "a model's runs take longer: {}", plan.text());
    let displaced = ended(part.clone()).await;
    assert_eq!(api.get("/retention").await.json()["pack"], json!([]));
    ended(part).await;
    let planned = &api.get("/retention").await.json()["pack"];
    assert_eq!((planned.as_array().unwrap().len(), &planned[0]["run_id"]), (1, &json!(displaced)));
    assert_eq!(planned[0]["name"], "decoder.layers.3.self_attn of deepseek-ocr-tiny");
    let listed = api.get("/runs?limit=1").await.json();
    assert_eq!(listed["runs"][0]["name"], planned[0]["name"]);
}

#[tokio::test]
async fn planned_removals_are_listed_and_a_pinned_run_stays() {
    let api = Api::configured(|config| {
        (config.retention.keep_newest, config.retention.max_runs) = (1, 1)
    })
    .await;
    let (old, new) = (api.ended().await, api.ended().await);
    let ids = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|due| due["run_id"].as_str().unwrap().to_owned())
            .collect()
    };
    let retention = api.get("/retention").await.json();
    assert_eq!(
        (ids(&retention["pack"]), ids(&retention["remove"])),
        (vec![old.clone()], vec![old.clone()])
    );
    assert!(
        retention["remove"][0]["why"].as_str().unwrap().contains("more than 1 runs"),
        "{retention}"
    );
    assert_eq!((&retention["runs"], &retention["notes"]), (&json!(2), &json!([])));
    let pin = format!("/runs/{old}/pin");
    assert_eq!(api.ask(Method::POST, &pin, &[], "").await.json()["pinned"], true);
    let retention = api.get("/retention").await.json();
    assert_eq!(
        (
            ids(&retention["pack"]).len(),
            ids(&retention["remove"]).len(),
            retention["notes"].as_array().unwrap().len()
        ),
        (0, 0, 1)
    );
    assert_eq!(api.get("/runs").await.json()["runs"][1]["pinned"], true);
    assert_eq!(api.ask(Method::DELETE, &pin, &[], "").await.json()["pinned"], false);
    assert_eq!(ids(&api.get("/retention").await.json()["pack"]), [old]);
    let unknown = "/runs/019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10/pin";
    assert_eq!(
        api.ask(Method::POST, unknown, &[], "").await.error(),
        (404, "run_not_found".into())
    );
    assert_eq!(
        api.ask(Method::POST, "/runs/7/pin", &[], "").await.error(),
        (400, "invalid_parameter".into())
    );
    assert_eq!(api.get(&format!("/runs/{new}")).await.status, 200);
}

#[tokio::test]
async fn a_nearly_full_disk_refuses_submissions_only() {
    let api = Api::configured(|config| config.limits.free_bytes = u64::MAX).await;
    let refused = api.post(&json!({ "model": "deepseek-ocr-tiny" })).await;
    assert_eq!(refused.error(), (507, "disk_full".into()));
    assert!(refused.text().contains("limits.free_bytes"), "{}", refused.text());
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_deleted_run_leaves_no_files() {
    let api = Api::new().await;
    let (id, waiting) = (api.ended().await, api.submit(json!({})).await);
    assert_eq!(api.ask(Method::DELETE, &format!("/runs/{id}"), &[], "").await.status, 204);
    assert!(fs::read_dir(api.folder(&id).parent().unwrap()).unwrap().next().is_none());
    assert_eq!(
        api.ask(Method::DELETE, &format!("/runs/{waiting}"), &[], "").await.error(),
        (409, "run_active".into())
    );
}
