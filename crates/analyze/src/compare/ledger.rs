//! Difference of two ledgers: the change of a stage's time by cause and kernel.
//!
//! The changes of a stage add up to the change of its measured time.

use std::collections::BTreeMap;

use llmprof_core::domain::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::{
    ledger::{Ledger, LedgerCause, LedgerMember, LedgerStage},
    stages::in_sentence,
    stats::ratio,
};

/// Changes named in the summary of a stage.
const NAMED: usize = 3;
/// Changes smaller than this share of the largest one are not named, percent.
const SMALL_PCT: f64 = 10.0;

/// Change of one stage from run A to run B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerStageChange {
    pub stage: String,
    /// The change and its largest parts in one sentence.
    pub summary: String,
    /// Change of the measured time.
    pub change_ns: i64,
    /// Parts other than zero, largest first; their sum is `change_ns`.
    pub changes: Vec<LedgerChange>,
}

/// Change of one kernel or gap of a cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerChange {
    pub cause: LedgerCause,
    pub operator: Option<String>,
    pub kernel: Option<String>,
    pub a_ns: i64,
    pub b_ns: i64,
    pub change_ns: i64,
}

/// Cause, operator and kernel; launch configurations are summed.
type Part = (LedgerCause, Option<String>, Option<String>);

/// Compares the stages that both ledgers have, in one unit.
pub fn ledger_changes(a: &Ledger, b: &Ledger) -> Vec<LedgerStageChange> {
    let change = |it: &LedgerStage| {
        let is_same = |other: &&LedgerStage| other.stage == it.stage && other.unit == it.unit;
        let other = b.stages.iter().find(is_same)?;
        let mut parts: BTreeMap<Part, (i64, i64)> = BTreeMap::new();
        members(a, &it.stage).for_each(|(part, ns)| parts.entry(part).or_default().0 += ns);
        members(b, &it.stage).for_each(|(part, ns)| parts.entry(part).or_default().1 += ns);
        let of = |((cause, operator, kernel), (a_ns, b_ns)): (Part, (i64, i64))| LedgerChange {
            cause,
            operator,
            kernel,
            a_ns,
            b_ns,
            change_ns: b_ns - a_ns,
        };
        let mut changes: Vec<LedgerChange> =
            parts.into_iter().map(of).filter(|it| it.change_ns != 0).collect();
        changes.sort_by_key(|it| std::cmp::Reverse(it.change_ns.abs()));
        let change_ns = other.measured_ns - it.measured_ns;
        let steps = it.steps.filter(|steps| other.steps == Some(*steps) && *steps > 0);
        let summary = summary(&it.stage, change_ns, steps, &changes);
        Some(LedgerStageChange { stage: it.stage.clone(), summary, change_ns, changes })
    };
    a.stages.iter().filter_map(change).collect()
}

fn members<'a>(ledger: &'a Ledger, stage: &'a str) -> impl Iterator<Item = (Part, i64)> + 'a {
    let part = |it: &LedgerMember| (it.cause, it.operator.clone(), it.kernel.clone());
    ledger.members.iter().filter(move |it| it.stage == stage).map(move |it| (part(it), it.ns))
}

/// `decode +0.31 ms: +0.22 grouped_up (more bytes than necessary), +0.09 gaps after route`.
fn summary(stage: &str, change_ns: i64, steps: Option<u64>, changes: &[LedgerChange]) -> String {
    let (per, each) = steps.map_or(("", 1.0), |steps| (" per step", steps as f64));
    let ms = |ns: i64| {
        let ms = Nanos(ns).as_ms() / each;
        let places = if ms.abs() < 0.01 { 5 } else { 3 };
        format!("{}{:.places$}", if ns < 0 { "−" } else { "+" }, ms.abs())
    };
    // Parts of several operators may have one name.
    let mut by_name: BTreeMap<String, i64> = BTreeMap::new();
    changes.iter().for_each(|it| *by_name.entry(name(it)).or_default() += it.change_ns);
    let mut by_name: Vec<_> = by_name.into_iter().filter(|(_, ns)| *ns != 0).collect();
    by_name.sort_by_key(|(_, ns)| std::cmp::Reverse(ns.abs()));
    let largest = by_name.first().map_or(0, |(_, ns)| ns.abs());
    let is_named = |(_, ns): &&(String, i64)| {
        ratio(100.0 * ns.abs() as f64, largest as f64).is_some_and(|pct| pct >= SMALL_PCT)
    };
    let named: Vec<String> = by_name
        .iter()
        .filter(is_named)
        .take(NAMED)
        .map(|(name, ns)| format!("{} {name}", ms(*ns)))
        .collect();
    let parts = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
    format!("{} {} ms{per}{parts}", in_sentence(stage), ms(change_ns))
}

fn name(it: &LedgerChange) -> String {
    let work = it.kernel.as_ref().or(it.operator.as_ref());
    match (it.cause, work) {
        (LedgerCause::PassDifference, _) | (_, None) => it.cause.words().to_owned(),
        (cause, Some(work)) if cause.is_gap() => format!("{} after {work}", cause.words()),
        (cause, Some(work)) => format!("{work} ({})", cause.words()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel `k@op` is of the operator `op`.
    fn ledger(measured_ns: i64, members: &[(LedgerCause, &str, i64)]) -> Ledger {
        let stage = LedgerStage {
            stage: "decode_all".into(),
            measured_ns,
            steps: Some(10),
            ..LedgerStage::default()
        };
        let member = |(cause, kernel, ns): &(LedgerCause, &str, i64)| {
            let (kernel, operator) = kernel.split_once('@').unwrap_or((kernel, "op"));
            LedgerMember {
                stage: "decode_all".into(),
                cause: *cause,
                operator: Some(operator.into()),
                kernel: Some(kernel.into()),
                full_name: None,
                grid: None,
                block: None,
                calls: 1.0,
                ns: *ns,
                share_pct: None,
                pass: String::new(),
                samples: 0,
                gap_parts: 0,
                evidence: String::new(),
                max_saving_ns: 0,
                longest_ns: None,
            }
        };
        let members = members.iter().map(member).collect();
        Ledger { stages: vec![stage], rows: vec![], members }
    }

    #[test]
    fn a_change_is_attributed_to_causes_and_kernels_and_adds_up() {
        use LedgerCause::{Floor, GapQueued, MoreBytes};
        let a = ledger(
            5_000_000,
            &[
                (Floor, "f", 4_000_000),
                (MoreBytes, "grouped_up", 900_000),
                (GapQueued, "route", 100_000),
            ],
        );
        let b = ledger(
            8_100_000,
            &[
                (Floor, "f", 4_000_000),
                (MoreBytes, "grouped_up", 1_600_000),
                (MoreBytes, "grouped_up", 1_500_000),
                (GapQueued, "route", 1_000_000),
            ],
        );
        let changes = ledger_changes(&a, &b).remove(0);
        assert_eq!(
            changes.summary,
            "decode +0.310 ms per step: +0.220 grouped_up (more bytes than necessary), \
             +0.090 gaps before work already launched after route"
        );
        let sum: i64 = changes.changes.iter().map(|it| it.change_ns).sum();
        assert_eq!((sum, changes.changes.len()), (changes.change_ns, 2));
        assert_eq!(ledger_changes(&a, &a)[0].summary, "decode +0.00000 ms per step");
        assert_eq!(ledger_changes(&a, &Ledger::default()), []);
    }

    #[test]
    fn a_kernel_of_several_operators_is_named_once_with_the_sum_of_its_changes() {
        use LedgerCause::MoreBytes;
        let a = ledger(3_000_000, &[(MoreBytes, "gemm@q", 0), (MoreBytes, "norm", 900_000)]);
        let b = ledger(
            3_500_000,
            &[
                (MoreBytes, "gemm@q", 600_000),
                (MoreBytes, "gemm@v", 500_000),
                (MoreBytes, "norm", 300_000),
            ],
        );
        let changes = ledger_changes(&a, &b).remove(0);
        assert_eq!(
            changes.summary,
            "decode +0.050 ms per step: +0.110 gemm (more bytes than necessary), −0.060 norm \
             (more bytes than necessary)"
        );
        assert_eq!(changes.changes.len(), 3);
    }
}
