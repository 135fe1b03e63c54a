//! Decode whose steps a capture does not mark: the time of a step by a stated number of them, or
//! the remedy.

use llmprof_analyze::stages::{DECODE, StageTiming};

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    outliers,
};
use crate::waits::Waits;

/// The row of a decode without steps.
fn unmarked<'a>(records: &AnswerRecords<'a>) -> Option<&'a StageTiming> {
    let is_marked = records.decode_steps.is_some()
        || records.ledger.stages.iter().any(|it| it.stage == DECODE && it.steps.is_some())
        || records.step_times.iter().any(|it| it.stage == DECODE && it.are_steps())
        || outliers::has_batches(records, DECODE);
    // A load states the time of a token.
    let is_unmarked = !is_marked && records.latencies.is_empty();
    records.stages.iter().find(|it| is_unmarked && it.stage == DECODE)
}

/// The stated steps: alone, or with a model for whose costs they count.
pub fn stated(alone: Option<u64>, of_costs: Option<u64>) -> Option<Figure> {
    let alone = alone.map(|it| Row::of("aggregates").count("stated_steps", it));
    let of_costs = of_costs.filter(|it| *it > 0);
    alone.or_else(|| Some(Row::of("costs").count("decode_steps", of_costs?)))
}

/// The time of a step, by the stated number of steps.
pub fn sentence(records: &AnswerRecords) -> Option<Cited> {
    let row = unmarked(records).filter(|_| !Waits::of(records.ledger).has(DECODE))?;
    let steps = records.stated_steps.clone()?;
    let ms = Row::of("stages").with("stage", DECODE).figure("ms.mean", row.ms.mean);
    let ms = ms.over(&steps)?.short();
    let parts = [steps.quantity("step"), ms];
    Some(Cited::of("With {} stated, decode takes {} ms per step on average.", parts))
}

/// The remedy if neither the capture nor its reader states the steps of decode.
pub fn unknown(records: &AnswerRecords) -> Option<String> {
    unmarked(records).filter(|_| records.stated_steps.is_none())?;
    Some(
        "How long a token takes is unknown: the capture does not mark the steps of decode. Have \
         the program open a range called decode_step around each, name its own ranges of steps \
         (`--stage decode_step=RANGE`), or state the steps of a decode (`--new-tokens N`, or the \
         import's field `new_tokens`)."
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{stored_answer, unfounded};

    /// Sentences and unknown figures of a report on a decode of 64 ms, with more parts.
    fn page(more: &[(&str, Value)]) -> (String, String) {
        let ms = json!({"mean": 64.0, "std": null, "min": 64.0, "max": 64.0, "n": 1});
        let mut report = json!({
            "only_traced": true, "aggregates": {},
            "stages": [{
                "stage": "decode_all", "tokens": null, "tokens_per_s": null, "share_pct": 100.0,
                "ms": ms
            }]
        });
        for (name, part) in more {
            report[*name] = part.clone();
        }
        let report = serde_json::to_vec(&report).unwrap();
        assert_eq!(unfounded(&report).unwrap(), [""; 0]);
        let answer = stored_answer(&report).unwrap().remove(0);
        let sentences: Vec<&str> = answer.sentences.iter().map(|it| it.as_str()).collect();
        (sentences.join("\n"), answer.unknown.join("\n"))
    }

    #[test]
    fn a_decode_without_marked_steps_states_how_to_learn_the_time_of_a_token_or_has_it() {
        let (time, unknown) = page(&[]);
        assert_eq!(time, "Decode takes 64.0 ms.");
        assert!(unknown.contains("How long a token takes is unknown"), "{unknown}");
        assert!(unknown.contains("--new-tokens N"), "{unknown}");
        let of = |steps: u64| page(&[("costs", json!({"decode_steps": steps}))]);
        let (time, unknown) = of(32);
        let stated = "With 32 steps stated, decode takes 2.00 ms per step on average.";
        assert_eq!(time, format!("Decode takes 64.0 ms.\n{stated}"));
        assert!(!unknown.contains("How long a token takes"), "{unknown}");
        assert!(of(0).1.contains("How long a token takes is unknown"), "none are stated");
        let alone = ("aggregates", json!({"stated_steps": 32}));
        for more in [&[alone.clone()][..], &[alone, ("costs", json!({"decode_steps": 16}))]] {
            let (time, unknown) = page(more);
            assert_eq!(time, format!("Decode takes 64.0 ms.\n{stated}"));
            assert!(!unknown.contains("How long a token takes"), "{unknown}");
        }
    }

    #[test]
    fn a_decode_with_steps_needs_no_statement() {
        let ms = json!({"mean": 2.0, "std": null, "min": 2.0, "max": 2.0, "n": 32});
        let steps = json!([{
            "stage": "decode_all", "p50_ms": 2.0, "outliers": 0, "excess_ms": 0.0, "ms": ms,
            "longest": []
        }]);
        let marked = json!({"decode_steps": 32, "stated_steps": 31});
        for more in [("aggregates", marked), ("step_times", steps)] {
            let (time, unknown) = page(&[more, ("costs", json!({"decode_steps": 31}))]);
            assert!(!time.contains("stated") && !unknown.contains("a token"), "{time} {unknown}");
        }
    }
}
