//! Tests of the reasons on the first page.

use serde_json::{Value, json};

use super::super::stored_answer;

fn stage(name: &str, ms: u64, instances: u64) -> Value {
    json!({
        "stage": name, "measured_ns": 1_000_000 * ms, "traced_ns": 1_000_000 * ms,
        "instances": instances, "capped_operators": 0, "capped_ns": 0, "overlap_ns": 0,
        "missing": []
    })
}

fn row(stage: &str, cause: &str, ms: u64, share: f64) -> Value {
    json!({
        "stage": stage, "cause": cause, "ns": 1_000_000 * ms, "share_pct": share, "members": 1,
        "pass": "nsys", "counter": "", "samples": 1, "max_saving_ns": 1_000_000 * ms
    })
}

fn reasons(stages: &[Value], rows: &[Value]) -> Vec<(String, String)> {
    let report = json!({
        "ledger_stages": stages, "ledger": rows, "ledger_members": [], "only_traced": true
    });
    let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
    let text = |it: &super::Reason| (it.text.to_string(), it.advice.to_string());
    answer.reasons.iter().map(text).collect()
}

#[test]
fn the_largest_reason_is_that_of_most_time_over_all_instances() {
    let stages = [stage("prefill", 100, 1), stage("decode_all", 10, 256)];
    let starts = |prefill_ms: u64| {
        let decode = ["gap_sync", "gap_launch", "gap_copy", "gap_queued"];
        let mut rows: Vec<Value> = decode.map(|it| row("decode_all", it, 1, 10.0)).into();
        rows.push(row("prefill", "gap_host", prefill_ms, 80.0));
        let found = reasons(&stages, &rows).into_iter();
        found.map(|it| it.0[..12].to_owned()).collect::<Vec<_>>()
    };
    let decode = "10 % of deco";
    assert_eq!(starts(40), [decode; 3], "3.8 % of all time");
    assert_eq!(starts(80), [decode, decode, "80 % of pref"], "7.2 %, the largest of its stage");
}

#[test]
fn time_without_a_cause_is_listed_only_with_the_largest_cause_of_its_stage() {
    let stages = [stage("prefill", 249, 1), stage("decode_all", 4, 9)];
    let prefill = [("gap_long_call", 149, 60.0), ("gap_host", 92, 37.0)]
        .map(|(cause, ms, share)| row("prefill", cause, ms, share));
    let us = |cause: &str, us: u64| {
        let mut row = row("decode_all", cause, 0, us as f64 / 40.0);
        (row["ns"], row["max_saving_ns"]) = ((1000 * us).into(), (1000 * us).into());
        row
    };
    let listed = |unexplained_us: u64| {
        let decode = [("unexplained", unexplained_us), ("gap_host", 1000), ("gap_sync", 640)];
        let decode = decode.map(|(cause, time)| us(cause, time));
        let found = reasons(&stages, &[&prefill[..], &decode[..]].concat()).into_iter();
        found.map(|it| it.0[..12].to_owned()).collect::<Vec<_>>()
    };
    let of_prefill = ["60 % of pref", "37 % of pref"];
    let with = |decode: &'static str| [&of_prefill[..], &[decode][..]].concat();
    assert_eq!(listed(1160), with("25 % of deco"), "29 %, below 41 % of causes");
    assert_eq!(listed(1800), with("45 % of deco"), "longer than all causes");
    assert_eq!(listed(900), with("25 % of deco"));
    let alone = [("gap_host", 1000), ("unexplained", 1400), ("gap_sync", 640), ("gap_copy", 100)];
    let alone = alone.map(|(cause, time)| us(cause, time));
    let found = reasons(&stages[1..], &alone);
    let shares: Vec<&str> = found.iter().map(|it| &it.0[..4]).collect();
    assert_eq!(shares, ["35 %", "25 %", "16 %"], "one stage: by time");
}

#[test]
fn a_remedy_of_several_reasons_is_stated_once() {
    let stages = [stage("prefill", 100, 1), stage("decode_all", 100, 1)];
    let rows =
        [row("prefill", "gap_long_call", 90, 90.0), row("decode_all", "gap_long_call", 70, 70.0)];
    let found = reasons(&stages, &rows);
    let [(_, first), (_, second)] = found.as_slice() else { panic!("{found:?}") };
    assert!(first.ends_with(" This saves at most 90.0 of 100 ms of prefill."), "{first}");
    assert_eq!(second, "The same remedy saves at most 70.0 of 100 ms of decode.");
    let between = row("decode_all", "gap_copy", 80, 80.0);
    let found = reasons(&stages, &[&rows[..], &[between]].concat());
    let [_, _, (_, third)] = found.as_slice() else { panic!("{found:?}") };
    let of_first = "The remedy of the first cause saves at most 70.0 of 100 ms of decode.";
    assert_eq!(third, of_first, "not of the second");
}

#[test]
fn a_saving_on_one_rank_names_it_and_the_waits_for_it_are_no_second_saving() {
    let mut stall = row("decode_all", "gap_long_call", 2, 20.0);
    stall["max_saving_ns"] = 3_000_000.into();
    stall["saving_rank"] = 1.into();
    let wait = row("decode_all", "collective_wait", 2, 20.0);
    let found = reasons(&[stage("decode_all", 10, 20)], &[stall, wait]);
    let [(_, stall), (_, wait)] = found.as_slice() else { panic!("{found:?}") };
    let saved = "at most 3.00 of 10.0 ms of decode, on rank 1, for which others wait.";
    assert!(stall.ends_with(saved), "{stall}");
    let saved = "of decode; removing the causes on the last rank saves the same time.";
    assert!(wait.ends_with(saved), "{wait}");
}

#[test]
fn idle_steps_of_an_engine_need_no_work() {
    let stages = [stage("idle", 5, 20), stage("decode_all", 1, 20)];
    let rows = [row("idle", "gap_host", 5, 100.0), row("decode_all", "gap_sync", 1, 50.0)];
    let found = reasons(&stages, &rows);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].0.starts_with("100 % of decode"), "{found:?}");
}

#[test]
fn an_engine_that_idles_between_steps_has_to_schedule_earlier() {
    let found =
        reasons(&[stage("between steps", 2, 19)], &[row("between steps", "gap_host", 2, 100.0)]);
    let (text, advice) = &found[0];
    assert!(text.starts_with("100 % of the time between steps: the GPU idles"), "{text}");
    assert!(advice.starts_with("Schedule the next step while the GPU works"), "{advice}");
    assert!(advice.ends_with("This saves at most 2.00 of 2.00 ms of the time between steps."));
}

#[test]
fn a_core_of_its_own_saves_at_most_what_others_had_of_it_in_each_instance() {
    let saves = |taken_ms: f64| {
        let report = json!({
            "ledger_stages": [stage("decode_all", 10, 4)],
            "ledger": [row("decode_all", "gap_host", 8, 80.0)],
            "ledger_members": [], "only_traced": true,
            "findings": [{
                "id": "launching_thread_displaced", "severity": "warning",
                "message": "Others had its core.", "evidence": { "stage": "decode_all" },
                "advice": "Give it a core."
            }],
            "host_cpu": {
                "unpaired_switches": 0, "threads": [], "takers": [], "functions": [],
                "stages": [{
                    "stage": "decode_all", "idle_host_ms": 32.0, "taken_ms": taken_ms,
                    "samples": 0
                }]
            }
        });
        let report = serde_json::to_vec(&report).unwrap();
        assert_eq!(super::super::unfounded(&report).unwrap(), [""; 0]);
        stored_answer(&report).unwrap().remove(0).reasons[0].advice.to_string()
    };
    assert_eq!(saves(8.0), "Give it a core. This saves at most 2.00 of 10.0 ms of decode.");
    assert_eq!(saves(40.0), "Give it a core. This saves at most 8.00 of 10.0 ms of decode.");
}

/// The first reason of a report on one stage of 100 ms, whose largest part takes 40 ms.
fn largest_part(stage: &Value, cause: &str, operator: &str, gpus: u64) -> (String, String, String) {
    largest_of(stage, (cause, 40), operator, gpus)
}

/// The first reason of such a report, whose cause takes `ms` and its largest part 40 ms.
fn largest_of(
    stage: &Value,
    (cause, ms): (&str, u64),
    operator: &str,
    gpus: u64,
) -> (String, String, String) {
    let name = &stage["stage"];
    let mut row = row(name.as_str().unwrap(), cause, ms, ms as f64);
    row["largest"] = operator.into();
    let report = json!({
        "only_traced": true, "ledger_stages": [stage],
        "ledger": [row],
        "ledger_members": [{
            "stage": name, "cause": cause, "operator": operator, "kernel": null,
            "grid": null, "block": null, "calls": 1.0, "ns": 40_000_000, "share_pct": 40.0,
            "pass": "nsys", "samples": 1, "evidence": "evidence", "max_saving_ns": 40_000_000
        }],
        "aggregates": {"devices": {
            "devices": gpus, "window_ms": 101.0, "busy_ms": 90.0, "busy_pct": 90.0,
            "kernels": 1, "kernel_ms": 90.0, "whole_graphs": 0, "transfers": []
        }}
    });
    let report = serde_json::to_vec(&report).unwrap();
    let it = stored_answer(&report).unwrap().remove(0).reasons.remove(0);
    (it.text.to_string(), it.evidence, it.advice.to_string())
}

#[test]
fn the_largest_part_has_the_unit_of_the_time_that_its_sentence_names() {
    let with_steps = |steps: u64| {
        let mut stage = stage("decode_all", 100, 1);
        stage["steps"] = steps.into();
        stage
    };
    for (stage, gpus, part) in [
        (with_steps(10), 1, "4.00 ms per step on average"),
        (with_steps(1), 1, "40.0 ms per step"),
        (stage("prefill", 100, 3), 2, "40.0 ms on average"),
        (stage("prefill", 100, 1), 2, "40.0 ms"),
        (stage("", 100, 1), 1, "40.0 ms"),
        (stage("", 100, 1), 2, "40.0 ms per GPU on average"),
    ] {
        let (text, evidence, _) = largest_part(&stage, "unexplained", "op", gpus);
        assert_eq!(evidence, format!("op, {part}: evidence (nsys)."));
        let base = "of the recording (100 ms per GPU on average, from its first recorded work to \
                    its last): ";
        let is_of_gpus = text.contains(base);
        assert_eq!(is_of_gpus, part.contains("GPU"), "{text}");
    }
}

#[test]
fn idle_time_in_a_range_without_calls_is_the_ranges_and_has_no_advice_of_loading_code() {
    let of = |name: &str| largest_part(&stage("", 100, 1), "gap_long_call", name, 1);
    let (text, _, advice) = of("the range load_*");
    assert!(text.contains("the host is in load_*, a range of the program"), "{text}");
    assert!(!advice.contains("load code") && advice.contains("another thread"), "{advice}");
    // Half of the time is elsewhere.
    let whole = stage("", 100, 1);
    let (text, evidence, advice) = largest_of(&whole, ("gap_long_call", 80), "the range load_*", 1);
    assert!(text.contains("in a long call, or prepares code"), "{text}");
    assert!(evidence.starts_with("the range load_*: "), "{evidence}");
    assert!(advice.contains("another thread") && advice.contains("load code"), "{advice}");
    let (text, _, advice) = of("tune");
    assert!(text.contains("in a long call, or prepares code"), "{text}");
    assert!(advice.contains("load code"), "{advice}");
}

#[test]
fn ranges_and_calls_of_the_operating_system_with_most_of_the_time_are_named_before_calls() {
    const OF_OS: &str = "a call of the operating system";
    let of = |parts: &[(&str, u64)]| {
        let name = |it: &str| match it.strip_prefix("call ") {
            Some(call) => call.to_owned(),
            None => format!("the range {it}"),
        };
        let member = |&(operator, ms): &(&str, u64)| {
            json!({
                "stage": "", "cause": "gap_long_call", "operator": name(operator), "kernel": null,
                "grid": null, "block": null, "calls": 1.0, "ns": 1_000_000 * ms,
                "share_pct": null, "pass": "nsys", "samples": 1, "evidence": "evidence",
                "max_saving_ns": 1_000_000 * ms
            })
        };
        let report = json!({
            "only_traced": true, "ledger_stages": [stage("", 100, 1)],
            "ledger": [row("", "gap_long_call", 100, 100.0)],
            "ledger_members": parts.iter().map(member).collect::<Vec<_>>()
        });
        let report = serde_json::to_vec(&report).unwrap();
        stored_answer(&report).unwrap().remove(0).reasons[0].text.to_string()
    };
    let in_both = "in ranges of the program and long calls";
    let cases: [(&[(&str, u64)], String); 10] = [
        (&[("load_*", 97), ("call tune", 3)], "in load_*, a range of the program".into()),
        (&[("load_*", 93), ("call tune", 7)], format!("{in_both}, mostly in the range load_*")),
        (
            &[("load_*", 40), ("call tune", 30), ("sort_*", 30)],
            format!("{in_both} (load_* 40 %, sort_* 30 % of this time)"),
        ),
        (
            &[("load_*", 34), ("sort_*", 33), ("read_*", 33)],
            "in ranges of the program (load_* 34 %, sort_* 33 %, read_* 33 % of this time)".into(),
        ),
        (
            &[("a", 16), ("b", 16), ("c", 16), ("d", 16), ("e", 14), ("f", 11), ("g", 11)],
            "in ranges of the program".into(),
        ),
        (&[("call tune", 50), ("load_*", 50)], "in a long call, or prepares code".into()),
        (&[("call tune", 100)], "in a long call, or prepares code".into()),
        (&[("call the OS call getc", 60), ("load_*", 40)], "in the OS call getc".into()),
        (&[("call a wait in poll", 97), ("call tune", 3)], format!("waiting in poll, {OF_OS}")),
        (
            &[("call tune", 50), ("call a wait in poll", 50)],
            "in a long call, or prepares code".into(),
        ),
    ];
    for (parts, place) in cases {
        let text = of(parts);
        let expected = format!(": the GPU idles while the host is {place}, and launches nothing.");
        assert!(text.ends_with(&expected), "{parts:?}: {text}");
    }
}

#[test]
fn the_time_of_a_capture_without_stages_is_that_of_the_recording() {
    let found = reasons(&[stage("", 100, 1)], &[row("", "copies_and_casts", 96, 96.0)]);
    let (text, advice) = &found[0];
    assert_eq!(text, "96 % of the recording: copying, filling and converting data.");
    assert!(advice.ends_with("at most 96.0 of 100 ms of the recording."), "{advice}");
}

#[test]
fn one_gap_between_steps_is_named_also_among_several_after_the_same_work() {
    // Ten gaps of 2 ms on average; older reports have no longest gap.
    for (gaps, longest_ms, is_one) in [
        (1, Some(19), true),
        (9, Some(19), true),
        (10, Some(11), true),
        (10, Some(10), false),
        (1, None, true),
        (2, None, false),
    ] {
        let name = "between steps";
        let report = json!({
            "only_traced": true, "ledger_stages": [stage(name, 2, 10)],
            "ledger": [row(name, "gap_host", 2, 100.0)],
            "ledger_members": [{
                "stage": name, "cause": "gap_host", "operator": null, "kernel": "k", "grid": null,
                "block": null, "calls": 1.0, "ns": 2_000_000, "share_pct": 100.0, "pass": "nsys",
                "samples": gaps, "evidence": "evidence", "max_saving_ns": 2_000_000,
                "longest_ns": longest_ms.map(|ms: i64| ms * 1_000_000)
            }]
        });
        let report = serde_json::to_vec(&report).unwrap();
        let it = stored_answer(&report).unwrap().remove(0).reasons.remove(0);
        let text = it.text.to_string();
        assert_eq!(text.contains("most of it in one gap"), is_one, "{gaps} {longest_ms:?}: {text}");
    }
}

#[test]
fn a_saving_that_the_busiest_gpu_limits_is_no_bound_of_a_causes_mean_time() {
    // The traced stage takes 0 or 2 ms longer, so its gaps of 8 ms are 6 ms at most.
    for (traced_ms, saving_ms, begins) in [
        (10, 8, "80 % of decode"),
        (10, 3, "80 % of decode"),
        (12, 6, "At most 60 % of decode"),
        (12, 3, "At most 60 % of decode"),
    ] {
        let mut stage = stage("decode_all", 10, 4);
        stage["traced_ns"] = (1_000_000 * traced_ms).into();
        let mut gap = row("decode_all", "gap_host", 8, 80.0);
        gap["max_saving_ns"] = (1_000_000 * saving_ms).into();
        let report = json!({
            "ledger_stages": [stage], "ledger": [gap], "ledger_members": [], "only_traced": true
        });
        let report = serde_json::to_vec(&report).unwrap();
        assert_eq!(super::super::unfounded(&report).unwrap(), [""; 0]);
        let it = stored_answer(&report).unwrap().remove(0).reasons.remove(0);
        assert!(it.text.as_str().starts_with(begins), "{traced_ms} {saving_ms}: {}", it.text);
        let is_named = it.advice.as_str().ends_with(" of decode, on the busiest GPU.");
        assert_eq!(is_named, saving_ms == 3, "{traced_ms} {saving_ms}: {}", it.advice);
    }
}
