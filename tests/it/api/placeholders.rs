//! Prompts with more placeholders than images: refused with both counts before anything is stored.

use std::fs;

use axum::http::Method;
use serde_json::{Value, json};

use super::{
    imports::FORM,
    inputs::{TAR, archive, assert_nothing_left, form, png, upload},
    router::{Answer, Api, MODEL},
};

const COUNTS: &str = "2 <image> placeholders, but 1 image; remove placeholders or add images";

#[track_caller]
fn assert_counted(answer: &Answer, field: &str) {
    assert_eq!(answer.error(), (422, "inputs_invalid".into()), "{}", answer.text());
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with(&format!("{field}: {COUNTS}")), "{message}");
}

#[tokio::test]
async fn more_placeholders_than_images_are_refused_before_a_run_is_queued() {
    let api = Api::new().await;
    let inputs = api.data().join("inputs");
    fs::write(inputs.join("two.yaml"), "prompt: <image><image>\nimages: [{path: page.png}]")
        .unwrap();
    let samples = "samples:\n- {prompt: read}\n\
                   - {prompt: <image> <image>, images: [{path: page.png}]}";
    fs::write(inputs.join("samples.yaml"), samples).unwrap();
    let url = super::inline::data_url(&png(1));
    let inline = json!({ "prompt": "<image><image>", "images": [url] });
    for (name, field) in [
        (json!("two.yaml"), "two.yaml: prompt"),
        (json!("samples.yaml"), "samples.yaml: samples[1].prompt"),
        (inline, "prompt"),
    ] {
        for dry_run in [true, false] {
            let body = json!({ "model": MODEL, "inputs": name, "dry_run": dry_run });
            assert_counted(&api.post(&body).await, field);
        }
    }
    let none = json!({ "model": "llama-tiny", "inputs": { "prompt": "a <image>" } });
    let none = api.post(&none).await;
    assert!(none.text().contains("prompt: 1 <image> placeholder, but 0 images"), "{}", none.text());
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
    assert_nothing_left(&api, "refused submissions");

    for query in ["inputs=two.yaml", "inputs=two.yaml&prompt_tokens=2000"] {
        assert_counted(&api.get(&format!("/models/{MODEL}/cost?{query}")).await, "prompt");
    }
}

#[tokio::test]
async fn uploads_with_more_placeholders_than_images_are_refused() {
    let api = Api::new().await;
    let prompt = ("prompt", "<image>\n<image>");
    let [first, second] = [png(1), png(2)];
    let images: [(&str, &[u8]); 2] = [("a.png", &first), ("b.png", &second)];
    let manifest = "prompt: <image><image>\nimages: [{path: a.png}]";
    let tar = archive(&[("m.yaml", manifest.as_bytes()), ("a.png", &first)]);
    let each = form(&images, None, &[prompt, ("each_image", "true")]);
    for (kind, body, field) in [
        (FORM, form(&images[..1], None, &[prompt]), "prompt"),
        (FORM, each, "samples[0].prompt"),
        (FORM, form(&images[..1], Some(manifest), &[]), "prompt"),
        (TAR, tar, "prompt"),
    ] {
        assert_counted(&upload(&api, "", kind, body).await, field);
        assert_nothing_left(&api, field);
    }
    let headers = [("host", "localhost:8080"), ("origin", "http://localhost:8080"), FORM];
    let body = form(&images[..1], None, &[prompt, ("model", MODEL)]);
    let page = api.ask(Method::POST, "/ui/runs", &headers, body).await;
    assert_eq!(page.status, 422, "{}", page.text());
    let whole = upload(&api, "", FORM, form(&images, None, &[prompt])).await;
    assert_eq!(whole.status, 201, "as many placeholders as images: {}", whole.text());
    let list: Value = api.get("/inputs").await.json();
    assert_eq!(list["inputs"].as_array().unwrap().len(), 1);
}
