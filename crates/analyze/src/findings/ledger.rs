//! Rules on the causes of the gap ledger: one finding per stage and cause, largest saving first.
//!
//! Small causes are only rows of the ledger. Gaps of decode that a rule of its own reports are not
//! reported twice.

use std::{borrow::Cow, collections::BTreeMap};

use llmprof_core::{
    domain::{
        digits::figure,
        finding::{
            Finding, Saving,
            catalogue::{self, FindingId},
        },
        units::Nanos,
    },
    trace::Trace,
};

use super::{
    Rule,
    saving::{Gaps, MIN_SAVING_PCT, is_worth},
    stage_time::{NEXT_REPLAY, decode_eager, decode_launch_bound},
};
use crate::{
    Analysis,
    ledger::{
        CauseRanges, FewSteps, Ledger, LedgerCause, LedgerMember, LedgerRow, LedgerStage,
        host_copies::HostCopies,
    },
    stages::{BETWEEN_STEPS, DECODE, PREFILL, in_sentence},
    stats::{percent, ratio},
    timeline::gpu::{host_activity::HostActivity, long_calls::LONG_CALL_NS},
};

/// Unexplained time matters from this share, percent.
const UNEXPLAINED_PCT: f64 = 10.0;
/// Kernels that a finding lists.
const LISTED_KERNELS: usize = 3;
/// More of the remedies for time that pinned memory can save.
const PINNED_COPIES: &str = "Copy to and from the host in pinned memory, next to kernels.";
const PINNED_GAPS: &str = "Copy to and from the host in pinned memory, which the host does not \
                           wait for.";

/// The remedy for a range of the program in which the host launches nothing.
const IN_RANGE: &str = "Shorten this range, or run it on another thread ahead of its need, while \
                        the GPU works.";
/// The same of several ranges, and if the cause has the time of calls as well.
const IN_RANGES: &str = "Shorten the ranges in which the GPU idles longest, or run them on another \
                         thread ahead of their need, while the GPU works.";
const IN_RANGE_AND_CALLS: &str = "Shorten the range in which the GPU idles longest, or run it on \
                                  another thread ahead of its need. Make calls that load code, \
                                  compile or allocate before the measured steps, and move calls \
                                  that each step makes to another thread.";
/// The remedies for calls of the operating system: calls that work, and waits.
const IN_OS_CALLS: &str = "Make these calls before the measured steps, or on another thread ahead \
                           of their need, while the GPU works: read and prepare input early, and \
                           write output later.";
const IN_OS_WAITS: &str = "The thread that launches work does nothing meanwhile: find the thread, \
                           process or timer that it waits for, and let this finish earlier, or \
                           wait on another thread.";
/// The remedies for long gaps before a launch: unknown work of the host, and sampled work.
pub(super) const LONG_GAPS: &str = "Find what the host does in these gaps: sample the CPU, or open \
                                    ranges in the program. Then shorten this work, or move it to \
                                    another thread.";
pub(super) const SAMPLED_GAPS: &str =
    "Shorten the host's work in these gaps, or move it to another thread.";
/// The remedy of a cause that few steps have.
pub(super) const FEW_STEPS: &str = "Find what differs there: the others have little of this time.";
/// Gaps longer than this are not the overhead of launches: the host does other work, nanoseconds.
const LONG_GAP_NS: f64 = LONG_CALL_NS as f64;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::LEDGER_LONG_LAUNCHES, find: causes },
    Rule { id: catalogue::LEDGER_COPIES_AND_CASTS, find: causes },
    Rule { id: catalogue::LEDGER_COLLECTIVE_WAIT, find: causes },
    Rule { id: catalogue::LEDGER_COLLECTIVE_TRANSFER, find: causes },
    Rule { id: catalogue::LEDGER_COLLECTIVES, find: causes },
    Rule { id: catalogue::LEDGER_MORE_BYTES, find: causes },
    Rule { id: catalogue::LEDGER_TENSOR_CORES, find: causes },
    Rule { id: catalogue::LEDGER_TILES, find: causes },
    Rule { id: catalogue::LEDGER_WAVES, find: causes },
    Rule { id: catalogue::LEDGER_INSTRUCTIONS, find: causes },
    Rule { id: catalogue::LEDGER_OPERAND_TRAFFIC, find: causes },
    Rule { id: catalogue::LEDGER_MEMORY_TRAFFIC, find: causes },
    Rule { id: catalogue::LEDGER_LATENCY, find: causes },
    Rule { id: catalogue::LEDGER_GAP_LONG_CALL, find: causes },
    Rule { id: catalogue::LEDGER_GAP_HOST, find: causes },
    Rule { id: catalogue::LEDGER_GAP_LAUNCH, find: causes },
    Rule { id: catalogue::LEDGER_GAP_GRAPH_LAUNCH, find: causes },
    Rule { id: catalogue::LEDGER_GAP_SYNC, find: causes },
    Rule { id: catalogue::LEDGER_GAP_COPY, find: causes },
    Rule { id: catalogue::LEDGER_GAP_IN_GRAPH, find: causes },
    Rule { id: catalogue::LEDGER_GAP_QUEUED, find: causes },
    Rule { id: catalogue::LEDGER_OTHER_STAGES, find: causes },
    Rule { id: catalogue::LEDGER_UNEXPLAINED, find: unexplained },
];

/// Findings on the causes that matter, largest saving first.
fn causes(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let reported = decode_launch_bound(analysis, trace).iter().any(is_worth)
        || decode_eager(analysis, trace).iter().any(is_worth);
    let is_reported = |row: &LedgerRow| {
        let launching = matches!(
            row.cause,
            LedgerCause::GapHost | LedgerCause::GapLaunch | LedgerCause::GapGraphLaunch
        );
        reported && launching && row.stage == DECODE
    };
    let rows = analysis.ledger.rows.iter();
    rows.filter(|row| row.cause.is_cause() && !is_reported(row))
        .filter_map(|row| cause(analysis, row))
        .collect()
}

fn cause(analysis: &Analysis, row: &LedgerRow) -> Option<Finding> {
    let stage = analysis.ledger.stages.iter().find(|it| it.stage == row.stage)?;
    let pct = saving_pct(&analysis.ledger, stage, row)?;
    let saving =
        Saving { stage: row.stage.clone(), ms: Some(Nanos(row.max_saving_ns).as_ms()), pct };
    // The same time as on the first page.
    let (at_most, ns, share) = match analysis.ledger.bound_ns(row) {
        Some(ns) => ("At most ", ns, own_pct(&analysis.ledger, stage, ns)?),
        None => ("", row.ns, own_share_pct(&analysis.ledger, row).unwrap_or(0.0)),
    };
    let few = analysis.ledger.few_steps(&analysis.step_times, row);
    let message = format!(
        "{at_most}{share:.0} % of {}, {} ms: {}{}.",
        own_name(&analysis.ledger, &row.stage),
        figure(Nanos(ns).as_ms()),
        host_words(&analysis.ledger, row),
        few.as_ref().map(FewSteps::words).unwrap_or_default()
    );
    let is_of_few = few.is_some_and(|it| it.is_only);
    let is_of_cause = |id: &FindingId| id.id.strip_prefix("ledger_") == Some(row.cause.as_str());
    let id = RULES.iter().map(|rule| rule.id).find(is_of_cause)?;
    let mut found = Finding::new(id, message)
        .with("pass", &row.pass)
        .with("counters", &row.counter)
        .with("samples", row.samples);
    for (at, text) in kernels(analysis, row).into_iter().enumerate() {
        found = found.with(&format!("kernel ({})", at + 1), text);
    }
    if !at_most.is_empty() {
        found = found.with("traced ms", figure(Nanos(row.ns).as_ms()));
    }
    if analysis.ledger.is_of_busiest(row) {
        found = found.with("max saving of", "the busiest GPU");
    }
    if let Some(advice) = advice(&analysis.ledger, row, has_samples(analysis, &row.stage)) {
        found = found.advise(if is_of_few { advice_of_few(row, advice) } else { advice });
    }
    if !is_of_few
        && let Some(copies) = analysis.host_copies.get(&row.stage)
        && let Some(more) = pinned(row, copies, pct)
    {
        let advice = found.advice.as_deref().unwrap_or_default();
        let advice = format!("{advice} {more}");
        let staged = format!("{} of {}", copies.staged, copies.calls);
        found = found
            .advise(advice)
            .with("large copies of pageable memory between host and device", staged);
    }
    Some(found.saves(Some(saving)))
}

/// A cause in words, with the ranges of the program, or the calls of the operating system, that
/// have most of its time.
fn host_words(ledger: &Ledger, row: &LedgerRow) -> Cow<'static, str> {
    if let Some(calls) = ledger.os_calls_of(row) {
        return format!("the host {}", calls.words()).into();
    }
    let Some(ranges) = ledger.ranges_of(row).filter(CauseRanges::are_most) else {
        return row.cause.words().into();
    };
    let calls = if ranges.are_all() { "" } else { " and in long calls" };
    match (ranges.one(), ranges.main()) {
        (Some(range), _) => format!("the host in the range {range}").into(),
        (None, Some(range)) if !ranges.are_all() => {
            format!("the host in the range {range}, most of it, and in long calls").into()
        }
        _ => {
            let shares = together(&ranges, row);
            format!("the host in ranges of the program{calls}{shares}").into()
        }
    }
}

/// The ranges that have most of a cause's time together, with their shares.
fn together(ranges: &CauseRanges, row: &LedgerRow) -> String {
    let share = |(name, it): (&str, &LedgerMember)| {
        Some(format!("{name} {:.0} %", percent(it.ns as f64, row.ns as f64)?))
    };
    let shares: Vec<String> = ranges.together(row).into_iter().filter_map(share).collect();
    if shares.is_empty() { String::new() } else { format!(" ({})", shares.join(", ")) }
}

/// Upper bound of what removing a cause saves, percent of its stage without a named wait.
fn saving_pct(ledger: &Ledger, stage: &LedgerStage, row: &LedgerRow) -> Option<f64> {
    own_pct(ledger, stage, row.max_saving_ns)
}

/// Share of a time in its stage without a named wait, percent.
fn own_pct(ledger: &Ledger, stage: &LedgerStage, ns: i64) -> Option<f64> {
    percent(ns as f64, stage.measured_ns as f64 * ledger.own_part(&stage.stage))
}

/// Share of a cause in its stage without a named wait, percent.
fn own_share_pct(ledger: &Ledger, row: &LedgerRow) -> Option<f64> {
    ratio(row.share_pct?, ledger.own_part(&row.stage))
}

/// The stage as it stands in a sentence, with the wait that its shares leave out.
fn own_name(ledger: &Ledger, stage: &str) -> String {
    match ledger.named_wait(stage) {
        Some(_) => format!("{} without its unrecorded wait", in_sentence(stage)),
        None => in_sentence(stage).to_owned(),
    }
}

/// True if the remedy of a cause can save enough of its stage.
pub fn is_worth_advice(ledger: &Ledger, stage: &LedgerStage, row: &LedgerRow) -> bool {
    saving_pct(ledger, stage, row).is_some_and(|pct| pct >= MIN_SAVING_PCT)
}

/// Pinned memory as a further remedy, if it can save enough: of copies, the time above the bytes'
/// time on the link; of gaps in copying calls, as many as there are large copies of pageable
/// memory.
fn pinned(row: &LedgerRow, copies: &HostCopies, pct: f64) -> Option<&'static str> {
    let (saving_pct, more) = match row.cause {
        LedgerCause::CopiesAndCasts => (copies.saving_pct, PINNED_COPIES),
        LedgerCause::GapCopy if row.stage != BETWEEN_STEPS => {
            (pct * copies.staged_share(), PINNED_GAPS)
        }
        _ => return None,
    };
    (saving_pct >= MIN_SAVING_PCT).then_some(more)
}

/// True if samples name the functions of the host in the gaps of a stage.
fn has_samples(analysis: &Analysis, stage: &str) -> bool {
    let host = analysis.host_cpu.as_ref();
    host.is_some_and(|it| it.functions.iter().any(|it| it.stage == stage))
}

/// The remedy for decode that idles, if most of the idle time is in long gaps.
pub(super) fn advice_on_long_gaps(analysis: &Analysis, gaps: &Gaps) -> Option<&'static str> {
    let mut rows = analysis.ledger.of_stage(DECODE);
    let row = rows.find(|it| it.cause == LedgerCause::GapHost)?;
    let is_most = 2.0 * gaps.host_ms > gaps.ms;
    let advice = advice(&analysis.ledger, row, has_samples(analysis, DECODE));
    advice.filter(|_| is_most && has_long_gaps(&analysis.ledger, DECODE))
}

/// True if most of the time before launches is in gaps that are long on average: graphs and fewer
/// launches do not shorten them.
fn has_long_gaps(ledger: &Ledger, stage: &str) -> bool {
    let all = || ledger.members(stage, LedgerCause::GapHost);
    let is_long = |it: &&LedgerMember| it.ns as f64 > LONG_GAP_NS * ledger.gaps_and_parts(it);
    let sum = |ns: i64, it: &LedgerMember| ns + it.ns;
    2 * all().filter(is_long).fold(0, sum) > all().fold(0, sum)
}

/// True if more gaps of a stage of many steps are at launches of graphs, or inside graphs, than at
/// launches of single kernels.
fn has_replays(ledger: &Ledger, stage: &str) -> bool {
    if stage == PREFILL {
        return false;
    }
    let gaps = |cause: LedgerCause| {
        let rows = ledger.of_stage(stage).filter(|it| it.cause == cause);
        rows.map(|it| it.samples + it.gap_parts).sum::<u64>()
    };
    let at_graphs = gaps(LedgerCause::GapInGraph) + gaps(LedgerCause::GapGraphLaunch);
    at_graphs > gaps(LedgerCause::GapLaunch)
}

/// The remedy of a cause, if there is one. Between steps, an engine schedules. `is_sampled` if
/// samples name the functions of the host in the gaps of the stage.
pub fn advice(ledger: &Ledger, row: &LedgerRow, is_sampled: bool) -> Option<&'static str> {
    // A long call has a remedy of its own.
    let is_of_host = row.cause.is_of_host() && row.cause != LedgerCause::GapLongCall;
    if row.stage == BETWEEN_STEPS && is_of_host {
        return Some(
            "Schedule the next step while the GPU works on this one (asynchronous or overlapped \
             scheduling), and keep sampled tokens on the device.",
        );
    }
    let ranges = ledger.ranges_of(row);
    if ranges.is_some_and(|it| it.one().is_some()) {
        return Some(IN_RANGE);
    }
    if let Some(calls) = ledger.os_calls_of(row) {
        return Some(if calls.are_waits { IN_OS_WAITS } else { IN_OS_CALLS });
    }
    let is_in_range = row.largest.as_deref().map(HostActivity::of) == Some(HostActivity::Range);
    // A range is not a call that only the first step makes.
    let are_ranges = ranges.is_some_and(|it| it.are_all());
    let has_ranges = is_in_range || ranges.is_some_and(|it| it.are_most());
    match row.cause {
        LedgerCause::GapLongCall if are_ranges => return Some(IN_RANGES),
        LedgerCause::GapLongCall if has_ranges => return Some(IN_RANGE_AND_CALLS),
        LedgerCause::GapHost if has_replays(ledger, &row.stage) => return Some(NEXT_REPLAY),
        LedgerCause::GapHost if has_long_gaps(ledger, &row.stage) => {
            return Some(if is_sampled { SAMPLED_GAPS } else { LONG_GAPS });
        }
        _ => {}
    }
    let of_work = row.cause.remedy_by(row.largest.as_deref());
    of_work.or_else(|| catalogue::named(&format!("ledger_{}", row.cause.as_str()))?.advice)
}

/// The remedy of a cause that few steps have. Calls keep theirs.
pub fn advice_of_few<'a>(row: &LedgerRow, usual: &'a str) -> &'a str {
    let is_call = row.cause == LedgerCause::GapLongCall
        && row.largest.as_deref().is_some_and(|it| HostActivity::of(it) != HostActivity::Range);
    match row.cause {
        _ if is_call => usual,
        LedgerCause::LongLaunches => usual,
        _ => FEW_STEPS,
    }
}

/// The largest kernels of a row with their time, and the evidence of their largest member, whose
/// time is another one if the kernel has several.
fn kernels(analysis: &Analysis, row: &LedgerRow) -> Vec<String> {
    let mut by_name: BTreeMap<&str, (i64, Vec<&LedgerMember>)> = BTreeMap::new();
    for it in analysis.ledger.members(&row.stage, row.cause) {
        let name = it.kernel.as_deref().or(it.operator.as_deref()).unwrap_or("start of the stage");
        let (ns, members) = by_name.entry(name).or_default();
        *ns += it.ns;
        members.push(it);
    }
    let mut all: Vec<_> = by_name.into_iter().collect();
    all.sort_by_key(|(_, (ns, _))| std::cmp::Reverse(*ns));
    let ms = |ns: i64| figure(Nanos(ns).as_ms());
    let text = |(name, (ns, members)): &(&str, (i64, Vec<&LedgerMember>))| {
        let largest = members.iter().max_by_key(|it| it.ns)?;
        let of_largest = match members.len() {
            1 => String::new(),
            _ => {
                let part = analysis.ledger.part_name(largest, LedgerMember::name);
                format!("; largest part: {part}, {} ms", ms(largest.ns))
            }
        };
        Some(format!("{name}, {} ms{of_largest}: {}", ms(*ns), largest.evidence))
    };
    all.iter().take(LISTED_KERNELS).filter_map(text).collect()
}

fn unexplained(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |row: &LedgerRow| {
        let share = own_share_pct(&analysis.ledger, row).filter(|pct| *pct >= UNEXPLAINED_PCT)?;
        let stage = analysis.ledger.stages.iter().find(|it| it.stage == row.stage)?;
        stage.floor_of?;
        let message = format!(
            "No evidence explains {share:.0} % of the time of {}.",
            own_name(&analysis.ledger, &row.stage)
        );
        let mut found = Finding::new(catalogue::LEDGER_UNEXPLAINED, message)
            .with("ms", format!("{:.3}", Nanos(row.ns).as_ms()));
        for (at, text) in kernels(analysis, row).into_iter().enumerate() {
            found = found.with(&format!("kernel ({})", at + 1), text);
        }
        Some(found)
    };
    let rows = analysis.ledger.rows.iter();
    rows.filter(|row| row.cause == LedgerCause::Unexplained).filter_map(found).collect()
}

/// Sorts findings of the ledger by saving, in the places that they have among the others.
pub fn largest_first(found: &mut [Finding]) {
    let is_cause = |it: &Finding| RULES.iter().any(|rule| it.id == rule.id);
    let Some(first) = found.iter().position(is_cause) else { return };
    let count = found[first..].iter().take_while(|it| is_cause(it)).count();
    let saving = |it: &Finding| it.max_saving.as_ref().and_then(|it| it.ms).unwrap_or(0.0);
    found[first..first + count].sort_by(|a, b| saving(b).total_cmp(&saving(a)));
}
