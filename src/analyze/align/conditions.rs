//! Whether both sides ran on the same inputs and at the same clocks: from what folders of runs tell beside their captures.
//!
//! A bare capture tells neither, which these checks say without keeping the whole from passing.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Check, Row, Side, Verdict,
    checks::{Evidence, check, pass_if, row},
    names::glob,
    settings::{Operation, Question},
};
use crate::{
    analyze::{
        events::Events,
        stages::PREFILL,
        stats::{Spread, percent},
    },
    trace::event::{Event, OperatorCall},
};

const DECODE_STEP: &str = "decode_step";

/// A check of what a bare capture cannot tell.
fn unknown(id: &str, observed: &str, threshold: String) -> Check {
    Check { decisive: false, ..check(id, Verdict::Inconclusive, observed.to_owned(), threshold, vec![]) }
}

/// A row that says whether both sides say the same.
fn same(what: impl Into<String>, [mock, e2e]: [String; 2]) -> Row {
    let note = if mock == e2e { "" } else { "differs" };
    row(what, mock, e2e, note)
}

/// Number format, lengths, shapes of the operation's operands, experts.
pub fn inputs(on: &Evidence) -> Check {
    let asked = on.question.thresholds.experts_pct;
    let threshold = format!("the same formats, lengths and shapes; experts within {asked} %");
    let events = on.sides.map(|side| Events::of(side.events));
    let (Some(mock), Some(e2e)) = (events[0].start, events[1].start) else {
        return unknown("inputs", "a bare capture does not tell its inputs", threshold);
    };
    let of = |what: &str, said: fn(&crate::trace::event::Start) -> String| same(what, [said(mock), said(e2e)]);
    let mut rows = vec![
        of("number format", |it| it.dtype.clone()),
        of("prompt positions", |it| it.prompt_tokens.to_string()),
        of("image positions", |it| it.image_tokens.to_string()),
    ];
    // A part of a model makes no tokens, and has the steps that would make them.
    let steps = |side: usize| {
        let step = |it: &&Event| matches!(it, Event::Range(it) if it.name == DECODE_STEP && !it.warmup && it.repeat == 0);
        on.sides[side].events.iter().filter(step).count().to_string()
    };
    if on.question.stage.as_deref() != Some(PREFILL) {
        rows.push(same("decode steps", [steps(0), steps(1)]));
    }
    let shapes = [0, 1].map(|side| shapes(on.sides[side], on.question));
    if shapes.iter().all(|it| !it.is_empty()) {
        let parts: BTreeSet<&String> = shapes[0].keys().chain(shapes[1].keys()).collect();
        for part in parts {
            let said = |side: usize| shapes[side].get(part).map_or("absent".to_owned(), told);
            let differs = shapes[0].get(part) != shapes[1].get(part);
            let what = if part.is_empty() { "shapes of the operation".to_owned() } else { format!("shapes of its {part}") };
            rows.push(row(what, said(0), said(1), if differs { "differs" } else { "" }));
        }
    }
    let layers: BTreeSet<u32> = events[0].experts.iter().map(|it| it.layer).collect();
    let hit = |side: usize| {
        let counts = |it: &&&crate::trace::event::Experts| {
            !it.warmup && layers.contains(&it.layer) && on.question.stage.as_ref().is_none_or(|stage| *stage == it.stage)
        };
        Spread::of(events[side].experts.iter().filter(counts).map(|it| f64::from(it.distinct))).map(|it| it.mean)
    };
    if let (Some(a), Some(b)) = (hit(0), hit(1)) {
        let far = percent((a - b).abs(), b).is_none_or(|off| off > asked);
        let [mock, e2e] = [a, b].map(|it| format!("{it:.1}"));
        rows.push(row("distinct experts that a layer hits, mean", mock, e2e, if far { "differs" } else { "" }));
    }
    let differ = rows.iter().filter(|row| !row.note.is_empty()).count();
    // Differences come first: a check shows only so many rows.
    rows.sort_by_key(|row| row.note.is_empty());
    check("inputs", pass_if(differ == 0), format!("{differ} of {} differ", rows.len()), threshold, rows)
}

type Shapes = BTreeSet<(Vec<Vec<u64>>, String)>;

/// Shapes and formats of each part of the operation, by its path from there.
fn shapes(side: &Side, question: &Question) -> BTreeMap<String, Shapes> {
    let mut shapes: BTreeMap<String, Shapes> = BTreeMap::new();
    let (Operation::Range { name: path, .. } | Operation::Operator(path)) = &question.operation else { return shapes };
    let counts = |it: &&&OperatorCall| !it.warmup && question.stage.as_ref().is_none_or(|stage| *stage == it.stage);
    for call in Events::of(side.events).calls.iter().filter(counts) {
        if let Some(part) = below(path, &call.path) {
            shapes.entry(part.to_owned()).or_default().insert((call.shapes.clone(), call.dtype.clone()));
        }
    }
    shapes
}

/// The rest of `path` below what `pattern` says; empty where it is that.
fn below<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
    let end = ends.into_iter().find(|end| glob(pattern, &path[..*end]))?;
    Some(path[end..].trim_start_matches('.'))
}

fn told(shapes: &Shapes) -> String {
    let one = |(shapes, dtype): &(Vec<Vec<u64>>, String)| {
        let shapes: Vec<String> = shapes.iter().map(|it| it.iter().map(u64::to_string).collect::<Vec<_>>().join("x")).collect();
        format!("{} {dtype}", shapes.join(" · "))
    };
    match (shapes.first(), shapes.last()) {
        (Some(first), Some(last)) if shapes.len() > 1 => format!("{} kinds, {} to {}", shapes.len(), one(first), one(last)),
        (Some(first), _) => one(first),
        _ => "absent".into(),
    }
}

/// Clocks of the multiprocessors, and throttling.
pub fn clocks(on: &Evidence) -> Check {
    let asked = on.question.thresholds.clock_pct;
    let threshold = format!("mean clocks, and time throttled, within {asked} %");
    let clock = |side: usize| on.sides[side].power.and_then(|it| it.sm_mhz);
    let (Some(mock), Some(e2e)) = (clock(0), clock(1)) else {
        return unknown("clocks", "clocks were not sampled on both sides", threshold);
    };
    let throttled = [0, 1].map(|side| on.sides[side].power.and_then(|it| it.throttled_pct).unwrap_or(0.0));
    let far = percent((mock - e2e).abs(), e2e).is_none_or(|off| off > asked) || (throttled[0] - throttled[1]).abs() > asked;
    let rows = vec![
        row("mean clock of the multiprocessors", format!("{mock:.0} MHz"), format!("{e2e:.0} MHz"), ""),
        row("time throttled", format!("{:.0} %", throttled[0]), format!("{:.0} %", throttled[1]), ""),
    ];
    check("clocks", if far { Verdict::Warn } else { Verdict::Pass }, format!("{mock:.0} and {e2e:.0} MHz"), threshold, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_known_by_its_path_from_the_operation() {
        assert_eq!(below("decoder.layers.*.self_attn", "decoder.layers.3.self_attn.q_proj"), Some("q_proj"));
        assert_eq!(below("decoder.layers.3.self_attn", "decoder.layers.3.self_attn"), Some(""));
        assert_eq!(below("decoder.layers.3", "decoder.layers.30.mlp"), None);
    }
}
