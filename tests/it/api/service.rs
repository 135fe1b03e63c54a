//! The service itself: queue, metrics, CORS and the concurrency limit.

use axum::http::{Method, header};
use llmprof_core::{
    domain::state::{RunState, Step, StepRecord, StepState},
    trace::power::{GpuReading, PowerSample},
};
use serde_json::{Value, json};

use super::{
    access::api,
    router::{Api, MODEL},
};

#[tokio::test]
async fn the_queue_estimates_starts_from_past_runs_only() {
    let api = api(|_| ()).await;
    let first = api.submit(json!({ "mode": "basic" })).await;
    let second = api.submit(json!({ "mode": "basic" })).await;
    let queue = api.get("/queue").await.json();
    let of = |queue: &Value| -> Vec<(String, u64, bool, bool)> {
        let waiting = queue["waiting"].as_array().unwrap();
        waiting
            .iter()
            .map(|it| {
                let known = (it["expected_start"].is_string(), it["unknown_because"].is_string());
                (
                    it["run_id"].as_str().unwrap().to_owned(),
                    it["position"].as_u64().unwrap(),
                    known.0,
                    known.1,
                )
            })
            .collect()
    };
    assert_eq!(of(&queue), [(first, 1, true, false), (second.clone(), 2, false, true)]);
    let run = api.start().await;
    api.end(&run, RunState::Succeeded, &[("report.md", "#")]).await;
    let third = api.submit(json!({ "mode": "basic" })).await;
    assert_eq!(
        of(&api.get("/queue").await.json()),
        [(second, 1, true, false), (third, 2, true, false)]
    );
}

#[tokio::test]
async fn metrics_count_runs_and_responses_by_route() {
    let api = api(|_| ()).await;
    api.submit(json!({})).await;
    let answer = api.get("/metrics").await;
    assert!(answer.header(header::CONTENT_TYPE).starts_with("application/openmetrics-text"));
    let text = answer.text();
    assert!(!text.contains("gpu"), "no GPU");
    let route = r#"llmprof_http_request_duration_seconds_count{method="POST",route="/runs",status="202"} 1"#;
    for line in [
        r#"llmprof_runs{state="queued"} 1"#,
        r#"llmprof_runs{state="failed"} 0"#,
        route,
        "llmprof_artifacts_bytes 0",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn metrics_include_gpus_and_step_durations_of_deleted_runs() {
    let sample = PowerSample { power_w: Some(321.5), gpu_pct: Some(40), ..PowerSample::default() };
    let api = Api::with_gpus(vec![GpuReading {
        uuid: "GPU-1".into(),
        name: "NVIDIA H200".into(),
        sample,
    }])
    .await;
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let step = |ended: Option<&str>, state| StepRecord {
        step: Step::Baseline,
        state,
        started_at: "2026-11-20T09:00:00.000Z".into(),
        ended_at: ended.map(str::to_owned),
        exit_code: None,
        message: None,
    };
    let ended = step(Some("2026-11-20T09:00:07.500Z"), StepState::Succeeded);
    api.store.save_steps(&run, &[step(None, StepState::Running)]).await.unwrap();
    // The clock was set back during the second step, whose duration counts as zero.
    let back = step(Some("2026-11-20T08:00:00.000Z"), StepState::Succeeded);
    for _ in 0..2 {
        api.store.save_steps(&run, &[ended.clone(), back.clone()]).await.unwrap();
    }
    api.end(&run, RunState::Succeeded, &[("report.md", "#")]).await;
    assert_eq!(api.ask(Method::DELETE, &format!("/runs/{id}"), &[], "").await.status, 204);
    let text = api.get("/metrics").await.text();
    for line in [
        r#"llmprof_gpu_power_watts{uuid="GPU-1",name="NVIDIA H200"} 321.5"#,
        r#"llmprof_gpu_busy_ratio{uuid="GPU-1",name="NVIDIA H200"} 0.4"#,
        r#"llmprof_step_duration_seconds_bucket{le="0.1",step="baseline",state="succeeded"} 1"#,
        r#"llmprof_step_duration_seconds_bucket{le="15.0",step="baseline",state="succeeded"} 2"#,
        r#"llmprof_step_duration_seconds_bucket{le="+Inf",step="baseline",state="succeeded"} 2"#,
        r#"llmprof_step_duration_seconds_count{step="baseline",state="succeeded"} 2"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let sum = text
        .lines()
        .find_map(|line| line.strip_prefix("llmprof_step_duration_seconds_sum"))
        .unwrap();
    let sum: f64 = sum.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((sum - 7.5).abs() < 0.01, "{sum}");
    assert!(!text.contains("gpu_temperature"), "a missing reading has no line");
}

#[tokio::test]
async fn cors_allows_the_configured_origins() {
    let listed = api(|access| access.origins = vec!["https://tools.example".into()]).await;
    let ask = async |origin: &str| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        let headers = [
            headers[0],
            headers[1],
            ("access-control-request-headers", "authorization,content-type"),
        ];
        listed.ask(Method::OPTIONS, "/runs", &headers, "").await
    };
    let answer = ask("https://tools.example").await;
    let allowed = answer.header(header::ACCESS_CONTROL_ALLOW_HEADERS);
    assert_eq!(
        (answer.status.as_u16(), answer.header(header::ACCESS_CONTROL_ALLOW_ORIGIN)),
        (200, "https://tools.example")
    );
    assert!(allowed.contains("authorization") && allowed.contains("idempotency-key"), "{allowed}");
    assert!(answer.header(header::ACCESS_CONTROL_ALLOW_METHODS).contains("DELETE"));
    assert_eq!(answer.header(header::ACCESS_CONTROL_ALLOW_CREDENTIALS), "");
    assert_eq!(ask("https://evil.example").await.header(header::ACCESS_CONTROL_ALLOW_ORIGIN), "");
    let unlisted = api(|_| ()).await;
    let answer =
        unlisted.ask(Method::GET, "/runs", &[("origin", "https://tools.example")], "").await;
    assert_eq!(answer.header(header::ACCESS_CONTROL_ALLOW_ORIGIN), "");
}

#[tokio::test]
async fn requests_above_the_concurrency_limit_are_refused_except_health() {
    let api = api(|access| access.concurrent_requests = 1).await;
    // A submission whose body is pending occupies the only permit.
    let (body, sender) = {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(1);
        (
            axum::body::Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver)),
            sender,
        )
    };
    let headers = [("content-type", "application/json")];
    let (held, refused) = tokio::join!(api.ask(Method::POST, "/runs", &headers, body), async {
        let mut refused = api.get("/runs").await;
        while refused.status == 200 {
            tokio::task::yield_now().await;
            refused = api.get("/runs").await;
        }
        assert_eq!(api.get("/healthz").await.status, 200);
        sender.send(Ok(json!({ "model": MODEL }).to_string())).await.unwrap();
        drop(sender);
        refused
    });
    assert_eq!((held.status.as_u16(), refused.error()), (202, (503, "overloaded".into())));
    assert_eq!(refused.header(header::RETRY_AFTER), "1");
    assert_eq!(api.get("/runs").await.status, 200);
}
