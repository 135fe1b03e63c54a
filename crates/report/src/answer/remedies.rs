//! Remedies of reasons, and the upper bounds of what they save.

use llmprof_analyze::{
    findings,
    ledger::{LedgerCause, LedgerRow, LedgerStage, LedgerUnit},
    stages::DECODE,
    timeline::gpu::long_calls::LOADING,
};
use llmprof_core::domain::{
    finding::catalogue::{self, FindingId},
    units::Nanos,
};

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    stage_time::{is_mean_stated, row_of_steps},
    times::row_of,
};

/// Min part of a cause's time in outliers that it is a cause of these alone.
const IN_OUTLIERS: f64 = 0.5;
/// Min gaps per step of a cause that recurs.
const RECURRING: f64 = 0.8;
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

/// The upper bound of a saving, as the end of a sentence: of the time that the page states, in its
/// unit, or as a share if sentences on steps or a median have the times.
pub fn saved(
    records: &AnswerRecords,
    stage: &LedgerStage,
    saving: &Figure,
    (whole, base): (&Figure, &Cited),
) -> Option<Cited> {
    if !is_mean_stated(records, &stage.stage) {
        let share = saving.share_of(whole)?.text();
        return Some(Cited::of("saves at most {} of {}.", [share, base.clone()]));
    }
    let is_step = stage.unit == LedgerUnit::Step;
    if let Some(steps) = stage.steps.filter(|it| is_step || *it > 1 && stage.stage == DECODE) {
        let steps = row_of(stage).count("steps", steps);
        let [saving, whole] = [saving.over(&steps)?.short(), whole.over(&steps)?.short()];
        return Some(Cited::of("saves at most {} of {} ms of a decode step.", [saving, whole]));
    }
    let parts = [saving.clone().short(), whole.clone().short(), base.clone()];
    Some(Cited::of("saves at most {} of {} ms of {}.", parts))
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

/// True if nearly each step has a gap in which code is prepared: there are as many, and no step is
/// much shorter than one.
fn is_in_each_step(records: &AnswerRecords, row: &LedgerRow) -> bool {
    let is_code = row.largest.as_deref().is_some_and(|it| it.starts_with(LOADING));
    let stage = records.ledger.stages.iter().find(|it| it.stage == row.stage);
    let instances = stage.and_then(|it| it.instances).unwrap_or(1) as f64;
    let gap_ms = Nanos(row.ns).as_ms() * instances / row.samples as f64;
    let mut steps = records.step_times.iter().filter(|it| it.stage == row.stage);
    is_code
        && steps.any(|it| {
            it.are_steps()
                && row.samples as f64 >= RECURRING * f64::from(it.ms.n)
                && it.ms.min >= gap_ms / 2.0
        })
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
    known.or_else(|| findings::ledger::advice(row)).filter(|_| row.max_saving_ns > 0)
}
