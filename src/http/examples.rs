//! One example of everything that the contract describes, made from the types themselves.

mod alignments;

use serde_json::{Value, json};

use super::{
    artifacts::ArtifactList,
    audit::AuditList,
    captures::{CaptureFile, CaptureForm},
    devices::{DeviceList, DeviceView},
    health::{Health, Version},
    models::ModelList,
    profiling::{ProfilingList, ProfilingPreset},
    queue::{Queue, QueuedRun},
    retention::{DueRun, RetentionView},
    runs::{Links, RunList, RunSummary, RunView},
    submit::{Label, SubmittedRun},
    targets::{CommandView, TargetList},
};
use crate::{
    artifact::{
        journal::JournalEvent,
        layout::{self, FORMAT_VERSION},
    },
    config,
    profiling::Profiling,
    report::{
        self,
        cost::{Asked, DEPTH},
        data::{self, DataTable, Selection, TableList},
    },
    run::{
        ArtifactRecord, Common, Finding, Mode, RunId, RunSpec, RunState, Severity, Step, StepRecord, StepState, Subject,
        SubjectKind,
        subject::{ModelSubject, Passes, Workload},
    },
    store::audit::AuditEntry,
    trace::checkup::{Check, Checkup},
};

/// Requests: the shortest, and one that says everything.
pub fn request(operation: &str, kind: &str) -> Value {
    if operation == "submit_capture" {
        return capture(kind);
    }
    if operation == "submit_alignment" {
        return alignments::request();
    }
    let all = json!({
        "model": "deepseek-ocr-tiny", "inputs_manifest": "inputs.yaml", "mode": "basic", "repeats": 3, "warmup": 2, "max_new_tokens": 64,
        "seed": 0, "dtype": "f32", "device": "auto", "timeout_s": 1800, "labels": ["nightly"], "priority": 0,
        "profiling": Profiling::bundled(Mode::Basic).ok(),
    });
    json!({
        "shortest": { "summary": "Everything by default", "value": { "model": "deepseek-ocr-tiny" } },
        "settings": {
            "summary": "A mode with single settings of its passes changed",
            "value": {
                "model": "deepseek-ocr",
                "profiling": { "nsys": { "cuda_graph_trace": "graph" }, "ncu": { "top_n": 3, "sections": ["SpeedOfLight", "LaunchStats"] } },
            },
        },
        "aligned": {
            "summary": "A part of a model alone, held to the same part inside the whole model; with a mock that differs on purpose",
            "value": {
                "model": "deepseek-ocr-tiny", "target": "decoder.layers.3.self_attn", "align_with": "e2e",
                "mock": { "dtype": "f32", "decode_graph": false, "prompt_tokens": 128 },
            },
        },
        "command": {
            "summary": "A command that this host allows, in place of a model",
            "value": { "target": { "command": "tiny-generate", "params": { "tokens": 8, "prompt": "Hello" } }, "mode": "light", "repeats": 2, "warmup": 0 },
        },
        "everything": { "summary": "Every setting", "value": all },
    })
}

/// Captures that are imported: their bytes, told in words.
fn capture(kind: &str) -> Value {
    let form = CaptureForm {
        file: vec![CaptureFile("(the bytes of vllm.sqlite.zst)".into()), CaptureFile("(the bytes of raw.csv)".into())],
        model: Some("llama-3-8b".into()),
        label: vec![Label("vllm".into())],
        stage: vec!["prefill=ctx@vllm".into(), "decode_all=gen@vllm".into()],
        within: vec!["measured".into()],
        without: vec!["warmup".into()],
    };
    let value = if kind == "multipart/form-data" { json!(form) } else { json!("(the bytes of the file)") };
    json!({ "capture": { "summary": "A capture that was taken elsewhere", "value": value } })
}

/// What `operation` answers with `status`, in the form `kind`.
pub fn response(operation: &str, status: &str, kind: &str) -> Value {
    match (operation, status, kind) {
        ("submit_run" | "submit_capture", ..) => {
            json!(SubmittedRun { run_id: id(), state: RunState::Queued, queue_position: Some(1), links: Links::of(id()) })
        }
        ("list_runs", ..) => {
            let RunView { run_id, state, owner, name, pinned, queued_at, started_at, ended_at, message, links, .. } = ended();
            let Common { labels, priority, .. } = spec().common;
            let run = RunSummary {
                run_id,
                kind: SubjectKind::Model,
                state,
                owner,
                model: Some(name.clone()),
                name,
                mode: spec().mode(),
                labels,
                pinned,
                priority,
                queued_at,
                started_at,
                ended_at,
                message,
                links,
            };
            json!(RunList { runs: vec![run], next_cursor: None })
        }
        ("cancel_run", "200", _) => {
            json!(RunView { state: RunState::Cancelled, steps: vec![], cancel_requested: true, ..ended() })
        }
        ("cancel_run", ..) => json!(RunView { state: RunState::Running, ended_at: None, cancel_requested: true, ..ended() }),
        ("get_run" | "unpin_run", ..) => json!(ended()),
        ("pin_run", ..) => json!(RunView { pinned: true, ..ended() }),
        ("get_retention", ..) => json!(retention()),
        ("follow_run", ..) => {
            let event = JournalEvent::Progress { step: Step::Baseline, phase: "measure".into(), done: 1, total: 3 };
            json!(format!("event: progress\nid: 7\ndata: {}\n\n", json!(event)))
        }
        ("list_artifacts", ..) => json!(ArtifactList { artifacts: vec![artifact()] }),
        ("get_alignment_artifact", "200", _) => json!("# Alignment: pass\n"),
        ("get_alignment_artifact", ..) => json!("# Align"),
        ("list_alignment_artifacts", ..) => json!(ArtifactList { artifacts: vec![alignments::artifact()] }),
        ("follow_alignment", ..) => alignments::event(),
        ("submit_alignment", ..) => json!(alignments::queued()),
        ("get_alignment", ..) => json!(alignments::ended()),
        ("list_alignments", ..) => alignments::list(),
        ("get_alignment_report", _, kind) => alignments::report(kind),
        ("get_artifact", "200", _) => json!("# deepseek-ocr-tiny: prefill takes most of the time\n"),
        ("get_artifact", ..) => json!("# deepseek"),
        ("get_bundle", ..) => json!("(the bytes of llmprof-019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10.tar.zst)"),
        ("get_report", _, "application/json") => report(),
        ("get_report", _, "text/html") => json!("<!doctype html>\n<html lang=\"en\">...</html>\n"),
        ("get_report", ..) => json!("# deepseek-ocr-tiny\n\n## Environment\n..."),
        ("list_tables", ..) => tables().map_or(Value::Null, |(heads, _)| json!(heads)),
        ("get_table", _, "application/json") => tables().map_or(Value::Null, |(_, table)| json!(table.json(id()))),
        ("get_table", ..) => tables().map_or(Value::Null, |(_, table)| json!(table.csv())),
        ("diff_runs", _, "application/json") => diff(),
        ("diff_runs", _, "text/html") => json!("<!doctype html>\n<html lang=\"en\">...</html>\n"),
        ("diff_runs", ..) => json!("# From run 019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10 to run ...\n"),
        ("list_models", ..) => {
            json!(ModelList { models: config::models(None).unwrap_or_default().models.into_values().collect(), refused: vec![] })
        }
        ("list_targets", ..) => {
            let commands = config::example_targets().unwrap_or_default();
            json!(TargetList { commands: commands.iter().map(|(name, command)| CommandView::of(name, command)).collect() })
        }
        ("list_profiling", ..) => {
            let preset = |mode: &Mode| Some(ProfilingPreset { mode: *mode, profiling: Profiling::bundled(*mode).ok()? });
            json!(ProfilingList { presets: Mode::ALL.iter().filter_map(preset).collect() })
        }
        ("get_cost", _, "application/json") => cost(),
        ("get_cost", _, "text/csv") => json!("path,op,parameters,...\ndecoder.embed_tokens,embedding,1048576,...\n"),
        ("get_cost", ..) => json!("# What deepseek-ocr-tiny needs\n\n..."),
        ("list_devices", ..) => json!(DeviceList {
            devices: vec![DeviceView {
                name: "cuda:0".into(),
                uuid: Some("GPU-6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77".into()),
                product: Some("NVIDIA H200".into()),
                memory_bytes: Some(150_754_820_096),
                run_id: Some(id()),
            }],
        }),
        ("doctor", ..) => json!(checkup()),
        ("healthz" | "readyz", ..) => json!(Health { status: "ok".into() }),
        ("version", ..) => {
            json!(Version { version: "0.1.0".into(), git_commit: Some("3f2c1d0b9a87".into()), format_version: FORMAT_VERSION })
        }
        ("get_queue", ..) => json!(Queue { running: vec![], waiting: vec![queued()] }),
        ("list_audit", ..) => json!(AuditList {
            entries: vec![AuditEntry {
                at: "2026-11-20T09:00:00.000Z".into(),
                who: Some("ann".into()),
                address: Some("192.0.2.7".into()),
                action: "POST /runs/{run_id}/cancel".into(),
                target: Links::of(id()).cancel,
                status: Some(202),
                request_id: Some("019a9f3e-7b2a-7d31-8f64-0d6f1b2c3e4a".into()),
            }],
        }),
        ("metrics", ..) => json!("# TYPE llmprof_runs gauge\nllmprof_runs{state=\"queued\"} 3\n# EOF\n"),
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
    let workload = Workload {
        model: "deepseek-ocr-tiny".into(),
        inputs_manifest: "inputs.yaml".into(),
        max_new_tokens: 64,
        seed: 0,
        dtype: None,
    };
    let passes = Passes {
        mode: Mode::Basic,
        repeats: 3,
        warmup: 2,
        device: "auto".into(),
        profiling: Profiling::bundled(Mode::Basic).ok(),
    };
    let common = Common { labels: vec![], priority: 0, timeout_s: 1800 };
    RunSpec { subject: Subject::Model(ModelSubject { workload, passes }), common }
}

fn queued() -> QueuedRun {
    QueuedRun {
        run_id: id(),
        position: 1,
        kind: SubjectKind::Model,
        name: "deepseek-ocr-tiny".into(),
        mode: Some(Mode::Deep),
        device: Some("auto".into()),
        owner: Some("ann".into()),
        priority: 0,
        queued_at: "2026-11-20T09:00:00.000Z".into(),
        expected_start: None,
        unknown_because: Some("no estimate: no run like the one ahead (deepseek-ocr) has finished on this host".into()),
    }
}

fn ended() -> RunView {
    RunView {
        run_id: id(),
        state: RunState::Succeeded,
        owner: Some("ann".into()),
        name: spec().name().to_owned(),
        spec: spec(),
        attempts: 1,
        queue_position: None,
        queued_at: "2026-11-20T09:00:00.000Z".into(),
        started_at: Some("2026-11-20T09:00:00.010Z".into()),
        ended_at: Some("2026-11-20T09:00:08.120Z".into()),
        cancel_requested: false,
        pinned: false,
        scheduled: None,
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

fn retention() -> RetentionView {
    let due = DueRun {
        run_id: id(),
        name: "deepseek-ocr-tiny".into(),
        mode: Some("deep".into()),
        ended_at: "2026-11-20T09:00:08.120Z".into(),
        bytes: 48_000_000,
        at: None,
        why: "beyond the newest 5 of deepseek-ocr-tiny, deep".into(),
    };
    let old = DueRun { at: Some("2027-02-18T09:00:08.120Z".into()), why: "older than 90 days then".into(), ..due.clone() };
    RetentionView {
        as_they_are: 5,
        most_runs: 0,
        most_days: 90,
        most_bytes: 0,
        runs: 6,
        bytes: 288_000_000,
        pack: vec![due],
        remove: vec![old],
        notes: vec![],
    }
}

/// A real report compared with itself, each list cut to its first record.
fn diff() -> Value {
    let Ok(run) = report::diff::stored(include_bytes!("../../tests/golden/cpu-report.json"), None) else { return Value::Null };
    let mut diff = json!(report::diff::run_diff(&run, &run, &[]));
    cut(&mut diff);
    diff
}

/// The first tables of a real report, and one of them cut to its first record.
fn tables() -> Option<(TableList, DataTable)> {
    let report = serde_json::from_str(include_str!("../../tests/golden/gpu-report.json")).ok()?;
    let stored = data::lines(&report);
    let tables = data::heads(stored.as_bytes()).ok()?.into_iter().take(3).collect();
    let first = Selection { limit: Some(1), ..Selection::default() };
    let table = data::find(stored.as_bytes(), "stage_kernels").ok()??.select(&first).ok()?;
    Some((TableList { run_id: id(), tables }, table))
}

/// The cost of a bundled model, each list cut to its first record.
fn cost() -> Value {
    let models = config::models(None).unwrap_or_default().models;
    let Some(model) = models.get("deepseek-ocr-tiny") else { return Value::Null };
    let (images, prompt_tokens) = (&[][..], Some(64));
    let asked = Asked { model, inputs: None, prompt: None, images, prompt_tokens, new_tokens: 16, dtype: None, depth: DEPTH };
    let mut answer = json!(report::cost::model_cost(&asked).ok());
    cut(&mut answer);
    answer
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

fn checkup() -> Checkup {
    let missing = Finding::new(
        "ncu_missing",
        Severity::Warning,
        "Nsight Compute (ncu) is not installed: no kernel counters can be collected",
    )
    .advise("install ncu (NVIDIA's package nsight-compute)");
    let checks = vec![Check::of("driver", Ok("driver 580.159, CUDA 13.0, GPUs: 1".into())), Check::of("ncu", Err(missing))];
    Checkup::of("2026-11-20T09:00:00.000Z".into(), checks)
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
