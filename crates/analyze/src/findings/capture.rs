//! Rules on the evidence itself: missing, incomplete, disturbed or impossible data.

use llmprof_core::{
    domain::{
        finding::{Finding, Severity},
        subject::SubjectKind,
    },
    trace::{Trace, framework::TimelineTool, stage::UnknownRange},
};

use super::{
    Rule, finding,
    saving::replays_graph,
    steps::{with_engine, with_reasons},
};
use crate::{
    Analysis, invariants,
    stages::{self, STAGES},
    timeline::{graphs, open_ranges},
};
use Severity::{Critical, Info, Warning};

/// nsys messages that a finding quotes.
const QUOTED_MESSAGES: usize = 3;
/// Names of ranges that a finding lists.
const LISTED_RANGES: usize = 10;

pub const RULES: &[Rule] = &[
    Rule {
        id: "no_stages",
        severity: Critical,
        fires_on: "no measured stage was timed",
        advice: "Read the baseline step's log.",
        max_saving: None,
        find: no_stages,
    },
    Rule {
        id: "runner_unfinished",
        severity: Warning,
        fires_on: "the runner's events lack the last one, `end`",
        advice: "Read the baseline step's log for the reason.",
        max_saving: None,
        find: runner_unfinished,
    },
    Rule {
        id: "repeats_differ",
        severity: Warning,
        fires_on: "repeats of the unprofiled pass have different outputs",
        advice: "Look for operators whose order of summation varies.",
        max_saving: None,
        find: outputs_differ,
    },
    Rule {
        id: "outputs_differ",
        severity: Critical,
        fires_on: "tokens or logits of the traced pass differ from those of the unprofiled pass",
        advice: "Do not attribute the capture to the timed run.",
        max_saving: None,
        find: outputs_differ,
    },
    Rule {
        id: "mfu_impossible",
        severity: Critical,
        fires_on: "utilisation above 101 % of a ceiling",
        advice: "Check the device's name, the dtype and the operand sizes of the ceiling.",
        max_saving: None,
        find: |analysis, _| analysis.mfu.findings.clone(),
    },
    Rule {
        id: "roofline_impossible",
        severity: Critical,
        fires_on: "a profiled kernel above 101 % of the datasheet's roof",
        advice: "Discard this figure; check the device's name and peaks, and that the ncu pages \
                 are of this device.",
        max_saving: None,
        find: |analysis, _| analysis.roofline.findings.clone(),
    },
    Rule {
        id: "ceiling_surpassed",
        severity: Info,
        fires_on: "an operator above 101 % of the measured matrix product",
        advice: "Disregard its utilisation of that ceiling, which is withheld: the measured \
                 product is slower than the device's best, or the time is too short.",
        max_saving: None,
        find: |analysis, _| analysis.mfu.findings.clone(),
    },
    Rule {
        id: "capture_incomplete",
        severity: Warning,
        fires_on: "the capture lacks the range of a stage that the runner timed",
        advice: "Capture again; update nsys to the driver's version.",
        max_saving: None,
        find: capture_incomplete,
    },
    Rule {
        id: "capture_times_impossible",
        severity: Warning,
        fires_on: "rows of the capture have no times, end before they start, or lie more than \
                   73 years from its clock's zero",
        advice: "Export the report again; if the rows persist, capture again. They are excluded.",
        max_saving: None,
        find: capture_incomplete,
    },
    Rule {
        id: "kernels_unattributed",
        severity: Warning,
        fires_on: "kernels of the capture have no launching call",
        advice: "Trace the CUDA API as well, from the start of the process.",
        max_saving: None,
        find: coverage,
    },
    Rule {
        id: "kernels_lost",
        severity: Critical,
        fires_on: "fewer than 99 % of a stage's launches have their kernel in the capture",
        advice: "Export or record again with a newer nsys; the stage's kernel figures are \
                 withheld.",
        max_saving: None,
        find: coverage,
    },
    Rule {
        id: "range_not_found",
        severity: Critical,
        fires_on: "a rule of the run names a range that the capture lacks",
        advice: "Correct the name in the run's stages or included ranges.",
        max_saving: None,
        find: range_not_found,
    },
    Rule {
        id: "range_unclosed",
        severity: Warning,
        fires_on: "a range of the capture has no end",
        advice: "Close the range in the program, or record until it ends; its times are \
                 withheld.",
        max_saving: None,
        find: range_unclosed,
    },
    Rule {
        id: "figure_impossible",
        severity: Warning,
        fires_on: "a figure is outside its possible bounds: shares, counters, clocks, work that \
                   starts before its launch",
        advice: "Check the cause named in the finding; the figure is withheld.",
        max_saving: None,
        find: invariants::findings,
    },
    Rule {
        id: "graphs_traced_whole",
        severity: Info,
        fires_on: "CUDA graphs of a stage were traced as a whole",
        advice: graphs::REMEDY,
        max_saving: None,
        find: graphs::findings,
    },
    Rule {
        id: "graph_device_unknown",
        severity: Warning,
        fires_on: "CUDA graphs start on the host, and no other work of their process shows their \
                   GPU",
        advice: graphs::REMEDY,
        max_saving: None,
        find: graphs::unplaced,
    },
    Rule {
        id: "overhead_high",
        severity: Warning,
        fires_on: "a traced stage takes over 25 % longer than the unprofiled one",
        advice: "Use the capture's proportions, not its times; submit with mode light.",
        max_saving: None,
        find: overhead_high,
    },
];

fn no_stages(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    // A command without stages has a finding of its own.
    if !analysis.stages.rows.is_empty() || analysis.subject == SubjectKind::Command {
        return vec![];
    }
    let (message, advice) = analysis.why_no_stages();
    let found = finding("no_stages", message.to_owned()).advise(advice);
    vec![match analysis.subject {
        SubjectKind::Import => with_engine(with_reasons(found, trace), trace),
        _ => found,
    }]
}

fn runner_unfinished(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // A capture of another program has no runner that could have ended.
    if analysis.stages.rows.is_empty()
        || analysis.end.is_some()
        || !analysis.subject.has_runner()
        || analysis.only_traced
    {
        return vec![];
    }
    let repeats = analysis.stages.repeats;
    let message = format!(
        "The runner stopped before its last event; figures cover the repeats that finished \
         ({repeats})."
    );
    vec![finding("runner_unfinished", message).with("repeats finished", repeats)]
}

fn outputs_differ(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let outputs = analysis.outputs;
    let mut found = Vec::new();
    if outputs.repeats_agree == Some(false) {
        let message =
            "Repeats of the unprofiled pass produced different outputs from the same inputs.";
        found.push(finding("repeats_differ", message.to_owned()).advise(
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
            finding("outputs_differ", message)
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
    let Some(nsys) = &trace.nsys else { return vec![] };
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
        let mut incomplete = finding("capture_incomplete", message)
            .with("ranges captured", nsys.ranges.len())
            .advise(
                "Capture again; if it persists, update nsys to the driver's version and read the \
                 step's log.",
            );
        for (index, text) in nsys.diagnostics.iter().take(QUOTED_MESSAGES).enumerate() {
            incomplete = incomplete.with(&format!("nsys message ({})", index + 1), text);
        }
        found.push(incomplete);
    }
    let impossible = nsys.impossible_rows;
    if impossible > 0 {
        let message = format!(
            "{impossible} rows of the capture were excluded: they have no times, end before they \
             start, or lie more than 73 years from its clock's zero."
        );
        let found_here = finding("capture_times_impossible", message).with("excluded", impossible);
        found.push(match nsys.tool {
            TimelineTool::Nsys => found_here,
            TimelineTool::Pytorch => found_here.advise("Record again: they are excluded."),
        });
    }
    found
}

fn coverage(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    trace.nsys.as_ref().map_or(vec![], |nsys| stages::coverage::findings(analysis, nsys))
}

fn range_not_found(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let unknown = trace.nsys.as_ref().and_then(|nsys| nsys.check_rules(&nsys.rules).err());
    let not_found = |unknown: UnknownRange| {
        let available =
            unknown.available.iter().take(LISTED_RANGES).cloned().collect::<Vec<_>>().join(", ");
        let message = format!("The capture has no range named {:?}.", unknown.wanted);
        finding("range_not_found", message).with("available", available)
    };
    unknown.map(not_found).into_iter().collect()
}

fn range_unclosed(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    trace.nsys.as_ref().and_then(open_ranges::unclosed).into_iter().collect()
}

fn overhead_high(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    stages::overhead::findings(&analysis.overhead, trace, replays_graph(analysis))
}
