//! Real captures whose model is stated: costs, floors and MFU of a program that llmprof did not
//! write.

use std::{collections::BTreeMap, path::Path};

use llmprof_core::domain::{
    ids::RunId,
    model::{ModelSpec, PRESETS},
    stated_model::{CaptureStatement, ModelStatement},
};
use llmprof_report::{
    ReportForm,
    pipeline::{self, Statements},
};
use llmprof_service::config;
use serde_json::Value;
use uuid::Uuid;

use crate::{api::stated_models::LLAMA, support::captures};

/// The `report.json` of a capture with this statement.
fn report(capture: &str, fields: &[(&str, &str)]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("capture.sqlite");
    captures::capture(capture, &export, "").unwrap();
    analyzed(&export, fields)
}

fn analyzed(export: &Path, fields: &[(&str, &str)]) -> Value {
    let models: BTreeMap<String, ModelSpec> = PRESETS
        .iter()
        .map(|(name, text)| {
            let model = ModelSpec { name: (*name).into(), ..toml::from_str(text).unwrap() };
            ((*name).to_owned(), model)
        })
        .collect();
    let mut statement = ModelStatement::default();
    for (name, text) in fields {
        *statement.field(name).unwrap() = Some((*text).to_owned());
    }
    let CaptureStatement { model, steps } = statement.of_capture(&models).unwrap();
    let stated = Statements { model, steps, ..Statements::default() };
    let devices = config::devices().unwrap();
    let analyzed = pipeline::analyze_capture(&[export.to_owned()], &[], stated, &devices).unwrap();
    let report = analyzed.render_one(ReportForm::Json, RunId(Uuid::nil()));
    serde_json::from_str(&report).unwrap()
}

fn row<'a>(report: &'a Value, table: &str, key: &str, value: &str) -> &'a Value {
    let rows = report[table].as_array().unwrap_or_else(|| panic!("no {table}"));
    rows.iter().find(|row| row[key] == value).unwrap_or_else(|| panic!("no {value} in {table}"))
}

fn findings(report: &Value) -> Vec<&str> {
    report["findings"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect()
}

/// Checks that the ledger of each stage adds up, and returns its floor in nanoseconds.
fn floor(report: &Value, stage: &str) -> i64 {
    let of = row(report, "ledger_stages", "stage", stage);
    let rows = report["ledger"].as_array().unwrap().iter().filter(|it| it["stage"] == stage);
    let sum: i64 = rows.map(|it| it["ns"].as_i64().unwrap()).sum();
    assert_eq!(sum, of["measured_ns"].as_i64().unwrap());
    assert_eq!(of["floor_of"], "model");
    of["floor_ns"].as_i64().unwrap()
}

#[test]
fn the_decoder_of_deepseek_in_transformers_has_floors_and_mfu() {
    let fields = [("model_config", "deepseek-ocr"), ("prompt_tokens", "918"), ("new_tokens", "8")];
    let stated = report("hf-deepseek-decoder", &fields);
    let mfu = row(&stated, "mfu", "scope", "prefill");
    let (flops, ms) = (mfu["flops"].as_f64().unwrap(), mfu["ms"].as_f64().unwrap());
    // Two FLOPs per weight and token of only the projections, and the H200's 989 TFLOP/s.
    assert!(flops > 2.0 * 0.4e9 * 918.0, "{flops}");
    let share = mfu["datasheet_pct"].as_f64().unwrap();
    assert!((share - flops / (ms / 1e3) / 989e12 * 100.0).abs() < 0.01, "{share}");
    assert_eq!(mfu["flops_source"], "modelled");

    // The whole model's weights but the experts that a prompt misses, at 4.8 TB/s.
    let prefill = floor(&stated, "prefill");
    assert!((1_200_000..1_500_000).contains(&prefill), "{prefill}");
    // Eager, with 4 and 8 steps: 0.25 ms of weights each.
    let decode = floor(&stated, "decode_all");
    assert!((6 * 200_000..8 * 300_000).contains(&decode), "{decode}");
    assert!(stated["costs"].is_null(), "of 4 or of 8 steps");
    assert!(!findings(&stated).contains(&"no_measured_peak"));
    assert_eq!(findings(&stated).iter().filter(|id| id.starts_with("stated_")).count(), 0);

    // Without the statement there is neither.
    let silent = report("hf-deepseek-decoder", &[]);
    assert_eq!(silent["mfu"].as_array().map(Vec::len), Some(0));
    assert!(row(&silent, "ledger_stages", "stage", "prefill")["floor_ns"].is_null());
}

#[test]
fn ranges_that_are_not_the_models_operators_share_its_floor_by_time() {
    let fields = [("model_config", LLAMA), ("prompt_tokens", "512"), ("new_tokens", "16")];
    let report = report("hf-llama-e2e", &fields);
    for stage in ["prefill", "decode_all"] {
        let all = floor(&report, stage);
        let members = report["ledger_members"].as_array().unwrap().iter();
        let floors: Vec<&Value> =
            members.filter(|it| it["stage"] == stage && it["cause"] == "floor").collect();
        let sum: i64 = floors.iter().map(|it| it["ns"].as_i64().unwrap()).sum();
        assert_eq!(sum, all);
        let attention = floors.iter().any(|it| it["operator"] == "decoder.self_attn");
        assert!(attention && floors.len() > 1, "{floors:?}");
    }
}

/// The small engine of the captures: shapes of Qwen3, 16 layers.
const ENGINE: &str = r#"{"model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 16, "vocab_size": 32000, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16"}"#;

#[test]
fn each_batch_of_an_engine_has_the_floor_of_its_requests_and_context() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures/engine-eager-window.json.gz");
    let of = |model: &str, batch: &str| {
        analyzed(&path, &[("model_config", model), ("prompt_tokens", "175"), ("batch", batch)])
    };
    let report = of(ENGINE, "6");
    assert!(!findings(&report).contains(&"stated_model_refuted"), "{}", report["findings"]);
    // The capture has steps of both kinds, and no other batch or prompt changes a floor.
    for batch in ["1", "64"] {
        let other = of(ENGINE, batch);
        for table in ["step_batches", "ledger_stages", "mfu"] {
            assert_eq!(other[table], report[table], "{table}, batch {batch}");
        }
    }
    let rows = report["step_batches"].as_array().unwrap().iter();
    let rows: Vec<&Value> = rows.filter(|it| it["class"] == "decode").collect();
    let requests: Vec<u64> = rows.iter().map(|it| it["requests"].as_u64().unwrap()).collect();
    assert_eq!(requests, [5, 6, 7, 8]);
    // Projections, the MLP and lm_head, then 2 x 16 x 8 x 128 elements for each position, in bf16
    // at the H100's 3,350 GB/s.
    let weights = 2.0 * (16.0 * f64::from(2_048 * (4_096 + 2_048 + 3 * 6_144)) + 65_536_000.0);
    let (mut sum, mut steps) = (0.0, 0.0);
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        let bytes = weights + number("requests") * number("context_mean") * 65_536.0;
        let floor = number("floor_ms");
        assert!((floor / (bytes / 3.35e9) - 1.0).abs() < 0.01, "{row}");
        assert!((number("times_floor") * floor - number("p50_ms")).abs() < 1e-9, "{row}");
        assert!(number("times_floor") > 1.0 && row["floor_missing"].is_null(), "{row}");
        sum += floor * number("steps");
        steps += number("steps");
    }
    // The floor of the stage is the mean over its steps.
    let of_stage = floor(&report, "decode_all") as f64 / 1e6;
    assert!((of_stage / (sum / steps) - 1.0).abs() < 0.01, "{of_stage} {sum} {steps}");
    let prefill = row(&report, "ledger_stages", "stage", "prefill");
    let missing = prefill["missing"].to_string();
    assert!(prefill["floor_ns"].is_null() && missing.contains("stated prompts"), "{missing}");
    // A refuted statement has no floor, and each row the reason.
    let refuted = of(&ENGINE.replace("6144", "8192"), "6");
    assert!(is_refuted(&refuted));
    for row in refuted["step_batches"].as_array().unwrap() {
        assert!(row["floor_ms"].is_null() && row["times_floor"].is_null());
        let is_decode = row["class"] == "decode";
        let why = row["floor_missing"].as_str().unwrap_or_default();
        assert_eq!(why.contains("stated_model_refuted"), is_decode, "{row}");
    }
}

#[test]
fn a_statement_that_contradicts_the_capture_is_reported() {
    let of = |tokens| {
        let fields = [("model_config", LLAMA), ("prompt_tokens", "512"), ("new_tokens", tokens)];
        report("torch-cuda-graph-node", &fields)
    };
    let differs = |report: &Value| findings(report).contains(&"stated_steps_differ");
    let (right, wrong) = (of("32"), of("99"));
    assert!(differs(&wrong) && !differs(&right));
    // The counted steps are used.
    assert_eq!(floor(&wrong, "decode_all"), floor(&right, "decode_all"));
    assert_eq!(wrong["costs"]["decode_steps"], 32);
}

#[test]
fn steps_stated_without_a_model_are_reported_and_compared_with_those_that_a_capture_marks() {
    let unmarked = report("hf-llama-e2e", &[("new_tokens", "16")]);
    assert_eq!(unmarked["aggregates"]["stated_steps"], 16);
    assert_eq!(unmarked["spec"]["subject"]["new_tokens"], 16);
    assert!(unmarked["costs"].is_null(), "costs need the model");
    assert_eq!(findings(&unmarked).iter().filter(|id| id.starts_with("stated_")).count(), 0);
    for (tokens, differs) in [("32", false), ("33", false), ("99", true)] {
        let marked = report("torch-cuda-graph-node", &[("new_tokens", tokens)]);
        assert_eq!(findings(&marked).contains(&"stated_steps_differ"), differs, "{tokens}");
        assert_eq!(marked["aggregates"]["decode_steps"], 32);
    }
}

/// True if no figure is of the stated model, and the reason stands where they would be.
fn is_refuted(report: &Value) -> bool {
    let stages = report["ledger_stages"].as_array().unwrap();
    let is_without = |it: &Value| {
        let missing = it["missing"].as_array().unwrap();
        it["floor_of"] != "model"
            && missing.iter().any(|why| why.as_str().unwrap().contains("cannot be the model"))
    };
    let modelled = report["mfu"].as_array().unwrap().iter();
    findings(report).contains(&"stated_model_refuted")
        && report["costs"].is_null()
        && modelled.clone().all(|row| row["flops_source"] == "counted")
        && !stages.is_empty()
        && stages.iter().all(is_without)
}

#[test]
fn a_model_that_the_capture_cannot_be_of_has_no_figure() {
    let (right, wide) = (LLAMA, LLAMA.replace("5632", "8192"));
    let large = LLAMA.replace("2048", "4096").replace("5632", "22528");
    let deep = LLAMA.replace("\"num_hidden_layers\": 8", "\"num_hidden_layers\": 36");
    let eager =
        |text: &str| text.replace("layers\": 8", "layers\": 6").replace("heads\": 8", "heads\": 4");
    let of = |capture: &str, model: &str, more: &[(&str, &str)]| {
        let fields = [("model_config", model), ("prompt_tokens", "512")];
        is_refuted(&report(capture, &[&fields[..], more].concat()))
    };
    // With only the kernels' names, their number and the device's peaks.
    assert!(!of("hf-llama-e2e", right, &[("new_tokens", "16")]));
    for (model, more) in [
        (large.as_str(), ("batch", "1")),
        (deep.as_str(), ("batch", "1")),
        (right, ("new_tokens", "64")),
        (right, ("new_tokens", "4")),
        (right, ("batch", "16")),
    ] {
        assert!(of("hf-llama-e2e", model, &[more]), "{model} {more:?}");
    }
    // With shapes.
    let of_trace = |model: &str, more: &[(&str, &str)]| {
        let fields = [("model_config", model), ("prompt_tokens", "512")];
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/captures/torch-kineto-eager.json.gz");
        is_refuted(&analyzed(&path, &[&fields[..], more].concat()))
    };
    assert!(!of_trace(&eager(right), &[]));
    for (model, more) in [
        (right.to_owned(), ("batch", "1")),
        (eager(&wide), ("batch", "1")),
        (eager(right), ("batch", "2")),
        (eager(right), ("dtype", "f16")),
    ] {
        assert!(of_trace(&model, &[more]), "{model} {more:?}");
    }
}
