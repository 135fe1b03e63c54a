//! The sentence on the floor of an engine's most common decode steps.

use llmprof_analyze::step_batches::{StepBatch, common_batch};
use llmprof_core::trace::engine_steps::StepClass;

use super::{cited::Cited, steps::row_of};
use crate::format::multiple;

/// The floor of the decode steps whose median the page states, and the ratio of the two.
pub fn sentence(batches: &[StepBatch]) -> Option<Cited> {
    let it = common_batch(batches.iter().filter(|it| it.class == StepClass::Decode))?;
    let row = row_of(it);
    Some(Cited::of(
        "A decode step of {} with a mean context of {} could take {} ms on this GPU: it takes {} \
         times its floor.",
        [
            row.count("requests", it.requests?).quantity("request"),
            row.count("context_mean", it.context_mean?).quantity("token"),
            row.figure("floor_ms", it.floor_ms?).short(),
            row.figure("times_floor", it.times_floor?).shown(multiple),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::stats::Spread;
    use serde_json::json;

    use super::{
        super::{stored_answer, unfounded},
        *,
    };
    use crate::headline::times::tests::batch;

    fn row(requests: u64, steps: u64, floor_ms: Option<f64>) -> StepBatch {
        StepBatch {
            context_min: Some(1_000),
            context_max: Some(1_050),
            context_mean: Some(1_024),
            steps,
            ms: Spread::of(std::iter::repeat_n(2.0, steps as usize)).unwrap(),
            floor_ms,
            times_floor: floor_ms.map(|floor| 2.0 / floor),
            ..batch(StepClass::Decode, requests)
        }
    }

    /// Sentences on floors of a page with these steps, whose stage has a floor of its own.
    fn floors(batches: &[StepBatch]) -> Vec<String> {
        let report = json!({
            "only_traced": true,
            "ledger_stages": [{
                "stage": "decode_all", "measured_ns": 2_000_000, "steps": 1, "floor_of": "model",
                "floor_ns": 250_000, "times_floor": 8.0, "capped_operators": 0, "capped_ns": 0,
                "overlap_ns": 0, "missing": []
            }],
            "step_batches": batches
        });
        let report = serde_json::to_vec(&report).unwrap();
        assert_eq!(unfounded(&report).unwrap(), [""; 0]);
        let answers = stored_answer(&report).unwrap();
        let sentences = answers.iter().flat_map(|it| &it.sentences).map(|it| it.as_str());
        sentences.filter(|it| it.contains("its floor")).map(str::to_owned).collect()
    }

    #[test]
    fn the_page_states_one_floor_of_decode_of_the_most_common_steps() {
        let of_batch = "A decode step of 32 requests with a mean context of 1,024 tokens could \
                        take 0.500 ms on this GPU: it takes 4.0 times its floor.";
        let (many, few) = (row(32, 40, Some(0.5)), row(8, 3, Some(0.25)));
        assert_eq!(floors(&[few, many.clone()]), [of_batch]);
        let of_stage = "A decode step could take 0.250 ms on this GPU: it takes 8.0 times its \
                        floor.";
        let below = StepBatch { floor_ms: None, times_floor: None, ..many.clone() };
        let without_context = StepBatch { context_mean: None, times_floor: None, ..many };
        for batches in [&[below][..], &[without_context], &[row(8, 3, None)]] {
            assert_eq!(floors(batches), [of_stage]);
        }
    }
}
