//! Operators in which the stages of a run on the CPU spend their time, which have no ledger.

use llmprof_analyze::{
    operators::{MODULE, OperatorRecord},
    stages::{StageTiming, in_sentence},
};

use super::{
    AnswerRecords,
    cited::{Cited, Row},
};
use crate::format::{MAJORITY_PCT, share, short_name};

/// Listed operators of a stage.
const LISTED: usize = 3;
/// Least share of the stage, percent, of a listed operator.
const LISTED_PCT: f64 = 1.0;

/// A sentence on each stage whose operators were timed.
pub fn sentences(records: &AnswerRecords) -> Vec<Cited> {
    let stages = records.stages.iter().filter(|_| records.on_cpu);
    stages.filter_map(|stage| of_stage(records.operators, stage)).collect()
}

fn of_stage(operators: &[OperatorRecord], stage: &StageTiming) -> Option<Cited> {
    let is_leaf = |it: &&OperatorRecord| it.stage == stage.stage && it.op != MODULE;
    let mut shares: Vec<(f64, &OperatorRecord)> = operators
        .iter()
        .filter(is_leaf)
        .filter_map(|it| Some((it.exclusive_pct.filter(|pct| *pct >= LISTED_PCT)?, it)))
        .collect();
    shares.sort_by(|a, b| b.0.total_cmp(&a.0));
    let listed = shares.iter().take(LISTED).map(|(pct, it)| {
        let row =
            Row::of("operators").with("path", &it.path).with("op", &it.op).with("stage", &it.stage);
        let pct = row.figure("exclusive_pct", *pct).shown(share);
        Cited::of("{} ({})", [Cited::name(short_name(&it.path)), pct])
    });
    let listed = Cited::list(listed, ", ");
    let name = Cited::name(in_sentence(&stage.stage));
    let template = match shares.iter().take(LISTED).map(|it| it.0).sum::<f64>() > MAJORITY_PCT {
        true => "In {}, most time goes to {}.",
        false => "Longest operators in {}: {}.",
    };
    (!shares.is_empty()).then(|| Cited::of(template, [name, listed]))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::answer::{Answer, stored_answer, unfounded};

    fn answer(report: Value) -> Answer {
        let report = serde_json::to_vec(&report).unwrap();
        assert_eq!(unfounded(&report).unwrap(), Vec::<String>::new());
        stored_answer(&report).unwrap().remove(0)
    }

    fn operator(path: &str, op: &str, pct: f64) -> Value {
        json!({
            "path": path, "op": op, "stage": "prefill", "calls": 2, "inclusive_ms": 1.0,
            "mean_ms": 0.5, "exclusive_ms": 1.0, "exclusive_pct": pct, "shapes": [],
            "shape_variants": 1, "dtype": "f32", "flops": 0, "bytes": 0, "flops_per_s": null,
            "bytes_per_s": null
        })
    }

    /// A run on this device, whose operators were timed.
    fn run(device: &str) -> Answer {
        let spread = json!({"mean": 5.0, "std": null, "min": 5.0, "max": 5.0, "n": 1});
        answer(json!({
            "stages": [{"stage": "prefill", "ms": spread, "share_pct": 100.0, "tokens": null,
                "tokens_per_s": null}],
            "operators": [operator("lm", "module", 90.0), operator("lm.down", "linear", 30.2),
                operator("lm.up", "linear", 50.4), operator("lm.norm", "norm", 0.4)],
            "model": {"name": "tiny", "description": null, "parameters": null,
                "weight_bytes": null, "weights": null, "dtype": "f32", "device": device,
                "decode_graph": null, "prompt_tokens": 7, "image_tokens": 0, "images": []},
            "environment": {"hostname": null, "os": null, "kernel": null, "cpu": "Xeon",
                "cpus": 2, "memory_bytes": null, "driver": null, "cuda": null, "gpus": [],
                "device": null, "nsys": null, "ncu": null, "llmprof": "0", "git_commit": null},
            "aggregates": {"decode_steps": 4},
        }))
    }

    #[test]
    fn a_run_on_the_cpu_names_its_longest_operators_and_where_its_floor_would_be_known() {
        let it = run("cpu");
        assert_eq!(
            it.ran.unwrap().as_str(),
            "tiny (f32, prompt of 7 tokens, 4 decode steps) ran on the processor Xeon."
        );
        assert_eq!(
            it.sentences,
            [
                "Prefill takes 5.00 ms.",
                "In prefill, most time goes to lm.up (50 %), lm.down (30 %)."
            ]
        );
        assert!(it.unknown[0].contains("unknown on a CPU"), "{:?}", it.unknown);
        assert_eq!(run("cuda:0").sentences.len(), 1, "the host only launches the work");
    }

    #[test]
    fn a_command_has_its_whole_time_and_a_load_its_latencies_and_rates_in_place_of_it() {
        let wall = json!({"mean": 2000.0, "std": 10.0, "min": 1990.0, "max": 2010.0, "n": 2});
        let command = json!({"of": "process", "plain_ms": wall, "traced_ms": null,
            "ready_ms": null});
        let mut report = json!({ "aggregates": { "command": command } });
        let whole = "The whole process takes 2,000 ms (mean of 2 repeats, 1,990 to 2,010 ms).";
        assert_eq!(answer(report.clone()).sentences, [whole]);
        report["request_latency"] = json!([{"pass": "unprofiled", "metric": "time_to_first_token",
            "n": 8, "mean_ms": 9.0, "p50_ms": 3.0, "p90_ms": 4.0, "p99_ms": 5.0, "max_ms": 70.0}]);
        let load = |repeat: u32, pass: &str| {
            json!({"pass": pass, "repeat": repeat, "complete": 4, "failed": 0,
                "output_tokens": 40, "ms": 1000.0 * f64::from(repeat + 1), "requests_per_s": null,
                "tokens_per_s": null})
        };
        report["aggregates"]["loads"] =
            json!([load(0, "unprofiled"), load(1, "unprofiled"), load(0, "traced")]);
        assert_eq!(
            answer(report.clone()).sentences,
            [
                "The first token of a request takes 3.00 ms: the median of 8 requests; p99 5.00 \
                 ms.",
                "The server completes 2.67 requests and 26.7 output tokens per second.",
            ]
        );
        report["request_latency"][0]["n"] = 1.into();
        report["aggregates"]["loads"][1]["failed"] = 3.into();
        let it = answer(report);
        assert_eq!(it.sentences[0], "The first token of a request takes 3.00 ms, of one request.");
        assert_eq!(it.sentences[2], "3 of 11 requests failed: the times are of the other 8.");
    }
}
