//! The finding on a clock that differs from its host's.

use super::{ClockRelation, bounds::ClockBounds, evidence::ClockEvidence};
use crate::domain::{
    digits,
    finding::{Finding, Severity, catalogue},
};

/// The finding on the clock of a device; `None` if the clocks count as equal.
pub fn finding(device: u32, evidence: &ClockEvidence, relation: &ClockRelation) -> Option<Finding> {
    let bounds = evidence.bounds();
    let proof = proof(evidence, &bounds);
    let (message, severity) = match relation {
        ClockRelation::Equal | ClockRelation::EqualBut(..) => return None,
        ClockRelation::Shifted(line, width) => {
            let (first, last) = bounds.span_ns();
            let (start, end) = (line.at(first), line.at(last));
            let offset = match line.drift == 0.0 {
                true => format!("is {}", direction(start)),
                false => {
                    format!("drifts: it is {} first and {} last", direction(start), direction(end))
                }
            };
            let message = format!(
                "The clock of GPU {device} {offset}: {proof}. Its times are moved to the host's \
                 clock, with an uncertainty of {:.0} us.",
                width / 1e3
            );
            (message, Severity::Warning)
        }
        ClockRelation::Unknown => {
            let message = format!(
                "Times of GPU {device} cannot be compared with times of the host: {proof}. Windows \
                 of stages on the GPU, times of steps, idle time and its reasons are withheld; \
                 stages and steps of engines have times of the host alone."
            );
            (message, Severity::Critical)
        }
    };
    let mut found = Finding::new(catalogue::DEVICE_CLOCK_DIFFERS, message)
        .severity(severity)
        .with("launches", evidence.launches)
        .with("work before its launch", evidence.early)
        .with("waits", evidence.waits.len())
        .with("waits that return before their work ends", evidence.late_waits());
    let middle = bounds.middle_ns();
    for (name, is_first) in [("first half", true), ("second half", false)] {
        found = found.with(name, range(bounds.half(middle, is_first).of_constant()));
    }
    Some(found)
}

/// The events that contradict equal clocks, with the largest contradiction of each kind.
fn proof(evidence: &ClockEvidence, bounds: &ClockBounds) -> String {
    let (low, high) = bounds.of_constant();
    let late = evidence.late_waits();
    let late = (late > 0).then(|| {
        format!(
            "{} of {} waits of the host return up to {} ms before the work that they wait for has \
             ended",
            digits::count(late as u64),
            digits::count(evidence.waits.len() as u64),
            ms(low)
        )
    });
    let early = (evidence.early > 0).then(|| {
        format!(
            "{} of {} kernels, copies and graphs start up to {} ms before their launching call",
            digits::count(evidence.early as u64),
            digits::count(evidence.launches as u64),
            ms(-high)
        )
    });
    [late, early].into_iter().flatten().collect::<Vec<_>>().join(", and ")
}

/// The bounds of an offset as text.
fn range((low, high): (f64, f64)) -> String {
    match (low.is_finite(), high.is_finite()) {
        (true, true) => format!("{} to {} ms late", ms(low), ms(high)),
        (true, false) => format!("at least {} ms late", ms(low)),
        (false, true) => format!("at most {} ms late", ms(high)),
        (false, false) => "unknown".into(),
    }
}

fn direction(offset_ns: f64) -> String {
    let side = if offset_ns < 0.0 { "early" } else { "late" };
    format!("{} ms {side}", ms(offset_ns.abs()))
}

fn ms(ns: f64) -> String {
    format!("{:.3}", ns / 1e6)
}
