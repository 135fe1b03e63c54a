//! `llmprof align` over the real pair, and over pairs that were spoilt on purpose.

use std::{fs::File, path::Path, process::Command};

use anyhow::Result;
use serde_json::Value;
use tempfile::TempDir;

/// The pair of captures in a folder of its own, each changed by plain SQL.
fn pair(mock: &str, e2e: &str) -> Result<TempDir> {
    let dir = tempfile::tempdir()?;
    for (name, to, sql) in [("hf-llama-attention-mock", "mock", mock), ("hf-llama-e2e", "e2e", e2e)] {
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(format!("{name}.sqlite.zst"));
        let path = dir.path().join(format!("{to}.sqlite"));
        zstd::stream::copy_decode(File::open(packed)?, File::create(&path)?)?;
        if !sql.is_empty() {
            rusqlite::Connection::open(&path)?.execute_batch(sql)?;
        }
    }
    Ok(dir)
}

/// The exit code and the JSON of an alignment of the pair.
fn align(dir: &TempDir, more: &[&str]) -> Result<(Option<i32>, Value)> {
    let pair = ["align", "--mock", "mock.sqlite", "--e2e", "e2e.sqlite", "--within", "measured", "--format", "json"];
    let output = Command::new(env!("CARGO_BIN_EXE_llmprof")).args(pair).args(more).current_dir(dir).output()?;
    Ok((output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default()))
}

fn check<'a>(of: &'a Value, id: &str) -> &'a Value {
    of["checks"].as_array().unwrap().iter().find(|it| it["id"] == id).unwrap()
}

const ATTENTION: [&str; 2] = ["--range", "decoder.self_attn"];

#[test]
fn the_real_pair_passes_with_17_and_18_kernels_per_layer_and_forward() -> Result<()> {
    let dir = pair("", "")?;
    for (stage, kernels) in [("prefill", 17.0), ("decode", 18.0)] {
        let (code, told) = align(&dir, &[ATTENTION[0], ATTENTION[1], "--stage", stage])?;
        assert_eq!((code, &told["verdict"]), (Some(0), &Value::from("pass")), "{told:#}");
        assert_eq!([&told["mock"], &told["e2e"]].map(|it| it["kernels_per_instance"].as_f64()), [Some(kernels); 2]);
        assert!((told["latency"]["ratio"].as_f64().unwrap() - 1.0).abs() < 0.03, "{}", told["latency"]);
    }
    Ok(())
}

#[test]
fn a_capture_that_lost_its_kernels_decides_nothing() -> Result<()> {
    let dir = pair("delete from CUPTI_ACTIVITY_KIND_KERNEL", "")?;
    let (code, told) = align(&dir, &[ATTENTION[0], ATTENTION[1], "--stage", "decode"])?;
    assert_eq!((code, &told["verdict"]), (Some(2), &Value::from("inconclusive")));
    for id in ["complete", "isolation", "names", "latency"] {
        assert_eq!(check(&told, id)["verdict"], "inconclusive", "{id}");
    }
    Ok(())
}

#[test]
fn other_kernels_fail_by_name_and_another_grid_by_geometry() -> Result<()> {
    let dir = pair("update StringIds set value = 'f32_' || value where id in (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL)", "")?;
    let (code, told) = align(&dir, &[ATTENTION[0], ATTENTION[1], "--stage", "decode"])?;
    assert_eq!(code, Some(1));
    assert_eq!([check(&told, "names"), check(&told, "missing_kernels")].map(|it| it["verdict"].as_str()), [Some("fail"); 2]);

    let dir = pair("update CUPTI_ACTIVITY_KIND_KERNEL set gridX = gridX + 1", "")?;
    let (code, told) = align(&dir, &[ATTENTION[0], ATTENTION[1], "--stage", "decode"])?;
    assert_eq!((code, check(&told, "names")["verdict"].as_str()), (Some(1), Some("pass")));
    assert_eq!(check(&told, "geometry")["verdict"], "fail");
    Ok(())
}

#[test]
fn bad_arguments_and_bad_files_end_with_3() -> Result<()> {
    let dir = pair("", "")?;
    assert_eq!(align(&dir, &["--nonsense"])?.0, Some(3));
    assert_eq!(align(&dir, &["--stage", "nowhere"])?.0, Some(3));
    std::fs::write(dir.path().join("mock.sqlite"), "no capture")?;
    assert_eq!(align(&dir, &ATTENTION)?.0, Some(3));
    Ok(())
}
