//! Forms of subjects other than a whole model: parts, commands, sessions and captures, through the
//! router and in a browser.

use std::process::Command;

use axum::http::Method;
use serde_json::json;

use super::{
    driver::Browser,
    page::{HOST, HOSTILE, assert_contains, location, page, post},
};
use crate::{
    api::{imports::timeline, router::Api},
    support::{
        captures::MOCK,
        service::{self, Service, Setup, command},
        session::fake_server,
    },
};

/// The page of an example command.
const FORM: &str = "/ui/commands/tiny-generate";

async fn spec(api: &Api, page: &str) -> serde_json::Value {
    let run = page.strip_prefix("/ui/runs/").unwrap();
    api.get(&format!("/runs/{run}")).await.json()["spec"].clone()
}

#[tokio::test]
async fn the_form_of_a_command_submits_its_parameters_and_is_filled_by_the_run() {
    let api = Api::new().await;
    let list = page(&api.get("/ui/commands").await, 200);
    assert_contains(&list, &[&format!("href=\"{FORM}\"")]);
    let empty = page(&api.get(FORM).await, 200);
    assert_contains(&empty, &["name=\"param.tokens\"", "name=\"param.prompt\""]);
    let body = "key=k&param.tokens=7&param.model=&param.prompt=What%27s+a&mode=light&repeats=2\
                &warmup=&labels=x%2C+y&revision=r1";
    let queued = post(&api, FORM, &[], body).await;
    let run = location(&queued).to_owned();
    let spec = spec(&api, &run).await;
    let call = &spec["subject"]["call"];
    assert_eq!(
        (&call["params"]["tokens"], &call["params"]["prompt"]),
        (&json!(7), &json!("What's a"))
    );
    assert_eq!(spec["subject"]["passes"]["mode"], "light");
    assert_eq!(
        (&spec["common"]["labels"], &spec["common"]["revision"]),
        (&json!(["x", "y"]), &json!("r1"))
    );
    assert_eq!(location(&post(&api, FORM, &[], body).await), run, "the same form is one run");

    let id = run.rsplit('/').next().unwrap();
    let again = page(&api.get(&format!("{FORM}?again={id}")).await, 200);
    assert_contains(&again, &["value=\"7\"", "What&#x27;s a", "value=\"x, y\"", "value=\"r1\""]);
}

#[tokio::test]
async fn a_refused_command_shows_the_form_with_its_values_and_the_reason() {
    let api = Api::new().await;
    let body = "param.tokens=many&param.prompt=kept&repeats=2";
    let text = page(&post(&api, FORM, &[], body).await, 409);
    assert_contains(
        &text,
        &["role=\"alert\"", "tokens: expected a whole number", "value=\"kept\""],
    );
    let hostile = [("param.prompt", HOSTILE), ("device", HOSTILE), ("labels", HOSTILE)];
    let hostile = reqwest::Url::parse_with_params("http://localhost", hostile).unwrap();
    let text = page(&post(&api, FORM, &[], hostile.query().unwrap()).await, 422);
    assert!(!text.contains("<script>alert"), "{text}");
    for path in ["/ui/commands/absent", "/ui/commands/%3Cb%3E", "/ui/commands/a%0D%0Ab"] {
        assert!(page(&api.get(path).await, 404).contains("no command"));
        page(&api.get(&format!("{path}/session")).await, 404);
        page(&post(&api, path, &[], body).await, 404);
    }
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_part_is_submitted_and_submitted_again_by_the_form() {
    let api = Api::new().await;
    let part = "decoder.layers.1.self_attn";
    let body = format!("key=k&model=llama-tiny&target={part}&align_with=e2e&mode=light");
    let run = location(&post(&api, "/ui/runs", &[], &body).await).to_owned();
    let spec = spec(&api, &run).await;
    assert_eq!(
        (&spec["subject"]["kind"], &spec["subject"]["part"], &spec["subject"]["align_with"]),
        (&json!("part"), &json!(part), &json!("e2e"))
    );
    let id = run.rsplit('/').next().unwrap();
    let again = page(&api.get(&format!("/?again={id}")).await, 200);
    assert_contains(
        &again,
        &[&format!("name=\"target\" value=\"{part}\""), "value=\"e2e\" checked"],
    );
    let wrong = "key=k&model=llama-tiny&target=decoder.layers.99";
    let text = page(&post(&api, "/ui/runs", &[], wrong).await, 404);
    assert_contains(&text, &["is not a part of llama-tiny", "value=\"decoder.layers.99\""]);
}

#[tokio::test]
async fn a_program_that_ends_is_no_session() {
    let api = Api::new().await;
    let text = page(&post(&api, &format!("{FORM}/session"), &[], "param.tokens=7").await, 409);
    assert_contains(&text, &["role=\"alert\"", "value=\"7\""]);
    let answer = api.ask(Method::GET, &format!("{FORM}/session"), &[HOST], "").await;
    assert_eq!(location(&answer), FORM);
}

#[tokio::test]
async fn the_form_of_a_server_starts_a_session_and_submits_runs_on_it() {
    let data = tempfile::tempdir().unwrap();
    let targets = data.path().join("targets.toml");
    std::fs::write(&targets, fake_server()).unwrap();
    let mut command: Command = command(data.path(), &Setup::default());
    command.env("LLMPROF__SERVER__TARGETS", targets).env("LLMPROF__WORKER__PAUSED", "true");
    let service = Service::spawn(&mut command, data.path());
    let client = service::plain_client().redirect(reqwest::redirect::Policy::none());
    let client = client.build().unwrap();
    let send = async |path: &str, fields: &[(&str, &str)]| {
        let body = reqwest::Url::parse_with_params("http://localhost", fields).unwrap();
        let request = client.post(format!("{}{path}", service.base));
        let request = request.header("origin", &service.base);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let answer = request.body(body.query().unwrap().to_owned()).send().await.unwrap();
        assert_eq!(answer.status(), 303, "{path}: {}", answer.text().await.unwrap());
        answer.headers()["location"].to_str().unwrap().to_owned()
    };
    let fields =
        [("param.requests", "5"), ("lifetime_s", "100"), ("labels", "mine"), ("mode", "light")];
    let at = send("/ui/commands/fake/session", &fields).await;
    let id = at.strip_prefix("/ui/sessions#s-").unwrap();
    let session = service.json(&format!("/sessions/{id}")).await;
    assert_eq!((&session["lifetime_s"], &session["label"]), (&json!(100), &json!("mine")));
    assert_eq!(session["params"]["requests"], 5);
    let page = service.get(&format!("/ui/commands/fake?session={id}")).await.text().await.unwrap();
    assert!(page.contains(&format!("<option value=\"{id}\" selected>mine, starting")), "{page}");
    let run = send("/ui/commands/fake", &[("param.requests", "7"), ("session", id)]).await;
    let run = service.json(&run.replace("/ui/", "/")).await;
    assert_eq!(run["spec"]["subject"]["call"]["session"], json!(id));
    assert_eq!(run["spec"]["subject"]["call"]["params"]["requests"], 7);
}

/// Drops a file on the field, as a pointer does.
fn drop_script(name: &str, content: &[u8]) -> String {
    let bytes: Vec<String> = content.iter().map(u8::to_string).collect();
    format!(
        "const files = new DataTransfer();
         files.items.add(new File([new Uint8Array([{}])], '{name}'));
         document.querySelector('.drop')
             .dispatchEvent(new DragEvent('drop', {{ dataTransfer: files, bubbles: true }}));",
        bytes.join(",")
    )
}

#[tokio::test]
async fn captures_are_dropped_and_commands_submitted_in_a_browser() {
    let Some(browser) = Browser::start().await else { return };
    let data = tempfile::tempdir().unwrap();
    let targets = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/targets.toml");
    let mut command: Command = command(data.path(), &Setup::default());
    let service = Service::spawn(command.env("LLMPROF__SERVER__TARGETS", targets), data.path());
    browser.go(&format!("{}/ui/import", service.base)).await;
    browser.eval(&drop_script("mock.sqlite.zst", &timeline(MOCK))).await;
    assert!(browser.see("#chosen li").await.text().await.unwrap().starts_with("mock.sqlite.zst, "));
    browser.press("#main form button").await;
    browser.see("#top .badge.succeeded, #top .badge.partial").await;

    browser.go(&format!("{}/", service.base)).await;
    browser.press("#submit a[href='/ui/commands']").await;
    browser.press(&format!("main a[href='{FORM}']")).await;
    browser.write("[name='param.tokens']", "2").await;
    browser.press("#submit input[value=basic]").await;
    browser.press("#submit summary").await;
    browser.write("#submit [name=repeats]", "1").await;
    browser.write("#submit [name=warmup]", "0").await;
    browser.press("#submit button").await;
    browser.see("#top .badge.succeeded").await;
    browser.press(&format!(".actions a[href^='{FORM}?again=']")).await;
    let tokens = browser.see("[name='param.tokens']").await.prop("value").await.unwrap();
    assert_eq!(tokens.as_deref(), Some("2"));
    browser.end().await;
}

#[tokio::test]
async fn the_api_is_readable_on_a_phone() {
    let Some(browser) = Browser::start().await else { return };
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    for scheme in ["light", "dark"] {
        browser.emulate(390, scheme).await;
        browser.go(&format!("{}/docs/", service.base)).await;
        browser.see("#operations-runs-list_runs").await;
        let wide = "const wide = document.documentElement.scrollWidth;
            return wide <= innerWidth ? [] : [wide, ...[...document.querySelectorAll('body *')]
                .filter(it => it.getBoundingClientRect().right > innerWidth + 1)
                .slice(0, 20).map(it => `${it.tagName} ${it.className}`)]";
        assert_eq!(browser.eval(wide).await, json!([]), "closed, {scheme}");
        for operation in ["runs-list_runs", "runs-submit_run"] {
            browser.press(&format!("#operations-{operation} .opblock-summary-control")).await;
            browser.see(&format!("#operations-{operation} .responses-table")).await;
        }
        assert_eq!(browser.eval(wide).await, json!([]), "operations, {scheme}");
    }
    browser.end().await;
}
