//! Checks that all others depend on: complete captures, and the operation isolated on both sides.
//!
//! If one of these is inconclusive so is the alignment: a difference may be the capture's.

use llmprof_core::domain::alignment::of_sides;

use super::{AlignmentCheck, AlignmentEvidence, SIDES, Verdict, check, row};
use crate::{
    align::{
        names::{full_name, has},
        operation_instances::IsolatedOperation,
        settings::Operation,
    },
    stages::coverage::{StageCoverage, by_stage},
    stats::percent,
};

/// Checks that both captures contain the kernels of their launches.
pub fn complete(evidence: &AlignmentEvidence) -> AlignmentCheck {
    let limit = evidence.question.thresholds.complete_pct;
    let (mut good, mut notes) = (true, Vec::new());
    for at in [0, 1] {
        good &= covered(evidence.operations[at], limit);
        let lacking = lacking(evidence, at);
        good &= lacking.is_empty();
        notes.extend(lacking);
    }
    let observed = match notes.is_empty() {
        true if good => "both captures contain the kernels of their launches".to_owned(),
        true => "a capture lacks kernels of its launches".to_owned(),
        false => notes.join("; "),
    };
    let verdict = if good { Verdict::Pass } else { Verdict::Inconclusive };
    let of = |part: u64, all: u64| format!("{part} of {all}");
    let each = |text: &dyn Fn(&IsolatedOperation) -> String| evidence.operations.map(text);
    let rows = [
        ("operation's launches with their kernel", each(&|it| of(it.recorded, it.launched))),
        (
            "capture's launches with their kernel",
            each(&|it| of(it.capture_launches.1, it.capture_launches.0)),
        ),
        ("graph launches without kernels", each(&|it| of(it.graphs_empty, it.graphs))),
    ];
    let rows = rows.map(|(what, [mock, e2e])| row(what, mock, e2e, "")).into();
    check("complete", verdict, observed, format!("{limit} % of launches on each side"), rows)
}

/// Returns whether enough launches have their kernels.
fn covered(operation: &IsolatedOperation, limit_pct: f64) -> bool {
    let enough =
        |part: u64, all: u64| percent(part as f64, all as f64).is_none_or(|pct| pct >= limit_pct);
    let (launches, recorded) = operation.capture_launches;
    enough(operation.recorded, operation.launched)
        && enough(recorded, launches)
        && operation.graphs_empty == 0
}

/// The data that the capture of one side lacks.
fn lacking(evidence: &AlignmentEvidence, at: usize) -> Vec<String> {
    let (side, trace, operation) = (SIDES[at], evidence.sides[at].trace, evidence.operations[at]);
    let mut notes = Vec::new();
    if trace.kernels.is_empty() {
        notes.push(format!(
            "the capture of the {side} contains no kernels: a CPU launches none, and a GPU must \
             be traced"
        ));
    }
    let stages = by_stage(&evidence.captures[at].capture);
    let unknown = |it: &&StageCoverage| {
        it.unknown() && evidence.question.stage.as_ref().is_none_or(|stage| *stage == it.stage)
    };
    if let Some(stage) = stages.iter().find(unknown) {
        notes.push(format!(
            "the capture of the {side} lacks launches of {} of its kernels",
            stage.unattributed
        ));
    }
    // An operation without kernels may be in a graph whose launches were recorded as a whole.
    let in_whole_graphs = operation.instances.is_empty() && !trace.graphs.is_empty();
    if operation.graphs_empty > 0 || in_whole_graphs {
        notes.push(format!("the {side} has graphs that were not traced by node"));
    }
    notes
}

/// Checks that both sides have instances of the operation.
pub fn isolation(evidence: &AlignmentEvidence) -> AlignmentCheck {
    let mut reasons: Vec<String> =
        [0, 1].into_iter().filter_map(|at| missing(evidence, at)).collect();
    reasons.extend(unmatched(evidence));
    reasons.extend(scattered(evidence));
    let each = |of: fn(&IsolatedOperation) -> String| evidence.operations.map(of);
    let facts = [
        ("isolated by", each(|it| it.isolated_by.clone())),
        ("instances in the capture", each(|it| it.ranges.to_string())),
        ("counted", each(|it| it.counted.to_string())),
        (
            "excluded: warm-up, capture of graphs, other stages",
            each(|it| (it.ranges - it.counted).to_string()),
        ),
        ("instances of the stage with it", each(|it| it.stage_instances.to_string())),
        ("layers in forwards with kernels", each(|it| it.instances.len().to_string())),
        ("distinct sequences", each(|it| it.sequences.len().to_string())),
    ];
    let mut rows: Vec<_> =
        facts.into_iter().map(|(what, [mock, e2e])| row(what, mock, e2e, "")).collect();
    let caveat = evidence.operations.iter().find_map(|it| it.caveat.clone());
    let verdict = match (reasons.is_empty(), &caveat) {
        (true, None) => Verdict::Pass,
        (true, Some(_)) => Verdict::Warn,
        (false, _) => Verdict::Inconclusive,
    };
    rows.extend(caveat.map(|caveat| row("not known", "", "", caveat)));
    let observed = if reasons.is_empty() {
        let counts = evidence.operations.map(|it| it.instances.len());
        format!("instances: {}", of_sides(counts))
    } else {
        reasons.join("; ")
    };
    let mut threshold = "instances with kernels on both sides".to_owned();
    if evidence.operations[0].outside_pct.is_some() {
        let limit = evidence.question.thresholds.matched_time_pct;
        threshold += &format!("; {limit} % of the mock's kernel time in its usual sequence");
    }
    check("isolation", verdict, observed, threshold, rows)
}

/// The requested patterns that no kernel of either side has in its name.
fn unmatched(evidence: &AlignmentEvidence) -> Option<String> {
    let Operation::Kernels(patterns) = &evidence.question.operation else { return None };
    let is_found = |pattern: &&String| {
        [0, 1].into_iter().any(|at| {
            let trace = evidence.sides[at].trace;
            let is_like = |kind: &u32| {
                let kind = &trace.kernels.kinds()[*kind as usize];
                has(pattern, full_name(trace, kind.full_name, kind.name))
            };
            evidence.operations[at].kind_times.keys().any(is_like)
        })
    };
    let unmatched: Vec<String> =
        patterns.iter().filter(|it| !is_found(it)).map(|it| format!("{it:?}")).collect();
    (!unmatched.is_empty())
        .then(|| format!("neither side has kernels named like {}", unmatched.join(", ")))
}

/// The reason why the mock's usual sequence does not stand for the mock; `None` if most of its
/// kernel time is inside.
fn scattered(evidence: &AlignmentEvidence) -> Option<String> {
    let outside = evidence.operations[0].outside_pct?;
    (100.0 - outside < evidence.question.thresholds.matched_time_pct).then(|| {
        format!(
            "{}: {outside:.1} % of its kernel time is outside its usual sequence of kernels",
            SIDES[0]
        )
    })
}

/// The reason why a side has too few instances of the operation; `None` if it has enough.
fn missing(evidence: &AlignmentEvidence, at: usize) -> Option<String> {
    let (side, operation) = (SIDES[at], evidence.operations[at]);
    let instances = operation.instances.len();
    if instances > 0 {
        if let Some(min) = evidence.question.forwards.filter(|min| instances < *min as usize) {
            return Some(format!("{side}: {instances} instances have kernels, {min} are required"));
        }
        return (operation.empty > 0 && operation.replayed == 0).then(|| {
            format!(
                "{side}: {} of {} counted instances have no kernels",
                operation.empty, operation.counted
            )
        });
    }
    Some(if evidence.by_sequence && at == 1 {
        format!("{side}: the mock's sequence does not occur in the stage's timeline")
    } else if operation.ranges == 0 {
        format!("{side}: the operation is not in the capture")
    } else if operation.counted == 0 {
        format!("{side}: all {} instances are warm-up or excluded", operation.ranges)
    } else {
        format!("{side}: none of {} counted instances has a kernel", operation.counted)
    })
}
