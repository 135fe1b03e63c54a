//! The largest causes of the time above the floor, in words for a reader who knows no CUDA, each
//! with its evidence and what to try.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_analyze::{
    findings::ledger::advice_of_few,
    ledger::{Ledger, LedgerCause, LedgerMember, LedgerRow, SAMPLED_PASS},
};
use llmprof_core::domain::finding::{Finding, catalogue};
use serde::{Serialize, Serializer};

use super::{
    AnswerRecords,
    base::Base,
    cause_words,
    cited::{Cited, Figure},
    remedies::{FewSteps, Remedy, advice, taken},
    times::{is_idle, row_of, row_of_cause},
};

/// Listed reasons.
const REASONS: usize = 3;
/// The remedy that the reason right before has, and the only other one that can be meant.
const SAME: &str = "The same remedy";
const FIRST: &str = "The remedy of the first cause";
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
    fn of(ledger: &Ledger, row: &LedgerRow) -> Self {
        let cells = row_of_cause(row);
        let time = cells.ns("ns", row.ns);
        // A saving that the busiest GPU limits is less than the bound of the time.
        let is_saving = !ledger.is_of_busiest(row) && row.max_saving_ns < row.ns;
        match ledger.bound_ns(row) {
            Some(_) if is_saving => Self::AtMost(cells.ns("max_saving_ns", row.max_saving_ns)),
            Some(_) => bound(ledger, row, &time).map_or(Self::Is(time), Self::AtMost),
            None => Self::Is(time),
        }
    }

    const fn figure(&self) -> &Figure {
        match self {
            Self::Is(figure) | Self::AtMost(figure) => figure,
        }
    }
}

/// [`Ledger::bound_ns`] by its cells: the cause's part of the idle time that the stage has at most.
fn bound(ledger: &Ledger, row: &LedgerRow, time: &Figure) -> Option<Figure> {
    let stage = ledger.stages.iter().find(|it| it.stage == row.stage)?;
    let cells = row_of(stage);
    let of = |is_of: fn(LedgerCause) -> bool| {
        let rows = ledger.of_stage(&row.stage).filter(move |it| is_of(it.cause));
        rows.map(|it| row_of_cause(it).ns("ns", it.ns))
    };
    let gaps = Figure::sum(of(LedgerCause::is_gap));
    let profiler = of(|it| it == LedgerCause::ProfilerOverhead);
    let others = [gaps.clone(), cells.ns("measured_ns", stage.measured_ns)];
    let all = Figure::sum(others.into_iter().chain(profiler));
    let possible = all.minus(&cells.ns("traced_ns", stage.traced_ns?));
    time.times(&possible).over(&gaps)
}

/// The largest cause of each stage, and the largest others. Time without a cause is listed only
/// with the largest cause of its stage, unless it is longer than all causes.
pub fn reasons(records: &AnswerRecords) -> Vec<Reason> {
    let ledger = records.ledger;
    let is_reason = |cause: LedgerCause| {
        cause == LedgerCause::Unexplained || cause.is_cause() && !cause.is_of_recording()
    };
    let mut rows: Vec<(CauseTime, &LedgerRow)> = ledger
        .rows
        .iter()
        .filter(|it| is_reason(it.cause) && !is_idle(&it.stage))
        .map(|it| (CauseTime::of(ledger, it), it))
        .collect();
    // Over all instances: a stage may have one, and another one hundreds.
    let total = |(time, row): &(CauseTime, &LedgerRow)| {
        let stage = ledger.stages.iter().find(|it| it.stage == row.stage);
        time.figure().value() * stage.and_then(|it| it.instances).unwrap_or(1) as f64
    };
    let all: f64 = rows.iter().map(total).sum();
    // The sum of each stage's causes, and its largest cause.
    let mut causes: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for it in rows.iter().filter(|it| it.1.cause != LedgerCause::Unexplained) {
        let (sum, largest) = causes.entry(&it.1.stage).or_default();
        *sum += total(it);
        *largest = largest.max(total(it));
    }
    let shorter_than_causes = |it: &(CauseTime, &LedgerRow)| {
        let (sum, largest) = causes.get(it.1.stage.as_str())?;
        (it.1.cause == LedgerCause::Unexplained && total(it) < *sum).then_some(*largest)
    };
    let is_less = |it: &(CauseTime, &LedgerRow)| shorter_than_causes(it).is_some();
    let rank = |it: &(CauseTime, &LedgerRow)| {
        let time = total(it);
        shorter_than_causes(it).map_or(time, |largest| largest.min(time))
    };
    rows.sort_by(|a, b| rank(b).total_cmp(&rank(a)).then(is_less(a).cmp(&is_less(b))));
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
    let mut given: Vec<Option<&str>> = Vec::new();
    let with_advice = listed.into_iter().map(|(_, (reason, remedy))| {
        let advice = remedy.as_ref().map(|it| it.advice);
        let is_given = advice.is_some() && given.contains(&advice);
        let is_last = given.last() == Some(&advice);
        given.push(advice);
        let before = is_given.then_some(if is_last { SAME } else { FIRST });
        let advice = remedy.map(|it| it.text(before));
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
    let cause = cause_words::of_row(ledger, row);
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
            None => Remedy { advice, saving: saving.map(|it| base.saves(ledger, &it, row)) },
        }
    });
    let member = ledger.members(&row.stage, row.cause).next();
    let evidence = member.map(|it| evidence(records, it, row, &base)).unwrap_or_default();
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
fn evidence(records: &AnswerRecords, it: &LedgerMember, row: &LedgerRow, base: &Base) -> String {
    let name = match records.kernel_names.of_part(records.ledger, it) {
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
    let pass = match row.pass.as_str() {
        "" => String::new(),
        pass => format!(" ({})", pass.replace(SAMPLED_PASS, "sampled GPU metrics")),
    };
    format!("{name}{time}: {why}{pass}.")
}

#[cfg(test)]
mod tests;
