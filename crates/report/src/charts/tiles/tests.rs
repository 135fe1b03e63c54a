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
