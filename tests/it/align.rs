//! `llmprof align` over the real pair, and over pairs that were spoilt on purpose.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use anyhow::Result;
use rusqlite::Connection;
use serde_json::Value;
use tempfile::TempDir;

pub const MOCK: &str = "hf-llama-attention-mock";
pub const E2E: &str = "hf-llama-e2e";
const ATTENTION: [&str; 4] = ["--range", "decoder.self_attn", "--within", "measured"];
/// The name of a range, wherever it is written.
const RANGE: &str = "coalesce(text, (select value from StringIds where id = textId))";
/// Correlation ids of what starts inside the range `measured`.
const MEASURED: &str =
    "select r.correlationId from CUPTI_ACTIVITY_KIND_RUNTIME r, NVTX_EVENTS e where r.start between e.start and e.end
    and coalesce(e.text, (select value from StringIds where id = e.textId)) = 'measured'";

/// One capture, unpacked and changed by plain SQL.
pub fn capture(name: &str, path: &Path, sql: &str) -> Result<()> {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(format!("{name}.sqlite.zst"));
    zstd::stream::copy_decode(File::open(packed)?, File::create(path)?)?;
    if !sql.is_empty() {
        Connection::open(path)?.execute_batch(sql)?;
    }
    Ok(())
}

/// Thresholds under which the real pair passes in decode as well: alone, two of the layer's kernels find their data in the second-level
/// cache and take 0.85 and 0.81 of the time.
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
    Ok(Command::new(env!("CARGO_BIN_EXE_llmprof")).arg("align").args(more).current_dir(dir).output()?)
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
    of["checks"].as_array().unwrap_or_else(|| panic!("{of:#}")).iter().find(|it| it["id"] == id).unwrap()
}

/// Checks with this verdict.
fn with<'a>(of: &'a Value, verdict: &str) -> Vec<&'a str> {
    let all = of["checks"].as_array().unwrap_or_else(|| panic!("{of:#}"));
    all.iter().filter(|it| it["verdict"] == verdict).filter_map(|it| it["id"].as_str()).collect()
}

/// The checks as lines, for whoever reads why a test failed.
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
        let (code, told) = align(&dir, &[&ATTENTION, &["--stage", stage]])?;
        assert_eq!((code, &told["verdict"]), (Some(0), &Value::from("pass")), "{}", lines(&told));
        assert_eq!(told.as_object().unwrap().keys().take(2).collect::<Vec<_>>(), ["verdict", "checks"]);
        assert_eq!(per_instance(&told), [Some(kernels); 2]);
        assert_eq!([&told["mock"], &told["e2e"]].map(|it| it["instances"].as_i64()), instances.map(Some));
        assert!((told["latency"]["ratio"].as_f64().unwrap() - 1.0).abs() < 0.03, "{}", told["latency"]);
        assert_eq!(with(&told, "inconclusive"), ["inputs", "clocks"], "a bare capture tells neither");
    }
    Ok(())
}

#[test]
fn the_real_pair_differs_in_two_kernels_of_decode_that_the_cache_makes_faster_alone() -> Result<()> {
    let dir = pair("", "")?;
    fs::write(dir.path().join("defaults.toml"), "")?;
    let with_defaults = |stage| align(&dir, &[&ATTENTION, &["--stage", stage, "--thresholds", "defaults.toml"]]);
    assert_eq!(with_defaults("prefill")?.0, Some(0));
    let (code, told) = with_defaults("decode")?;
    assert_eq!((code, with(&told, "fail")), (Some(1), vec!["kernel_time"]), "{}", lines(&told));
    let unlike: Vec<(&str, i64, bool)> = told["kernels"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["agreement"] != "match" && it["decisive"] == true)
        .map(|it| {
            let high = it["interval"][1].as_f64().unwrap();
            (it["name"].as_str().unwrap(), (it["ratio"].as_f64().unwrap() * 1e3).round() as i64, high < 0.9)
        })
        .collect();
    assert_eq!(unlike.len(), 2, "{unlike:?}");
    assert_eq!(unlike[0], ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", 854, true));
    assert!(unlike[1].0.contains("CatArrayBatchedCopy_vectorized") && (unlike[1].1, unlike[1].2) == (806, true), "{unlike:?}");
    Ok(())
}

/// Scales the measured durations of kernels whose short name is like `name`.
fn scaled(name: &str, times: f64) -> String {
    format!(
        "update CUPTI_ACTIVITY_KIND_KERNEL set end = start + cast((end - start) * {times} as integer) where correlationId in ({MEASURED})
         and shortName in (select id from StringIds where value like '{name}');"
    )
}

#[test]
fn a_kernel_that_halves_fails_though_another_makes_up_for_it() -> Result<()> {
    let dir = pair("", "")?;
    let (code, told) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!(code, Some(0), "{}", lines(&told));
    let kernels = told["kernels"].as_array().unwrap();
    assert_eq!(kernels.iter().map(|it| it["e2e"]["calls"].as_u64().unwrap()).sum::<u64>(), 2_304, "of the captures' README");
    assert_eq!(kernels.iter().map(|it| it["mock"]["calls"].as_u64().unwrap()).sum::<u64>(), 288);
    for it in kernels.iter().filter(|it| it["decisive"] == true) {
        assert_eq!((&it["agreement"], &it["far"]), (&Value::from("match"), &Value::from(false)), "{it:#}");
    }
    // Of two decisive kernels, one halves and the other takes over its time: the sum stays.
    let time = |it: &Value| it["mock"]["mean_us"].as_f64().unwrap() * it["mock"]["calls"].as_f64().unwrap();
    let short =
        |it: &Value| it["name"].as_str().unwrap().split(['<', '(']).next().unwrap().rsplit([':', ' ']).next().unwrap().to_owned();
    let decisive: Vec<&Value> = kernels.iter().filter(|it| it["decisive"] == true).collect();
    let (halved, other) = (decisive[0], decisive.iter().find(|it| short(it) != short(decisive[0])).unwrap());
    let grows = 1.0 + 0.55 * time(halved) / time(other);
    let dir = pair(&(scaled(&short(halved), 0.45) + &scaled(&short(other), grows)), "")?;
    let (code, told) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!((code, with(&told, "fail")), (Some(1), vec!["kernel_time"]), "{}", lines(&told));
    assert!((told["latency"]["ratio"].as_f64().unwrap() - 1.0).abs() < 0.05, "the total hides it: {}", told["latency"]);
    let row = told["kernels"].as_array().unwrap().iter().find(|it| it["name"] == halved["name"]).unwrap();
    assert_eq!((&row["agreement"], &row["far"]), (&Value::from("differs"), &Value::from(true)), "{row:#}");
    for format in ["md", "html"] {
        let sides = ["--mock", "mock.sqlite", "--e2e", "e2e.sqlite", "--format", format];
        let text = String::from_utf8(llmprof(&dir, &[&sides[..], &ATTENTION, &["--stage", "decode"]].concat())?.stdout)?;
        assert!(text.contains("2x or more apart") && text.contains("kernel_time"), "{format}");
    }
    fs::write(dir.path().join("loose.toml"), "kernel_time_pct = 1000.0")?;
    assert_eq!(align(&dir, &[&ATTENTION, &["--stage", "decode", "--thresholds", "loose.toml"]])?.0, Some(0));
    Ok(())
}

#[test]
fn a_capture_that_lost_kernels_decides_nothing() -> Result<()> {
    for lost in ["", " where correlationId % 3 = 0"] {
        let dir = pair(&format!("delete from CUPTI_ACTIVITY_KIND_KERNEL{lost}"), "")?;
        let (code, told) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
        assert_eq!((code, &told["verdict"]), (Some(2), &Value::from("inconclusive")));
        assert_eq!(check(&told, "complete")["verdict"], "inconclusive");
        assert!(check(&told, "complete")["advice"].as_str().unwrap().contains("Capture again"));
    }
    Ok(())
}

#[test]
fn graphs_that_were_traced_as_a_whole_decide_nothing() -> Result<()> {
    let sql = format!(
        "update CUPTI_ACTIVITY_KIND_RUNTIME set nameId = 900000 where correlationId in (select correlationId from CUPTI_ACTIVITY_KIND_KERNEL);
         insert into StringIds (id, value) values (900000, 'cudaGraphLaunch_v10000');
         create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE as select start, end, deviceId, correlationId, globalPid from CUPTI_ACTIVITY_KIND_KERNEL;
         delete from CUPTI_ACTIVITY_KIND_KERNEL where correlationId in ({MEASURED})"
    );
    let dir = pair(&sql, "")?;
    let (code, told) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!(code, Some(2), "{}", lines(&told));
    let complete = check(&told, "complete");
    assert_eq!(complete["observed"], "the mock side has graphs that were not traced by node");
    assert!(complete["advice"].as_str().unwrap().contains("--cuda-graph-trace=node"));
    Ok(())
}

#[test]
fn a_mock_that_only_warmed_up_or_did_nothing_decides_nothing() -> Result<()> {
    let unmarked = format!("delete from NVTX_EVENTS where {RANGE} = 'measured'");
    let idle = format!(
        "create temp table gone as {MEASURED};
         delete from CUPTI_ACTIVITY_KIND_KERNEL where correlationId in gone;
         delete from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId in gone"
    );
    for (sql, said) in [
        (unmarked, "mock: all 51 instances are warm-up or outside what counts"),
        (idle, "mock: none of 16 counted instances has a kernel"),
    ] {
        let (code, told) = align(&pair(&sql, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
        assert_eq!((code, &check(&told, "isolation")["observed"]), (Some(2), &Value::from(said)));
        assert!(with(&told, "inconclusive").contains(&"latency"));
    }
    Ok(())
}

#[test]
fn other_kernels_fail_by_name_and_another_grid_by_geometry() -> Result<()> {
    let renamed =
        "update StringIds set value = 'f32_' || value where id in (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL)";
    let (code, told) = align(&pair(renamed, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!(code, Some(1));
    let failed = with(&told, "fail");
    assert!(
        ["names", "missing_kernels", "extra_kernels", "sequence", "matched_time"].iter().all(|it| failed.contains(it)),
        "{failed:?}"
    );
    assert!(check(&told, "missing_kernels")["rows"].as_array().unwrap().iter().any(|row| row["note"] == "critical"));

    let grown = "update CUPTI_ACTIVITY_KIND_KERNEL set gridX = gridX + 1";
    let (code, told) = align(&pair(grown, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!((code, with(&told, "fail")), (Some(1), vec!["geometry"]));
    assert_eq!(check(&told, "geometry")["rows"].as_array().unwrap().len(), 18);

    let tiled = "update StringIds set value = replace(value, '64x8_64x16', '128x8_64x8') where id in (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL)";
    let dir = pair(tiled, "")?;
    let (code, told) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!(code, Some(1));
    assert!(
        check(&told, "names")["rows"][0]["note"].as_str().unwrap().starts_with("the other side has it with another tile"),
        "{}",
        lines(&told)
    );
    fs::write(dir.path().join("loose.toml"), format!("names = \"family\"\n{WARM_CACHE}"))?;
    assert_eq!(align(&dir, &[&ATTENTION, &["--stage", "decode", "--thresholds", "loose.toml"]])?.0, Some(0));
    Ok(())
}

#[test]
fn one_kernel_less_or_more_is_told_by_name_and_place() -> Result<()> {
    let without = "delete from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId in (select correlationId from CUPTI_ACTIVITY_KIND_KERNEL k
            join StringIds s on s.id = k.shortName where s.value = 'lean_reduction_kernel');
        delete from CUPTI_ACTIVITY_KIND_KERNEL where shortName in (select id from StringIds where value = 'lean_reduction_kernel')";
    for (mock, e2e, id, counts) in [(without, "", "missing_kernels", [17.0, 18.0]), ("", without, "extra_kernels", [18.0, 17.0])]
    {
        let (code, told) = align(&pair(mock, e2e)?, &[&ATTENTION, &["--stage", "decode"]])?;
        assert_eq!((code, per_instance(&told)), (Some(1), counts.map(Some)));
        let failed = with(&told, "fail");
        assert!(["names", id, "counts", "sequence"].iter().all(|it| failed.contains(it)), "{failed:?}");
        assert!(check(&told, id)["rows"][0]["what"].as_str().unwrap().contains("lean_reduction_kernel"));
        assert_eq!(check(&told, "sequence")["rows"][0]["what"], "place 17");
    }
    Ok(())
}

#[test]
fn kernels_in_another_order_fail_by_sequence_alone() -> Result<()> {
    let dir = pair("", "")?;
    let mock = Connection::open(dir.path().join("mock.sqlite"))?;
    // The first two kernels of the last prefill: two products with the same grid.
    let sql = format!(
        "select k.rowid, k.demangledName from CUPTI_ACTIVITY_KIND_KERNEL k join CUPTI_ACTIVITY_KIND_RUNTIME r using (correlationId)
         join NVTX_EVENTS on r.start between NVTX_EVENTS.start and NVTX_EVENTS.end and {RANGE} = 'decoder.self_attn'
         where k.correlationId in ({MEASURED}) order by r.start limit 2"
    );
    let rows: Vec<(i64, i64)> =
        mock.prepare(&sql)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    assert_ne!(rows[0].1, rows[1].1);
    for (row, name) in [(rows[0].0, rows[1].1), (rows[1].0, rows[0].1)] {
        mock.execute("update CUPTI_ACTIVITY_KIND_KERNEL set demangledName = ?2 where rowid = ?1", [row, name])?;
    }
    drop(mock);
    let (code, told) = align(&dir, &[&ATTENTION, &["--stage", "prefill"]])?;
    assert_eq!((code, with(&told, "fail")), (Some(1), vec!["sequence"]), "{}", lines(&told));
    Ok(())
}

#[test]
fn a_slower_mock_fails_by_latency_and_a_noisy_one_decides_nothing() -> Result<()> {
    let slower = "update CUPTI_ACTIVITY_KIND_KERNEL set end = start + (end - start) * 3";
    let (code, told) = align(&pair(slower, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!((code, with(&told, "fail")), (Some(1), vec!["latency", "kernel_time"]));
    assert!(check(&told, "latency")["observed"].as_str().unwrap().ends_with("beyond triage"));

    let noisy = "update CUPTI_ACTIVITY_KIND_KERNEL set end = start + (end - start) * (1 + (correlationId / 400) % 5) / 3";
    let (code, told) = align(&pair(noisy, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!((code, with(&told, "fail")), (Some(2), vec![]), "{}", lines(&told));
    assert_eq!(check(&told, "latency")["verdict"], "inconclusive");
    Ok(())
}

#[test]
fn an_operation_is_found_by_operator_by_kernels_and_by_the_mocks_sequence() -> Result<()> {
    // Without such a range in the whole model, and without any named where the mock launches nothing else.
    let unmarked = format!("delete from NVTX_EVENTS where {RANGE} = 'decoder.self_attn'");
    let bare = format!(
        "create temp table gone as select correlationId from CUPTI_ACTIVITY_KIND_KERNEL where correlationId not in
             (select r.correlationId from CUPTI_ACTIVITY_KIND_RUNTIME r, NVTX_EVENTS e where r.start between e.start and e.end
              and {RANGE} = 'decoder.self_attn');
         delete from CUPTI_ACTIVITY_KIND_KERNEL where correlationId in gone;
         delete from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId in gone"
    );
    for (mock, named) in [("", &["--range", "decoder.self_attn"][..]), (&bare, &[])] {
        let dir = pair(mock, &unmarked)?;
        let (code, told) = align(&dir, &[named, &["--within", "measured", "--stage", "decode"]])?;
        assert_eq!((code, per_instance(&told)), (Some(0), [Some(18.0); 2]), "{}", lines(&told));
        assert_eq!(told["e2e"]["instances"], 128);
        assert_eq!(with(&told, "warn"), ["isolation"], "the edges of the operation are not known");
    }
    let dir = pair("", "")?;
    let (code, told) = align(&dir, &[&["--operator", "decoder.self_attn", "--within", "measured", "--stage", "prefill"]])?;
    assert_eq!((code, per_instance(&told)), (Some(0), [Some(17.0); 2]), "{}", lines(&told));
    let (code, told) = align(
        &dir,
        &[&["--kernels", "native_sdpa", "--kernels", "CatArray*OpaqueType<2>", "--within", "measured", "--stage", "prefill"]],
    )?;
    assert_eq!((code, per_instance(&told)), (Some(0), [Some(5.0); 2]), "{}", lines(&told));
    assert_eq!(told["e2e"]["instances"], 8);
    Ok(())
}

#[test]
fn another_model_is_not_found() -> Result<()> {
    let dir = pair("", "")?;
    capture("hf-deepseek-decoder", &dir.path().join("e2e.sqlite"), "")?;
    let (code, told) = align(&dir, &[&["--range", "decoder.self_attn", "--stage", "prefill"]])?;
    assert_eq!(code, Some(2));
    assert_eq!(check(&told, "isolation")["observed"], "end to end: the mock's sequence is nowhere in the timeline of the stage");
    Ok(())
}

#[test]
fn replayed_kernels_belong_to_the_range_that_was_open_at_capture() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let eager = "update CUPTI_ACTIVITY_KIND_KERNEL set graphNodeId = null;
        update StringIds set value = 'cudaLaunchKernel_v7000' where value like 'cudaGraphLaunch%'";
    capture("torch-cuda-graph-node", &dir.path().join("mock.sqlite"), "")?;
    capture("torch-cuda-graph-node", &dir.path().join("e2e.sqlite"), "")?;
    let stage = ["--stage", "decode=decode_step@LLM"];
    let (code, told) = align(&dir, &[&["--range", "layer_*.mlp"], &stage])?;
    assert_eq!((code, &told["e2e"]["instances"]), (Some(0), &Value::from(24 * 32)), "{}", lines(&told));
    assert_eq!(told["e2e"]["replayed_kernels"], told["e2e"]["kernels"]);

    capture("torch-cuda-graph-node", &dir.path().join("mock.sqlite"), eager)?;
    let (code, told) = align(&dir, &[&["--range", "decode_step"], &stage])?;
    assert_eq!((code, with(&told, "fail")), (Some(1), vec!["graphs"]), "{}", lines(&told));
    Ok(())
}

#[test]
fn a_known_difference_is_left_out_until_it_expires_and_a_report_tells_what_changed() -> Result<()> {
    let renamed = "update StringIds set value = 'my_' || value where value = 'lean_reduction_kernel' or value like '%lean_reduction_kernel<%'";
    let dir = pair(renamed, "")?;
    let waiver = |expires: &str| {
        let text = format!(
            "[[waiver]]\npattern = \"lean_reduction\"\nreason = \"own build\"\nimpact = \"none\"\nexpires = \"{expires}\"\n"
        );
        fs::write(dir.path().join("waivers.toml"), text)
    };
    let asked: [&[&str]; 2] = [&ATTENTION, &["--stage", "decode", "--waivers", "waivers.toml"]];
    waiver("2020-01-31")?;
    let (code, before) = align(&dir, &asked)?;
    assert_eq!((code, &before["waivers"][0]["expired"]), (Some(1), &Value::from(true)));
    waiver("2999-12-31")?;
    fs::write(dir.path().join("before.json"), before.to_string())?;
    let (code, told) = align(&dir, &[asked[0], asked[1], &["--previous", "before.json"]])?;
    assert_eq!((code, &told["waivers"][0]["reason"]), (Some(0), &Value::from("own build")), "{}", lines(&told));
    let changes = told["changes"].as_array().unwrap();
    assert_eq!((&changes[0]["mock"], &changes[0]["e2e"]), (&Value::from("fail"), &Value::from("pass")));
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
fn folders_of_runs_tell_their_inputs() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let events = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/events-tiny.jsonl"))?;
    // A module that is called as the range is.
    let events = events.replace("decoder.layers.0.self_attn", "decoder.self_attn");
    for (side, name) in [("mock", MOCK), ("e2e", E2E)] {
        let nsys = dir.path().join(side).join("nsys");
        fs::create_dir_all(&nsys)?;
        capture(name, &nsys.join("run.sqlite"), "")?;
        fs::write(nsys.join("events.jsonl"), &events)?;
    }
    let sides = ["--mock", "mock", "--e2e", "e2e", "--format", "json", "--stage", "prefill"];
    let told = |more: &[&str]| -> Result<(Option<i32>, Value)> {
        let output = llmprof(&dir, &[&sides[..], &ATTENTION, more].concat())?;
        Ok((output.status.code(), serde_json::from_slice(&output.stdout)?))
    };
    let (code, same) = told(&[])?;
    assert_eq!((code, &check(&same, "inputs")["verdict"]), (Some(0), &Value::from("pass")), "{}", lines(&same));
    let rows = check(&same, "inputs")["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["what"].as_str().unwrap().starts_with("shapes of its ")), "{rows:#?}");

    fs::write(
        dir.path().join("mock/nsys/events.jsonl"),
        events.replacen("\"dtype\":\"f32\",\"device\"", "\"dtype\":\"bf16\",\"device\"", 1),
    )?;
    let (code, other) = told(&[])?;
    assert_eq!((code, with(&other, "fail")), (Some(1), vec!["inputs"]));
    assert_eq!(check(&other, "inputs")["rows"][0]["what"], "number format");
    Ok(())
}

#[test]
fn a_report_holds_each_check_and_no_markup_of_a_capture() -> Result<()> {
    let hostile = "update StringIds set value = '<script>alert(1)</script>|' || value where id in (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL)";
    let dir = pair(hostile, "")?;
    let output = llmprof(
        &dir,
        &[&["--mock", "mock.sqlite", "--e2e", "e2e.sqlite", "--stage", "decode", "--out", "out"], &ATTENTION[..]].concat(),
    )?;
    assert_eq!(output.status.code(), Some(1));
    let read = |name: &str| fs::read_to_string(dir.path().join("out").join(name));
    let (html, md) = (read("alignment.html")?, read("alignment.md")?);
    assert_eq!(String::from_utf8(output.stdout)?, md);
    let json: Value = serde_json::from_str(&read("alignment.json")?)?;
    for it in json["checks"].as_array().unwrap() {
        let id = it["id"].as_str().unwrap();
        assert!(html.contains(&format!("id=\"check-{id}\"")) && md.contains(&format!("## {id}:")), "{id}");
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
