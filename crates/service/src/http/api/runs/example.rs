//! Examples of runs in the contract.

use llmprof_core::domain::{
    ids::RunId,
    mode::Mode,
    profiling::Profiling,
    state::{RunState, Step, StepRecord, StepState},
    subject::{Common, ModelSubject, Passes, RunSpec, Subject, SubjectKind, Workload},
};
use serde_json::{Value, json};

use super::{RunLinks, RunList, RunSummary, RunView, submit::SubmittedRun};

pub(crate) fn id() -> RunId {
    "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10".parse().expect("the example's id is a UUID")
}

pub(crate) fn spec() -> RunSpec {
    let workload = Workload {
        model: "deepseek-ocr-tiny".into(),
        inputs_manifest: "inputs.yaml".into(),
        max_new_tokens: 64,
        batch: 1,
        seed: 0,
        dtype: None,
    };
    let passes =
        Passes { mode: Mode::BASIC, repeats: 3, warmup: 2, device: "auto".into(), profiling: None };
    let common = Common { timeout_s: 1800, ..Common::default() };
    RunSpec { subject: Subject::Model(ModelSubject { workload, passes }), common }
}

pub(crate) fn submitted() -> SubmittedRun {
    SubmittedRun {
        run_id: id(),
        state: RunState::Queued,
        queue_position: Some(1),
        links: RunLinks::of(id()),
        waited: None,
    }
}

/// A run that has succeeded.
pub(crate) fn run() -> RunView {
    RunView {
        run_id: id(),
        state: RunState::Succeeded,
        owner: Some("ann".into()),
        sweep: None,
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
        realised: vec![],
        damage: vec![],
        expected: None,
        links: RunLinks::of(id()),
    }
}

pub(super) fn cancelled() -> RunView {
    RunView { state: RunState::Cancelled, steps: vec![], cancel_requested: true, ..run() }
}

pub(super) fn cancelling() -> RunView {
    RunView { state: RunState::Running, ended_at: None, cancel_requested: true, ..run() }
}

pub(super) fn run_list() -> RunList {
    let (spec, run) = (spec(), run());
    let summary = RunSummary {
        run_id: run.run_id,
        kind: SubjectKind::Model,
        state: run.state,
        owner: run.owner,
        model: Some(run.name.clone()),
        name: run.name,
        mode: spec.mode().cloned(),
        labels: spec.common.labels,
        revision: None,
        series: None,
        device: None,
        headline: None,
        change_pct: None,
        pinned: run.pinned,
        priority: spec.common.priority,
        queued_at: run.queued_at,
        started_at: run.started_at,
        ended_at: run.ended_at,
        message: run.message,
        links: run.links,
    };
    RunList { runs: vec![summary], next_cursor: None }
}

/// A submission with every setting of a model.
pub(super) fn full_submission() -> Value {
    json!({
        "model": "deepseek-ocr-tiny", "inputs_manifest": "inputs.yaml", "mode": "basic",
        "repeats": 3, "warmup": 2, "max_new_tokens": 64, "seed": 0, "dtype": "f32",
        "device": "auto", "timeout_s": 1800, "labels": ["nightly"], "priority": 0,
        "profiling": Profiling::bundled(&Mode::BASIC).ok(),
    })
}
