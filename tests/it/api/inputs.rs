//! Stored inputs over HTTP: uploads, lists, thumbnails, quotas, retention, and their use by runs.

use std::{fs, io::Cursor, sync::Arc};

use axum::{
    body::Body,
    http::{Method, header},
};
use image::{ImageFormat, RgbImage};
use llmprof_core::domain::{
    ids::InputsId,
    inputs::{InputSample, InputSet},
    state::RunState,
};
use llmprof_service::{
    config, http,
    runtime::work::SlicedWork,
    store::{NewInputs, Role},
    tasks,
};
use serde_json::{Value, json};

use super::{
    access::token,
    imports::FORM,
    router::{Answer, Api},
};
use crate::support::service::{self, Service, Setup, command};

pub const TAR: (&str, &str) = ("content-type", "application/x-tar");
pub const TAR_ZST: (&str, &str) = ("content-type", "application/zstd");

/// An image of one shade.
pub fn image(shade: u8, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    RgbImage::from_pixel(40, 30, image::Rgb([shade; 3])).write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

pub fn png(shade: u8) -> Vec<u8> {
    image(shade, ImageFormat::Png)
}

/// A form with images, a manifest and texts.
pub fn form(images: &[(&str, &[u8])], manifest: Option<&str>, texts: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut part = |head: &str, content: &[u8]| {
        body.extend(format!("--b\r\ncontent-disposition: form-data; {head}\r\n\r\n").bytes());
        body.extend_from_slice(content);
        body.extend(b"\r\n");
    };
    for (name, text) in texts {
        part(&format!("name=\"{name}\""), text.as_bytes());
    }
    if let Some(text) = manifest {
        part("name=\"manifest\"; filename=\"m.yaml\"", text.as_bytes());
    }
    for (name, bytes) in images {
        part(&format!("name=\"image\"; filename=\"{name}\""), bytes);
    }
    body.extend(b"--b--\r\n");
    body
}

/// A tar with these files.
pub fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // The path is set by hand: the library refuses names that leave the folder.
        let field = &mut header.as_gnu_mut().unwrap().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, *bytes).unwrap();
    }
    tar.into_inner().unwrap()
}

pub async fn upload(api: &Api, query: &str, kind: (&str, &str), body: impl Into<Body>) -> Answer {
    api.ask(Method::POST, &format!("/inputs{query}"), &[kind], body).await
}

/// The id of stored inputs.
#[track_caller]
fn id(answer: &Answer) -> String {
    assert!(answer.status.is_success(), "{}", answer.text());
    answer.json()["inputs_id"].as_str().unwrap().to_owned()
}

/// Names of the stored files below the data folder.
pub fn files(api: &Api) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["", "contents", "thumbnails"] {
        for entry in fs::read_dir(api.storage.root().join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                found.push(format!("{folder}/{}", entry.file_name().display()));
            }
        }
    }
    found.sort();
    found
}

pub fn assert_nothing_left(api: &Api, name: &str) {
    assert_eq!(files(api), Vec::<String>::new(), "{name}");
    assert_eq!(fs::read_dir(api.data().join("incoming")).unwrap().count(), 0, "{name}");
}

#[tokio::test]
async fn uploaded_pages_are_listed_shown_submitted_and_deleted() {
    let api = Api::new().await;
    let [page, photo, scan] =
        [png(1), image(2, ImageFormat::Jpeg), image(3, ImageFormat::WebP)].map(Vec::from);
    let images: [(&str, &[u8]); 3] = [("../a.png", &page), ("b.jpg", &photo), ("c.webp", &scan)];
    let body = form(&images, None, &[("prompt", "read <b>"), ("name", "three")]);
    let answer = upload(&api, "", FORM, body.clone()).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let view = answer.json();
    let id = id(&answer);
    assert_eq!(answer.header(header::LOCATION), format!("/inputs/{id}"));
    assert_eq!(view["samples"], json!([{ "prompt": "read <b>", "images": [0, 1, 2] }]));
    let about: Vec<String> = view["images"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| format!("{} {} {}x{}", it["name"], it["format"], it["width"], it["height"]))
        .collect();
    assert_eq!(
        about,
        [r#""a.png" "png" 40x30"#, r#""b.jpg" "jpeg" 40x30"#, r#""c.webp" "webp" 40x30"#]
    );
    let thumbnail = api.get(view["images"][1]["thumbnail"].as_str().unwrap()).await;
    assert_eq!(thumbnail.header(header::CONTENT_TYPE), "image/jpeg");
    assert!(image::load_from_memory(&thumbnail.body).unwrap().width() <= 240);
    assert_eq!(
        api.get(&format!("/inputs/{id}/images/3/thumbnail")).await.error(),
        (404, "inputs_not_found".into())
    );

    let again = upload(&api, "", FORM, body).await;
    assert_eq!((again.status.as_u16(), self::id(&again)), (200, id.clone()));
    let list = api.get("/inputs").await.json();
    assert_eq!(list["inputs"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&list["inputs"][0]["name"], &list["inputs"][0]["images"]),
        (&json!("three"), &json!(3))
    );
    assert!(
        list["manifests"]
            .as_array()
            .unwrap()
            .contains(&json!({ "name": "inputs-small.yaml", "bundled": true }))
    );
    assert!(
        list["manifests"]
            .as_array()
            .unwrap()
            .contains(&json!({ "name": "gone.yaml", "bundled": false }))
    );

    let run = api.submit(json!({ "inputs_manifest": id })).await;
    let path = format!("/inputs/{id}");
    let delete = async || api.ask(Method::DELETE, &path, &[], Body::empty()).await;
    let needed = delete().await;
    assert_eq!(needed.error(), (409, "inputs_active".into()));
    assert!(needed.text().contains(&run), "{}", needed.text());
    let claimed = api.start().await;
    assert_eq!(delete().await.error(), (409, "inputs_active".into()));
    api.end(&claimed, RunState::Succeeded, &[]).await;
    assert_eq!(delete().await.status, 204);
    assert_eq!(api.get(&path).await.error(), (404, "inputs_not_found".into()));
    assert_nothing_left(&api, "deleted");
    let gone = api.post(&json!({ "model": super::router::MODEL, "inputs_manifest": id })).await;
    assert_eq!(gone.error(), (404, "inputs_not_found".into()));
    let remedy = "`llmprof submit config.yaml --inputs ./inputs.yaml`";
    assert!(gone.text().contains(remedy), "{}", gone.text());
}

#[tokio::test]
async fn a_missing_thumbnail_is_made_from_the_image_again() {
    let api = Api::new().await;
    let body = form(&[("a.png", &png(1))], None, &[("prompt", "x")]);
    let view = upload(&api, "", FORM, body).await.json();
    let path = view["images"][0]["thumbnail"].as_str().unwrap();
    let first = api.get(path).await;
    let sha256 = view["images"][0]["sha256"].as_str().unwrap();
    let (thumbnail, content) = (api.storage.thumbnail(sha256), api.storage.content(sha256));
    fs::remove_file(&thumbnail).unwrap();
    let (second, third) = tokio::join!(api.get(path), api.get(path));
    assert_eq!((second.status.as_u16(), &second.body), (200, &first.body));
    assert_eq!(third.body, first.body);
    assert_eq!(fs::read(&thumbnail).unwrap(), first.body);

    // As a power cut leaves it: empty, cut off, or full of zeros.
    let (whole, zeros) = (first.body.clone(), vec![0; first.body.len()]);
    let half = whole.len() / 2;
    for left in [&whole[..0], &whole[..1], &whole[..half], &whole[..whole.len() - 1], &zeros[..]] {
        fs::write(&thumbnail, left).unwrap();
        let again = api.get(path).await;
        assert_eq!((again.status.as_u16(), &again.body), (200, &whole), "{} bytes", left.len());
        assert_eq!(fs::read(&thumbnail).unwrap(), whole);
    }

    fs::remove_file(&thumbnail).unwrap();
    fs::remove_file(&content).unwrap();
    fs::write(&content, png(2)).unwrap();
    let changed = api.get(path).await;
    assert_eq!(changed.error(), (404, "inputs_not_found".into()));
    assert!(changed.text().contains("run llmprof check"), "{}", changed.text());
    fs::remove_file(&content).unwrap();
    assert!(api.get(path).await.text().contains("the image is missing; upload it again"));
    assert!(!thumbnail.exists());
    assert_eq!(fs::read_dir(api.data().join("incoming")).unwrap().count(), 0);
}

#[tokio::test]
async fn samples_come_from_a_manifest_or_one_from_each_image() {
    let api = Api::new().await;
    let (first, second) = (png(1), png(2));
    let images: [(&str, &[u8]); 2] = [("a.png", &first), ("b.png", &second)];
    let manifest = "prompt: all\nsamples:\n- images: [{path: pages/b.png}]\n\
                    - {prompt: both, images: [{path: a.png}, {path: ./pages/b.png, name: two}]}";
    let view = upload(&api, "", FORM, form(&images, Some(manifest), &[])).await;
    assert_eq!(view.status, 201, "{}", view.text());
    let samples = json!([
        { "prompt": "all", "images": [1] }, { "prompt": "both", "images": [0, 2] }
    ]);
    let view = view.json();
    assert_eq!(view["samples"], samples);
    let names: Vec<&Value> =
        view["images"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["a.png", "b.png", "two"], "each sample has its name of an image");
    assert_eq!(view["images"][1]["sha256"], view["images"][2]["sha256"]);
    let packed = archive(&[
        ("set/m.yaml", b"prompt: x\nsamples: [{images: [{path: p/a.png}]}, {prompt: y}]"),
        ("set/p/a.png", &first),
        ("set/._hidden", b"of a Mac"),
    ]);
    let packed = zstd::encode_all(&*packed, 3).unwrap();
    let view = upload(&api, "?name=packed", TAR_ZST, packed).await;
    assert_eq!(view.status, 201, "{}", view.text());
    assert_eq!(view.json()["images"][0]["name"], "set/p/a.png");
    assert_eq!(view.json()["samples"][1], json!({ "prompt": "y", "images": [] }));
    let tar = archive(&[("b.png", &second), ("a.png", &first)]);
    let view = upload(&api, "?prompt=each&each_image=true", TAR, tar).await.json();
    let each = json!([{ "prompt": "each", "images": [0] }, { "prompt": "each", "images": [1] }]);
    assert_eq!((&view["samples"], &view["images"][0]["name"]), (&each, &json!("a.png")));
    let contents = files(&api).iter().filter(|name| name.starts_with("contents/")).count();
    assert_eq!(contents, 2, "each content is stored once");
}

#[tokio::test]
async fn the_files_of_a_run_are_inputs_with_both_of_their_manifests_if_these_state_the_same() {
    let (api, page) = (Api::new().await, png(1));
    let of_run: &[u8] = b"prompt: x\nseed: 7\nimages: [{path: inputs/1.png, name: page}]";
    let fetched = |of_copies: &[u8]| {
        archive(&[
            ("inputs.yaml", of_run),
            ("inputs/manifest.yaml", of_copies),
            ("inputs/1.png", &page),
        ])
    };
    let same = fetched(b"prompt: x\nimages: [{path: 1.png, name: page}]");
    let view = upload(&api, "", TAR, same).await;
    assert_eq!(view.status, 201, "{}", view.text());
    assert_eq!(view.json()["seed"], 7);
    for other in [&b"prompt: y\nimages: [{path: 1.png, name: page}]"[..], b"prompt: x\nseed: 8"] {
        let refused = upload(&api, "", TAR, fetched(other)).await;
        assert_eq!(refused.error(), (422, "inputs_invalid".into()), "{}", refused.text());
    }
    let other = fetched(b"prompt: y\nimages: [{path: 1.png, name: page}]");
    let refused = upload(&api, "", TAR, other).await;
    let named = "more than one manifest: inputs.yaml and inputs/manifest.yaml state different";
    assert!(refused.text().contains(named), "{}", refused.text());
}

#[tokio::test]
async fn quotas_hold_and_only_owner_and_admin_delete() {
    let settings =
        config::AccessSettings { tokens: config::TokenPolicy::Required, ..Default::default() };
    let access = Arc::new(http::AccessControl::new(&settings, false, false, None));
    let size = png(1).len() as u64;
    let api = Api::with_settings(access, |config| {
        config.inputs.bytes_per_owner = 2 * size;
        config.inputs.total_bytes = 3 * size;
    })
    .await;
    let [ann, bob, admin, viewer] = [
        token(&api, "ann", Role::Submitter).await,
        token(&api, "bob", Role::Submitter).await,
        token(&api, "root", Role::Admin).await,
        token(&api, "eve", Role::Viewer).await,
    ];
    let send = async |token: &str, shade: u8| {
        let body = form(&[("a.png", &png(shade))], None, &[("prompt", "x")]);
        let headers = [FORM, ("authorization", token)];
        api.ask(Method::POST, "/inputs", &headers, body).await
    };
    assert_eq!(send(&viewer, 1).await.error(), (403, "forbidden".into()));
    let first = id(&send(&ann, 1).await);
    id(&send(&ann, 2).await);
    let refused = send(&ann, 3).await;
    assert_eq!(refused.error(), (507, "disk_quota".into()));
    assert!(refused.text().contains("inputs.bytes_per_owner"), "{}", refused.text());
    let same = id(&send(&bob, 1).await);
    assert_ne!(same, first, "each owner has inputs of their own");
    assert!(send(&bob, 4).await.text().contains("inputs.total_bytes"));
    assert_eq!(files(&api).iter().filter(|it| it.starts_with("contents/")).count(), 2);

    let delete = async |token: &str, id: &str| {
        let headers = [("authorization", token)];
        api.ask(Method::DELETE, &format!("/inputs/{id}"), &headers, Body::empty()).await
    };
    assert_eq!(delete(&bob, &first).await.error(), (403, "forbidden".into()));
    assert_eq!(delete(&ann, &first).await.status, 204);
    assert_eq!(files(&api).iter().filter(|it| it.starts_with("contents/")).count(), 2);
    assert_eq!(delete(&admin, &same).await.status, 204);
    assert_eq!(files(&api).iter().filter(|it| it.starts_with("contents/")).count(), 1);
}

#[tokio::test]
async fn unused_inputs_are_removed_and_files_of_interrupted_uploads_swept() {
    let api = Api::new().await;
    let body = |shade| form(&[("a.png", &png(shade))], None, &[("prompt", "x")]);
    let used = id(&upload(&api, "", FORM, body(1)).await);
    let unused = id(&upload(&api, "", FORM, body(2)).await);
    api.submit(json!({ "inputs_manifest": used })).await;
    let (store, storage) = (&api.store, &api.storage);
    assert_eq!(tasks::inputs::remove_unused(store, storage, 30).await.unwrap(), 0);
    // One millisecond later, what was used before is older than zero days.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    assert_eq!(tasks::inputs::remove_unused(store, storage, 0).await.unwrap(), 1);
    assert_eq!(api.get(&format!("/inputs/{unused}")).await.status, 404);
    assert_eq!(api.get(&format!("/inputs/{used}")).await.status, 200);
    let kept = files(&api);
    for orphan in [format!("contents/{}", "0".repeat(64)), unused, format!("{used}.new")] {
        fs::write(storage.root().join(orphan), "left behind").unwrap();
    }
    tasks::inputs::recover(store, storage, &SlicedWork::default()).await.unwrap();
    assert_eq!(files(&api), kept);
}

#[tokio::test]
async fn a_thousand_inputs_are_listed_page_by_page() {
    let api = Api::new().await;
    for at in 0..1000 {
        let sample = InputSample { prompt: "x".repeat(20_000), images: vec![] };
        let new = NewInputs {
            id: InputsId::now(),
            name: format!("set {at}"),
            owner: None,
            sha256: at.to_string(),
            set: InputSet { samples: vec![sample], ..InputSet::default() },
            max_owner: 0,
            max_total: 0,
        };
        api.store.add_inputs(&new).await.unwrap();
    }
    let (mut seen, mut path) = (Vec::new(), "/inputs?limit=200".to_owned());
    loop {
        let page = api.get(&path).await.json();
        let inputs = page["inputs"].as_array().unwrap();
        seen.extend(inputs.iter().map(|it| it["name"].as_str().unwrap().to_owned()));
        assert_eq!(page["manifests"].as_array().unwrap().is_empty(), path.contains("cursor"));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/inputs?limit=200&cursor={cursor}");
    }
    let expected: Vec<String> = (0..1000).rev().map(|at| format!("set {at}")).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_service_with_an_inputs_folder_runs_the_bundled_page_and_stored_inputs() {
    let (data, inputs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(inputs.path().join("own.yaml"), "prompt: own").unwrap();
    let mut command = command(data.path(), &Setup::default());
    command.arg("--inputs").arg(inputs.path());
    let service = Service::spawn(&mut command, data.path());
    let default = service.submit(json!({ "model": "deepseek-ocr-tiny" })).await;
    let sent = service::client()
        .post(format!("{}/inputs", service.base))
        .header(FORM.0, FORM.1)
        .body(form(&[("a.png", &png(7))], None, &[("prompt", "read")]))
        .send()
        .await
        .unwrap();
    let stored: Value = sent.json().await.unwrap();
    let stored = service.submit(json!({ "inputs_manifest": stored["inputs_id"] })).await;
    for id in [default, stored] {
        let run = service.end(&id).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
    }
}
