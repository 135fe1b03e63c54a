//! The check of the latency of the operation.

use super::{AlignmentCheck, AlignmentEvidence, SIDES, Verdict, check, row};
use crate::align::latency::latency;

/// Ratio of the latencies in an observation.
const RATIO: &str = "ratio of the mock's time to the whole model's";

impl AlignmentEvidence<'_> {
    pub(super) fn latency(&self) -> AlignmentCheck {
        let thresholds = &self.question.thresholds;
        let (low, high) =
            (1.0 - thresholds.latency_pct / 100.0, 1.0 + thresholds.latency_pct / 100.0);
        let threshold = format!(
            "95 % interval within {low:.2} to {high:.2}; triage from {}x",
            thresholds.triage_ratio
        );
        let Some(it) = latency(&self.operations[0].instances, &self.operations[1].instances) else {
            let observed = "the kernels of one side take no time".to_owned();
            return check("latency", Verdict::Inconclusive, observed, threshold, vec![]);
        };
        let mut notes = Vec::new();
        for (side, n) in [(SIDES[0], it.mock_instances), (SIDES[1], it.e2e_instances)] {
            if n == 1 {
                notes.push(format!(
                    "the {side} has 1 instance: its deviation is assumed to be the other side's"
                ));
            }
        }
        let rows = vec![
            row(
                "microseconds per layer and forward",
                format!("{:.2}", it.mock_us),
                format!("{:.2}", it.e2e_us),
                notes.join("; "),
            ),
            row("instances", it.mock_instances.to_string(), it.e2e_instances.to_string(), ""),
        ];
        let Some([from, to]) = it.interval else {
            let observed = format!("{RATIO} {:.3}, 1 instance on each side: no interval", it.ratio);
            return check("latency", Verdict::Inconclusive, observed, threshold, rows);
        };
        let verdict = if from >= low && to <= high {
            Verdict::Pass
        } else if to < low || from > high {
            Verdict::Fail
        } else {
            Verdict::Inconclusive
        };
        let beyond = it.ratio > thresholds.triage_ratio || it.ratio * thresholds.triage_ratio < 1.0;
        let note = if beyond { ", beyond triage" } else { "" };
        let observed = format!("{RATIO} {:.3}, 95 % interval {from:.3} to {to:.3}{note}", it.ratio);
        check("latency", verdict, observed, threshold, rows)
    }
}
