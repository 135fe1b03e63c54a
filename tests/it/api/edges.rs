//! Requests at the edges of what HTTP allows: names of any characters, repeated headers, HEAD, long
//! values, and deletions at the same time as other requests.

use axum::{
    body::Body,
    http::{Method, Request, header},
};
use serde_json::{Value, json};

use crate::api::router::{Answer, Api, MODEL};

/// A file whose name has to be encoded in an address and in a header.
const ODD: &str = "r\u{e9}sum\u{e9} #1?%.txt";
const ODD_ENCODED: &str = "r%C3%A9sum%C3%A9%20%231%3F%25.txt";

async fn with_odd_files() -> (Api, String) {
    let api = Api::new().await;
    let files = [(ODD, "odd"), ("baseline/out/a b;\".bin", "binary"), ("report.md", "# report")];
    let id = api.ended_with(&files).await;
    (api, id)
}

async fn send(api: &Api, method: Method, path: &str, body: &Value) -> Answer {
    api.ask(method, path, &[("content-type", "application/json")], body.to_string()).await
}

#[tokio::test]
async fn a_file_of_any_name_is_found_by_its_encoded_address() {
    let (api, id) = with_odd_files().await;
    let linked = api.get(&format!("/runs/{id}/{ODD_ENCODED}")).await;
    let target = format!("/runs/{id}/artifacts/{ODD_ENCODED}");
    assert_eq!((linked.status.as_u16(), linked.header(header::LOCATION)), (307, &*target));
    assert_eq!(api.get(&target).await.text(), "odd");
    let download = api.get(&format!("/runs/{id}/artifacts/baseline/out/a%20b%3B%22.bin")).await;
    assert_eq!(
        (download.text().as_str(), download.header(header::CONTENT_DISPOSITION)),
        ("binary", "attachment; filename=\"ab;.bin\"; filename*=UTF-8''a%20b%3B%22.bin")
    );
}

#[tokio::test]
async fn an_id_and_a_position_have_one_form_in_an_address() {
    let api = Api::new().await;
    let id = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";
    let (upper, simple) = (id.to_uppercase(), id.replace('-', ""));
    let image = |at: &str| format!("/inputs/{id}/images/{at}/thumbnail");
    for (path, status) in [
        (format!("/runs/{id}"), 404),
        (format!("/runs/{upper}"), 400),
        (format!("/runs/{simple}"), 400),
        (format!("/runs/%7B{id}%7D"), 400),
        (format!("/runs/urn:uuid:{id}"), 400),
        (format!("/runs?cursor={id}"), 200),
        (format!("/runs?cursor={upper}"), 400),
        (image("1"), 404),
        (image("+1"), 400),
        (image("01"), 400),
        (image("4294967296"), 400),
    ] {
        assert_eq!(api.get(&path).await.status.as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn an_etag_in_any_line_of_a_list_matches() {
    let (api, id) = with_odd_files().await;
    let path = format!("/runs/{id}/artifacts/report.md");
    let etag = api.get(&path).await.header(header::ETAG).to_owned();
    let ask = async |tags: [&str; 2]| {
        let headers = tags.map(|tag| ("if-none-match", tag));
        api.ask(Method::GET, &path, &headers, Body::empty()).await.status.as_u16()
    };
    assert_eq!(ask(["\"other\"", &etag]).await, 304);
    assert_eq!(ask([&etag, "\"other\""]).await, 304);
    assert_eq!(ask(["\"other\"", "\"another\""]).await, 200);
}

#[tokio::test]
async fn head_returns_the_status_and_the_headers_of_get_without_a_body() {
    let (api, id) = with_odd_files().await;
    for path in [
        "/runs".to_owned(),
        "/models".to_owned(),
        "/openapi.json".to_owned(),
        "/runs/7".to_owned(),
        format!("/runs/{id}"),
        format!("/runs/{id}/artifacts"),
        format!("/runs/{id}/artifacts/report.md"),
        format!("/runs/{id}/artifacts/none"),
        format!("/runs/{id}/bundle"),
        format!("/runs/{id}/report"),
        format!("/ui/runs/{id}"),
    ] {
        let get = api.get(&path).await;
        let head = api.ask(Method::HEAD, &path, &[], Body::empty()).await;
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{path}");
        for name in [header::CONTENT_TYPE, header::ETAG, header::CACHE_CONTROL] {
            assert_eq!(head.headers.get(&name), get.headers.get(&name), "{path}: {name}");
        }
    }
}

#[tokio::test]
async fn a_message_is_short_and_has_no_control_characters_whatever_it_quotes() {
    let (api, id) = with_odd_files().await;
    let long = "x".repeat(30_000);
    let controls = "%1b%5b31m%07%c2%9b%7f";
    for path in [
        format!("/{long}"),
        format!("/runs/{long}"),
        format!("/runs/{controls}"),
        format!("/runs/{id}/artifacts/{long}"),
        format!("/runs/{id}/artifacts/{controls}"),
        format!("/runs/{id}/tables/{controls}"),
        format!("/models/{long}/cost"),
        format!("/models/{controls}/cost"),
        format!("/series/{controls}"),
        format!("/runs?cursor={controls}"),
        format!("/runs?{long}=1"),
        format!("/runs?since={controls}{long}"),
    ] {
        let answer = api.get(&path).await;
        let start: String = path.chars().take(60).collect();
        assert!((400..500).contains(&answer.error().0), "{start}: {}", answer.status);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.len() < 9_000, "{start}: {} bytes", message.len());
        assert!(!message.chars().any(char::is_control), "{start}: {message:?}");
    }
}

#[tokio::test]
async fn a_name_with_a_control_character_is_refused_wherever_it_is_stored() {
    let api = Api::new().await;
    for name in ["a\u{7}b", "a\nb", "\u{1b}[31m", "a\u{9b}b", "a\u{0}"] {
        let run = |more: Value| {
            let mut body = json!({ "model": MODEL });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        for (path, body) in [
            ("/baselines", json!({ "name": "main", "label": name })),
            ("/runs", run(json!({ "labels": [name] }))),
            ("/runs", run(json!({ "revision": name }))),
            ("/sweeps", json!({ "name": name, "base": run(json!({})), "axes": { "batch": [1] } })),
        ] {
            let answer = send(&api, Method::POST, path, &body).await;
            assert_eq!(answer.error(), (422, "invalid_request".to_owned()), "{path} {name:?}");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains("contains a control character"), "{path}: {message}");
        }
    }
    assert_eq!(api.get("/baselines").await.json()["baselines"], json!([]));
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_label_that_no_filter_can_name_is_refused_wherever_it_is_stored() {
    let api = Api::new().await;
    let (comma, space) = ("contains a comma", "starts or ends with a space");
    for (label, reason) in [
        ("a,b", comma),
        (",", comma),
        ("a,", comma),
        (" a", space),
        ("a ", space),
        (" ", space),
        ("\u{a0}a", space),
    ] {
        for (path, body) in [
            ("/baselines", json!({ "name": "main", "label": label })),
            ("/runs", json!({ "model": MODEL, "labels": ["x", label] })),
        ] {
            let answer = send(&api, Method::POST, path, &body).await;
            assert_eq!(answer.error(), (422, "invalid_request".to_owned()), "{path} {label:?}");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains(reason), "{path}: {message}");
        }
    }
    let headers = [("content-type", "application/octet-stream")];
    for (label, reason) in [("a,b", comma), ("a%20", space)] {
        let path = format!("/captures?name=a.json&label={label}");
        let upload = api.ask(Method::POST, &path, &headers, "{}").await;
        assert!(upload.text().contains(reason), "{}", upload.text());
    }
    assert_eq!(api.get("/baselines").await.json()["baselines"], json!([]));
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_filter_without_a_label_is_refused() {
    let api = Api::new().await;
    api.submit(json!({ "labels": ["x"] })).await;
    for query in ["labels=,,,", "labels=", "labels=%20,", "label=", "label=%20", "label=&labels=x"]
    {
        let answer = api.get(&format!("/runs?{query}")).await;
        assert_eq!(answer.status.as_u16(), 400, "{query}: {}", answer.text());
        assert!(answer.text().contains("no label in the filter"), "{}", answer.text());
    }
    for query in ["label=x", "labels=x", "labels=x,", "label=x&labels=x"] {
        let listed = api.get(&format!("/runs?{query}")).await.json();
        assert_eq!(listed["runs"].as_array().map(Vec::len), Some(1), "{query}");
    }
    assert_eq!(api.get("/?label=").await.status.as_u16(), 200, "the form of the page is empty");
}

#[tokio::test]
async fn each_label_of_a_filter_counts_or_the_filter_is_refused() {
    let api = Api::new().await;
    let labels: Vec<String> = (0..17).map(|at| format!("l{at}")).collect();
    api.submit(json!({ "labels": labels[..16] })).await;
    let found = async |labels: &[String]| {
        let answer = api.get(&format!("/runs?labels={}", labels.join(","))).await;
        answer.json()["runs"].as_array().map(Vec::len)
    };
    assert_eq!(found(&labels[..16]).await, Some(1));
    let other = [&labels[..15], &labels[16..]].concat();
    assert_eq!(found(&other).await, Some(0), "the last label counts");
    for path in ["/runs?labels=", "/?label="] {
        let answer = api.get(&format!("{path}{}", labels.join(","))).await;
        assert_eq!(answer.status.as_u16(), 400, "{path}: {}", answer.text());
    }
}

#[tokio::test]
async fn one_of_several_deletions_of_a_run_deletes_it() {
    let api = Api::new().await;
    let id = api.ended().await;
    let path = format!("/runs/{id}");
    let delete = || api.ask(Method::DELETE, &path, &[], Body::empty());
    let (a, b, c) = tokio::join!(delete(), delete(), delete());
    let mut statuses = [a, b, c].map(|it| it.status.as_u16());
    statuses.sort_unstable();
    assert_eq!(statuses, [204, 404, 404]);
    assert!(!api.folder(&id).exists());
    assert_eq!(api.get(&path).await.error(), (404, "run_not_found".to_owned()));
}

#[tokio::test]
async fn a_download_under_way_ends_whole_though_its_run_is_deleted() {
    let api = Api::new().await;
    let text = "0123456789".repeat(500_000);
    let id = api.ended_with(&[("logs/long.log", &text)]).await;
    let request = Request::get(format!("/runs/{id}/artifacts/logs/long.log"));
    let started = api.start_response(request.body(Body::empty()).unwrap()).await;
    let deleted = api.ask(Method::DELETE, &format!("/runs/{id}"), &[], Body::empty()).await;
    assert_eq!(deleted.status, 204);
    let body = axum::body::to_bytes(started.into_body(), usize::MAX).await.unwrap();
    assert!(body == text.as_bytes(), "{} bytes", body.len());
}
