//! Tests of the headline figures.

use serde_json::{Value, json};

use super::*;

/// Value and note of a tile of a report.
pub(crate) fn tile(report: &Value, label: &str) -> [String; 2] {
    let tiles = stored_tiles(&serde_json::to_vec(report).unwrap()).unwrap();
    let tiles = serde_json::to_value(tiles).unwrap();
    let tile = tiles.as_array().unwrap().iter().find(|it| it["label"] == label).unwrap();
    ["value", "note"].map(|key| tile[key].as_str().unwrap().to_owned())
}

/// The work of a stage on so many GPUs, in a window of 100 ms; 0 in a report of an earlier version.
fn gpu(stage: &str, devices: u64, busy_ms: f64) -> Value {
    json!({"stage": stage, "devices": devices, "instances": 1, "window_ms": 100.0,
        "busy_ms": busy_ms, "busy_pct": busy_ms, "launches": 1, "copies": []})
}

/// Share and note of the GPU's busy time, of a prefill and the steps of a cut decode.
fn busy(gpus: &[Value]) -> [String; 2] {
    let ms = |ms: f64| json!({"mean": ms, "std": null, "min": ms, "max": ms, "n": 1});
    let report = json!({
        "aggregates": {"repeats": 1, "stage_ms": {}},
        "stages": [{
            "stage": PREFILL, "tokens": null, "tokens_per_s": null, "share_pct": null,
            "ms": ms(100.0)
        }],
        "mfu": [],
        "step_times": [{
            "stage": DECODE, "p50_ms": 5.0, "outliers": 0, "excess_ms": 0.0, "ms": ms(5.0),
            "longest": []
        }],
        "stage_gpu": gpus
    });
    tile(&report, "GPU busy")
}

#[test]
fn the_busy_share_has_the_steps_of_a_cut_decode_or_names_the_decode() {
    let both = [gpu(PREFILL, 1, 10.0), gpu(DECODE, 1, 90.0)];
    assert_eq!(busy(&both), ["50.0", "traced: prefill 10.0 %, decode 90.0 %"]);
    let withheld = "traced: prefill 10.0 %; withheld for decode: read the findings";
    assert_eq!(busy(&both[..1]), ["10.0", withheld]);
}

#[test]
fn the_busy_share_of_several_gpus_is_called_their_mean() {
    for (devices, mean) in [(0, ""), (1, ""), (2, "; mean of 2 GPUs")] {
        let [_, note] = busy(&[gpu(PREFILL, 1, 10.0), gpu(DECODE, devices, 90.0)]);
        assert_eq!(note, format!("traced: prefill 10.0 %, decode 90.0 %{mean}"), "{devices}");
    }
}

/// Notes of the tiles of a capture with a prefill and a decode of three steps in each of two
/// processes, and its sentences. `differ` has the milliseconds of the processes.
fn notes_and_sentences(differ: Option<[f64; 2]>) -> (Vec<String>, Vec<String>) {
    let [slow, fast] = differ.unwrap_or([10.0, 10.0]);
    let mean = f64::midpoint(slow, fast);
    let of_steps = |steps: f64, n: u64| {
        let [mean, fast, slow] = [mean, fast, slow].map(|ms| steps * ms);
        json!({"mean": mean, "std": null, "min": fast, "max": slow, "n": n})
    };
    let ms = |n: u64| of_steps(1.0, n);
    let process = |rank: u32, ms: f64, steps: u64| {
        let process = 7 + rank;
        json!({"process": process, "rank": rank, "steps": steps, "p50_ms": ms, "outliers": 0})
    };
    let processes = |steps: u64| match differ {
        Some(_) => json!([process(1, slow, steps), process(0, fast, steps)]),
        None => json!([]),
    };
    let ttft = match differ {
        Some(_) => json!({"p50": slow, "min": slow, "max": slow, "n": 1, "of_slowest": true}),
        None => json!({"p50": mean, "min": fast, "max": slow, "n": 2}),
    };
    let times = |stage: &str, n: u64| {
        json!({"stage": stage, "p50_ms": slow, "outliers": 0, "excess_ms": 0.0, "ms": ms(n),
            "longest": [], "processes": processes(n / 2)})
    };
    let stage = |stage: &str, steps: u64, rate: Option<f64>| {
        json!({"stage": stage, "tokens": rate.map(|_| steps), "tokens_per_s": rate,
            "share_pct": null, "ms": of_steps(steps as f64, 2)})
    };
    let report = json!({
        "only_traced": true, "mfu": [],
        "aggregates": {
            "repeats": 2, "stage_ms": {}, "medians": {"ttft_ms": ttft}, "decode_steps": 3,
            "first_token_ms": ms(2), "per_token_ms": ms(2)
        },
        "stages": [stage(PREFILL, 1, None), stage(DECODE, 3, Some(1e3 / mean))],
        "step_times": [times(PREFILL, 2), times(DECODE, 6)]
    });
    let report = serde_json::to_vec(&report).unwrap();
    let tiles = serde_json::to_value(stored_tiles(&report).unwrap()).unwrap();
    let note = |it: &Value| format!("{}: {}", it["label"], it["note"]).replace('"', "");
    let answer = crate::stored_answer(&report).unwrap().remove(0);
    let sentences = answer.sentences.iter().map(|it| it.as_str().to_owned());
    (tiles.as_array().unwrap().iter().map(note).collect(), sentences.collect())
}

#[test]
fn processes_that_differ_have_the_time_of_the_slowest_and_no_common_rate() {
    let (notes, sentences) = notes_and_sentences(Some([15.0, 5.0]));
    let prefill = "First token: slowest process's time of 1 instance, traced";
    assert!(notes.iter().any(|it| it == prefill), "{notes:?}");
    let start = "Prefill takes 15.0 ms (slowest process's time of 1 instance; all 2 instances take \
                 5.00 to 15.0 ms";
    assert!(sentences.iter().any(|it| it.starts_with(start)), "{sentences:?}");
    let each = "15.0 ms in rank 1 (time of 1 instance); 5.00 ms in rank 0 (time of 1 instance).";
    assert!(sentences.iter().any(|it| it.ends_with(each)), "{sentences:?}");
    for (differ, is_rated) in [(Some([15.0, 5.0]), false), (None, true)] {
        let (notes, sentences) = notes_and_sentences(differ);
        let rates = notes.iter().filter(|it| it.contains("tokens/s")).count();
        assert_eq!(rates > 0, is_rated, "{notes:?}");
        let rates = sentences.iter().filter(|it| it.contains("tokens per second")).count();
        assert_eq!(rates > 0, is_rated, "{sentences:?}");
    }
}
