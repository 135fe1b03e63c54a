//! Selects kernels that cover the target with few launches.
//!
//! With `--filter-mode per-launch-config --launch-count 1` ncu profiles the first launch of each
//! name, grid, block and shared memory among the kernels that it selects; the name is that of
//! `--kernel-name-base` (counted on an H100 with ncu 2025.3: tests/gpu/command-h200.txt). All
//! configurations of a kernel are profiled, since ncu selects by name.

/// Kernels that are considered, by their share.
const MAX_KERNELS: usize = 128;
/// Gains below this are rounding errors.
const MIN_GAIN: f64 = 1e-9;

/// Launches of one name with one grid, block and shared memory, of which ncu profiles the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LaunchGroup {
    pub name: usize,
    /// Kernel and geometry of the first launch.
    pub pair: usize,
    /// Stage of the first launch.
    pub stage: usize,
}

/// Launches to select from.
#[derive(Debug, Clone, Default)]
pub(super) struct Selectable {
    pub groups: Vec<LaunchGroup>,
    /// Share of each pair in each stage's kernel time.
    pub shares: Vec<Vec<f64>>,
    /// Number of names.
    pub names: usize,
}

/// Limits of a selection.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoverLimits {
    /// Share of each stage to cover.
    pub target: f64,
    pub max_launches: usize,
}

impl Selectable {
    /// The groups of these names.
    pub fn profiled<'a>(&'a self, names: &'a [usize]) -> impl Iterator<Item = LaunchGroup> + 'a {
        self.groups.iter().filter(|group| names.contains(&group.name)).copied()
    }

    /// Share of each stage covered by the pairs of these groups.
    pub fn covered(&self, profiled: impl Iterator<Item = LaunchGroup>) -> Vec<f64> {
        let mut pairs: Vec<usize> = profiled.map(|it| it.pair).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let stages = self.shares.first().map_or(0, Vec::len);
        let stage = |stage: usize| pairs.iter().map(|pair| self.shares[*pair][stage]).sum();
        (0..stages).map(stage).collect()
    }

    /// Covered shares up to the target, and launches.
    fn score(&self, names: &[usize], target: f64) -> (f64, usize) {
        let covered = self.covered(self.profiled(names));
        let score = covered.into_iter().map(|share| share.min(target)).sum();
        (score, self.profiled(names).count())
    }

    /// Names to consider, largest share of a stage first.
    fn ranked(&self) -> Vec<usize> {
        let share =
            |name: usize| self.covered(self.profiled(&[name])).into_iter().fold(0.0, f64::max);
        let mut names: Vec<(f64, usize)> = (0..self.names)
            .map(|name| (share(name), name))
            .filter(|(share, _)| *share > 0.0)
            .collect();
        names.sort_by(|a, b| b.0.total_cmp(&a.0));
        names.truncate(MAX_KERNELS);
        names.into_iter().map(|(_, name)| name).collect()
    }
}

/// Selects kernels until each stage's target is covered: always the one with the most coverage per
/// launch. Those with the largest share come first.
pub(super) fn select(of: &Selectable, limits: &CoverLimits) -> Vec<usize> {
    let ranked = of.ranked();
    let mut selected: Vec<usize> = Vec::new();
    let (mut score, mut launches) = (0.0, 0);
    loop {
        let mut best: Option<(f64, usize)> = None;
        for name in ranked.iter().filter(|name| !selected.contains(name)) {
            let more = [&selected[..], &[*name]].concat();
            let (with, all) = of.score(&more, limits.target);
            if with - score <= MIN_GAIN || all > limits.max_launches {
                continue;
            }
            let ratio = (with - score) / (all - launches).max(1) as f64;
            if best.is_none_or(|(most, _)| ratio > most) {
                best = Some((ratio, *name));
            }
        }
        let Some((_, name)) = best else { break };
        selected.push(name);
        (score, launches) = of.score(&selected, limits.target);
    }
    for name in ranked.iter().rev() {
        let without: Vec<usize> = selected.iter().filter(|it| *it != name).copied().collect();
        if of.score(&without, limits.target).0 >= score - MIN_GAIN {
            selected = without;
        }
    }
    ranked.into_iter().filter(|name| selected.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WIDE: CoverLimits = CoverLimits { target: 0.9, max_launches: 10_000 };

    /// Groups `name:share`, in one stage.
    fn selectable(sketch: &str) -> Selectable {
        let mut of = Selectable::default();
        for (pair, word) in sketch.split_whitespace().enumerate() {
            let (name, share) = word.split_once(':').unwrap();
            let name = usize::from(name.as_bytes()[0] - b'a');
            of.names = of.names.max(name + 1);
            of.groups.push(LaunchGroup { name, pair, stage: 0 });
            of.shares.push(vec![share.parse::<f64>().unwrap() / 100.0]);
        }
        of
    }

    /// The selected names, in their order.
    fn names(sketch: &str, limits: CoverLimits) -> String {
        let letter = |name: usize| char::from(b'a' + u8::try_from(name).unwrap());
        select(&selectable(sketch), &limits).into_iter().map(letter).collect()
    }

    #[test]
    fn kernels_are_added_until_the_target_is_covered() {
        assert_eq!(names("a:45 b:50 c:5", WIDE), "ba");
    }

    #[test]
    fn a_kernel_with_many_configurations_comes_after_those_with_the_same_time_in_one() {
        let sketch = "a:2 ".repeat(20) + "b:40 c:20";
        let limits = CoverLimits { target: 0.6, ..WIDE };
        assert_eq!(names(&sketch, limits), "bc");
        let limits = CoverLimits { max_launches: 10, ..WIDE };
        assert_eq!(names(&sketch, limits), "bc", "20 launches are too many");
    }

    #[test]
    fn a_kernel_that_became_unnecessary_is_dropped() {
        // After `b`, `a` has the most per launch; with `c`, which is needed, it is not.
        let sketch = format!("a:17 {}{}", "b:2 ".repeat(26), "c:2 ".repeat(14));
        assert_eq!(names(&sketch, CoverLimits { target: 0.8, ..WIDE }), "bc");
    }

    /// Groups of up to eight kernels, with shares of two stages.
    fn any_selectable() -> impl Strategy<Value = Selectable> {
        let group = (0usize..8, 0u32..100, 0u32..100);
        prop::collection::vec(group, 1..40).prop_map(|groups| {
            let mut of = Selectable { names: 8, ..Selectable::default() };
            let total = |stage: fn(&(usize, u32, u32)) -> u32| {
                groups.iter().map(|it| f64::from(stage(it))).sum::<f64>().max(1.0)
            };
            let totals = (total(|it| it.1), total(|it| it.2));
            for (pair, (name, one, two)) in groups.iter().enumerate() {
                of.groups.push(LaunchGroup { name: *name, pair, stage: 0 });
                of.shares.push(vec![f64::from(*one) / totals.0, f64::from(*two) / totals.1]);
            }
            of
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// The target is reached wherever all kernels together reach it, and no kernel can be left
        /// out.
        #[test]
        fn the_target_is_reached_and_no_kernel_is_unneeded(of in any_selectable()) {
            let selected = select(&of, &WIDE);
            let all: Vec<usize> = (0..of.names).collect();
            let reached = of.score(&selected, WIDE.target).0;
            prop_assert!(reached >= of.score(&all, WIDE.target).0 - 1e-6);
            for name in &selected {
                let fewer: Vec<usize> = selected.iter().filter(|it| *it != name).copied().collect();
                prop_assert!(of.score(&fewer, WIDE.target).0 < reached - MIN_GAIN);
            }
        }

        #[test]
        fn the_maximum_of_launches_holds(of in any_selectable(), max_launches in 1usize..20) {
            let selected = select(&of, &CoverLimits { max_launches, ..WIDE });
            prop_assert!(of.profiled(&selected).count() <= max_launches);
        }
    }
}
