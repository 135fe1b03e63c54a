//! Rules on the evidence itself: missing, incomplete, disturbed or impossible data.

use std::{cmp::Reverse, collections::BTreeMap};

use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
        subject::SubjectKind,
        units::quantity,
    },
    trace::{
        Trace, event::Event, framework::TimelineTool, names::is_absent_name,
        runtime_call::CallKind, stage::UnknownRange,
    },
};

use super::{
    Rule, language_model,
    saving::replays_graph,
    steps::{excluded, with_engine, with_reasons},
};
use crate::{
    Analysis, invariants,
    stages::{self, DECODE, STAGES},
    timeline::{graphs, open_ranges},
};

/// nsys messages that a finding quotes.
const QUOTED_MESSAGES: usize = 3;
/// Names of ranges that a finding lists.
const LISTED_RANGES: usize = 10;
/// Names of calls that a finding lists.
const LISTED_CALLS: usize = 5;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::NO_STAGES, find: no_stages },
    Rule { id: catalogue::RUNNER_UNFINISHED, find: runner_unfinished },
    Rule { id: catalogue::REPEATS_DIFFER, find: outputs_differ },
    Rule { id: catalogue::OUTPUTS_DIFFER, find: outputs_differ },
    Rule { id: catalogue::MFU_IMPOSSIBLE, find: |analysis, _| analysis.mfu.findings.clone() },
    Rule {
        id: catalogue::ROOFLINE_IMPOSSIBLE,
        find: |analysis, _| analysis.roofline.findings.clone(),
    },
    Rule { id: catalogue::CEILING_SURPASSED, find: |analysis, _| analysis.mfu.findings.clone() },
    Rule { id: catalogue::CAPTURE_INCOMPLETE, find: capture_incomplete },
    Rule { id: catalogue::CAPTURE_TIMES_IMPOSSIBLE, find: capture_incomplete },
    Rule { id: catalogue::KERNELS_UNATTRIBUTED, find: coverage },
    Rule { id: catalogue::KERNELS_LOST, find: coverage },
    Rule { id: catalogue::CALLS_UNKNOWN, find: calls_unknown },
    Rule { id: catalogue::RANGE_NOT_FOUND, find: range_not_found },
    Rule { id: catalogue::RANGE_UNCLOSED, find: range_unclosed },
    Rule { id: catalogue::DECODE_CUT, find: decode_cut },
    Rule { id: catalogue::FIGURE_IMPOSSIBLE, find: invariants::findings },
    Rule { id: catalogue::DEVICE_CLOCK_DIFFERS, find: invariants::clocks },
    Rule { id: catalogue::GRAPHS_TRACED_WHOLE, find: graphs::findings },
    Rule { id: catalogue::GRAPH_DEVICE_UNKNOWN, find: graphs::unplaced },
    Rule { id: catalogue::OVERHEAD_HIGH, find: overhead_high },
];

fn calls_unknown(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.timeline else { return vec![] };
    // Calls whose names the export lacks have a finding of its reader.
    let sites = nsys.cuda_calls.sites().iter().zip(nsys.call_kinds());
    let is_unknown: Vec<bool> = sites
        .map(|(site, kind)| kind == CallKind::Unknown && !is_absent_name(nsys.text(site.0)))
        .collect();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, _, call) in nsys.cuda_calls.at_sites(&is_unknown) {
        *counts.entry(nsys.text(call.name)).or_default() += 1;
    }
    let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return vec![];
    }
    let message = format!(
        "{} calls of the host have names of no known call of CUDA or HIP: they count neither as \
         launches nor as waits.",
        digits::count(total)
    );
    let found = Finding::new(catalogue::CALLS_UNKNOWN, message).with("names", counts.len());
    let with = |found: Finding, (name, count): &(&str, u64)| {
        found.with(&format!("calls of {}", if name.is_empty() { "no name" } else { name }), count)
    };
    vec![counts.iter().take(LISTED_CALLS).fold(found, with)]
}

fn no_stages(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    // A command without stages, and a filter that leaves all out, have findings of their own.
    if !analysis.stages.rows.is_empty()
        || analysis.subject == SubjectKind::Command
        || !excluded(analysis, trace).is_empty()
    {
        return vec![];
    }
    let (message, advice) = analysis.why_no_stages();
    let found = Finding::new(catalogue::NO_STAGES, message.to_owned()).advise(advice);
    vec![match analysis.subject {
        SubjectKind::Import if !analysis.is_graph_capture() => {
            let found = with_engine(with_reasons(found, trace), trace);
            match language_model::is_known(analysis, trace) {
                true => found,
                false => language_model::of_any_program(found, trace),
            }
        }
        _ => found,
    }]
}

fn runner_unfinished(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    // A capture of another program has no runner that could have ended.
    if analysis.stages.rows.is_empty()
        || analysis.end.is_some()
        || !analysis.subject.has_runner()
        || analysis.only_traced
    {
        return vec![];
    }
    // Outputs are the last event of a repeat.
    let is_whole = |it: &&Event| matches!(it, Event::Output(output) if !output.warmup);
    let repeats = trace.baseline.iter().filter(is_whole).count() as u64;
    let whole = quantity(repeats, "whole repeat");
    let message = format!("The runner stopped before its last event, after {whole}.");
    vec![Finding::new(catalogue::RUNNER_UNFINISHED, message).with("repeats finished", repeats)]
}

fn outputs_differ(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let outputs = analysis.outputs;
    let mut found = Vec::new();
    if outputs.repeats_agree == Some(false) {
        let message =
            "Repeats of the unprofiled pass produced different outputs from the same inputs.";
        found.push(Finding::new(catalogue::REPEATS_DIFFER, message.to_owned()).advise(
            "Look for operators whose order of summation varies; times of repeats may not be \
             comparable.",
        ));
    }
    if outputs.traced_tokens_equal == Some(false) || outputs.traced_logits_equal == Some(false) {
        let text = |equal: Option<bool>| {
            equal.map_or("unknown", |equal| if equal { "equal" } else { "different" })
        };
        let (tokens, logits) =
            (text(outputs.traced_tokens_equal), text(outputs.traced_logits_equal));
        let message = format!(
            "The traced pass did not reproduce the unprofiled pass: tokens {tokens}, logits \
             {logits}."
        );
        found.push(
            Finding::new(catalogue::OUTPUTS_DIFFER, message)
                .with("tokens", tokens)
                .with("logits", logits)
                .advise(
                    "Do not attribute this capture to the timed run; check seed, weights and \
                     dtype of both passes.",
                ),
        );
    }
    found
}

fn capture_incomplete(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.timeline else { return vec![] };
    // A stage is missing if a runner timed it and the capture lacks it: other programs need not
    // have both.
    let timed = |stage: &&str| !trace.baseline.is_empty() && analysis.stages.row(stage).is_some();
    let captured = |stage: &str| {
        nsys.ranges.iter().any(|range| nsys.rules.stage(&range.name, &range.domain) == Some(stage))
    };
    let missing: Vec<&str> =
        STAGES.into_iter().filter(timed).filter(|stage| !captured(stage)).collect();
    let mut found = Vec::new();
    if !missing.is_empty() {
        let message =
            format!("The nsys capture lacks the range {}.", missing.join(" and the range "));
        let mut incomplete = Finding::new(catalogue::CAPTURE_INCOMPLETE, message)
            .with("ranges captured", nsys.ranges.len())
            .advise(
                "Capture again, without a window (nsys.delay_s, duration_s) or with one that \
                 contains the range; if it persists, update nsys to the driver's version and read \
                 the step's log.",
            );
        for (index, text) in nsys.diagnostics.iter().take(QUOTED_MESSAGES).enumerate() {
            incomplete = incomplete.with(&format!("nsys message ({})", index + 1), text);
        }
        found.push(incomplete);
    }
    let impossible = nsys.impossible_rows;
    if impossible > 0 {
        let message = format!(
            "{} rows of the capture were excluded: they have no times, end before they start, or \
             lie more than 73 years from its clock's zero.",
            digits::count(impossible)
        );
        let found_here =
            Finding::new(catalogue::CAPTURE_TIMES_IMPOSSIBLE, message).with("excluded", impossible);
        found.push(match nsys.tool {
            TimelineTool::Nsys => found_here,
            TimelineTool::Pytorch => found_here.advise("Record again: they are excluded."),
        });
    }
    found
}

fn coverage(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    trace.timeline.as_ref().map_or(vec![], |nsys| stages::coverage::findings(analysis, nsys))
}

fn range_not_found(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let unknown = trace.timeline.as_ref().and_then(|nsys| nsys.check_rules(&nsys.rules).err());
    let not_found = |unknown: UnknownRange| {
        let available =
            unknown.available.iter().take(LISTED_RANGES).cloned().collect::<Vec<_>>().join(", ");
        let message = format!("The capture has no range named {:?}.", unknown.wanted);
        Finding::new(catalogue::RANGE_NOT_FOUND, message).with("available", available)
    };
    unknown.map(not_found).into_iter().collect()
}

fn range_unclosed(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    trace.timeline.as_ref().and_then(open_ranges::unclosed).into_iter().collect()
}

/// Decodes that are not whole, unless another finding names their ranges.
fn decode_cut(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let steps = analysis.stages.cut_steps;
    let is_named = |it: &Finding| it.evidence.contains_key(open_ranges::STAGES_WITHOUT_END);
    if steps == 0 || range_unclosed(analysis, trace).iter().any(is_named) {
        return vec![];
    }
    let recorded = quantity(steps, "step");
    let message = match analysis.stages.row(DECODE) {
        Some(row) => {
            let whole = quantity(u64::from(row.ms.n), "whole decode");
            format!(
                "The recording has {recorded} of decodes that are not whole; decode is timed by \
                 {whole}."
            )
        }
        None => format!("The recording has {recorded} of decodes, and no whole decode."),
    };
    let found = Finding::new(catalogue::DECODE_CUT, message).with("steps of cut decodes", steps);
    let left_out = analysis.findings.iter().find(|it| it.id == catalogue::STEPS_LEFT_OUT);
    vec![match left_out.and_then(|it| it.advice.as_ref()) {
        Some(advice) => found.advise(advice),
        None => found,
    }]
}

fn overhead_high(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let gpus = &analysis.stage_gpu.totals;
    let rows = &analysis.stages.rows;
    let replays = replays_graph(analysis);
    stages::overhead::findings(&analysis.overhead, rows, (trace, gpus), replays)
}
