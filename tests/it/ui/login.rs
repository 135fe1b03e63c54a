//! Login, roles and assets of the pages.

use std::{fs, sync::Arc};

use axum::http::{Method, header};
use llmprof_service::{
    config, http,
    store::{Role, audit::AuditLog},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::page::{HOST, OWN, UNKNOWN, location, page, post};
use crate::api::router::{Api, MODEL};

#[tokio::test]
async fn style_and_script_are_cached_forever_by_content_hash() {
    let api = api(|_| ()).await;
    let text = page(&api.get("/").await, 401);
    let named =
        |before: &str| text.split(before).nth(1).unwrap().split('"').next().unwrap().to_owned();
    for (path, kind) in
        [(named("stylesheet\" href=\""), "text/css"), (named("<script src=\""), "text/javascript")]
    {
        let answer = api.get(&path).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header(header::CACHE_CONTROL)),
            (200, "public, max-age=31536000, immutable")
        );
        assert!(answer.header(header::CONTENT_TYPE).starts_with(kind) && answer.body.len() > 1000);
    }
    page(&api.get("/ui/assets/page.0000.css").await, 404);
}

/// An API that requires tokens.
pub async fn api(change: impl FnOnce(&mut config::AccessSettings)) -> Api {
    let mut settings =
        config::AccessSettings { tokens: config::TokenPolicy::Required, ..Default::default() };
    change(&mut settings);
    Api::with(Arc::new(http::AccessControl::new(&settings, false, false, None))).await
}

/// Logs in with a new token; returns the cookie.
pub async fn login(api: &Api, name: &str, role: Role) -> String {
    let text = format!("llmprof_{name}");
    api.store
        .create_token(name, role, &Sha256::digest(text.as_bytes()).into(), None)
        .await
        .unwrap()
        .unwrap();
    let answer = post(api, "/ui/login", &[], &format!("token={text}&next=%2Fui%2Fdoctor")).await;
    assert_eq!(location(&answer), "/ui/doctor");
    let cookie = answer.header(header::SET_COOKIE);
    assert!(
        cookie.contains("; HttpOnly")
            && cookie.contains("; SameSite=Strict")
            && cookie.contains("; Path=/"),
        "{cookie}"
    );
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_login_continues_to_the_requested_page() {
    let api = api(|_| ()).await;
    let asked = api.get(&format!("/ui/runs/{UNKNOWN}")).await;
    let text = page(&asked, 401);
    assert!(
        text.contains("action=\"/ui/login\"")
            && text.contains(&format!("name=\"next\" value=\"/ui/runs/{UNKNOWN}\""))
    );
    let wrong = post(
        &api,
        "/ui/login",
        &[],
        "token=llmprof_no%0d%0aset-cookie: x=y&next=%2F%2Fevil.example",
    )
    .await;
    let text = page(&wrong, 401);
    assert!(
        text.contains("role=\"alert\"")
            && !text.contains("evil.example")
            && !wrong.headers.contains_key(header::SET_COOKIE)
    );
    let cookie = login(&api, "ann", Role::Submitter).await;
    let with = [HOST, ("cookie", cookie.as_str())];
    let text = page(&api.ask(Method::GET, "/", &with, "").await, 200);
    assert!(text.contains("ann") && text.contains("Log out") && text.contains("Submit a run"));
    assert_eq!(
        api.ask(Method::GET, "/runs", &with, "").await.status,
        200,
        "the cookie authenticates API requests"
    );
    let left = post(&api, "/ui/logout", &with[1..], "").await;
    assert!(left.header(header::SET_COOKIE).contains("Max-Age=0"));
    assert!(page(&api.ask(Method::GET, "/", &with, "").await, 401).contains("has ended"));
}

#[tokio::test]
async fn the_cookie_is_a_session_that_ends_at_logout_and_with_its_token() {
    let api = api(|_| ()).await;
    let first = login(&api, "ann", Role::Viewer).await;
    let answer = post(&api, "/ui/login", &[], "token=llmprof_ann").await;
    let second = answer.header(header::SET_COOKIE).split(';').next().unwrap().to_owned();
    assert!(first != second && !first.contains("llmprof_ann"), "{first}");
    assert!(first.starts_with("llmprof_session_8080="), "named by its port: {first}");
    let see = async |cookie: &str| {
        api.ask(Method::GET, "/", &[HOST, ("cookie", cookie)], "").await.status.as_u16()
    };
    assert_eq!((see(&first).await, see(&second).await), (200, 200));
    let value = first.split_once('=').unwrap().1;
    let bearer = format!("Bearer {value}");
    assert_eq!(api.ask(Method::GET, "/runs", &[("authorization", &bearer)], "").await.status, 401);
    let elsewhere = [("host", "localhost:9090"), ("cookie", first.as_str())];
    assert_eq!(api.ask(Method::GET, "/", &elsewhere, "").await.status, 401, "of another port");
    for raw in ["llmprof_token=llmprof_ann", "llmprof_session_8080=llmprof_ann"] {
        assert_eq!(see(raw).await, 401, "a token is not a session");
    }
    post(&api, "/ui/logout", &[("cookie", &first)], "").await;
    assert_eq!((see(&first).await, see(&second).await), (401, 200), "a copy of it is void too");
    api.store.revoke_token("ann").await.unwrap();
    assert_eq!(see(&second).await, 401, "its token was revoked");
}

#[tokio::test]
async fn over_tls_the_cookie_is_bound_to_this_host() {
    let settings =
        config::AccessSettings { tokens: config::TokenPolicy::Required, ..Default::default() };
    let access = http::AccessControl::new(&settings, false, false, None).with_tls(true);
    let api = Api::with(Arc::new(access)).await;
    let cookie = login(&api, "ann", Role::Viewer).await;
    assert!(cookie.starts_with("__Host-llmprof_session_8080="), "{cookie}");
    let see = async |cookie: &str| {
        api.ask(Method::GET, "/", &[HOST, ("cookie", cookie)], "").await.status.as_u16()
    };
    assert_eq!((see(&cookie).await, see(&cookie.replace("__Host-", "")).await), (200, 401));
}

#[tokio::test]
async fn logins_are_in_the_audit_log_without_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let settings =
        config::AccessSettings { tokens: config::TokenPolicy::Required, ..Default::default() };
    let access = http::AccessControl::new(
        &settings,
        false,
        false,
        Some(AuditLog::open(dir.path()).unwrap()),
    );
    let api = Api::with(Arc::new(access)).await;
    page(&post(&api, "/ui/login", &[], "token=llmprof_guess").await, 401);
    login(&api, "ann", Role::Viewer).await;
    let read = |name| fs::read_to_string(dir.path().join(name)).unwrap();
    let log = read("audit-refused.jsonl") + &read("audit.jsonl");
    let entries: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let recorded: Vec<_> =
        entries.iter().map(|it| (&it["who"], &it["action"], &it["status"])).collect();
    let action = json!("POST /ui/login");
    assert_eq!(
        recorded,
        [(&Value::Null, &action, &json!(401)), (&json!("ann"), &action, &json!(303))]
    );
    assert!(!log.contains("llmprof_"), "{log}");
}

#[tokio::test]
async fn a_browsers_cookie_acts_for_own_pages_only() {
    let api = api(|access| access.origins = vec!["https://tools.example".into()]).await;
    let cookie = login(&api, "ann", Role::Submitter).await;
    let body = json!({ "model": MODEL }).to_string();
    let json = ("content-type", "application/json");
    let from = async |headers: &[(&str, &str)]| {
        api.ask(Method::POST, "/runs", headers, body.clone()).await.status.as_u16()
    };
    let (tools, kept) = (("origin", "https://tools.example"), ("cookie", cookie.as_str()));
    assert_eq!(from(&[HOST, json, kept, tools]).await, 403);
    assert_eq!(from(&[HOST, json, kept, OWN]).await, 202);
    assert_eq!(
        from(&[HOST, json, kept, tools, ("authorization", "Bearer llmprof_ann")]).await,
        202,
        "its script sends a token"
    );
}

#[tokio::test]
async fn a_role_sees_only_its_buttons() {
    let api = api(|_| ()).await;
    let (ann, bob) =
        (login(&api, "ann", Role::Submitter).await, login(&api, "bob", Role::Submitter).await);
    let eve = login(&api, "eve", Role::Viewer).await;
    let (ann, bob, eve) = (ann.as_str(), bob.as_str(), eve.as_str());
    let sent = post(&api, "/ui/runs", &[("cookie", ann)], &format!("model={MODEL}")).await;
    let path = location(&sent).to_owned();
    page(&post(&api, "/ui/runs", &[("cookie", eve)], &format!("model={MODEL}")).await, 403);
    let see = async |path: &str, cookie: &str| {
        page(&api.ask(Method::GET, path, &[HOST, ("cookie", cookie)], "").await, 200)
    };
    assert!(
        !see("/", eve).await.contains("Submit a run")
            && see("/", bob).await.contains("Submit a run")
    );
    for (cookie, may) in [(ann, true), (bob, false), (eve, false)] {
        assert_eq!(see(&path, cookie).await.contains("Cancel the run"), may);
    }
    page(&post(&api, &format!("{path}/cancel"), &[("cookie", bob)], "").await, 403);
    assert_eq!(
        location(&post(&api, &format!("{path}/cancel"), &[("cookie", ann)], "").await),
        path
    );
}

#[tokio::test]
async fn a_link_on_another_site_works_after_login() {
    let api = api(|_| ()).await;
    let cookie = login(&api, "ann", Role::Viewer).await;
    // A browser sends no cookie with a link of another site, ...
    let text = page(
        &api.ask(Method::GET, "/ui/doctor", &[("sec-fetch-site", "cross-site")], "").await,
        401,
    );
    let to = text.split("content=\"0; url=").nth(1).unwrap().split('"').next().unwrap().to_owned();
    // ... and sends it with the reload.
    let answer = api.ask(Method::GET, &to, &[HOST, ("cookie", cookie.as_str())], "").await;
    assert_eq!(location(&answer), "/ui/doctor");
    let text = page(
        &api.ask(Method::GET, "/ui/doctor", &[("sec-fetch-site", "same-origin")], "").await,
        401,
    );
    assert!(!text.contains("http-equiv"), "no reload loop without a token");
}
