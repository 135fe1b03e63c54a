//! The commands against a service, from another folder with only URL and token.

use std::fs;

use llmprof_core::domain::state::RunState;
use serde_json::{Value, json};
use tempfile::tempdir;

use super::{command, run};
use crate::{
    api::router::Api,
    support::{
        report_input::ReportInput,
        service::{LLMPROF, Service, Setup, command as serve},
    },
};

const SMALL: [&str; 8] =
    ["--mode", "basic", "--repeats", "2", "--warmup", "1", "--max-new-tokens", "4"];

/// A service that requires tokens, and the file with a submitter's.
fn guarded(data: &std::path::Path, folder: &std::path::Path) -> Service {
    let token = std::process::Command::new(LLMPROF)
        .args(["token", "create", "--role", "submitter", "--name", "ann", "--data"])
        .arg(data)
        .output()
        .unwrap();
    assert!(token.status.success());
    fs::write(folder.join("token"), token.stdout).unwrap();
    Service::start(data, &Setup::default())
}

#[test]
fn a_run_is_submitted_watched_listed_shown_and_fetched() {
    let (data, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let service = guarded(data.path(), folder.path());
    let here = folder.path();
    let with = |arguments: &[&str]| {
        let arguments = [arguments, &["--token-file", "token"]].concat();
        run(&mut command(here, &service.base, &arguments))
    };
    let submitted =
        with(&[&["submit", "--model", "llama-tiny", "--label", "cli"][..], &SMALL[..]].concat());
    assert_eq!(submitted.code, 0, "{submitted:?}");
    let id = submitted.stdout.trim();
    assert_eq!((id.len(), submitted.stdout.lines().count()), (36, 1), "{submitted:?}");
    assert!(submitted.stderr.contains(&format!("llmprof watch {id}")), "{submitted:?}");

    let watched = with(&["watch", id]);
    assert_eq!(watched.code, 0, "{watched:?}");
    assert!(watched.stdout.starts_with(&format!("run {id} succeeded after ")), "{watched:?}");
    for step in ["preflight", "baseline", "analyze", "report"] {
        let lines = watched.stderr.lines().filter(|line| line.starts_with(step));
        assert_eq!(lines.count(), 1, "{step}: {}", watched.stderr);
    }
    let events = with(&["watch", id, "--json"]);
    let events: Vec<Value> =
        events.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["event"], "attempt");
    assert_eq!(events[events.len() - 2]["event"], "end");
    assert_eq!(events[events.len() - 1]["run_id"], json!(id), "the run follows its events");

    let listed = with(&["list", "--label", "cli"]);
    let lines: Vec<Vec<&str>> =
        listed.stdout.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((lines[0][0], lines[0].len()), ("run", lines[1].len()), "{listed:?}");
    assert_eq!((lines.len(), lines[1][0], lines[1][1]), (2, id, "succeeded"));
    assert_eq!(with(&["list", "--json"]).json()["runs"][0]["run_id"], json!(id));

    let shown = with(&["show", id]).stdout;
    assert!(shown.contains("llama-tiny") && shown.contains("baseline\tsucceeded"), "{shown}");
    let summary = service.run_dir(id).join("stakeholder_summary.md");
    let summary = fs::read_to_string(summary).unwrap();
    let first_page = summary.split("\n## ").next().unwrap().lines().skip(3);
    let first_page: Vec<&str> = first_page.filter(|line| !line.is_empty()).collect();
    assert!(first_page.iter().any(|line| line.starts_with("**")), "{summary}");
    for line in first_page {
        let line = line.replace(['*', '\\'], "");
        assert!(shown.lines().any(|it| it.replace('*', "") == line), "{line}\n{shown}");
    }
    assert!(with(&["show", id, "--report"]).stdout.starts_with("# "));
    assert_eq!(with(&["show", id, "--json"]).json()["expected"], Value::Null);

    let fetched = with(&["fetch", id, "report.*", "--json"]);
    assert_eq!(fetched.stdout.lines().count(), 3, "{fetched:?}");
    let report = here.join(id).join("report.json");
    let whole = fs::read(&report).unwrap();
    assert_eq!(whole, fs::read(service.run_dir(id).join("report.json")).unwrap());
    fs::remove_file(&report).unwrap();
    fs::write(here.join(id).join("report.json.part"), &whole[..whole.len() / 2]).unwrap();
    let again = with(&["fetch", id, "report.*", "--json"]);
    let states = again.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let states: Vec<String> =
        states.map(|it| format!("{} {}", it["path"], it["state"]).replace('"', "")).collect();
    assert!(states.contains(&format!("{id}/report.json resumed")), "{states:?}");
    assert!(states.contains(&format!("{id}/report.md present")), "{states:?}");
    assert_eq!(fs::read(&report).unwrap(), whole);
    with(&["fetch", id, "nothing.*"]).assert_refused(&["no file matches"]);
}

#[tokio::test]
async fn a_byte_order_mark_before_a_submission_is_skipped() {
    let api = Api::new().await;
    let mut paused = serve(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    let folder = tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("mark.yaml"), "\u{feff}model: llama-tiny\nmode: basic\n").unwrap();
    fs::write(here.join("mark.json"), "\u{feff}{\"model\": \"llama-tiny\"}").unwrap();
    for file in ["mark.yaml", "mark.json"] {
        let planned = run(&mut command(here, &service.base, &["submit", file, "--dry-run"]));
        assert!(planned.code == 0 && planned.stdout.starts_with("preflight\n"), "{planned:?}");
    }
}

#[tokio::test]
async fn a_submission_is_a_file_whose_fields_options_replace() {
    let api = Api::new().await;
    let mut paused = serve(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    let folder = tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("run.yaml"), "model: deepseek-ocr-tiny\nmode: basic\nrepeats: 9\n")
        .unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/samples/small.png"), here.join("page.png"))
        .unwrap();
    let with = |arguments: &[&str]| run(&mut command(here, &service.base, arguments));
    let submitted = with(&[
        "submit",
        "run.yaml",
        "--repeats",
        "4",
        "--prompt",
        "Read this.",
        "--image",
        "page.png",
        "--set",
        "nsys.enabled=false",
        "--json",
    ]);
    let id = submitted.json()["run_id"].as_str().unwrap().to_owned();
    let view = service.json(&format!("/runs/{id}")).await;
    let subject = &view["spec"]["subject"];
    assert_eq!(
        (&subject["passes"]["repeats"], &subject["passes"]["mode"]),
        (&json!(4), &json!("basic"))
    );
    let inputs = subject["workload"]["inputs_manifest"].as_str().unwrap();
    let inputs = service.json(&format!("/inputs/{inputs}")).await;
    assert_eq!(inputs["images"][0]["name"], "page.png");
    assert_eq!(view["expected"]["pending"], json!(["preflight", "baseline", "analyze", "report"]));
    assert_eq!(view["expected"]["duration"]["seconds"], Value::Null);

    let planned = with(&["submit", "run.yaml", "--dry-run"]);
    assert!(planned.stdout.starts_with("preflight\nbaseline       9 repeats\n"), "{planned:?}");
    assert!(planned.stdout.contains("no estimate: "), "{planned:?}");
    let cancelled = with(&["cancel", &id]);
    assert_eq!(cancelled.stdout, format!("run {id} is cancelled\n"));
    let watched = with(&["watch", &id]);
    assert_eq!(watched.code, 1, "{watched:?}");

    fs::write(here.join("list.json"), "[]").unwrap();
    fs::write(here.join("broken.json"), "{\"model\"").unwrap();
    let image = ["submit", "--model", "deepseek-ocr-tiny", "--image", "run.yaml"];
    for (arguments, text) in [
        (&["submit", "list.json"][..], "is not a submission"),
        (&["submit", "broken.json"], "is neither JSON nor YAML"),
        (&["submit", "missing.json"], "cannot read missing.json"),
        (&["submit", "--model", "gpt"], "no model gpt"),
        (
            &["submit", "--model", "llama-tiny", "--repeats", "-1"],
            "repeats: -1 is not between 1 and 100",
        ),
        (&image, "image run.yaml: neither PNG, JPEG nor WebP"),
        (&["fetch", &id, "--into", "x"], "no file"),
        (&["watch", "latest"], "invalid run \"latest\""),
    ] {
        let refused = with(arguments);
        if arguments[0] != "fetch" {
            refused.assert_refused(&[text]);
        }
    }
    let forms = ["submit --model deepseek-ocr-tiny", "submit --command tiny", "submit run.yaml"];
    with(&["submit"]).assert_refused(&forms);
    with(&["submit", "--repeats", "2"]).assert_refused(&forms);
    let usage = with(&["submit", "--no-such-option"]);
    assert_eq!(usage.code, 3, "invalid arguments have the code of bad input: {usage:?}");
}

#[tokio::test]
async fn a_run_without_a_result_is_shown_with_its_state_and_the_reason() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let failed = api.start().await;
    api.end(&failed, RunState::Failed, &[]).await;
    let queued = api.submit(json!({})).await;
    let mut paused = serve(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    let folder = tempdir().unwrap();
    for (id, text) in [
        (id, "\nNo result: the run ended failed: "),
        (queued, "\nNo result yet: the run is queued, at position 1 of the queue\n"),
    ] {
        let shown = run(&mut command(folder.path(), &service.base, &["show", &id]));
        assert!(shown.code == 0 && shown.stdout.contains(text), "{shown:?}");
    }
}

#[tokio::test]
async fn a_table_is_shown_filtered_and_sorted_and_text_cannot_control_the_terminal() {
    let api = Api::new().await;
    let id = api.submit(json!({ "labels": ["a"] })).await;
    let input = ReportInput::with_kernels();
    let tables = input.file("tables.jsonl").replacen("\"prefill\"", "\"\\u001b[31mprefill\"", 1);
    let report = "# r\u{1b}]0;x\u{7}\n";
    let ended = api.start().await;
    api.end(&ended, RunState::Succeeded, &[("tables.jsonl", &tables), ("report.md", report)]).await;
    let mut paused = serve(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    let folder = tempdir().unwrap();
    let with = |arguments: &[&str]| run(&mut command(folder.path(), &service.base, arguments));
    let names = with(&["show", &id, "--table", "list"]);
    assert!(names.stdout.lines().any(|line| line.starts_with("kernels\t3\t")), "{names:?}");
    let columns = ["--columns", "stage,total_ms"];
    let rows =
        with(&[&["show", &id, "--table", "kernels", "--sort", "-total_ms"][..], &columns].concat());
    let ms: Vec<f64> = rows
        .stdout
        .lines()
        .skip(1)
        .map(|line| line.split('\t').nth(1).unwrap().parse().unwrap())
        .collect();
    assert!(ms.len() == 3 && ms.is_sorted_by(|a, b| a >= b), "{rows:?}");
    let filter = ["--where", "total_ms=0.5..", "--json"];
    let filtered = with(&[&["show", &id, "--table", "kernels"][..], &filter].concat()).json();
    assert_eq!(filtered["total"], json!(ms.iter().filter(|ms| **ms >= 0.5).count()));
    let shown = [with(&["show", &id, "--table", "stages"]), with(&["show", &id, "--report"])];
    for shown in &shown {
        assert!(shown.code == 0 && !shown.stdout.contains(['\u{1b}', '\u{7}']), "{shown:?}");
    }
    for (filter, text) in [
        ("price=1", "no column price"),
        ("total_ms=much", "is not a number"),
        ("total_ms>1", "invalid filter"),
    ] {
        with(&["show", &id, "--table", "kernels", "--where", filter]).assert_refused(&[text]);
    }
}

#[test]
fn captures_are_uploaded_checked_and_followed() {
    let (data, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let service = Service::start(data.path(), &Setup::default());
    let fixture = "/tests/fixtures/captures/torch-gemms.sqlite.zst";
    let capture = format!("{}{fixture}", env!("CARGO_MANIFEST_DIR"));
    let with = |arguments: &[&str]| run(&mut command(folder.path(), &service.base, arguments));
    let planned = with(&["upload", &capture, "--dry-run"]);
    assert!(planned.code == 0 && planned.stdout.starts_with("preflight\n"), "{planned:?}");
    let ended = with(&["upload", &capture, "--model", "torch", "--label", "a", "--wait"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let id = ended.stdout.lines().next().unwrap();
    let listed = with(&["list", "--label", "a", "--json"]).json();
    assert_eq!(listed["runs"][0]["run_id"], json!(id));
    assert_eq!(listed["runs"][0]["kind"], "import");
    fs::write(folder.path().join("a.sqlite"), "no database").unwrap();
    with(&["upload", "a.sqlite"]).assert_refused(&["422", "a.sqlite"]);
    for name in ["a\nb.sqlite", "\u{1b}[31mc.sqlite"] {
        fs::write(folder.path().join(name), "no database").unwrap();
        let plain: String = name.chars().filter(|it| !it.is_control()).collect();
        with(&["upload", name]).assert_refused(&["422", &plain]);
    }
    with(&["upload", "missing.sqlite"]).assert_refused(&["cannot read missing.sqlite"]);
}

#[test]
fn a_field_a_setting_and_a_parameter_are_given_once() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("a.json"), r#"{"model": "m", "profiling": {"a": 1, "a": 2}}"#).unwrap();
    fs::write(here.join("b.json"), r#"{"base": {"mode": "basic", "mode": "light"}}"#).unwrap();
    fs::write(here.join("a.yaml"), "model: m\nlabels: [{a: 1, a: 2}]\n").unwrap();
    let large = "model: m\nseed: 1\nrepeats: 1\nseed: 18446744073709551616\n";
    fs::write(here.join("b.yaml"), large).unwrap();
    let gate = ["gate", "--baseline", "main", "--submit", "a.json"];
    let set = ["submit", "--model", "m", "--set", "ncu.details=true", "--set"];
    let param = ["submit", "--command", "c", "--param", "tokens=1", "--param"];
    for (arguments, text) in [
        (&["submit", "a.json"][..], "a.json: `a` is given more than once at line 1"),
        (&["submit", "a.yaml"], "`a` is given more than once"),
        (&["submit", "b.yaml"], "`seed` is given more than once"),
        (&["sweep", "b.json"], "b.json: `mode` is given more than once at line 1"),
        (&gate, "a.json: `a` is given more than once at line 1"),
        (&[&set[..], &["ncu.details=true"]].concat()[..], "ncu.details: given more than once"),
        (&[&set[..], &["ncu={}"]].concat()[..], "setting ncu: given more than once"),
        (&[&param[..], &["tokens=1"]].concat()[..], "--param tokens: given more than once"),
    ] {
        let refused = run(&mut command(here, "http://127.0.0.1:9", arguments));
        refused.assert_refused(&[text]);
    }
}

#[test]
fn an_integer_option_outside_its_range_is_refused_by_name_and_range() {
    let folder = tempdir().unwrap();
    let id = "019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45";
    let align = ["align", "--mock", "a", "--e2e", "b", "--forwards"];
    let gate = ["gate", "--baseline", "main", "--run", id, "--max-runs"];
    let show = ["show", id, "--table", "kernels", "--limit"];
    for (arguments, option, max) in [
        (&align[..], "--forwards", 1_000_000),
        (&gate, "--max-runs", 5),
        (&["list", "--limit"], "--limit", 200),
        (&show, "--limit", 1_000_000),
    ] {
        for value in ["0", &(max + 1).to_string(), "1000000000000", "18446744073709551616"] {
            let program = std::process::Command::new(LLMPROF)
                .args(arguments)
                .arg(value)
                .current_dir(folder.path())
                .output()
                .unwrap();
            let text = String::from_utf8(program.stderr).unwrap();
            let expected = format!("{value} is not between 1 and {max}");
            assert_eq!(program.status.code(), Some(3), "{text}");
            assert!(text.contains(option) && text.contains(&expected), "{text}");
        }
    }
}
