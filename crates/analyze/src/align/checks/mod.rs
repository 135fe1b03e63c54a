//! The checks of an alignment, each with its observation, its threshold and its rows.
//!
//! Nothing here reads a capture: checks compare isolated operations.

mod conditions;
mod launches;
mod names;
mod preconditions;
mod timing;

use std::collections::BTreeMap;

use llmprof_core::domain::alignment::AlignedSide;

use super::{
    AlignmentCheck, AlignmentSide, EvidenceRow, KernelPlace, Verdict,
    advice::advice,
    kernel_times::{KernelTime, kernel_time},
    operation_instances::{AlignedCapture, IsolatedOperation},
    sequence::{self, Pair},
    settings::Question,
};

/// Maximum number of rows of a check.
const MAX_ROWS: usize = 60;
/// Names of the sides.
pub(super) const SIDES: [&str; 2] = [AlignedSide::Mock.name(), AlignedSide::WholeModel.name()];
/// Checks that compare kernels of both sides.
pub(super) const COMPARING: [&str; 10] = [
    "names",
    "missing_kernels",
    "extra_kernels",
    "counts",
    "geometry",
    "sequence",
    "matched_time",
    "latency",
    "kernel_time",
    "graphs",
];

/// The input of the checks: both sides, the mock first.
pub struct AlignmentEvidence<'a> {
    pub sides: [&'a AlignmentSide<'a>; 2],
    pub captures: &'a [AlignedCapture<'a>; 2],
    pub operations: [&'a IsolatedOperation; 2],
    /// Number of the name of each kind of launch.
    pub keys: &'a [Vec<u32>; 2],
    pub names: &'a [String],
    pub waived: &'a [Vec<bool>; 2],
    /// The whole model's side was isolated by the mock's sequence.
    pub by_sequence: bool,
    pub question: &'a Question,
}

pub(super) fn check(
    id: &str,
    verdict: Verdict,
    observed: String,
    threshold: String,
    mut rows: Vec<EvidenceRow>,
) -> AlignmentCheck {
    rows.truncate(MAX_ROWS);
    let advice = (verdict != Verdict::Pass).then(|| advice(id).to_owned());
    AlignmentCheck { id: id.into(), verdict, observed, threshold, decisive: true, rows, advice }
}

pub(super) fn row(
    what: impl Into<String>,
    mock: impl Into<String>,
    e2e: impl Into<String>,
    note: impl Into<String>,
) -> EvidenceRow {
    EvidenceRow { what: what.into(), mock: mock.into(), e2e: e2e.into(), note: note.into() }
}

fn pass_if(good: bool) -> Verdict {
    if good { Verdict::Pass } else { Verdict::Fail }
}

/// Runs all checks, and puts the usual sequences side by side.
pub fn checks(
    evidence: &AlignmentEvidence,
    kernels: &[KernelTime],
) -> (Vec<AlignmentCheck>, Vec<KernelPlace>) {
    let mut checks = vec![preconditions::complete(evidence), preconditions::isolation(evidence)];
    let mut places = Vec::new();
    let empty = [0, 1].into_iter().filter(|at| evidence.operations[*at].instances.is_empty());
    let empty: Vec<&str> = empty.map(|at| SIDES[at]).collect();
    if !empty.is_empty() {
        let observed = format!("no kernels of the operation in the {}", empty.join(" and the "));
        let inconclusive = |id| {
            let threshold = "kernels on both sides".to_owned();
            check(id, Verdict::Inconclusive, observed.clone(), threshold, vec![])
        };
        checks.extend(COMPARING.map(inconclusive));
        let has_kernels = evidence.sides.iter().all(|it| !it.trace.kernels.is_empty());
        // One cause has one remedy.
        let causes = if has_kernels { 2 } else { 1 };
        checks.iter_mut().skip(causes).for_each(|it| it.advice = None);
    } else {
        let pairs = evidence.pairs();
        places = evidence.places(&pairs);
        checks.extend([
            evidence.names(),
            evidence.one_sided(1),
            evidence.one_sided(0),
            evidence.counts(),
            evidence.geometry(&pairs),
            evidence.sequence(&places),
            evidence.matched_time(),
            evidence.latency(),
            kernel_time(evidence, kernels),
            evidence.graphs(),
        ]);
    }
    checks.extend([conditions::inputs(evidence), conditions::clocks(evidence)]);
    (checks, places)
}

impl AlignmentEvidence<'_> {
    /// Time by name of the launches that are not waived, nanoseconds.
    fn times(&self, side: usize) -> BTreeMap<u32, i64> {
        let mut times = BTreeMap::new();
        for (kind, ns) in self.operations[side]
            .kind_times
            .iter()
            .filter(|(kind, _)| !self.waived[side][**kind as usize])
        {
            *times.entry(self.keys[side][*kind as usize]).or_default() +=
                ns.iter().map(|it| it.ns).sum::<i64>();
        }
        times
    }

    /// A sequence without waived launches.
    fn kept(&self, side: usize, sequence: &[u32]) -> Vec<u32> {
        sequence.iter().copied().filter(|kind| !self.waived[side][*kind as usize]).collect()
    }

    fn keyed(&self, side: usize, sequence: &[u32]) -> Vec<u32> {
        self.kept(side, sequence).iter().map(|kind| self.keys[side][*kind as usize]).collect()
    }

    fn usual(&self, side: usize) -> Vec<u32> {
        self.keyed(side, self.operations[side].usual())
    }

    fn pairs(&self) -> Vec<Pair> {
        sequence::align(&self.usual(0), &self.usual(1))
    }

    fn places(&self, pairs: &[Pair]) -> Vec<KernelPlace> {
        let usual = [0, 1].map(|side| self.usual(side));
        let name = |side: usize, at: Option<usize>| {
            at.map(|at| self.names[usual[side][at] as usize].clone())
        };
        pairs.iter().map(|(a, b)| KernelPlace { mock: name(0, *a), e2e: name(1, *b) }).collect()
    }
}
