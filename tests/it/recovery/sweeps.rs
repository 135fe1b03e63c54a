//! The service is killed twice in the middle of a sweep.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    recovery::survive::assert_in_order,
    support::service::{MODEL, Service, Setup, pause},
};

/// Waits until so many points of the sweep have figures; returns the sweep.
pub async fn until(service: &Service, id: &str, measured: u64) -> Value {
    let waiting = async {
        loop {
            let sweep = service.json(&format!("/sweeps/{id}")).await;
            if sweep["counts"]["measured"].as_u64().unwrap() >= measured {
                return sweep;
            }
            pause().await;
        }
    };
    let limit = std::time::Duration::from_secs(300);
    tokio::time::timeout(limit, waiting).await.expect("the sweep does not progress")
}

#[tokio::test]
async fn a_sweep_of_24_points_killed_twice_measures_each_point_once() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let body = json!({
        "base": { "model": MODEL, "repeats": 1, "warmup": 0 },
        "axes": {
            "new_tokens": { "from": 1, "to": 4 }, "prompt_tokens": [8, 16, 32],
            "dtype": ["f32", "f16"],
        },
    });
    let (status, answer) = service.post("/sweeps", &body).await;
    assert_eq!(status, 202, "{answer:#}");
    let id = answer["sweep_id"].as_str().unwrap().to_owned();
    let mut service = service;
    for measured in [5, 14] {
        let sweep = until(&service, &id, measured).await;
        assert_eq!(sweep["state"], "running", "{sweep:#}");
        service.stop(Signal::SIGKILL);
        service = Service::start(data.path(), &Setup::default());
    }
    let mut sweep = until(&service, &id, 24).await;
    while sweep["state"] != "done" {
        sweep = until(&service, &id, 24).await;
    }
    let runs: BTreeSet<&str> = sweep["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["run_id"].as_str().unwrap())
        .collect();
    assert_eq!(runs.len(), 24);
    let listed = service.json("/runs?limit=200").await;
    let succeeded = |it: &&Value| it["state"] == "succeeded";
    let all = listed["runs"].as_array().unwrap();
    assert_eq!((all.len(), all.iter().filter(succeeded).count()), (24, 24), "{listed:#}");
    let results = service.json(&format!("/sweeps/{id}/results")).await;
    for row in results["rows"].as_array().unwrap() {
        assert!(row["ttft_ms"].is_f64() && row["stages"]["prefill"].is_f64(), "{row:#}");
    }
    assert!(!results["front"].as_array().unwrap().is_empty());
    assert!(!results["operators"].as_array().unwrap().is_empty());

    // The same grid again is measured already.
    let (_, again) = service.post("/sweeps", &body).await;
    let again = until(&service, again["sweep_id"].as_str().unwrap(), 24).await;
    assert_eq!(again["counts"]["reused"], 24, "{again:#}");
    assert_eq!(service.json("/runs?limit=200").await["runs"].as_array().unwrap().len(), 24);
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}
