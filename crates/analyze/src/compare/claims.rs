//! Promised and realised savings: findings of the run before, and what became of them.
//!
//! A finding's saving is an upper bound for its own stage; the stage's change is what all changes
//! of the program saved together.

use llmprof_core::domain::{
    ids::RunId,
    savings::{Promise, Savings, TimeError},
};
use serde::{Deserialize, Serialize};

use super::student::{ALPHA, Difference, Estimate};

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

/// A claim with the run that realised it.
#[derive(Debug, Clone, PartialEq)]
pub struct RealisedClaim {
    pub by: RunId,
    pub claim: Claim,
}

/// Links the promises of run A to the changes of their stages. `saved_ms` returns the time that a
/// stage takes less in run B.
pub fn claims(a: &[Promise], b: &[Promise], saved_ms: impl Fn(&str) -> Option<f64>) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    for Promise { finding, stage, ms: promised_ms } in a {
        let is_it = |finding_b: &str, stage_b: &str| finding_b == finding && stage_b == stage;
        let same = b.iter().filter(|it| is_it(&it.finding, &it.stage));
        let remaining_ms = same.map(|it| it.ms).fold(0.0, f64::max);
        let listed = claims.iter().any(|it| is_it(&it.finding, &it.stage));
        if listed || remaining_ms > promised_ms * (1.0 - UNCHANGED) {
            continue;
        }
        if let Some(realised_ms) = saved_ms(stage) {
            claims.push(Claim {
                finding: finding.clone(),
                stage: stage.clone(),
                promised_ms: *promised_ms,
                remaining_ms,
                realised_ms,
            });
        }
    }
    claims.sort_by(|a, b| b.promised_ms.total_cmp(&a.promised_ms));
    claims
}

/// Time that a stage takes less in the later run, by the test of a comparison: a stage that is not
/// proven faster realises nothing.
fn proven_saving(before: &Savings, after: &Savings, stage: &str) -> Option<f64> {
    let estimate = |it: &Savings| {
        let TimeError { std_error_ms, freedom } = *it.errors.get(stage)?;
        Some(Estimate { mean: *it.stages.get(stage)?, std_error: std_error_ms, freedom })
    };
    let (before, after) = (estimate(before)?, estimate(after)?);
    let is_proven = Difference::of(&before, &after).p() < ALPHA;
    Some(before.mean - after.mean).filter(|ms| *ms > 0.0 && is_proven)
}

/// The claims of a run, each with the first of the `later` runs of its series that realised it.
pub fn realised(of: &Savings, later: &[(RunId, Savings)]) -> Vec<RealisedClaim> {
    let mut found: Vec<RealisedClaim> = Vec::new();
    for (by, run) in later {
        let saved = |stage: &str| proven_saving(of, run, stage);
        let new = |claim: &Claim| {
            let is_it = |it: &Claim| it.finding == claim.finding && it.stage == claim.stage;
            !found.iter().any(|known| is_it(&known.claim))
        };
        let mut claims = claims(&of.promises, &run.promises, saved);
        claims.retain(new);
        found.extend(claims.into_iter().map(|claim| RealisedClaim { by: *by, claim }));
    }
    found.sort_by(|a, b| b.claim.promised_ms.total_cmp(&a.claim.promised_ms));
    found
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::finding::{
        Finding, Saving,
        catalogue::{self, FindingId},
    };

    use super::*;

    fn finding(id: FindingId, stage: &str, ms: f64) -> Finding {
        let saving = Saving { stage: stage.into(), ms: Some(ms), pct: 10.0 };
        Finding::new(id, "x").saves(Some(saving))
    }

    #[test]
    fn a_finding_that_is_gone_or_smaller_is_a_claim_with_the_change_of_its_stage() {
        let a = [
            finding(catalogue::DECODE_EAGER, "decode_all", 5.0),
            finding(catalogue::TINY_KERNELS, "prefill", 2.0),
            finding(catalogue::KV_CACHE_COPIES, "decode_all", 3.0),
            Finding::new(catalogue::HOST_BUSY, "no saving"),
        ];
        let b = [
            finding(catalogue::DECODE_EAGER, "decode_all", 1.0),
            finding(catalogue::TINY_KERNELS, "prefill", 1.9),
        ];
        let (a, b) = (Promise::of(&a), Promise::of(&b));
        let found = claims(&a, &b, |stage| (stage == "decode_all").then_some(3.5));
        let of = |finding: &str, promised_ms, remaining_ms| Claim {
            finding: finding.into(),
            stage: "decode_all".into(),
            promised_ms,
            remaining_ms,
            realised_ms: 3.5,
        };
        assert_eq!(found, [of("decode_eager", 5.0, 1.0), of("kv_cache_copies", 3.0, 0.0)]);
        assert_eq!(claims(&a, &a, |_| Some(1.0)), [], "nothing was done about them");
        assert_eq!(claims(&a, &b, |_| None), [], "the stage is missing in a run");
    }

    #[test]
    fn a_promise_is_linked_to_the_first_later_run_that_realised_it() {
        let run = |decode_ms: f64, promised: &[(&str, f64)]| Savings {
            stages: [("decode_all".to_owned(), decode_ms)].into(),
            errors: [("decode_all".to_owned(), TimeError { std_error_ms: 0.5, freedom: 2.0 })]
                .into(),
            promises: promised
                .iter()
                .map(|(finding, ms)| Promise {
                    finding: (*finding).into(),
                    stage: "decode_all".into(),
                    ms: *ms,
                })
                .collect(),
        };
        let [a, b, c] = [(); 3].map(|()| RunId::now());
        let before = run(20.0, &[("idle_gpu", 5.0), ("small_kernels", 2.0), ("kept", 1.0)]);
        let later = [
            (a, run(20.1, &[("idle_gpu", 4.9), ("small_kernels", 2.0), ("kept", 1.0)])),
            (b, run(16.0, &[("small_kernels", 2.1), ("kept", 0.95)])),
            (c, run(15.0, &[("kept", 1.0)])),
        ];
        let found = realised(&before, &later);
        let of = |it: &RealisedClaim| {
            let Claim { finding, promised_ms, remaining_ms, realised_ms, .. } = &it.claim;
            (it.by, finding.clone(), [*promised_ms, *remaining_ms, *realised_ms])
        };
        assert_eq!(
            found.iter().map(of).collect::<Vec<_>>(),
            [
                (b, "idle_gpu".to_owned(), [5.0, 0.0, 4.0]),
                (c, "small_kernels".to_owned(), [2.0, 0.0, 5.0])
            ]
        );
        let slower = [(a, run(20.5, &[]))];
        assert_eq!(realised(&before, &slower), [], "the stage is not faster");
        let noise = [(a, run(19.2, &[]))];
        assert_eq!(realised(&before, &noise), [], "0.8 ms are within the noise");
        let single = [(a, Savings { errors: [].into(), ..run(10.0, &[]) })];
        assert_eq!(realised(&before, &single), [], "the noise of one repeat is unknown");
        let unknown = Savings { stages: [].into(), ..before };
        assert_eq!(realised(&unknown, &later), [], "the stage's time is unknown");
    }
}
