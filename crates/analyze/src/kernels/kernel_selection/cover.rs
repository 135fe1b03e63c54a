//! Selects kernels that cover the target with few launches.
//!
//! With `--filter-mode per-launch-config --launch-count N` ncu profiles the first N launches of
//! each name, grid, block and shared memory among the kernels that it selects; the name is the one
//! of `--kernel-name-base` (counted on an H100 with ncu 2025.3: tests/gpu/command-h200.txt). So
//! what a kernel covers does not depend on the others, and all its configurations are profiled.

/// Gains below this are rounding errors.
const MIN_GAIN: f64 = 1e-9;

/// A kernel to select from.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Candidate {
    /// Share of each stage's kernel time that its profiled launches stand for.
    pub shares: Vec<f64>,
    /// Launches that are profiled.
    pub launches: usize,
}

/// Limits of a selection.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoverLimits {
    /// Share of each stage to cover.
    pub target: f64,
    pub max_launches: usize,
}

/// Share of each of `stages` that these candidates cover.
pub(super) fn covered<'a>(
    candidates: impl Iterator<Item = &'a Candidate>,
    stages: usize,
) -> Vec<f64> {
    let mut sums = vec![0.0; stages];
    for candidate in candidates {
        sums.iter_mut().zip(&candidate.shares).for_each(|(sum, share)| *sum += share);
    }
    sums
}

/// Selects kernels until each stage's target is covered: always the one with the most coverage per
/// launch. Returns their indexes, those with the largest share of a stage first.
pub(super) fn select(candidates: &[Candidate], limits: &CoverLimits) -> Vec<usize> {
    let stages = candidates.first().map_or(0, |it| it.shares.len());
    let score = |selected: &[usize]| -> f64 {
        let covered = covered(selected.iter().map(|at| &candidates[*at]), stages);
        covered.into_iter().map(|share| share.min(limits.target)).sum()
    };
    let largest = |at: &usize| candidates[*at].shares.iter().copied().fold(0.0, f64::max);
    let mut ranked: Vec<usize> = (0..candidates.len()).filter(|at| largest(at) > 0.0).collect();
    ranked.sort_by(|a, b| largest(b).total_cmp(&largest(a)));
    let (mut selected, mut launches) = (Vec::new(), 0);
    loop {
        let before = score(&selected);
        let mut best: Option<(f64, usize)> = None;
        for at in ranked.iter().filter(|at| !selected.contains(*at)) {
            let more = candidates[*at].launches;
            let gain = score(&[&selected[..], &[*at]].concat()) - before;
            let ratio = gain / more.max(1) as f64;
            let is_allowed = gain > MIN_GAIN && launches + more <= limits.max_launches;
            if is_allowed && best.is_none_or(|(most, _)| ratio > most) {
                best = Some((ratio, *at));
            }
        }
        let Some((_, at)) = best else { break };
        selected.push(at);
        launches += candidates[at].launches;
    }
    let reached = score(&selected);
    for at in ranked.iter().rev() {
        let without: Vec<usize> = selected.iter().filter(|it| *it != at).copied().collect();
        if score(&without) >= reached - MIN_GAIN {
            selected = without;
        }
    }
    ranked.retain(|at| selected.contains(at));
    ranked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WIDE: CoverLimits = CoverLimits { target: 0.9, max_launches: 10_000 };

    /// Candidates `percent*launches` of one stage.
    fn candidates(sketch: &str) -> Vec<Candidate> {
        let candidate = |word: &str| {
            let (percent, launches) = word.split_once('*').unwrap();
            let share = percent.parse::<f64>().unwrap() / 100.0;
            Candidate { shares: vec![share], launches: launches.parse().unwrap() }
        };
        sketch.split_whitespace().map(candidate).collect()
    }

    #[test]
    fn kernels_are_added_until_the_target_is_covered() {
        assert_eq!(select(&candidates("45*1 50*1 5*1"), &WIDE), [1, 0]);
    }

    #[test]
    fn a_kernel_with_many_configurations_comes_after_those_with_the_same_time_in_one() {
        let of = candidates("40*20 40*1 20*1");
        let limits = CoverLimits { target: 0.6, ..WIDE };
        assert_eq!(select(&of, &limits), [1, 2]);
        let limits = CoverLimits { max_launches: 10, ..WIDE };
        assert_eq!(select(&of, &limits), [1, 2], "20 launches are too many");
    }

    #[test]
    fn a_kernel_that_became_unnecessary_is_dropped() {
        // After the second, the first has the most per launch; with the third, which is needed, it
        // is not.
        let of = candidates("17*9 52*26 28*14");
        assert_eq!(select(&of, &CoverLimits { target: 0.8, ..WIDE }), [1, 2]);
    }

    /// Up to eight kernels, with shares of two stages.
    fn any_candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let kernel = (0u32..100, 0u32..100, 1usize..9);
        prop::collection::vec(kernel, 1..9).prop_map(|kernels| {
            let total = |stage: fn(&(u32, u32, usize)) -> u32| {
                kernels.iter().map(|it| f64::from(stage(it))).sum::<f64>().max(1.0)
            };
            let totals = (total(|it| it.0), total(|it| it.1));
            let of = |(one, two, launches): &(u32, u32, usize)| Candidate {
                shares: vec![f64::from(*one) / totals.0, f64::from(*two) / totals.1],
                launches: *launches,
            };
            kernels.iter().map(of).collect()
        })
    }

    fn score(of: &[Candidate], selected: &[usize]) -> f64 {
        let covered = covered(selected.iter().map(|at| &of[*at]), 2);
        covered.into_iter().map(|share| share.min(WIDE.target)).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// The target is reached wherever all kernels together reach it, and no kernel can be left
        /// out.
        #[test]
        fn the_target_is_reached_and_no_kernel_is_unneeded(of in any_candidates()) {
            let selected = select(&of, &WIDE);
            let all: Vec<usize> = (0..of.len()).collect();
            let reached = score(&of, &selected);
            prop_assert!(reached >= score(&of, &all) - 1e-6);
            for at in &selected {
                let fewer: Vec<usize> = selected.iter().filter(|it| *it != at).copied().collect();
                prop_assert!(score(&of, &fewer) < reached - MIN_GAIN);
            }
        }

        #[test]
        fn the_maximum_of_launches_holds(of in any_candidates(), max_launches in 1usize..20) {
            let selected = select(&of, &CoverLimits { max_launches, ..WIDE });
            let launches: usize = selected.iter().map(|at| of[*at].launches).sum();
            prop_assert!(launches <= max_launches);
        }
    }
}
