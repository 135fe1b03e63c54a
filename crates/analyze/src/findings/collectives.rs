//! Rules on collective operations across ranks.

use llmprof_core::{
    domain::{
        finding::{Finding, Severity},
        units::Nanos,
    },
    trace::Trace,
};

use super::{Rule, finding};
use crate::{
    Analysis,
    collectives::{GroupNote, NotJoined, RankVerdict},
    stats::percent,
};
use Severity::{Info, Warning};

pub const RULES: &[Rule] = &[
    Rule {
        id: "collective_straggler",
        severity: Warning,
        fires_on: "ranks wait at least 10 % of the time of their collective operations, and one \
                   rank is last in most of them",
        advice: "Look at that rank's work before its collective operations: an uneven share, \
                 another clock of its GPU, a slower host.",
        max_saving: Some("the mean wait of the ranks"),
        find: waiting,
    },
    Rule {
        id: "collective_skew",
        severity: Info,
        fires_on: "ranks wait at least 10 % of the time of their collective operations, and \
                   different ranks are last",
        advice: "Divide each step's work evenly over the ranks, and keep their hosts quiet.",
        max_saving: Some("the mean wait of the ranks"),
        find: waiting,
    },
    Rule {
        id: "collectives_not_joined",
        severity: Warning,
        fires_on: "collective operations of a group cannot be paired across its ranks",
        advice: "Record all ranks together, from the same step to the same step.",
        max_saving: None,
        find: not_joined,
    },
    Rule {
        id: "collectives_of_one_rank",
        severity: Info,
        fires_on: "the capture has collective operations of one rank alone",
        advice: "Import the captures of all ranks together for waits, transfers and bandwidths.",
        max_saving: None,
        find: not_joined,
    },
    Rule {
        id: "collectives_unpaired",
        severity: Info,
        fires_on: "some rank lacks numbers of collective operations that others have",
        advice: "Record all ranks from the same step to the same step.",
        max_saving: None,
        find: unpaired,
    },
    Rule {
        id: "collectives_without_size",
        severity: Info,
        fires_on: "collective operations are joined, and their sizes are not recorded",
        advice: "Record with the profiler of PyTorch, which writes the sizes: kernels have none.",
        max_saving: None,
        find: without_size,
    },
    Rule {
        id: "collective_clocks_differ",
        severity: Info,
        fires_on: "the clocks of ranks differ by more than 50 us, or contradict each other",
        advice: "Waits and transfers are uncertain by the spread of the offset.",
        max_saving: None,
        find: clocks,
    },
    Rule {
        id: "collectives_on_host",
        severity: Info,
        fires_on: "collective operations ran on the host",
        advice: "Use the backend nccl for tensors on GPUs.",
        max_saving: None,
        find: on_host,
    },
];

fn groups(analysis: &Analysis) -> impl Iterator<Item = &GroupNote> {
    analysis.collectives.groups.iter()
}

fn waiting(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |it: &GroupNote| {
        let id = match it.verdict? {
            RankVerdict::OneStraggler => "collective_straggler",
            RankVerdict::Rotating => "collective_skew",
            RankVerdict::Balanced | RankVerdict::TooFew => return None,
        };
        let lasts: u64 = it.times_last.iter().sum();
        let most = it.times_last.iter().copied().max()?;
        let rank = it.ranks.get(it.times_last.iter().position(|last| *last == most)?)?;
        let share = percent(it.wait_ns as f64, it.kernel_ns as f64)?;
        let message = match id {
            "collective_straggler" => format!(
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
            finding(id, message)
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
            NotJoined::OneRank => {
                ("collectives_of_one_rank", "the capture has one rank of the group".to_owned())
            }
            other => ("collectives_not_joined", reason(other)),
        };
        let figures = if it.joined > 0 { "those after it have" } else { "they have" };
        let message = format!(
            "{}: collective operations are not joined across ranks, because {why}; {figures} \
             neither wait nor transfer.",
            it.group
        );
        Some(finding(id, message).with("ranks", format!("{:?}", it.ranks)))
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
            it.group, it.unpaired
        );
        finding("collectives_unpaired", message).with("joined", it.joined)
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
    vec![finding("collectives_without_size", message)]
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
        let mut found = finding("collective_clocks_differ", message);
        for (rank, clock) in listed.iter().take(8) {
            let text = format!("{} +- {}", us(clock.ns), us(clock.spread_ns));
            found = found.with(&format!("rank {rank}"), text);
        }
        Some(found)
    };
    groups(analysis).filter_map(found).collect()
}

fn on_host(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.nsys else { return Vec::new() };
    let found = |(library, count): (&String, &u64)| {
        let message = format!(
            "{count} collective operations ran on the host ({library}): they have no kernels, and \
             are neither joined nor part of device times."
        );
        finding("collectives_on_host", message)
    };
    nsys.collectives.on_host.iter().map(found).collect()
}
