//! Images and prompts of the form that submits a run; pages of stored inputs.

use std::fs;

use axum::http::{Method, header};
use llmprof_core::domain::state::RunState;
use llmprof_service::store::Role;
use serde_json::json;

use super::{
    login::{api, login},
    page::{HOST, HOSTILE, OWN, UNKNOWN, assert_contains, location, page, post},
};
use crate::api::{
    imports::FORM,
    inputs::{assert_nothing_left, form, png, upload},
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
    assert!(page(&both, 409).contains("contradicts the prompt or the images"));
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

/// Uploads images with a prompt; returns their id.
async fn store(api: &Api, images: &[(&str, &[u8])], prompt: &str, name: &str) -> String {
    let body = form(images, None, &[("prompt", prompt), ("name", name), ("each_image", "true")]);
    let answer = upload(api, "", FORM, body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()["inputs_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn stored_inputs_are_listed_shown_submitted_and_deleted_in_the_browser() {
    let api = Api::new().await;
    let empty = page(&api.get("/ui/inputs").await, 200);
    assert_contains(
        &empty,
        &["No stored inputs yet", "inputs.yaml", "/?inputs=inputs.yaml#submit"],
    );
    let prompt = format!("{HOSTILE} {}", "long ".repeat(2000));
    let pages = [png(1), png(2)];
    let name = HOSTILE.replace('"', "'");
    let images: [(&str, &[u8]); 2] = [(&name, &pages[0]), ("b.png", &pages[1])];
    let id = store(&api, &images, &prompt, HOSTILE).await;
    let at = format!("/ui/inputs/{id}");
    let list = page(&api.get("/ui/inputs").await, 200);
    let thumbnails = [0, 1].map(|at| format!("src=\"/inputs/{id}/images/{at}/thumbnail\""));
    let shown = page(&api.get(&at).await, 200);
    for text in [&list, &shown] {
        assert_contains(text, &[&thumbnails[0], &thumbnails[1], "&lt;script&gt;alert(1)"]);
        assert!(!text.contains("<img src=x") && !text.contains("'><script"), "{text}");
        assert!(!text.contains(prompt.trim_end()), "the prompt is cut");
    }
    assert_contains(&list, &[&format!("href=\"{at}\""), "aria-current=\"page\">Inputs"]);
    assert_contains(&shown, &["40 × 30", "alt=\"b.png\"", "Delete the inputs"]);
    let form = page(&api.get(&format!("/?inputs={id}")).await, 200);
    assert_contains(&form, &[&format!("name=\"inputs\" value=\"{id}\"")]);
    assert!(shown.contains(&format!("href=\"/?inputs={id}#submit\"")));

    let run = api.submit(json!({ "inputs_manifest": id })).await;
    let needed = [page(&api.get("/ui/inputs").await, 200), page(&api.get(&at).await, 200)];
    for text in &needed {
        assert!(text.contains(&format!("href=\"/ui/runs/{run}\"")), "{text}");
    }
    assert!(!needed[1].contains("Delete the inputs"));
    page(&post(&api, &format!("{at}/delete"), &[], "").await, 409);
    let claimed = api.start().await;
    api.end(&claimed, RunState::Succeeded, &[]).await;
    assert_eq!(location(&api.get(&format!("{at}/delete")).await), at);
    let evil = [("host", "localhost:8080"), ("origin", "https://evil.example")];
    page(&api.ask(Method::POST, &format!("{at}/delete"), &evil, "").await, 403);
    assert_eq!(location(&post(&api, &format!("{at}/delete"), &[], "").await), "/ui/inputs");
    page(&api.get(&at).await, 404);
    page(&api.get(&format!("/ui/inputs/{UNKNOWN}")).await, 404);
    page(&api.get("/ui/inputs/7").await, 400);
    page(&api.get("/ui/inputs?cursor=7").await, 400);
}

#[tokio::test]
async fn the_page_of_inputs_leads_to_older_ones() {
    let api = Api::new().await;
    for at in 0..25 {
        store(&api, &[("a.png", &png(at))], "read", &format!("set {at}.")).await;
    }
    let newest = page(&api.get("/ui/inputs").await, 200);
    assert_contains(&newest, &["set 24.", "set 5.", "Manifests on the host"]);
    assert!(!newest.contains("set 4."));
    let (_, cursor) = newest.split_once("rel=\"next\" href=\"").unwrap();
    let older = page(&api.get(cursor.split_once('"').unwrap().0).await, 200);
    assert_contains(&older, &["set 4.", "set 0.", "Newest"]);
    assert!(!older.contains("set 5.") && !older.contains("rel=\"next\""));
}

#[tokio::test]
async fn only_those_who_may_delete_inputs_see_the_button() {
    let api = api(|_| ()).await;
    let (ann, eve) =
        (login(&api, "ann", Role::Submitter).await, login(&api, "eve", Role::Viewer).await);
    let body = form(&[("a.png", &png(1))], None, &[("model", MODEL), ("prompt", "read")]);
    let headers = [HOST, OWN, FORM, ("cookie", ann.as_str())];
    let sent = api.ask(Method::POST, "/ui/runs", &headers, body).await;
    let run = location(&sent).to_owned();
    let claimed = api.start().await;
    api.end(&claimed, RunState::Succeeded, &[]).await;
    let see = async |path: &str, who: &str| {
        page(&api.ask(Method::GET, path, &[HOST, ("cookie", who)], "").await, 200)
    };
    let text = see(&run, &eve).await;
    let (_, at) = text.split_once("href=\"/ui/inputs/").unwrap();
    let at = format!("/ui/inputs/{}", &at[..36]);
    assert!(see(&at, &ann).await.contains("Delete the inputs"));
    let text = see(&at, &eve).await;
    assert!(!text.contains("Delete the inputs") && !text.contains("Submit a run"), "{text}");
    page(&post(&api, &format!("{at}/delete"), &[("cookie", &eve)], "").await, 403);
    assert!(see("/ui/inputs", &eve).await.contains(&at));
    let delete = format!("{at}/delete");
    assert_eq!(location(&post(&api, &delete, &[("cookie", &ann)], "").await), "/ui/inputs");
}

#[tokio::test]
async fn a_run_shows_its_prompts_with_thumbnails_of_its_own_copies() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let path = format!("/ui/runs/{id}");
    let queued = page(&api.get(&path).await, 200);
    assert_contains(&queued, &["<p>inputs.yaml</p>", "shown when the run has ended"]);
    let claimed = api.start().await;
    let copies = api.folder(&id).join("inputs");
    fs::create_dir_all(&copies).unwrap();
    fs::write(copies.join("1.png"), png(1)).unwrap();
    fs::write(copies.join("2.png"), "no image").unwrap();
    let name = serde_json::to_string(HOSTILE).unwrap();
    let manifest = format!(
        "samples:\n- {{prompt: {name}, images: [{{path: 1.png, name: {name}}}]}}\n\
         - {{prompt: {}, images: [{{path: 2.png}}, {{path: ../spec.json}}]}}",
        "x".repeat(300)
    );
    let files = [("inputs/manifest.yaml", manifest.as_str())];
    api.end(&claimed, RunState::Succeeded, &files).await;
    let text = page(&api.get(&path).await, 200);
    let thumbnail = format!("{path}/inputs/1.png");
    let cut = format!("{}…", "x".repeat(200));
    assert_contains(&text, &[&format!("src=\"{thumbnail}\""), "&lt;script&gt;alert(1)", &cut]);
    assert!(!text.contains("<img src=x") && !text.contains(&format!("{path}/inputs/../spec")));
    let answer = api.get(&thumbnail).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header(header::CONTENT_TYPE), "image/jpeg");
    assert!(image::load_from_memory(&answer.body).is_ok());
    let broken = page(&api.get(&format!("{path}/inputs/2.png")).await, 404);
    assert!(broken.contains("neither PNG, JPEG nor WebP"), "{broken}");
    for other in ["manifest.yaml", "..%2Fspec.json", "3.png"] {
        page(&api.get(&format!("{path}/inputs/{other}")).await, 404);
    }
    assert_eq!(fs::read_dir(api.data().join("incoming")).unwrap().count(), 0);
}
