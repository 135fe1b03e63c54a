//! Images and prompts of the form that submits a run.

use axum::http::{Method, header};
use serde_json::json;

use super::page::{HOST, OWN, page};
use crate::api::{
    imports::FORM,
    inputs::{assert_nothing_left, form, png},
    router::{Answer, Api, MODEL},
};

async fn send(api: &Api, images: &[(&str, &[u8])], texts: &[(&str, &str)]) -> Answer {
    let body = form(images, None, &[&[("model", MODEL), ("labels", "keep")], texts].concat());
    api.ask(Method::POST, "/ui/runs", &[HOST, OWN, FORM], body).await
}

/// The manifest's name of the only run.
async fn inputs_of_the_run(api: &Api) -> String {
    let runs = api.get("/runs").await.json();
    let id = runs["runs"][0]["run_id"].as_str().unwrap();
    let run = api.get(&format!("/runs/{id}")).await.json();
    run["spec"]["subject"]["workload"]["inputs_manifest"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn chosen_images_are_stored_with_the_prompt_and_run() {
    let api = Api::new().await;
    let pages = [png(1), png(2)];
    let images: [(&str, &[u8]); 3] = [("a.png", &pages[0]), ("", b""), ("b.png", &pages[1])];
    let texts = [("prompt", "read <all>"), ("each_image", "true"), ("key", "k")];
    let answer = send(&api, &images, &texts).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    assert!(answer.header(header::LOCATION).starts_with("/ui/runs/"));
    // The same form again is the same run.
    assert_eq!(send(&api, &images, &texts).await.status, 303);
    assert_eq!(api.get("/runs").await.json()["runs"].as_array().unwrap().len(), 1);
    let id = inputs_of_the_run(&api).await;
    let view = api.get(&format!("/inputs/{id}")).await.json();
    let samples = json!([
        { "prompt": "read <all>", "images": [0] }, { "prompt": "read <all>", "images": [1] }
    ]);
    assert_eq!(view["samples"], samples);
    let home = page(&api.get("/").await, 200);
    assert!(home.contains(&format!("<option value=\"{id}\">a.png, 2 images</option>")), "{home}");
}

#[tokio::test]
async fn a_refused_image_shows_the_form_with_its_values_and_leaves_nothing() {
    let api = Api::new().await;
    let bad: [(&str, &[u8]); 1] = [("notes.txt", b"prompt: x")];
    let answer = send(&api, &bad, &[("prompt", "read <all>")]).await;
    let text = page(&answer, 422);
    assert!(text.contains("image notes.txt: neither PNG, JPEG nor WebP"), "{text}");
    assert!(text.contains("read &lt;all&gt;</textarea>") && text.contains("value=\"keep\""));
    let both = send(&api, &[("a.png", &png(1))], &[("inputs", "inputs.yaml")]).await;
    assert!(page(&both, 409).contains("contradict each other"));
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
    assert_nothing_left(&api, "refused forms");
}

#[tokio::test]
async fn a_prompt_alone_is_an_input() {
    let api = Api::new().await;
    let answer = send(&api, &[("", b"")], &[("prompt", "Describe a GPU.")]).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    let id = inputs_of_the_run(&api).await;
    let view = api.get(&format!("/inputs/{id}")).await.json();
    assert_eq!(view["samples"], json!([{ "prompt": "Describe a GPU.", "images": [] }]));
    assert_eq!(view["name"], "Describe a GPU.");
}
