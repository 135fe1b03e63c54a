//! Sentences on steps that take much longer than others, and on processes whose steps do.

use llmprof_analyze::{
    stages::{
        DECODE, in_sentence,
        step_times::{OUTLIER_MEDIANS, OutlierStep, ProcessSteps, StepTimes},
    },
    step_batches::StepBatch,
};
use llmprof_core::trace::engine_steps::StepClass;

use super::{
    AnswerRecords,
    cited::{Cited, Figure},
    outlier_causes,
    stage_time::row_of_steps,
    steps::PROCESSES,
};
use crate::{format::count, waits::Waits};

/// Min part of the time of all steps above the median, of outliers without a cause.
const EXCESS_PART: f64 = 0.05;
/// Outliers in one sentence.
pub const LISTED: usize = 3;

/// Sentences on the processes and the outliers of the steps of a stage, however its time is known.
/// The steps of an engine have sentences next to their batches.
pub fn of_stage(records: &AnswerRecords, stage: &str) -> Vec<Cited> {
    if has_batches(records, stage) {
        return vec![];
    }
    let steps = records.step_times.iter().filter(|it| it.stage == stage);
    steps.flat_map(|it| by_process(it).into_iter().chain(sentence(records, it))).collect()
}

/// The outliers among the steps of an engine, which other sentences describe by their batches.
pub fn of_batches(records: &AnswerRecords) -> Vec<Cited> {
    let steps = records.step_times.iter().filter(|it| has_batches(records, &it.stage));
    let steps = steps.filter(|it| has_one_batch(it, records));
    steps.filter_map(|it| sentence(records, it)).collect()
}

/// True if the steps of a stage are an engine's: other sentences have their times.
pub fn has_batches(records: &AnswerRecords, stage: &str) -> bool {
    batches(records, stage).next().is_some()
}

/// Rows of the engine steps that are a stage's, without the phases of speculation.
pub fn batches<'a>(
    records: &AnswerRecords<'a>,
    stage: &str,
) -> impl Iterator<Item = &'a StepBatch> {
    let is_of_stage = move |it: &&StepBatch| match it.class {
        StepClass::Other => it.mode.as_deref() == Some(stage),
        class => class.stage() == Some(stage) && !class.is_phase(),
    };
    records.step_batches.iter().filter(is_of_stage)
}

/// True if batches do not explain outliers: in each batch, decode steps of an engine take less than
/// twice the median, or more than twice the time that their requests or their context may add to
/// it. Other steps take the time of their prompts.
fn has_one_batch(steps: &StepTimes, records: &AnswerRecords) -> bool {
    let rows: Vec<&StepBatch> = batches(records, &steps.stage).collect();
    let Some(common) = rows.iter().max_by_key(|it| it.steps) else { return true };
    let growth = |one: Option<u64>, common: Option<u64>| match (one, common) {
        (Some(one), Some(common)) => Some((one as f64 / common as f64).max(1.0)),
        (None, None) => Some(1.0),
        _ => None,
    };
    let is_usual = |it: &&StepBatch| {
        let grows = growth(it.requests, common.requests)
            .zip(growth(it.context_max, common.context_max))
            .map(|(requests, context)| requests * context);
        let is_longer = |growth: f64| it.p50_ms > OUTLIER_MEDIANS * growth * steps.p50_ms;
        grows.is_some_and(is_longer) || it.p50_ms <= OUTLIER_MEDIANS * steps.p50_ms
    };
    // No batch explains a call of the host.
    let has_call = steps.longest.iter().any(|it| it.host_call.is_some());
    (has_call || rows.iter().all(is_usual)) && (steps.stage == DECODE || rows.len() <= 1)
}

/// The medians of processes that differ, slowest first.
fn by_process(steps: &StepTimes) -> Option<Cited> {
    let row = row_of_steps(steps);
    let median = |(at, it): (usize, &ProcessSteps)| {
        let count = row.count(format!("processes.{at}.steps"), it.steps);
        let noun = if steps.are_steps() { "step" } else { "instance" };
        Cited::of(
            "{} ms in {} ({} of {})",
            [
                row.figure(format!("processes.{at}.p50_ms"), it.p50_ms).short(),
                Cited::name(it.name()),
                Cited::words(it.median_word()),
                count.quantity(noun),
            ],
        )
    };
    let all = || steps.processes.iter().enumerate();
    let others = all()
        .skip(PROCESSES)
        .map(|(at, it)| row.figure(format!("processes.{at}.p50_ms"), it.p50_ms));
    let others = match steps.processes.len() > PROCESSES {
        true => Cited::of("; faster: {}", [Figure::number(others).quantity("other process")]),
        false => Cited::default(),
    };
    let subject = match steps.are_steps() {
        true => Cited::words("a decode step"),
        false => Cited::of("an instance of {}", [Cited::name(in_sentence(&steps.stage))]),
    };
    let listed = Cited::list(all().take(PROCESSES).map(median), "; ");
    let text = "The processes differ: {} takes {}{}.";
    (!steps.processes.is_empty()).then(|| Cited::of(text, [subject, listed, others]))
}

/// True if the page and its tile state the outliers of a stage: a cause explains one, or they take
/// a part of the time of all steps that matters. A step waiting for a reason from before the
/// recording has a sentence of its own.
pub fn are_stated(steps: &StepTimes, waits: Waits) -> bool {
    let is_wait = steps.outliers == 1 && waits.has(&steps.stage);
    let is_named = || steps.longest.iter().any(outlier_causes::is_explained);
    let is_part = || steps.excess_ms >= EXCESS_PART * steps.ms.total();
    steps.outliers > 0 && !is_wait && (is_named() || is_part())
}

/// Steps of a stage that take more than twice the median, with their causes.
fn sentence(records: &AnswerRecords, steps: &StepTimes) -> Option<Cited> {
    if !are_stated(steps, Waits::of(records.ledger)) {
        return None;
    }
    let row = row_of_steps(steps);
    let n = row.count("ms.n", steps.ms.n.into());
    let all = match steps.are_steps() {
        true => n.quantity("decode step"),
        false => {
            let stage = Cited::name(in_sentence(&steps.stage));
            Cited::of("{} of {}", [n.quantity("instance"), stage])
        }
    };
    let listed = || steps.longest.iter().take(LISTED).enumerate();
    let ms = |(at, it): (usize, &OutlierStep)| row.figure(format!("longest.{at}.ms"), it.ms);
    let number = row.count("outliers", steps.outliers);
    let more = number.minus(&Figure::number(listed().map(ms)));
    let more = match more.value() > 0.0 {
        true => Cited::of(" and {} more", [more.shown(|it| count(it as u64))]),
        false => Cited::default(),
    };
    let verb = if steps.outliers == 1 { "takes" } else { "take" };
    let median = match (steps.is_by_process(), steps.outliers) {
        (false, _) => steps.median_word(),
        (true, 1) => "the median of its process",
        (true, _) => "the median of their processes",
    };
    Some(Cited::of(
        "{} of {} {} more than twice {}: {}{}.{}",
        [
            number.shown(|it| count(it as u64)),
            all,
            Cited::words(verb),
            Cited::words(median),
            Cited::list(listed().map(|it| milliseconds(ms(it))), ", "),
            more,
            outlier_causes::sentences(records, steps),
        ],
    ))
}

fn milliseconds(figure: Figure) -> Cited {
    Cited::of("{} ms", [figure.short()])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{stored_answer, unfounded};
    use crate::stored_tiles;

    /// Sentences on ten decode steps of an engine, of 1 ms but for one, in batches of these
    /// requests, medians and steps.
    fn sentences(batches: &[(u64, f64, u64)], longest: Value, only_traced: bool) -> Vec<String> {
        with_findings(batches, longest, only_traced, json!([]))
    }

    /// The same of a report with findings.
    fn with_findings(
        batches: &[(u64, f64, u64)],
        longest: Value,
        only_traced: bool,
        findings: Value,
    ) -> Vec<String> {
        let batch = |(requests, p50_ms, steps): &(u64, f64, u64)| {
            json!({
                "class": "decode", "mode": null, "requests": requests, "padded_min": null,
                "padded_max": null, "context_min": null, "context_max": null, "steps": steps,
                "ms": {"mean": 3.9, "std": null, "min": 1.0, "max": 30.0, "n": 10},
                "p50_ms": p50_ms, "period_ms": null, "busy_pct": null, "tokens_per_s": null
            })
        };
        let report = json!({
            "only_traced": only_traced, "findings": findings,
            "stages": [{
                "stage": "decode_all", "tokens": null, "tokens_per_s": null, "share_pct": null,
                "ms": {"mean": 39.0, "std": null, "min": 39.0, "max": 39.0, "n": 1}
            }],
            "step_batches": batches.iter().map(batch).collect::<Vec<_>>(),
            "step_times": [{
                "stage": "decode_all", "p50_ms": 1.0, "outliers": 1, "excess_ms": 29.0,
                "ms": {"mean": 3.9, "std": null, "min": 1.0, "max": 30.0, "n": 10},
                "longest": [longest]
            }]
        });
        let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
        answer.sentences.iter().map(|it| it.as_str().to_owned()).collect()
    }

    #[test]
    fn an_outlier_of_an_engine_is_named_unless_its_batch_explains_it() {
        let named = json!({
            "step": 3, "ms": 30.0, "host_call": null, "host_call_ms": null, "busy_ms": 28.9,
            "longest_work": "copy host_to_device", "longest_work_ms": 28.0
        });
        let all = sentences(&[(8, 1.0, 10)], named.clone(), true);
        let [times, outlier] = all.as_slice() else { panic!("{all:?}") };
        assert!(times.starts_with("10 decode steps of 8 requests: 1.00 ms"), "{times}");
        assert_eq!(
            outlier,
            "1 of 10 decode steps takes more than twice the median: 30.0 ms. In it the GPU works \
             longer, most of all in copy host to device (28.0 ms)."
        );
        assert_eq!(sentences(&[(8, 1.0, 9), (7, 1.1, 1)], named.clone(), true).len(), 2);
        assert_eq!(
            sentences(&[(8, 1.0, 9), (64, 12.0, 1)], named.clone(), true).len(),
            1,
            "a larger batch"
        );
        let smaller = sentences(&[(8, 1.0, 9), (2, 30.0, 1)], named, true);
        assert_eq!(smaller.len(), 2, "a smaller batch takes no longer");
    }

    #[test]
    fn an_outlier_in_a_tile_has_a_sentence_however_its_stage_is_timed() {
        let ms =
            |mean: f64, n: u64| json!({"mean": mean, "std": null, "min": 1.0, "max": 30.0, "n": n});
        let row = json!([{
            "stage": "decode_all", "tokens": null, "tokens_per_s": null, "share_pct": null,
            "ms": ms(39.0, 1)
        }]);
        let ledger = |unit: &str, ns: i64| {
            json!([{
                "stage": "decode_all", "measured_ns": ns, "traced_ns": ns, "steps": null,
                "unit": unit, "instances": 10, "capped_operators": 0, "capped_ns": 0,
                "overlap_ns": 0, "missing": []
            }])
        };
        let (whole, cut) = (ledger("repeat", 39_000_000), ledger("step", 3_900_000));
        let none = json!([]);
        for (stages, ledger) in [(&row, &whole), (&none, &cut), (&row, &none), (&none, &none)] {
            for (excess_ms, is_stated) in [(29.0, true), (0.1, false)] {
                let report = json!({
                    "only_traced": true, "mfu": [], "stages": stages, "ledger_stages": ledger,
                    "aggregates": {"repeats": 1, "stage_ms": {}, "per_token_ms": ms(3.9, 1)},
                    "step_times": [{
                        "stage": "decode_all", "p50_ms": 1.0, "outliers": 1,
                        "excess_ms": excess_ms, "ms": ms(3.9, 10),
                        "longest": [
                            {"step": 3, "ms": 30.0, "host_call": null, "host_call_ms": null}
                        ]
                    }]
                });
                let report = serde_json::to_vec(&report).unwrap();
                assert_eq!(unfounded(&report).unwrap(), [""; 0]);
                let all = stored_answer(&report).unwrap().remove(0).sentences;
                let start = "1 of 10 decode steps takes more than twice the median: 30.0 ms.";
                let stated = all.iter().filter(|it| it.as_str().starts_with(start)).count();
                assert_eq!(stated, usize::from(is_stated), "{stages} {ledger}: {all:?}");
                let tiles = serde_json::to_value(stored_tiles(&report).unwrap()).unwrap();
                let is_in_tile = tiles.to_string().contains(" with 1 outlier");
                assert_eq!(is_in_tile, is_stated, "{stages} {ledger}: {tiles}");
            }
        }
    }

    #[test]
    fn an_outlier_of_processes_that_differ_exceeds_the_median_of_its_process() {
        for (median, words) in [(Some(4.0), "the median of its process"), (None, "the median")] {
            let longest = json!({
                "step": 3, "ms": 30.0, "process_p50_ms": median, "host_call": null,
                "host_call_ms": null
            });
            let all = sentences(&[(8, 1.0, 10)], longest, true);
            let start = format!("1 of 10 decode steps takes more than twice {words}: 30.0 ms.");
            assert!(all[1].starts_with(&start), "{all:?}");
        }
    }

    #[test]
    fn processes_that_differ_are_named_with_their_medians() {
        let process = |process: u32, p50_ms: f64| {
            json!({
                "process": process, "rank": process.checked_sub(100), "steps": 10,
                "p50_ms": p50_ms, "outliers": 0
            })
        };
        let slowest = process(101, 3.0);
        let two = json!([slowest, process(7, 1.0)]);
        let four = json!([slowest, process(102, 2.0), process(103, 1.5), process(100, 1.0)]);
        let each = |stage: &str, processes: &Value| {
            let report = json!({
                "only_traced": true,
                "stages": [{
                    "stage": stage, "tokens": null, "tokens_per_s": null, "share_pct": null,
                    "ms": {"mean": 2.0, "std": null, "min": 1.0, "max": 3.0, "n": 20}
                }],
                "step_times": [{
                    "stage": stage, "p50_ms": 3.0, "outliers": 0, "excess_ms": 0.0,
                    "ms": {"mean": 2.0, "std": null, "min": 1.0, "max": 3.0, "n": 20},
                    "longest": [], "processes": processes
                }]
            });
            let report = serde_json::to_vec(&report).unwrap();
            assert_eq!(unfounded(&report).unwrap(), [""; 0]);
            let answer = stored_answer(&report).unwrap().remove(0);
            let base = "slowest process's median of 10 ";
            let is_of_slowest = answer.sentences.iter().any(|it| it.as_str().contains(base));
            assert_eq!(is_of_slowest, processes[0].is_object(), "{:?}", answer.sentences);
            let all = answer.sentences.iter().map(|it| it.as_str().to_owned());
            all.filter(|it| it.starts_with("The processes differ")).collect::<Vec<_>>()
        };
        assert_eq!(
            each("decode_all", &two),
            ["The processes differ: a decode step takes 3.00 ms in rank 1 (median of 10 steps); \
              1.00 ms in process 7 (median of 10 steps)."]
        );
        assert_eq!(
            each("prefill", &four),
            ["The processes differ: an instance of prefill takes 3.00 ms in rank 1 (median of 10 \
              instances); 2.00 ms in rank 2 (median of 10 instances); 1.50 ms in rank 3 (median \
              of 10 instances); faster: 1 other process."]
        );
        assert_eq!(each("decode_all", &json!([])), [""; 0]);
    }

    #[test]
    fn only_a_capture_shows_that_nothing_in_it_explains_a_step() {
        let unnamed = json!({"step": 3, "ms": 30.0, "host_call": null, "host_call_ms": null});
        let end = |only_traced| {
            let text = sentences(&[(8, 1.0, 10)], unnamed.clone(), only_traced).pop().unwrap();
            text.rsplit_once("ms. ").unwrap().1.to_owned()
        };
        assert_eq!(end(true), "No operator, range or call of the runtime explains it.");
        assert_eq!(end(false), "What delayed it is not recorded.");
    }

    #[test]
    fn a_step_without_a_named_delay_agrees_with_the_conditions_on_the_page() {
        let unnamed = json!({"step": 3, "ms": 30.0, "host_call": null, "host_call_ms": null});
        let end = |only_traced: bool, id: &str, stage: &str| {
            let finding = json!([{
                "id": id, "severity": "warning", "message": "A condition.", "advice": null,
                "evidence": {"stage": stage},
            }]);
            let all = with_findings(&[(8, 1.0, 10)], unnamed.clone(), only_traced, finding);
            let outlier = all.into_iter().find(|it| it.starts_with("1 of 10")).unwrap();
            outlier.rsplit_once("ms. ").unwrap().1.to_owned()
        };
        let (busy, unknown) = (
            "The host was busy meanwhile, which may have delayed it.",
            "What delayed it is not recorded.",
        );
        let off_core = "The thread that launches work was off its core at times, which may have \
                        delayed it.";
        let unexplained = "No operator, range or call of the runtime explains it.";
        let missing = "No cause can be attributed to it: kernels or calls are missing.";
        for (only_traced, id, stage, expected) in [
            (true, "kernels_lost", "decode_all", missing),
            (true, "kernels_unattributed", "decode_all", missing),
            (false, "kernels_lost", "decode_all", missing),
            (false, "host_busy", "decode_all", busy),
            (true, "host_busy", "decode_all", unexplained),
            (false, "outputs_differ", "decode_all", unknown),
            (true, "launching_thread_displaced", "decode_all", off_core),
            (false, "launching_thread_off_core", "decode_all", off_core),
            (true, "launching_thread_displaced", "prefill", unexplained),
        ] {
            assert_eq!(end(only_traced, id, stage), expected, "{id} of {stage}");
        }
    }
}
