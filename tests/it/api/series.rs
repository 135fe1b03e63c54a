//! Series, baselines and gates over the API.

use std::collections::BTreeSet;

use axum::http::{Method, StatusCode};
use llmprof_core::domain::{
    headline::{FigureName, Headline, SeriesPoint, series_id},
    ids::RunId,
    outcome::Outcome,
    state::RunState,
};
use llmprof_report::headline;
use llmprof_service::store::StoredChange;
use serde_json::{Value, json};

use crate::{
    api::{
        diff::golden,
        router::{Answer, Api},
    },
    support::service::{Service, Setup, command},
};

/// The point of a run with one time per token.
pub fn point(device: &str, tpot: Option<f64>) -> SeriesPoint {
    let facts = [("name", "tiny"), ("device", device)];
    SeriesPoint {
        identity: facts.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        headline: Headline { tpot, ttft: Some(5.0), ..Headline::default() },
        build: "0.1.0".into(),
        device: Some(device.into()),
        ..SeriesPoint::default()
    }
}

#[test]
fn runs_that_differ_in_their_seed_alone_are_of_two_series_and_the_default_seed_is_not_a_fact() {
    let of = |seed: u64| {
        let mut run = golden("cpu-report.json").unwrap();
        run["spec"]["subject"]["workload"]["seed"] = json!(seed);
        headline::point(&serde_json::from_value(run).unwrap()).identity
    };
    assert_eq!(of(0).get("seed"), None);
    let ids: BTreeSet<String> = [0, 7, 8].into_iter().map(|seed| series_id(&of(seed))).collect();
    assert_eq!(ids.len(), 3);
}

/// Runs `settings` to its end with this time per token.
pub async fn measured(api: &Api, settings: Value, device: &str, tpot: Option<f64>) -> String {
    ended(api, settings, point(device, tpot)).await
}

/// Runs `settings` to its end with these figures.
pub async fn ended(api: &Api, settings: Value, point: SeriesPoint) -> String {
    let id = api.submit(settings).await;
    let run = api.start().await;
    let outcome = Outcome {
        state: RunState::Succeeded,
        failed_step: None,
        message: None,
        findings: vec![],
        artifacts: vec![],
        series: Some(Box::new(point)),
    };
    assert!(api.store.finish(&run, &outcome).await.unwrap());
    id
}

pub async fn send(api: &Api, path: &str, body: &Value) -> Answer {
    api.ask(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
}

/// Four builds of five runs with a noise of about 1 %; the last of `main`, the baseline.
pub async fn history(api: &Api) -> Vec<String> {
    let mut runs = Vec::new();
    for build in 0..4 {
        for value in [9.9, 10.0, 10.1, 9.95, 10.05] {
            let settings = json!({ "revision": format!("r{build}"), "labels": ["main"] });
            runs.push(measured(api, settings, "H200", Some(value)).await);
        }
    }
    let body = json!({ "name": "main", "run_id": runs.last() });
    assert_eq!(send(api, "/baselines", &body).await.status, StatusCode::OK);
    runs
}

pub async fn gate(api: &Api, more: Value) -> Value {
    let mut body = json!({ "baseline": "main", "fail_on": { "slower": 3 } });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = send(api, "/gates", &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

#[tokio::test]
async fn a_run_appears_in_its_series_with_the_change_from_the_previous_one() {
    let api = Api::new().await;
    let a = measured(&api, json!({ "revision": "r1" }), "H200", Some(10.0)).await;
    let _other = measured(&api, json!({}), "H100", Some(50.0)).await;
    let b = measured(&api, json!({ "revision": "r2" }), "H200", Some(11.0)).await;
    let list = api.get("/runs").await.json();
    let run = &list["runs"][0];
    assert_eq!((&run["run_id"], &run["revision"]), (&json!(b), &json!("r2")));
    assert_eq!((&run["headline"]["tpot"], &run["device"]), (&json!(11.0), &json!("H200")));
    assert!((run["change_pct"]["tpot"].as_f64().unwrap() - 10.0).abs() < 1e-9);
    assert!(run["headline"].get("mfu").is_none(), "not measured");
    assert!(list["runs"][1]["change_pct"].is_null(), "the first of its series");
    let series = api.get("/series").await.json();
    assert_eq!(series["series"].as_array().unwrap().len(), 2);
    let id = series["series"][0]["id"].as_str().unwrap();
    assert_eq!(run["series"], id);
    let view = api.get(&format!("/series/{id}?limit=1")).await.json();
    assert_eq!(view["points"][0]["run_id"], json!(b));
    let cursor = view["next_cursor"].as_str().unwrap();
    let rest = api.get(&format!("/series/{id}?cursor={cursor}")).await.json();
    assert_eq!(rest["points"][0]["run_id"], json!(a));
    assert!(rest["next_cursor"].is_null() && rest["noise_pct"].get("tpot").is_none());
    assert_eq!(api.get(&format!("/series/{}", "0".repeat(32))).await.error().0, 404);
    assert_eq!(api.get("/series/..%2F").await.error().0, 400);
    // The next series belongs to the older run.
    let next = api.get("/series?limit=1").await.json();
    let next = api.get(&format!("/series?cursor={}", next["next_cursor"].as_str().unwrap())).await;
    assert_eq!(next.json()["series"][0]["device"], "H100");
}

#[tokio::test]
async fn runs_are_filtered_by_each_fact_and_sorted_by_a_figure_over_pages() {
    let api = Api::new().await;
    let mut ids = Vec::new();
    for (value, labels) in [(11.0, json!(["a", "b"])), (10.0, json!(["a"])), (12.0, json!(["b"]))] {
        let settings = json!({ "labels": labels, "revision": format!("r{value}") });
        ids.push(measured(&api, settings, "H200", Some(value)).await);
    }
    let _without = measured(&api, json!({ "mode": "basic" }), "H100", None).await;
    let of = async |query: &str| -> Vec<String> {
        let list = api.get(&format!("/runs?{query}")).await;
        assert_eq!(list.status, StatusCode::OK, "{query}: {}", list.text());
        let runs = list.json()["runs"].as_array().unwrap().clone();
        runs.iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
    };
    let [a, b, c] = [0, 1, 2].map(|at| ids[at].clone());
    assert_eq!(of("sort=tpot").await, [b.clone(), a.clone(), c.clone()]);
    let first = api.get("/runs?sort=tpot&limit=2").await.json();
    let cursor = first["next_cursor"].as_str().unwrap();
    assert_eq!(of(&format!("sort=tpot&cursor={cursor}")).await, std::slice::from_ref(&c));
    assert_eq!(of("labels=a,b").await, std::slice::from_ref(&a));
    assert_eq!(of("device=H200").await.len(), 3);
    assert_eq!(of("revision=r12").await, [c]);
    assert_eq!(of("mode=basic").await.len(), 1);
    assert_eq!(of("owner=absent").await.len(), 0);
    assert_eq!(of("since=2020-01-01T00:00:00Z&until=2021-01-01T00:00:00Z").await.len(), 0);
    let series = api.get("/runs?device=H200").await.json()["runs"][0]["series"].clone();
    assert_eq!(of(&format!("series={}", series.as_str().unwrap())).await.len(), 3);
    for invalid in ["sort=size", "since=soon", "sort=tpot;drop"] {
        assert_eq!(api.get(&format!("/runs?{invalid}")).await.error().0, 400, "{invalid}");
    }
}

#[tokio::test]
async fn a_gate_finds_a_regression_passes_equal_code_and_asks_for_repeats() {
    let api = Api::new().await;
    let runs = history(&api).await;
    let slow = measured(&api, json!({ "revision": "slow" }), "H200", Some(11.0)).await;
    let found = gate(&api, json!({ "runs": [slow] })).await;
    assert_eq!(found["verdict"], "regression", "{found}");
    assert_eq!(found["baseline_runs"].as_array().unwrap().len(), 5, "all of the build");
    let figures = found["figures"].as_array().unwrap();
    let verdicts: Vec<_> = figures.iter().map(|it| (&it["figure"], &it["verdict"])).collect();
    assert_eq!(
        verdicts,
        [(&json!("ttft"), &json!("passed")), (&json!("tpot"), &json!("regression"))]
    );
    let equal = measured(&api, json!({ "revision": "r3" }), "H200", Some(10.0)).await;
    assert_eq!(gate(&api, json!({ "runs": [equal] })).await["verdict"], "passed");
    let unclear = measured(&api, json!({ "revision": "r4" }), "H200", Some(10.25)).await;
    let open = gate(&api, json!({ "runs": [unclear] })).await;
    assert_eq!((&open["verdict"], &open["more_runs"]), (&json!("inconclusive"), &json!(true)));
    let last = gate(&api, json!({ "runs": [unclear], "max_runs": 1 })).await;
    assert_eq!((&last["verdict"], &last["more_runs"]), (&json!("inconclusive"), &json!(false)));
    let accepted = gate(&api, json!({ "runs": [slow], "accept": "a known trade" })).await;
    assert_eq!(
        (&accepted["verdict"], &accepted["accepted"]),
        (&json!("regression"), &json!("a known trade"))
    );
    assert!(runs.len() == 20);
}

#[tokio::test]
async fn what_cannot_be_compared_is_inconclusive_with_its_reason() {
    let api = Api::new().await;
    let runs = history(&api).await;
    let reason = async |body: Value| {
        let report = gate(&api, body).await;
        assert_eq!(
            (&report["verdict"], &report["more_runs"]),
            (&json!("inconclusive"), &json!(false))
        );
        report["reasons"][0].as_str().unwrap_or_default().to_owned()
    };
    let other = measured(&api, json!({}), "H100", Some(10.0)).await;
    assert!(reason(json!({ "runs": [other] })).await.ends_with("different device"));
    let queued = api.submit(json!({})).await;
    assert!(reason(json!({ "runs": [queued] })).await.contains("has not ended: it is queued"));
    let run = api.start().await;
    assert!(reason(json!({ "runs": [queued] })).await.contains("it is running"));
    api.end(&run, RunState::Failed, &[]).await;
    assert!(reason(json!({ "runs": [queued] })).await.contains("ended failed"));
    let lacking = measured(&api, json!({}), "H200", None).await;
    let report = gate(&api, json!({ "runs": [lacking] })).await;
    let absent = report["figures"].as_array().unwrap().iter().find(|it| it["figure"] == "tpot");
    assert_eq!(absent.unwrap()["reason"], "not measured in the candidate");
    assert_eq!(report["verdict"], "inconclusive");
    // The run of the baseline is deleted.
    let path = format!("/runs/{}", runs[19]);
    assert_eq!(api.ask(Method::DELETE, &path, &[], "").await.status, StatusCode::NO_CONTENT);
    assert!(reason(json!({ "runs": [runs[0]] })).await.contains("was deleted"));
    let rule = json!({ "name": "main", "label": "main" });
    assert_eq!(send(&api, "/baselines", &rule).await.status, StatusCode::OK);
    let newest = gate(&api, json!({ "runs": [runs[0]] })).await;
    assert_eq!(newest["baseline_runs"][0], json!(runs[18]));
    assert!(reason(json!({ "runs": [other] })).await.contains("has the label \"main\""));
}

#[tokio::test]
async fn invalid_gates_and_baselines_are_refused() {
    let api = Api::new().await;
    let run = measured(&api, json!({}), "H200", Some(10.0)).await;
    let missing = RunId::now().to_string();
    let set = json!({ "name": "main", "run_id": run });
    for (name, changes, status) in [
        ("/baselines", json!({ "name": "<b>" }), 422),
        ("/baselines", json!({ "name": "" }), 422),
        ("/baselines", json!({ "name": "x".repeat(65) }), 422),
        ("/baselines", json!({ "label": "main" }), 409),
        ("/baselines", json!({ "run_id": missing }), 404),
        ("/gates", json!({}), 404),
    ] {
        let mut body = if name == "/gates" {
            json!({ "baseline": "main", "runs": [run] })
        } else {
            set.clone()
        };
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        assert_eq!(send(&api, name, &body).await.error().0, status, "{body}");
    }
    assert_eq!(send(&api, "/baselines", &set).await.status, StatusCode::OK);
    for changes in [
        json!({ "runs": [] }),
        json!({ "runs": vec![run.clone(); 6] }),
        json!({ "fail_on": { "size": 3 } }),
        json!({ "fail_on": { "slower": -1 } }),
        json!({ "max_runs": 6 }),
        json!({ "accept": "" }),
    ] {
        let mut body = json!({ "baseline": "main", "runs": [run] });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        assert_eq!(send(&api, "/gates", &body).await.error().0, 422, "{body}");
    }
    let twice = json!({ "baseline": "main", "runs": [run, run] });
    assert_eq!(send(&api, "/gates", &twice).await.error(), (409, "request_contradictory".into()));
    for revision in ["".to_owned(), "x".repeat(65), "a\nb".to_owned()] {
        let body = json!({ "model": crate::api::router::MODEL, "revision": revision });
        assert_eq!(api.post(&body).await.error().0, 422, "{revision:?}");
    }
    // A series of one run has no noise, and a removed baseline is none.
    let second = measured(&api, json!({}), "H200", Some(10.0)).await;
    let one = gate(&api, json!({ "runs": [second] })).await;
    assert_eq!(gate(&api, json!({ "runs": [second], "fail_on": {} })).await, one, "the default");
    assert_eq!((&one["verdict"], &one["more_runs"]), (&json!("inconclusive"), &json!(true)));
    assert_eq!(send(&api, "/baselines", &json!({ "name": "main" })).await.status, StatusCode::OK);
    let body = json!({ "baseline": "main", "runs": [second] });
    assert_eq!(send(&api, "/gates", &body).await.error(), (404, "baseline_not_found".into()));
    let settings = api.get("/baselines").await.json();
    assert_eq!(settings["baselines"].as_array().unwrap().len(), 2, "the history is kept");
}

#[tokio::test]
async fn a_deleted_run_leaves_its_series_and_a_series_ends_with_its_last_run() {
    let api = Api::new().await;
    let a = measured(&api, json!({}), "H200", Some(10.0)).await;
    let b = measured(&api, json!({}), "H200", Some(20.0)).await;
    let series = api.get("/series").await.json()["series"][0]["id"].as_str().unwrap().to_owned();
    let (first, last): (RunId, RunId) = (a.parse().unwrap(), b.parse().unwrap());
    let change =
        StoredChange { figure: FigureName::Tpot, run: last, before: 10.0, after: 20.0, p: 0.001 };
    api.store.store_change_points(&series, (first, last), &[change]).await.unwrap();
    assert_eq!(api.store.stale_series().await.unwrap(), None);
    let path = format!("/series/{series}");
    let found = api.get(&path).await.json();
    assert_eq!(found["change_points"][0]["change_pct"], 100.0);
    for (run, left) in [(&b, 200), (&a, 404)] {
        let deleted = api.ask(Method::DELETE, &format!("/runs/{run}"), &[], "").await;
        assert_eq!(deleted.status, StatusCode::NO_CONTENT);
        let answer = api.get(&path).await;
        assert_eq!(answer.status.as_u16(), left);
        if left == 200 {
            assert_eq!(answer.json()["change_points"], json!([]));
        }
    }
    assert_eq!(api.get("/series").await.json()["series"], json!([]));
}

#[tokio::test]
async fn a_run_that_ended_before_gets_its_point_from_its_report() {
    let api = Api::new().await;
    let report = include_str!("../../golden/cpu-report.json");
    let id = api.ended_with(&[("report.json", report)]).await;
    let unreadable = api.ended_with(&[("report.json", "{")]).await;
    assert_eq!(api.store.runs_without_point(9).await.unwrap().len(), 2);
    let mut paused = command(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    let series = service.first_series().await;
    let view = service.json(&format!("/series/{series}")).await;
    let points = view["points"].as_array().unwrap();
    assert_eq!((points.len(), &points[0]["run_id"]), (1, &json!(id)));
    let report: Value = serde_json::from_str(report).unwrap();
    let median = &report["aggregates"]["medians"]["tpot_ms"]["p50"];
    assert_eq!(median, &points[0]["headline"]["tpot"]);
    assert_eq!(view["series"]["identity"]["kind"], "model");
    let list = service.json("/runs").await;
    assert_eq!(list["runs"][0]["run_id"], json!(unreadable));
    assert!(list["runs"][0]["series"].is_null());
}
