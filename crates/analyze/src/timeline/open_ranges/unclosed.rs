//! The finding on ranges that the capture records without an end.

use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
    },
    trace::{stage::WARMUP, timeline::Timeline, unclosed::UnclosedOutcome},
};

/// Max ranges named in the finding.
const MAX_NAMED: usize = 5;

/// Evidence of the finding: names of stages and steps that have a range without an end.
pub const STAGES_WITHOUT_END: &str = "stages and steps without an end";

/// Names of stages and steps that have a range without an end, each once, without warm-up.
fn stages(trace: &Timeline) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for it in &trace.unclosed {
        let (name, domain) = (it.range.name.as_str(), it.range.domain.as_str());
        let is_stage = || {
            let rules = &trace.rules;
            rules.marks_stage(name, domain) || rules.step(name).is_some()
        };
        if names.len() < MAX_NAMED && !names.contains(&name) && name != WARMUP && is_stage() {
            names.push(name);
        }
    }
    names
}

/// Lists the ranges without an end and their outcomes; `None` when all ranges are closed.
pub fn unclosed(trace: &Timeline) -> Option<Finding> {
    let first = trace.unclosed.first()?.range.name.as_str();
    let stages = stages(trace);
    let message = match trace.unclosed.len() {
        1 => format!("The range {first} has no end in the capture."),
        count => {
            let names = if stages.is_empty() { first.to_owned() } else { stages.join(", ") };
            let count = digits::count(count as u64);
            format!("{count} ranges have no end in the capture, including {names}.")
        }
    };
    let count = |is: fn(&UnclosedOutcome) -> bool| {
        trace.unclosed.iter().filter(|it| is(&it.outcome)).count()
    };
    let mut finding = Finding::new(catalogue::RANGE_UNCLOSED, message)
        .with(
            "closed at the end of the enclosing range",
            count(|it| matches!(it, UnclosedOutcome::AtParent(_))),
        )
        .with(
            "closed at the start of the next range",
            count(|it| matches!(it, UnclosedOutcome::AtSibling(_))),
        )
        .with("dropped", count(|it| matches!(it, UnclosedOutcome::Dropped)));
    if !stages.is_empty() {
        finding = finding.with(STAGES_WITHOUT_END, stages.join(", "));
    }
    for (at, it) in trace.unclosed.iter().take(MAX_NAMED).enumerate() {
        let domain = if it.range.domain.is_empty() {
            String::new()
        } else {
            format!("@{}", it.range.domain)
        };
        let outcome = match it.outcome {
            UnclosedOutcome::AtParent(end) | UnclosedOutcome::AtSibling(end) => {
                format!("closed at {end} ns")
            }
            UnclosedOutcome::Dropped => "dropped".to_owned(),
        };
        let range = format!("{}{domain} from {} ns, {outcome}", it.range.name, it.range.start_ns);
        finding = finding.with(&format!("range ({})", at + 1), range);
    }
    Some(finding)
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{range::Range, stage::StageRules};

    use super::*;

    fn finding(names: &[&str]) -> Finding {
        let open = |(at, name): (i64, &&str)| Range::new(("", *name), (at, None), (1, true));
        let ranges = (0..).zip(names).map(open).collect();
        let trace = Timeline { ranges, ..Timeline::default() };
        unclosed(&trace.with_rules(StageRules::default())).unwrap()
    }

    #[test]
    fn stages_and_steps_without_an_end_are_named_each_once() {
        let found = finding(&["warmup", "prefill", "layer", "decode_step", "decode_step"]);
        let message = "5 ranges have no end in the capture, including prefill, decode_step.";
        assert_eq!(found.message, message);
        assert_eq!(found.evidence[STAGES_WITHOUT_END], "prefill, decode_step");
        let other = finding(&["layer"]);
        assert_eq!(other.message, "The range layer has no end in the capture.");
        assert!(!other.evidence.contains_key(STAGES_WITHOUT_END));
    }
}
