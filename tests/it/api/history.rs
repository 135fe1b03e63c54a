//! History over the API: revisions of imports, stored gates, messages about regressions, and
//! realised savings.

use axum::http::StatusCode;
use llmprof_core::domain::{
    finding::{
        Finding, Saving,
        catalogue::{self, FindingId},
    },
    headline::SeriesPoint,
    outcome::Outcome,
    savings::{Promise, Savings, TimeError},
    state::RunState,
    webhook_event::WebhookEvent,
};
use llmprof_service::store::Store;
use serde_json::{Value, json};

use crate::{
    api::{
        imports::{self, FORM, PACKED, form, timeline},
        router::Api,
        series::{gate, history, measured, point, send},
    },
    support::{
        captures::MOCK,
        service::{Service, Setup, command},
    },
};

#[tokio::test]
async fn an_import_has_the_revision_of_its_query_or_form() {
    let api = Api::new().await;
    let of = async |id: String| {
        let run = api.get(&format!("/runs/{id}")).await.json();
        run["spec"]["common"]["revision"].clone()
    };
    let path = "?name=mock.sqlite.zst&revision=3f2c1ab";
    let queried = imports::send(&api, path, PACKED, timeline(MOCK)).await;
    assert_eq!(of(imports::id(&queried)).await, "3f2c1ab");
    let capture = timeline(MOCK);
    let files: [(&str, &[u8]); 1] = [("mock.sqlite.zst", &capture)];
    let sent = imports::send(&api, "", FORM, form(&files, &[("revision", "r2")])).await;
    assert_eq!(of(imports::id(&sent)).await, "r2");
    let without = imports::send(&api, "?name=a", PACKED, timeline(MOCK)).await;
    assert_eq!(of(imports::id(&without)).await, Value::Null);
    for (query, status) in [
        ("?revision=".to_owned(), 422),
        (format!("?revision={}", "x".repeat(65)), 422),
        ("?revision=a%0Ab".to_owned(), 422),
        ("?revision=a&revision=b".to_owned(), 400),
    ] {
        let refused = imports::send(&api, &query, PACKED, timeline(MOCK)).await;
        assert_eq!(refused.error().0, status, "{query}: {}", refused.text());
    }
}

#[tokio::test]
async fn decisions_of_gates_are_listed_with_reason_caller_and_runs() {
    let api = Api::new().await;
    history(&api).await;
    let slow = measured(&api, json!({ "revision": "slow" }), "H200", Some(11.0)).await;
    let equal = measured(&api, json!({ "revision": "r3" }), "H200", Some(10.0)).await;
    let failed = gate(&api, json!({ "runs": [slow] })).await;
    gate(&api, json!({ "runs": [slow], "accept": "a known trade" })).await;
    // A reason without a regression accepts nothing.
    gate(&api, json!({ "runs": [equal], "accept": "just in case" })).await;
    let listed = async |query: &str| -> Vec<Value> {
        let answer = api.get(&format!("/gates{query}")).await;
        assert_eq!(answer.status, StatusCode::OK, "{query}: {}", answer.text());
        answer.json()["gates"].as_array().unwrap().clone()
    };
    let all = listed("").await;
    let verdicts: Vec<&Value> = all.iter().map(|it| &it["gate"]["verdict"]).collect();
    assert_eq!(verdicts, ["passed", "regression", "regression"]);
    assert_eq!(all[2]["gate"], failed, "the decision as it was answered");
    assert!(all[0]["at"].as_str().unwrap().ends_with('Z') && all[0]["by"].is_null());
    let accepted = listed("?accepted=true").await;
    assert_eq!(accepted.len(), 1);
    let it = &accepted[0]["gate"];
    assert_eq!((&it["accepted"], &it["runs"]), (&json!("a known trade"), &json!([slow])));
    assert_eq!(listed("?accepted=false&limit=1").await, &all[..1]);
    assert_eq!(listed("?baseline=main").await.len(), 3);
    assert_eq!(listed("?baseline=other").await, Vec::<Value>::new());
    for invalid in ["?baseline=%3Cb%3E", "?accepted=maybe", "?limit=0", "?limit=201", "?run=1"] {
        assert_eq!(api.get(&format!("/gates{invalid}")).await.error().0, 400, "{invalid}");
    }
}

#[tokio::test]
async fn of_each_baseline_the_newest_gates_and_all_accepted_regressions_are_kept() {
    let api = Api::new().await;
    history(&api).await;
    let slow = measured(&api, json!({ "revision": "slow" }), "H200", Some(11.0)).await;
    gate(&api, json!({ "runs": [slow], "accept": "a known trade" })).await;
    for _ in 0..201 {
        gate(&api, json!({ "runs": [slow] })).await;
    }
    let count = async |query: &str| {
        let gates = api.get(&format!("/gates?limit=200&{query}")).await.json()["gates"].clone();
        gates.as_array().unwrap().len()
    };
    assert_eq!((count("accepted=false").await, count("accepted=true").await), (200, 1));
}

/// Messages that are due, with their event.
async fn messages(store: &Store) -> Vec<(String, Value)> {
    let due = store.due_deliveries(99, 3_600_000).await.unwrap();
    let message = |body: &str| -> (String, Value) {
        let body: Value = serde_json::from_str(body).unwrap();
        (body["event"].as_str().unwrap().to_owned(), body)
    };
    due.iter().map(|it| message(&it.body)).collect()
}

#[tokio::test]
async fn a_gate_that_fails_sends_one_message_to_each_subscriber() {
    let api = Api::new().await;
    let targets = ["a".to_owned(), "b".to_owned()];
    api.store.set_webhooks(&targets, &[WebhookEvent::GateFailed]).await.unwrap();
    history(&api).await;
    let slow = measured(&api, json!({ "revision": "slow" }), "H200", Some(11.0)).await;
    let equal = measured(&api, json!({ "revision": "r3" }), "H200", Some(10.0)).await;
    gate(&api, json!({ "runs": [equal] })).await;
    gate(&api, json!({ "runs": [slow], "accept": "a known trade" })).await;
    assert_eq!(messages(&api.store).await, [], "neither a pass nor an accepted regression");
    gate(&api, json!({ "runs": [slow] })).await;
    // CI asks again for another format.
    gate(&api, json!({ "runs": [slow] })).await;
    let sent = messages(&api.store).await;
    assert_eq!(sent.len(), 2, "once to each target: {sent:?}");
    let (event, body) = &sent[0];
    assert_eq!((event.as_str(), &body["baseline"]), ("gate_failed", &json!("main")));
    assert_eq!((&body["run_id"], &body["runs"]), (&json!(slow), &json!([slow])));
    assert_eq!(body["figures"][0]["figure"], "tpot");
    assert!(body["message"].as_str().unwrap().contains("worse by 9.78 %, beyond noise"), "{body}");
    let link = body["link"].as_str().unwrap();
    assert!(link.ends_with(&format!("/diff/{slow}")), "{link}");
    let deliveries = api.get("/deliveries").await.json()["deliveries"].clone();
    let id = deliveries[0]["message_id"].as_str().unwrap();
    assert!(id.starts_with("gate_failed_") && id.len() == 44, "{id}");
    assert_eq!(deliveries[1]["message_id"], id, "the same message");
}

#[tokio::test]
async fn events_without_a_subscriber_send_nothing() {
    let api = Api::new().await;
    api.store.set_webhooks(&["a".into()], &[WebhookEvent::RunEnded]).await.unwrap();
    history(&api).await;
    let slow = measured(&api, json!({ "revision": "slow" }), "H200", Some(11.0)).await;
    gate(&api, json!({ "runs": [slow] })).await;
    let sent = messages(&api.store).await;
    assert_eq!(sent.len(), 21);
    assert!(sent.iter().all(|(event, _)| event == "run_ended"));
    api.store.set_webhooks(&["a".into()], &[]).await.unwrap();
    measured(&api, json!({}), "H200", Some(10.0)).await;
    assert_eq!(messages(&api.store).await.len(), 21);
}

/// Ends a run of this build whose decode takes `decode_ms`, with findings that promise savings.
async fn promising(
    api: &Api,
    revision: &str,
    decode_ms: f64,
    promised: &[(FindingId, f64)],
) -> String {
    let id = api.submit(json!({ "revision": revision })).await;
    let run = api.start().await;
    let finding = |(id, ms): &(FindingId, f64)| {
        let saving = Saving { stage: "decode_all".into(), ms: Some(*ms), pct: 10.0 };
        Finding::new(*id, "x").saves(Some(saving))
    };
    let findings: Vec<Finding> = promised.iter().map(finding).collect();
    let error = TimeError { std_error_ms: 0.1, freedom: 2.0 };
    let savings = Savings {
        stages: [("decode_all".to_owned(), decode_ms)].into(),
        errors: [("decode_all".to_owned(), error)].into(),
        promises: Promise::of(&findings),
    };
    let series = SeriesPoint { savings, ..point("H200", Some(decode_ms)) };
    let outcome = Outcome {
        state: RunState::Succeeded,
        failed_step: None,
        message: None,
        findings,
        artifacts: vec![],
        series: Some(Box::new(series)),
    };
    assert!(api.store.finish(&run, &outcome).await.unwrap());
    id
}

#[tokio::test]
async fn a_promised_saving_shows_the_later_run_that_realised_it() {
    let api = Api::new().await;
    let (eager, tiny) = (catalogue::DECODE_EAGER, catalogue::TINY_KERNELS);
    let before = promising(&api, "r1", 20.0, &[(eager, 5.0), (tiny, 2.0)]).await;
    // Another run of the same build misses the finding by chance.
    promising(&api, "r1", 20.2, &[(tiny, 2.0)]).await;
    let realised =
        async |id: &str| api.get(&format!("/runs/{id}")).await.json()["realised"].clone();
    assert_eq!(realised(&before).await, json!([]));
    let after = promising(&api, "r2", 16.0, &[(tiny, 1.9)]).await;
    let expected = json!([{
        "finding": "decode_eager", "stage": "decode_all", "promised_ms": 5.0, "remaining_ms": 0.0,
        "realised_ms": 4.0, "run_id": after,
    }]);
    assert_eq!(realised(&before).await, expected);
    assert_eq!(realised(&after).await, json!([]));
    let text = api.get(&format!("/ui/runs/{before}")).await.text().replace("&#x2f;", "/");
    let link = format!("<a href=\"/ui/diff?a={before}&amp;b={after}\">comparison</a>");
    let sentence = "promised at most 5.00 ms, 4.00 ms less in decode_all";
    assert!(text.contains(&link) && text.contains(sentence), "{text}");
    // The next run that realises it counts once the first is deleted.
    let later = promising(&api, "r3", 17.0, &[]).await;
    let path = format!("/runs/{after}");
    api.ask(axum::http::Method::DELETE, &path, &[], "").await;
    let found = realised(&before).await;
    let of = |at: usize| (found[at]["finding"].clone(), found[at]["run_id"].clone());
    assert_eq!(
        [of(0), of(1)],
        [(json!("decode_eager"), json!(later)), (json!("tiny_kernels"), json!(later)),]
    );
}

#[tokio::test]
async fn savings_of_earlier_versions_are_read_from_sealed_reports() {
    let api = Api::new().await;
    let report = include_str!("../../golden/gpu-report.json");
    let id = api.ended_with(&[("report.json", report)]).await;
    let mut paused = command(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    service.first_series().await;
    let (_, stored) = api.store.savings(&[id.parse().unwrap()]).await.unwrap().remove(0);
    let report: Value = serde_json::from_str(report).unwrap();
    for row in report["stages"].as_array().unwrap() {
        let stage = row["stage"].as_str().unwrap();
        assert_eq!(stored.stages[stage], row["ms"]["mean"].as_f64().unwrap(), "{stage}");
    }
    let promised = report["findings"].as_array().unwrap();
    let promised = promised.iter().filter(|it| it["max_saving"]["ms"].is_number()).count();
    assert_eq!(stored.promises.len(), promised);
}

#[tokio::test]
async fn a_baseline_in_the_list_is_the_one_that_was_set() {
    let api = Api::new().await;
    let runs = history(&api).await;
    let rule = json!({ "name": "nightly", "label": "main" });
    assert_eq!(send(&api, "/baselines", &rule).await.status, StatusCode::OK);
    let settings = api.get("/baselines").await.json()["baselines"].clone();
    assert_eq!((&settings[0]["name"], &settings[0]["label"]), (&json!("nightly"), &json!("main")));
    assert_eq!(settings[1]["run_id"], json!(runs[19]));
}
