//! Comparison of recordings that cut a decode.

use anyhow::Result;
use serde_json::json;

use crate::api::diff::{diff, golden};

#[test]
fn a_step_of_a_cut_decode_is_compared_with_a_step_and_never_with_a_whole_decode() -> Result<()> {
    let whole = golden("gpu-report.json")?;
    let mut cut = whole.clone();
    let stage = cut["ledger_stages"].as_array_mut().unwrap();
    let stage = stage.iter_mut().find(|it| it["stage"] == "decode_all").unwrap();
    let each = stage["measured_ns"].as_i64().unwrap() / 8;
    stage["measured_ns"] = json!(each);
    (stage["steps"], stage["unit"], stage["instances"]) = (json!(1), json!("step"), json!(4));
    cut["stages"].as_array_mut().unwrap().retain(|it| it["stage"] != "decode_all");
    cut["aggregates"]["decode_steps"] = json!(null);
    cut["findings"].as_array_mut().unwrap().push(json!({
        "id": "range_unclosed", "severity": "warning", "message": "cut", "advice": null,
        "evidence": { "stages and steps without an end": "decode_all" }, "max_saving": null,
    }));
    let found: serde_json::Value = serde_json::from_str(&diff(&whole, &cut, "json")?)?;
    let stages: Vec<&str> =
        found["ledger"].as_array().unwrap().iter().filter_map(|it| it["stage"].as_str()).collect();
    assert_eq!(stages, ["prefill"]);
    let operators = |of: &serde_json::Value| {
        let rows = of["diff"]["operators"].as_array().unwrap().clone();
        rows.iter().filter(|it| it["stage"] == "decode_all").count()
    };
    let equal: serde_json::Value = serde_json::from_str(&diff(&whole, &whole, "json")?)?;
    assert!(operators(&equal) > 0);
    assert_eq!(operators(&found), 0, "sums over parts of decodes");
    let rows = found["diff"]["stages"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().filter_map(|it| it["name"].as_str()).collect();
    assert!(names.contains(&"decode_all, per step"), "{names:?}");
    assert!(!names.contains(&"decode_all") && !names.contains(&"per token"), "{names:?}");
    assert!(rows.iter().all(|it| !it["a"].is_null() && !it["b"].is_null()), "{rows:#?}");
    let kernels = found["diff"]["kernels"].as_array().unwrap();
    let decode = kernels.iter().find(|it| it["stage"] == "decode_all").unwrap();
    // 0.3 ms of 8 steps, and of the 4 that the other recording has.
    assert_eq!((&decode["a"]["ms"], &decode["b"]["ms"]), (&json!(0.0375), &json!(0.075)));
    let outside = kernels.iter().any(|it| it["stage"] == "" && !it["b"].is_null());
    assert!(!outside, "work outside the stages may be that of the cut decode");
    Ok(())
}
