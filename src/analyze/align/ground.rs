//! What every other check stands on: whole captures, and the operation found in both.
//!
//! Where one of these is inconclusive the whole is: a difference may be the capture's.

use super::{
    Check, Verdict,
    checks::{Evidence, SIDES, check, row},
    isolate::Isolated,
};
use crate::analyze::{
    coverage::{StageCoverage, by_stage},
    launches::Launches,
    stats::percent,
};

/// Whether both captures hold what was launched.
pub fn complete(on: &Evidence) -> Check {
    let asked = on.question.thresholds.complete_pct;
    let (mut rows, mut good) = (Vec::new(), true);
    let mut values: [Vec<String>; 3] = Default::default();
    let mut notes = Vec::new();
    for (at, (side, found)) in on.sides.iter().zip(on.found).enumerate() {
        let whole = found.whole;
        let enough = |part: u64, all: u64| percent(part as f64, all as f64).is_none_or(|pct| pct >= asked);
        let none = side.trace.kernels.is_empty();
        good &= enough(found.recorded, found.launched) && enough(whole.1, whole.0) && found.graphs_empty == 0 && !none;
        values[0].push(format!("{} of {}", found.recorded, found.launched));
        values[1].push(format!("{} of {}", whole.1, whole.0));
        values[2].push(format!("{} of {}", found.graphs_empty, found.graphs));
        if none {
            notes.push(format!("the {} capture holds no kernels: a CPU launches none, and a GPU's must be traced", SIDES[at]));
        }
        // Without a kernel of the operation, it may be in a graph whose launches were recorded as wholes.
        let whole_graphs = found.units.is_empty() && !side.trace.graphs.is_empty();
        good &= !whole_graphs;
        let stages = by_stage(side.trace, &Launches::of(side.trace));
        let unknown = |it: &&StageCoverage| it.unknown() && on.question.stage.as_ref().is_none_or(|stage| *stage == it.stage);
        if let Some(stage) = stages.iter().find(unknown) {
            good = false;
            notes.push(format!("the {} capture lacks launches of {} of its kernels", SIDES[at], stage.unattributed));
        }
        if found.graphs_empty > 0 || whole_graphs {
            notes.push(format!("the {} side has graphs that were not traced by node", SIDES[at]));
        }
    }
    let what = [
        "launches of the operation with their kernel",
        "launches of the capture with their kernel",
        "launches of graphs without kernels",
    ];
    for (what, mut values) in what.into_iter().zip(values) {
        let e2e = values.pop().unwrap_or_default();
        rows.push(row(what, values.pop().unwrap_or_default(), e2e, ""));
    }
    let observed = match notes.is_empty() {
        true if good => "both captures hold what was launched".to_owned(),
        true => "a capture lacks kernels that were launched".to_owned(),
        false => notes.join("; "),
    };
    let verdict = if good { Verdict::Pass } else { Verdict::Inconclusive };
    check("complete", verdict, observed, format!("{asked} % of launches, in each"), rows)
}

/// Whether both sides have instances of the operation.
pub fn isolation(on: &Evidence) -> Check {
    let (mut reasons, mut rows) = (Vec::new(), Vec::new());
    for (at, found) in on.found.iter().enumerate() {
        let (side, few) = (SIDES[at], on.question.forwards.filter(|least| found.units.len() < *least as usize));
        if let (Some(least), false) = (few, found.units.is_empty()) {
            reasons.push(format!("{side}: {} instances have kernels, and {least} are asked for", found.units.len()));
        } else if !found.units.is_empty() {
            if found.empty > 0 && found.replayed == 0 {
                reasons.push(format!("{side}: {} of {} counted instances have no kernels", found.empty, found.counted));
            }
        } else if on.by_sequence && at == 1 {
            reasons.push(format!("{side}: the mock's sequence is nowhere in the timeline of the stage"));
        } else if found.ranges == 0 {
            reasons.push(format!("{side}: the operation is not in the capture"));
        } else if found.counted == 0 {
            reasons.push(format!("{side}: all {} instances are warm-up or outside what counts", found.ranges));
        } else {
            reasons.push(format!("{side}: none of {} counted instances has a kernel", found.counted));
        }
    }
    let each = |of: fn(&Isolated) -> String| on.found.map(of);
    let facts = [
        ("found by", each(|it| it.how.clone())),
        ("instances in the capture", each(|it| it.ranges.to_string())),
        ("counted", each(|it| it.counted.to_string())),
        ("left out: warm-up, capture of graphs, other stages", each(|it| (it.ranges - it.counted).to_string())),
        ("times that the stage ran with it", each(|it| it.stretches.to_string())),
        ("layers in forwards with kernels", each(|it| it.units.len().to_string())),
        ("distinct sequences", each(|it| it.forms.len().to_string())),
    ];
    rows.extend(facts.into_iter().map(|(what, [mock, e2e])| row(what, mock, e2e, "")));
    let doubt = on.found.iter().find_map(|found| found.doubt.clone());
    let verdict = match (reasons.is_empty(), &doubt) {
        (true, None) => Verdict::Pass,
        (true, Some(_)) => Verdict::Warn,
        (false, _) => Verdict::Inconclusive,
    };
    rows.extend(doubt.map(|doubt| row("not known", "", "", doubt)));
    let observed = if reasons.is_empty() {
        format!("{} and {} instances", on.found[0].units.len(), on.found[1].units.len())
    } else {
        reasons.join("; ")
    };
    check("isolation", verdict, observed, "instances with kernels in both".into(), rows)
}
