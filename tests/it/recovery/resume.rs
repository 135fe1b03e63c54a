//! Runs that are interrupted after their unprofiled pass continue with the pass that was cut off,
//! if nothing has changed; otherwise they repeat all passes, and the report states why.

use std::fs;

use llmprof_service::collect::tools;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::survive::assert_in_order;
use crate::support::{
    deep::{DeepHost, PASSES, deep},
    extent,
    service::{self, Service, processes_of},
};

/// A part of the model of these runs.
const PART: &str = "decoder.layers.1.self_attn";

fn is_up(event: &Value) -> bool {
    event["event"] == "log" && event["line"] == "up"
}

fn finding(run: &Value, id: &str) -> Value {
    let findings = run["findings"].as_array().unwrap();
    findings.iter().find(|it| it["id"] == id).cloned().unwrap_or_default()
}

/// Submits a deep run and stops the service in one of its passes.
async fn interrupt(host: &DeepHost, pass: &str, signal: Signal) -> String {
    host.hang_in(pass);
    let service = host.serve();
    let id = service.submit(deep()).await;
    let events = service.follow(&id, is_up).await;
    assert!(is_up(events.last().unwrap()), "{events:#?}");
    service.stop(signal);
    host.hang_nowhere();
    id
}

async fn report(service: &Service, id: &str) -> Value {
    service.json(&format!("/runs/{id}/artifacts/report.json")).await
}

#[tokio::test]
async fn a_deep_run_stopped_or_killed_in_a_pass_continues_with_that_pass() {
    let interruptions = [
        ("nsys", Signal::SIGTERM, 1),
        ("ncu/process-2", Signal::SIGTERM, 1),
        ("gemm_log/all", Signal::SIGKILL, 2),
        ("ncu/process-1", Signal::SIGKILL, 2),
        ("gpu_metrics/rate-20000", Signal::SIGKILL, 2),
    ];
    for (pass, signal, attempts) in interruptions.into_iter().take(extent(3, 5)) {
        let host = DeepHost::new();
        let passes = match pass {
            "ncu/process-2" => host.lengthen_symbols(),
            _ => PASSES.to_vec(),
        };
        let id = interrupt(&host, pass, signal).await;
        let earlier: Value = serde_json::from_slice(
            &fs::read(host.data.join("runs").join(&id).join("passes.json")).unwrap(),
        )
        .unwrap();
        let events = fs::read(host.data.join("runs").join(&id).join("baseline/events.jsonl"));

        let service = host.serve();
        let run = service.end(&id).await;
        assert_eq!(run["attempts"], attempts, "{run:#}");
        assert!(run["state"] == "succeeded" || run["state"] == "partial", "{run:#}");
        for step in run["steps"].as_array().unwrap() {
            assert_eq!(step["state"], "succeeded", "{run:#}");
        }
        let metrics = service.get("/metrics").await.text().await.unwrap();
        let steps = r#"llmprof_step_duration_seconds_count{step="baseline",state="succeeded"} 1"#;
        assert!(metrics.lines().any(|line| line == steps), "{metrics}");
        // The pass that was cut off ran twice, each other one once.
        let cut = passes.iter().position(|it| *it == pass).unwrap();
        // The two passes of the GEMM log are one.
        let from = if pass == "gemm_log/all" { cut - 1 } else { cut };
        let mut expected = passes[..=cut].to_vec();
        expected.push("clock_check/baseline");
        expected.extend(&passes[from..]);
        assert_eq!(host.starts(), expected);

        let used = finding(&run, "passes_reused");
        assert_eq!(used["evidence"]["median SM clock"], "1755 MHz then, 1755 MHz now", "{run:#}");
        for earlier in earlier["passes"].as_array().unwrap() {
            let text = used["evidence"][earlier["name"].as_str().unwrap()].as_str().unwrap();
            assert!(text.contains(earlier["started_at"].as_str().unwrap()), "{used:#}");
        }
        assert_eq!(finding(&run, "passes_repeated"), Value::Null);
        let kept = fs::read(service.run_dir(&id).join("baseline/events.jsonl"));
        assert_eq!(kept.unwrap(), events.unwrap(), "the timings are of the earlier attempt");
        let report = report(&service, &id).await;
        assert_eq!(finding(&report, "passes_reused")["message"], used["message"]);
        assert_eq!(processes_of(&id), [""; 0]);
        assert!(service.stop(Signal::SIGTERM).success());
        assert_in_order(&host.data);
    }
}

#[tokio::test]
async fn a_run_continues_after_each_of_several_interruptions() {
    let host = DeepHost::new();
    let id = interrupt(&host, "nsys", Signal::SIGTERM).await;
    host.hang_in("gemm_log/prefill");
    let service = host.serve();
    // The first is of the first attempt.
    let ups = std::cell::Cell::new(0);
    service.follow(&id, |event| is_up(event) && ups.replace(ups.get() + 1) == 1).await;
    assert!(service.stop(Signal::SIGTERM).success());
    host.hang_nowhere();
    let service = host.serve();
    let run = service.end(&id).await;
    assert_eq!(run["attempts"], 1, "{run:#}");
    let starts = host.starts();
    let count = |pass: &str| starts.iter().filter(|it| *it == pass).count();
    assert_eq!(PASSES.map(count), [1, 2, 1, 1, 2, 1], "{starts:?}");
    let used = finding(&run, "passes_reused");
    for pass in ["baseline", "nsys", "gpu_metrics/rate-20000", "ncu/process-1"] {
        assert!(used["evidence"][pass].is_string(), "{used:#}");
    }
}

/// Any of these conditions is enough. Clocks are compared only if all others are equal.
#[tokio::test]
async fn passes_are_repeated_if_anything_has_changed_and_the_report_states_what() {
    type Change = fn(&DeepHost, &str);
    let changes: [(&[&str], &str, Change); 3] = [
        (&["program", "inputs", "nsys", "settings"], "ncu/process-1", |host, _| {
            host.replace_runner();
            let path = host.folder().join("inputs/inputs-text.yaml");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replace("Explain", "Describe")).unwrap();
            host.put("nsys-version", "2025.5.1.1");
        }),
        (&["median SM clock"], "nsys", |host, _| host.put("sm-mhz", "1600")),
        (&["file"], "nsys", |host, id| {
            let path = host.data.join("runs").join(id).join("baseline/events.jsonl");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replacen('1', "2", 1)).unwrap();
        }),
    ];
    for (conditions, cut, change) in changes {
        let host = DeepHost::new();
        let id = interrupt(&host, cut, Signal::SIGTERM).await;
        change(&host, &id);
        let mut command = host.command();
        if conditions.contains(&"settings") {
            command.env("OMP_NUM_THREADS", "3");
        }
        let service = Service::spawn(&mut command, &host.data);
        let run = service.end(&id).await;
        let starts = host.starts();
        let cut = PASSES.iter().position(|it| *it == cut).unwrap();
        let expected: Vec<usize> = (0..PASSES.len()).map(|at| 1 + usize::from(at <= cut)).collect();
        let count = |pass: &str| starts.iter().filter(|it| *it == pass).count();
        assert_eq!(PASSES.map(count), expected[..], "{conditions:?}: {starts:?}");
        let repeated = finding(&run, "passes_repeated");
        let named: Vec<&String> = repeated["evidence"].as_object().unwrap().keys().collect();
        assert!(conditions.iter().all(|it| named.contains(&&it.to_string())), "{run:#}");
        assert_eq!(named.len(), conditions.len(), "{run:#}");
        assert_eq!(finding(&run, "passes_reused"), Value::Null);
        let report = report(&service, &id).await;
        assert_eq!(finding(&report, "passes_repeated")["message"], repeated["message"]);
        assert!(service.stop(Signal::SIGTERM).success());
        assert_in_order(&host.data);
    }
}

#[tokio::test]
async fn a_damaged_later_pass_is_repeated_and_those_before_it_are_used() {
    let host = DeepHost::new();
    let id = interrupt(&host, "ncu/process-1", Signal::SIGKILL).await;
    fs::write(host.data.join("runs").join(&id).join("nsys/run.sqlite"), "").unwrap();
    let service = host.serve();
    let run = service.end(&id).await;
    let starts = host.starts();
    let count = |pass: &str| starts.iter().filter(|it| *it == pass).count();
    assert_eq!(PASSES.map(count), [1, 2, 2, 2, 1, 1], "{starts:?}");
    let used = finding(&run, "passes_reused");
    let repeated = "nsys/run.sqlite, of pass nsys, is empty";
    assert_eq!(used["evidence"]["repeated"], repeated, "{run:#}");
}

#[tokio::test]
async fn a_part_continues_with_the_pass_of_the_side_that_was_cut_off() {
    let host = DeepHost::new();
    host.hang_in("extracted/baseline");
    let service = host.serve();
    let mut body = deep();
    for (field, value) in [("mode", "light"), ("target", PART), ("align_with", "e2e")] {
        body[field] = value.into();
    }
    let id = service.submit(body).await;
    service.follow(&id, is_up).await;
    assert!(service.stop(Signal::SIGTERM).success());
    host.hang_nowhere();
    let service = host.serve();
    let run = service.end(&id).await;
    assert_eq!(
        host.starts(),
        [
            "baseline",
            "nsys",
            "mock/baseline",
            "mock/nsys",
            "extracted/baseline",
            "clock_check/baseline",
            "extracted/baseline",
            "extracted/nsys"
        ],
        "{run:#}"
    );
    let used = finding(&run, "passes_reused");
    assert!(used["evidence"]["mock/nsys"].is_string(), "{used:#}");
}

#[tokio::test]
async fn a_run_on_the_cpu_continues_under_the_real_nsys() {
    let nsys = tools::find_tool("nsys", None);
    let Some(nsys) = nsys else {
        let required = std::env::var_os("LLMPROF_REQUIRE_NSYS").is_some_and(|value| value == "1");
        assert!(!required, "nsys is required here and not installed");
        eprintln!("skipped: nsys is not installed (scripts/install-nsight.sh installs it)");
        return;
    };
    let host = DeepHost::new();
    let serve = || {
        let mut command = host.command();
        command.env("LLMPROF__TOOLS__NSYS", &nsys).env("LLMPROF__WORKER__DEVICES", r#"["cpu"]"#);
        Service::spawn(&mut command, &host.data)
    };
    host.hang_in("nsys");
    let service = serve();
    let mut body = deep();
    body["mode"] = json!("light");
    let id = service.submit(body).await;
    service.follow(&id, is_up).await;
    service.stop(Signal::SIGKILL);
    host.hang_nowhere();
    let service = serve();
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(2)), "{run:#}");
    assert_eq!(host.starts(), ["baseline", "nsys", "nsys"]);
    let used = finding(&run, "passes_reused");
    let evidence: Vec<&String> = used["evidence"].as_object().unwrap().keys().collect();
    assert_eq!(evidence, ["baseline"], "a CPU has no clocks to compare");
    let report = report(&service, &id).await;
    let stages = report["stages"].as_array().unwrap();
    assert!(stages.iter().any(|it| it["stage"] == "prefill"), "{stages:#?}");
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(&host.data);
}

#[tokio::test]
async fn a_follower_of_a_run_that_continues_sees_ids_that_grow_and_finished_steps_once() {
    let host = DeepHost::new();
    host.hang_in("ncu/process-1");
    let service = host.serve();
    let id = service.submit(deep()).await;
    service.follow(&id, is_up).await;
    let before = ids_and_events(&service, &id, None, is_up).await;
    service.stop(Signal::SIGKILL);
    host.hang_nowhere();
    let service = host.serve();
    let last = before.last().unwrap().0;
    let after = ids_and_events(&service, &id, last, |_| false).await;
    let ids: Vec<u64> = before.iter().chain(&after).filter_map(|(id, _)| *id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    let named = |name: &str| after.iter().filter(|(_, it)| it["event"] == name).count();
    assert_eq!((named("attempt"), named("end")), (1, 1));
    for step in ["baseline", "nsys"] {
        let events: Vec<&Value> =
            after.iter().map(|(_, it)| it).filter(|it| it["step"]["step"] == step).collect();
        let of_step = &events[0]["step"];
        assert_eq!((events.len(), &of_step["state"]), (1, &json!("succeeded")), "{events:#?}");
        assert_eq!(of_step["message"], "finished in an earlier attempt, and not repeated");
        let mut earlier = before.iter().filter(|(_, it)| it["step"]["step"] == step);
        let ended = &earlier.next_back().unwrap().1["step"];
        assert_eq!(of_step["started_at"], ended["started_at"]);
    }
}

/// Events of a run with their ids, after the event `last`, until one satisfies `wanted`.
async fn ids_and_events(
    service: &Service,
    run: &str,
    last: Option<u64>,
    wanted: impl Fn(&Value) -> bool,
) -> Vec<(Option<u64>, Value)> {
    let mut request = service::client().get(format!("{}/runs/{run}/events", service.base));
    if let Some(last) = last {
        request = request.header("last-event-id", last.to_string());
    }
    let mut response = request.send().await.unwrap();
    let (mut events, mut text, mut id) = (Vec::new(), String::new(), None);
    while let Some(chunk) = response.chunk().await.unwrap() {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some(end) = text.find('\n') {
            let line: String = text.drain(..=end).collect();
            if let Some(number) = line.strip_prefix("id:") {
                id = Some(number.trim().parse().unwrap());
            } else if let Some(data) = line.strip_prefix("data:") {
                events.push((id.take(), serde_json::from_str(data).unwrap()));
                if wanted(&events.last().unwrap().1) {
                    return events;
                }
            }
        }
    }
    events
}
