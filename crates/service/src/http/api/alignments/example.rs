//! Examples of alignments in the contract: one that passed, over the runs of the other examples.

use llmprof_core::{
    domain::{
        alignment::{
            self, AlignmentSpec, AlignmentState, CheckSummary, Level, ThresholdChanges, Verdict,
            Waiver,
        },
        ids::AlignmentId,
        run_files::ArtifactRecord,
        state::Step,
    },
    layout,
};
use serde_json::{Value, json};

use super::{AlignmentLinks, AlignmentList, AlignmentView};
use crate::http::api::{artifacts::ArtifactList, runs::example};

/// A request with the required fields only.
pub(super) fn shortest() -> Value {
    json!({ "mock": example::id(), "e2e": E2E })
}

const E2E: &str = "019a9f41-2c7e-7f08-b1a4-6e0d9c5b3f22";

pub(super) fn spec() -> AlignmentSpec {
    AlignmentSpec {
        mock: example::id(),
        e2e: E2E.parse().expect("the example's id is a UUID"),
        range: None,
        operator: Some("decoder.layers.*.self_attn".into()),
        kernels: vec![],
        stage: Some("decode".into()),
        include_ranges: vec![],
        exclude_ranges: vec![],
        forwards: None,
        thresholds: ThresholdChanges::default(),
        waivers: vec![],
        previous: None,
    }
}

pub(super) fn full_spec() -> AlignmentSpec {
    let waiver = Waiver {
        pattern: "CatArrayBatchedCopy".into(),
        reason: "the mock allocates its cache in one block".into(),
        impact: "one copy per step, 2 us".into(),
        expires: "2027-03-31".into(),
    };
    AlignmentSpec {
        range: Some("decoder.self_attn@LLM".into()),
        operator: None,
        include_ranges: vec!["measured".into()],
        exclude_ranges: vec!["capture".into()],
        forwards: Some(16),
        thresholds: ThresholdChanges {
            names: Some(Level::Family),
            latency_pct: Some(5.0),
            ..ThresholdChanges::default()
        },
        waivers: vec![waiver],
        ..spec()
    }
}

fn alignment_id() -> AlignmentId {
    "019aa1c2-0f3b-7a60-8c1d-5b2e9d4f6a71".parse().expect("the example's id is a UUID")
}

pub(super) fn queued() -> AlignmentView {
    AlignmentView {
        alignment_id: alignment_id(),
        state: AlignmentState::Queued,
        verdict: None,
        answer: None,
        owner: Some("ann".into()),
        spec: spec(),
        checks: vec![],
        attempts: 0,
        queued_at: "2026-11-20T09:00:00.000Z".into(),
        started_at: None,
        ended_at: None,
        message: None,
        links: AlignmentLinks::of(alignment_id(), &spec()),
    }
}

pub(super) fn ended() -> AlignmentView {
    let check = CheckSummary {
        id: "counts".into(),
        verdict: Verdict::Pass,
        observed: "18 and 18 kernels per instance".into(),
        threshold: "equal, by name".into(),
        decisive: true,
        advice: None,
    };
    AlignmentView {
        state: AlignmentState::Succeeded,
        verdict: Some(Verdict::Pass),
        answer: Some(alignment::answer(Verdict::Pass, std::slice::from_ref(&check))),
        checks: vec![check],
        attempts: 1,
        started_at: Some("2026-11-20T09:00:00.010Z".into()),
        ended_at: Some("2026-11-20T09:00:01.270Z".into()),
        ..queued()
    }
}

pub(super) fn list() -> AlignmentList {
    AlignmentList { alignments: vec![ended()], next_cursor: None }
}

pub(super) const EVENT: &str =
    "event: end\ndata: {\"event\":\"end\",\"state\":\"succeeded\",\"message\":null}\n\n";

pub(super) fn artifacts() -> ArtifactList {
    let report = ArtifactRecord {
        path: format!("{}.md", layout::ALIGNMENT),
        bytes: 4_810,
        sha256: "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae".into(),
        media_type: "text/markdown; charset=utf-8".into(),
        step: Some(Step::Report),
    };
    ArtifactList { artifacts: vec![report] }
}

/// A report whose lists have one record each.
pub(super) fn report() -> Value {
    let side = |name: &str, ranges: u64, counted: u64, instances: u64, kernels: u64| {
        json!({
            "name": name, "isolated_by": "operators at decoder.layers.*.self_attn",
            "ranges": ranges, "counted": counted, "left_out": ranges - counted,
            "instances": instances, "kernels": kernels, "kernels_per_instance": 18.0,
            "distinct_sequences": 1, "replayed_kernels": 0,
        })
    };
    json!({
        "verdict": "pass",
        "checks": [{
            "id": "counts", "verdict": "pass", "observed": "18 and 18 kernels per instance",
            "threshold": "equal, by name", "decisive": true,
            "rows": [{ "what": "kernels", "mock": "18", "e2e": "18", "note": "" }], "advice": null,
        }],
        "stage": "decode_all",
        "mock": side("mock", 51, 16, 16, 288),
        "e2e": side("e2e", 408, 128, 128, 2_304),
        "latency": {
            "mock_us": 62.2, "e2e_us": 64.0, "mock_instances": 16, "e2e_instances": 128,
            "ratio": 0.972, "interval": [0.96, 0.984],
        },
        "sequence": [{ "mock": "softmax", "e2e": "softmax" }],
        "waivers": [],
        "changes": null,
    })
}
