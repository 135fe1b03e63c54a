//! The finding on ranges that the capture records without an end.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::{timeline::Timeline, unclosed::UnclosedOutcome},
};

/// Max ranges named in the finding.
const MAX_NAMED: usize = 5;

/// Lists the ranges without an end and their outcomes; `None` when all ranges are closed.
pub fn unclosed(trace: &Timeline) -> Option<Finding> {
    let mut names: Vec<&str> = trace.unclosed.iter().map(|it| it.range.name.as_str()).collect();
    names.dedup();
    let first = names.first()?;
    let message = match trace.unclosed.len() {
        1 => format!("The range {first} has no end in the capture."),
        count => format!("{count} ranges have no end in the capture, including {first}."),
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
