//! Steps of an engine in a real capture, whose ranges are renamed as vLLM names them.

use llmprof_core::domain::ids::RunId;
use llmprof_report::{
    ReportForm,
    pipeline::{self, Statements},
};
use llmprof_service::config;
use serde_json::Value;
use uuid::Uuid;

use crate::support::captures::capture;

/// Renames ranges of a capture, and removes those around all steps.
const AS_VLLM: &str = "
    update StringIds set value = 'execute_context_0(0)_generation_4(4)' where value = 'decode_step';
    update NVTX_EVENTS set text = 'execute_context_0(0)_generation_4(4)' where text = 'decode_step';
    update StringIds set value = 'execute_context_4(2048)_generation_0(0)' where value = 'prefill';
    update NVTX_EVENTS set text = 'execute_context_4(2048)_generation_0(0)' where text = 'prefill';
    delete from NVTX_EVENTS where text = 'decode_all'
        or textId in (select id from StringIds where value = 'decode_all');";

fn report(name: &str, sql: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("vllm.sqlite");
    capture(name, &export, sql).unwrap();
    let devices = config::devices().unwrap();
    let analyzed =
        pipeline::analyze_capture(&[export], &[], Statements::default(), &devices).unwrap();
    let report = analyzed.render_one(ReportForm::Json, RunId(Uuid::nil()));
    serde_json::from_str(&report).unwrap()
}

fn total(steps: &[Value], class: &str, column: &str) -> f64 {
    let of = steps.iter().filter(|it| it["class"] == class);
    of.map(|it| it[column].as_f64().unwrap()).sum()
}

#[test]
fn the_steps_of_an_engine_are_stages_with_the_kernels_of_the_capture() {
    let renamed = report("hf-deepseek-decoder", AS_VLLM);
    let steps = renamed["engine_steps"].as_array().unwrap();
    let classes = |class: &str| steps.iter().filter(|it| it["class"] == class).count();
    assert_eq!((classes("prefill"), classes("decode"), steps.len()), (2, 12, 14));
    // By plain SQL over the capture: launched inside `prefill` and inside `decode_step`.
    assert_eq!(total(steps, "prefill", "kernels"), 1972.0);
    assert_eq!(total(steps, "decode", "kernels"), 10_800.0);
    assert!(steps.iter().all(|it| it["engine"] == "vllm" && it["is_replayed"] == false));
    assert_eq!(steps[0]["prefill_tokens"], 2048);

    let stages: Vec<&str> = renamed["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["stage"].as_str().unwrap())
        .collect();
    assert_eq!(stages, ["prefill", "decode_all"]);
    // Each step is a repeat with one token of each request.
    assert_eq!(renamed["aggregates"]["decode_steps"], 1);
    let by_range = report("hf-deepseek-decoder", "");
    assert!(by_range.get("engine_steps").is_none());
}

#[test]
fn steps_that_replay_a_graph_say_so() {
    let report = report("torch-cuda-graph-node", AS_VLLM);
    let steps = report["engine_steps"].as_array().unwrap();
    let decode: Vec<&Value> = steps.iter().filter(|it| it["class"] == "decode").collect();
    assert_eq!(decode.len(), 32);
    assert!(decode.iter().all(|it| it["is_replayed"] == true && it["kernels"] == 144));
    let length = |it: &&Value, column: &str| it[column].as_f64().unwrap();
    assert!(decode.iter().all(|it| length(it, "gap_ms") < length(it, "device_ms")));
}

#[test]
fn inferred_steps_are_stages_in_all_figures_like_named_ones() {
    let [named, inferred] =
        ["", "delete from NVTX_EVENTS"].map(|sql| report("hf-deepseek-decoder", sql));
    let steps = inferred["engine_steps"].as_array().unwrap();
    assert_eq!(steps.len(), 14);
    assert!(steps.iter().all(|it| it["source"] == "inferred" && it["engine"].is_null()));
    assert_eq!(total(steps, "prefill", "kernels"), 1972.0);
    assert_eq!(total(steps, "decode", "kernels"), 10_800.0);
    let launches = |report: &Value| -> Vec<(String, Value)> {
        let stages = report["stage_kernels"].as_array().unwrap().iter();
        let stages = stages.map(|it| (it["stage"].as_str().unwrap().to_owned(), &it["launches"]));
        let of_model = stages.filter(|(stage, _)| !stage.is_empty());
        of_model.map(|(stage, count)| (stage, count.clone())).collect()
    };
    assert_eq!(launches(&inferred), launches(&named));
    assert_eq!(launches(&inferred).len(), 3, "prefill, decode and the cold prefill");
    assert_eq!(inferred["aggregates"]["decode_steps"], named["aggregates"]["decode_steps"]);
    let stages = |report: &Value, table: &str| -> Vec<Value> {
        report[table].as_array().unwrap().iter().map(|it| it["stage"].clone()).collect()
    };
    for table in ["stages", "ledger_stages", "stage_gpu"] {
        assert_eq!(stages(&inferred, table), stages(&named, table), "{table}");
    }
    let found = inferred["findings"].as_array().unwrap();
    let found = found.iter().find(|it| it["id"] == "steps_inferred").unwrap();
    assert_eq!(found["evidence"]["decode steps"], "12");
    assert_eq!(found["evidence"]["engine by its kernels"], "PyTorch and transformers");
    assert!(found["advice"].as_str().unwrap().contains("torch.cuda.nvtx.range"));
}
