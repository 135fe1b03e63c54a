//! Findings on captures of graphs and the replays that they name.

use std::collections::BTreeSet;

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::{graph_capture::CapturedGraph, timeline::Timeline},
};

use super::{GraphReplays, NotJoined, ReplaySum};
use crate::{stats::percent, timeline::capture::Capture};

/// Captures that a finding describes.
const MAX_DESCRIBED: usize = 4;

impl NotJoined {
    const fn reason(self) -> &'static str {
        match self {
            Self::NoCapture => "no capture has their kernels and copies in this order",
            Self::CaptureCut => "the trace of their capture lacks its start or end",
            Self::Streams => "they ran on several streams, and the captured launches have no names",
            Self::BatchUnproven => {
                "their batch is not proven: several captures fit, or an absent one may"
            }
            Self::BatchMissing => "their steps have more requests than the captures that fit",
        }
    }
}

/// Findings on a capture; none without captures of graphs.
pub fn findings(capture: &Capture) -> Vec<Finding> {
    let trace = capture.trace;
    let captures = &trace.graph_captures;
    if captures.graphs.is_empty() && captures.files.is_empty() {
        return vec![];
    }
    let is_alone = trace.kernels.is_empty() && trace.copies.is_empty() && trace.ranges.is_empty();
    if is_alone && !captures.files.is_empty() {
        return vec![alone(&captures.graphs)];
    }
    let Some(replays) = capture.framework.as_ref().map(|it| &it.replays) else { return vec![] };
    joined(replays, trace).into_iter().chain(not_joined(replays)).collect()
}

fn alone(graphs: &[CapturedGraph]) -> Finding {
    let described = |it: &CapturedGraph| {
        let batch = it.batch.map(|it| format!("batch {it}, ")).unwrap_or_default();
        let mode = it.mode.as_ref().map(|it| format!("{it}, ")).unwrap_or_default();
        format!("{batch}{mode}{} launches", it.launches.len())
    };
    let list: Vec<String> = graphs.iter().take(MAX_DESCRIBED).map(described).collect();
    let list = if list.is_empty() { String::new() } else { format!(" ({})", list.join("; ")) };
    let message = format!(
        "The trace is the capture of a graph{list}: its launches were recorded into the graph and \
         did not run, so there are no times."
    );
    Finding::new(catalogue::GRAPH_CAPTURE_ALONE, message).with("graphs", graphs.len()).advise(
        "Add the trace of a window in which the graph is replayed: llmprof analyze \
             WINDOW.json CAPTURE.json.",
    )
}

fn share(part: i64, all: i64) -> String {
    percent(part as f64, all as f64).map_or_else(|| "0".into(), |it| format!("{it:.1}"))
}

fn joined(replays: &GraphReplays, trace: &Timeline) -> Option<Finding> {
    if replays.joined.is_empty() {
        return None;
    }
    let known = (0..trace.kernels.len()).filter(|it| replays.operator(*it).is_some());
    let known_ns: i64 = known.map(|it| trace.kernels.get(it).ns()).sum();
    let graphs: BTreeSet<u32> = replays.joined.iter().map(|it| it.graph).collect();
    let message = format!(
        "The operators of {} of {} graph replays are known from the captures of the graphs: {} % \
         of the kernel time of replays.",
        replays.joined.len(),
        replays.all.replays,
        share(known_ns, replays.all.ns),
    );
    let found = Finding::new(catalogue::GRAPH_REPLAYS_JOINED, message)
        .with("replays", replays.joined.len())
        .with("captured graphs", graphs.len());
    Some(found.advise("Host times of operators exclude replays, which only the device executes."))
}

fn not_joined(replays: &GraphReplays) -> Option<Finding> {
    let mut sum = ReplaySum::default();
    for it in replays.not_joined.values() {
        sum = ReplaySum { replays: sum.replays + it.replays, ns: sum.ns + it.ns };
    }
    if sum.replays == 0 {
        return None;
    }
    let reasons: Vec<&str> = replays.not_joined.keys().map(|it| it.reason()).collect();
    let message = format!(
        "The operators of {} of {} graph replays ({} % of the kernel time of replays) are unknown: \
         {}.",
        sum.replays,
        replays.all.replays,
        share(sum.ns, replays.all.ns),
        reasons.join("; "),
    );
    let of = |found: Finding, (reason, it): (&NotJoined, &ReplaySum)| {
        found.with(&format!("replays: {}", reason.reason()), it.replays)
    };
    let found = Finding::new(catalogue::GRAPH_REPLAYS_NOT_JOINED, message);
    let found = replays.not_joined.iter().fold(found, of);
    Some(found.advise(
        "Add the traces of all captures of the same start of the engine and of the same rank, and \
         its execution_details.json.",
    ))
}
