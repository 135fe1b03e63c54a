//! Assignments of small programs, and their properties.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const WIDE: ProcessLimits = ProcessLimits { target: 0.9, max_launches: 10_000, max_processes: 8 };

/// Launches `name@config:share` in order, in one stage; a share is that of all launches of the
/// name and configuration, and follows the first one.
fn selectable(sketch: &str) -> Selectable {
    let mut of = Selectable { start_s: 5.0, ..Selectable::default() };
    for (at, word) in sketch.split_whitespace().enumerate() {
        let (name, rest) = word.split_once('@').unwrap();
        let (config, share) = rest.split_once(':').unwrap_or((rest, "0"));
        let name = usize::from(name.as_bytes()[0] - b'a');
        launch(&mut of, at, name, config.parse().unwrap(), &[share.parse::<f64>().unwrap()]);
    }
    of
}

/// Adds a launch; the shares, in percent, count for the first one of a group.
fn launch(of: &mut Selectable, at: usize, name: usize, config: usize, shares: &[f64]) {
    of.names = of.names.max(name + 1);
    let is_known = |it: &LaunchGroup| (it.name, it.config) == (name, config);
    let pair = of.groups.iter().position(is_known).unwrap_or_else(|| {
        of.groups.push(LaunchGroup { name, config, launches: vec![] });
        of.shares.push(shares.iter().map(|share| share / 100.0).collect());
        of.groups.len() - 1
    });
    let launches = &mut of.groups[pair].launches;
    if launches.len() < MAX_COUNT {
        launches.push(FirstLaunch { at, pair, stage: 0 });
    }
}

/// Names and count of each process, as in `ab 1`.
fn described(assigned: &[Process]) -> Vec<String> {
    let of = |it: &Process| {
        let mut names: Vec<char> = it.names.iter().map(|name| letter(*name)).collect();
        names.sort_unstable();
        format!("{} {}", names.into_iter().collect::<String>(), it.count)
    };
    assigned.iter().map(of).collect()
}

fn letter(name: usize) -> char {
    char::from(b'a' + u8::try_from(name).unwrap())
}

fn processes(sketch: &str, limits: ProcessLimits) -> Vec<String> {
    described(&assign(&selectable(sketch), &limits))
}

#[test]
fn kernels_are_added_until_the_target_is_covered() {
    assert_eq!(processes("a@1:50 b@2:45 c@3:5", WIDE), ["ab 1"]);
}

#[test]
fn a_second_launch_reaches_a_kernel_that_runs_after_another_with_its_configuration() {
    assert_eq!(processes("a@1:50 b@1:45 c@3:5", WIDE), ["ab 2"]);
}

#[test]
fn a_kernel_that_runs_after_many_launches_of_its_configuration_gets_another_process() {
    let sketch = format!("a@1:50 {} b@1:45 c@3:5", "a@1 ".repeat(MAX_COUNT));
    assert_eq!(processes(&sketch, WIDE), ["a 1", "b 1"]);
    let one = ProcessLimits { max_processes: 1, ..WIDE };
    assert_eq!(processes(&sketch, one), ["ac 1"]);
}

#[test]
fn a_process_starts_where_further_launches_of_all_kernels_take_longer() {
    // 20 kernels with a configuration of their own run twice.
    let many: String = (0..20).map(|it| format!("{}@{it}:4 ", letter(it))).collect();
    let sketch = format!("{many} u@30:5 v@30:15 {many}");
    assert_eq!(processes(&sketch, ProcessLimits { target: 0.99, ..WIDE }).len(), 2);
    let mut slow = selectable(&sketch);
    slow.start_s = 30.0;
    let assigned = assign(&slow, &ProcessLimits { target: 0.99, ..WIDE });
    assert_eq!((assigned.len(), assigned[0].count), (1, 2), "of a program that starts slowly");
}

#[test]
fn launches_of_an_equal_configuration_are_left_out_if_enough_is_covered_without() {
    assert_eq!(processes("a@1:80 b@1:1 b@2:14 c@3:5", WIDE), ["ab 1"]);
}

#[test]
fn a_kernel_with_many_configurations_comes_after_those_with_the_same_time_in_one() {
    let many: String = (10..30).map(|config| format!("a@{config}:2 ")).collect();
    let sketch = many + "b@1:40 c@2:20";
    let limits = ProcessLimits { target: 0.6, ..WIDE };
    assert_eq!(processes(&sketch, limits), ["bc 1"]);
    let limits = ProcessLimits { max_launches: 10, ..WIDE };
    assert_eq!(processes(&sketch, limits), ["bc 1"], "20 launches are too many");
}

#[test]
fn a_kernel_that_became_unnecessary_is_dropped() {
    // After `b`, `a` has the most per second; with `c`, which is needed, it is not.
    let many = |name: &str, of: std::ops::Range<u32>| {
        of.map(|config| format!("{name}@{config}:2 ")).collect::<String>()
    };
    let sketch = format!("a@1:17 {}{}", many("b", 10..36), many("c", 40..54));
    let limits = ProcessLimits { target: 0.8, ..WIDE };
    assert_eq!(processes(&sketch, limits), ["bc 1"]);
}

/// Launches of up to eight kernels, with shares of two stages.
fn any_selectable() -> impl Strategy<Value = Selectable> {
    let group = (0usize..8, 0usize..6, 0u32..100, 0u32..100);
    (prop::collection::vec(group, 1..60), 0.0..40.0).prop_map(|(launches, start_s)| {
        let mut of = Selectable { start_s, names: 8, ..Selectable::default() };
        for (at, (name, config, one, two)) in launches.into_iter().enumerate() {
            launch(&mut of, at, name, config, &[f64::from(one), f64::from(two)]);
        }
        let total = |stage: usize| of.shares.iter().map(|it| it[stage]).sum::<f64>().max(1e-9);
        let totals = [total(0), total(1)];
        for pair in &mut of.shares {
            pair.iter_mut().zip(totals).for_each(|(share, total)| *share /= total);
        }
        of
    })
}

/// Seconds of these processes.
fn seconds(of: &Selectable, assigned: &[Process]) -> f64 {
    assigned.iter().map(|it| of.start_s + LAUNCH_S * of.profiled(it).len() as f64).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// What counts as profiled is what ncu profiles: launch by launch, up to a process's count of
    /// each configuration.
    #[test]
    fn profiled_launches_are_the_first_of_each_configuration_among_the_kernels_of_a_process(
        of in any_selectable(),
    ) {
        for process in assign(&of, &WIDE) {
            let mut launches: Vec<(usize, usize)> = Vec::new();
            for group in of.groups.iter().filter(|it| process.names.contains(&it.name)) {
                launches.extend(group.launches.iter().map(|it| (it.at, group.config)));
            }
            launches.sort_unstable();
            let (mut counts, mut expected) = ([0; 6], Vec::new());
            for (at, config) in launches {
                counts[config] += 1;
                expected.extend((counts[config] <= process.count).then_some(at));
            }
            let mut profiled: Vec<usize> = of.profiled(&process).iter().map(|it| it.at).collect();
            profiled.sort_unstable();
            prop_assert_eq!(profiled, expected);
        }
    }

    /// The target is reached wherever all pairs together reach it, each kernel is in one process,
    /// and no process is idle.
    #[test]
    fn the_target_is_reached_by_each_kernel_in_one_process(of in any_selectable()) {
        let assigned = assign(&of, &WIDE);
        let mut names = BTreeSet::new();
        let mut profiled = Vec::new();
        for process in &assigned {
            prop_assert!(process.names.iter().all(|name| names.insert(*name)));
            prop_assert!((1..=MAX_COUNT).contains(&process.count));
            prop_assert!(!of.profiled(process).is_empty());
            profiled.extend(of.profiled(process));
        }
        let all: Vec<FirstLaunch> = of.groups.iter().flat_map(|it| it.launches.clone()).collect();
        for (covered, possible) in of.covered(&profiled).iter().zip(of.covered(&all)) {
            prop_assert!(*covered >= possible.min(WIDE.target) - 1e-6);
        }
    }

    /// No kernel, launch or process can be left out of a selection.
    #[test]
    fn less_does_not_cover_the_same(of in any_selectable()) {
        let assigned = assign(&of, &WIDE);
        let score = |processes: &[Process]| {
            let profiled: Vec<FirstLaunch> =
                processes.iter().flat_map(|it| of.profiled(it)).collect();
            of.covered(&profiled).into_iter().map(|it| it.min(WIDE.target)).sum::<f64>()
        };
        for (at, process) in assigned.iter().enumerate() {
            let mut fewer = assigned.clone();
            for name in &process.names {
                fewer[at].names = process.names.iter().filter(|it| *it != name).copied().collect();
                let is_worse = score(&fewer) < score(&assigned) - 1e-9
                    || seconds(&of, &fewer) > seconds(&of, &assigned) + 1e-9;
                prop_assert!(is_worse, "without {} of {:?}", letter(*name), described(&assigned));
            }
            fewer[at] = Process { count: process.count - 1, ..process.clone() };
            let is_worse = score(&fewer) < score(&assigned) - 1e-9
                || seconds(&of, &fewer) >= seconds(&of, &assigned) - 1e-9;
            prop_assert!(is_worse, "fewer launches of {:?}", described(&assigned));
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
        let launches: usize = assigned.iter().map(|it| of.profiled(it).len()).sum();
        prop_assert!(launches <= max_launches);
        prop_assert!(assigned.len() <= max_processes);
    }
}
