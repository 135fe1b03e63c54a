//! Permission to read a GPU's counters, which the preflight reports.

use serde_json::json;

use crate::support::deep::{DeepHost, deep};

#[tokio::test]
async fn a_run_that_only_samples_counters_is_told_in_preflight_that_they_are_forbidden() {
    let host = DeepHost::new();
    host.forbid_counters();
    let service = host.serve();
    let mut body = deep();
    body["profiling"]["ncu"] = json!({ "enabled": false });
    body["profiling"]["gemm_log"] = json!({ "enabled": false });
    let id = service.submit(body.clone()).await;
    let run = service.end(&id).await;
    let ids = |run: &serde_json::Value| -> Vec<String> {
        let findings = run["findings"].as_array().unwrap().iter();
        findings.map(|it| it["id"].as_str().unwrap().to_owned()).collect()
    };
    assert!(ids(&run).contains(&"counters_forbidden".into()), "{run:#}");
    body["profiling"]["gpu_metrics"] = json!({ "enabled": false });
    let id = service.submit(body).await;
    let run = service.end(&id).await;
    assert!(!ids(&run).contains(&"counters_forbidden".into()), "{run:#}");
}
