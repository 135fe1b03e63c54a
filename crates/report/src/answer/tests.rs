//! Answers of small ledgers.

use serde_json::json;

use super::*;

fn stored(ledger_stages: serde_json::Value, ledger: serde_json::Value) -> Answer {
    let member = json!({
        "stage": "decode_all", "cause": "waves", "operator": "decoder.attend",
        "kernel": "attend<b>", "grid": null, "block": null, "calls": 64.0, "ns": 12_800_000,
        "share_pct": 30.0, "pass": "ncu", "samples": 3,
        "evidence": "blocks for 35.4 % of the SMs", "max_saving_ns": 12_800_000
    });
    let report = json!({
        "ledger_stages": ledger_stages, "ledger": ledger, "ledger_members": [member],
        "stages": [{"stage": "decode_all", "tokens": 64, "tokens_per_s": 1492.5, "share_pct": 100.0,
            "ms": {"mean": 42.88, "std": null, "min": 42.88, "max": 42.88, "n": 1}}],
        "overhead": [{"stage": "decode_all", "plain_ms": 40.0, "traced_ms": 44.0,
            "overhead_pct": 10.0}]
    });
    stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0)
}

fn stage(floor: Option<i64>) -> serde_json::Value {
    json!([{
        "stage": "decode_all", "measured_ns": 42_880_000, "traced_ns": 43_880_000, "steps": 64,
        "floor_of": floor.map(|_| "model"), "floor_ns": floor,
        "times_floor": floor.map(|ns| 42_880_000.0 / ns as f64), "flops_ceiling": null,
        "bytes_ceiling": "measured", "capped_operators": 0, "capped_ns": 0, "overlap_ns": 0,
        "evidence_pct": 90.0, "missing": ["No counters: collect some."]
    }])
}

fn row(cause: &str, ns: i64, share: f64, saving: i64) -> serde_json::Value {
    json!({
        "stage": "decode_all", "cause": cause, "ns": ns, "step_ns": null, "share_pct": share,
        "members": 1, "largest": "attend<b> of decoder.attend", "pass": "ncu", "counter": "grid",
        "samples": 3, "max_saving_ns": saving
    })
}

fn rows() -> serde_json::Value {
    json!([
        row("floor", 17_920_000, 41.8, 0),
        row("waves", 20_000_000, 46.6, 12_800_000),
        row("gap_in_graph", 5_900_000, 13.8, 4_000_000),
        row("gap_sync", 60_000, 0.1, 60_000),
        row("unexplained", 0, 0.0, 0),
        row("pass_difference", -1_000_000, -2.3, 0),
    ])
}

#[test]
fn a_stage_is_a_sentence_with_its_floor_and_its_largest_cause() {
    let answer = stored(stage(Some(17_920_000)), rows());
    assert_eq!(
        answer.sentences,
        ["decode takes 0.670 ms per token, 2.4 times its floor of 0.280 ms; largest cause: too \
          few blocks to fill the GPU, 0.200 ms (29.9 %), largest in attend<b> of decoder.attend."]
    );
    assert_eq!(
        answer.savings[0],
        "decode_all: too few blocks to fill the GPU, at most 12.800 ms, 29.9 % of the stage (ncu). \
         attend<b> \
         of decoder.attend: blocks for 35.4 % of the SMs."
    );
    assert!(answer.savings[1].contains("gaps inside a replayed graph"), "{:?}", answer.savings);
    assert_eq!(answer.unknown, ["decode_all: No counters: collect some."]);
    assert_eq!(
        answer.overhead,
        ["Tracing made decode_all 10.0 % longer: 44.000 ms instead of 40.000 ms."]
    );
}

#[test]
fn a_stage_without_a_floor_states_that_it_is_unknown() {
    let answer = stored(stage(None), json!([row("unexplained", 42_880_000, 100.0, 0)]));
    assert_eq!(answer.sentences, ["decode takes 0.670 ms per token; its floor is unknown."]);
    assert_eq!(answer.savings, Vec::<String>::new());
}

#[test]
fn the_waterfall_goes_from_the_floor_to_the_measured_time() {
    let drawing = stored(stage(Some(17_920_000)), rows()).charts.remove(0).drawing;
    let starts: Vec<&str> = drawing
        .split("<rect class=\"w-")
        .skip(1)
        .map(|it| it.split(" y=").next().unwrap())
        .collect();
    insta::assert_snapshot!(starts.join("\n"), @r#"
    floor" x="0.000%"
    cause" x="40.839%"
    gap" x="86.418%"
    cause" x="99.863%"
    rest" x="100.000%"
    difference" x="97.721%"
    total" x="0.000%"
    "#);
    assert!(drawing.contains("one smaller cause") && drawing.contains("−1.000 ms"), "{drawing}");
}

#[test]
fn names_from_outside_stay_text_in_the_chart() {
    let mut stages = stage(Some(17_920_000));
    stages[0]["stage"] = "<script>".into();
    let mut named = rows();
    named.as_array_mut().unwrap().iter_mut().for_each(|it| it["stage"] = "<script>".into());
    let drawing = stored(stages, named).charts.remove(0).drawing;
    assert!(!drawing.contains("<script>") && drawing.contains("&lt;script&gt;"), "{drawing}");
}

#[test]
fn an_old_report_has_no_answer() {
    assert_eq!(stored_answer(b"{\"stages\": []}").unwrap(), []);
}
