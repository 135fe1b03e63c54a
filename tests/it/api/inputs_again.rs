//! The manifest of a run, `inputs.yaml`, is accepted again wherever inputs are.

use std::fs;

use axum::http::{Method, header};
use llmprof_core::domain::state::RunState;
use serde_json::{Value, json};

use super::{
    artifacts::sha256,
    imports::FORM,
    inputs::{TAR, archive, form, png, upload},
    router::{Api, MODEL},
};

/// An ended run with a copy of one image; its id and its manifest as a client downloads it.
async fn ended_run(api: &Api) -> (String, String) {
    let id = api.submit(json!({})).await;
    let claimed = api.start().await;
    let copies = api.folder(&id).join("inputs");
    fs::create_dir_all(&copies).unwrap();
    fs::write(copies.join("1.png"), png(1)).unwrap();
    let manifest = format!(
        "prompt: read\nseed: 7\nimages:\n- path: inputs/1.png\n  name: page.png\n  sha256: {}\n  \
         bytes: {}\n  width: 40\n  height: 30\n",
        sha256(&png(1)),
        png(1).len()
    );
    api.end(&claimed, RunState::Succeeded, &[("inputs.yaml", &manifest)]).await;
    let text = api.get(&format!("/runs/{id}/artifacts/inputs.yaml")).await.text();
    (id, text)
}

/// The inputs and the seed of a run.
async fn workload(api: &Api, run: &str) -> (Value, Value) {
    let view = api.get(&format!("/runs/{run}")).await.json();
    let workload = &view["spec"]["subject"]["workload"];
    (workload["inputs_manifest"].clone(), workload["seed"].clone())
}

#[tokio::test]
async fn the_manifest_of_a_run_is_accepted_wherever_inputs_are() {
    let api = Api::new().await;
    let (run, text) = ended_run(&api).await;
    let answer = upload(&api, "", FORM, form(&[], Some(&text), &[])).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let view = answer.json();
    assert_eq!(view["samples"], json!([{ "prompt": "read", "images": [0] }]));
    assert_eq!((&view["seed"], &view["images"][0]["name"]), (&json!(7), &json!("page.png")));
    assert_eq!(view["images"][0]["sha256"], sha256(&png(1)));
    let id = view["inputs_id"].clone();

    let object: Value = yaml_serde::from_str(&text).unwrap();
    let again = api.submit(json!({ "inputs": object })).await;
    assert_eq!(workload(&api, &again).await, (id.clone(), json!(7)), "stored once");
    let other = api.submit(json!({ "inputs": id, "seed": 8 })).await;
    assert_eq!(workload(&api, &other).await, (id.clone(), json!(8)), "a stated seed precedes");
    let body = form(&[], Some(&text), &[("model", MODEL)]);
    let headers = [("host", "localhost:8080"), ("origin", "http://localhost:8080"), FORM];
    let sent = api.ask(Method::POST, "/ui/runs", &headers, body).await;
    assert_eq!(sent.status, 303, "{}", sent.text());
    let of_page = sent.header(header::LOCATION).trim_start_matches("/ui/runs/").to_owned();
    assert_eq!(workload(&api, &of_page).await, (id.clone(), json!(7)));

    // The files may come along, under the name of the copy or of the page.
    for name in ["1.png", "page.png"] {
        let with_file = form(&[(name, &png(1))], Some(&text), &[]);
        let answer = upload(&api, "", FORM, with_file).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["inputs_id"]), (200, &id), "{name}");
    }
    let packed = archive(&[("inputs.yaml", text.as_bytes())]);
    assert_eq!(upload(&api, "", TAR, packed).await.json()["inputs_id"], id);
    let deleted = api.ask(Method::DELETE, &format!("/runs/{run}"), &[], "").await;
    assert!(deleted.status.is_success(), "{}", deleted.text());
    assert_eq!(upload(&api, "", FORM, form(&[], Some(&text), &[])).await.status, 200);
}

#[tokio::test]
async fn several_samples_of_a_body_share_its_prompt_and_seed() {
    let api = Api::new().await;
    let (_, text) = ended_run(&api).await;
    let image = yaml_serde::from_str::<Value>(&text).unwrap()["images"][0].clone();
    let hash = format!("sha256:{}", image["sha256"].as_str().unwrap());
    let samples = json!([{ "images": [image] }, { "prompt": "count", "images": [hash] }]);
    let inputs = json!({ "prompt": "read", "seed": 3, "samples": samples });
    let run = api.submit(json!({ "inputs": inputs })).await;
    let (id, seed) = workload(&api, &run).await;
    let view = api.get(&format!("/inputs/{}", id.as_str().unwrap())).await.json();
    let prompts = [&view["samples"][0]["prompt"], &view["samples"][1]["prompt"]];
    assert_eq!((prompts, seed), ([&json!("read"), &json!("count")], json!(3)));
    for (inputs, reason) in [
        (json!({ "images": [] }), "inputs: missing field `prompt`"),
        (json!({ "prompt": "x", "images": [{ "path": "a.png" }] }), "it has no sha256"),
        (json!({ "prompt": "x", "images": [{ "sha256": "A" }] }), "64 hexadecimal digits"),
        (json!({ "prompt": "x", "images": [hash], "samples": [{}] }), "samples and images"),
    ] {
        let refused = api.post(&json!({ "model": MODEL, "inputs": inputs })).await;
        assert_eq!(refused.error(), (422, "inputs_invalid".into()), "{}", refused.text());
        assert!(refused.text().contains(reason), "{reason}: {}", refused.text());
    }
}

#[tokio::test]
async fn an_image_of_another_content_than_its_hash_is_refused() {
    let api = Api::new().await;
    let (run, text) = ended_run(&api).await;
    let refused = async |images: &[(&str, &[u8])], text: &str, reason: &str| {
        let answer = upload(&api, "", FORM, form(images, Some(text), &[])).await;
        assert_eq!(answer.error(), (422, "inputs_invalid".into()), "{}", answer.text());
        assert!(answer.text().contains(reason), "{}", answer.text());
        assert_eq!(api.get("/inputs").await.json()["inputs"], json!([]));
    };
    refused(&[("1.png", &png(2))], &text, "image page.png: it has the hash").await;
    let unknown = text.replace(&sha256(&png(1)), &"0".repeat(64));
    refused(&[], &unknown, "the service has no image with the hash 0000").await;
    let path = api.folder(&run).join("inputs/1.png");
    fs::write(&path, png(3)).unwrap();
    refused(&[], &text, "image page.png: it has the hash").await;
    fs::remove_file(&path).unwrap();
    refused(&[], &text, "not in the upload, and the service has no image").await;
}
