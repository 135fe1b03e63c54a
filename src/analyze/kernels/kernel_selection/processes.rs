//! Distributes kernels over ncu processes so that no launch hides another.
//!
//! With `--filter-mode per-launch-config --launch-count 1` a process profiles the first launch of
//! each grid, block and shared memory among its kernels. The kernel's name is not part of that
//! key: of two kernels with an equal configuration only the one that runs first is profiled, and
//! the other needs another process. Every configuration of a kernel is profiled, since ncu selects
//! by name.

use std::{cmp::Reverse, collections::BTreeMap};

/// Seconds that a process takes to start, and that a launch takes (H200, ncu 2025.3, the metrics of
/// mode deep). Only their ratio matters.
const START_S: f64 = 5.0;
const LAUNCH_S: f64 = 0.3;
/// Kernels that are considered, by their share.
const MAX_KERNELS: usize = 128;
/// Gains below this are rounding errors.
const MIN_GAIN: f64 = 1e-9;

/// Launches of one kernel with one grid, block and shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LaunchGroup {
    pub name: usize,
    /// Kernel and geometry.
    pub pair: usize,
    /// Grid, block and shared memory.
    pub config: usize,
    /// Position of the first launch among all.
    pub first: usize,
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
pub(super) struct ProcessLimits {
    /// Share of each stage to cover.
    pub target: f64,
    /// Maximum launches of all processes.
    pub max_launches: usize,
    pub max_processes: usize,
}

/// Process of each name, if it is profiled.
type Assignment = Vec<Option<usize>>;

impl Selectable {
    /// The groups that ncu profiles: of each process and configuration the one that runs first.
    pub fn profiled(&self, assigned: &[Option<usize>]) -> Vec<usize> {
        let mut first: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for (at, group) in self.groups.iter().enumerate() {
            let Some(process) = assigned[group.name] else { continue };
            let kept = first.entry((process, group.config)).or_insert(at);
            if group.first < self.groups[*kept].first {
                *kept = at;
            }
        }
        first.into_values().collect()
    }

    /// Share of each stage covered by the pairs of these groups.
    pub fn covered(&self, profiled: &[usize], stages: usize) -> Vec<f64> {
        let mut pairs: Vec<usize> = profiled.iter().map(|at| self.groups[*at].pair).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let stage = |stage: usize| pairs.iter().map(|pair| self.shares[*pair][stage]).sum();
        (0..stages).map(stage).collect()
    }

    /// Covered shares up to the target, and launches.
    fn score(&self, assigned: &[Option<usize>], target: f64) -> (f64, usize) {
        let profiled = self.profiled(assigned);
        let stages = self.shares.first().map_or(0, Vec::len);
        let covered = self.covered(&profiled, stages);
        (covered.into_iter().map(|share| share.min(target)).sum(), profiled.len())
    }

    /// Names to consider, largest share first.
    fn ranked(&self) -> Vec<usize> {
        let mut shares = vec![BTreeMap::<usize, &[f64]>::new(); self.names];
        for group in &self.groups {
            shares[group.name].insert(group.pair, &self.shares[group.pair]);
        }
        let stages = self.shares.first().map_or(0, Vec::len);
        let share = |pairs: &BTreeMap<usize, &[f64]>| {
            let stage = |stage: usize| pairs.values().map(|shares| shares[stage]).sum::<f64>();
            (0..stages).map(stage).fold(0.0, f64::max)
        };
        let mut names: Vec<(f64, usize)> =
            shares.iter().map(share).zip(0..).filter(|(share, _)| *share > 0.0).collect();
        names.sort_by(|a, b| b.0.total_cmp(&a.0));
        names.truncate(MAX_KERNELS);
        names.into_iter().map(|(_, name)| name).collect()
    }
}

/// Assigns kernels to processes until each stage's target is covered: always the assignment with
/// the most coverage per second. A kernel is in one process, so no launch is profiled twice.
pub(super) fn assign(of: &Selectable, limits: &ProcessLimits) -> Assignment {
    let names = of.ranked();
    let mut assigned: Assignment = vec![None; of.names];
    let (mut score, mut launches) = (0.0, 0);
    loop {
        let count = process_count(&assigned);
        let mut best: Option<(f64, usize, usize)> = None;
        for name in &names {
            for process in 0..(count + 1).min(limits.max_processes) {
                if assigned[*name] == Some(process) {
                    continue;
                }
                let before = assigned[*name].replace(process);
                let (gain, more) = of.score(&assigned, limits.target);
                assigned[*name] = before;
                if gain - score <= MIN_GAIN || more > limits.max_launches {
                    continue;
                }
                let start = if process == count { START_S } else { 0.0 };
                let seconds = LAUNCH_S * (more.saturating_sub(launches).max(1)) as f64 + start;
                let ratio = (gain - score) / seconds;
                if best.is_none_or(|(most, ..)| ratio > most) {
                    best = Some((ratio, *name, process));
                }
            }
        }
        let Some((_, name, process)) = best else { break };
        assigned[name] = Some(process);
        (score, launches) = of.score(&assigned, limits.target);
    }
    drop_unneeded(of, limits, &names, &mut assigned, score);
    renumber(&mut assigned);
    assigned
}

/// Removes kernels without which the same share is covered up to the target, smallest share first.
fn drop_unneeded(
    of: &Selectable,
    limits: &ProcessLimits,
    names: &[usize],
    assigned: &mut Assignment,
    score: f64,
) {
    for name in names.iter().rev() {
        let Some(process) = assigned[*name].take() else { continue };
        let (without, launches) = of.score(assigned, limits.target);
        if without < score - MIN_GAIN || launches > limits.max_launches {
            assigned[*name] = Some(process);
        }
    }
}

/// Numbers the processes without gaps, those with the most kernels first.
fn renumber(assigned: &mut Assignment) {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    assigned.iter().flatten().for_each(|process| *counts.entry(*process).or_default() += 1);
    let mut order: Vec<(usize, usize)> = counts.into_iter().collect();
    order.sort_by_key(|(_, kernels)| Reverse(*kernels));
    for process in assigned.iter_mut().flatten() {
        *process = order.iter().position(|(old, _)| old == process).unwrap_or(*process);
    }
}

fn process_count(assigned: &[Option<usize>]) -> usize {
    assigned.iter().flatten().max().map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const WIDE: ProcessLimits =
        ProcessLimits { target: 0.9, max_launches: 10_000, max_processes: 100 };

    /// Kernels `name@config:share` in the order of their first launch, in one stage.
    fn selectable(sketch: &str) -> Selectable {
        let mut of = Selectable::default();
        for (first, word) in sketch.split_whitespace().enumerate() {
            let (name, rest) = word.split_once('@').unwrap();
            let (config, share) = rest.split_once(':').unwrap();
            let name = usize::from(name.as_bytes()[0] - b'a');
            of.names = of.names.max(name + 1);
            let config = config.parse().unwrap();
            of.groups.push(LaunchGroup { name, pair: first, config, first });
            of.shares.push(vec![share.parse::<f64>().unwrap() / 100.0]);
        }
        of
    }

    fn processes(sketch: &str, limits: ProcessLimits) -> Assignment {
        assign(&selectable(sketch), &limits)
    }

    #[test]
    fn kernels_are_added_until_the_target_is_covered() {
        assert_eq!(processes("a@1:50 b@2:45 c@3:5", WIDE), [Some(0), Some(0), None]);
    }

    #[test]
    fn a_kernel_that_runs_after_another_with_its_configuration_gets_another_process() {
        assert_eq!(processes("a@1:50 b@1:45 c@3:5", WIDE), [Some(0), Some(1), None]);
        let one = ProcessLimits { max_processes: 1, ..WIDE };
        assert_eq!(processes("a@1:50 b@1:45 c@3:5", one), [Some(0), None, Some(0)]);
    }

    #[test]
    fn launches_of_an_equal_configuration_need_no_second_process_if_enough_is_covered_without() {
        assert_eq!(processes("a@1:80 b@1:1 b@2:14 c@3:5", WIDE)[..2], [Some(0), Some(0)]);
    }

    #[test]
    fn a_kernel_with_many_configurations_comes_after_those_with_the_same_time_in_one() {
        let many: String = (10..30).map(|config| format!("a@{config}:2 ")).collect();
        let sketch = many + "b@1:40 c@2:20";
        let limits = ProcessLimits { target: 0.6, ..WIDE };
        assert_eq!(processes(&sketch, limits), [None, Some(0), Some(0)]);
        let limits = ProcessLimits { max_launches: 10, ..WIDE };
        assert_eq!(
            processes(&sketch, limits),
            [None, Some(0), Some(0)],
            "20 launches are too many"
        );
    }

    #[test]
    fn a_kernel_that_became_unnecessary_is_dropped() {
        // After `b`, `a` has the most per second; with `c`, which is needed, it is not.
        let many = |name: &str, of: std::ops::Range<u32>| {
            of.map(|config| format!("{name}@{config}:2 ")).collect::<String>()
        };
        let sketch = format!("a@1:17 {}{}", many("b", 10..36), many("c", 40..54));
        let limits = ProcessLimits { target: 0.8, ..WIDE };
        assert_eq!(processes(&sketch, limits), [None, Some(0), Some(0)]);
    }

    /// Groups of up to eight kernels, with shares of two stages.
    fn any_selectable() -> impl Strategy<Value = Selectable> {
        let group = (0usize..8, 0usize..6, 0u32..100, 0u32..100);
        prop::collection::vec(group, 1..40).prop_map(|launches| {
            let mut of = Selectable { names: 8, ..Selectable::default() };
            let mut seen = BTreeSet::new();
            let mut raw: Vec<[f64; 2]> = Vec::new();
            for (first, (name, config, one, two)) in launches.into_iter().enumerate() {
                if seen.insert((name, config)) {
                    of.groups.push(LaunchGroup { name, pair: raw.len(), config, first });
                    raw.push([f64::from(one), f64::from(two)]);
                }
            }
            let total = |stage: usize| raw.iter().map(|it| it[stage]).sum::<f64>().max(1.0);
            let totals = [total(0), total(1)];
            of.shares = raw.iter().map(|it| vec![it[0] / totals[0], it[1] / totals[1]]).collect();
            of
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Every process profiles one group of each configuration, no pair is profiled twice, and
        /// the target is reached wherever all pairs together reach it.
        #[test]
        fn no_launch_hides_another_and_the_target_is_reached(of in any_selectable()) {
            let assigned = assign(&of, &WIDE);
            let profiled = of.profiled(&assigned);
            let mut keys = BTreeSet::new();
            let mut pairs = BTreeSet::new();
            for at in &profiled {
                let group = of.groups[*at];
                prop_assert!(keys.insert((assigned[group.name], group.config)));
                prop_assert!(pairs.insert(group.pair));
                let hidden = of.groups.iter().any(|it| {
                    it.config == group.config
                        && it.first < group.first
                        && assigned[it.name] == assigned[group.name]
                });
                prop_assert!(!hidden, "a launch with this configuration runs before it");
            }
            let all: Vec<usize> = (0..of.groups.len()).collect();
            for (covered, possible) in of.covered(&profiled, 2).iter().zip(of.covered(&all, 2)) {
                prop_assert!(*covered >= possible.min(WIDE.target) - 1e-6);
            }
        }

        #[test]
        fn the_limits_hold(
            of in any_selectable(),
            max_launches in 1usize..20,
            max_processes in 1usize..4,
        ) {
            let limits = ProcessLimits { max_launches, max_processes, ..WIDE };
            let assigned = assign(&of, &limits);
            prop_assert!(of.profiled(&assigned).len() <= max_launches);
            prop_assert!(process_count(&assigned) <= max_processes);
        }
    }
}
