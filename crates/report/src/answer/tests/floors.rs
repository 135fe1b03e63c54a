//! The base of a floor.

use super::*;

#[test]
fn a_floor_of_decodes_of_different_lengths_has_their_mean_time() {
    let mut decode = stage(Some(17_920_000));
    decode[0]["steps"] = json!(null);
    let report = json!({
        "ledger_stages": decode, "ledger": rows(), "ledger_members": [],
        "step_times": [{
            "stage": "decode_all", "p50_ms": 0.55, "outliers": 0, "excess_ms": 0.0, "longest": [],
            "ms": {"mean": 0.67, "std": null, "min": 0.5, "max": 1.0, "n": 64}
        }]
    });
    let sentences =
        stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap()[0].sentences.clone();
    assert!(sentences[0].as_str().starts_with("A decode step takes 0.550 ms"), "{sentences:?}");
    assert_eq!(
        sentences[1],
        "Decode takes 42.9 ms on average and could take 17.9 ms on this GPU: it takes 2.4 times \
         its floor."
    );
}
