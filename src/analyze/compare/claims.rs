//! Promised and realised savings: findings of the run before, and what became of them.
//!
//! A finding's saving is an upper bound for its stage alone; the stage's change is what all
//! changes of the program saved together.

use serde::{Deserialize, Serialize};

use crate::domain::finding::{Finding, Saving};

/// Part of a promise that counts as unchanged between runs.
const UNCHANGED: f64 = 0.1;

/// A finding whose promised saving became smaller from run A to run B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Rule of the finding.
    pub finding: String,
    pub stage: String,
    /// Upper bound in run A, milliseconds per repeat.
    pub promised_ms: f64,
    /// Upper bound of the same finding in run B; 0 if B has no such finding.
    pub remaining_ms: f64,
    /// Time that the stage takes less in run B; negative if it takes more.
    pub realised_ms: f64,
}

/// Links the findings of run A to the changes of their stages. `saved_ms` returns the time that a
/// stage takes less in run B.
pub fn claims(a: &[Finding], b: &[Finding], saved_ms: impl Fn(&str) -> Option<f64>) -> Vec<Claim> {
    let saving = |it: &Finding| -> Option<(String, String, f64)> {
        let Saving { stage, ms, .. } = it.max_saving.as_deref()?;
        Some((it.id.clone(), stage.clone(), (*ms)?))
    };
    let remaining = |finding: &str, stage: &str| {
        let same = b.iter().filter_map(saving).filter(|it| it.0 == finding && it.1 == stage);
        same.map(|it| it.2).fold(0.0, f64::max)
    };
    let mut claims: Vec<Claim> = Vec::new();
    for (finding, stage, promised_ms) in a.iter().filter_map(saving) {
        let remaining_ms = remaining(&finding, &stage);
        let listed = claims.iter().any(|it| it.finding == finding && it.stage == stage);
        if listed || remaining_ms > promised_ms * (1.0 - UNCHANGED) {
            continue;
        }
        if let Some(realised_ms) = saved_ms(&stage) {
            claims.push(Claim { finding, stage, promised_ms, remaining_ms, realised_ms });
        }
    }
    claims.sort_by(|a, b| b.promised_ms.total_cmp(&a.promised_ms));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::finding::Severity;

    fn finding(id: &str, stage: &str, ms: f64) -> Finding {
        let saving = Saving { stage: stage.into(), ms: Some(ms), pct: 10.0 };
        let finding = Finding::new(id, Severity::Info, "x");
        Finding { max_saving: Some(Box::new(saving)), ..finding }
    }

    #[test]
    fn a_finding_that_is_gone_or_smaller_is_a_claim_with_the_change_of_its_stage() {
        let a = [
            finding("idle_gpu", "decode_all", 5.0),
            finding("small_kernels", "prefill", 2.0),
            finding("dominant_kernel", "decode_all", 3.0),
            Finding::new("host_busy", Severity::Info, "no saving"),
        ];
        let b = [finding("idle_gpu", "decode_all", 1.0), finding("small_kernels", "prefill", 1.9)];
        let found = claims(&a, &b, |stage| (stage == "decode_all").then_some(3.5));
        let of = |finding: &str, promised_ms, remaining_ms| Claim {
            finding: finding.into(),
            stage: "decode_all".into(),
            promised_ms,
            remaining_ms,
            realised_ms: 3.5,
        };
        assert_eq!(found, [of("idle_gpu", 5.0, 1.0), of("dominant_kernel", 3.0, 0.0)]);
        assert_eq!(claims(&a, &a, |_| Some(1.0)), [], "nothing was done about them");
        assert_eq!(claims(&a, &b, |_| None), [], "the stage is missing in a run");
    }
}
