//! The API of sweeps: what is accepted, refused and listed, on a service that executes nothing.

use serde_json::{Value, json};

use crate::support::service::{self, Service, Setup, pause};

/// A service without workers: points wait.
fn paused(data: &std::path::Path) -> Service {
    let targets = data.join("targets.toml");
    let program = "[commands.program]\ndescription = 'x'\nprogram = 'true'\nargs = ['{n}']\n\
                   params.n = { type = 'int', min = 1, max = 9, description = 'n' }\n";
    std::fs::write(&targets, program).unwrap();
    let mut command = service::command(data, &Setup::default());
    command.env("LLMPROF__SERVER__TARGETS", targets).env("LLMPROF__WORKER__PAUSED", "true");
    Service::spawn(&mut command, data)
}

fn with(base: Value, axes: Value) -> Value {
    json!({ "base": base, "axes": axes })
}

fn tiny(axes: Value) -> Value {
    with(json!({ "model": "llama-tiny" }), axes)
}

fn with_dtype(mut axes: Value, dtype: &str) -> Value {
    axes["dtype"] = json!(dtype);
    axes
}

async fn start(service: &Service, body: &Value) -> String {
    let (status, answer) = service.post("/sweeps", body).await;
    assert_eq!(status, 202, "{answer:#}");
    answer["sweep_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_point_that_cannot_run_is_a_gap_with_its_reason() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path());
    let axes = json!({
        "prompt_tokens": [16, 5000, 100_000], "new_tokens": [4, 4096], "dtype": ["f32", "f64"],
    });
    let id = start(&service, &with(json!({ "model": "deepseek-ocr-tiny" }), axes)).await;
    let sweep = service.json(&format!("/sweeps/{id}")).await;
    let points = sweep["points"].as_array().unwrap();
    assert_eq!((points.len(), &sweep["request"]["base"]["mode"]), (12, &json!("basic")));
    let reasons: Vec<(Value, String)> = points
        .iter()
        .filter(|it| it["state"] == "gap")
        .map(|it| (it["axes"].clone(), it["reason"].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(reasons.len(), 9, "{reasons:#?}");
    let of = |axes: Value| {
        let found = reasons.iter().find(|it| it.0 == axes);
        found.expect("a reason").1.clone()
    };
    let point = |dtype: &str, new_tokens: u32, prompt_tokens: u32| {
        let axes = json!({ "new_tokens": new_tokens, "prompt_tokens": prompt_tokens });
        with_dtype(axes, dtype)
    };
    assert!(of(point("f64", 4, 16)).contains("f64"));
    assert!(of(point("f32", 4096, 5000)).contains("exceed the context"));
    let long = of(point("f32", 4, 100_000));
    assert!(long.contains("100000 is not between 2 and 65536"), "{long}");
    assert_eq!(sweep["counts"]["gaps"], 9);
    let results = service.json(&format!("/sweeps/{id}/results")).await;
    assert_eq!(results["rows"].as_array().unwrap().len(), 12);
    let csv = service.get(&format!("/sweeps/{id}/results?format=csv")).await.text().await.unwrap();
    assert!(csv.lines().count() == 13 && csv.contains("exceed the context"), "{csv}");
    assert_eq!(service.json("/sweeps").await["sweeps"][0]["sweep_id"], json!(id));
    let page = service.get(&format!("/ui/sweeps/{id}")).await.text().await.unwrap();
    assert!(page.contains("exceed the context") && page.contains("/pause"), "{page}");
    assert!(page.contains("First token (median), ms</th>") && page.contains("s (median)</th>"));
}

#[tokio::test]
async fn a_form_starts_a_sweep_and_keeps_what_was_entered_in_a_refused_one() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path());
    let client =
        service::plain_client().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let send = async |fields: &'static str| {
        let request = client.post(format!("{}/ui/sweeps", service.base)).body(fields);
        let form = "application/x-www-form-urlencoded";
        let request = request.header("content-type", form).header("origin", &service.base);
        request.send().await.unwrap()
    };
    let refused = send("model=llama-tiny&name=%3Cb%3E&new_tokens=4,+4").await;
    assert_eq!(refused.status(), 409);
    let page = refused.text().await.unwrap();
    assert!(page.contains("4 is listed twice") && page.contains("value=\"4, 4\""), "{page}");
    assert!(page.contains("value=\"&lt;b&gt;\"") && !page.contains("<b>"), "{page}");
    let started = send("model=llama-tiny&name=%3Cb%3E&new_tokens=4+8").await;
    assert_eq!(started.status(), 303);
    let location = started.headers()["location"].to_str().unwrap();
    let page = service.get(location).await.text().await.unwrap();
    assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"), "{page}");
    let act = format!("{}{location}/pause", service.base);
    let paused = client.post(act).header("origin", &service.base).send().await.unwrap();
    assert_eq!(paused.headers()["location"], location);
    let page = service.get(location).await.text().await.unwrap();
    assert!(page.contains("/resume") && !page.contains("/pause"), "{page}");
}

#[tokio::test]
async fn a_sweep_that_cannot_be_is_refused_with_the_reason_and_queues_nothing() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path());
    let command = json!({ "target": { "command": "program" } });
    let million = json!({ "new_tokens": { "from": 1, "to": 1_000_000 } });
    let deep = json!({ "model": "llama-tiny", "mode": "deep" });
    let both = json!({ "model": "llama-tiny", "inputs": { "prompt": "a" } });
    let list = json!({ "target": { "command": "program", "params": [] } });
    for (body, status, reason) in [
        (tiny(million), 409, "the sweep has 1000000 points, at most 256"),
        (tiny(json!({})), 422, "axes: none"),
        (tiny(json!({ "new_tokens": [] })), 422, "axes.new_tokens: no values"),
        (tiny(json!({ "new_tokens": [1, 1] })), 409, "1 is listed twice"),
        (tiny(json!({ "new_token": [1] })), 422, "did you mean new_tokens?"),
        (tiny(json!({ "params.n": [1] })), 409, "no axis \"params.n\""),
        (tiny(json!({ "new_tokens": [0, 5000] })), 409, "no point can run; the first: "),
        (tiny(json!({ "dtype": ["f64"] })), 409, "no point can run"),
        (tiny(json!({ "dtype": [1e110] })), 409, "the first: invalid dtype 1e+110; expected"),
        (with(json!({ "model": "llama-tin" }), json!({ "new_tokens": [1] })), 404, "llama-tiny?"),
        (with(deep, json!({ "new_tokens": [1] })), 409, "basic or light, not deep"),
        (with(both, json!({ "prompt_tokens": [8] })), 409, "base has inputs"),
        (with(command.clone(), json!({ "new_tokens": [1] })), 409, "params.NAME"),
        (with(command, json!({ "params.n": [0] })), 409, "0 is not between 1 and 9"),
        (with(list, json!({ "params.n": [1] })), 422, "expected an object"),
        (json!({ "base": {}, "axes": { "new_tokens": [1] }, "x": 1 }), 422, "unknown field"),
        (
            json!({ "base": {}, "axes": { "dtype": ["f32"] }, "limits": { "max_minutes": 0 } }),
            422,
            "limits.max_minutes: 0 is not between 1 and 1440",
        ),
    ] {
        let answer = service.post("/sweeps", &body).await;
        let message = answer.1["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(answer.0 == status && message.contains(reason), "{body}: {answer:?}");
    }
    assert_eq!(service.json("/sweeps").await["sweeps"], json!([]));
    assert_eq!(service.json("/runs").await["runs"], json!([]));
    assert_eq!(service.json("/inputs").await["inputs"], json!([]), "prompts are removed");
}

#[tokio::test]
async fn a_sweep_is_paused_resumed_cancelled_and_deleted() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path());
    let id = start(&service, &tiny(json!({ "new_tokens": [1, 2, 3, 4] }))).await;
    let path = |act: &str| format!("/sweeps/{id}/{act}");
    let (status, paused) = service.post(&path("pause"), &json!({})).await;
    assert_eq!((status, &paused["state"]), (200, &json!("paused")), "{paused:#}");
    assert_eq!(paused["counts"]["waiting"], 4, "{paused:#}");
    let resumed = service.post(&path("resume"), &json!({})).await;
    assert_eq!((resumed.0, &resumed.1["state"]), (200, &json!("running")));
    let delete = || async {
        let url = format!("{}/sweeps/{id}", service.base);
        service::client().delete(url).send().await.unwrap().status().as_u16()
    };
    assert_eq!(delete().await, 409);
    for _ in 0..2 {
        let (status, cancelled) = service.post(&path("cancel"), &json!({})).await;
        assert_eq!((status, &cancelled["state"]), (200, &json!("cancelled")), "{cancelled:#}");
        assert_eq!(cancelled["counts"]["gaps"], 4);
        assert_eq!(cancelled["points"][0]["reason"], "the sweep was cancelled");
    }
    let (status, refused) = service.post(&path("resume"), &json!({})).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("sweep_ended")));
    assert_eq!(delete().await, 204);
    assert_eq!(delete().await, 404);
    assert_eq!(service.get(&format!("/sweeps/{id}")).await.status(), 404);
}

#[tokio::test]
async fn runs_of_others_wait_for_a_few_points_only() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path());
    let axes = json!({ "new_tokens": { "from": 1, "to": 50 } });
    let id = start(&service, &tiny(axes)).await;
    loop {
        let counts = service.json(&format!("/sweeps/{id}")).await["counts"].clone();
        if counts["queued"] == 2 {
            break;
        }
        pause().await;
    }
    let run = service.submit(json!({})).await;
    assert_eq!(service.json(&format!("/runs/{run}")).await["queue_position"], 3);
    let first = service.json(&format!("/sweeps/{id}")).await["points"][0].clone();
    let point = service.json(&format!("/runs/{}", first["run_id"].as_str().unwrap())).await;
    assert_eq!(point["sweep"], json!(id));
}
