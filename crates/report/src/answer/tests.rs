//! Answers of small ledgers.

use serde_json::json;

use super::*;

mod cut_events;
mod floors;
mod means;
mod repeats;

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
fn a_stage_has_its_time_its_floor_and_its_largest_reasons() {
    let answer = stored(stage(Some(17_920_000)), rows());
    assert_eq!(
        answer.sentences,
        [
            "Decode takes 0.670 ms per token, 1,492 tokens per second.",
            "A decode step could take 0.280 ms on this GPU: it takes 2.4 times its floor.",
        ]
    );
    let reason = &answer.reasons[0];
    assert_eq!(
        reason.text,
        "47 % of decode: parts of the GPU have no work, because kernels start too few blocks."
    );
    assert_eq!(reason.evidence, "attend<b> of decoder.attend: blocks for 35.4 % of the SMs (ncu).");
    assert!(
        reason.advice.as_str().ends_with("at most 0.200 of 0.670 ms of a decode step."),
        "{reason:?}"
    );
    assert_eq!(
        answer.reasons[1].text,
        "At most 11 % of decode: the GPU idles between the kernels of a replayed graph.",
        "tracing lengthens gaps; the saving is less"
    );
    assert_eq!(answer.reasons.len(), 2, "the others are below one percent");
    assert_eq!(answer.unknown, ["No counters: collect some."]);
    assert_eq!(answer.overhead, ["Tracing made decode 10 % longer: 44.0 ms instead of 40.0 ms."]);
}

#[test]
fn a_stage_without_a_floor_has_no_ratio() {
    let answer = stored(stage(None), json!([row("unexplained", 42_880_000, 100.0, 0)]));
    assert_eq!(answer.sentences, ["Decode takes 0.670 ms per token, 1,492 tokens per second."]);
    let [reason] = answer.reasons.as_slice() else { panic!("{:?}", answer.reasons) };
    assert_eq!(
        reason.text,
        "100 % of decode: the GPU works, and why it takes this time is not measured."
    );
    assert_eq!(reason.advice.as_str(), "", "nothing is promised");
}

#[test]
fn what_is_unknown_of_all_stages_is_written_once() {
    let mut stages = stage(None);
    let mut prefill = stages[0].clone();
    prefill["stage"] = "prefill".into();
    stages.as_array_mut().unwrap().push(prefill);
    assert_eq!(stored(stages.clone(), json!([])).unknown, ["No counters: collect some."]);
    stages[1]["missing"] = json!([]);
    assert_eq!(stored(stages, json!([])).unknown, ["decode: No counters: collect some."]);
}

fn times(longest: serde_json::Value, p50_ms: f64, excess_ms: f64) -> Vec<Cited> {
    let report = json!({
        "ledger_stages": stage(None), "ledger": [], "ledger_members": [],
        "step_times": [{
            "stage": "decode_all", "p50_ms": p50_ms, "outliers": longest.as_array().unwrap().len(),
            "excess_ms": excess_ms,
            "ms": {"mean": 0.67, "std": null, "min": 0.5, "max": 61.8, "n": 64},
            "longest": longest
        }]
    });
    stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0).sentences
}

#[test]
fn steps_are_stated_by_their_median_and_outliers() {
    let outlier = |ms: f64, call: Option<&str>| {
        let call_ms = call.map(|_| 51.1);
        json!({"step": 3, "ms": ms, "host_call": call, "host_call_ms": call_ms})
    };
    let named = json!([outlier(61.8, Some("aten::sdpa")), outlier(55.7, Some("aten::sdpa"))]);
    assert_eq!(
        times(named, 0.55, 1.0),
        [
            "Decode takes 0.550 ms per step (median of 64 steps, 0.500 to 61.8 ms; 0.670 ms on \
             average).",
            "2 of 64 decode steps take more than twice the median: 61.8 ms, 55.7 ms. In them the \
             GPU idles while the host launches nothing, in aten::sdpa \
             (51.1 ms, 51.1 ms).",
        ]
    );
    let unnamed = json!([outlier(61.8, None), outlier(55.7, None)]);
    let close = "Decode takes 0.660 ms per step (median of 64 steps, 0.500 to 61.8 ms; 0.670 ms on \
                 average).";
    assert_eq!(times(unnamed.clone(), 0.66, 1.0), [close]);
    assert!(
        times(unnamed, 0.66, 20.0)[1].as_str().ends_with("What delayed them is not recorded."),
        "outliers that matter have no cause"
    );
    let one = times(json!([outlier(61.8, None)]), 0.66, 20.0).remove(1);
    assert!(one.as_str().ends_with("What delayed it is not recorded."), "{one}");
}

#[test]
fn a_busy_host_stands_behind_steps_that_were_delayed_and_a_batch_behind_their_median() {
    let busy = "The host was busy: tasks waited for a CPU during 95.4 % of the unprofiled pass.";
    let report = json!({
        "ledger_stages": [], "ledger": [], "ledger_members": [],
        "aggregates": {"decode_steps": 5},
        "stages": [{
            "stage": "decode_all", "tokens": 20, "tokens_per_s": 436.4, "share": 1.0,
            "ms": {"mean": 45.8, "std": null, "min": 45.8, "max": 45.8, "n": 1}
        }],
        "step_times": [{
            "stage": "decode_all", "p50_ms": 5.54, "outliers": 1, "excess_ms": 20.0,
            "ms": {"mean": 9.16, "std": null, "min": 4.9, "max": 16.2, "n": 5},
            "longest": [{"step": 3, "ms": 16.2, "host_call": null, "host_call_ms": null}]
        }],
        "findings": [{
            "id": "host_busy", "severity": "warning", "message": busy, "stage": null,
            "evidence": {}, "advice": "Measure again."
        }]
    });
    let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
    let one = "1 of 5 decode steps takes more than twice the median: 16.2 ms. The host was busy \
               meanwhile, which may have delayed it.";
    assert_eq!(
        answer.sentences[..2],
        [
            "Decode takes 5.54 ms per step of 4 sequences (median of 5 steps, 4.90 to 16.2 ms; \
             9.16 ms on average, 436 tokens per second)."
                .to_owned(),
            one.to_owned(),
        ]
    );
    assert_eq!(answer.overhead, [format!("{busy} Measure again.")]);
}

#[test]
fn steps_that_are_a_part_of_their_stage_are_not_averaged_with_the_time_between_them() {
    let text = |mean: f64, steps: serde_json::Value| {
        let mut stages = stage(None);
        stages[0]["steps"] = steps;
        let report = json!({
            "ledger_stages": stages, "ledger": [], "ledger_members": [],
            "step_times": [{
                "stage": "decode_all", "p50_ms": 0.3, "outliers": 0, "excess_ms": 0.0,
                "ms": {"mean": mean, "std": null, "min": 0.2, "max": 0.5, "n": 64}, "longest": []
            }]
        });
        stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0).sentences
    };
    let median = |mean: &str| {
        format!(
            "A decode step takes 0.300 ms (median of 64 steps, 0.200 to 0.500 ms; {mean} ms on \
             average)."
        )
    };
    for (mean, part) in [(0.335, "50 %"), (0.301, "55 %")] {
        let rest = "of decode lies between its steps: decode takes 0.670 ms per step.";
        assert_eq!(text(mean, json!(64)), [median(&mean.to_string()), format!("{part} {rest}")]);
    }
    assert_eq!(text(0.335, json!(null)), [median("0.335")], "repeats differ in their steps");
}

#[test]
fn a_run_without_a_gpu_has_its_steps_and_the_remedy_for_its_floor() {
    let report = json!({
        "aggregates": {"decode_steps": 64, "devices": null},
        "stages": [{"stage": "decode_all", "tokens": 64, "tokens_per_s": 200.0,
            "share_pct": 100.0,
            "ms": {"mean": 320.0, "std": null, "min": 320.0, "max": 320.0, "n": 1}}]
    });
    let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
    assert_eq!(answer.sentences, ["Decode takes 5.00 ms per token, 200 tokens per second."]);
    assert_eq!(
        answer.unknown,
        ["How fast decode could be is unknown, for there is no complete timeline of a GPU: \
          run it on a host with a GPU, in mode light or deep."]
    );
}

#[test]
fn a_decode_that_the_recording_cuts_has_its_step_and_no_floor() {
    let report = json!({"step_times": [{
        "stage": "decode_all", "p50_ms": 5.0, "outliers": 0, "excess_ms": 0.0, "longest": [],
        "ms": {"mean": 5.0, "std": null, "min": 4.9, "max": 5.1, "n": 64}
    }]});
    let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
    assert_eq!(
        answer.sentences,
        ["Decode takes 5.00 ms per step (median of 64 steps, 4.90 to 5.10 ms; the recording \
             has no whole decode)."]
    );
    assert!(answer.unknown[0].starts_with("How fast decode could be is unknown"));
}

#[test]
fn a_capture_without_stages_is_answered_by_its_devices() {
    let report = json!({
        "only_traced": true,
        "aggregates": {"devices": {
            "devices": 1, "window_ms": 500.0, "busy_ms": 25.0, "busy_pct": 5.0, "kernels": 16,
            "kernel_ms": 20.0, "whole_graphs": 0,
            "transfers": [{"kind": "other", "calls": 14336, "bytes": 1000, "total_ms": 22.0}]
        }},
    });
    let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
    assert_eq!(
        answer.sentences,
        [
            "The GPU computes or copies 5.0 % of the 500 ms from the first recorded work to the \
             last.",
            "Copying between GPUs or other places takes 22.0 ms: 1.00 kB in 14,336 operations.",
        ]
    );
    assert_eq!(answer.unknown.len(), 1);
}

#[test]
fn stages_without_an_end_have_their_remedy_and_a_range_without_a_name_is_shown() {
    let unknown = |evidence: serde_json::Value, name: &str| {
        let report = json!({
            "aggregates": {"devices": {
                "devices": 1, "window_ms": 500.0, "busy_ms": 25.0, "busy_pct": 5.0, "kernels": 16,
                "kernel_ms": 20.0, "whole_graphs": 0, "transfers": []
            }},
            "ranges": [{"domain": "", "name": name, "style": "push_pop", "gpu_ops": 0, "ns": {
                "count": 1, "total": 50_000_000, "mean": 5e7, "median": 5e7, "min": 50_000_000,
                "max": 50_000_000, "std": null
            }}],
            "findings": [{
                "id": "range_unclosed", "severity": "warning", "evidence": evidence,
                "message": "2 ranges have no end in the capture, including prefill.",
                "advice": "Close the range."
            }],
        });
        let mut answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
        answer.unknown.remove(0)
    };
    let unended = unknown(json!({"stages and steps without an end": "prefill"}), "");
    assert_eq!(
        unended,
        "How long prefill and decode take is unknown. 2 ranges have no end in the capture, \
         including prefill. Close the range."
    );
    let unnamed = unknown(json!({}), "");
    assert!(!unnamed.contains("--stage"), "{unnamed}");
    let numbered = unknown(json!({}), "step_17");
    assert!(numbered.ends_with("import. Longest ranges: `step_17`."), "{numbered}");
    let of_cccl = unknown(json!({}), "cub::DeviceReduce::Sum");
    assert!(!of_cccl.contains("cub::") && !of_cccl.contains("--stage"), "{of_cccl}");
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

#[test]
fn critical_findings_are_on_the_first_page_once() {
    let finding = |id: &str, severity: &str, message: &str| {
        json!({
            "id": id, "severity": severity, "message": message, "stage": null, "evidence": {},
            "advice": format!("Repair {id}.")
        })
    };
    let report = json!({
        "ledger_stages": stage(None), "ledger": [], "ledger_members": [],
        "findings": [
            finding("work_untimed", "warning", "A kernel."),
            finding("mfu_impossible", "critical", "Prefill would reach 200 %."),
            finding("mfu_impossible", "critical", "Decode would reach 300 %."),
            finding("outputs_differ", "critical", "The traced pass differs."),
            finding("no_stages", "critical", "No stage was timed."),
            finding("host_busy", "warning", "The host was busy."),
        ]
    });
    let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
    let unknown =
        ["Prefill would reach 200 %. Repair mfu_impossible.", "No counters: collect some."];
    assert_eq!(answer.unknown, unknown);
    let conditions = [
        "The traced pass differs. Repair outputs_differ.",
        "The host was busy. Repair host_busy.",
        "A kernel.",
    ];
    assert_eq!(answer.overhead, conditions);
}

#[test]
fn the_profilers_own_work_stands_next_to_the_times_if_it_is_a_large_part() {
    let answer = |share: i64| {
        stored(stage(None), json!([row("profiler_overhead", 428_800 * share, share as f64, 0)]))
    };
    let text = |share| format!("{share} % of decode is the profiler's own work, which an");
    let (small, large) = (answer(20), answer(80));
    assert!(small.overhead[0].as_str().starts_with(&text(20)), "{:?}", small.overhead);
    assert_eq!((small.sentences.len(), large.sentences.len()), (1, 2));
    assert!(large.sentences[1].as_str().starts_with(&text(80)), "{:?}", large.sentences);
}

#[test]
fn a_traced_pass_that_was_shorter_has_no_share() {
    let overhead = |traced_ms: f64, pct: f64| {
        let report = json!({
            "ledger_stages": stage(None), "ledger": [], "ledger_members": [],
            "overhead": [{"stage": "decode_all", "plain_ms": 44.0, "traced_ms": traced_ms,
                "overhead_pct": pct}]
        });
        stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0).overhead
    };
    assert_eq!(
        overhead(40.0, -9.1),
        ["Tracing did not slow decode: 40.0 ms traced, 44.0 ms unprofiled."]
    );
    let uncertain = "The times of decode are uncertain: 22.0 ms under the profiler and 44.0 ms \
                     without differ by more than tracing explains. Raise warmup and repeats.";
    assert_eq!(overhead(22.0, -50.0), [uncertain]);
}
