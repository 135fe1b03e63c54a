//! Causes of steps that take much longer than others: the ledger's causes of idle time with the
//! calls of the host, captures of graphs, single launches instead of a graph, and the work of the
//! GPU.

use llmprof_analyze::{
    ledger::{LedgerCause, length_of},
    stages::step_times::{OutlierStep, StepTimes},
    step_batches::common_batch,
};
use llmprof_core::{
    domain::finding::{
        Finding,
        catalogue::{self, FindingId},
    },
    trace::{collectives::CollectiveKind, runtime_call::CallKind},
};

use super::{
    AnswerRecords,
    cause_words::plain,
    cited::{Cited, Figure},
    on_findings::lacks_work,
    outliers::{LISTED, batches},
    stage_time::row_of_steps,
    steps::row_of,
};
use crate::format::{count, short_name, work_name};

/// Passes of the draft model, of the mean of all steps, above which they explain an outlier.
const MANY_DRAFTS: f64 = 1.5;

/// An outlier and its place among the longest.
type Listed<'a> = (usize, &'a OutlierStep);

/// Times of one name in outliers.
struct Named {
    name: String,
    ms: Vec<Figure>,
    /// The time of this name in the other steps of each outlier's process.
    usual_ms: Vec<Option<Figure>>,
}

impl Named {
    /// The usual time of each outlier in turn, or the one of all that reads the same; `None` if one
    /// is unknown.
    fn usual(&self) -> Option<Cited> {
        let each = self.usual_ms.iter().map(|it| Some(length(it.clone()?)));
        let mut each: Vec<Cited> = each.collect::<Option<_>>()?;
        if each.windows(2).all(|pair| pair[0].as_str() == pair[1].as_str()) {
            each.truncate(1);
        }
        Some(Cited::of("; usually {}", [Cited::list(each, ", ")]))
    }
}

fn by_name(times: impl Iterator<Item = (String, Figure, Option<Figure>)>) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
    for (name, ms, usual_ms) in times {
        match all.iter_mut().find(|known| known.name == name) {
            Some(known) => {
                known.ms.push(ms);
                known.usual_ms.push(usual_ms);
            }
            None => all.push(Named { name, ms: vec![ms], usual_ms: vec![usual_ms] }),
        }
    }
    all
}

/// The causes of outliers, each sentence after a space.
pub fn sentences(records: &AnswerRecords, steps: &StepTimes) -> Cited {
    let listed: Vec<Listed> = steps.longest.iter().take(LISTED).enumerate().collect();
    if !listed.iter().any(|it| is_explained(it.1))
        && let Some(drafts) = drafts(steps, records)
    {
        return drafts;
    }
    let mut all = Cited::default();
    // Launches of a step that captures a graph are recorded into it.
    let (captured, others): (Vec<Listed>, Vec<Listed>) =
        listed.iter().copied().partition(|it| it.1.captures.is_some());
    let parts = [
        captures(steps, &captured),
        singly(steps, &others),
        calls(steps, &others),
        idle(steps, &others),
        works(steps, &others),
    ];
    parts.into_iter().flatten().for_each(|it| all.push(it));
    if !listed.iter().any(|it| is_explained(it.1)) {
        all.push(Cited::of(unnamed_delay(steps, records), [which(steps, listed_ms(steps))]));
    }
    all
}

/// True if a call, work, captures of graphs, single launches or the cause of its idle time explain
/// an outlier.
pub fn is_explained(it: &OutlierStep) -> bool {
    it.host_call.is_some()
        || it.longest_work.is_some()
        || it.single_launches.is_some()
        || it.captures.is_some()
        || it.cause.is_some_and(|cause| cause != LedgerCause::GapHost)
}

/// Times of the listed outliers.
fn listed_ms(steps: &StepTimes) -> impl Iterator<Item = Figure> {
    let ms = move |(at, it): (usize, &OutlierStep)| {
        row_of_steps(steps).figure(format!("longest.{at}.ms"), it.ms)
    };
    steps.longest.iter().take(LISTED).enumerate().map(ms)
}

/// Words for the listed outliers that have these figures: nothing is known of outliers that are not
/// listed.
fn which(steps: &StepTimes, figures: impl Iterator<Item = Figure>) -> Cited {
    let (number, listed) = (Figure::number(figures), Figure::number(listed_ms(steps)));
    let (named, known) = (number.value() as u64, listed.value() as u64);
    let shown = |it: Figure| it.shown(|it| count(it as u64));
    match (named == known, known == steps.outliers || known == 0) {
        (true, true) if steps.outliers == 1 => Cited::words("it"),
        (true, true) => Cited::words("them"),
        (false, true) => Cited::of("{} of them", [shown(number)]),
        (true, false) if known == 1 => Cited::words("the longest"),
        (true, false) => Cited::of("the {} longest", [shown(listed)]),
        (false, false) => Cited::of("{} of the {} longest", [shown(number), shown(listed)]),
    }
}

/// A time of some milliseconds, in its unit.
fn length(ms: Figure) -> Cited {
    ms.shown(|ms| length_of((ms * 1e6).round() as i64))
}

/// A sentence on the outliers that have these names, with their times.
fn sentence(steps: &StepTimes, words: &'static str, named: &[Named]) -> Option<Cited> {
    let each = named.iter().map(|it| {
        let ms = Cited::list(it.ms.iter().cloned().map(length), ", ");
        Cited::of("{} ({}{})", [Cited::name(&it.name), ms, it.usual().unwrap_or_default()])
    });
    let which = which(steps, named.iter().flat_map(|it| it.ms.iter().cloned()));
    let each = Cited::list(each, "; ");
    (!named.is_empty()).then(|| Cited::of(words, [which, each]))
}

/// Outliers in which the host captures graphs.
fn captures(steps: &StepTimes, listed: &[Listed]) -> Option<Cited> {
    let row = row_of_steps(steps);
    let of = |(at, it): &Listed| {
        let graphs = row.count(format!("longest.{at}.captures"), it.captures?);
        let ms = row.figure(format!("longest.{at}.capture_ms"), it.capture_ms?);
        Some((graphs, ms))
    };
    let each: Vec<(Figure, Figure)> = listed.iter().filter_map(of).collect();
    let which = which(steps, each.iter().map(|it| it.0.clone()));
    let each: Vec<Cited> = each
        .into_iter()
        .map(|(graphs, ms)| Cited::of("{} ({})", [graphs.quantity("graph"), length(ms)]))
        .collect();
    (!each.is_empty())
        .then(|| Cited::of(" In {} the host captures {}.", [which, Cited::list(each, ", ")]))
}

/// Outliers that launch kernels one by one.
fn singly(steps: &StepTimes, listed: &[Listed]) -> Option<Cited> {
    let row = row_of_steps(steps);
    let figures = listed.iter().filter_map(|(at, it)| {
        Some(row.count(format!("longest.{at}.single_launches"), it.single_launches?))
    });
    let figures: Vec<Figure> = figures.collect();
    let shown = figures.iter().cloned().map(|it| it.shown(|it| count(it as u64)));
    let of_process = match (steps.is_by_process(), figures.len()) {
        (false, _) => "",
        (true, 1) => " of the process",
        (true, _) => " of their processes",
    };
    let parts = [
        which(steps, figures.iter().cloned()),
        Cited::list(shown, ", "),
        Cited::words(if steps.are_steps() { "steps" } else { "instances" }),
        Cited::words(of_process),
    ];
    (!figures.is_empty()).then(|| {
        Cited::of(
            " In {} the host launches {} kernels one by one; the other {}{} replay a graph.",
            parts,
        )
    })
}

/// Words for the host's activity in a call that names an outlier.
const HOST_WORDS: [&str; 5] = [
    " In {} the GPU idles while the host launches nothing, in {}.",
    " In {} the GPU idles while the host waits for it, in {}.",
    " In {} the GPU idles while the host copies data, in {}.",
    " In {} the GPU idles while the host launches the next work, in {}.",
    " In {} the GPU idles while the host launches a graph, in {}.",
];

/// The words for a call: by the cause, or by the call if it launches work.
fn host_words(cause: Option<LedgerCause>, call: &str) -> &'static str {
    let [nothing, waits, copies, launches, graph] = HOST_WORDS;
    match (cause, CallKind::of(call)) {
        (Some(LedgerCause::GapSync), _) => waits,
        (Some(LedgerCause::GapCopy), _) => copies,
        (Some(LedgerCause::GapGraphLaunch), _) | (_, CallKind::Graph) => graph,
        (Some(LedgerCause::GapLaunch), _) | (_, CallKind::Kernel) => launches,
        _ => nothing,
    }
}

/// The calls of the host in outliers.
fn calls(steps: &StepTimes, listed: &[Listed]) -> Option<Cited> {
    let row = row_of_steps(steps);
    let mut all = Cited::default();
    for words in HOST_WORDS {
        let named = by_name(listed.iter().filter_map(|(at, it)| {
            let (call, ms) = it.host_call.as_deref().zip(it.host_call_ms)?;
            let figure = |column: &str, ms| row.figure(format!("longest.{at}.{column}"), ms);
            let usual = it.usual_call_ms.map(|ms| figure("usual_call_ms", ms));
            let is_of_words = host_words(it.cause, call) == words;
            is_of_words.then(|| (short_name(call), figure("host_call_ms", ms), usual))
        }));
        if let Some(it) = sentence(steps, words, &named) {
            all.push(it);
        }
    }
    Some(all)
}

/// The causes of idle time in outliers without a call that names it.
fn idle(steps: &StepTimes, listed: &[Listed]) -> Option<Cited> {
    let row = row_of_steps(steps);
    let named = by_name(listed.iter().filter_map(|(at, it)| {
        let cause = it.cause.filter(|_| it.host_call.is_none())?;
        let place = it.idle.iter().position(|idle| idle.cause == cause)?;
        let ms = row.figure(format!("longest.{at}.idle.{place}.ms"), it.idle[place].ms);
        let words = plain(cause);
        let words = match cause.is_of_recording() {
            true => format!("the GPU idles because of {words}"),
            false => words.to_owned(),
        };
        Some((words, ms, None))
    }));
    sentence(steps, " In {} {}.", &named)
}

/// The work of the GPU in outliers. Kernels of collective operations wait in it.
fn works(steps: &StepTimes, listed: &[Listed]) -> Option<Cited> {
    let row = row_of_steps(steps);
    let mut all = Cited::default();
    for (is_collective, words) in [
        (false, " In {} the GPU works longer, most of all in {}."),
        (true, " In {} the GPU waits for other ranks or transfers, most of all in {}."),
    ] {
        let named = by_name(listed.iter().filter_map(|(at, it)| {
            let (work, ms) = it.longest_work.as_deref().zip(it.longest_work_ms)?;
            let figure = |column: &str, ms| row.figure(format!("longest.{at}.{column}"), ms);
            let usual = it.usual_work_ms.map(|ms| figure("usual_work_ms", ms));
            let is_of_words = CollectiveKind::of_kernel(work).is_some() == is_collective;
            is_of_words.then(|| (work_name(work), figure("longest_work_ms", ms), usual))
        }));
        if let Some(it) = sentence(steps, words, &named) {
            all.push(it);
        }
    }
    Some(all)
}

/// The delay of outliers in which nothing is named. The page has conditions of the same time, which
/// this sentence must not contradict.
fn unnamed_delay(steps: &StepTimes, records: &AnswerRecords) -> &'static str {
    const OFF_CORE: [FindingId; 2] =
        [catalogue::LAUNCHING_THREAD_DISPLACED, catalogue::LAUNCHING_THREAD_OFF_CORE];
    let is_off_core = |it: &Finding| {
        let is_of_stage = it.evidence.get("stage") == Some(&steps.stage);
        is_of_stage && OFF_CORE.iter().any(|id| it.id == *id)
    };
    if records.findings.iter().any(is_off_core) {
        return " The thread that launches work was off its core at times, which may have delayed \
                {}.";
    }
    if lacks_work(records.findings) {
        return " No cause can be attributed to {}: kernels or calls are missing.";
    }
    match records.only_traced {
        true => " No operator, range or call of the runtime explains {}.",
        false if records.findings.iter().any(|it| it.id == catalogue::HOST_BUSY) => {
            " The host was busy meanwhile, which may have delayed {}."
        }
        false => " What delayed {} is not recorded.",
    }
}

/// The passes of the draft model in outliers, if they have many more than steps have on average.
fn drafts(steps: &StepTimes, records: &AnswerRecords) -> Option<Cited> {
    let common = common_batch(batches(records, &steps.stage))?;
    let mean = common.drafts?;
    let is_more = |it: &&OutlierStep| it.drafts.is_some_and(|it| it as f64 > MANY_DRAFTS * mean);
    let listed = || steps.longest.iter().take(LISTED);
    let row = row_of_steps(steps);
    let number = |(at, it): (usize, &OutlierStep)| {
        let drafts = row.count(format!("longest.{at}.drafts"), it.drafts?);
        Some(drafts.shown(|it| count(it as u64)))
    };
    listed().all(|it| is_more(&it)).then(|| {
        Cited::of(
            " The draft model runs {} times in {}, {} times on average.",
            [
                Cited::list(listed().enumerate().filter_map(number), ", "),
                which(steps, listed_ms(steps)),
                row_of(common).figure("drafts", mean).decimals(1),
            ],
        )
    })
}

#[cfg(test)]
mod tests;
