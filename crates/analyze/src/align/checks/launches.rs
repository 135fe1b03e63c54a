//! Checks of launches: their number, their grids and blocks, their order, and replay.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::domain::alignment::of_sides;

use super::{
    AlignmentCheck, AlignmentEvidence, EvidenceRow, KernelPlace, SIDES, Verdict, check, pass_if,
    row,
};
use crate::{
    align::sequence::{self, Pair},
    stats::percent,
};

/// Grid and block.
type LaunchDims = ([u32; 3], [u32; 3]);

/// Launch dimensions that a row lists.
const LISTED_DIMS: usize = 3;

impl AlignmentEvidence<'_> {
    pub(super) fn counts(&self) -> AlignmentCheck {
        let mut by_length: BTreeMap<usize, [u64; 2]> = BTreeMap::new();
        let mut mean = |side: usize| {
            let operation = self.operations[side];
            let lengths: Vec<usize> =
                operation.sequences.iter().map(|it| self.kept(side, it).len()).collect();
            let instances = &operation.instances;
            instances.iter().for_each(|it| {
                by_length.entry(lengths[it.sequence as usize]).or_default()[side] += 1
            });
            instances.iter().map(|it| lengths[it.sequence as usize] as f64).sum::<f64>()
                / instances.len() as f64
        };
        let [mock, e2e] = [mean(0), mean(1)];
        let mut by_name: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
        for side in [0, 1] {
            let usual = self.usual(side);
            usual.iter().for_each(|key| by_name.entry(*key).or_default()[side] += 1);
        }
        let differs = by_name.iter().filter(|(_, counts)| counts[0] != counts[1]);
        let named = |(key, [a, b]): (&u32, &[u64; 2])| {
            row(self.names[*key as usize].clone(), a.to_string(), b.to_string(), "")
        };
        let mut rows: Vec<EvidenceRow> = differs.map(named).collect();
        let usual_differs = !rows.is_empty();
        let length = |(length, [a, b]): (&usize, &[u64; 2])| {
            row(format!("instances of {length} kernels"), a.to_string(), b.to_string(), "")
        };
        rows.extend(by_length.iter().map(length));
        let off = percent((mock - e2e).abs(), e2e).unwrap_or(100.0);
        let limit = self.question.thresholds.count_pct;
        let good = off <= limit + 1e-9 && (!usual_differs || limit > 0.0);
        let observed = of_sides([mock, e2e].map(count_text));
        let observed = format!("kernels per layer and forward: {observed}");
        check("counts", pass_if(good), observed, format!("within {limit} %"), rows)
    }

    /// Compares grids and blocks at each place of sequences of the same names; of the usual ones
    /// if no names are the same.
    pub(super) fn geometry(&self, pairs: &[Pair]) -> AlignmentCheck {
        let dims = [self.launch_dims(0), self.launch_dims(1)];
        let usual = [self.usual(0), self.usual(1)];
        let matched: Vec<Pair> =
            pairs.iter().copied().filter(|(a, b)| a.is_some() && b.is_some()).collect();
        let common = dims[0].keys().filter(|names| dims[1].contains_key(*names));
        let mut compared: Vec<([&Vec<u32>; 2], Vec<Pair>)> = common
            .map(|names| ([names; 2], (0..names.len()).map(|at| (Some(at), Some(at))).collect()))
            .collect();
        if usual[0] != usual[1] {
            compared.push(([&usual[0], &usual[1]], matched));
        }
        let (mut rows, mut both) = (Vec::new(), 0);
        for ([left, right], pairs) in compared {
            for (a, b) in pairs.into_iter().filter_map(|(a, b)| a.zip(b)) {
                both += 1;
                let (mock, e2e) = (&dims[0][left][a], &dims[1][right][b]);
                if mock != e2e {
                    let name = self.names[left[a] as usize].clone();
                    let places = format!("place {}", of_sides([a + 1, b + 1]));
                    rows.push(row(name, dims_text(mock), dims_text(e2e), places));
                }
            }
        }
        let verdict = if both == 0 { Verdict::Inconclusive } else { pass_if(rows.is_empty()) };
        let observed = format!("{} of {both} matched places differ in grid or block", rows.len());
        check("geometry", verdict, observed, "the same grids and blocks at each place".into(), rows)
    }

    /// By sequence of names: the grids and blocks seen at each of its places.
    fn launch_dims(&self, side: usize) -> BTreeMap<Vec<u32>, Vec<BTreeSet<LaunchDims>>> {
        let kinds = self.sides[side].trace.kernels.kinds();
        let mut dims: BTreeMap<Vec<u32>, Vec<BTreeSet<LaunchDims>>> = BTreeMap::new();
        for sequence in &self.operations[side].sequences {
            let kept = self.kept(side, sequence);
            let places = dims
                .entry(self.keyed(side, sequence))
                .or_insert_with(|| vec![BTreeSet::new(); kept.len()]);
            for (seen, kind) in places.iter_mut().zip(kept) {
                seen.insert((kinds[kind as usize].grid, kinds[kind as usize].block));
            }
        }
        dims
    }

    pub(super) fn sequence(&self, places: &[KernelPlace]) -> AlignmentCheck {
        let keyed = |side: usize| -> Vec<Vec<u32>> {
            self.operations[side].sequences.iter().map(|it| self.keyed(side, it)).collect()
        };
        let all = [keyed(0), keyed(1)];
        let sets = [0, 1].map(|side| all[side].iter().collect::<BTreeSet<_>>());
        let mut one_sided: [BTreeMap<&Vec<u32>, u64>; 2] = Default::default();
        let mut share = |side: usize| {
            let instances = &self.operations[side].instances;
            let mut shared = 0;
            for instance in instances {
                let sequence = &all[side][instance.sequence as usize];
                if sets[1 - side].contains(sequence) {
                    shared += 1
                } else {
                    *one_sided[side].entry(sequence).or_default() += 1
                }
            }
            percent(f64::from(shared), instances.len() as f64).unwrap_or(0.0)
        };
        let [mock, e2e] = [share(0), share(1)];
        let limit = self.question.thresholds.sequence_pct;
        let differs = places
            .iter()
            .enumerate()
            .filter(|(_, place)| place.mock.is_none() || place.e2e.is_none());
        let name = |it: &Option<String>| it.clone().unwrap_or_else(|| "–".into());
        let place = |(at, place): (usize, &KernelPlace)| {
            let note = "on one side only, or elsewhere in the order";
            row(format!("place {}", at + 1), name(&place.mock), name(&place.e2e), note)
        };
        let mut rows: Vec<EvidenceRow> = differs.map(place).collect();
        for (side, sequences) in one_sided.iter().enumerate() {
            let usual = self.usual(1 - side);
            for (sequence, instances) in sequences {
                let pairs = sequence::align(sequence, &usual);
                let off = pairs.iter().filter(|(a, b)| a.is_none() || b.is_none()).count();
                let mut counts = [String::new(), String::new()];
                counts[side] = format!("{instances} instances");
                let [mock, e2e] = counts;
                let note =
                    format!("{off} places differ from the usual order of the {}", SIDES[1 - side]);
                rows.push(row("order on one side only", mock, e2e, note));
            }
        }
        let observed = format!(
            "{mock:.1} % of the mock's instances and {e2e:.1} % of the whole model's have an \
             order of the other side"
        );
        let verdict = pass_if(mock.min(e2e) >= limit);
        check("sequence", verdict, observed, format!("{limit} % of each"), rows)
    }

    pub(super) fn graphs(&self) -> AlignmentCheck {
        let share = |side: usize| {
            let operation = self.operations[side];
            percent(operation.replayed as f64, operation.kernels as f64).unwrap_or(0.0)
        };
        let [mock, e2e] = [0, 1].map(share);
        let observed = format!(
            "{mock:.0} % of the mock's kernels and {e2e:.0} % of the whole model's are replayed"
        );
        check("graphs", pass_if((mock - e2e).abs() < 1.0), observed, "equal shares".into(), vec![])
    }
}

/// A mean count, without decimals if it is an integer.
fn count_text(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

fn dims_text(dims: &BTreeSet<LaunchDims>) -> String {
    let first: Vec<String> = dims
        .iter()
        .take(LISTED_DIMS)
        .map(|(grid, block)| format!("{grid:?} x {block:?}"))
        .collect();
    first.join(", ") + if dims.len() > LISTED_DIMS { ", and more" } else { "" }
}
