//! Rules on collective operations across ranks.

use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
        units::Nanos,
    },
    trace::Trace,
};

use super::Rule;
use crate::{
    Analysis,
    collectives::{GroupNote, NotJoined, RankVerdict},
    stats::percent,
};

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::COLLECTIVE_STRAGGLER, find: waiting },
    Rule { id: catalogue::COLLECTIVE_SKEW, find: waiting },
    Rule { id: catalogue::COLLECTIVES_NOT_JOINED, find: not_joined },
    Rule { id: catalogue::COLLECTIVES_OF_ONE_RANK, find: not_joined },
    Rule { id: catalogue::COLLECTIVES_UNPAIRED, find: unpaired },
    Rule { id: catalogue::COLLECTIVES_WITHOUT_SIZE, find: without_size },
    Rule { id: catalogue::COLLECTIVE_CLOCKS_DIFFER, find: clocks },
    Rule { id: catalogue::COLLECTIVES_ON_HOST, find: on_host },
];

fn groups(analysis: &Analysis) -> impl Iterator<Item = &GroupNote> {
    analysis.collectives.groups.iter()
}

fn waiting(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |it: &GroupNote| {
        let id = match it.verdict? {
            RankVerdict::OneStraggler => catalogue::COLLECTIVE_STRAGGLER,
            RankVerdict::Rotating => catalogue::COLLECTIVE_SKEW,
            RankVerdict::Balanced | RankVerdict::TooFew => return None,
        };
        let lasts: u64 = it.times_last.iter().sum();
        let most = it.times_last.iter().copied().max()?;
        let rank = it.ranks.get(it.times_last.iter().position(|last| *last == most)?)?;
        let share = percent(it.wait_ns as f64, it.kernel_ns as f64)?;
        let message = match id {
            catalogue::COLLECTIVE_STRAGGLER => format!(
                "{}: rank {rank} is last in {most} of {lasts} collective operations in which ranks \
                 wait; waiting takes {share:.0} % of the time of all.",
                it.group
            ),
            _ => format!(
                "{}: waiting for the last rank takes {share:.0} % of the time of collective \
                 operations; no rank is last in most of the {lasts} in which ranks wait.",
                it.group
            ),
        };
        let mean_ns = it.wait_ns / it.ranks.len().max(1) as i64;
        Some(
            Finding::new(id, message)
                .with("mean wait of a rank, ms", format!("{:.3}", Nanos(mean_ns).as_ms()))
                .with("times last by rank", format!("{:?}", it.times_last)),
        )
    };
    groups(analysis).filter_map(found).collect()
}

fn not_joined(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |it: &GroupNote| {
        let problem = it.problem.as_ref()?;
        let (id, why) = match problem {
            NotJoined::OneRank => (
                catalogue::COLLECTIVES_OF_ONE_RANK,
                "the capture has one rank of the group".to_owned(),
            ),
            other => (catalogue::COLLECTIVES_NOT_JOINED, reason(other)),
        };
        let figures = if it.joined > 0 { "those after it have" } else { "they have" };
        let message = format!(
            "{}: collective operations are not joined across ranks, because {why}; {figures} \
             neither wait nor transfer.",
            it.group
        );
        Some(Finding::new(id, message).with("ranks", format!("{:?}", it.ranks)))
    };
    groups(analysis).filter_map(found).collect()
}

/// The reason in words, after "because".
fn reason(problem: &NotJoined) -> String {
    let us = |ns: i64| format!("{:.1} us", ns as f64 / 1e3);
    match problem {
        NotJoined::OneRank => "the capture has one rank of the group".into(),
        NotJoined::RankTwice { rank } => format!("several files are of rank {rank}"),
        NotJoined::MissingRanks { found, size } => {
            format!("the capture has {found} of {size} ranks")
        }
        NotJoined::NoneNeedsAll => {
            "none of them needs all ranks, so which belong together is unknown".into()
        }
        NotJoined::Counts { least, most } => {
            format!("ranks have different numbers of them ({least} to {most})")
        }
        NotJoined::Kinds { place } => {
            format!("ranks have different operations at number {place}")
        }
        NotJoined::UnknownClocks => {
            "the clocks of the files differ, and the operations have no numbers or are too few \
             to align them"
                .into()
        }
        NotJoined::Spread { spread_ns, median_ns } => format!(
            "the offset of the clocks is uncertain by {}, too much for operations of {}",
            us(*spread_ns),
            us(*median_ns)
        ),
        NotJoined::NotSimultaneous { count, of } => {
            format!("in {count} of {of} pairs a rank ends before another starts")
        }
    }
}

fn unpaired(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |it: &GroupNote| {
        let message = format!(
            "{}: {} numbers of collective operations are not on all ranks, and were left out.",
            it.group,
            digits::count(it.unpaired as u64)
        );
        Finding::new(catalogue::COLLECTIVES_UNPAIRED, message).with("joined", it.joined)
    };
    groups(analysis).filter(|it| it.unpaired > 0).map(found).collect()
}

fn without_size(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let names: Vec<&str> = groups(analysis)
        .filter(|it| it.joined > 0 && !it.has_sizes)
        .map(|it| it.group.as_str())
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "The capture has no sizes of collective operations ({}): their bandwidth is unknown.",
        names.join(", ")
    );
    vec![Finding::new(catalogue::COLLECTIVES_WITHOUT_SIZE, message)]
}

fn clocks(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |it: &GroupNote| {
        let us = |ns: i64| format!("{:.1} us", ns as f64 / 1e3);
        let offsets = it.ranks.iter().zip(&it.clocks).filter(|(_, clock)| clock.is_estimated);
        let listed: Vec<_> = offsets.collect();
        let (_, first) = listed.first()?;
        let widest = listed.iter().map(|(_, clock)| clock.spread_ns).max()?;
        let message = format!(
            "{}: the clocks of ranks differ (by {} or more); they are aligned by the ends of \
             collective operations, uncertain by {}.",
            it.group,
            us(listed.iter().map(|(_, it)| it.ns.abs()).min().unwrap_or(first.ns)),
            us(widest)
        );
        let mut found = Finding::new(catalogue::COLLECTIVE_CLOCKS_DIFFER, message);
        for (rank, clock) in listed.iter().take(8) {
            let text = format!("{} +- {}", us(clock.ns), us(clock.spread_ns));
            found = found.with(&format!("rank {rank}"), text);
        }
        Some(found)
    };
    groups(analysis).filter_map(found).collect()
}

fn on_host(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.timeline else { return Vec::new() };
    let found = |(library, count): (&String, &u64)| {
        let message = format!(
            "{} collective operations ran on the host ({library}): they have no kernels, and are \
             neither joined nor part of device times.",
            digits::count(*count)
        );
        Finding::new(catalogue::COLLECTIVES_ON_HOST, message)
    };
    nsys.collectives.on_host.iter().map(found).collect()
}
