//! The pages through the router: what they show without a script, what they refuse, and that what comes from outside stays text.

use std::{fs, sync::Arc};

use axum::http::{Method, header};
use llmprof::{
    artifact::{journal::JournalEvent, manifest},
    config, http,
    run::{Finding, RunState, Severity, Step},
    store::{Outcome, Role, audit::AuditLog},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::{Answer, Api, MODEL};

const HOST: (&str, &str) = ("host", "localhost:8080");
const OWN: (&str, &str) = ("origin", "http://localhost:8080");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
/// What would be markup, a script, an attribute's end or a character's name.
pub const HOSTILE: &str = "\"'><script>alert(1)</script>&lt;b&gt;<img src=x>";
const UNKNOWN: &str = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";

pub async fn post(api: &Api, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let all: Vec<_> = [HOST, OWN, FORM].into_iter().chain(headers.iter().copied()).collect();
    api.ask(Method::POST, path, &all, body.to_owned()).await
}

/// A page that came as one.
#[track_caller]
pub fn page(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.text());
    assert_eq!(answer.header(header::CONTENT_TYPE), "text/html; charset=utf-8");
    let policy = answer.header(header::CONTENT_SECURITY_POLICY);
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    // The templates escape slashes, too; the tests read on.
    let text = answer.text().replace("&#x2f;", "/");
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
    for inline in ["<style", " style=", "<script>", " onclick", "javascript:"] {
        assert!(!text.contains(inline), "the policy forbids {inline}");
    }
    text
}

pub fn location(answer: &Answer) -> &str {
    assert_eq!(answer.status.as_u16(), 303, "{}", answer.text());
    answer.header(header::LOCATION)
}

/// Ends a run with files whose names and texts are hostile, and findings as well.
async fn hostile_end(api: &Api) -> String {
    let id = api.submit(json!({ "labels": [HOSTILE] })).await;
    let run = api.start().await;
    api.journal(run.id).log(Step::Baseline, HOSTILE);
    let mut report: Value = serde_json::from_str(include_str!("../golden/gpu-report.json")).unwrap();
    report["operators"][0]["path"] = json!(HOSTILE);
    for kernel in report["kernels_topk"].as_array_mut().unwrap() {
        kernel["kernel_name"] = json!(HOSTILE);
    }
    report["operator_repeats"][0]["path"] = json!(HOSTILE);
    let dir = api.folder(&id);
    let table =
        json!({ "name": HOSTILE, "schema_version": 1, "columns": ["stage", HOSTILE], "total": 1, "rows": [[HOSTILE, HOSTILE]] });
    let kernels = json!({ "name": "kernels", "schema_version": 1, "columns": ["stage", "ms"], "total": 2, "rows": [["prefill", 2.0], ["decode", 1.5]] });
    fs::write(dir.join("report.json"), report.to_string()).unwrap();
    fs::write(dir.join("report.html"), "<!doctype html><p>report").unwrap();
    fs::write(dir.join("tables.jsonl"), format!("{table}\n{kernels}\n")).unwrap();
    fs::write(dir.join(HOSTILE.replace('/', "")), "text").unwrap();
    let finding = Finding::new(HOSTILE, Severity::Warning, HOSTILE).with(HOSTILE, HOSTILE).advise(HOSTILE);
    let (artifacts, message) = (manifest::seal(&dir).unwrap(), Some(HOSTILE.to_owned()));
    let outcome = Outcome { state: RunState::Partial, failed_step: None, message, findings: vec![finding], artifacts };
    assert!(api.store.finish(&run, &outcome).await.unwrap());
    id
}

#[tokio::test]
async fn the_first_page_shows_devices_queue_runs_and_a_form_without_a_script() {
    let api = Api::new().await;
    let empty = page(&api.get("/").await, 200);
    assert!(empty.contains("No run waits") && empty.contains("No run yet"));
    let id = api.submit(json!({ "labels": ["nightly"] })).await;
    let text = page(&api.get("/").await, 200);
    for part in
        ["<form method=\"post\" action=\"/ui/runs\"", "value=\"llama-tiny\"", "value=\"deep\" checked", "cpu", "idle", "nightly"]
    {
        assert!(text.contains(part), "{part} is missing");
    }
    assert!(text.matches(&format!("/ui/runs/{id}")).count() >= 2, "in the queue and in the list");
    let run = api.start().await;
    assert!(page(&api.get("/").await, 200).contains("busy"));
    api.end(&run, RunState::Succeeded, &[]).await;
    assert!(page(&api.get("/?state=succeeded&label=nightly&model=").await, 200).contains(&id));
    assert!(!page(&api.get("/?state=failed").await, 200).contains(&id));
    page(&api.get("/?state=done").await, 400);
}

#[tokio::test]
async fn pages_of_the_list_lead_to_every_run() {
    let api = Api::new().await;
    let first = api.submit(json!({})).await;
    for _ in 0..20 {
        api.submit(json!({})).await;
    }
    let text = page(&api.get("/").await, 200);
    let older = text.split("rel=\"next\" href=\"").nth(1).unwrap().split('"').next().unwrap().replace("&amp;", "&");
    let list = |text: &str| text.split("id=\"runs\"").nth(1).unwrap().to_owned();
    assert!(!list(&text).contains(&first));
    assert!(list(&page(&api.get(&older).await, 200)).contains(&first));
}

#[tokio::test]
async fn a_form_queues_a_run_once_and_leads_to_its_page() {
    let api = Api::new().await;
    let body = format!("key=k&model={MODEL}&mode=basic&repeats=4&labels=a%2C+b&dtype=&device=");
    let first = post(&api, "/ui/runs", &[], &body).await;
    let again = post(&api, "/ui/runs", &[], &body).await;
    let changed = post(&api, "/ui/runs", &[], &body.replace("=4", "=5")).await;
    let id = location(&first).strip_prefix("/ui/runs/").unwrap().to_owned();
    assert_eq!(location(&again), location(&first), "a button pressed twice");
    assert_ne!(location(&changed), location(&first), "went back and changed a field");
    let spec = &api.get(&format!("/runs/{id}")).await.json()["spec"];
    let passes = &spec["subject"]["passes"];
    assert_eq!(
        (&passes["repeats"], &spec["common"]["labels"], &passes["mode"]),
        (&json!(4), &json!(["a", "b"]), &json!("basic"))
    );
    let form = page(&api.get(&format!("/?again={id}")).await, 200);
    for part in
        ["value=\"basic\" checked", "name=\"repeats\" type=\"number\" min=\"1\" max=\"100\" value=\"4\"", "value=\"a, b\""]
    {
        assert!(form.contains(part), "{part} is missing");
    }
}

#[tokio::test]
async fn a_form_that_is_wrong_comes_back_with_what_was_entered_and_why() {
    let api = Api::new().await;
    let cases = [
        (format!("model={MODEL}&repeats=0&labels=keep"), 422, "repeats: 0 is not between 1 and 100"),
        (format!("model={MODEL}&repeats=x&labels=keep"), 422, "repeats"),
        ("model=none&labels=keep".to_owned(), 404, "there is no model none"),
        ("labels=keep".to_owned(), 422, "model"),
        (format!("model={MODEL}&inputs_manifest=gone.yaml&labels=keep"), 422, "gone.png"),
    ];
    for (body, status, why) in cases {
        let text = page(&post(&api, "/ui/runs", &[], &body).await, status);
        let told = text.split("role=\"alert\">").nth(1).unwrap_or_else(|| panic!("{body}")).split("</p>").next().unwrap();
        assert!(told.contains(why) && text.contains("value=\"keep\""), "{body}: {told}");
    }
    page(&api.ask(Method::POST, "/ui/runs", &[HOST, OWN, ("content-type", "text/plain")], "").await, 415);
    page(&post(&api, "/ui/runs", &[], &"x".repeat(1 << 17)).await, 413);
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_form_of_another_site_does_nothing() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    for path in ["/ui/runs", &format!("/ui/runs/{id}/cancel"), &format!("/ui/runs/{id}/delete"), "/ui/login", "/ui/logout"] {
        for from in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            let answer = api.ask(Method::POST, path, &[HOST, FORM, from], format!("model={MODEL}")).await;
            page(&answer, 403);
        }
    }
    let runs = api.get("/runs").await.json();
    assert_eq!((runs["runs"].as_array().unwrap().len(), &runs["runs"][0]["state"]), (1, &json!("queued")));
    // A proxy may hide the host that the browser asked; the browser still says whose page it was.
    let behind = [("host", "127.0.0.1:8080"), OWN, ("sec-fetch-site", "same-origin"), FORM];
    assert_eq!(api.ask(Method::POST, "/ui/runs", &behind, format!("model={MODEL}")).await.status, 303);
}

#[tokio::test]
async fn what_comes_from_outside_is_text_on_every_page() {
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
    ];
    for path in paths {
        let text = page(&api.get(&path).await, 200);
        assert!(text.contains("&lt;script&gt;alert(1)"), "{path} shows nothing of it");
        assert!(!text.contains("<script>") && !text.contains("<img src=x") && !text.contains("\"'>"), "{path}");
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
async fn a_run_that_goes_on_tells_its_steps_and_log_and_loads_anew_without_a_script() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let path = format!("/ui/runs/{id}");
    let text = page(&api.get(&path).await, 200);
    assert!(text.contains("Place in the queue") && text.contains("The run waits"));
    let run = api.start().await;
    let journal = api.journal(run.id);
    journal.log(Step::Baseline, "loading weights");
    journal.write(&JournalEvent::Progress { step: Step::Baseline, phase: "repeats".into(), done: 1, total: 3 });
    let text = page(&api.get(&path).await, 200);
    for part in [
        "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>",
        &format!("data-events=\"/runs/{id}/events\""),
        "baseline: loading weights",
        "baseline: repeats, 1 of 3",
        "Cancel the run",
        "role=\"status\"",
    ] {
        assert!(text.contains(part), "{part} is missing");
    }
    api.end(&run, RunState::Succeeded, &[("report.html", "<p>"), ("logs/a.log", "0123456789")]).await;
    let text = page(&api.get(&path).await, 200);
    for part in ["/report\">Report</a>", "/bundle\">Bundle</a>", "logs/a.log", "10 B", "Delete the run"] {
        assert!(text.contains(part), "{part} is missing");
    }
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
    assert_eq!(location(&api.get(&format!("{path}/cancel")).await), path, "an address that somebody comes back to");
    assert_eq!(location(&post(&api, &format!("{path}/delete"), &[], "").await), "/");
    page(&api.get(&path).await, 404);
}

#[tokio::test]
async fn a_table_is_filtered_and_sorted_by_its_address() {
    let api = Api::new().await;
    let id = hostile_end(&api).await;
    let at = async |query: &str| page(&api.get(&format!("/ui/runs/{id}/tables/kernels{query}")).await, 200);
    let text = at("?sort=ms").await;
    assert!(text.contains("aria-sort=\"ascending\"") && text.find("1.500").unwrap() < text.find("2.000").unwrap());
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
    assert_eq!(location(&api.get("/ui").await), "/");
    let text = page(&api.get("/ui/doctor").await, 200);
    assert!(text.contains("disk") && text.contains("badge ok"));
}

#[tokio::test]
async fn style_and_script_are_kept_for_ever_under_names_of_what_they_hold() {
    let api = api(|_| ()).await;
    let text = page(&api.get("/").await, 401);
    let named = |before: &str| text.split(before).nth(1).unwrap().split('"').next().unwrap().to_owned();
    for (path, kind) in [(named("stylesheet\" href=\""), "text/css"), (named("<script src=\""), "text/javascript")] {
        let answer = api.get(&path).await;
        assert_eq!((answer.status.as_u16(), answer.header(header::CACHE_CONTROL)), (200, "public, max-age=31536000, immutable"));
        assert!(answer.header(header::CONTENT_TYPE).starts_with(kind) && answer.body.len() > 1000);
    }
    page(&api.get("/ui/assets/page.0000.css").await, 404);
}

/// An API that asks for tokens.
pub async fn api(change: impl FnOnce(&mut config::Access)) -> Api {
    let mut settings = config::Access { tokens: config::Asked::Required, ..Default::default() };
    change(&mut settings);
    Api::with(Arc::new(http::Access::new(&settings, false, false, None))).await
}

/// Logs in with a new token; returns the cookie.
pub async fn login(api: &Api, name: &str, role: Role) -> String {
    let text = format!("llmprof_{name}");
    api.store.create_token(name, role, &Sha256::digest(text.as_bytes()).into(), None).await.unwrap().unwrap();
    let answer = post(api, "/ui/login", &[], &format!("token={text}&next=%2Fui%2Fdoctor")).await;
    assert_eq!(location(&answer), "/ui/doctor");
    let cookie = answer.header(header::SET_COOKIE);
    assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict") && cookie.contains("; Path=/"), "{cookie}");
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn who_has_no_token_is_asked_for_one_and_comes_to_the_page_that_was_asked_for() {
    let api = api(|_| ()).await;
    let asked = api.get(&format!("/ui/runs/{UNKNOWN}")).await;
    let text = page(&asked, 401);
    assert!(text.contains("action=\"/ui/login\"") && text.contains(&format!("name=\"next\" value=\"/ui/runs/{UNKNOWN}\"")));
    let wrong = post(&api, "/ui/login", &[], "token=llmprof_no%0d%0aset-cookie: x=y&next=%2F%2Fevil.example").await;
    let text = page(&wrong, 401);
    assert!(text.contains("role=\"alert\"") && !text.contains("evil.example") && !wrong.headers.contains_key(header::SET_COOKIE));
    let cookie = login(&api, "ann", Role::Submitter).await;
    let with = [HOST, ("cookie", cookie.as_str())];
    let text = page(&api.ask(Method::GET, "/", &with, "").await, 200);
    assert!(text.contains("ann") && text.contains("Log out") && text.contains("Submit a run"));
    assert_eq!(api.ask(Method::GET, "/runs", &with, "").await.status, 200, "links of a page lead into the API");
    let left = post(&api, "/ui/logout", &with[1..], "").await;
    assert!(left.header(header::SET_COOKIE).contains("Max-Age=0"));
    api.store.revoke_token("ann").await.unwrap();
    assert!(page(&api.ask(Method::GET, "/", &with, "").await, 401).contains("was revoked"));
}

#[tokio::test]
async fn who_logged_in_and_who_tried_is_in_the_audit_log_without_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let settings = config::Access { tokens: config::Asked::Required, ..Default::default() };
    let access = http::Access::new(&settings, false, false, Some(AuditLog::open(dir.path()).unwrap()));
    let api = Api::with(Arc::new(access)).await;
    page(&post(&api, "/ui/login", &[], "token=llmprof_guess").await, 401);
    login(&api, "ann", Role::Viewer).await;
    let log = fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
    let entries: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = entries.iter().map(|it| (&it["who"], &it["action"], &it["status"])).collect();
    let action = json!("POST /ui/login");
    assert_eq!(told, [(&Value::Null, &action, &json!(401)), (&json!("ann"), &action, &json!(303))]);
    assert!(!log.contains("llmprof_"), "{log}");
}

#[tokio::test]
async fn a_token_that_a_browser_keeps_acts_for_our_own_pages_alone() {
    let api = api(|access| access.origins = vec!["https://tools.example".into()]).await;
    let cookie = login(&api, "ann", Role::Submitter).await;
    let body = json!({ "model": MODEL }).to_string();
    let json = ("content-type", "application/json");
    let from = async |headers: &[(&str, &str)]| api.ask(Method::POST, "/runs", headers, body.clone()).await.status.as_u16();
    let (tools, kept) = (("origin", "https://tools.example"), ("cookie", cookie.as_str()));
    assert_eq!(from(&[HOST, json, kept, tools]).await, 403);
    assert_eq!(from(&[HOST, json, kept, OWN]).await, 202);
    assert_eq!(from(&[HOST, json, kept, tools, ("authorization", "Bearer llmprof_ann")]).await, 202, "its script shows a token");
}

#[tokio::test]
async fn a_role_sees_the_buttons_that_it_may_press() {
    let api = api(|_| ()).await;
    let (ann, bob) = (login(&api, "ann", Role::Submitter).await, login(&api, "bob", Role::Submitter).await);
    let eve = login(&api, "eve", Role::Viewer).await;
    let (ann, bob, eve) = (ann.as_str(), bob.as_str(), eve.as_str());
    let sent = post(&api, "/ui/runs", &[("cookie", ann)], &format!("model={MODEL}")).await;
    let path = location(&sent).to_owned();
    page(&post(&api, "/ui/runs", &[("cookie", eve)], &format!("model={MODEL}")).await, 403);
    let see = async |path: &str, cookie: &str| page(&api.ask(Method::GET, path, &[("cookie", cookie)], "").await, 200);
    assert!(!see("/", eve).await.contains("Submit a run") && see("/", bob).await.contains("Submit a run"));
    for (cookie, may) in [(ann, true), (bob, false), (eve, false)] {
        assert_eq!(see(&path, cookie).await.contains("Cancel the run"), may);
    }
    page(&post(&api, &format!("{path}/cancel"), &[("cookie", bob)], "").await, 403);
    assert_eq!(location(&post(&api, &format!("{path}/cancel"), &[("cookie", ann)], "").await), path);
}

#[tokio::test]
async fn a_link_on_another_site_leads_to_the_page_of_who_has_logged_in() {
    let api = api(|_| ()).await;
    let cookie = login(&api, "ann", Role::Viewer).await;
    // A browser sends no cookie along a link of another site, ...
    let text = page(&api.ask(Method::GET, "/ui/doctor", &[("sec-fetch-site", "cross-site")], "").await, 401);
    let to = text.split("content=\"0; url=").nth(1).unwrap().split('"').next().unwrap().to_owned();
    // ... and sends it along one of ours.
    let answer = api.ask(Method::GET, &to, &[("cookie", cookie.as_str())], "").await;
    assert_eq!(location(&answer), "/ui/doctor");
    let text = page(&api.ask(Method::GET, "/ui/doctor", &[("sec-fetch-site", "same-origin")], "").await, 401);
    assert!(!text.contains("http-equiv"), "a browser without a token is not sent round and round");
}
