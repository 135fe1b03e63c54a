//! Means of one stage in sentences, and medians over repeats in tiles.

use llmprof_analyze::stages::repeat_medians::RepeatMedian;

use super::*;
use crate::charts::tiles::tests::tile;

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

/// The numbers called "on average" in sentences.
fn means(report: &serde_json::Value) -> Vec<String> {
    let report = serde_json::to_vec(report).unwrap();
    let answer = stored_answer(&report).unwrap().remove(0);
    let text: String = answer.sentences.iter().map(|it| format!("{} ", it.as_str())).collect();
    let mut parts: Vec<&str> = text.split(" ms on average").collect();
    parts.pop();
    let last = |part: &str| part.rsplit(' ').next().unwrap_or_default().to_owned();
    parts.into_iter().map(last).collect()
}

#[test]
fn sentences_have_one_mean_of_a_stage() {
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
        assert_eq!(means(&report(whole, cut, steps)), [mean], "{whole:?} {cut:?}");
    }
    // Half of decode lies between its steps: no mean of steps is the time per token.
    let long = report(&[(180.0, 12), (180.2, 12)], &[], &[(12, 7.4), (12, 7.6)]);
    assert_eq!(means(&long), ["7.50"]);
}

#[test]
fn a_rate_of_whole_decodes_is_named_next_to_a_median_of_all_steps() {
    // Whole decodes, cut decodes, steps, and the sentence.
    type Case<'a> = (&'a [(f64, u64)], &'a [(f64, u64)], &'a [(u64, f64)], &'a str);
    let cases: [Case; 4] = [
        (
            &[(90.4, 12)],
            &[(80.0, 11)],
            &[(12, 7.3), (11, 7.5)],
            "Decode takes 7.30 ms per token (median of 23 steps, 7.30 to 7.50 ms; in whole decodes \
             7.53 ms on average, 133 tokens per second).",
        ),
        (
            &[(90.0, 12)],
            &[(82.5, 11)],
            &[(23, 7.5)],
            "Decode takes 7.50 ms per token (median of 23 steps; in whole decodes 133 tokens per \
             second).",
        ),
        (
            &[(90.4, 12)],
            &[],
            &[(7, 7.3), (5, 7.5)],
            "Decode takes 7.30 ms per token (median of 12 steps, 7.30 to 7.50 ms; 7.53 ms on \
             average, 133 tokens per second).",
        ),
        (
            &[],
            &[(90.4, 12), (80.0, 11)],
            &[(12, 7.3), (11, 7.5)],
            "Decode takes 7.30 ms per step (median of 23 steps, 7.30 to 7.50 ms; 7.41 ms on \
             average; the recording has no whole decode).",
        ),
    ];
    for (whole, cut, steps, sentence) in cases {
        let report = serde_json::to_vec(&report(whole, cut, steps)).unwrap();
        let sentences = stored_answer(&report).unwrap().remove(0).sentences;
        assert!(sentences.iter().any(|it| it.as_str() == sentence), "{sentences:?}");
    }
}

#[test]
fn a_tile_has_a_median_with_the_base_of_its_rate() {
    let per_token = |times: &[f64]| {
        let decodes: Vec<(f64, u64)> = times.iter().map(|ms| (12.0 * ms, 12)).collect();
        let mut report = report(&decodes, &[(80.0, 11)], &[(12, 7.3), (11, 7.5)]);
        let tpot_ms = RepeatMedian::of(times.iter().copied());
        report["aggregates"]["medians"] = json!({ "tpot_ms": tpot_ms });
        tile(&report, "Per token")
    };
    let cut = "median of 23 steps, traced; whole decodes 125 tokens/s on average";
    assert_eq!(per_token(&[8.0]), ["7.30", cut], "steps of a cut decode, too");
    let noisy = "median of 3 instances, traced, 8.00 to 22.0 ms; decode 75.0 tokens/s on average";
    assert_eq!(per_token(&[8.0, 10.0, 22.0]), ["10.0", noisy]);
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
