//! Refused uploads, which leave no files, and idempotency keys of imports.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    http::Method,
};
use llmprof_service::{config, http, store::Role};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::tempdir;

use super::{
    imports::{FORM, META, PACKED, PLAIN, database, form, id, send, timeline},
    router::Api,
};
use crate::support::{
    captures::{E2E, MOCK},
    service::{self, Service, Setup, command, pause},
};

/// Requires that no run and no file is left.
async fn assert_nothing_left(api: &Api, what: &str) {
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]), "{what}");
    for folder in ["incoming", "runs"] {
        assert_eq!(fs::read_dir(api.data().join(folder)).unwrap().count(), 0, "{what}: {folder}");
    }
}

#[tokio::test]
async fn files_other_than_captures_are_refused_in_one_line_without_a_trace() {
    let api = Api::new().await;
    let real = zstd::decode_all(&*timeline(MOCK)).unwrap();
    let program = fs::read("/bin/true").unwrap();
    let bomb = zstd::encode_all(&vec![0; 256 << 20][..], 3).unwrap();
    let viewed = database(
        "create view META_DATA_EXPORT as select 'EXPORT_SCHEMA_VERSION' as name, '3.20.3' as \
            value;",
    );
    let huge = database(
        "create table META_DATA_EXPORT (name text, value text); insert into META_DATA_EXPORT \
            values ('a', 1);
        pragma writable_schema = on; update sqlite_schema set sql = 'create table nonsense';",
    );
    let rep = b"NVIDIA Tegra Profiler Report 1.\n\x0b\0\0".to_vec();
    for (name, bytes, reason) in [
        ("empty", vec![], "empty"),
        ("renamed.sqlite", program, "a program"),
        ("renamed.sqlite", b"PK\x03\x04\0\0".to_vec(), "a zip archive"),
        ("a.gz", b"\x1f\x8b\x08\0".to_vec(), "gzip"),
        ("noise", vec![0x5a, 0, 0xff, 7], "unknown format (first bytes 5a 00 ff 07)"),
        ("list.csv", b"a,b\n1,2\n".to_vec(), "not a capture but a text"),
        ("cut.sqlite", real[..real.len() / 2].to_vec(), "cut short"),
        ("bare.sqlite", database("create table t (a int)"), "not an export of nsys"),
        ("views.sqlite", viewed, "not an export of nsys"),
        ("schema.sqlite", huge, "cannot query"),
        ("run.nsys-rep", rep, "nsys export --type sqlite"),
        ("run.ncu-rep", b"NVR\0\x0a\0\0\0".to_vec(), "ncu --import REPORT --csv --page raw"),
    ] {
        let answer = send(&api, &format!("?name={name}"), PLAIN, bytes).await;
        assert_eq!(answer.error(), (422, "capture_invalid".into()), "{name}: {}", answer.text());
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(
            message.starts_with(&format!("{name}: "))
                && message.contains(reason)
                && message.lines().count() == 1,
            "{message}"
        );
        assert!(!message.contains(api.data().to_str().unwrap()), "{message}");
        assert_nothing_left(&api, name).await;
    }
    let answer = send(&api, "?name=a.sqlite&include_ranges=measurd", PLAIN, real.clone()).await;
    assert_eq!(answer.error(), (422, "capture_invalid".into()), "{}", answer.text());
    assert!(
        answer.text().contains("no range named \\\"measurd\\\"; available: measured, "),
        "{}",
        answer.text()
    );
    assert_nothing_left(&api, "a missing range").await;
    assert!(bomb.len() < 1 << 20);
    assert_eq!(send(&api, "", PACKED, bomb).await.error(), (413, "body_too_large".into()));
    let claimed = [PLAIN, ("content-length", "10737418240")];
    assert_eq!(
        api.ask(Method::POST, "/captures", &claimed, "").await.error(),
        (413, "body_too_large".into())
    );
    let zeros = || {
        tokio_stream::iter(std::iter::repeat_with(|| {
            Ok::<_, std::io::Error>(Bytes::from(vec![0; 1 << 20]))
        }))
    };
    assert_eq!(
        send(&api, "", PLAIN, Body::from_stream(zeros())).await.error(),
        (413, "body_too_large".into())
    );
    assert_nothing_left(&api, "too large").await;
}

#[tokio::test]
async fn a_schema_of_100000_tables_is_refused_in_bounded_time_and_memory() {
    let tables = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
        insert into sqlite_schema select 'table', 't' || i, 't' || i,
            (select rootpage from sqlite_schema), 'create table t' || i || '(a)' from n;";
    let bomb = database(&format!("{META} pragma writable_schema = on; {tables}"));
    assert!(bomb.len() < 8 << 20, "{} bytes", bomb.len());
    let data = tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let before = peak_kib(&service);
    let client = service::client();
    let sent = client
        .post(format!("{}/captures?name=bomb.sqlite", service.base))
        .header(PLAIN.0, PLAIN.1)
        .body(bomb)
        .send();
    let (start, sent) = (Instant::now(), tokio::spawn(sent));
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    while !sent.is_finished() {
        assert_eq!(service.get("/queue").await.status(), 200, "other requests are answered");
        tick.tick().await;
    }
    let answer = sent.await.unwrap().unwrap();
    assert_eq!(answer.status(), 422);
    let message =
        answer.json::<Value>().await.unwrap()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("bomb.sqlite: ")
            && message.lines().count() == 1
            && message.contains("any export"),
        "{message}"
    );
    // Its own bound is ten seconds; a busy machine is slower.
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
    let took = peak_kib(&service) - before;
    assert!(took < 512 << 10, "{took} KiB");
    assert_eq!(fs::read_dir(data.path().join("incoming")).unwrap().count(), 0);
}

/// Peak resident memory of the service, KiB.
fn peak_kib(service: &Service) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", service.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn truncated_endless_and_invalid_forms_leave_no_files() {
    let api = Api::new().await;
    let real = timeline(MOCK);
    let invalid = (422, "capture_invalid".to_owned());
    let half = form(&[("a.sqlite", &real)], &[])[..real.len() / 2].to_vec();
    assert_eq!(send(&api, "", FORM, half.clone()).await.error(), invalid);
    let breaks = tokio_stream::iter([Ok(Bytes::from(half)), Err(std::io::Error::other("gone"))]);
    assert_eq!(send(&api, "", FORM, Body::from_stream(breaks)).await.error(), invalid);
    let header = Bytes::from("--b\r\ncontent-disposition: form-data; name=\"file\"; x=\"");
    let endless =
        std::iter::once(header).chain(std::iter::repeat(Bytes::from(vec![b'x'; 1 << 16])));
    let answer = send(
        &api,
        "",
        FORM,
        Body::from_stream(tokio_stream::iter(endless.map(Ok::<_, std::io::Error>))),
    )
    .await;
    assert_eq!(answer.error(), invalid, "{}", answer.text());
    let two = form(&[("a.sqlite", &real), ("b.sqlite", &real)], &[]);
    for (body, reason) in [
        (two, "more than one timeline"),
        (form(&[], &[("label", "x")]), "no file"),
        (form(&[("a", &real)], &[("note", &"x".repeat(70_000))]), "at most 65536"),
    ] {
        let answer = send(&api, "", FORM, body).await;
        assert_eq!(answer.error(), invalid);
        assert!(answer.text().contains(reason), "{}", answer.text());
    }
    for (name, text) in
        [("note", "x"), ("stage", "=x"), ("label", "a\u{7}"), ("model", ""), ("include_ranges", "")]
    {
        let answer = send(&api, "", FORM, form(&[("a.sqlite", &real)], &[(name, text)])).await;
        assert_eq!(answer.error(), (422, "invalid_request".into()), "{name}");
    }
    let shared = [("stage", "prefill=R"), ("stage", "decode_all=R")];
    let answer = send(&api, "", FORM, form(&[("a.sqlite", &real)], &shared)).await;
    assert_eq!(answer.error(), (422, "invalid_request".into()));
    let message = "stage: range \\\"R\\\" is named for two stages, prefill and decode_all";
    assert!(answer.text().contains(message), "{}", answer.text());
    assert_eq!(
        send(&api, "?nane=x", PACKED, real.clone()).await.error(),
        (400, "invalid_parameter".into())
    );
    assert_eq!(
        send(&api, "?model=a&model=b", PACKED, real.clone()).await.error(),
        (400, "invalid_parameter".into())
    );
    for kind in ["text/html", "multipart/form-data", ""] {
        let answer = send(&api, "", ("content-type", kind), real.clone()).await;
        assert_eq!(answer.error(), (415, "unsupported_media_type".into()), "{kind}");
    }
    assert_nothing_left(&api, "forms").await;
    let none = json!({ "model": crate::api::router::MODEL, "device": "none" });
    assert_eq!(
        api.post(&none).await.error(),
        (404, "device_not_found".into()),
        "a run needs a device"
    );
}

#[tokio::test]
async fn an_idempotency_key_identifies_one_import_in_any_encoding() {
    let api = Api::new().await;
    let file = timeline(MOCK);
    let texts = [("model", "mock"), ("label", "night")];
    let send = async |key: &str, query: &str, kind: (&str, &str), body: Vec<u8>| {
        api.ask(Method::POST, &format!("/captures{query}"), &[kind, ("idempotency-key", key)], body)
            .await
    };
    let first = id(&send("a", "", FORM, form(&[("mock.sqlite.zst", &file)], &texts)).await);
    // The same form with another boundary.
    let other = String::from_utf8_lossy(&form(&[], &texts)).replace("--b", "--another");
    let mut cut = other.strip_suffix("--another--\r\n").unwrap().as_bytes().to_vec();
    cut.extend(
        b"--another\r\ncontent-disposition: form-data; name=\"file\"; \
        filename=\"mock.sqlite.zst\"\r\n\r\n",
    );
    cut.extend_from_slice(&file);
    cut.extend(b"\r\n--another--\r\n");
    let boundary = ("content-type", "multipart/form-data; boundary=another");
    assert_eq!(id(&send("a", "", boundary, cut).await), first);

    let reused = (409, "idempotency_key_reused".to_owned());
    assert_eq!(
        send("a", "", FORM, form(&[("mock.sqlite.zst", &file)], &texts[..1])).await.error(),
        reused,
        "other fields"
    );
    assert_eq!(
        send("a", "", FORM, form(&[("mock.sqlite.zst", &timeline(E2E))], &texts)).await.error(),
        reused,
        "another file"
    );
    assert_eq!(
        send("a b", "", FORM, form(&[("a", &file)], &[])).await.error(),
        (400, "invalid_parameter".to_owned())
    );
    let alone = id(&send("b", "?name=mock.sqlite.zst", PACKED, file.clone()).await);
    assert_eq!(id(&send("b", "?name=mock.sqlite.zst", PACKED, file).await), alone);
    assert_eq!(api.get("/runs").await.json()["runs"].as_array().unwrap().len(), 2);
    assert_eq!(
        fs::read_dir(api.data().join("runs")).unwrap().count(),
        2,
        "repeated uploads leave no folder"
    );
    assert_eq!(fs::read_dir(api.data().join("incoming")).unwrap().count(), 0);
}

/// A body that sends nothing more, and stays open as long as its sender.
fn endless() -> (tokio::sync::mpsc::Sender<Result<Bytes, std::io::Error>>, Body) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    (sender, Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver)))
}

#[tokio::test]
async fn uploads_of_one_submitter_leave_slots_to_others() {
    let settings = config::AccessSettings {
        tokens: config::TokenPolicy::Required,
        uploads_per_owner: 4,
        ..Default::default()
    };
    let access = http::AccessControl::new(&settings, false, false, None);
    let api = Api::with(Arc::new(access)).await;
    for name in ["ann", "bob"] {
        let hash = Sha256::digest(format!("llmprof_{name}")).into();
        api.store.create_token(name, Role::Submitter, &hash, None).await.unwrap();
    }
    let send = async |bearer: &str, body: Body| {
        api.ask(Method::POST, "/captures", &[("authorization", bearer), PLAIN], body).await
    };
    let (mut senders, mut bodies): (Vec<_>, Vec<_>) = (0..4).map(|_| endless()).unzip();
    let mut held: Vec<_> =
        bodies.drain(..).map(|body| Box::pin(send("Bearer llmprof_ann", body))).collect();
    let folders = || fs::read_dir(api.data().join("incoming")).unwrap().count();
    let others = async {
        while folders() < 4 {
            tokio::task::yield_now().await;
        }
        let refused = send("Bearer llmprof_ann", Body::empty()).await;
        assert_eq!(refused.error(), (429, "too_many_uploads".into()));
        assert!(refused.headers.contains_key("retry-after"));
        let bobs = send("Bearer llmprof_bob", Body::empty()).await;
        assert_eq!(bobs.error(), (422, "capture_invalid".into()), "an empty file");
        senders.clear();
    };
    let [a, b, c, d] = &mut held[..] else { panic!("four") };
    tokio::join!(a, b, c, d, others);
    assert_eq!(folders(), 0);
    let again = send("Bearer llmprof_ann", Body::empty()).await;
    assert_eq!(again.error(), (422, "capture_invalid".into()), "the slots are free");
}

#[tokio::test]
async fn a_trickling_upload_is_ended_without_a_trace() {
    let data = tempdir().unwrap();
    let mut command = command(data.path(), &Setup::default());
    command.env("LLMPROF__ACCESS__UPLOAD_WINDOW_S", "1");
    let service = Service::spawn(&mut command, data.path());
    let (sender, body) = endless();
    let trickle = async {
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        while sender.send(Ok(Bytes::from_static(b"x"))).await.is_ok() {
            tick.tick().await;
        }
    };
    let send = service::client()
        .post(format!("{}/captures", service.base))
        .header(PLAIN.0, PLAIN.1)
        .body(reqwest::Body::wrap_stream(body.into_data_stream()))
        .send();
    let answer = tokio::select! {
        answer = send => answer.unwrap(),
        () = trickle => panic!("the connection was closed without an answer"),
    };
    assert_eq!(answer.status(), 408);
    let message = answer.text().await.unwrap();
    assert!(message.contains("too slow") && message.contains("8192 bytes per second"), "{message}");
    assert_eq!(fs::read_dir(data.path().join("incoming")).unwrap().count(), 0);
    let metrics = service.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("llmprof_refused_total{reason=\"slow_upload\"} 1"), "{metrics}");
}

#[tokio::test]
async fn an_upload_does_not_delay_the_end_of_the_service() {
    let data = tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let (_sender, body) = endless();
    let send = service::client()
        .post(format!("{}/captures", service.base))
        .header(PLAIN.0, PLAIN.1)
        .body(reqwest::Body::wrap_stream(body.into_data_stream()))
        .send();
    let sent = tokio::spawn(send);
    while fs::read_dir(data.path().join("incoming")).unwrap().count() == 0 {
        pause().await;
    }
    let start = Instant::now();
    assert!(tokio::task::spawn_blocking(|| service.stop(Signal::SIGTERM)).await.unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert_eq!(sent.await.unwrap().unwrap().status(), 503);
    assert_eq!(fs::read_dir(data.path().join("incoming")).unwrap().count(), 0);
}

/// Sends a real capture.
pub async fn send_timeline(api: &Api, query: &str) -> super::router::Answer {
    send(api, query, PACKED, timeline(MOCK)).await
}
