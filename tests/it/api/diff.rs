//! Comparison of two runs, by the command over saved reports and by the service.

use std::{fs, path::Path, process::Command};

use anyhow::{Result, ensure};
use llmprof_analyze::parse::aliases;
use llmprof_core::domain::{input_manifest::InputManifest, state::RunState};
use llmprof_report::diff::{run_diff, stored};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    api::{router::Api, series::point},
    support::captures::{MOCK, capture},
};

pub fn golden(name: &str) -> Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

/// Executes `llmprof diff` over two reports.
pub fn diff(a: &Value, b: &Value, format: &str) -> Result<String> {
    let folder = tempfile::tempdir()?;
    for (name, report) in [("a", a), ("b", b)] {
        fs::create_dir(folder.path().join(name))?;
        fs::write(folder.path().join(name).join("report.json"), report.to_string())?;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_llmprof"))
        .args(["diff", "a", "b/report.json", "--format", format])
        .current_dir(&folder)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn a_run_is_within_the_noise_of_itself() -> Result<()> {
    let run = golden("gpu-report.json")?;
    let diff: Value = serde_json::from_str(&diff(&run, &run, "json")?)?;
    assert_eq!(diff["diff"]["comparable"], true);
    for part in ["stages", "operators", "kernels"] {
        let changes = diff["diff"][part].as_array().unwrap();
        // A single call gives no estimate of noise.
        let verdict = |it: &Value| {
            if it["a"]["calls"] == 1 && part == "kernels" { "unknown" } else { "within_noise" }
        };
        assert!(
            !changes.is_empty()
                && changes.iter().all(|it| it["change_ms"] == 0.0 && it["verdict"] == verdict(it)),
            "{part}"
        );
        assert!(changes.iter().all(|it| !it["reason"].as_str().unwrap().is_empty()), "{part}");
    }
    Ok(())
}

#[test]
fn a_slower_stage_is_listed_first_in_every_format() -> Result<()> {
    let [run, slow] = slower_pair()?;
    let compared: Value = serde_json::from_str(&diff(&run, &slow, "json")?)?;
    let first = &compared["diff"]["stages"][0];
    assert_eq!((&first["name"], &first["verdict"]), (&json!("decode_all"), &json!("slower")));
    for format in ["md", "html"] {
        let text = diff(&run, &slow, format)?;
        assert!(text.contains("slower") && text.contains("The runs are comparable."), "{text}");
    }
    Ok(())
}

/// `cpu-report.json`, and the same with a slower decode.
pub fn slower_pair() -> Result<[Value; 2]> {
    let run = golden("cpu-report.json")?;
    let mut slow = run.clone();
    let rows = slow["stages"].as_array_mut().unwrap();
    let row = rows.iter_mut().find(|row| row["stage"] == "decode_all").unwrap();
    row["ms"] = json!({ "mean": 1e4, "std": 1.0, "min": 9_999.0, "max": 10_001.0, "n": 3 });
    Ok([run, slow])
}

#[test]
fn a_longer_stage_is_attributed_to_the_kernels_and_causes_of_its_ledger() -> Result<()> {
    let run = golden("gpu-report.json")?;
    let mut slow = run.clone();
    let of = |rows: &mut Value, cause: &str| {
        let rows = rows.as_array_mut().unwrap();
        rows.iter().position(|it| it["stage"] == "decode_all" && it["cause"] == cause).unwrap()
    };
    let member = of(&mut slow["ledger_members"], "floor");
    let mut added = slow["ledger_members"][member].clone();
    added["cause"] = "more_bytes".into();
    added["operator"] = Value::Null;
    added["kernel"] = "grouped_up".into();
    added["ns"] = 220_000.into();
    slow["ledger_members"].as_array_mut().unwrap().push(added);
    let stages = slow["ledger_stages"].as_array_mut().unwrap();
    let stage = stages.iter_mut().find(|it| it["stage"] == "decode_all").unwrap();
    let measured = stage["measured_ns"].as_i64().unwrap();
    stage["measured_ns"] = (measured + 220_000).into();
    stage["steps"] = Value::Null;
    let compared: Value = serde_json::from_str(&diff(&run, &slow, "json")?)?;
    let changes = compared["ledger"].as_array().unwrap();
    let decode = changes.iter().find(|it| it["stage"] == "decode_all").unwrap();
    let summary = "decode +0.220 ms: +0.220 grouped_up (more bytes than necessary)";
    assert_eq!((&decode["summary"], &decode["change_ns"]), (&json!(summary), &json!(220_000)));
    let text = diff(&run, &slow, "md")?;
    assert!(text.contains("## Where the time changed"), "{text}");
    assert!(text.contains("+0.220 grouped_up (more bytes"), "{text}");
    Ok(())
}

/// `gpu-report.json` as an import of a capture called `name`.
fn imported(name: &str, gpu: Option<&str>, include_ranges: &[&str]) -> Result<Value> {
    let mut run = golden("gpu-report.json")?;
    run["model"] = json!({ "name": null, "description": null, "images": [] });
    run["environment"]["device"] = Value::Null;
    run["environment"]["gpus"] = gpu.map_or(
        json!([]),
        |gpu| json!([{ "index": 0, "uuid": "", "name": gpu, "memory_bytes": 0 }]),
    );
    (run["only_traced"], run["power"], run["inputs"]) = (json!(true), Value::Null, json!([]));
    let files = json!([{ "name": format!("{name}.sqlite"), "kind": "timeline", "bytes": 1,
        "path": "nsys/run.sqlite" }]);
    run["spec"]["subject"] = json!({ "kind": "import", "name": name, "model": null, "files": files,
        "stages": [], "include_ranges": include_ranges, "exclude_ranges": [] });
    Ok(run)
}

/// Comparability, and the checks that prevent it.
fn obstacles(a: &Value, b: &Value) -> Result<(bool, Vec<String>)> {
    let of: Value = serde_json::from_str(&diff(a, b, "json")?)?;
    let checks = of["diff"]["checks"].as_array().unwrap().iter().filter(|it| it["forbids"] == true);
    let names = checks.map(|it| it["what"].as_str().unwrap().to_owned()).collect();
    let kernels = of["diff"]["kernels"].as_array().unwrap();
    let withheld =
        kernels.iter().all(|it| it["verdict"] == "not_comparable" && it["a"]["ms"].is_number());
    assert!(of["diff"]["comparable"] == true || withheld, "figures without verdicts");
    Ok((of["diff"]["comparable"] == true, names))
}

#[test]
fn captures_are_compared_by_device_and_settings_and_not_by_file_name() -> Result<()> {
    let h200 = Some("NVIDIA H200");
    let a = imported("monday", h200, &[])?;
    assert_eq!(
        obstacles(&a, &imported("tuesday", h200, &[])?)?,
        (true, vec![]),
        "a file's name is not a model"
    );
    for (b, what) in [
        (imported("monday", None, &[])?, "device"),
        (imported("monday", Some("NVIDIA H100"), &[])?, "device"),
        (imported("monday", h200, &["measured"])?, "include_ranges"),
    ] {
        assert_eq!(obstacles(&a, &b)?, (false, vec![what.to_owned()]));
    }
    let unknown = imported("monday", None, &[])?;
    assert_eq!(
        obstacles(&unknown, &unknown)?,
        (false, vec!["device".to_owned()]),
        "two unknown GPUs are not one"
    );
    let text = diff(&a, &unknown, "md")?;
    assert!(
        text.contains("**The runs are not comparable**: device of run B is unknown."),
        "{text}"
    );
    let profiled = golden("gpu-report.json")?;
    assert!(obstacles(&profiled, &a)?.1.contains(&"pass that was timed".to_owned()));
    Ok(())
}

#[test]
fn a_capture_read_with_another_include_range_differs_in_that_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    capture(MOCK, &folder.path().join("mock.sqlite"), "")?;
    let run = |args: &[&str]| -> Result<String> {
        let output =
            Command::new(env!("CARGO_BIN_EXE_llmprof")).args(args).current_dir(&folder).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    run(&["analyze", "mock.sqlite", "--out", "all"])?;
    run(&["analyze", "mock.sqlite", "--include-ranges", "measured", "--out", "part"])?;
    let text = run(&["diff", "all", "part"])?;
    assert!(
        text.contains("**The runs are not comparable**: different include_ranges. Figures"),
        "{}",
        &text[..600]
    );
    Ok(())
}

#[test]
fn a_kernel_twice_as_slow_is_slower_despite_host_noise() -> Result<()> {
    let mut run = golden("gpu-report.json")?;
    let mut slow = run.clone();
    // The host's repeats vary by half of their mean.
    for row in slow["stages"].as_array_mut().unwrap() {
        let mean = row["ms"]["mean"].as_f64().unwrap();
        row["ms"] = json!({ "mean": mean, "std": mean / 2.0, "min": mean / 2.0, "max": mean * 1.5,
            "n": 3 });
    }
    let figures = json!({ "count": 10, "total": 50_000, "mean": 5e3, "median": 5e3, "min": 4_900,
        "max": 5_100, "std": 60.0 });
    run["kernels_topk"][0]["launch_ns"] = figures.clone();
    slow["kernels_topk"][0]["launch_ns"] = figures;
    let kernel = &mut slow["kernels_topk"][0];
    let name = kernel["kernel_name"].clone();
    for figure in ["total", "mean", "std", "min", "max", "median"] {
        let value = kernel["launch_ns"][figure].as_f64().unwrap() * 2.0;
        kernel["launch_ns"][figure] = if ["total", "min", "max"].contains(&figure) {
            json!(value as i64)
        } else {
            json!(value)
        };
    }
    let of: Value = serde_json::from_str(&diff(&run, &slow, "json")?)?;
    let change =
        of["diff"]["kernels"].as_array().unwrap().iter().find(|it| it["name"] == name).unwrap();
    assert_eq!(
        (&change["verdict"], change["change_pct"].as_f64().map(f64::round)),
        (&json!("slower"), Some(100.0)),
        "{change:#}"
    );
    Ok(())
}

#[test]
fn other_devices_are_not_comparable_and_newer_reports_are_refused() -> Result<()> {
    let (cpu, gpu) = (golden("cpu-report.json")?, golden("gpu-report.json")?);
    let compared: Value = serde_json::from_str(&diff(&cpu, &gpu, "json")?)?;
    assert_eq!(compared["diff"]["comparable"], false);
    let device = compared["diff"]["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["what"] == "device")
        .unwrap();
    assert_eq!((&device["same"], &device["forbids"]), (&json!(false), &json!(true)));
    assert!(
        compared["diff"]["stages"]
            .as_array()
            .unwrap()
            .iter()
            .all(|it| it["verdict"] == "not_comparable")
    );

    let mut newer = cpu.clone();
    newer["schema_version"] = json!(99);
    let refused = diff(&cpu, &newer, "md").unwrap_err().to_string();
    assert!(refused.contains("schema version 99"), "{refused}");
    let refused = diff(&cpu, &json!({ "schema_version": 1 }), "md").unwrap_err().to_string();
    assert!(
        refused.contains("not a report of a run") && refused.trim().lines().count() == 1,
        "{refused}"
    );
    Ok(())
}

/// A run that ended with this report, in one series and build with the others.
async fn ended(api: &Api, report: &Value) -> String {
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let mut report = report.clone();
    report["run_id"] = json!(id);
    let kernels = json!({ "schema_version": 1, "run_id": id, "stages": [],
        "kernels": report["kernels_topk"], "counters": [] });
    let files = [("report.json", report.to_string()), ("kernels.json", kernels.to_string())];
    let files: Vec<(&str, &str)> =
        files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let point = Box::new(point("H200", Some(10.0)));
    api.end_in_series(&run, RunState::Succeeded, &files, Some(point)).await;
    id
}

#[tokio::test]
async fn the_service_compares_two_runs_in_the_requested_format() {
    let (api, report) = (Api::new().await, golden("gpu-report.json").unwrap());
    let (a, b) = (ended(&api, &report).await, ended(&api, &report).await);
    let json = api.get(&format!("/runs/{a}/diff/{b}?format=json")).await.json();
    assert_eq!(
        (&json["a"], &json["b"], &json["diff"]["comparable"]),
        (&json!(a), &json!(b), &json!(true))
    );
    assert!(!json["diff"]["kernels"].as_array().unwrap().is_empty());
    assert_eq!(api.get(&format!("/runs/{a}/diff/{b}")).await.json(), json);
    let html = [("accept", "text/html,*/*;q=0.8")];
    let page = api.ask(axum::http::Method::GET, &format!("/runs/{a}/diff/{b}"), &html, "").await;
    assert!(page.text().starts_with("<!doctype html>"));
    let markdown = api
        .ask(
            axum::http::Method::GET,
            &format!("/runs/{a}/diff/{b}"),
            &[("accept", "text/markdown")],
            "",
        )
        .await;
    assert!(
        markdown.text().starts_with(&format!("# From run {a} to run {b}")),
        "{}",
        markdown.text()
    );
}

#[tokio::test]
async fn other_runs_of_the_build_are_the_history_of_every_comparison_that_names_none() {
    let (api, report) = (Api::new().await, golden("gpu-report.json").unwrap());
    let a = ended(&api, &report).await;
    let (b, other) = (ended(&api, &report).await, ended(&api, &report).await);
    let of = async |query: &str| api.get(&format!("/runs/{a}/diff/{b}{query}")).await;
    let history = async |query: &str| of(query).await.json()["history"].clone();
    assert_eq!(history("").await, json!([other]));
    assert_eq!(history("?history=").await, json!([]));
    assert_eq!(history(&format!("?history={b},{other}")).await, json!([other]));
    let page = api.get(&format!("/ui/diff?a={a}&b={b}")).await.text();
    let text = "Noise between runs: from A and 1 other run of its build.";
    assert!(page.contains(text) && of("?format=md").await.text().contains(text), "{page}");
}

#[test]
fn inputs_are_the_same_by_their_prompts_and_images_and_not_by_their_names() -> Result<()> {
    let run = golden("cpu-report.json")?;
    let with = |manifest: &str, prompt: &str| {
        let content = InputManifest { prompt: Some(prompt.into()), ..InputManifest::default() };
        let mut run = run.clone();
        run["spec"]["subject"]["workload"]["inputs_manifest"] = json!(manifest);
        run["inputs_sha256"] = json!(content.content_sha256().unwrap());
        run
    };
    let asked = |a: &Value, b: &Value| obstacles(a, b).unwrap();
    let first = with("t.yaml", "Why is the sky blue?");
    assert_eq!(asked(&first, &with("an id", "Why is the sky blue?")), (true, vec![]));
    let other = with("t.yaml", "How is the sea green");
    assert_eq!(asked(&first, &other), (false, vec!["inputs".to_owned()]));
    // A report of an earlier version has no such hash.
    let mut old = run.clone();
    old.as_object_mut().unwrap().remove("inputs_sha256");
    assert_eq!(asked(&old, &run), (true, vec![]));
    Ok(())
}

#[test]
fn captures_without_an_id_are_compared_by_name_and_are_each_a_history() -> Result<()> {
    let mut captures = ["d10", "d21", "d22"].map(|name| imported(name, None, &[]).unwrap());
    captures.iter_mut().for_each(|it| it["run_id"] = json!(Uuid::nil()));
    let [a, b, other] = captures;
    let text = diff(&a, &b, "md")?;
    assert!(text.starts_with("# From capture d10 to capture d21\n"), "{text}");
    let stored = |it: &Value| stored(it.to_string().as_bytes(), None, aliases::read).unwrap();
    let found = run_diff(&stored(&a), &stored(&b), &[stored(&other)]);
    assert_eq!(found.history.len() + found.history_left_out.len(), 1);
    Ok(())
}

#[tokio::test]
async fn refused_comparisons_have_error_codes() {
    let api = Api::new().await;
    let (good, bare) = (ended(&api, &golden("cpu-report.json").unwrap()).await, api.ended().await);
    let waiting = api.submit(json!({})).await;
    let unknown = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";
    for (other, status, code) in [
        (bare.as_str(), 409, "report_unavailable"),
        (&waiting, 409, "run_not_finished"),
        (unknown, 404, "run_not_found"),
        ("7", 400, "invalid_parameter"),
    ] {
        assert_eq!(
            api.get(&format!("/runs/{good}/diff/{other}")).await.error(),
            (status, code.to_owned()),
            "{other}"
        );
    }
    assert_eq!(
        api.get(&format!("/runs/{good}/diff/{good}?format=csv")).await.error(),
        (406, "not_acceptable".to_owned())
    );
}
