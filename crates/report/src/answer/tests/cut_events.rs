//! First pages of runs whose events end early.

use super::*;

fn answer_of(stages: serde_json::Value, findings: serde_json::Value) -> Answer {
    let command = json!({"of": "process", "plain_ms": null, "traced_ms": null, "ready_ms": null});
    let report =
        json!({"stages": stages, "findings": findings, "aggregates": {"command": command}});
    stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0)
}

fn finding(id: &str, severity: &str, message: &str, advice: Option<&str>) -> serde_json::Value {
    json!({
        "id": id, "severity": severity, "message": message, "stage": null, "evidence": {},
        "advice": advice
    })
}

#[test]
fn events_that_end_early_are_one_line_on_the_first_page() {
    let stages = json!([{
        "stage": "prefill", "tokens": null, "tokens_per_s": null, "share_pct": null,
        "ms": {"mean": 5.0, "std": null, "min": 5.0, "max": 5.0, "n": 1}
    }]);
    let early = "The events of the unprofiled pass end early.";
    for id in ["events_cut", "events_without_end"] {
        let unfinished = finding("runner_unfinished", "warning", "The runner stopped.", None);
        let findings = json!([finding(id, "warning", early, None), unfinished]);
        assert_eq!(answer_of(stages.clone(), findings).overhead, [early.to_owned()], "{id}");
    }
}

#[test]
fn clocks_that_differ_coarse_times_and_stacks_are_conditions_with_their_remedy() {
    let stages = json!([{
        "stage": "prefill", "tokens": null, "tokens_per_s": null, "share_pct": null,
        "ms": {"mean": 5.0, "std": null, "min": 5.0, "max": 5.0, "n": 1}
    }]);
    for id in ["trace_clocks_differ", "trace_times_coarse", "trace_stacks_recorded"] {
        let found = finding(id, "warning", "Times are rough.", Some("Record again."));
        let answer = answer_of(stages.clone(), json!([found]));
        assert_eq!(answer.overhead, ["Times are rough. Record again."], "{id}");
    }
}

#[test]
fn a_page_without_any_time_has_the_reason() {
    let none = "The unprofiled pass completed no measured stage.";
    let found = finding("no_stages", "critical", none, Some("Read the log."));
    let answer = answer_of(json!([]), json!([found.clone()]));
    assert!(answer.sentences.is_empty(), "{:?}", answer.sentences);
    assert_eq!(answer.unknown, [format!("{none} Read the log.")]);
    let stages = json!([{
        "stage": "prefill", "tokens": null, "tokens_per_s": null, "share_pct": null,
        "ms": {"mean": 5.0, "std": null, "min": 5.0, "max": 5.0, "n": 1}
    }]);
    let unknown = answer_of(stages, json!([found])).unknown;
    assert!(!unknown.iter().any(|it| it.contains(none)), "{unknown:?}");
}
