//! An example of `report.json` for the contract: made up of few events, but analysed and reported like any run.
//!
//! Shown in the contract alone; no run's report takes a figure from here.

use serde_json::Value;

use super::{RunFacts, profile::profile};
use crate::{
    analyze::analyze,
    config,
    run::{InputFile, RunId, RunSpec, RunState},
    trace::{
        Trace,
        environment::Environment,
        event::{Ceiling, EVENT_SCHEMA, End, Event, ImageViews, OperatorCall, Output, StageRange, Start},
    },
};

const MS: i64 = 1_000_000;

/// The report of a made-up run of `spec`.
pub fn example_report(id: RunId, spec: &RunSpec) -> Value {
    let Some(model) = config::models(None).unwrap_or_default().remove(&spec.model) else { return Value::Null };
    let environment = Environment {
        os: Some("Debian GNU/Linux 12 (bookworm)".into()),
        cpus: Some(2),
        llmprof: env!("CARGO_PKG_VERSION").into(),
        ..Environment::default()
    };
    let trace = Trace { environment: environment.clone(), baseline: events(spec), ..Trace::default() };
    let inputs = [InputFile {
        path: "page.png".into(),
        bytes: 123_456,
        sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
        width: 1240,
        height: 1754,
    }];
    let facts = RunFacts {
        id,
        spec,
        model: &model,
        environment: &environment,
        steps: &[],
        findings: &[],
        inputs: &inputs,
        state: RunState::Succeeded,
    };
    serde_json::to_value(profile(&facts, &trace, &analyze(&trace, None, None))).unwrap_or_default()
}

/// Three repeats of a prefill and two decode steps, one operator in each.
fn events(spec: &RunSpec) -> Vec<Event> {
    let images =
        vec![ImageViews { width: 1240, height: 1754, global_px: 256, crop_px: 160, crops_wide: 2, crops_high: 3, tokens: 107 }];
    let mut events = vec![Event::Start(Start {
        schema: EVENT_SCHEMA,
        t_ns: 0,
        unix_ns: 1_760_000_000_000_000_000,
        pid: 4242,
        model: spec.model.clone(),
        weights: "synthetic".into(),
        parameters: 5_504_352,
        weight_bytes: 22_017_408,
        dtype: "f32".into(),
        device: "cpu".into(),
        threads: 2,
        prompt_tokens: 112,
        image_tokens: 107,
        images,
        decode_graph: false,
        load_ns: 40 * MS,
    })];
    for repeat in 0..3 {
        let began = 1_000 * MS * i64::from(repeat + 1);
        let range = |name: &str, from: i64, to: i64, step| {
            let (start_ns, end_ns) = (began + from * MS, began + to * MS);
            Event::Range(StageRange { name: name.into(), start_ns, end_ns, warmup: false, repeat, step })
        };
        let call = |stage: &str, rows: u64, from: i64, to: i64| {
            Event::Op(OperatorCall {
                path: "decoder.layers.0.self_attn.q_proj".into(),
                op: "linear".into(),
                start_ns: began + from * MS,
                end_ns: began + to * MS,
                warmup: false,
                repeat,
                stage: stage.into(),
                shapes: vec![vec![1, rows, 128], vec![128, 128]],
                dtype: "f32".into(),
                flops: 2 * rows * 128 * 128,
                bytes: 4 * (2 * rows * 128 + 128 * 128),
            })
        };
        let slower = i64::from(repeat);
        events.extend([
            range("vision", 5, 60, None),
            call("prefill", 112, 70, 95),
            range("prefill", 0, 100 + slower, None),
            call("decode_all", 1, 111, 113),
            range("decode_step", 110, 115, Some(0)),
            call("decode_all", 1, 116, 118),
            range("decode_step", 115, 120, Some(1)),
            range("decode_all", 110, 120 + slower, None),
            Event::Output(Output { warmup: false, repeat, tokens: vec![17, 4, 901], logits_sha256: "ab".repeat(32) }),
        ]);
    }
    let ceiling = |what: &str, shape, per_second| {
        Event::Ceiling(Ceiling { what: what.into(), dtype: "f32".into(), shape, per_second, tries: 5 })
    };
    events.extend([
        ceiling("matmul", vec![512, 512, 512], 9.1e10),
        ceiling("copy", vec![16_777_216], 1.7e10),
        Event::End(End { t_ns: 5_000 * MS, peak_rss_bytes: 187_000_000, peak_device_bytes: None }),
    ]);
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::profile::LLMProfileReport, run::Mode};

    #[test]
    fn the_example_is_a_report_and_holds_what_a_run_holds() {
        let spec = RunSpec {
            model: "deepseek-ocr-tiny".into(),
            inputs_manifest: "inputs.yaml".into(),
            mode: Mode::Basic,
            repeats: 3,
            warmup: 2,
            max_new_tokens: 2,
            seed: 0,
            dtype: None,
            device: "auto".into(),
            timeout_s: 1800,
            labels: vec![],
            priority: 0,
        };
        let example = example_report("019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10".parse().unwrap(), &spec);
        let report: LLMProfileReport = serde_json::from_value(example).unwrap();
        assert_eq!(report.aggregates.stage_ms["prefill"].n, 3);
        assert!(!report.operators.is_empty() && !report.mfu.is_empty() && !report.findings.is_empty());
    }
}
