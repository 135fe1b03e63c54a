//! Remedies of reasons.

use llmprof_analyze::{
    findings::{self, MIN_SAVING_PCT},
    ledger::{LedgerCause, LedgerMember, LedgerRow, LedgerStage},
    stages::{
        BETWEEN_STEPS, DECODE,
        step_times::{OUTLIER_MEDIANS, OutlierStep},
    },
    timeline::gpu::long_calls::{IN_RANGE, LOADING},
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

/// Min part of a cause's time in few steps that it is a cause of these alone.
const IN_OUTLIERS: f64 = 0.5;
/// Min part of the steps in which a cause recurs, of a cause of each step.
const RECURRING: f64 = 0.9;
/// The remedy of a cause that few steps have.
const FEW_STEPS: &str = "Find what differs there: the others have little of this time.";
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
    /// The outliers that have most of a cause's time, if a usual step has little of it: counted by
    /// this cause, not by all. Between steps, one gap.
    pub fn of(records: &AnswerRecords, stage: &LedgerStage, row: &LedgerRow) -> Option<Self> {
        let mut members = records.ledger.members(&row.stage, row.cause);
        if row.stage == BETWEEN_STEPS {
            // The longest of all gaps: each member may have several.
            let instances = stage.instances.filter(|it| *it > 1)?;
            let longest = members.filter_map(|it| longest_gap(it, instances)).max()?;
            let is_one = longest as f64 > IN_OUTLIERS * row.ns as f64 * instances as f64;
            let text = Cited::words(", most of it in one gap");
            let few = Self { text, is_only: true, saving: None };
            return (row.cause.is_idle() && is_one).then_some(few);
        }
        let largest = members.next();
        let steps = records.step_times.iter().find(|it| it.stage == row.stage)?;
        let work = largest.and_then(|it| it.kernel.as_deref());
        let cells = row_of_steps(steps);
        let time = |(at, it): (usize, &OutlierStep)| {
            let (column, ms) = time_in(it, row.cause, work)?;
            Some(cells.figure(format!("longest.{at}.{column}"), ms))
        };
        let each: Vec<Figure> = steps.longest.iter().enumerate().filter_map(time).collect();
        let all = row_of_cause(row).ns("ns", row.ns);
        let all = match stage.instances {
            Some(instances) => all.times(&row_of(stage).count("instances", instances)),
            None => all,
        };
        let sum = |of: &[Figure]| of.iter().map(Figure::value).sum::<f64>();
        let others = f64::from(steps.ms.n) - steps.longest.len() as f64;
        let usual = (all.value() - sum(&each)).max(0.0) / others.max(1.0);
        let is_longer = |it: &Figure| it.value() > OUTLIER_MEDIANS * usual;
        let few: Vec<Figure> = each.into_iter().filter(is_longer).collect();
        if few.is_empty() || sum(&few) < IN_OUTLIERS * all.value() {
            return None;
        }
        let noun = if steps.are_steps() { "step" } else { "instance" };
        let number = Figure::number(few.iter().cloned());
        let n = cells.count("ms.n", steps.ms.n.into());
        let (rest, saved) = rest_and_saving(&few, &all, &n)?;
        let which = match (few.len(), steps.are_steps()) {
            (1, true) => "this step",
            (_, true) => "these steps",
            (1, false) => "this instance",
            (_, false) => "these instances",
        };
        let saving = [saved.short(), Cited::words(which)];
        let text = [number.decimals(0), n.quantity(noun)];
        Some(Self {
            text: Cited::of(", most of it in {} of {}", text),
            is_only: rest.value() < MIN_SAVING_PCT / 100.0 * steps.p50_ms,
            saving: Some(Cited::of("saves at most {} ms in {}.", saving)),
        })
    }
}

/// The longest gap of a member. An older report has its length only if the member is one gap: the
/// member's time is the mean over the stage's instances.
fn longest_gap(it: &LedgerMember, instances: u64) -> Option<i64> {
    let is_one = it.samples == 1;
    it.longest_ns.or_else(|| is_one.then(|| it.ns.saturating_mul(instances as i64)))
}

/// The mean time of a cause in the other steps of `n`, and the excess over it in `few` steps: at
/// most all of the cause's time. `None` if there are no other steps.
fn rest_and_saving(few: &[Figure], all: &Figure, n: &Figure) -> Option<(Figure, Figure)> {
    let in_few = Figure::sum(few.iter().cloned());
    let others = n.minus(&Figure::number(few.iter().cloned()));
    let rest = all.minus(&in_few).over(&others)?;
    let above = Figure::sum(few.iter().map(|it| it.minus(&rest)));
    // The rest is negative if the few have more than all, as on one of several GPUs.
    let saving = Figure::least([in_few, above, all.clone()])?;
    Some((rest, saving))
}

/// Time of a cause in an outlier, milliseconds, with its column. `work` is the cause's largest
/// kernel or copy.
fn time_in(it: &OutlierStep, cause: LedgerCause, work: Option<&str>) -> Option<(String, f64)> {
    if cause.is_idle() {
        let at = it.idle.iter().position(|idle| idle.cause == cause)?;
        return Some((format!("idle.{at}.ms"), it.idle[at].ms));
    }
    // Other causes have only a part of a kernel's time.
    if cause != LedgerCause::LongLaunches {
        return None;
    }
    let longest = it.longest_work.as_deref().filter(|it| Some(*it) == work)?;
    (!longest.is_empty()).then_some(("longest_work_ms".into(), it.longest_work_ms?))
}

/// The remedy of a cause of few steps. Calls that prepare code have theirs.
pub fn advice_of_few<'a>(row: &LedgerRow, usual: &'a str) -> &'a str {
    let is_call = row.cause == LedgerCause::GapLongCall
        && row.largest.as_deref().is_some_and(|it| !it.starts_with(IN_RANGE));
    match row.cause {
        _ if is_call => usual,
        LedgerCause::LongLaunches => usual,
        _ => FEW_STEPS,
    }
}

/// True if code is prepared in nearly each step.
fn is_in_each_step(records: &AnswerRecords, row: &LedgerRow) -> bool {
    let is_code = row.largest.as_deref().is_some_and(|it| it.starts_with(LOADING));
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
