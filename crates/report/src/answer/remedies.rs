//! Remedies of reasons.

use llmprof_analyze::{
    findings,
    ledger::{LedgerCause, LedgerRow, LedgerStage, StepOfCause},
    stages::DECODE,
    timeline::gpu::host_activity::HostActivity,
};
use llmprof_core::domain::finding::{
    Finding,
    catalogue::{self, FindingId},
};

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    stage_time::row_of_steps,
    times::{row_of, row_of_cause},
};

/// Min part of the steps in which a cause recurs, of a cause of each step.
const RECURRING: f64 = 0.9;
/// The remedy of code that is prepared again and again.
const EACH_STEP: &str = "Nearly each step prepares code again, so a warm-up does not help: pad or \
                         group inputs to few shapes, or use kernels that are not built for each \
                         shape.";

/// The remedy of a reason, and the upper bound of its saving.
pub struct Remedy<'a> {
    pub advice: &'a str,
    pub saving: Option<Cited>,
}

impl Remedy<'_> {
    /// The advice, or `before`: the name of the same advice in an earlier reason.
    pub fn text(self, before: Option<&'static str>) -> Cited {
        match (before, self.saving) {
            (None, None) => Cited::name(self.advice),
            (None, Some(saving)) => Cited::of("{} This {}", [Cited::name(self.advice), saving]),
            (Some(same), None) => Cited::of("{} applies.", [Cited::words(same)]),
            (Some(same), Some(saving)) => Cited::of("{} {}", [Cited::words(same), saving]),
        }
    }
}

/// Time in an instance of a stage in which others had the core of its launching thread while a GPU
/// idled: the upper bound of what a core of its own saves.
pub fn taken(records: &AnswerRecords, stage: &LedgerStage) -> Option<Figure> {
    let host = records.host_stages.iter().find(|it| it.stage == stage.stage)?;
    let cells = Row::of("host_cpu.stages").with("stage", &stage.stage);
    let taken = cells.figure("taken_ms", host.taken_ms?);
    match stage.instances.filter(|it| *it > 1) {
        Some(instances) => taken.over(&row_of(stage).count("instances", instances)),
        None => Some(taken),
    }
}

/// Steps that have most of the time of a cause.
pub struct FewSteps {
    /// Words after the cause.
    pub text: Cited,
    /// True if the other steps have too little of the cause for advice on each step.
    pub is_only: bool,
    /// Upper bound of the saving in them, as the end of a sentence; `None` if it is not known.
    pub saving: Option<Cited>,
}

impl FewSteps {
    /// The steps that have most of a cause's time.
    pub fn of(records: &AnswerRecords, stage: &LedgerStage, row: &LedgerRow) -> Option<Self> {
        let few = records.ledger.few_steps(records.step_times, row)?;
        let (words, is_only) = (few.words(), few.is_only);
        let Some(steps) = few.of else {
            return Some(Self { text: Cited::name(words), is_only, saving: None });
        };
        let cells = row_of_steps(steps);
        let time = |it: &StepOfCause| {
            let column = format!("longest.{}.{}", it.at, it.field);
            cells.figure(column, it.ms)
        };
        let each: Vec<Figure> = few.steps.iter().map(time).collect();
        let all = row_of_cause(row).ns("ns", row.ns);
        let all = match stage.instances {
            Some(instances) => all.times(&row_of(stage).count("instances", instances)),
            None => all,
        };
        let number = Figure::number(each.iter().cloned());
        let n = cells.count("ms.n", steps.ms.n.into());
        let saved = saving(&each, &all, &n)?;
        let which = match (each.len(), steps.are_steps()) {
            (1, true) => "this step",
            (_, true) => "these steps",
            (1, false) => "this instance",
            (_, false) => "these instances",
        };
        let saving = [saved.short(), Cited::words(which)];
        Some(Self {
            text: Cited::list([number.decimals(0), n.decimals(0)], " of ").with_text(words),
            is_only,
            saving: Some(Cited::of("saves at most {} ms in {}.", saving)),
        })
    }
}

/// The excess over the mean time of a cause in the other steps of `n`, in `few` steps: at most all
/// of the cause's time. `None` if there are no other steps.
fn saving(few: &[Figure], all: &Figure, n: &Figure) -> Option<Figure> {
    let in_few = Figure::sum(few.iter().cloned());
    let others = n.minus(&Figure::number(few.iter().cloned()));
    let rest = all.minus(&in_few).over(&others)?;
    let above = Figure::sum(few.iter().map(|it| it.minus(&rest)));
    // The rest is negative if the few have more than all, as on one of several GPUs.
    Figure::least([in_few, above, all.clone()])
}

/// True if code is prepared in nearly each step.
fn is_in_each_step(records: &AnswerRecords, row: &LedgerRow) -> bool {
    let is_code = row.largest.as_deref().map(HostActivity::of) == Some(HostActivity::Loading);
    let mut steps = records.step_times.iter().filter(|it| it.stage == row.stage);
    is_code
        && steps.any(|it| it.are_steps() && it.preparing as f64 >= RECURRING * f64::from(it.ms.n))
}

/// The remedy of a cause. In decode, the finding on an idle GPU knows whether graphs are replayed.
/// Time without a cause has a remedy if the kernels of graphs were not recorded.
pub fn advice<'a>(records: &AnswerRecords<'a>, row: &LedgerRow) -> Option<&'a str> {
    let of = |id: FindingId| records.findings.iter().find(|it| it.id == id)?.advice.as_deref();
    let known = match row.cause {
        LedgerCause::GapLongCall if is_in_each_step(records, row) => Some(EACH_STEP),
        LedgerCause::GapHost if row.stage == DECODE => of(catalogue::DECODE_LAUNCH_BOUND),
        LedgerCause::Unexplained if row.largest.as_deref() == Some(LedgerCause::WHOLE_GRAPH) => {
            return of(catalogue::GRAPHS_TRACED_WHOLE);
        }
        _ => None,
    };
    // The finding on the cause knows more of its evidence.
    let own = || {
        let id = format!("ledger_{}", row.cause);
        let is_of_stage = |it: &&Finding| {
            it.id == id && it.max_saving.as_ref().is_some_and(|it| it.stage == row.stage)
        };
        records.findings.iter().find(is_of_stage)?.advice.as_deref()
    };
    let stage = records.ledger.stages.iter().find(|it| it.stage == row.stage)?;
    let is_worth = findings::ledger::is_worth_advice(records.ledger, stage, row);
    let is_sampled = records.findings.iter().any(|it| {
        it.id == catalogue::GAPS_IN_FUNCTION && it.evidence.get("stage") == Some(&row.stage)
    });
    let of_cause = || findings::ledger::advice(records.ledger, row, is_sampled);
    known.or_else(own).or_else(of_cause).filter(|_| is_worth)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::stored_answer;

    /// The advice on gaps of decode in which code is prepared, in some of ten steps.
    fn advice(preparing: u64, gaps: u64) -> String {
        let report = json!({
            "only_traced": true,
            "ledger_stages": [{
                "stage": "decode_all", "measured_ns": 100_000_000, "instances": 1, "steps": 10,
                "capped_operators": 0, "capped_ns": 0, "overlap_ns": 0, "missing": []
            }],
            "ledger": [{
                "stage": "decode_all", "cause": "gap_long_call", "ns": 50_000_000,
                "share_pct": 50.0, "members": 1, "pass": "nsys", "counter": "", "samples": gaps,
                "largest": "preparation of code for cuLibraryLoadData",
                "max_saving_ns": 50_000_000
            }],
            "ledger_members": [],
            "step_times": [{
                "stage": "decode_all", "p50_ms": 10.0, "outliers": 0, "excess_ms": 0.0,
                "ms": {"mean": 10.0, "std": null, "min": 10.0, "max": 10.0, "n": 10},
                "preparing": preparing, "longest": []
            }]
        });
        let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
        answer.reasons[0].advice.to_string()
    }

    #[test]
    fn code_is_prepared_again_if_nearly_all_steps_have_such_a_gap_however_many_gaps_there_are() {
        for (preparing, gaps, is_in_each) in
            [(10, 10, true), (9, 12, true), (8, 10, false), (2, 40, false), (0, 10, false)]
        {
            let advice = advice(preparing, gaps);
            let begins = "Nearly each step prepares code again";
            assert_eq!(advice.starts_with(begins), is_in_each, "{preparing} {gaps}: {advice}");
        }
    }

    /// The first reason of twenty steps of 4 ms, two of 40: in the first a cause takes `ms`.
    fn reason(cause: &str, total_ms: u64, in_first_ms: f64) -> (String, String) {
        let outlier = |ms: f64| {
            let mut it = json!({"step": 3, "ms": 40.0, "host_call": null, "host_call_ms": null});
            it["idle"] = json!([{"cause": cause, "ms": ms}]);
            it
        };
        let ns = total_ms * 1_000_000 / 20;
        let report = json!({
            "only_traced": true,
            "ledger_stages": [{
                "stage": "decode_all", "measured_ns": 7_600_000, "instances": 20, "steps": 1,
                "capped_operators": 0, "capped_ns": 0, "overlap_ns": 0, "missing": []
            }],
            "ledger": [{
                "stage": "decode_all", "cause": cause, "ns": ns, "share_pct": 30.0, "members": 1,
                "pass": "nsys", "counter": "", "samples": 1, "max_saving_ns": ns,
                "largest": "cuMemFree_v2"
            }],
            "ledger_members": [],
            "step_times": [{
                "stage": "decode_all", "p50_ms": 4.0, "outliers": 2, "excess_ms": 72.0,
                "ms": {"mean": 7.6, "std": null, "min": 4.0, "max": 40.0, "n": 20},
                "longest": [outlier(in_first_ms), outlier(0.1)]
            }]
        });
        let report = serde_json::to_vec(&report).unwrap();
        assert_eq!(super::super::unfounded(&report).unwrap(), [""; 0]);
        let it = stored_answer(&report).unwrap().remove(0).reasons.remove(0);
        (it.text.to_string(), it.advice.to_string())
    }

    #[test]
    fn a_cause_is_of_the_few_steps_that_have_most_of_it_and_so_is_its_remedy() {
        for cause in ["gap_sync", "gap_copy", "gap_host", "gap_long_call", "gap_in_graph"] {
            let (text, advice) = reason(cause, 38, 36.2);
            assert!(text.ends_with(", most of it in 1 of 20 steps."), "{cause}: {text}");
            assert!(advice.ends_with(" This saves at most 36.1 ms in this step."), "{advice}");
            let is_of_few = advice.starts_with("Find what differs there");
            assert_eq!(is_of_few, cause != "gap_long_call", "{cause}: {advice}");
            let (text, advice) = reason(cause, 56, 36.2);
            assert!(text.ends_with(", most of it in 1 of 20 steps."), "{cause}: {text}");
            let is_of_each = !advice.starts_with("Find what") && !advice.contains("in this step");
            assert!(is_of_each, "others have 1.04 of 4 ms: {cause}: {advice}");
            let (_, advice) = reason(cause, 34, 36.2);
            assert!(advice.ends_with(" at most 34.0 ms in these steps."), "all of it: {advice}");
            let (text, advice) = reason(cause, 80, 36.2);
            assert!(!text.contains("most of it"), "less than half: {text}");
            assert!(!advice.contains("in this step"), "{cause}: {advice}");
        }
    }
}
