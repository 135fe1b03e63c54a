//! One statistic of a stage in sentence and tile: over the repeats of a run, over the instances of
//! a capture, and over the wall times of a command.

use llmprof_analyze::{
    stages::repeat_medians::RepeatMedian,
    stats::{has_two_halves, lower_median},
};
use serde_json::Value;

use super::*;
use crate::charts::tiles::tests::tile;

/// Decode steps of each repeat, of one token.
const STEPS: u64 = 10;

fn per_token(ms: f64) -> f64 {
    ms / STEPS as f64
}

/// A report with these times of prefill and of decode, by sample and repeat. `step_ms` is the
/// median of its decode steps.
fn report(times: &[Vec<f64>], step_ms: f64, only_traced: bool) -> Value {
    let all: Vec<f64> = times.iter().flatten().copied().collect();
    let of_repeat = |at: usize| times.iter().map(|it| it[at]).sum::<f64>() / times.len() as f64;
    let repeats: Vec<f64> = (0..times[0].len()).map(of_repeat).collect();
    let ms = Spread::of(all.iter().copied()).unwrap();
    let row = |(stage, tokens): (&str, Option<u64>)| {
        let rate = tokens.map(|it| 1e3 * it as f64 / ms.mean);
        json!({"stage": stage, "tokens": tokens, "tokens_per_s": rate, "share_pct": 50.0, "ms": ms})
    };
    let stages = [("prefill", None), ("decode_all", Some(STEPS))].map(row);
    let samples = if times.len() > 1 { 0..times.len() } else { 0..0 };
    let samples: Vec<Value> = samples.map(|at| json!({ "sample": at })).collect();
    let p50_ms = lower_median(all.iter().copied()).unwrap();
    let steps = all.iter().flat_map(|ms| (0..STEPS).map(move |_| per_token(*ms)));
    json!({
        "only_traced": only_traced, "mfu": [], "samples": samples,
        "aggregates": {
            "repeats": ms.n, "stage_ms": {}, "decode_steps": STEPS, "first_token_ms": ms,
            "per_token_ms": Spread::of(all.iter().map(|ms| per_token(*ms))),
            "medians": {
                "ttft_ms": RepeatMedian::of(repeats.iter().copied()),
                "tpot_ms": RepeatMedian::of(repeats.iter().map(|ms| per_token(*ms)))
            }
        },
        "stages": stages,
        "step_times": [
            {
                "stage": "prefill", "p50_ms": p50_ms, "ms": ms, "excess_ms": 0.0, "longest": [],
                "outliers": all.iter().filter(|ms| **ms > 2.0 * p50_ms).count(),
                "has_two_halves": has_two_halves(all.iter().copied())
            },
            {
                "stage": "decode_all", "p50_ms": step_ms, "ms": Spread::of(steps),
                "excess_ms": 0.0, "longest": [], "outliers": 0
            }
        ]
    })
}

/// The sentence that starts with these words.
fn sentence(report: &Value, start: &str) -> String {
    let answer = stored_answer(&serde_json::to_vec(report).unwrap()).unwrap().remove(0);
    let found = answer.sentences.iter().find(|it| it.as_str().starts_with(start));
    found.unwrap_or_else(|| panic!("{:?}", answer.sentences)).as_str().to_owned()
}

#[test]
fn sentences_of_a_run_state_the_figures_of_its_tiles_for_any_repeats_and_samples() {
    let uneven = |sample: usize, repeat: usize| {
        40.0 + 7.0 * ((5 * repeat + 3 * sample) % 7) as f64 + 100.0 * sample as f64
    };
    for (samples, repeats) in (1..4).flat_map(|samples| (1..7).map(move |it| (samples, it))) {
        let of_sample = |at: usize| (0..repeats).map(|it| uneven(at, it)).collect::<Vec<f64>>();
        let times: Vec<Vec<f64>> = (0..samples).map(of_sample).collect();
        let report = report(&times, 3.0, false);
        for (label, stage) in [("First token", "Prefill"), ("Per token", "Decode")] {
            let [value, note] = tile(&report, label);
            let text = sentence(&report, &format!("{stage} takes {value} ms"));
            let (base, rate) = note.split_once("; decode ").unwrap_or((note.as_str(), ""));
            let rate = rate.replace("tokens/s", "tokens per second");
            assert!(base == "one repeat" || text.contains(base), "{text} {note}");
            assert!(text.contains(&rate), "{text} {note}");
        }
        let stored = serde_json::to_vec(&report).unwrap();
        assert_eq!(unfounded(&stored).unwrap(), Vec::<String>::new());
    }
}

#[test]
fn sentence_and_tile_of_decode_have_one_unit_which_is_a_token_only_if_a_step_makes_one() {
    for only_traced in [false, true] {
        for (tokens, steps, label, unit) in [
            (Some(STEPS), Some(STEPS), "Per token", "per token"),
            (Some(4 * STEPS), Some(STEPS), "Decode step", "per step of 4 sequences"),
            (None, Some(STEPS), "Decode step", "per step"),
            (Some(STEPS + 1), Some(STEPS), "Decode step", "per step"),
            (Some(STEPS), None, "Decode step", "per step"),
        ] {
            let mut report = report(&[vec![40.0, 40.0, 40.0]], 4.0, only_traced);
            report["stages"][1]["tokens"] = json!(tokens);
            report["aggregates"]["decode_steps"] = json!(steps);
            let [value, _] = tile(&report, label);
            let text = sentence(&report, &format!("Decode takes {value} ms {unit}"));
            assert_eq!(text.contains("per token"), label == "Per token", "{text}");
        }
    }
}

#[test]
fn a_run_states_its_time_per_token_and_single_steps_only_if_they_read_differently() {
    // Times by sample and repeat, median of the decode steps, and the sentence.
    type Case<'a> = (&'a [&'a [f64]], f64, &'a str);
    let cases: [Case; 5] = [
        (
            &[&[40.0, 50.0, 60.0]],
            4.8,
            "Decode takes 5.00 ms per token (median of 3 repeats, 4.00 to 6.00 ms, 200 tokens per \
             second); single steps take 4.80 ms (median of 30).",
        ),
        (
            &[&[40.0, 50.0, 90.0]],
            5.0,
            "Decode takes 5.00 ms per token (median of 3 repeats, 4.00 to 9.00 ms, 167 tokens per \
             second on average).",
        ),
        (
            &[&[40.0]],
            3.8,
            "Decode takes 4.00 ms per token, 250 tokens per second; single steps take 3.80 ms \
             (median of 10).",
        ),
        (
            &[&[380.0, 390.0], &[410.0, 424.0]],
            0.0,
            "Prefill takes 401 ms (mean of 2 repeats of 2 samples, 395 to 407 ms).",
        ),
        (&[&[380.0], &[410.0]], 0.0, "Prefill takes 395 ms (one repeat of 2 samples)."),
    ];
    for (times, step_ms, expected) in cases {
        let times: Vec<Vec<f64>> = times.iter().map(|it| it.to_vec()).collect();
        let start = expected.split(" takes").next().unwrap();
        assert_eq!(sentence(&report(&times, step_ms, false), start), expected);
    }
}

#[test]
fn sentence_and_tile_of_a_capture_have_one_statistic_of_its_instances() {
    for times in [
        &[8.0, 11.0][..],
        &[8.0, 11.0, 90.0],
        &[8.0, 9.0, 10.0, 90.0],
        &[8.0, 9.0, 80.0, 90.0],
        &[1.0, 1.0, 1.9, 1.9],
        &[8.0, 9.0, 9.1, 90.0],
        &[8.0, 9.0, 10.0, 11.0, 12.0, 90.0],
    ] {
        let report = report(&[times.to_vec()], 0.8, true);
        let [value, note] = tile(&report, "First token");
        let text = sentence(&report, &format!("Prefill takes {value} ms ("));
        assert!(text.contains(&note.replace(", traced", "")), "{text} {note}");
    }
}

#[test]
fn sentence_and_tile_of_a_command_have_the_wall_time_of_lists_with_its_name() {
    let lower = "lower median of 4 repeats, 140 to 185 ms";
    for (p50_ms, n, has_two_halves, value, note, average) in [
        (Some(179.6), 3, false, "180", "median of 3 repeats, 140 to 185 ms", "; 168 ms on average"),
        (Some(150.4), 4, true, "150", lower, "; 168 ms on average"),
        (Some(168.2), 2, false, "168", "mean of 2 repeats, 140 to 185 ms", ""),
        (None, 3, false, "168", "mean of 3 repeats, 140 to 185 ms", ""),
    ] {
        let ms = json!({"mean": 168.2, "std": 20.0, "min": 140.0, "max": 185.0, "n": n});
        let report = json!({
            "stages": [], "mfu": [],
            "aggregates": {"repeats": n, "stage_ms": {}, "command": {
                "of": "process", "plain_ms": ms, "plain_p50_ms": p50_ms, "traced_ms": null,
                "ready_ms": null, "has_two_halves": has_two_halves
            }}
        });
        assert_eq!(tile(&report, "Wall time"), [value, note]);
        let expected = format!("The whole process takes {value} ms ({note}{average}).");
        assert_eq!(sentence(&report, "The whole"), expected);
        let stored = serde_json::to_vec(&report).unwrap();
        assert_eq!(unfounded(&stored).unwrap(), Vec::<String>::new());
    }
}
