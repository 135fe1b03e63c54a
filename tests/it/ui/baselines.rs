//! The page of baselines: set, replaced and removed by forms; gates and accepted regressions.

use axum::http::Method;
use llmprof_service::store::Role;
use serde_json::json;

use crate::{
    api::{
        router::Api,
        series::{gate, history, measured},
    },
    ui::{
        login::{api, login},
        page::{HOST, HOSTILE, UNKNOWN, assert_contains, location, page, post},
    },
};

const PAGE: &str = "/ui/baselines";

#[tokio::test]
async fn forms_set_replace_and_remove_a_baseline_and_its_history_stays() {
    let api = Api::new().await;
    let empty = page(&api.get(PAGE).await, 200);
    assert_contains(
        &empty,
        &["No baselines yet", "<form method=\"post\" action=\"/ui/baselines\""],
    );
    let run = measured(&api, json!({}), "H200", Some(10.0)).await;
    let linked = page(&api.get(&format!("{PAGE}?run_id={run}")).await, 200);
    assert!(linked.contains(&format!("name=\"run_id\" value=\"{run}\"")));
    let body = format!("name=main&run_id={run}&label=");
    assert_eq!(location(&post(&api, PAGE, &[], &body).await), PAGE);
    let text = page(&api.get(PAGE).await, 200);
    assert_contains(&text, &[&format!("href=\"/ui/runs/{run}\""), "No gate against it yet"]);
    assert!(!text.contains("Earlier settings"));
    location(&post(&api, PAGE, &[], "name=main&run_id=&label=nightly").await);
    let text = page(&api.get(PAGE).await, 200);
    assert_contains(&text, &["Earlier settings", "with the label", &format!("/ui/runs/{run}")]);
    location(&post(&api, PAGE, &[], "name=main&remove=remove").await);
    let settings = api.get("/baselines").await.json()["baselines"].clone();
    assert!(settings[0]["run_id"].is_null() && settings[0]["label"].is_null(), "{settings}");
    let text = page(&api.get(PAGE).await, 200);
    assert_contains(&text, &["Removed <time", "Earlier settings"]);
    assert!(!text.contains("aria-label=\"Remove main\""));
    for from in ["/ui/series".to_owned(), format!("/ui/runs/{run}")] {
        let text = page(&api.get(&from).await, 200);
        assert!(from.ends_with(&run) || text.contains("href=\"/ui/baselines\""), "{from}");
    }
}

#[tokio::test]
async fn a_refused_setting_is_in_the_form_again_with_the_reason() {
    let api = Api::new().await;
    for (body, status, reason) in [
        ("name=main&run_id=&label=".to_owned(), 422, "enter one of them"),
        ("name=main".to_owned(), 422, "enter one of them"),
        ("name=%3Cb%3E&label=x".to_owned(), 422, "invalid baseline"),
        (format!("name=main&run_id={UNKNOWN}"), 404, "no run"),
        (format!("name=main&run_id={UNKNOWN}&label=x"), 409, "set one of them"),
    ] {
        let text = page(&post(&api, PAGE, &[], &body).await, status);
        assert_contains(&text, &["role=\"alert\"", reason]);
        assert!(!text.contains("<b>"), "{body}");
    }
    assert_eq!(api.get("/baselines").await.json()["baselines"], json!([]));
}

#[tokio::test]
async fn the_last_gates_and_accepted_regressions_are_shown_escaped() {
    let api = Api::new().await;
    history(&api).await;
    let slow = measured(&api, json!({ "revision": "slow" }), "H200", Some(11.0)).await;
    let other = measured(&api, json!({}), "H100", Some(10.0)).await;
    gate(&api, json!({ "runs": [other] })).await;
    gate(&api, json!({ "runs": [slow] })).await;
    gate(&api, json!({ "runs": [slow], "accept": HOSTILE })).await;
    gate(&api, json!({ "runs": [slow], "fail_on": { "tpot": 60, "energy": 3 } })).await;
    let text = page(&api.get(PAGE).await, 200);
    assert_contains(
        &text,
        &[
            "badge regression",
            "badge inconclusive",
            "different device",
            "tpot 10.0 % worse",
            "wall: not measured on either side; dropped, because `slower`",
            "energy: not measured on either side</td>",
            "<small class=\"dim note\">accepted</small>",
            &format!("href=\"/ui/runs/{slow}\""),
            "&lt;script&gt;alert(1)",
        ],
    );
    assert!(!text.contains(HOSTILE) && !text.contains("<img src=x>"));
}

#[tokio::test]
async fn a_form_accepts_a_regression_with_a_reason() {
    let api = Api::new().await;
    history(&api).await;
    let slow = measured(&api, json!({ "revision": "slow" }), "H200", Some(11.0)).await;
    gate(&api, json!({ "runs": [slow], "fail_on": { "tpot": 4 } })).await;
    let text = page(&api.get(PAGE).await, 200);
    let fields = [format!("name=\"runs\" value=\"{slow}\""), "name=\"fail_on.tpot\"".into()];
    assert_contains(&text, &[&fields[0], &fields[1], "action=\"/ui/baselines/accept\""]);
    let accept = format!("{PAGE}/accept");
    let body = |run: &str, reason: &str| {
        format!("baseline=main&runs={run}&fail_on.tpot=4.0&reason={reason}")
    };
    for (body, status, problem) in [
        (body(&slow, ""), 422, "length of Reason"),
        (body(&slow, "x").replace("4.0", "much"), 422, "fail_on"),
        (body(&slow, "x").replace("4.0", "nan"), 422, "fail_on.tpot"),
        (body(&slow, "x").replace("4.0", "4&fail_on.tpot=90"), 422, "given more than once"),
        (body(UNKNOWN, "x"), 404, "no run"),
        (body(&slow, "x").replace("=4.0", "=40"), 409, "nothing to accept: gate passed"),
    ] {
        let text = page(&post(&api, &accept, &[], &body).await, status);
        assert_contains(&text, &["role=\"alert\"", problem]);
    }
    assert_eq!(api.get("/gates?accepted=true").await.json()["gates"], json!([]));
    let accepted = post(&api, &accept, &[], &body(&slow, "a+trade")).await;
    assert_eq!(location(&accepted), "/ui/baselines#accepted");
    let stored = api.get("/gates?accepted=true").await.json()["gates"][0]["gate"].clone();
    assert_eq!((&stored["accepted"], &stored["runs"]), (&json!("a trade"), &json!([slow])));
    let figures = stored["figures"].as_array().unwrap();
    assert_eq!((figures.len(), &figures[0]["threshold_pct"]), (1, &json!(4.0)));
}

#[tokio::test]
async fn the_form_accepts_a_gate_with_the_thresholds_that_it_was_requested_with() {
    let api = Api::new().await;
    history(&api).await;
    let slow = measured(&api, json!({ "revision": "slow" }), "H200", Some(11.0)).await;
    gate(&api, json!({ "runs": [slow], "fail_on": { "slower": 4, "ttft": 5 } })).await;
    let text = page(&api.get(PAGE).await, 200);
    let thresholds: Vec<&str> = text.lines().filter(|it| it.contains("\"fail_on.")).collect();
    assert_eq!(
        thresholds,
        [
            "<input type=\"hidden\" name=\"fail_on.ttft\" value=\"5.0\">",
            "<input type=\"hidden\" name=\"fail_on.slower\" value=\"4.0\">",
        ]
    );
    let body =
        format!("baseline=main&runs={slow}&fail_on.ttft=5.0&fail_on.slower=4.0&reason=a+trade");
    location(&post(&api, &format!("{PAGE}/accept"), &[], &body).await);
    let gates = api.get("/gates?limit=2").await.json()["gates"].clone();
    for list in ["figures", "dropped"] {
        assert_eq!(gates[0]["gate"][list], gates[1]["gate"][list], "{list}");
    }
    let text = page(&api.get(PAGE).await, 200);
    assert_eq!(text.matches("wall: not measured on either side; dropped").count(), 3);
}

#[tokio::test]
async fn a_viewer_sees_baselines_without_forms_and_cannot_set_one() {
    let api = api(|_| ()).await;
    let cookie = login(&api, "vera", Role::Viewer).await;
    let headers = [HOST, ("cookie", cookie.as_str())];
    let answer = api.ask(Method::GET, PAGE, &headers, "").await;
    let text = page(&answer, 200);
    assert!(text.contains("No baselines yet") && !text.contains("action=\"/ui/baselines\""));
    let refused = post(&api, PAGE, &headers[1..], "name=main&label=x").await;
    page(&refused, 403);
}
