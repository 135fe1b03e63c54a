//! The largest causes of the time above the floor, in words for a reader who knows no CUDA, each
//! with its evidence and what to try.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_analyze::ledger::{LedgerCause, LedgerMember, LedgerRow};
use llmprof_core::domain::finding::{Finding, catalogue};
use serde::{Serialize, Serializer};

use super::{
    AnswerRecords,
    base::Base,
    cause_words::{IN_RANGE, plain},
    cited::{Cited, Figure},
    remedies::{FewSteps, Remedy, advice, advice_of_few, taken},
    times::{is_idle, row_of_cause},
};
use crate::format::short_name;

/// Listed reasons.
const REASONS: usize = 3;
/// Min part of all reasons' time for a reason that is listed as the largest of its stage.
const LEAST_PART: f64 = 0.05;
/// Min share of its stage, percent, of a listed reason.
const LISTED_PCT: f64 = 1.0;
/// The same of time without a cause.
const UNEXPLAINED_PCT: f64 = 10.0;

/// A cause of time above the floor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reason {
    /// Share of the stage, and the cause in words.
    #[serde(flatten)]
    pub text: Cited,
    /// The largest kernel or gap of the cause, with its evidence; empty if unknown.
    pub evidence: String,
    /// The remedy, and the upper bound of its saving; empty for causes that the program cannot
    /// change.
    #[serde(serialize_with = "as_text")]
    pub advice: Cited,
}

fn as_text<S: Serializer>(it: &Cited, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(it.as_str())
}

/// Time of a cause.
enum CauseTime {
    Is(Figure),
    /// Tracing lengthens gaps: of the unprofiled time, this is the upper bound.
    AtMost(Figure),
}

impl CauseTime {
    fn of(row: &LedgerRow) -> Self {
        let cells = row_of_cause(row);
        match row.bound_ns() {
            Some(ns) => Self::AtMost(cells.ns("max_saving_ns", ns)),
            None => Self::Is(cells.ns("ns", row.ns)),
        }
    }

    const fn figure(&self) -> &Figure {
        match self {
            Self::Is(figure) | Self::AtMost(figure) => figure,
        }
    }
}

/// The largest cause of each stage, and the largest others. Time without a cause is the first of
/// its stage only if it is longer than all causes.
pub fn reasons(records: &AnswerRecords) -> Vec<Reason> {
    let ledger = records.ledger;
    let is_reason = |cause: LedgerCause| {
        cause == LedgerCause::Unexplained || cause.is_cause() && !cause.is_of_recording()
    };
    let mut rows: Vec<(CauseTime, &LedgerRow)> = ledger
        .rows
        .iter()
        .filter(|it| is_reason(it.cause) && !is_idle(&it.stage))
        .map(|it| (CauseTime::of(it), it))
        .collect();
    // Over all instances: a stage may have one, and another one hundreds.
    let total = |(time, row): &(CauseTime, &LedgerRow)| {
        let stage = ledger.stages.iter().find(|it| it.stage == row.stage);
        time.figure().value() * stage.and_then(|it| it.instances).unwrap_or(1) as f64
    };
    rows.sort_by(|a, b| total(b).total_cmp(&total(a)));
    let all: f64 = rows.iter().map(total).sum();
    let mut causes: BTreeMap<&str, f64> = BTreeMap::new();
    for it in rows.iter().filter(|it| it.1.cause != LedgerCause::Unexplained) {
        *causes.entry(&it.1.stage).or_default() += total(it);
    }
    let is_less = |it: &(CauseTime, &LedgerRow)| {
        let of_stage = causes.get(it.1.stage.as_str());
        it.1.cause == LedgerCause::Unexplained && of_stage.is_some_and(|sum| total(it) < *sum)
    };
    let mut stages: BTreeSet<&str> = BTreeSet::new();
    let (first, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|it| {
        !is_less(it) && stages.insert(&it.1.stage) && total(it) >= LEAST_PART * all
    });
    let mut listed: Vec<(f64, (Reason, Option<Remedy>))> = first
        .into_iter()
        .chain(others)
        .filter_map(|it| Some((total(&it), reason(records, &it.0, it.1)?)))
        .take(REASONS)
        .collect();
    listed.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut given: BTreeSet<&str> = BTreeSet::new();
    let with_advice = listed.into_iter().map(|(_, (reason, remedy))| {
        let advice = remedy.map(|it| {
            let is_new = given.insert(it.advice);
            it.text(is_new)
        });
        Reason { advice: advice.unwrap_or_default(), ..reason }
    });
    with_advice.collect()
}

/// A reason without its advice, and its remedy.
fn reason<'a>(
    records: &AnswerRecords<'a>,
    time: &CauseTime,
    row: &LedgerRow,
) -> Option<(Reason, Option<Remedy<'a>>)> {
    let ledger = records.ledger;
    let stage = ledger.stages.iter().find(|it| it.stage == row.stage)?;
    let base = Base::of(records, stage);
    let least = match row.cause {
        LedgerCause::Unexplained => UNEXPLAINED_PCT,
        _ => LISTED_PCT,
    };
    let share = time.figure().share_of(&base.whole).filter(|it| it.pct() >= least)?;
    let at_most = if let CauseTime::AtMost(_) = time { "At most " } else { "" };
    let cause = match ledger.range_of(row) {
        Some(range) => Cited::of(IN_RANGE, [Cited::name(range)]),
        None => Cited::words(plain(row.cause)),
    };
    let few = FewSteps::of(records, stage, row);
    let in_few = few.as_ref().map(|it| it.text.clone()).unwrap_or_default();
    let parts = [Cited::words(at_most), share.text(), base.name(), cause, in_few];
    let text = Cited::of("{}{} of {}: {}{}.", parts);
    let thread = thread_in_gaps(records, row);
    let displaced = thread.filter(|it| it.id == catalogue::LAUNCHING_THREAD_DISPLACED);
    let of_row = displaced.and_then(|it| it.advice.as_deref());
    let of_row = of_row.or_else(|| advice(records, row));
    let remedy = of_row.map(|advice| {
        let saving = (row.max_saving_ns != 0).then(|| {
            let saving = row_of_cause(row).ns("max_saving_ns", row.max_saving_ns);
            match displaced.and_then(|_| taken(records, stage)) {
                Some(taken) => Figure::least([saving.clone(), taken]).unwrap_or(saving),
                None => saving,
            }
        });
        match few.filter(|it| it.is_only && displaced.is_none()) {
            Some(few) => Remedy { advice: advice_of_few(row, advice), saving: few.saving },
            None => Remedy { advice, saving: saving.map(|it| base.saves(&it, row)) },
        }
    });
    let member = ledger.members(&row.stage, row.cause).next();
    let member = member.map(|it| records.kernel_names.of_member(it));
    let evidence = member.map(|it| evidence(&it, row, &base)).unwrap_or_default();
    let evidence = match thread {
        Some(thread) => format!("{evidence} {}", thread.message),
        None => evidence,
    };
    Some((Reason { text, evidence, advice: Cited::default() }, remedy))
}

/// The finding on the launching thread in the gaps of a stage, for the largest of their causes that
/// are the host's.
fn thread_in_gaps<'a>(records: &AnswerRecords<'a>, row: &LedgerRow) -> Option<&'a Finding> {
    let is_host =
        |it: &&LedgerRow| matches!(it.cause, LedgerCause::GapHost | LedgerCause::GapLongCall);
    let largest = records.ledger.of_stage(&row.stage).filter(is_host).max_by_key(|it| it.ns)?;
    let of_stage = |it: &&Finding| it.evidence.get("stage") == Some(&row.stage);
    let known = [
        catalogue::LAUNCHING_THREAD_DISPLACED,
        catalogue::LAUNCHING_THREAD_OFF_CORE,
        catalogue::GAPS_IN_FUNCTION,
    ];
    let found = known
        .iter()
        .find_map(|id| records.findings.iter().filter(of_stage).find(|it| it.id == *id));
    found.filter(|_| largest.cause == row.cause)
}

/// The largest kernel or gap of a cause, with its evidence.
fn evidence(it: &LedgerMember, row: &LedgerRow, base: &Base) -> String {
    let name = match it.name_by(short_name) {
        name if name.is_empty() => "start of the stage".into(),
        name => name,
    };
    let time = match row.cause {
        LedgerCause::Unexplained => format!(", {}", base.part(it.ns)),
        _ => String::new(),
    };
    let why = match it.operator.is_some() || it.kernel.is_some() {
        true => it.evidence.clone(),
        false => it.evidence.replace(" after this work", ""),
    };
    let pass = if row.pass.is_empty() { String::new() } else { format!(" ({})", row.pass) };
    format!("{name}{time}: {why}{pass}.")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::stored_answer;

    fn stage(name: &str, ms: u64, instances: u64) -> Value {
        json!({
            "stage": name, "measured_ns": 1_000_000 * ms, "traced_ns": 1_000_000 * ms,
            "instances": instances, "capped_operators": 0, "capped_ns": 0, "overlap_ns": 0,
            "missing": []
        })
    }

    fn row(stage: &str, cause: &str, ms: u64, share: f64) -> Value {
        json!({
            "stage": stage, "cause": cause, "ns": 1_000_000 * ms, "share_pct": share, "members": 1,
            "pass": "nsys", "counter": "", "samples": 1, "max_saving_ns": 1_000_000 * ms
        })
    }

    fn reasons(stages: &[Value], rows: &[Value]) -> Vec<(String, String)> {
        let report = json!({
            "ledger_stages": stages, "ledger": rows, "ledger_members": [], "only_traced": true
        });
        let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
        let text = |it: &super::Reason| (it.text.to_string(), it.advice.to_string());
        answer.reasons.iter().map(text).collect()
    }

    #[test]
    fn the_largest_reason_is_that_of_most_time_over_all_instances() {
        let stages = [stage("prefill", 100, 1), stage("decode_all", 10, 256)];
        let starts = |prefill_ms: u64| {
            let decode = ["gap_sync", "gap_launch", "gap_copy", "gap_queued"];
            let mut rows: Vec<Value> = decode.map(|it| row("decode_all", it, 1, 10.0)).into();
            rows.push(row("prefill", "gap_host", prefill_ms, 80.0));
            let found = reasons(&stages, &rows).into_iter();
            found.map(|it| it.0[..12].to_owned()).collect::<Vec<_>>()
        };
        let decode = "10 % of deco";
        assert_eq!(starts(40), [decode; 3], "3.8 % of all time");
        assert_eq!(starts(80), [decode, decode, "80 % of pref"], "7.2 %, the largest of its stage");
    }

    #[test]
    fn a_remedy_of_several_reasons_is_stated_once() {
        let stages = [stage("prefill", 100, 1), stage("decode_all", 100, 1)];
        let rows = [
            row("prefill", "gap_long_call", 90, 90.0),
            row("decode_all", "gap_long_call", 70, 70.0),
        ];
        let found = reasons(&stages, &rows);
        let [(_, first), (_, second)] = found.as_slice() else { panic!("{found:?}") };
        assert!(first.ends_with(" This saves at most 90.0 of 100 ms of prefill."), "{first}");
        assert_eq!(second, "The same remedy saves at most 70.0 of 100 ms of decode.");
    }

    #[test]
    fn a_saving_on_one_rank_names_it_and_the_waits_for_it_are_no_second_saving() {
        let mut stall = row("decode_all", "gap_long_call", 2, 20.0);
        stall["max_saving_ns"] = 3_000_000.into();
        stall["saving_rank"] = 1.into();
        let wait = row("decode_all", "collective_wait", 2, 20.0);
        let found = reasons(&[stage("decode_all", 10, 20)], &[stall, wait]);
        let [(_, stall), (_, wait)] = found.as_slice() else { panic!("{found:?}") };
        let saved = "at most 3.00 of 10.0 ms of decode, on rank 1, for which others wait.";
        assert!(stall.ends_with(saved), "{stall}");
        let saved = "of decode; removing the causes on the last rank saves the same time.";
        assert!(wait.ends_with(saved), "{wait}");
    }

    #[test]
    fn idle_steps_of_an_engine_need_no_work() {
        let stages = [stage("idle", 5, 20), stage("decode_all", 1, 20)];
        let rows = [row("idle", "gap_host", 5, 100.0), row("decode_all", "gap_sync", 1, 50.0)];
        let found = reasons(&stages, &rows);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].0.starts_with("100 % of decode"), "{found:?}");
    }

    #[test]
    fn an_engine_that_idles_between_steps_has_to_schedule_earlier() {
        let found = reasons(
            &[stage("between steps", 2, 19)],
            &[row("between steps", "gap_host", 2, 100.0)],
        );
        let (text, advice) = &found[0];
        assert!(text.starts_with("100 % of the time between steps: the GPU idles"), "{text}");
        assert!(advice.starts_with("Schedule the next step while the GPU works"), "{advice}");
        assert!(advice.ends_with("This saves at most 2.00 of 2.00 ms of the time between steps."));
    }

    #[test]
    fn a_core_of_its_own_saves_at_most_what_others_had_of_it_in_each_instance() {
        let saves = |taken_ms: f64| {
            let report = json!({
                "ledger_stages": [stage("decode_all", 10, 4)],
                "ledger": [row("decode_all", "gap_host", 8, 80.0)],
                "ledger_members": [], "only_traced": true,
                "findings": [{
                    "id": "launching_thread_displaced", "severity": "warning",
                    "message": "Others had its core.", "evidence": { "stage": "decode_all" },
                    "advice": "Give it a core."
                }],
                "host_cpu": {
                    "unpaired_switches": 0, "threads": [], "takers": [], "functions": [],
                    "stages": [{
                        "stage": "decode_all", "idle_host_ms": 32.0, "taken_ms": taken_ms,
                        "samples": 0
                    }]
                }
            });
            let report = serde_json::to_vec(&report).unwrap();
            assert_eq!(super::super::unfounded(&report).unwrap(), [""; 0]);
            stored_answer(&report).unwrap().remove(0).reasons[0].advice.to_string()
        };
        assert_eq!(saves(8.0), "Give it a core. This saves at most 2.00 of 10.0 ms of decode.");
        assert_eq!(saves(40.0), "Give it a core. This saves at most 8.00 of 10.0 ms of decode.");
    }

    /// The first reason of a report on one stage of 100 ms, whose largest part takes 40 ms.
    fn largest_part(
        stage: &Value,
        cause: &str,
        operator: &str,
        gpus: u64,
    ) -> (String, String, String) {
        let name = &stage["stage"];
        let report = json!({
            "only_traced": true, "ledger_stages": [stage],
            "ledger": [row(name.as_str().unwrap(), cause, 80, 80.0)],
            "ledger_members": [{
                "stage": name, "cause": cause, "operator": operator, "kernel": null,
                "grid": null, "block": null, "calls": 1.0, "ns": 40_000_000, "share_pct": 40.0,
                "pass": "nsys", "samples": 1, "evidence": "evidence", "max_saving_ns": 40_000_000
            }],
            "aggregates": {"devices": {
                "devices": gpus, "window_ms": 101.0, "busy_ms": 90.0, "busy_pct": 90.0,
                "kernels": 1, "kernel_ms": 90.0, "whole_graphs": 0, "transfers": []
            }}
        });
        let report = serde_json::to_vec(&report).unwrap();
        let it = stored_answer(&report).unwrap().remove(0).reasons.remove(0);
        (it.text.to_string(), it.evidence, it.advice.to_string())
    }

    #[test]
    fn the_largest_part_has_the_unit_of_the_time_that_its_sentence_names() {
        let with_steps = |steps: u64| {
            let mut stage = stage("decode_all", 100, 1);
            stage["steps"] = steps.into();
            stage
        };
        for (stage, gpus, part) in [
            (with_steps(10), 1, "4.00 ms per step on average"),
            (with_steps(1), 1, "40.0 ms per step"),
            (stage("prefill", 100, 3), 2, "40.0 ms on average"),
            (stage("prefill", 100, 1), 2, "40.0 ms"),
            (stage("", 100, 1), 1, "40.0 ms"),
            (stage("", 100, 1), 2, "40.0 ms per GPU on average"),
        ] {
            let (text, evidence, _) = largest_part(&stage, "unexplained", "op", gpus);
            assert_eq!(evidence, format!("op, {part}: evidence (nsys)."));
            let is_of_gpus = text.contains("of the recording (100 ms per GPU on average): ");
            assert_eq!(is_of_gpus, part.contains("GPU"), "{text}");
        }
    }

    #[test]
    fn idle_time_in_a_range_without_calls_is_the_ranges_and_has_no_advice_of_loading_code() {
        let of = |name: &str| largest_part(&stage("", 100, 1), "gap_long_call", name, 1);
        let (text, _, advice) = of("the range load_*");
        assert!(text.contains("the host is in load_*, a range of the program"), "{text}");
        assert!(!advice.contains("load code") && advice.contains("another thread"), "{advice}");
        let (text, _, advice) = of("tune");
        assert!(text.contains("in a long call, or prepares code"), "{text}");
        assert!(advice.contains("load code"), "{advice}");
    }

    #[test]
    fn the_time_of_a_capture_without_stages_is_that_of_the_recording() {
        let found = reasons(&[stage("", 100, 1)], &[row("", "copies_and_casts", 96, 96.0)]);
        let (text, advice) = &found[0];
        assert_eq!(text, "96 % of the recording: copying, filling and converting data.");
        assert!(advice.ends_with("at most 96.0 of 100 ms of the recording."), "{advice}");
    }
}
