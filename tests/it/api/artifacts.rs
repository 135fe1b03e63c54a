//! Files of a run over HTTP: downloads, ranges, reports, bundles; no other file is reachable.

use std::{fs, path::Path};

use axum::{
    body::Body,
    http::{Method, header},
};
use llmprof_core::domain::state::RunState;
use llmprof_report::{
    ReportForm,
    pipeline::{self, Analyzed, Statements},
};
use llmprof_service::{artifact::folder, config};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::router::{Answer, Api};

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An API with one ended run, and the path of its log of ten bytes.
async fn with_log() -> (Api, String) {
    let api = Api::new().await;
    let id = api.ended().await;
    (api, format!("/runs/{id}/artifacts/logs/baseline.stderr.log"))
}

async fn get(api: &Api, path: &str, headers: &[(&str, &str)]) -> Answer {
    api.ask(Method::GET, path, headers, Body::empty()).await
}

#[tokio::test]
async fn every_listed_file_matches_its_hash() {
    let api = Api::new().await;
    let id = api.ended().await;
    let listed = api.get(&format!("/runs/{id}/artifacts")).await.json();
    let artifacts = listed["artifacts"].as_array().unwrap();
    assert!(artifacts.len() >= 6, "{listed}");
    for artifact in artifacts {
        let answer =
            api.get(&format!("/runs/{id}/artifacts/{}", artifact["path"].as_str().unwrap())).await;
        assert_eq!(answer.status, 200);
        assert_eq!(artifact["sha256"], sha256(&answer.body), "{artifact}");
        assert_eq!(artifact["bytes"], answer.body.len());
        assert_eq!(artifact["media_type"], answer.header(header::CONTENT_TYPE));
        assert_eq!(answer.header(header::ETAG), format!("\"{}\"", sha256(&answer.body)));
    }
    let kept = artifacts.iter().find(|artifact| artifact["path"] == "nsys/run.sqlite").unwrap();
    assert_eq!(kept["step"], "nsys");
}

#[tokio::test]
async fn a_matching_etag_is_answered_with_304() {
    let (api, path) = with_log().await;
    let etag = get(&api, &path, &[]).await.header(header::ETAG).to_owned();
    for given in [&etag, "*", &format!("\"other\", {etag}"), &format!("W/{etag}")] {
        let answer = get(&api, &path, &[("if-none-match", given)]).await;
        assert_eq!(
            (answer.status.as_u16(), answer.body.len(), answer.header(header::ETAG)),
            (304, 0, etag.as_str()),
            "{given}"
        );
    }
    assert_eq!(get(&api, &path, &[("if-none-match", "\"other\"")]).await.status, 200);
}

#[tokio::test]
async fn a_range_is_sent_and_one_after_the_end_is_refused() {
    let (api, path) = with_log().await;
    for (range, text, content_range) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=8-", "89", "bytes 8-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
    ] {
        let answer = get(&api, &path, &[("range", range)]).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text().as_str(), answer.header(header::CONTENT_RANGE)),
            (206, text, content_range)
        );
        assert_eq!(answer.header(header::CONTENT_LENGTH), text.len().to_string());
    }
    let beyond = get(&api, &path, &[("range", "bytes=10-")]).await;
    assert_eq!(beyond.error(), (416, "range_not_satisfiable".to_owned()));
    assert_eq!(beyond.header(header::CONTENT_RANGE), "bytes */10");

    let etag = get(&api, &path, &[]).await.header(header::ETAG).to_owned();
    let same = get(&api, &path, &[("range", "bytes=2-4"), ("if-range", &etag)]).await;
    let changed = get(&api, &path, &[("range", "bytes=2-4"), ("if-range", "\"other\"")]).await;
    assert_eq!((same.status.as_u16(), changed.status.as_u16(), changed.body.len()), (206, 200, 10));
}

#[tokio::test]
async fn head_returns_the_size_without_a_body() {
    let (api, path) = with_log().await;
    let answer = api.ask(Method::HEAD, &path, &[], Body::empty()).await;
    assert_eq!(
        (answer.status.as_u16(), answer.header(header::CONTENT_LENGTH), answer.body.len()),
        (200, "10", 0)
    );
}

#[tokio::test]
async fn reports_run_no_scripts_and_binary_files_are_downloads() {
    let api = Api::new().await;
    let id = api.ended().await;
    let page = api.get(&format!("/runs/{id}/artifacts/report.html")).await;
    let policy = page.header(header::CONTENT_SECURITY_POLICY);
    assert!(
        policy.contains("default-src 'none'")
            && policy.contains("sandbox")
            && !policy.contains("script-src"),
        "{policy}"
    );
    assert_eq!(page.header(header::CONTENT_DISPOSITION), "");
    let database = api.get(&format!("/runs/{id}/artifacts/nsys/run.sqlite")).await;
    assert_eq!(database.header(header::CONTENT_DISPOSITION), "attachment; filename=\"run.sqlite\"");
}

#[tokio::test]
async fn no_path_leads_out_of_the_run() {
    let api = Api::new().await;
    let id = api.ended().await;
    fs::write(api.folder("../secret.txt"), "secret").unwrap();
    fs::write(api.folder(&id).join("unlisted.txt"), "secret").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", api.folder(&id).join("link.txt")).unwrap();
    for path in [
        "../../secret.txt",
        "..%2f..%2fsecret.txt",
        "%2e%2e/%2e%2e/secret.txt",
        "logs/../report.md",
        "./report.md",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "unlisted.txt",
        "link.txt",
        "logs",
        "logs/",
        "report.md%00",
        "report.md/",
        "REPORT.MD",
        "..%5csecret.txt",
        "%252e%252e%252fsecret.txt",
        "progress.jsonl%0d%0aX-Evil:1",
    ] {
        let answer = api.get(&format!("/runs/{id}/artifacts/{path}")).await;
        assert_eq!(answer.error().0, 404, "{path}");
        assert!(answer.headers.get("x-evil").is_none());
    }
    assert_eq!(
        api.get(&format!("/runs/{id}/artifacts/")).await.error(),
        (404, "route_not_found".to_owned())
    );
}

#[tokio::test]
async fn a_file_or_a_folder_that_became_a_link_is_not_followed() {
    for planted in ["logs/baseline.stderr.log", "logs"] {
        let (api, path) = with_log().await;
        let id = path.split('/').nth(2).unwrap();
        let (link, aside) = (api.folder(id).join(planted), api.folder("aside"));
        fs::rename(&link, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &link).unwrap();
        let answer = api.get(&path).await;
        assert_eq!(answer.error(), (500, "file_damaged".to_owned()), "{planted}");
        assert!(
            !answer.text().contains("aside") && !answer.text().contains("link"),
            "{}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn the_format_of_the_report_follows_accept() {
    let api = Api::new().await;
    let id = api.ended().await;
    let path = format!("/runs/{id}/report");
    for (accept, kind, text) in [
        ("*/*", "application/json", r#"{"schema_version":1}"#),
        (
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "text/html; charset=utf-8",
            "<!doctype html><p>report",
        ),
        ("text/markdown, text/html;q=0.5", "text/markdown; charset=utf-8", "# report"),
        ("application/json", "application/json", r#"{"schema_version":1}"#),
    ] {
        let answer = get(&api, &path, &[("accept", accept)]).await;
        assert_eq!(
            (answer.header(header::CONTENT_TYPE), answer.text().as_str()),
            (kind, text),
            "{accept}"
        );
        assert_eq!(answer.header(header::VARY), "accept");
    }
    assert_eq!(get(&api, &path, &[]).await.header(header::CONTENT_TYPE), "application/json");
    assert_eq!(
        get(&api, &path, &[("accept", "image/png")]).await.error(),
        (406, "not_acceptable".to_owned())
    );
}

#[tokio::test]
async fn the_bundle_contains_the_files_of_the_manifest() {
    let api = Api::new().await;
    let id = api.ended().await;
    let answer = api.get(&format!("/runs/{id}/bundle")).await;
    assert_eq!(answer.header(header::CONTENT_TYPE), "application/zstd");
    assert_eq!(
        answer.header(header::CONTENT_DISPOSITION),
        format!("attachment; filename=\"llmprof-{id}.tar.zst\"")
    );
    assert_eq!(
        answer.body,
        api.get(&format!("/runs/{id}/bundle")).await.body,
        "bundles are reproducible"
    );

    let out = tempfile::tempdir().unwrap();
    let mut archive = zstd::Decoder::new(answer.body.as_slice()).map(tar::Archive::new).unwrap();
    archive.unpack(out.path()).unwrap();
    let folder = out.path().join(&id);
    let manifest: Value =
        serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["format_version"], 1);
    let listed = manifest["artifacts"].as_array().unwrap();
    for artifact in listed {
        assert_eq!(
            artifact["sha256"],
            sha256(&fs::read(folder.join(artifact["path"].as_str().unwrap())).unwrap())
        );
    }
    assert!(listed.iter().any(|artifact| artifact["path"] == "report.md"));
}

/// Damages a file; with the part of the answer that names the damage.
type Damage = (fn(&Path), &'static str);

#[tokio::test]
async fn a_damaged_file_is_named_with_a_remedy_instead_of_the_file_or_the_bundle() {
    let damages: [Damage; 5] = [
        (|log| fs::remove_file(log).unwrap(), "is missing"),
        (|log| fs::write(log, "").unwrap(), "has 0 bytes instead of 10"),
        (|log| fs::write(log, "0123456789more").unwrap(), "has 14 bytes instead of 10"),
        (
            |log| {
                fs::remove_file(log).unwrap();
                nix::unistd::mkfifo(log, nix::sys::stat::Mode::S_IRWXU).unwrap();
            },
            "is not a regular file",
        ),
        (
            |log| {
                fs::remove_dir_all(log.parent().unwrap()).unwrap();
                fs::write(log.parent().unwrap(), "").unwrap();
            },
            "is not a regular file",
        ),
    ];
    for (damage, found) in damages {
        let (api, path) = with_log().await;
        let id = path.split('/').nth(2).unwrap();
        damage(&api.folder(id).join("logs/baseline.stderr.log"));
        let bundle = format!("/runs/{id}/bundle");
        let requests: [(&str, &[(&str, &str)]); 3] =
            [(&path, &[]), (&path, &[("range", "bytes=2-4")]), (&bundle, &[])];
        for (path, headers) in requests {
            let answer = get(&api, path, headers).await;
            assert_eq!(answer.error(), (500, "file_damaged".to_owned()), "{path}: {found}");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            let expected = format!("logs/baseline.stderr.log: the stored file {found}; ");
            assert!(message.starts_with(&expected), "{message}");
            assert!(message.ends_with("run `llmprof check`"), "{message}");
        }
        assert_eq!(api.get(&format!("/runs/{id}")).await.json()["state"], json!("succeeded"));
    }
}

#[tokio::test]
async fn a_run_that_is_deleted_while_it_is_read_is_not_found() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let tables = "{\"name\":\"stages\",\"version\":2,\"columns\":[],\"total\":0}\n";
    let files = [
        ("report.html", "<p>report"),
        ("report.json", "{}"),
        ("tables.jsonl", tables),
        ("kernels.json", "{}"),
    ];
    api.end(&run, RunState::Succeeded, &files).await;
    let paths = ["/report", "/artifacts/report.html", "/bundle", "/tables", "/tables/stages"];
    let paths = paths.map(|path| format!("/runs/{id}{path}"));
    let pages = [format!("/ui/runs/{id}"), format!("/ui/runs/{id}/tables/stages")];
    // As for a request that found the run right before it was deleted.
    folder::set_aside(&api.data().join("runs"), run.id).unwrap();
    for path in paths.iter().chain(&pages) {
        let answer = api.get(path).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
    }
    assert_eq!(api.get(&paths[0]).await.error(), (404, "run_not_found".to_owned()));
}

#[tokio::test]
async fn a_run_that_is_deleted_next_to_a_request_is_found_or_not_found() {
    let api = Api::new().await;
    for path in ["report", "report?format=md", "artifacts/report.md"] {
        let id = api.ended().await;
        let (run, path) = (format!("/runs/{id}"), format!("/runs/{id}/{path}"));
        let (answer, deleted) =
            tokio::join!(api.get(&path), api.ask(Method::DELETE, &run, &[], Body::empty()));
        assert_eq!(deleted.status, 204, "{}", deleted.text());
        assert_ne!(answer.status, 409, "{path}: {}", answer.text());
        assert_eq!(api.get(&path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn data_of_a_token_stays_out_of_shared_caches() {
    let api = Api::new().await;
    let id = api.ended().await;
    for (path, expected) in [
        ("/runs", "no-store"),
        (&format!("/runs/{id}"), "no-store"),
        ("/runs/7", "no-store"),
        ("/", "no-store"),
        (&format!("/runs/{id}/bundle"), "private, no-cache"),
        (&format!("/runs/{id}/artifacts/report.md"), "private, no-cache"),
        (&format!("/runs/{id}/report"), "private, no-cache"),
        ("/docs/", "no-cache"),
    ] {
        assert_eq!(api.get(path).await.header(header::CACHE_CONTROL), expected, "{path}");
    }
}

/// The analysis of a small trace of PyTorch.
fn analyzed_capture() -> Analyzed {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures/engine-graph-capture-bs2.json.gz");
    let devices = config::devices().unwrap();
    pipeline::analyze_capture(&[trace], &[], Statements::default(), &devices).unwrap()
}

/// The addresses of the links of a page, without those inside the page, which it has.
#[track_caller]
fn links(page: &str) -> Vec<&str> {
    let after = |mark: &str| -> Vec<&str> {
        page.split(mark).skip(1).filter_map(|rest| rest.split('"').next()).collect()
    };
    let ids = after(" id=\"");
    let (inside, outside): (Vec<&str>, Vec<&str>) =
        after(" href=\"").into_iter().partition(|link| link.starts_with('#'));
    for link in inside {
        assert!(ids.contains(&&link[1..]), "no element of the page has the id of {link}");
    }
    outside.into_iter().filter(|link| !link.starts_with("data:")).collect()
}

#[tokio::test]
async fn every_link_of_a_report_leads_to_a_file_served_and_unpacked() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let analyzed = analyzed_capture();
    analyzed.write(run.id, &api.folder(&id)).unwrap();
    api.end(&run, RunState::Succeeded, &[]).await;
    for path in ["report", "artifacts/report.html"] {
        let page = get(&api, &format!("/runs/{id}/{path}"), &[("accept", "text/html")]).await;
        let text = page.text();
        let links = links(&text);
        assert_eq!(links, ["timeline.perfetto-trace.gz"], "{path}");
        let base = path.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        for link in links {
            let mut target = format!("/runs/{id}/{base}{link}");
            let mut answer = api.get(&target).await;
            if answer.status.is_redirection() {
                target = answer.header(header::LOCATION).to_owned();
                answer = api.get(&target).await;
            }
            assert_eq!(answer.status, 200, "{path}: {target}");
        }
    }
    let bundle = api.get(&format!("/runs/{id}/bundle")).await.body;
    let out = tempfile::tempdir().unwrap();
    tar::Archive::new(zstd::Decoder::new(bundle.as_slice()).unwrap()).unpack(out.path()).unwrap();
    let report = fs::read_to_string(out.path().join(&id).join("report.html")).unwrap();
    for link in links(&report) {
        assert!(out.path().join(&id).join(link).is_file(), "{link}");
    }
    assert_eq!(links(&analyzed.render_one(ReportForm::Html, run.id)), [""; 0], "a report alone");
    let unlinked = api.get(&format!("/runs/{id}/nothing.html")).await;
    assert_eq!(unlinked.error(), (404, "route_not_found".to_owned()));
}
