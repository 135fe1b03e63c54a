//! Waits whose reason lies before the recording: figures of the program are without them, or name
//! them.

use llmprof_analyze::{
    ledger::{Ledger, LedgerRow, LedgerStage},
    stats::ratio,
};
use llmprof_core::domain::units::Nanos;

use crate::format::figure;

/// The waits of a report's ledger.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits<'a> {
    pub rows: &'a [LedgerRow],
    pub stages: &'a [LedgerStage],
}

impl<'a> Waits<'a> {
    pub fn of(ledger: &'a Ledger) -> Self {
        Self { rows: &ledger.rows, stages: &ledger.stages }
    }

    /// The waits that are long enough to be named.
    fn named(&self) -> impl Iterator<Item = &'a LedgerRow> + use<'a> {
        self.rows.iter().filter(|row| row.is_named_wait())
    }

    /// The named wait of a stage.
    pub fn of_stage(&self, stage: &str) -> Option<&'a LedgerRow> {
        self.named().find(|row| row.stage == stage)
    }

    pub fn has(&self, stage: &str) -> bool {
        self.of_stage(stage).is_some()
    }

    pub fn any(&self) -> bool {
        self.named().next().is_some()
    }

    /// Part of the traced time of a stage that its named wait is, 0 to 1.
    pub fn part(&self, stage: &str) -> f64 {
        let traced = self.stages.iter().find(|it| it.stage == stage).and_then(|it| it.traced_ns);
        let wait = self.of_stage(stage);
        let part = wait.and_then(|wait| ratio(wait.ns as f64, traced? as f64));
        part.unwrap_or(0.0).clamp(0.0, 1.0)
    }

    /// Notes below a table whose `figures` of a stage contain its wait.
    pub fn notes(&self, figures: &'static str) -> impl Iterator<Item = String> + use<'a> {
        self.named().map(move |row| {
            format!(
                "{}: {figures} a wait of {} ms whose reason lies before the recording \
                 (unrecorded_wait in the ledger).",
                row.stage,
                figure(Nanos(row.ns).as_ms())
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{stored_answer, stored_tiles};

    /// A report on one repeat of 100 ms of these stages, in which the GPU works for 9 ms and waits
    /// for so many for a reason that is not recorded.
    fn report(stages: &[&str], wait_ms: f64, batches: Value) -> Value {
        let ms = json!({"mean": 100.0, "std": null, "min": 100.0, "max": 100.0, "n": 1});
        let all = |of: &dyn Fn(&str) -> Value| stages.iter().map(|it| of(it)).collect::<Value>();
        let is_of_engine = batches != json!([]);
        json!({
            "aggregates": {
                "repeats": 1, "stage_ms": {}, "decode_steps": 1,
                "first_token_ms": (!is_of_engine).then_some(&ms),
                "per_token_ms": (!is_of_engine).then_some(&ms)
            },
            "only_traced": true,
            "stages": all(&|stage| json!({
                "stage": stage, "tokens": 4, "tokens_per_s": 40.0, "share_pct": 50.0, "ms": ms
            })),
            "ledger_stages": all(&|stage| json!({
                "stage": stage, "measured_ns": 100_000_000, "traced_ns": 100_000_000,
                "steps": 1, "instances": 1, "capped_operators": 0, "capped_ns": 0,
                "overlap_ns": 0, "missing": []
            })),
            "ledger": all(&|stage| json!({
                "stage": stage, "cause": "unrecorded_wait", "ns": (wait_ms * 1e6) as i64,
                "share_pct": wait_ms, "members": 1, "pass": "nsys", "counter": "", "samples": 1,
                "max_saving_ns": 0
            })),
            "ledger_members": [],
            "stage_gpu": all(&|stage| json!({
                "stage": stage, "instances": 1, "window_ms": 100.0, "busy_ms": 9.0,
                "busy_pct": 9.0, "launches": 1, "copies": []
            })),
            "mfu": [{
                "scope": "model", "flops": 1_000_000, "flops_source": "counted", "ms": 100.0,
                "flops_per_s": 1e7, "datasheet_pct": 10.0
            }],
            "step_batches": batches
        })
    }

    /// A decode step of 100 ms by an engine.
    fn batches(has_wait: bool) -> Value {
        json!([{
            "class": "decode", "mode": null, "requests": 4, "padded_min": null, "padded_max": null,
            "context_min": null, "context_max": null, "steps": 1, "p50_ms": 100.0,
            "ms": {"mean": 100.0, "std": null, "min": 100.0, "max": 100.0, "n": 1},
            "period_ms": null, "busy_pct": 9.0, "tokens_per_s": 40.0,
            "has_unrecorded_waits": has_wait
        }])
    }

    fn sentences(report: &Value) -> String {
        let answer = stored_answer(&serde_json::to_vec(report).unwrap()).unwrap().remove(0);
        let sentences = answer.sentences.iter().map(|it| it.as_str());
        sentences.collect::<Vec<_>>().join("\n")
    }

    /// Label, value and note of each tile.
    fn tiles(report: &Value) -> Vec<[String; 3]> {
        let tiles = stored_tiles(&serde_json::to_vec(report).unwrap()).unwrap();
        let tiles = serde_json::to_value(tiles).unwrap();
        let text = |tile: &Value, key: &str| tile[key].as_str().unwrap().to_owned();
        let tile = |it: &Value| ["label", "value", "note"].map(|key| text(it, key));
        tiles.as_array().unwrap().iter().map(tile).collect()
    }

    #[test]
    fn sentences_and_tiles_leave_out_a_named_wait_alike() {
        let stages: &[&str] = &["prefill", "decode_all"];
        for (stages, batches) in [(stages, json!([])), (&stages[1..], batches(true))] {
            let report = report(stages, 90.0, batches);
            let text = sentences(&report);
            assert!(text.contains("90 % of decode is a wait before"), "{text}");
            for line in text.lines().filter(|it| it.contains("100 ms")) {
                assert!(line.ends_with(", with this wait."), "{text}");
            }
            assert!(!text.contains("tokens per second"), "{text}");
            let tiles = tiles(&report);
            let [[label, value, note]] = tiles.as_slice() else { panic!("{tiles:?}") };
            assert_eq!((label.as_str(), value.as_str()), ("GPU busy", "90.0"));
            assert!(note.ends_with("decode 90.0 %, without unrecorded waits"), "{note}");
        }
    }

    #[test]
    fn a_wait_that_no_sentence_names_leaves_no_tile_out() {
        let stages: &[&str] = &["prefill", "decode_all"];
        for (stages, batches, labels) in [
            (stages, json!([]), ["First token", "Decode step", "GPU busy", "MFU"].as_slice()),
            (&stages[1..], batches(false), ["Decode step", "GPU busy", "MFU"].as_slice()),
        ] {
            let report = report(stages, 0.5, batches);
            let text = sentences(&report);
            assert!(!text.contains("wait") && text.contains("tokens per second"), "{text}");
            let tiles = tiles(&report);
            assert_eq!(tiles.iter().map(|it| it[0].as_str()).collect::<Vec<_>>(), labels);
        }
    }

    #[test]
    fn utilisation_of_stages_with_different_numbers_of_instances_names_its_base() {
        let note = |steps: u64, only_traced: bool| {
            let mut report = report(&["prefill", "decode_all"], 0.5, json!([]));
            report["only_traced"] = only_traced.into();
            report["ledger_stages"][0]["steps"] = Value::Null;
            report["stages"][1]["ms"]["n"] = steps.into();
            let tile = tiles(&report).into_iter().find(|it| it[0] == "MFU").unwrap();
            tile[2].split_once("; ").map(|it| it.1.to_owned())
        };
        let base = "over one mean prefill and one mean decode step";
        assert_eq!(note(9, true).as_deref(), Some(base));
        assert_eq!(note(1, true), None);
        assert_eq!(note(9, false), None, "figures of runs are per repeat");
    }

    #[test]
    fn a_step_with_a_wait_of_a_stage_without_a_ledger_states_neither_rate_nor_tile() {
        let mut report = report(&["decode_all"], 90.0, batches(true));
        report["ledger"] = json!([]);
        report["ledger_stages"] = json!([]);
        let text = sentences(&report);
        assert!(text.contains("100 ms, with a wait whose reason is not recorded."), "{text}");
        assert!(!tiles(&report).iter().any(|it| it[0] == "Decode step"), "{text}");
    }
}
