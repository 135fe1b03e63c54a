//! Imports over HTTP: captures become runs with reports, comparisons and alignments.

use std::{fs, path::Path, sync::Arc, time::Duration};

use axum::{body::Body, http::Method};
use llmprof_service::{collect::Collector, config, http, store::Role};
use rusqlite::Connection;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::tempdir;

use crate::{
    api::router::{Answer, Api},
    parse::sums::llmprof,
    support::{
        captures::{self, E2E, MOCK},
        service::{self, Service, Setup, command, script},
    },
};

pub const META: &str = "create table META_DATA_EXPORT (name text, value text);
    insert into META_DATA_EXPORT values ('EXPORT_PRODUCT_VERSION', '2025.3.2.0'),
        ('EXPORT_SCHEMA_VERSION', '3.20.3');";
pub const PACKED: (&str, &str) = ("content-type", "application/zstd");
pub const PLAIN: (&str, &str) = ("content-type", "application/octet-stream");

/// The bytes of a compressed fixture.
pub fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(name))
        .unwrap()
}

pub fn timeline(name: &str) -> Vec<u8> {
    fixture(&format!("{name}.sqlite.zst"))
}

/// A database created by SQL.
pub fn database(sql: &str) -> Vec<u8> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("made.sqlite");
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    fs::read(path).unwrap()
}

/// A form with named files and texts.
pub fn form(files: &[(&str, &[u8])], texts: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, text) in texts {
        body.extend(
            format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
                .bytes(),
        );
    }
    for (name, bytes) in files {
        body.extend(
            format!(
                "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
            )
            .bytes(),
        );
        body.extend_from_slice(bytes);
        body.extend(b"\r\n");
    }
    body.extend(b"--b--\r\n");
    body
}

pub const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=b");

pub async fn send(api: &Api, query: &str, kind: (&str, &str), body: impl Into<Body>) -> Answer {
    api.ask(Method::POST, &format!("/captures{query}"), &[kind], body).await
}

/// The id of an accepted import.
#[track_caller]
pub fn id(answer: &Answer) -> String {
    assert_eq!(answer.status, 202, "{}", answer.text());
    answer.json()["run_id"].as_str().unwrap().to_owned()
}

/// Imports the pair: the whole model with counters, as a form, and the mock as a plain body.
async fn import_pair(api: &Api) -> [String; 2] {
    let counters = zstd::decode_all(&*fixture("hf-llama-decode.ncu-raw.csv.zst")).unwrap();
    let traversal = "../../../../e2e.sqlite";
    let fields = [
        ("include_ranges", "measured"),
        ("label", "hf"),
        ("model", "hf-llama"),
        ("stage", "generation=decode_all"),
    ];
    let files: [(&str, &[u8]); 2] = [(traversal, &timeline(E2E)), ("raw.csv", &counters)];
    let e2e = id(&send(api, "", FORM, form(&files, &fields)).await);
    let mock = id(&send(api, "?name=mock.sqlite.zst&label=hf", PACKED, timeline(MOCK)).await);
    [e2e, mock]
}

#[tokio::test]
async fn queued_imports_are_executed_without_a_device() {
    let api = Api::new().await;
    // Queued imports are durable: the next service executes them.
    let [e2e, mock] = import_pair(&api).await;
    let run = api.get(&format!("/runs/{e2e}")).await.json();
    let subject = &run["spec"]["subject"];
    assert_eq!((&subject["kind"], &run["state"]), (&json!("import"), &json!("queued")));
    assert_eq!(
        (&subject["passes"], &subject["workload"]),
        (&json!(null), &json!(null)),
        "imports have neither"
    );
    assert_eq!(subject["files"][0]["name"], "e2e.sqlite");
    assert_eq!(subject["files"][1]["path"], "ncu/page-1.csv");
    assert_eq!(api.get("/queue").await.json()["waiting"], json!([]), "imports need no device");

    // The folder of an upload whose service stopped before the commit.
    let orphan = api.folder("019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10");
    fs::create_dir(&orphan).unwrap();
    fs::write(orphan.join("import.json"), "{}").unwrap();

    let folder = tempdir().unwrap();
    let busy = Setup { runner: script(folder.path(), "sleep 600"), ..Setup::default() };
    // The pass of the other run never ends: the imports run next to it after their longest wait.
    let mut impatient = command(api.data(), &busy);
    impatient.env("LLMPROF__WORKER__BACKGROUND_WAIT_S", "0");
    let service = Service::spawn(&mut impatient, api.data());
    let blocks = service.submit(json!({})).await;
    let (e2e, mock) = (service.end(&e2e).await, service.end(&mock).await);
    assert!(!orphan.exists());
    for run in [&e2e, &mock] {
        assert_eq!(
            (&run["state"], &run["spec"]["subject"]["kind"]),
            (&json!("succeeded"), &json!("import")),
            "{run:#}"
        );
    }
    assert_eq!((&mock["name"], &e2e["name"]), (&json!("mock.sqlite.zst"), &json!("hf-llama")));
    let models = [&mock, &e2e].map(|run| run["spec"]["subject"]["model"].clone());
    assert_eq!(models, [json!(null), json!("hf-llama")], "a file's name is not a model");
    let steps: Vec<_> =
        e2e["steps"].as_array().unwrap().iter().map(|it| it["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["preflight", "analyze", "report"]);
    assert_ne!(service.json(&format!("/runs/{blocks}")).await["state"], "succeeded");
    let listed = |runs: Value| {
        runs["runs"].as_array().unwrap().iter().map(|it| it["run_id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        listed(service.json("/runs?kind=import&label=hf").await),
        [mock["run_id"].clone(), e2e["run_id"].clone()]
    );
    assert_eq!(listed(service.json("/runs?kind=model").await), [json!(blocks)]);
}

#[tokio::test]
async fn imports_are_reported_compared_and_aligned() {
    let api = Api::new().await;
    let [e2e, mock] = import_pair(&api).await;
    let service = Service::start(api.data(), &Setup::default());
    for run in [&e2e, &mock] {
        assert_eq!(service.end(run).await["state"], "succeeded");
    }
    let report = service.json(&format!("/runs/{e2e}/artifacts/report.json")).await;
    assert_eq!(report["only_traced"], true);
    let rows = service.json(&format!("/runs/{e2e}/tables/counters")).await;
    assert!(rows["total"].as_u64().unwrap() > 0, "{rows:#}");
    let kernels = service.json(&format!("/runs/{e2e}/tables/kernels")).await;
    assert!(
        kernels["rows"].as_array().unwrap().iter().any(|row| row["stage"] == "generation"),
        "{kernels:#}"
    );
    let text = api
        .ask(Method::GET, &format!("/runs/{e2e}/report"), &[("accept", "text/markdown")], "")
        .await
        .text();
    assert!(
        text.contains("e2e.sqlite (timeline,") && text.contains("raw.csv (counters,"),
        "{text}"
    );
    assert_eq!(api.get(&format!("/runs/{mock}/diff/{e2e}")).await.status, 200);
    assert_eq!(api.get(&format!("/runs/{mock}/bundle")).await.status, 200);

    let attention = json!({
        "mock": mock, "e2e": e2e, "range": "decoder.self_attn", "include_ranges": ["measured"],
        "stage": "decode", "thresholds": { "kernel_time_pct": 30.0 },
    });
    let (status, queued) = service.post("/alignments", &attention).await;
    assert_eq!(status, 202, "{queued}");
    let at = queued["links"]["self"].as_str().unwrap();
    service.get(&format!("{at}/events")).await.text().await.unwrap();
    assert_eq!(service.json(at).await["verdict"], "pass");
}

/// The capture of the mock without every second kernel.
fn incomplete() -> Vec<u8> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("incomplete.sqlite");
    captures::capture(MOCK, &path, "delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid % 2")
        .unwrap();
    fs::read(path).unwrap()
}

#[tokio::test]
async fn an_import_with_lost_kernels_ends_partial_with_a_critical_finding() {
    let api = Api::new().await;
    let run = id(&send(&api, "?name=incomplete.sqlite", PLAIN, incomplete()).await);
    let service = Service::start(api.data(), &Setup::default());
    let ended = service.end(&run).await;
    assert_eq!(ended["state"], "partial", "{ended:#}");
    let lost = |it: &Value| it["id"] == "kernels_lost" && it["severity"] == "critical";
    assert!(ended["findings"].as_array().unwrap().iter().any(lost), "{ended:#}");
    assert_eq!(
        service.json(&format!("/runs/{run}/artifacts/report.json")).await["state"],
        "partial"
    );
}

#[tokio::test]
async fn counters_alone_are_a_run_and_hostile_schemas_are_not_executed() {
    let api = Api::new().await;
    let page = id(&send(&api, "", PACKED, fixture("hf-llama-decode.ncu-details.csv.zst")).await);
    let crafted = database(&format!(
        "{META} create table real (start int);
         create view CUPTI_ACTIVITY_KIND_KERNEL as
            with recursive n(i) as (select 1 union all select i + 1 from n)
            select i as start from n;
         create table NVTX_EVENTS (start int, end int, eventType int, text text, globalTid int,
             textId int, domainId int as (1 / 0));
         create trigger t after insert on real begin delete from META_DATA_EXPORT; end;"
    ));
    let crafted = id(&send(&api, "?name=crafted.sqlite", PLAIN, crafted).await);
    let service = Service::start(api.data(), &Setup::default());
    let (page, crafted) = (service.end(&page).await, service.end(&crafted).await);
    assert_eq!(
        (&page["state"], &crafted["state"]),
        (&json!("succeeded"), &json!("succeeded")),
        "{page:#} {crafted:#}"
    );
    let id = crafted["run_id"].as_str().unwrap();
    assert_eq!(service.json(&format!("/runs/{id}/tables/kernels")).await["total"], 0);
}

#[tokio::test]
async fn queued_and_ended_imports_count_towards_the_disk_quota() {
    let share = zstd::decode_all(&*timeline(MOCK)).unwrap().len() as u64;
    let settings = config::AccessSettings {
        tokens: config::TokenPolicy::Required,
        disk_bytes_per_owner: share,
        ..Default::default()
    };
    let api = Api::with(Arc::new(http::AccessControl::new(&settings, false, false, None))).await;
    let mut tokens = Vec::new();
    for name in ["ann", "bob"] {
        let text = format!("llmprof_{name}");
        let hash = Sha256::digest(text.as_bytes()).into();
        api.store.create_token(name, Role::Submitter, &hash, None).await.unwrap().unwrap();
        tokens.push(format!("Bearer {text}"));
    }
    let send = async |who: &str| {
        let headers = [PACKED, ("authorization", who)];
        api.ask(Method::POST, "/captures?name=mock.sqlite.zst", &headers, timeline(MOCK)).await
    };
    // The uncompressed size counts.
    let first = id(&send(&tokens[0]).await);
    assert!((timeline(MOCK).len() as u64) < share / 2);
    let refused = send(&tokens[0]).await;
    assert_eq!(refused.error(), (507, "disk_quota".into()));
    assert!(refused.text().contains("ann"), "{}", refused.text());
    assert_eq!(fs::read_dir(api.data().join("incoming")).unwrap().count(), 0);
    assert_eq!(
        fs::read_dir(api.data().join("runs")).unwrap().count(),
        1,
        "a refused import leaves no folder"
    );
    id(&send(&tokens[1]).await);
    // Cancelled in the queue, it counts no longer.
    let who = [("authorization", tokens[0].as_str())];
    assert_eq!(api.ask(Method::POST, &format!("/runs/{first}/cancel"), &who, "").await.status, 200);
    let second = id(&send(&tokens[0]).await);
    let mut command = command(api.data(), &Setup::default());
    command.env("LLMPROF__ACCESS__TOKENS", "off");
    let service = Service::spawn(&mut command, api.data());
    assert_eq!(service.end(&second).await["state"], "succeeded");
    assert_eq!(
        send(&tokens[0]).await.error(),
        (507, "disk_quota".into()),
        "an ended import counts like any run"
    );
    assert_eq!(api.ask(Method::DELETE, &format!("/runs/{second}"), &who, "").await.status, 204);
    id(&send(&tokens[0]).await);
}

#[tokio::test]
async fn an_nsys_report_is_exported_by_the_hosts_nsys() {
    let found = Collector::find(None, None, None);
    let Some(nsys) = found.nsys else {
        assert!(
            std::env::var_os("LLMPROF_REQUIRE_NSYS").is_none(),
            "nsys is required here and not installed"
        );
        return eprintln!("skipped: nsys is not installed (scripts/install-nsight.sh installs it)");
    };
    let dir = tempdir().unwrap();
    let stem = dir.path().join("true");
    let profile = [
        "profile",
        "--trace=nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--stats=false",
        "--output",
    ];
    // On a busy machine, nsys sometimes fails to connect to its helper.
    let made = (0..5).any(|_| {
        std::process::Command::new(&nsys).args(profile).arg(&stem).arg("true").output().unwrap();
        stem.with_extension("nsys-rep").exists()
    });
    assert!(made, "nsys left no report");
    let made = stem.with_extension("nsys-rep");
    let (good, page, error) = llmprof(&[made.to_str().unwrap()]);
    assert!(good && page.starts_with("# Profile of true\n"), "{error}");
    let data = tempdir().unwrap();
    let service = Service::start(data.path(), &Setup { nsys, ..Setup::default() });
    let report = fs::read(stem.with_extension("nsys-rep")).unwrap();
    let send = async |bytes: Vec<u8>| {
        let request =
            service::client().post(format!("{}/captures?name=true.nsys-rep", service.base));
        let answer = request
            .header(PLAIN.0, PLAIN.1)
            .timeout(Duration::from_secs(120))
            .body(bytes)
            .send()
            .await
            .unwrap();
        let answer: Value = answer.json().await.unwrap();
        service.end(answer["run_id"].as_str().unwrap_or_else(|| panic!("{answer}"))).await
    };
    let broken = send(report[..200].to_vec()).await;
    assert_eq!(
        (&broken["state"], &broken["failed_step"]),
        (&json!("failed"), &json!("nsys")),
        "{broken:#}"
    );
    let complete = send(report).await;
    assert_eq!(complete["state"], "succeeded", "{complete:#}");
    let listed =
        service.json(&format!("/runs/{}/artifacts", complete["run_id"].as_str().unwrap())).await;
    let paths: Vec<_> = listed["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["path"].as_str().unwrap())
        .collect();
    assert!(
        ["nsys/run.nsys-rep", "nsys/run.sqlite", "report.html"].iter().all(|it| paths.contains(it)),
        "{paths:?}"
    );
}

/// Prints the page next to it; does not read reports of version 2.
const NCU: &str = r#"
if grep -q 2 "$2"; then echo '==ERROR== Unknown report version' >&2; exit 1; fi
cat "$HERE/page.csv""#;

#[tokio::test]
async fn reports_of_ncu_are_printed_by_the_hosts_ncu() {
    let dir = tempdir().unwrap();
    let page = zstd::decode_all(&fixture("hf-llama-decode.ncu-raw.csv.zst")[..]).unwrap();
    fs::write(dir.path().join("page.csv"), &page).unwrap();
    let ncu = script(dir.path(), &format!("HERE={}{NCU}", dir.path().display()));
    let mut command = command(&dir.path().join("data"), &Setup::default());
    let service = Service::spawn(command.env("LLMPROF__TOOLS__NCU", ncu), dir.path());
    let export = timeline("hf-llama-e2e");
    let (report, newer) = (&b"NVR\0 version 1"[..], &b"NVR\0 version 2"[..]);
    let send = async |files: &[(&str, &[u8])]| {
        let request = service::client().post(format!("{}/captures", service.base));
        let request = request.header("content-type", "multipart/form-data; boundary=b");
        let answer = request.body(form(files, &[])).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        let run = service.end(answer["run_id"].as_str().unwrap_or_else(|| panic!("{answer}")));
        run.await
    };
    let counters = async |run: &Value| {
        let path = format!("/runs/{}/tables/counters", run["run_id"].as_str().unwrap());
        service.json(&path).await["rows"].clone()
    };
    let with_page = send(&[("a.zst", &export), ("page.csv", &page)]).await;
    assert_eq!(with_page["state"], "succeeded", "{with_page:#}");
    let by_hand = counters(&with_page).await;
    assert!(!by_hand.as_array().unwrap().is_empty());
    let with_report = send(&[("a.ncu-rep", report), ("b.zst", &export)]).await;
    assert_eq!(with_report["state"], "succeeded", "{with_report:#}");
    assert_eq!(counters(&with_report).await, by_hand);
    let with_newer = send(&[("a.zst", &export), ("b.ncu-rep", newer)]).await;
    assert_eq!(with_newer["state"], "partial", "{with_newer:#}");
    assert_eq!(counters(&with_newer).await, json!([]));
    let findings = with_newer["findings"].as_array().unwrap();
    let found = findings.iter().find(|it| it["id"] == "ncu_report_unreadable");
    assert_eq!(found.unwrap()["evidence"]["ncu"], "==ERROR== Unknown report version");
    let alone = send(&[("a.ncu-rep", newer)]).await;
    assert_eq!((&alone["state"], &alone["failed_step"]), (&json!("failed"), &json!("ncu")));
}
