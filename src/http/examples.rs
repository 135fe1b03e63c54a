//! One example of everything that the contract describes, made from the types themselves.

use serde_json::{Value, json};

use super::{
    artifacts::ArtifactList,
    health::{Health, Version},
    models::ModelList,
    runs::{Links, RunList, RunSummary, RunView},
    submit::SubmittedRun,
};
use crate::{
    artifact::{
        journal::JournalEvent,
        layout::{self, FORMAT_VERSION},
    },
    config,
    run::{ArtifactRecord, Mode, RunId, RunSpec, RunState, Step, StepRecord, StepState},
};

/// Requests: the shortest, and one that says everything.
pub fn request() -> Value {
    let all = RunSpec { labels: vec!["nightly".into()], ..spec() };
    json!({
        "shortest": { "summary": "Everything by default", "value": { "model": "deepseek-ocr-tiny" } },
        "everything": { "summary": "Every setting", "value": all },
    })
}

/// What `operation` answers with `status`, in the form `kind`.
pub fn response(operation: &str, status: &str, kind: &str) -> Value {
    match (operation, status, kind) {
        ("submit_run", ..) => {
            json!(SubmittedRun { run_id: id(), state: RunState::Queued, queue_position: Some(1), links: Links::of(id()) })
        }
        ("list_runs", ..) => {
            let RunView { run_id, state, queued_at, started_at, ended_at, message, links, .. } = ended();
            let RunSpec { model, mode, labels, priority, .. } = spec();
            let run =
                RunSummary { run_id, state, model, mode, labels, priority, queued_at, started_at, ended_at, message, links };
            json!(RunList { runs: vec![run], next_cursor: None })
        }
        ("cancel_run", "200", _) => {
            json!(RunView { state: RunState::Cancelled, steps: vec![], cancel_requested: true, ..ended() })
        }
        ("cancel_run", ..) => json!(RunView { state: RunState::Running, ended_at: None, cancel_requested: true, ..ended() }),
        ("get_run", ..) => json!(ended()),
        ("follow_run", ..) => {
            let event = JournalEvent::Progress { step: Step::Baseline, phase: "measure".into(), done: 1, total: 3 };
            json!(format!("event: progress\nid: 7\ndata: {}\n\n", json!(event)))
        }
        ("list_artifacts", ..) => json!(ArtifactList { artifacts: vec![artifact()] }),
        ("get_artifact", "200", _) => json!("# deepseek-ocr-tiny: prefill takes most of the time\n"),
        ("get_artifact", ..) => json!("# deepseek"),
        ("get_bundle", ..) => json!("(the bytes of llmprof-019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10.tar.zst)"),
        ("get_report", _, "application/json") => report(),
        ("get_report", _, "text/html") => json!("<!doctype html>\n<html lang=\"en\">...</html>\n"),
        ("get_report", ..) => json!("# deepseek-ocr-tiny\n\n## Environment\n..."),
        ("list_models", ..) => json!(ModelList { models: config::models(None).unwrap_or_default().into_values().collect() }),
        ("healthz" | "readyz", ..) => json!(Health { status: "ok".into() }),
        ("version", ..) => {
            json!(Version { version: "0.1.0".into(), git_commit: Some("3f2c1d0b9a87".into()), format_version: FORMAT_VERSION })
        }
        ("openapi_json" | "openapi_yaml", ..) => {
            json!({ "openapi": "3.1.0", "info": { "title": "llmprof", "version": "0.1.0" }, "paths": {} })
        }
        _ => Value::Null,
    }
}

fn id() -> RunId {
    "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10".parse().expect("the example's id is a UUID")
}

fn spec() -> RunSpec {
    RunSpec {
        model: "deepseek-ocr-tiny".into(),
        inputs_manifest: "inputs.yaml".into(),
        mode: Mode::Basic,
        repeats: 3,
        warmup: 2,
        max_new_tokens: 64,
        seed: 0,
        dtype: None,
        device: "auto".into(),
        timeout_s: 1800,
        labels: vec![],
        priority: 0,
    }
}

fn ended() -> RunView {
    RunView {
        run_id: id(),
        state: RunState::Succeeded,
        spec: spec(),
        attempts: 1,
        queue_position: None,
        queued_at: "2026-11-20T09:00:00.000Z".into(),
        started_at: Some("2026-11-20T09:00:00.010Z".into()),
        ended_at: Some("2026-11-20T09:00:08.120Z".into()),
        cancel_requested: false,
        message: None,
        failed_step: None,
        steps: vec![StepRecord {
            step: Step::Baseline,
            state: StepState::Succeeded,
            started_at: "2026-11-20T09:00:00.300Z".into(),
            ended_at: Some("2026-11-20T09:00:07.900Z".into()),
            exit_code: Some(0),
            message: None,
        }],
        findings: vec![],
        links: Links::of(id()),
    }
}

/// The report of a real run, each list cut to its first record.
fn report() -> Value {
    let mut report: Value =
        serde_json::from_str(include_str!("../../tests/golden/cpu-report.json")).expect("a test holds the report to its schema");
    cut(&mut report);
    report
}

fn cut(value: &mut Value) {
    match value {
        Value::Array(list) => {
            list.truncate(1);
            list.iter_mut().for_each(cut);
        }
        Value::Object(fields) => fields.values_mut().for_each(cut),
        _ => {}
    }
}

fn artifact() -> ArtifactRecord {
    ArtifactRecord {
        path: layout::REPORT_MD.into(),
        bytes: 6_172,
        sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
        media_type: layout::media_type(layout::REPORT_MD).into(),
        step: Some(Step::Report),
    }
}
