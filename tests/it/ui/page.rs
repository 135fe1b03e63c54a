//! The pages through the router: content without scripts, refusals, escaping.

use std::fs;

use axum::http::{Method, header};
use llmprof_core::domain::{
    finding::{Finding, catalogue},
    headline::{Headline, SeriesPoint, series_id},
    outcome::Outcome,
    state::{RunState, Step},
};
use llmprof_service::{
    artifact::{journal::JournalEvent, manifest},
    runtime::work::SlicedWork,
};
use serde_json::{Value, json};

use crate::{
    api::router::{Answer, Api, MODEL},
    support::report_input::with_foreign_id,
};

pub const HOST: (&str, &str) = ("host", "localhost:8080");
pub const OWN: (&str, &str) = ("origin", "http://localhost:8080");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
/// Text that unescaped would be markup, a script, the end of an attribute or an entity.
pub const HOSTILE: &str = "\"'><script>alert(1)</script>&lt;b&gt;<img src=x>";
pub const UNKNOWN: &str = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";

pub async fn post(api: &Api, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let all: Vec<_> = [HOST, OWN, FORM].into_iter().chain(headers.iter().copied()).collect();
    api.ask(Method::POST, path, &all, body.to_owned()).await
}

/// The text of a valid page.
#[track_caller]
pub fn page(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.text());
    assert_eq!(answer.header(header::CONTENT_TYPE), "text/html; charset=utf-8");
    let policy = answer.header(header::CONTENT_SECURITY_POLICY);
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    // The templates also escape slashes.
    let text = answer.text().replace("&#x2f;", "/");
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
    for inline in ["<style", " style=", "<script>", " onclick", "javascript:"] {
        assert!(!text.contains(inline), "the policy forbids {inline}");
    }
    text
}

/// Requires every part in the text.
#[track_caller]
pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is missing");
    }
}

pub fn location(answer: &Answer) -> &str {
    assert_eq!(answer.status.as_u16(), 303, "{}", answer.text());
    answer.header(header::LOCATION)
}

/// Ends a run with hostile file names, texts and findings.
async fn hostile_end(api: &Api) -> String {
    let id = api.submit(json!({ "labels": [HOSTILE] })).await;
    let run = api.start().await;
    api.journal(run.id).log(Step::Baseline, HOSTILE);
    let mut report: Value =
        serde_json::from_str(include_str!("../../golden/gpu-report.json")).unwrap();
    report["operators"][0]["path"] = json!(HOSTILE);
    for kernel in report["kernels_topk"].as_array_mut().unwrap() {
        kernel["kernel_name"] = json!(HOSTILE);
    }
    report["operator_repeats"][0]["path"] = json!(HOSTILE);
    let dir = api.folder(&id);
    let table = json!({ "name": HOSTILE, "schema_version": 1, "columns": ["stage", HOSTILE],
        "total": 1, "rows": [[HOSTILE, HOSTILE]] });
    let kernels = json!({ "name": "kernels", "schema_version": 1, "columns": ["stage", "ms"],
        "total": 2, "rows": [["prefill", 2.0], ["decode", 1.5]] });
    fs::write(dir.join("report.json"), report.to_string()).unwrap();
    fs::write(dir.join("report.html"), "<!doctype html><p>report").unwrap();
    fs::write(dir.join("tables.jsonl"), format!("{table}\n{kernels}\n")).unwrap();
    fs::write(dir.join(HOSTILE.replace('/', "")), "text").unwrap();
    let finding =
        Finding::new(catalogue::HOST_BUSY, HOSTILE).with(HOSTILE, HOSTILE).advise(HOSTILE);
    let finding = with_foreign_id(&finding, HOSTILE);
    let (artifacts, message) = (
        manifest::seal(&dir, u64::MAX, &SlicedWork::default()).unwrap().artifacts,
        Some(HOSTILE.to_owned()),
    );
    let outcome = Outcome {
        state: RunState::Partial,
        failed_step: None,
        message,
        findings: vec![finding],
        artifacts,
        series: Some(Box::new(hostile_point())),
    };
    assert!(api.store.finish(&run, &outcome).await.unwrap());
    id
}

/// A point whose texts are all hostile.
fn hostile_point() -> SeriesPoint {
    let hostile = || HOSTILE.to_owned();
    SeriesPoint {
        identity: [("name".to_owned(), hostile()), (hostile(), hostile())].into(),
        headline: Headline { tpot: Some(1.0), ..Headline::default() },
        build: hostile(),
        driver: Some(hostile()),
        host: Some(hostile()),
        device: Some(hostile()),
        ..SeriesPoint::default()
    }
}

#[tokio::test]
async fn the_first_page_shows_devices_queue_runs_and_a_form_without_a_script() {
    let api = Api::new().await;
    let empty = page(&api.get("/").await, 200);
    assert!(empty.contains("The queue is empty") && empty.contains("No runs yet"));
    let id = api.submit(json!({ "labels": ["nightly"] })).await;
    let text = page(&api.get("/").await, 200);
    assert_contains(
        &text,
        &[
            "<form method=\"post\" action=\"/ui/runs\"",
            "value=\"llama-tiny\"",
            "value=\"deep\" checked",
            "cpu",
            "idle",
            "nightly",
        ],
    );
    assert!(text.matches(&format!("/ui/runs/{id}")).count() >= 2, "in the queue and in the list");
    let run = api.start().await;
    assert!(page(&api.get("/").await, 200).contains("busy"));
    api.end(&run, RunState::Succeeded, &[]).await;
    assert!(page(&api.get("/?state=succeeded&label=nightly&model=").await, 200).contains(&id));
    assert!(!page(&api.get("/?state=failed").await, 200).contains(&id));
    page(&api.get("/?state=done").await, 400);
}

#[tokio::test]
async fn pages_of_the_list_reach_every_run() {
    let api = Api::new().await;
    let first = api.submit(json!({})).await;
    for _ in 0..20 {
        api.submit(json!({})).await;
    }
    let text = page(&api.get("/").await, 200);
    let older = text
        .split("rel=\"next\" href=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .replace("&amp;", "&");
    let list = |text: &str| text.split("id=\"runs\"").nth(1).unwrap().to_owned();
    assert!(!list(&text).contains(&first));
    assert!(list(&page(&api.get(&older).await, 200)).contains(&first));
}

#[tokio::test]
async fn an_invalid_form_is_shown_again_with_its_values_and_the_reason() {
    let api = Api::new().await;
    let cases = [
        (
            format!("model={MODEL}&repeats=0&labels=keep"),
            422,
            "Repeats: 0 is not between 1 and 100",
        ),
        (format!("model={MODEL}&repeats=x&labels=keep"), 422, "invalid Repeats"),
        ("model=none&labels=keep".to_owned(), 404, "no model none"),
        ("labels=keep".to_owned(), 422, "missing field `Model`"),
        (format!("model={MODEL}&inputs=gone.yaml&labels=keep"), 422, "gone.png"),
    ];
    for (body, status, why) in cases {
        let text = page(&post(&api, "/ui/runs", &[], &body).await, status);
        let problem = text
            .split("role=\"alert\">")
            .nth(1)
            .unwrap_or_else(|| panic!("{body}"))
            .split("</p>")
            .next()
            .unwrap();
        assert!(problem.contains(why) && text.contains("value=\"keep\""), "{body}: {problem}");
    }
    page(
        &api.ask(Method::POST, "/ui/runs", &[HOST, OWN, ("content-type", "text/plain")], "").await,
        415,
    );
    page(&post(&api, "/ui/runs", &[], &"x".repeat(1 << 17)).await, 413);
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn forms_of_other_sites_are_refused() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    for path in [
        "/ui/runs",
        &format!("/ui/runs/{id}/cancel"),
        &format!("/ui/runs/{id}/delete"),
        "/ui/login",
        "/ui/logout",
    ] {
        for from in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            let answer =
                api.ask(Method::POST, path, &[HOST, FORM, from], format!("model={MODEL}")).await;
            page(&answer, 403);
        }
    }
    let runs = api.get("/runs").await.json();
    assert_eq!(
        (runs["runs"].as_array().unwrap().len(), &runs["runs"][0]["state"]),
        (1, &json!("queued"))
    );
    // A proxy may change the host header; the browser's own header still identifies the page.
    let behind = [("host", "127.0.0.1:8080"), OWN, ("sec-fetch-site", "same-origin"), FORM];
    assert_eq!(
        api.ask(Method::POST, "/ui/runs", &behind, format!("model={MODEL}")).await.status,
        303
    );
}

#[tokio::test]
async fn external_text_is_escaped_on_every_page() {
    let api = Api::new().await;
    let (a, b) = (hostile_end(&api).await, hostile_end(&api).await);
    let name: String = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let paths = [
        "/".to_owned(),
        format!("/?label={name}&model={name}"),
        format!("/?again={a}"),
        format!("/ui/runs/{a}"),
        format!("/ui/runs/{a}/tables/{name}?q=script"),
        format!("/ui/diff?a={a}&b={b}"),
        "/ui/series".to_owned(),
        format!("/ui/series/{}", series_id(&hostile_point().identity)),
    ];
    for path in paths {
        let text = page(&api.get(&path).await, 200);
        assert!(text.contains("&lt;script&gt;alert(1)"), "{path} shows nothing of it");
        assert!(
            !text.contains("<script>") && !text.contains("<img src=x") && !text.contains("\"'>"),
            "{path}"
        );
    }
    for (path, status) in [
        (format!("/ui/runs/{a}/tables/{name}x"), 404),
        (format!("/ui/diff?a={name}&b={name}"), 400),
        (format!("/ui/{name}"), 404),
    ] {
        let text = page(&api.get(&path).await, status);
        assert!(!text.contains("<script>") && !text.contains("<img src=x"), "{path}");
    }
    let form = format!("model={name}&labels={name}&repeats={name}&key={name}");
    let text = page(&post(&api, "/ui/runs", &[], &form).await, 422);
    assert!(!text.contains("<script>") && text.contains("&lt;script&gt;"));
}

#[tokio::test]
async fn the_page_of_an_active_run_shows_progress_and_reloads_without_scripts() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let path = format!("/ui/runs/{id}");
    let text = page(&api.get(&path).await, 200);
    assert!(text.contains("Position in the queue") && text.contains("The run is queued"));
    assert_contains(&text, &["<dt>Pending steps</dt><dd>preflight, baseline, ", "no estimate: "]);
    let icon = text.split("image/svg+xml\" href=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(api.get(icon).await.text().starts_with("<svg"), "{icon}");
    let run = api.start().await;
    let journal = api.journal(run.id);
    journal.log(Step::Baseline, "loading weights");
    journal.write(&JournalEvent::Progress {
        step: Step::Baseline,
        phase: "repeats".into(),
        done: 1,
        total: 3,
        sample: None,
    });
    let text = page(&api.get(&path).await, 200);
    assert_contains(
        &text,
        &[
            "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>",
            &format!("data-events=\"/runs/{id}/events\""),
            "baseline: loading weights",
            "baseline: repeats, 1 of 3",
            "Cancel the run",
            "role=\"status\"",
        ],
    );
    api.end(&run, RunState::Succeeded, &[("report.html", "<p>"), ("logs/a.log", "0123456789")])
        .await;
    let text = page(&api.get(&path).await, 200);
    assert_contains(
        &text,
        &["/report\">Report</a>", "/bundle\">Bundle</a>", "logs/a.log", "10 B", "Delete the run"],
    );
    assert!(!text.contains("http-equiv") && !text.contains("data-events"));
}

#[tokio::test]
async fn buttons_cancel_and_delete_a_run() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let path = format!("/ui/runs/{id}");
    page(&post(&api, &format!("{path}/delete"), &[], "").await, 409);
    assert_eq!(location(&post(&api, &format!("{path}/cancel"), &[], "").await), path);
    page(&post(&api, &format!("{path}/cancel"), &[], "").await, 409);
    assert_eq!(
        location(&api.get(&format!("{path}/cancel")).await),
        path,
        "a reload of the button's address"
    );
    assert_eq!(location(&post(&api, &format!("{path}/delete"), &[], "").await), "/");
    page(&api.get(&path).await, 404);
}

#[tokio::test]
async fn a_table_is_filtered_and_sorted_by_its_address() {
    let api = Api::new().await;
    let id = hostile_end(&api).await;
    let at = async |query: &str| {
        page(&api.get(&format!("/ui/runs/{id}/tables/kernels{query}")).await, 200)
    };
    let text = at("?sort=ms").await;
    assert!(
        text.contains("aria-sort=\"ascending\"")
            && text.find("1.500").unwrap() < text.find("2.000").unwrap()
    );
    let text = at("?stage=prefill&q=").await;
    assert!(text.contains("1 of 2 rows") && !text.contains("1.500"));
    assert!(at("?q=DECODE").await.contains("1 of 2 rows"));
    for wrong in ["?sort=price", "?page=x", &format!("?q={}", "x".repeat(201))] {
        page(&api.get(&format!("/ui/runs/{id}/tables/kernels{wrong}")).await, 400);
    }
}

#[tokio::test]
async fn errors_are_pages_on_pages_and_json_in_the_api() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    for (path, status) in [
        ("/ui/runs/7".to_owned(), 400),
        (format!("/ui/runs/{UNKNOWN}"), 404),
        (format!("/ui/runs/{UNKNOWN}/tables/kernels"), 404),
        (format!("/ui/runs/{id}/tables/kernels"), 409),
        (format!("/ui/diff?a={id}&b={id}"), 409),
        ("/ui/nothing".to_owned(), 404),
    ] {
        page(&api.get(&path).await, status);
    }
    assert_eq!(api.get("/nothing").await.error(), (404, "route_not_found".into()));
    let accept = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    let browser = api.ask(Method::GET, "/nothing", &accept, "").await;
    assert!(page(&browser, 404).contains("no route /nothing"));
    let run = api.ask(Method::GET, &format!("/runs/{UNKNOWN}"), &accept, "").await;
    assert_eq!(run.error(), (404, "run_not_found".into()), "data has one form of errors");
    assert_eq!(location(&api.get("/ui").await), "/");
    let text = page(&api.get("/ui/doctor").await, 200);
    assert!(text.contains("disk") && text.contains("badge ok"));
}
