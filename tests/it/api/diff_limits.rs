//! Limits of `llmprof diff`.

use std::{fs, process::Command};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use uuid::Uuid;

use super::diff::slower_pair;

#[test]
fn a_limit_sets_the_exit_code_by_the_verdict_on_stages_and_latencies() -> Result<()> {
    let [run, slow] = slower_pair()?;
    let mut other = run.clone();
    other["model"]["dtype"] = json!("f16");
    let mut once = run.clone();
    for row in once["stages"].as_array_mut().unwrap() {
        row["ms"]["std"] = Value::Null;
        row["ms"]["n"] = json!(1);
    }
    let mut brief = run.clone();
    brief["aggregates"]["per_token_ms"] = Value::Null;
    let (mut capture, mut foreign) = (run.clone(), other.clone());
    for report in [&mut capture, &mut foreign] {
        report["run_id"] = json!(Uuid::nil());
    }
    let runs = [("run", &run), ("slow", &slow), ("other", &other), ("once", &once)];
    let given =
        [&runs[..], &[("brief", &brief), ("capture", &capture), ("foreign", &foreign)]].concat();
    check_limits(
        &given,
        &[
            ("run", "slow", None, 0, ""),
            ("run", "slow", Some("slower=3%"), 1, "slower by at least 3 %; decode_all +"),
            ("slow", "run", Some("slower=1000"), 0, "passed: nothing is slower by 1000 %"),
            ("run", "run", Some("slower=1000%"), 0, "passed: nothing is slower by 1000 %\n"),
            ("brief", "brief", Some("slower=1000%"), 0, "passed: nothing is slower by 1000 %\n"),
            ("run", "brief", Some("slower=1000%"), 2, "per token: absent in run B"),
            ("brief", "run", Some("slower=1000%"), 2, "per token: absent in run A"),
            ("run", "run", Some("slower=0.01%"), 2, "the noise hides"),
            ("run", "run", Some("slower=0.01%"), 2, "measure both runs with more repeats"),
            ("run", "once", Some("slower=1000%"), 2, "`--history RUN`, repeatable"),
            ("run", "other", Some("slower=3%"), 2, "`llmprof submit A/config.yaml`"),
            ("capture", "run", Some("slower=0.01%"), 2, "record more repeats in both captures"),
            ("foreign", "run", Some("slower=3%"), 2, "analyse both with the same options"),
            ("run", "once", Some("slower=1000%"), 2, "measured once in B"),
            ("run", "other", Some("slower=3%"), 2, "different dtype"),
            ("run", "absent", None, 1, "cannot read absent"),
            ("run", "absent", Some("slower=3%"), 3, "cannot read absent"),
            ("run", "slow", Some("slower"), 3, "expected FIGURE=PERCENT"),
            ("run", "slow", Some("ttft=3%"), 3, "expected slower=PERCENT"),
            ("run", "slow", Some("slower=3%,ttft=3%"), 3, "expected slower=PERCENT"),
            ("run", "slow", Some("slower=-1%"), 3, "from 0.01 to 1000"),
            ("run", "slow", Some("slower=nan"), 3, "from 0.01 to 1000"),
            ("run", "slow", Some("slower=3%,slower=90%"), 3, "given more than once"),
        ],
    )
}

#[test]
fn a_limit_judges_the_time_from_one_step_of_an_engine_to_the_next() -> Result<()> {
    let [run, _] = slower_pair()?;
    let [steps, close, late] = [1.0, 1.04, 2.0].map(|every| with_steps(&run, every));
    let row = "from one decode step to the next of 32 requests, contexts of 512 to 1,023 tokens";
    check_limits(
        &[("run", &run), ("steps", &steps), ("close", &close), ("late", &late)],
        &[
            ("steps", "late", Some("slower=3%"), 1, &format!("{row} +1.000 ms")),
            ("steps", "close", Some("slower=3%"), 2, "runs may differ by 5 %"),
            ("steps", "steps", Some("slower=1000%"), 0, "passed: nothing is slower by 1000 %\n"),
            ("steps", "run", Some("slower=1000%"), 2, &format!("{row}: absent in run B")),
        ],
    )
}

#[test]
fn commands_without_stages_are_compared_by_their_wall_times() -> Result<()> {
    let [run, _] = slower_pair()?;
    let [quick, slow] = [100.0, 200.0].map(|ms| without_stages(&run, Some(ms)));
    let no_times = without_stages(&run, None);
    check_limits(
        &[("quick", &quick), ("slow", &slow), ("none", &no_times)],
        &[
            ("quick", "slow", Some("slower=3%"), 1, "whole repeat +100"),
            ("slow", "quick", Some("slower=3%"), 0, "passed: nothing is slower by 3 %"),
            ("none", "none", Some("slower=3%"), 2, "neither run has times of stages; `llmprof"),
        ],
    )?;
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("none"), no_times.to_string())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmprof"));
    command.args(["diff", "none", "none", "--fail-on", "slower=3%"]).current_dir(&folder);
    let output = command.output()?;
    let (stdout, stderr) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    assert!(!stderr.contains("more repeats"), "{stderr}");
    assert!(stdout.contains("No verdict: neither run has times of stages"), "{stdout}");
    Ok(())
}

/// A report without stages, of a command with this wall time.
fn without_stages(run: &Value, wall_ms: Option<f64>) -> Value {
    let mut run = run.clone();
    for list in ["stages", "stage_notes", "step_times", "step_batches", "ledger", "ledger_stages"] {
        run[list] = json!([]);
    }
    for list in ["ledger_members", "operator_repeats", "kernels_topk"] {
        run[list] = json!([]);
    }
    run["aggregates"]["per_token_ms"] = Value::Null;
    run["aggregates"]["wall_ms"] = Value::Null;
    if let Some(ms) = wall_ms {
        let wall = json!({ "mean": ms, "std": 0.5, "min": ms - 1.0, "max": ms + 1.0, "n": 5 });
        run["aggregates"]["command"] = json!({
            "of": "process", "plain_ms": wall, "plain_p50_ms": ms, "traced_ms": null,
            "ready_ms": null,
        });
    }
    run
}

/// Two reports, the limit, and the expected exit code with a part of the message.
type LimitCase<'a> = (&'a str, &'a str, Option<&'a str>, i32, &'a str);

fn check_limits(reports: &[(&str, &Value)], cases: &[LimitCase]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (name, report) in reports {
        fs::write(folder.path().join(name), report.to_string())?;
    }
    for (a, b, limit, expected, text) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llmprof"));
        command.args(["diff", a, b]).current_dir(&folder);
        command.args(limit.map(|limit| format!("--fail-on={limit}")));
        let output = command.output()?;
        let (code, stderr) = (output.status.code(), String::from_utf8(output.stderr)?);
        let is_bad = code == Some(3) || *b == "absent";
        ensure!(is_bad == output.stdout.is_empty(), "{a} {b} {limit:?}");
        assert!(
            code == Some(*expected) && stderr.contains(text),
            "{a} {b} {limit:?}: {code:?} {stderr}"
        );
    }
    Ok(())
}

/// A report with the steps of an engine, which take 0.5 ms, one every `every` ms.
fn with_steps(run: &Value, every: f64) -> Value {
    let spread =
        |mean: f64| json!({ "mean": mean, "std": 0.01, "min": mean, "max": mean, "n": 50 });
    let mut run = run.clone();
    run["step_batches"] = json!([{
        "class": "decode", "mode": null, "requests": 32, "padded_min": null, "padded_max": null,
        "context_min": 700, "context_max": 710, "steps": 50, "processes": 1, "ms": spread(0.5),
        "p50_ms": 0.5, "period_ms": every, "periods_ms": spread(every), "busy_pct": null,
        "tokens_per_s": null,
    }]);
    run
}
