//! Imports over HTTP: captures become runs with all that they allow, and what is no capture leaves nothing behind.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    http::Method,
};
use llmprof::{collect::Collector, config, http, store::Role};
use rusqlite::Connection;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::tempdir;

use crate::{
    align::{E2E, MOCK},
    api::{Answer, Api},
    service::{Service, Setup, command, script},
};

const META: &str = "create table META_DATA_EXPORT (name text, value text);
    insert into META_DATA_EXPORT values ('EXPORT_PRODUCT_VERSION', '2025.3.2.0'), ('EXPORT_SCHEMA_VERSION', '3.20.3');";
const PACKED: (&str, &str) = ("content-type", "application/zstd");
const PLAIN: (&str, &str) = ("content-type", "application/octet-stream");

/// A fixture as it lies, packed.
fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(name)).unwrap()
}

fn timeline(name: &str) -> Vec<u8> {
    fixture(&format!("{name}.sqlite.zst"))
}

/// A database that plain SQL made.
fn database(sql: &str) -> Vec<u8> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("made.sqlite");
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    fs::read(path).unwrap()
}

/// A form of files, by name, and of texts.
fn form(files: &[(&str, &[u8])], texts: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, text) in texts {
        body.extend(format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n").bytes());
    }
    for (name, bytes) in files {
        body.extend(format!("--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n").bytes());
        body.extend_from_slice(bytes);
        body.extend(b"\r\n");
    }
    body.extend(b"--b--\r\n");
    body
}

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=b");

async fn send(api: &Api, query: &str, kind: (&str, &str), body: impl Into<Body>) -> Answer {
    api.ask(Method::POST, &format!("/captures{query}"), &[kind], body).await
}

/// The id of an import that was taken.
#[track_caller]
fn id(answer: &Answer) -> String {
    assert_eq!(answer.status, 202, "{}", answer.text());
    answer.json()["run_id"].as_str().unwrap().to_owned()
}

/// Fails if anything of a refused import is left.
async fn assert_nothing_left(api: &Api, what: &str) {
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]), "{what}");
    for folder in ["incoming", "runs"] {
        assert_eq!(fs::read_dir(api.data().join(folder)).unwrap().count(), 0, "{what}: {folder}");
    }
}

#[tokio::test]
async fn captures_become_runs_that_are_read_compared_and_aligned_and_wait_for_no_device() {
    let api = Api::new().await;
    // Imports that come while no worker runs are durable: the next service carries them out.
    let (counters, traversal) =
        (zstd::decode_all(&*fixture("hf-llama-decode.ncu-raw.csv.zst")).unwrap(), "../../../../e2e.sqlite");
    let said = [("within", "measured"), ("label", "hf"), ("model", "hf-llama"), ("stage", "generation=decode_all")];
    let e2e = id(&send(&api, "", FORM, form(&[(traversal, &timeline(E2E)), ("raw.csv", &counters)], &said)).await);
    let mock = id(&send(&api, "?name=mock.sqlite.zst&label=hf", PACKED, timeline(MOCK)).await);
    let run = api.get(&format!("/runs/{e2e}")).await.json();
    let subject = &run["spec"]["subject"];
    assert_eq!((&subject["kind"], &run["state"]), (&json!("import"), &json!("queued")));
    assert_eq!((&subject["passes"], &subject["workload"]), (&json!(null), &json!(null)), "it has neither");
    assert_eq!(subject["files"][0]["name"], "e2e.sqlite");
    assert_eq!(subject["files"][1]["path"], "ncu/page-1.csv");
    assert_eq!(api.get("/queue").await.json()["waiting"], json!([]), "it waits for no device");

    // What a service left that ended between the last byte and the commit.
    let orphan = api.folder("019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10");
    fs::create_dir(&orphan).unwrap();
    fs::write(orphan.join("import.json"), "{}").unwrap();

    let folder = tempdir().unwrap();
    let busy = Setup { runner: script(folder.path(), "sleep 600"), ..Setup::default() };
    let service = Service::start(api.data(), &busy);
    let blocks = service.submit(json!({})).await;
    let (e2e, mock) = (service.end(&e2e).await, service.end(&mock).await);
    assert!(!orphan.exists());
    for run in [&e2e, &mock] {
        assert_eq!((&run["state"], &run["spec"]["subject"]["kind"]), (&json!("succeeded"), &json!("import")), "{run:#}");
    }
    assert_eq!((&mock["name"], &e2e["name"]), (&json!("mock"), &json!("hf-llama")));
    let models = [&mock, &e2e].map(|run| run["spec"]["subject"]["model"].clone());
    assert_eq!(models, [json!(null), json!("hf-llama")], "the name of a file is not that of a model");
    let steps: Vec<_> = e2e["steps"].as_array().unwrap().iter().map(|it| it["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["preflight", "analyze", "report"]);
    assert_ne!(service.json(&format!("/runs/{blocks}")).await["state"], "succeeded");

    let [e2e, mock] = [e2e, mock].map(|run| run["run_id"].as_str().unwrap().to_owned());
    let report = service.json(&format!("/runs/{e2e}/artifacts/report.json")).await;
    assert_eq!(report["only_traced"], true);
    let rows = service.json(&format!("/runs/{e2e}/tables/counters")).await;
    assert!(rows["total"].as_u64().unwrap() > 0, "{rows:#}");
    let kernels = service.json(&format!("/runs/{e2e}/tables/kernels")).await;
    assert!(kernels["rows"].as_array().unwrap().iter().any(|row| row["stage"] == "generation"), "{kernels:#}");
    let text = api.ask(Method::GET, &format!("/runs/{e2e}/report"), &[("accept", "text/markdown")], "").await.text();
    assert!(text.contains("e2e.sqlite (timeline,") && text.contains("raw.csv (counters,"), "{text}");
    assert_eq!(api.get(&format!("/runs/{mock}/diff/{e2e}")).await.status, 200);
    assert_eq!(api.get(&format!("/runs/{mock}/bundle")).await.status, 200);
    let listed = |runs: Value| runs["runs"].as_array().unwrap().iter().map(|it| it["run_id"].clone()).collect::<Vec<_>>();
    assert_eq!(listed(service.json("/runs?kind=import&label=hf").await), [json!(mock), json!(e2e)]);
    assert_eq!(listed(service.json("/runs?kind=model").await), [json!(blocks)]);

    let attention = json!({ "mock": mock, "e2e": e2e, "range": "decoder.self_attn", "within": ["measured"], "stage": "decode",
                             "thresholds": { "kernel_time_pct": 30.0 } });
    let (status, queued) = service.post("/alignments", &attention).await;
    assert_eq!(status, 202, "{queued}");
    let at = queued["links"]["self"].as_str().unwrap();
    service.get(&format!("{at}/events")).await.text().await.unwrap();
    assert_eq!(service.json(at).await["verdict"], "pass");
}

/// The capture of the mock, in which every second kernel is lost.
fn spoilt() -> Vec<u8> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("spoilt.sqlite");
    crate::align::capture(MOCK, &path, "delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid % 2").unwrap();
    fs::read(path).unwrap()
}

#[tokio::test]
async fn an_import_that_lost_kernels_ends_partial_with_a_critical_finding() {
    let api = Api::new().await;
    let run = id(&send(&api, "?name=spoilt.sqlite", PLAIN, spoilt()).await);
    let service = Service::start(api.data(), &Setup::default());
    let ended = service.end(&run).await;
    assert_eq!(ended["state"], "partial", "{ended:#}");
    let lost = |it: &Value| it["id"] == "kernels_lost" && it["severity"] == "critical";
    assert!(ended["findings"].as_array().unwrap().iter().any(lost), "{ended:#}");
    assert_eq!(service.json(&format!("/runs/{run}/artifacts/report.json")).await["state"], "partial");
}

#[tokio::test]
async fn counters_alone_are_a_run_and_a_schema_that_means_harm_is_read_without_being_followed() {
    let api = Api::new().await;
    let page = id(&send(&api, "", PACKED, fixture("hf-llama-decode.ncu-details.csv.zst")).await);
    let crafted = database(&format!(
        "{META} create table real (start int);
         create view CUPTI_ACTIVITY_KIND_KERNEL as with recursive n(i) as (select 1 union all select i + 1 from n) select i as start from n;
         create table NVTX_EVENTS (start int, end int, eventType int, text text, globalTid int, textId int, domainId int as (1 / 0));
         create trigger t after insert on real begin delete from META_DATA_EXPORT; end;"
    ));
    let crafted = id(&send(&api, "?name=crafted.sqlite", PLAIN, crafted).await);
    let service = Service::start(api.data(), &Setup::default());
    let (page, crafted) = (service.end(&page).await, service.end(&crafted).await);
    assert_eq!((&page["state"], &crafted["state"]), (&json!("succeeded"), &json!("succeeded")), "{page:#} {crafted:#}");
    let id = crafted["run_id"].as_str().unwrap();
    assert_eq!(service.json(&format!("/runs/{id}/tables/kernels")).await["total"], 0);
}

#[tokio::test]
async fn what_is_no_capture_is_refused_in_one_line_and_leaves_nothing() {
    let api = Api::new().await;
    let real = zstd::decode_all(&*timeline(MOCK)).unwrap();
    let program = fs::read("/bin/true").unwrap();
    let bomb = zstd::encode_all(&vec![0; 256 << 20][..], 3).unwrap();
    let viewed = database("create view META_DATA_EXPORT as select 'EXPORT_SCHEMA_VERSION' as name, '3.20.3' as value;");
    let huge = database(
        "create table META_DATA_EXPORT (name text, value text); insert into META_DATA_EXPORT values ('a', 1);
        pragma writable_schema = on; update sqlite_schema set sql = 'create table nonsense';",
    );
    let rep = b"NVIDIA Tegra Profiler Report 1.\n\x0b\0\0".to_vec();
    for (name, bytes, says) in [
        ("empty", vec![], "empty"),
        ("renamed.sqlite", program, "a program"),
        ("renamed.sqlite", b"PK\x03\x04\0\0".to_vec(), "a zip archive"),
        ("a.gz", b"\x1f\x8b\x08\0".to_vec(), "gzip"),
        ("noise", vec![0x5a, 0, 0xff, 7], "neither"),
        ("list.csv", b"a,b\n1,2\n".to_vec(), "no page of ncu"),
        ("cut.sqlite", real[..real.len() / 2].to_vec(), "cut short"),
        ("bare.sqlite", database("create table t (a int)"), "no export of nsys"),
        ("views.sqlite", viewed, "no export of nsys"),
        ("schema.sqlite", huge, "cannot query"),
        ("run.nsys-rep", rep, "nsys export --type sqlite"),
    ] {
        let answer = send(&api, &format!("?name={name}"), PLAIN, bytes).await;
        assert_eq!(answer.error(), (422, "capture_invalid".into()), "{name}: {}", answer.text());
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(&format!("{name}: ")) && message.contains(says) && message.lines().count() == 1, "{message}");
        assert!(!message.contains(api.data().to_str().unwrap()), "{message}");
        assert_nothing_left(&api, name).await;
    }
    let answer = send(&api, "?name=a.sqlite&within=measurd", PLAIN, real.clone()).await;
    assert_eq!(answer.error(), (422, "capture_invalid".into()), "{}", answer.text());
    assert!(answer.text().contains("no range named \\\"measurd\\\"; available: measured, "), "{}", answer.text());
    assert_nothing_left(&api, "a name that it lacks").await;
    assert!(bomb.len() < 1 << 20);
    assert_eq!(send(&api, "", PACKED, bomb).await.error(), (413, "body_too_large".into()));
    let claimed = [PLAIN, ("content-length", "10737418240")];
    assert_eq!(api.ask(Method::POST, "/captures", &claimed, "").await.error(), (413, "body_too_large".into()));
    let zeros = || tokio_stream::iter(std::iter::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![0; 1 << 20]))));
    assert_eq!(send(&api, "", PLAIN, Body::from_stream(zeros())).await.error(), (413, "body_too_large".into()));
    assert_nothing_left(&api, "too large").await;
}

#[tokio::test]
async fn a_schema_of_a_hundred_thousand_tables_is_refused_in_bounded_time_and_memory() {
    let tables = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
        insert into sqlite_schema select 'table', 't' || i, 't' || i, (select rootpage from sqlite_schema), 'create table t' || i || '(a)' from n;";
    let bomb = database(&format!("{META} pragma writable_schema = on; {tables}"));
    assert!(bomb.len() < 8 << 20, "{} bytes", bomb.len());
    let data = tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let before = peak_kib(&service);
    let client = reqwest::Client::new();
    let sent = client.post(format!("{}/captures?name=bomb.sqlite", service.base)).header(PLAIN.0, PLAIN.1).body(bomb).send();
    let (start, sent) = (Instant::now(), tokio::spawn(sent));
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    while !sent.is_finished() {
        assert_eq!(service.get("/queue").await.status(), 200, "others are answered meanwhile");
        tick.tick().await;
    }
    let answer = sent.await.unwrap().unwrap();
    assert_eq!(answer.status(), 422);
    let message = answer.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("bomb.sqlite: ") && message.lines().count() == 1 && message.contains("any export"), "{message}");
    // Ten seconds are its own bound; a machine that builds is slow.
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
    let took = peak_kib(&service) - before;
    assert!(took < 512 << 10, "{took} KiB");
    assert_eq!(fs::read_dir(data.path().join("incoming")).unwrap().count(), 0);
}

/// Most memory that the service ever had, KiB.
fn peak_kib(service: &Service) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", service.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn imports_count_for_their_owners_share_of_the_disk_while_they_wait_and_when_they_have_ended() {
    let share = zstd::decode_all(&*timeline(MOCK)).unwrap().len() as u64;
    let settings = config::Access { tokens: config::Asked::Required, disk_bytes_per_owner: share, ..Default::default() };
    let api = Api::with(Arc::new(http::Access::new(&settings, false, false, None))).await;
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
    // Packed it is small; what counts is what is kept of it.
    let first = id(&send(&tokens[0]).await);
    assert!((timeline(MOCK).len() as u64) < share / 2);
    let refused = send(&tokens[0]).await;
    assert_eq!(refused.error(), (507, "disk_quota".into()));
    assert!(refused.text().contains("ann"), "{}", refused.text());
    assert_eq!(fs::read_dir(api.data().join("incoming")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(api.data().join("runs")).unwrap().count(), 1, "of what was refused nothing stays");
    id(&send(&tokens[1]).await);
    // Cancelled before it began, it takes nothing.
    let who = [("authorization", tokens[0].as_str())];
    assert_eq!(api.ask(Method::POST, &format!("/runs/{first}/cancel"), &who, "").await.status, 200);
    let second = id(&send(&tokens[0]).await);
    let mut command = command(api.data(), &Setup::default());
    command.env("LLMPROF__ACCESS__TOKENS", "off");
    let service = Service::spawn(&mut command, api.data());
    assert_eq!(service.end(&second).await["state"], "succeeded");
    assert_eq!(send(&tokens[0]).await.error(), (507, "disk_quota".into()), "ended, it counts as any run");
    assert_eq!(api.ask(Method::DELETE, &format!("/runs/{second}"), &who, "").await.status, 204);
    id(&send(&tokens[0]).await);
}

#[tokio::test]
async fn a_form_that_is_broken_off_endless_or_says_too_much_leaves_nothing() {
    let api = Api::new().await;
    let real = timeline(MOCK);
    let invalid = (422, "capture_invalid".to_owned());
    let half = form(&[("a.sqlite", &real)], &[])[..real.len() / 2].to_vec();
    assert_eq!(send(&api, "", FORM, half.clone()).await.error(), invalid);
    let breaks = tokio_stream::iter([Ok(Bytes::from(half)), Err(std::io::Error::other("gone"))]);
    assert_eq!(send(&api, "", FORM, Body::from_stream(breaks)).await.error(), invalid);
    let header = Bytes::from("--b\r\ncontent-disposition: form-data; name=\"file\"; x=\"");
    let endless = std::iter::once(header).chain(std::iter::repeat(Bytes::from(vec![b'x'; 1 << 16])));
    let answer = send(&api, "", FORM, Body::from_stream(tokio_stream::iter(endless.map(Ok::<_, std::io::Error>)))).await;
    assert_eq!(answer.error(), invalid, "{}", answer.text());
    let two = form(&[("a.sqlite", &real), ("b.sqlite", &real)], &[]);
    for (body, says) in [
        (two, "more than one timeline"),
        (form(&[], &[("label", "x")]), "no file"),
        (form(&[("a", &real)], &[("note", &"x".repeat(5000))]), "at most 4096"),
    ] {
        let answer = send(&api, "", FORM, body).await;
        assert_eq!(answer.error(), invalid);
        assert!(answer.text().contains(says), "{}", answer.text());
    }
    for (name, text) in [("note", "x"), ("stage", "=x"), ("label", "a\u{7}"), ("model", ""), ("within", "")] {
        let answer = send(&api, "", FORM, form(&[("a.sqlite", &real)], &[(name, text)])).await;
        assert_eq!(answer.error(), (422, "invalid_request".into()), "{name}");
    }
    assert_eq!(send(&api, "?nane=x", PACKED, real.clone()).await.error(), (400, "invalid_parameter".into()));
    assert_eq!(send(&api, "?model=a&model=b", PACKED, real.clone()).await.error(), (400, "invalid_parameter".into()));
    for kind in ["application/json", "multipart/form-data", ""] {
        let answer = send(&api, "", ("content-type", kind), real.clone()).await;
        assert_eq!(answer.error(), (415, "unsupported_media_type".into()), "{kind}");
    }
    assert_nothing_left(&api, "forms").await;
    let none = json!({ "model": crate::api::MODEL, "device": "none" });
    assert_eq!(api.post(&none).await.error(), (404, "device_not_found".into()), "a run needs a device");
}

#[tokio::test]
async fn a_report_is_exported_where_an_nsys_reads_it() {
    let found = Collector::find(None, None, None);
    let Some(nsys) = found.nsys else {
        assert!(std::env::var_os("LLMPROF_REQUIRE_NSYS").is_none(), "nsys is required here and not installed");
        return eprintln!("skipped: nsys is not installed (scripts/install-nsight.sh installs it)");
    };
    let dir = tempdir().unwrap();
    let stem = dir.path().join("true");
    let profile = ["profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--stats=false", "--output"];
    // nsys and its own helper sometimes miss each other on a busy machine.
    let made = (0..5).any(|_| {
        std::process::Command::new(&nsys).args(profile).arg(&stem).arg("true").output().unwrap();
        stem.with_extension("nsys-rep").exists()
    });
    assert!(made, "nsys left no report");
    let data = tempdir().unwrap();
    let service = Service::start(data.path(), &Setup { nsys, ..Setup::default() });
    let report = fs::read(stem.with_extension("nsys-rep")).unwrap();
    let send = async |bytes: Vec<u8>| {
        let request = reqwest::Client::new().post(format!("{}/captures?name=true.nsys-rep", service.base));
        let answer = request.header(PLAIN.0, PLAIN.1).timeout(Duration::from_secs(120)).body(bytes).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        service.end(answer["run_id"].as_str().unwrap_or_else(|| panic!("{answer}"))).await
    };
    let broken = send(report[..200].to_vec()).await;
    assert_eq!((&broken["state"], &broken["failed_step"]), (&json!("failed"), &json!("nsys")), "{broken:#}");
    let whole = send(report).await;
    assert_eq!(whole["state"], "succeeded", "{whole:#}");
    let listed = service.json(&format!("/runs/{}/artifacts", whole["run_id"].as_str().unwrap())).await;
    let paths: Vec<_> = listed["artifacts"].as_array().unwrap().iter().map(|it| it["path"].as_str().unwrap()).collect();
    assert!(["nsys/run.nsys-rep", "nsys/run.sqlite", "report.html"].iter().all(|it| paths.contains(it)), "{paths:?}");
}

#[tokio::test]
async fn a_key_names_one_import_however_its_form_is_cut() {
    let api = Api::new().await;
    let file = timeline(MOCK);
    let texts = [("model", "mock"), ("label", "night")];
    let send = async |key: &str, query: &str, kind: (&str, &str), body: Vec<u8>| {
        api.ask(Method::POST, &format!("/captures{query}"), &[kind, ("idempotency-key", key)], body).await
    };
    let first = id(&send("a", "", FORM, form(&[("mock.sqlite.zst", &file)], &texts)).await);
    // Another client of the same caller draws another boundary.
    let other = String::from_utf8_lossy(&form(&[], &texts)).replace("--b", "--another");
    let mut cut = other.strip_suffix("--another--\r\n").unwrap().as_bytes().to_vec();
    cut.extend(b"--another\r\ncontent-disposition: form-data; name=\"file\"; filename=\"mock.sqlite.zst\"\r\n\r\n");
    cut.extend_from_slice(&file);
    cut.extend(b"\r\n--another--\r\n");
    let boundary = ("content-type", "multipart/form-data; boundary=another");
    assert_eq!(id(&send("a", "", boundary, cut).await), first);

    let reused = (409, "idempotency_key_reused".to_owned());
    assert_eq!(send("a", "", FORM, form(&[("mock.sqlite.zst", &file)], &texts[..1])).await.error(), reused, "other words");
    assert_eq!(send("a", "", FORM, form(&[("mock.sqlite.zst", &timeline(E2E))], &texts)).await.error(), reused, "another file");
    assert_eq!(send("a b", "", FORM, form(&[("a", &file)], &[])).await.error(), (400, "invalid_parameter".to_owned()));
    let alone = id(&send("b", "?name=mock.sqlite.zst", PACKED, file.clone()).await);
    assert_eq!(id(&send("b", "?name=mock.sqlite.zst", PACKED, file).await), alone);
    assert_eq!(api.get("/runs").await.json()["runs"].as_array().unwrap().len(), 2);
    assert_eq!(fs::read_dir(api.data().join("runs")).unwrap().count(), 2, "nothing of what came again is left");
    assert_eq!(fs::read_dir(api.data().join("incoming")).unwrap().count(), 0);
}
