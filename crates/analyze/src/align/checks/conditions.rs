//! Checks of the inputs and the clocks of both sides, from the run folders next to the captures.
//!
//! A bare capture contains neither: these checks are then inconclusive without keeping the
//! alignment from passing.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::alignment::of_sides,
    trace::event::{DECODE_STEP, Event, Experts, OperatorCall, Start},
};

use super::{AlignmentCheck, AlignmentEvidence, EvidenceRow, Verdict, check, pass_if, row};
use crate::{
    align::{
        AlignmentSide,
        names::glob,
        settings::{Operation, Question},
    },
    events::Events,
    stages::PREFILL,
    stats::{Spread, percent},
};

/// An inconclusive check of data that a bare capture lacks.
fn unknown(id: &str, observed: &str, threshold: String) -> AlignmentCheck {
    AlignmentCheck {
        decisive: false,
        ..check(id, Verdict::Inconclusive, observed.to_owned(), threshold, vec![])
    }
}

/// A row that notes a difference of both sides.
fn compared(what: impl Into<String>, [mock, e2e]: [String; 2]) -> EvidenceRow {
    let note = if mock == e2e { "" } else { "differs" };
    row(what, mock, e2e, note)
}

/// Compares dtype, lengths, shapes of the operation's operands, experts.
pub fn inputs(evidence: &AlignmentEvidence) -> AlignmentCheck {
    let limit = evidence.question.thresholds.experts_pct;
    let threshold = format!("the same dtype, lengths and shapes; experts within {limit} %");
    let events = evidence.sides.map(|side| Events::of(side.events));
    let (Some(mock), Some(e2e)) = (events[0].start, events[1].start) else {
        return unknown("inputs", "a bare capture does not contain its inputs", threshold);
    };
    let fact = |name: &str, of: fn(&Start) -> String| compared(name, [of(mock), of(e2e)]);
    let mut rows = vec![
        fact("dtype", |it| it.dtype.clone()),
        fact("prompt positions", |it| it.prompt_tokens.to_string()),
        fact("image positions", |it| it.image_tokens.to_string()),
    ];
    // A part of a model generates no tokens, but has the same decode steps.
    let steps = |side: usize| {
        let step = |it: &&Event| match it {
            Event::Range(it) => it.name == DECODE_STEP && !it.warmup && it.repeat == 0,
            _ => false,
        };
        evidence.sides[side].events.iter().filter(step).count().to_string()
    };
    if evidence.question.stage.as_deref() != Some(PREFILL) {
        rows.push(compared("decode steps", [steps(0), steps(1)]));
    }
    let shapes = [0, 1].map(|side| shapes(evidence.sides[side], evidence.question));
    if shapes.iter().all(|it| !it.is_empty()) {
        let parts: BTreeSet<&String> = shapes[0].keys().chain(shapes[1].keys()).collect();
        for part in parts {
            let text =
                |side: usize| shapes[side].get(part).map_or("absent".to_owned(), shapes_text);
            let differs = shapes[0].get(part) != shapes[1].get(part);
            let name = if part.is_empty() {
                "shapes of the operation".to_owned()
            } else {
                format!("shapes of its {part}")
            };
            rows.push(row(name, text(0), text(1), if differs { "differs" } else { "" }));
        }
    }
    let layers: BTreeSet<u32> = events[0].experts.iter().map(|it| it.layer).collect();
    let hit = |side: usize| {
        let counts = |it: &&&Experts| {
            !it.warmup
                && layers.contains(&it.layer)
                && evidence.question.stage.as_ref().is_none_or(|stage| *stage == it.stage)
        };
        Spread::of(events[side].experts.iter().filter(counts).map(|it| f64::from(it.distinct)))
            .map(|it| it.mean)
    };
    if let (Some(a), Some(b)) = (hit(0), hit(1)) {
        let far = percent((a - b).abs(), b).is_none_or(|off| off > limit);
        let [mock, e2e] = [a, b].map(|it| format!("{it:.1}"));
        rows.push(row(
            "mean distinct experts per layer",
            mock,
            e2e,
            if far { "differs" } else { "" },
        ));
    }
    let differ = rows.iter().filter(|row| !row.note.is_empty()).count();
    // Differences come first: the rows of a check are limited.
    rows.sort_by_key(|row| row.note.is_empty());
    check(
        "inputs",
        pass_if(differ == 0),
        format!("{differ} of {} differ", rows.len()),
        threshold,
        rows,
    )
}

type Shapes = BTreeSet<(Vec<Vec<u64>>, String)>;

/// Shapes and dtypes of each part of the operation, by its path relative to the operation.
fn shapes(side: &AlignmentSide, question: &Question) -> BTreeMap<String, Shapes> {
    let mut shapes: BTreeMap<String, Shapes> = BTreeMap::new();
    let (Operation::Range { name: path, .. } | Operation::Operator(path)) = &question.operation
    else {
        return shapes;
    };
    let counts = |it: &&OperatorCall| {
        !it.warmup && question.stage.as_ref().is_none_or(|stage| *stage == it.stage)
    };
    for call in Events::of(side.events).calls.iter().map(|it| it.of).filter(counts) {
        if let Some(part) = below(path, &call.path) {
            shapes
                .entry(part.to_owned())
                .or_default()
                .insert((call.shapes.clone(), call.dtype.clone()));
        }
    }
    shapes
}

/// The rest of `path` below its prefix that matches `pattern`; empty if all of it matches.
fn below<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
    let end = ends.into_iter().find(|end| glob(pattern, &path[..*end]))?;
    Some(path[end..].trim_start_matches('.'))
}

fn shapes_text(shapes: &Shapes) -> String {
    let one = |(shapes, dtype): &(Vec<Vec<u64>>, String)| {
        let shapes: Vec<String> = shapes
            .iter()
            .map(|it| it.iter().map(u64::to_string).collect::<Vec<_>>().join("x"))
            .collect();
        format!("{} {dtype}", shapes.join(" · "))
    };
    match (shapes.first(), shapes.last()) {
        (Some(first), Some(last)) if shapes.len() > 1 => {
            format!("{} variants, {} to {}", shapes.len(), one(first), one(last))
        }
        (Some(first), _) => one(first),
        _ => "absent".into(),
    }
}

/// Compares SM clocks and throttling.
pub fn clocks(evidence: &AlignmentEvidence) -> AlignmentCheck {
    let limit = evidence.question.thresholds.clock_pct;
    let threshold = format!("mean clocks and throttled time within {limit} %");
    let clock = |side: usize| evidence.sides[side].power.and_then(|it| it.sm_mhz);
    let (Some(mock), Some(e2e)) = (clock(0), clock(1)) else {
        return unknown("clocks", "clocks were not sampled on both sides", threshold);
    };
    let throttled = [0, 1]
        .map(|side| evidence.sides[side].power.and_then(|it| it.throttled_pct).unwrap_or(0.0));
    let far = percent((mock - e2e).abs(), e2e).is_none_or(|off| off > limit)
        || (throttled[0] - throttled[1]).abs() > limit;
    let rows = vec![
        row("mean SM clock", format!("{mock:.0} MHz"), format!("{e2e:.0} MHz"), ""),
        row(
            "throttled time",
            format!("{:.0} %", throttled[0]),
            format!("{:.0} %", throttled[1]),
            "",
        ),
    ];
    check(
        "clocks",
        if far { Verdict::Warn } else { Verdict::Pass },
        of_sides([mock, e2e].map(|it| format!("{it:.0} MHz"))),
        threshold,
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_identified_by_its_path_below_the_operation() {
        assert_eq!(
            below("decoder.layers.*.self_attn", "decoder.layers.3.self_attn.q_proj"),
            Some("q_proj")
        );
        assert_eq!(below("decoder.layers.3.self_attn", "decoder.layers.3.self_attn"), Some(""));
        assert_eq!(below("decoder.layers.3", "decoder.layers.30.mlp"), None);
    }
}
