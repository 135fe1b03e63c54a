//! `llmprof align` over the real pair, and over pairs that were spoilt on purpose.

mod differences;
mod isolation;

use std::{fs, path::Path, process::Command};

use anyhow::Result;
use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::captures::{E2E, MOCK, capture};

const ATTENTION: [&str; 4] = ["--range", "decoder.self_attn", "--include-ranges", "measured"];
/// The name of a range, wherever it is written.
const RANGE: &str = "coalesce(text, (select value from StringIds where id = textId))";
/// Correlation ids of what starts inside the range `measured`.
const MEASURED: &str =
    "select r.correlationId from CUPTI_ACTIVITY_KIND_RUNTIME r, NVTX_EVENTS e where r.start \
     between e.start and e.end
    and coalesce(e.text, (select value from StringIds where id = e.textId)) = 'measured'";

/// Thresholds under which the real pair passes in decode as well: in the separate layer, two
/// kernels find their data in the second-level cache and take 0.85 and 0.81 of the time.
const WARM_CACHE: &str = "kernel_time_pct = 30.0";

/// The real pair in a folder of its own, each side changed by plain SQL.
fn pair(mock: &str, e2e: &str) -> Result<TempDir> {
    let dir = tempfile::tempdir()?;
    capture(MOCK, &dir.path().join("mock.sqlite"), mock)?;
    capture(E2E, &dir.path().join("e2e.sqlite"), e2e)?;
    fs::write(dir.path().join("pair.toml"), WARM_CACHE)?;
    Ok(dir)
}

fn llmprof(dir: &TempDir, more: &[&str]) -> Result<std::process::Output> {
    Ok(Command::new(env!("CARGO_BIN_EXE_llmprof"))
        .arg("align")
        .args(more)
        .current_dir(dir)
        .output()?)
}

/// The exit code and the JSON of an alignment, under [`WARM_CACHE`] unless thresholds are given.
fn align(dir: &TempDir, more: &[&[&str]]) -> Result<(Option<i32>, Value)> {
    let sides = ["--mock", "mock.sqlite", "--e2e", "e2e.sqlite", "--format", "json"];
    let mut args = [&sides[..], &more.concat()].concat();
    if dir.path().join("pair.toml").exists() && !args.contains(&"--thresholds") {
        args.extend(["--thresholds", "pair.toml"]);
    }
    let output = llmprof(dir, &args)?;
    Ok((output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default()))
}

fn check<'a>(of: &'a Value, id: &str) -> &'a Value {
    of["checks"]
        .as_array()
        .unwrap_or_else(|| panic!("{of:#}"))
        .iter()
        .find(|it| it["id"] == id)
        .unwrap()
}

/// Checks with this verdict.
fn with<'a>(of: &'a Value, verdict: &str) -> Vec<&'a str> {
    let all = of["checks"].as_array().unwrap_or_else(|| panic!("{of:#}"));
    all.iter().filter(|it| it["verdict"] == verdict).filter_map(|it| it["id"].as_str()).collect()
}

/// The checks as lines, for the message of a failed test.
fn lines(of: &Value) -> String {
    let line = |it: &Value| format!("{}: {}, {}", it["id"], it["verdict"], it["observed"]);
    of["checks"].as_array().unwrap().iter().map(line).collect::<Vec<_>>().join("\n")
}

fn per_instance(of: &Value) -> [Option<f64>; 2] {
    [&of["mock"], &of["e2e"]].map(|it| it["kernels_per_instance"].as_f64())
}

#[test]
fn the_real_pair_passes_with_17_and_18_kernels_per_layer_and_forward() -> Result<()> {
    let dir = pair("", "")?;
    for (stage, kernels, instances) in [("prefill", 17.0, [1, 8]), ("decode", 18.0, [16, 128])] {
        let (code, alignment) = align(&dir, &[&ATTENTION, &["--stage", stage]])?;
        assert_eq!(
            (code, &alignment["verdict"]),
            (Some(0), &Value::from("pass")),
            "{}",
            lines(&alignment)
        );
        assert_eq!(
            alignment.as_object().unwrap().keys().take(2).collect::<Vec<_>>(),
            ["verdict", "checks"]
        );
        assert_eq!(per_instance(&alignment), [Some(kernels); 2]);
        assert_eq!(
            [&alignment["mock"], &alignment["e2e"]].map(|it| it["instances"].as_i64()),
            instances.map(Some)
        );
        assert!(
            (alignment["latency"]["ratio"].as_f64().unwrap() - 1.0).abs() < 0.03,
            "{}",
            alignment["latency"]
        );
        assert_eq!(
            with(&alignment, "inconclusive"),
            ["inputs", "clocks"],
            "a bare capture has neither"
        );
    }
    Ok(())
}

#[test]
fn the_real_pair_differs_in_two_kernels_of_decode_that_the_cache_makes_faster_alone() -> Result<()>
{
    let dir = pair("", "")?;
    fs::write(dir.path().join("defaults.toml"), "")?;
    let with_defaults =
        |stage| align(&dir, &[&ATTENTION, &["--stage", stage, "--thresholds", "defaults.toml"]]);
    assert_eq!(with_defaults("prefill")?.0, Some(0));
    let (code, alignment) = with_defaults("decode")?;
    assert_eq!(
        (code, with(&alignment, "fail")),
        (Some(1), vec!["kernel_time"]),
        "{}",
        lines(&alignment)
    );
    let unlike: Vec<(&str, i64, bool)> = alignment["kernels"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["agreement"] != "match" && it["decisive"] == true)
        .map(|it| {
            let high = it["interval"][1].as_f64().unwrap();
            (
                it["name"].as_str().unwrap(),
                (it["ratio"].as_f64().unwrap() * 1e3).round() as i64,
                high < 0.9,
            )
        })
        .collect();
    assert_eq!(unlike.len(), 2, "{unlike:?}");
    assert_eq!(unlike[0], ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", 854, true));
    assert!(
        unlike[1].0.contains("CatArrayBatchedCopy_vectorized")
            && (unlike[1].1, unlike[1].2) == (806, true),
        "{unlike:?}"
    );
    Ok(())
}

/// Scales the measured durations of kernels whose short name is like `name`.
fn scaled(name: &str, times: f64) -> String {
    format!(
        "update CUPTI_ACTIVITY_KIND_KERNEL set end = start + cast((end - start) * {times} as \
         integer) where correlationId in ({MEASURED})
         and shortName in (select id from StringIds where value like '{name}');"
    )
}

#[test]
fn a_known_difference_is_excluded_until_it_expires_and_a_report_lists_changes() -> Result<()> {
    let renamed = "update StringIds set value = 'my_' || value where value = \
                   'lean_reduction_kernel' or value like '%lean_reduction_kernel<%'";
    let dir = pair(renamed, "")?;
    let waiver = |expires: &str| {
        let text = format!(
            "[[waiver]]\npattern = \"lean_reduction\"\nreason = \"own build\"\nimpact \
             = \"none\"\nexpires = \"{expires}\"\n"
        );
        fs::write(dir.path().join("waivers.toml"), text)
    };
    let asked: [&[&str]; 2] = [&ATTENTION, &["--stage", "decode", "--waivers", "waivers.toml"]];
    waiver("2020-01-31")?;
    let (code, before) = align(&dir, &asked)?;
    assert_eq!((code, &before["waivers"][0]["expired"]), (Some(1), &Value::from(true)));
    waiver("2999-12-31")?;
    fs::write(dir.path().join("before.json"), before.to_string())?;
    let (code, alignment) = align(&dir, &[asked[0], asked[1], &["--previous", "before.json"]])?;
    assert_eq!(
        (code, &alignment["waivers"][0]["reason"]),
        (Some(0), &Value::from("own build")),
        "{}",
        lines(&alignment)
    );
    let changes = alignment["changes"].as_array().unwrap();
    assert_eq!(
        (&changes[0]["mock"], &changes[0]["e2e"]),
        (&Value::from("fail"), &Value::from("pass"))
    );
    assert!(changes.iter().any(|row| row["what"] == "names"));
    for bad in [
        "",
        "pattern = \"*\"\nreason = \"x\"\nimpact = \"y\"\nexpires = \"2999-01-01\"",
        "pattern = \"a\"\nreason = \"x\"\nimpact = \"y\"\nexpires = \"soon\"",
    ] {
        fs::write(dir.path().join("waivers.toml"), format!("[[waiver]]\n{bad}\n"))?;
        assert_eq!(align(&dir, &asked)?.0, Some(3), "{bad}");
    }
    Ok(())
}

#[test]
fn folders_of_runs_have_their_inputs() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let events = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/events-tiny.jsonl"),
    )?;
    // A module that is called as the range is.
    let events = events.replace("decoder.layers.0.self_attn", "decoder.self_attn");
    for (side, name) in [("mock", MOCK), ("e2e", E2E)] {
        let nsys = dir.path().join(side).join("nsys");
        fs::create_dir_all(&nsys)?;
        capture(name, &nsys.join("run.sqlite"), "")?;
        fs::write(nsys.join("events.jsonl"), &events)?;
    }
    let sides = ["--mock", "mock", "--e2e", "e2e", "--format", "json", "--stage", "prefill"];
    let align_again = |more: &[&str]| -> Result<(Option<i32>, Value)> {
        let output = llmprof(&dir, &[&sides[..], &ATTENTION, more].concat())?;
        Ok((output.status.code(), serde_json::from_slice(&output.stdout)?))
    };
    let (code, same) = align_again(&[])?;
    assert_eq!(
        (code, &check(&same, "inputs")["verdict"]),
        (Some(0), &Value::from("pass")),
        "{}",
        lines(&same)
    );
    let rows = check(&same, "inputs")["rows"].as_array().unwrap();
    assert!(
        rows.iter().any(|row| row["what"].as_str().unwrap().starts_with("shapes of its ")),
        "{rows:#?}"
    );

    fs::write(
        dir.path().join("mock/nsys/events.jsonl"),
        events.replacen("\"dtype\":\"f32\",\"device\"", "\"dtype\":\"bf16\",\"device\"", 1),
    )?;
    let (code, other) = align_again(&[])?;
    assert_eq!((code, with(&other, "fail")), (Some(1), vec!["inputs"]));
    assert_eq!(check(&other, "inputs")["rows"][0]["what"], "dtype");
    Ok(())
}

#[test]
fn a_report_contains_each_check_and_no_markup_of_a_capture() -> Result<()> {
    let hostile = "update StringIds set value = '<script>alert(1)</script>|' || value where id in \
                   (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL)";
    let dir = pair(hostile, "")?;
    let output = llmprof(
        &dir,
        &[
            &["--mock", "mock.sqlite", "--e2e", "e2e.sqlite", "--stage", "decode", "--out", "out"],
            &ATTENTION[..],
        ]
        .concat(),
    )?;
    assert_eq!(output.status.code(), Some(1));
    let read = |name: &str| fs::read_to_string(dir.path().join("out").join(name));
    let (html, md) = (read("alignment.html")?, read("alignment.md")?);
    assert_eq!(String::from_utf8(output.stdout)?, md);
    let json: Value = serde_json::from_str(&read("alignment.json")?)?;
    for it in json["checks"].as_array().unwrap() {
        let id = it["id"].as_str().unwrap();
        assert!(
            html.contains(&format!("id=\"check-{id}\"")) && md.contains(&format!("## {id}:")),
            "{id}"
        );
    }
    assert!(!html.contains("<script") && !md.contains("<script"));
    assert!(html.contains("class=\"differs\"") && !html.contains("http"));
    Ok(())
}

#[test]
fn bad_arguments_and_bad_files_end_with_3() -> Result<()> {
    let dir = pair("", "")?;
    for bad in [
        &["--nonsense"][..],
        &["--stage", "nowhere"],
        &["--range", "*"],
        &["--range", "a", "--kernels", "b"],
        &["--thresholds", "no.toml"],
    ] {
        assert_eq!(align(&dir, &[bad])?.0, Some(3), "{bad:?}");
    }
    fs::write(dir.path().join("mock.sqlite"), "no capture")?;
    assert_eq!(align(&dir, &[&ATTENTION])?.0, Some(3));
    let output = llmprof(&dir, &["--mock", "mock.sqlite", "--e2e", "e2e.sqlite"])?;
    assert_eq!(String::from_utf8(output.stderr)?.trim().lines().count(), 1);
    assert_eq!(llmprof(&dir, &["--help"])?.status.code(), Some(0));
    Ok(())
}
