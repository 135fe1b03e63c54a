//! Gates over the API and by the command: requested figures that were not measured, and exit codes.

use std::{fs, process::Command};

use llmprof_core::domain::headline::{FigureName, Headline, SeriesPoint};
use serde_json::{Value, json};

use crate::{
    api::{
        router::Api,
        series::{ended, gate, history, measured, point, send},
    },
    support::service::{Service, Setup, command},
};

/// Name and verdict of each figure of a gate, and the names of dropped ones.
fn reported(gate: &Value) -> (Vec<(&str, &str)>, Vec<&str>) {
    let rows = |list: &'static str| gate[list].as_array().unwrap().iter();
    let verdict = |it: &Value| it["verdict"].as_str().unwrap().to_owned();
    let figures = rows("figures").map(|it| (it["figure"].as_str().unwrap(), verdict(it)));
    let known = ["passed", "regression", "inconclusive"];
    let figures = figures.map(|(name, it)| (name, *known.iter().find(|v| **v == it).unwrap()));
    (figures.collect(), rows("dropped").map(|it| it["figure"].as_str().unwrap()).collect())
}

const PASSED: &str = "passed";
const OPEN: &str = "inconclusive";

#[tokio::test]
async fn a_named_figure_that_was_not_measured_is_inconclusive_and_one_of_slower_is_dropped() {
    let api = Api::new().await;
    history(&api).await;
    let equal = measured(&api, json!({ "revision": "r3" }), "H200", Some(10.0)).await;
    for (fail_on, verdict, figures, dropped) in [
        (json!({ "slower": 3 }), PASSED, vec![("ttft", PASSED), ("tpot", PASSED)], vec!["wall"]),
        (json!({}), PASSED, vec![("ttft", PASSED), ("tpot", PASSED)], vec!["wall"]),
        (json!({ "tpot": 3 }), PASSED, vec![("tpot", PASSED)], vec![]),
        (json!({ "tpot": 3, "wall": 60 }), OPEN, vec![("tpot", PASSED), ("wall", OPEN)], vec![]),
        (json!({ "wall": 60 }), OPEN, vec![("wall", OPEN)], vec![]),
        (json!({ "mfu": 5, "gpu_busy": 5 }), OPEN, vec![("gpu_busy", OPEN), ("mfu", OPEN)], vec![]),
        (
            json!({ "slower": 3, "energy": 10 }),
            OPEN,
            vec![("ttft", PASSED), ("tpot", PASSED), ("energy", OPEN)],
            vec!["wall"],
        ),
        (
            json!({ "slower": 3, "wall": 60 }),
            OPEN,
            vec![("ttft", PASSED), ("tpot", PASSED), ("wall", OPEN)],
            vec![],
        ),
    ] {
        let found = gate(&api, json!({ "runs": [equal], "fail_on": fail_on })).await;
        assert_eq!(found["verdict"], verdict, "{fail_on}: {found}");
        assert_eq!(reported(&found), (figures, dropped), "{fail_on}");
        for it in found["figures"].as_array().unwrap() {
            let is_open = it["reason"] == "not measured on either side";
            assert_eq!(is_open, it["verdict"] == OPEN, "{it}");
            let group = fail_on["slower"].is_number() || fail_on == json!({});
            let is_named = !group || fail_on[it["figure"].as_str().unwrap()].is_number();
            assert_eq!(it["requested"], if is_named { "named" } else { "slower" }, "{it}");
        }
        let stored = api.get("/gates?limit=1").await.json()["gates"][0]["gate"].clone();
        assert_eq!(stored, found, "the decision as it was answered");
    }
}

#[tokio::test]
async fn a_gate_of_slower_is_inconclusive_if_no_time_was_measured() {
    let api = Api::new().await;
    let mut runs = Vec::new();
    for energy in [1.0, 1.01, 0.99, 1.0] {
        let headline = Headline { energy: Some(energy), ..Headline::default() };
        let point = SeriesPoint { headline, ..point("H200", None) };
        runs.push(ended(&api, json!({}), point).await);
    }
    let body = json!({ "name": "main", "run_id": runs[0] });
    assert_eq!(send(&api, "/baselines", &body).await.status, 200);
    let times = vec![("ttft", OPEN), ("tpot", OPEN), ("wall", OPEN)];
    let found = gate(&api, json!({ "runs": [runs[3]] })).await;
    assert_eq!((&found["verdict"], &found["more_runs"]), (&json!(OPEN), &json!(false)), "{found}");
    assert_eq!(reported(&found), (times.clone(), vec![]));
    let with_energy = json!({ "slower": 3, "energy": 90 });
    let found = gate(&api, json!({ "runs": [runs[3]], "fail_on": with_energy })).await;
    assert_eq!(found["verdict"], OPEN, "{found}");
    assert_eq!(reported(&found), ([times, vec![("energy", PASSED)]].concat(), vec![]));
    let alone = gate(&api, json!({ "runs": [runs[3]], "fail_on": { "energy": 90 } })).await;
    assert_eq!(alone["verdict"], PASSED, "{alone}");
}

#[tokio::test]
async fn a_mean_of_an_earlier_version_is_called_so_and_has_no_verdict_against_a_median() {
    let api = Api::new().await;
    let mut runs = Vec::new();
    for (build, means) in [("0.1.0", vec![FigureName::Tpot]), ("0.2.0", vec![])] {
        for _ in 0..2 {
            let of = point("H200", Some(10.0));
            let point = SeriesPoint { build: build.into(), means: means.clone(), ..of };
            runs.push(ended(&api, json!({}), point).await);
        }
    }
    let body = json!({ "name": "main", "run_id": runs[1] });
    assert_eq!(send(&api, "/baselines", &body).await.status, 200);
    let found = gate(&api, json!({ "runs": [runs[3]], "fail_on": { "tpot": 3 } })).await;
    let figure = &found["figures"][0];
    assert_eq!((&figure["verdict"], &figure["statistic"]), (&json!(OPEN), &json!("mixed")));
    let reason = figure["reason"].as_str().unwrap();
    assert!(reason.contains("the baseline has means, the candidate medians"), "{reason}");
    let series = found["series"].as_str().unwrap();
    let points = api.get(&format!("/series/{series}")).await.json()["points"].clone();
    assert_eq!((&points[0]["means"], &points[3]["means"]), (&json!([]), &json!(["tpot"])));
}

#[tokio::test]
async fn without_a_revision_later_runs_are_not_of_the_baseline() {
    let api = Api::new().await;
    let mut runs = Vec::new();
    for tpot in [10.0, 10.1, 13.0, 13.1] {
        runs.push(measured(&api, json!({}), "H200", Some(tpot)).await);
    }
    let body = json!({ "name": "main", "run_id": runs[1] });
    assert_eq!(send(&api, "/baselines", &body).await.status, 200);
    let found = gate(&api, json!({ "runs": [runs[3]], "fail_on": { "tpot": 3 } })).await;
    assert_eq!(found["baseline_runs"], json!([runs[1], runs[0]]), "{found}");
}

#[test]
fn a_gate_with_invalid_arguments_or_without_a_service_exits_with_3() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.json"), "{").unwrap();
    for arguments in [
        &["--baseline", "main"][..],
        &["--baseline", "main", "--run", "x", "--submit", "run.json"],
        &["--baseline", "main", "--run", "x", "--max-runs", "9"],
        &["--baseline", "main", "--run", "x", "--fail-on", "slower"],
        &["--baseline", "main", "--submit", "run.json"],
        &["--baseline", "main", "--run", "x", "--server", "http://127.0.0.1:1"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_llmprof"))
            .arg("gate")
            .args(arguments)
            .current_dir(&folder)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_threshold_that_is_not_a_percentage_or_given_twice_is_refused_and_named() {
    for (fail_on, reason) in [
        ("tpot=nan", "expected a number from 0.01 to 1000"),
        ("tpot=inf", "expected a number from 0.01 to 1000"),
        ("tpot=0", "expected a number from 0.01 to 1000"),
        ("slower=3%,tpot=-3%", "expected a number from 0.01 to 1000"),
        ("tpot=3%,tpot=60%", "\"tpot\" is given more than once"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_llmprof"))
            .args(["gate", "--baseline", "main", "--run", "x", "--fail-on", fail_on])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(3) && text.contains(reason), "{fail_on}: {text}");
    }
}

/// Executes `llmprof gate` against a service; returns its exit code and output.
fn gate_command(service: &Service, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_llmprof"))
        .args(["gate", "--baseline", "main", "--server", &service.base])
        .args(arguments)
        .env_remove("LLMPROF_TOKEN")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn the_exit_code_of_a_gate_is_its_verdict_in_every_format() {
    let api = Api::new().await;
    history(&api).await;
    let slow = measured(&api, json!({ "revision": "slow" }), "H200", Some(11.0)).await;
    let equal = measured(&api, json!({ "revision": "r3" }), "H200", Some(10.0)).await;
    let unclear = measured(&api, json!({ "revision": "r4" }), "H200", Some(10.25)).await;
    let mut paused = command(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    for (format, mark) in [
        ("text", "gate regression: 1 passed, 1 regressed"),
        ("json", "\"verdict\": \"regression\""),
        ("junit", "failures=\"1\" errors=\"0\""),
        ("github", "::error title=llmprof: Median time per output token::"),
        ("markdown", "| Median time per output token (ms) |"),
    ] {
        let (code, text) = gate_command(&service, &["--run", &slow, "--format", format]);
        assert!(code == Some(1) && text.contains(mark), "{format}: {code:?} {text}");
    }
    let (code, text) = gate_command(&service, &["--run", &equal]);
    assert!(code == Some(0) && text.starts_with("gate passed"), "{code:?} {text}");
    let (code, text) = gate_command(&service, &["--run", &unclear, "--max-runs", "1"]);
    assert!(code == Some(2) && text.starts_with("gate inconclusive"), "{code:?} {text}");
    for remedy in ["test more runs of the candidate", "the baseline's build", "`repeats`"] {
        assert!(text.contains(remedy), "{remedy}: {text}");
    }
    let (code, _) = gate_command(&service, &["--run", &slow, "--accept", "a known trade"]);
    assert_eq!(code, Some(0));
    for (refused, start) in [
        (&["--run", "x"][..], "llmprof: invalid run \"x\""),
        (&["--run", &slow, "--fail-on", "size=3"], "llmprof: the service answered 4"),
    ] {
        let (code, text) = gate_command(&service, refused);
        assert!(code == Some(3) && text.starts_with(start), "{text}");
    }
}

#[tokio::test]
async fn the_command_prints_a_requested_figure_that_was_not_measured_in_every_format() {
    let api = Api::new().await;
    history(&api).await;
    let equal = measured(&api, json!({ "revision": "r3" }), "H200", Some(10.0)).await;
    let mut paused = command(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    for (fail_on, code, mark) in [
        ("tpot=3%,wall=60%", 2, "inconclusive Median wall time: not measured on either side\n"),
        ("slower=3%,energy=10%", 2, "inconclusive Energy per token: not measured on either side\n"),
        ("slower=3%,wall=60%", 2, "inconclusive Median wall time: not measured on either side\n"),
        ("slower=3%", 0, "dropped      Median wall time: not measured on either side; dropped"),
        ("tpot=3%", 0, "gate passed: 1 passed, 0 regressed, 0 inconclusive against main"),
    ] {
        let (found, text) = gate_command(&service, &["--run", &equal, "--fail-on", fail_on]);
        assert!(found == Some(code) && text.contains(mark), "{fail_on}: {found:?} {text}");
        assert_eq!(text.contains("on both sides or omit it"), code == 2, "{fail_on}: {text}");
    }
    for (format, open, dropped) in [
        ("text", "inconclusive Energy per token: not", "dropped      Median wall time: not"),
        ("json", "\"figure\": \"energy\"", "\"dropped\": [\n    {\n      \"figure\": \"wall\""),
        ("junit", "name=\"energy\"><error", "name=\"wall\"><skipped"),
        ("github", "::warning title=llmprof: Energy", "::notice title=llmprof: Median wall time::"),
        ("markdown", "| inconclusive: not measured", "| dropped: not measured"),
    ] {
        let arguments = ["--run", &equal, "--fail-on", "slower=3%,energy=10%", "--format", format];
        let (code, text) = gate_command(&service, &arguments);
        assert!(code == Some(2) && text.contains(open), "{format}: {code:?} {text}");
        assert!(text.contains(dropped), "{format}: {text}");
    }
}
