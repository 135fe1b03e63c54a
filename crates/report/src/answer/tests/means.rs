//! Means of one stage in sentences and tiles.

use super::*;
use crate::stored_tiles;

/// A report on whole and cut decodes, each with its time and steps, and on all their steps.
fn report(whole: &[(f64, u64)], cut: &[(f64, u64)], steps: &[(u64, f64)]) -> serde_json::Value {
    let of_steps = |it: &(f64, u64)| (it.0, it.1 as f64);
    let are_alike = whole.windows(2).all(|pair| pair[0].1 == pair[1].1);
    let decode_steps = whole.first().map(|it| it.1).filter(|_| are_alike);
    let ms = Spread::of(whole.iter().map(|it| it.0));
    let rate = decode_steps.zip(ms).map(|(steps, ms)| 1e3 * steps as f64 / ms.mean);
    let row = ms.map(|ms| {
        json!({"stage": "decode_all", "tokens": decode_steps, "tokens_per_s": rate,
            "share_pct": 100.0, "ms": ms})
    });
    let step_ms = steps.iter().flat_map(|(count, ms)| (0..*count).map(|_| *ms));
    json!({
        "only_traced": true, "mfu": [],
        "aggregates": {
            "repeats": whole.len(), "stage_ms": {}, "decode_steps": decode_steps,
            "per_token_ms": Spread::of_ratios(whole.iter().chain(cut).map(of_steps))
        },
        "stages": row.into_iter().collect::<Vec<_>>(),
        "step_times": [{
            "stage": "decode_all", "p50_ms": steps[0].1, "outliers": 0, "excess_ms": 0.0,
            "ms": Spread::of(step_ms), "longest": []
        }]
    })
}

/// The numbers called "on average" in sentences, and "mean" in the tile of decode.
fn means(report: &serde_json::Value) -> (Vec<String>, Option<String>) {
    let report = serde_json::to_vec(report).unwrap();
    let answer = stored_answer(&report).unwrap().remove(0);
    let text: String = answer.sentences.iter().map(|it| format!("{} ", it.as_str())).collect();
    let mut parts: Vec<&str> = text.split(" ms on average").collect();
    parts.pop();
    let last = |part: &str| part.rsplit(' ').next().unwrap_or_default().to_owned();
    let tiles = serde_json::to_value(stored_tiles(&report).unwrap()).unwrap();
    let tile = tiles.as_array().unwrap().iter().find(|it| it["label"] == "Per token").unwrap();
    let note = tile["note"].as_str().unwrap();
    let mean = note.split_once("mean ").and_then(|(_, rest)| rest.split(' ').next());
    (parts.into_iter().map(last).collect(), mean.map(str::to_owned))
}

#[test]
fn sentences_and_tiles_have_one_mean_of_a_stage() {
    // Whole decodes, cut decodes, steps, and the mean.
    type Case<'a> = (&'a [(f64, u64)], &'a [(f64, u64)], &'a [(u64, f64)], &'a str);
    let cases: [Case; 4] = [
        (&[(90.4, 12), (90.0, 12)], &[], &[(12, 7.4), (12, 7.6)], "7.52"),
        // The rate is of the whole decode.
        (&[(90.4, 12)], &[(80.0, 11)], &[(12, 7.3), (11, 7.5)], "7.53"),
        // Repeats of different steps: all time over all steps.
        (&[(90.4, 12), (90.2, 11)], &[], &[(12, 7.4), (11, 7.6)], "7.85"),
        // No whole decode.
        (&[], &[(90.4, 12), (80.0, 11)], &[(12, 7.3), (11, 7.5)], "7.41"),
    ];
    for (whole, cut, steps, mean) in cases {
        let found = means(&report(whole, cut, steps));
        assert_eq!(found, (vec![mean.to_owned()], Some(mean.to_owned())), "{whole:?} {cut:?}");
    }
    // Half of decode lies between its steps: no mean of steps is the time per token.
    let long = report(&[(180.0, 12), (180.2, 12)], &[], &[(12, 7.4), (12, 7.6)]);
    let (on_average, mean) = means(&long);
    assert_eq!((on_average, mean), (vec!["7.50".to_owned()], None));
}

#[test]
fn the_mean_of_different_repeats_follows_from_the_tables() {
    let report = report(&[(90.4, 12), (90.2, 11)], &[], &[(12, 7.4), (11, 7.6)]);
    let report = serde_json::to_vec(&report).unwrap();
    assert_eq!(unfounded(&report).unwrap(), Vec::<String>::new());
}

#[test]
fn steps_of_cut_decodes_are_not_set_against_the_time_of_whole_ones() {
    let sentences = |steps: &[(u64, f64)]| -> Vec<String> {
        let report = report(&[(520.4, 4)], &[(200.0, 2)], steps);
        let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
        answer.sentences.iter().map(|it| it.as_str().to_owned()).collect()
    };
    let between = |it: &String| it.contains("lies between its steps");
    let cut = sentences(&[(2, 100.0), (4, 130.0), (2, 36.8)]);
    let timed = "Some of these steps are outside the timed decodes, which take 130 ms per step.";
    assert!(!cut.iter().any(between), "{cut:?}");
    assert!(cut.iter().any(|it| it == timed), "{cut:?}");
    let whole = sentences(&[(1, 100.0), (2, 110.0), (1, 90.0)]);
    assert!(whole.iter().any(between), "{whole:?}");
    let fewer = sentences(&[(3, 100.0)]);
    assert!(!fewer.iter().any(|it| between(it) || it == timed), "{fewer:?}");
}
