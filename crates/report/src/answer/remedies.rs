//! Remedies of reasons.

use llmprof_analyze::{
    findings,
    ledger::{LedgerCause, LedgerRow, LedgerStage},
    stages::DECODE,
    timeline::gpu::long_calls::LOADING,
};
use llmprof_core::domain::{
    finding::{
        Finding,
        catalogue::{self, FindingId},
    },
    units::Nanos,
};

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    stage_time::row_of_steps,
    times::row_of,
};

/// Min part of a cause's time in outliers that it is a cause of these alone.
const IN_OUTLIERS: f64 = 0.5;
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
    /// The advice, unless a reason before this one has it.
    pub fn text(self, is_new: bool) -> Cited {
        match (is_new, self.saving) {
            (true, None) => Cited::name(self.advice),
            (true, Some(saving)) => Cited::of("{} This {}", [Cited::name(self.advice), saving]),
            (false, None) => Cited::words("The same remedy applies."),
            (false, Some(saving)) => Cited::of("The same remedy {}", [saving]),
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

/// The steps that have most of the time of a long call, if these are outliers: a usual step has
/// little of it.
pub fn in_outliers(records: &AnswerRecords, stage: &LedgerStage, row: &LedgerRow) -> Option<Cited> {
    let steps = records.step_times.iter().find(|it| it.stage == row.stage)?;
    let of_outliers: f64 = steps.longest.iter().filter_map(|it| it.host_call_ms).sum();
    let all = Nanos(row.ns).as_ms() * stage.instances.unwrap_or(1) as f64;
    let is_theirs = row.cause == LedgerCause::GapLongCall && of_outliers >= IN_OUTLIERS * all;
    is_theirs.then(|| {
        let cells = row_of_steps(steps);
        let noun = if steps.are_steps() { "step" } else { "instance" };
        let outliers = cells.count("outliers", steps.outliers).decimals(0);
        let all = cells.count("ms.n", steps.ms.n.into()).quantity(noun);
        Cited::of(", most of it in {} of {}", [outliers, all])
    })
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
    let of_cause = || findings::ledger::advice(records.ledger, row);
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
}
