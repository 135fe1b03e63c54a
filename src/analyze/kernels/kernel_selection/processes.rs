//! Distributes kernels over ncu processes so that the target is covered in little time.
//!
//! With `--filter-mode per-launch-config --launch-count N` a process profiles the first N launches
//! of each grid, block and shared memory among its kernels. The kernel's name is not part of that
//! key: a kernel that runs after others with its configuration is reached by a higher count, which
//! profiles other kernels repeatedly, or in another process, which starts the program again.
//! All configurations of a kernel are profiled, since ncu selects by name.

mod assignment;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use assignment::Assignment;

/// Seconds per launch (H200 and H100, ncu 2025.3, the metrics of mode deep): 0.3 to 0.5.
const LAUNCH_S: f64 = 0.4;
/// Kernels that are considered, by their share.
const MAX_KERNELS: usize = 128;
/// Maximum launches of each configuration in a process.
pub(super) const MAX_COUNT: usize = 8;
/// Launches of each configuration that are tried.
const COUNTS: [usize; 4] = [1, 2, 4, MAX_COUNT];
/// Gains below this are rounding errors.
const MIN_GAIN: f64 = 1e-9;

/// The first launches of one kernel with one grid, block and shared memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaunchGroup {
    pub name: usize,
    /// Grid, block and shared memory.
    pub config: usize,
    /// In execution order, at most [`MAX_COUNT`].
    pub launches: Vec<FirstLaunch>,
}

/// One of the first launches of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FirstLaunch {
    /// Position among all launches.
    pub at: usize,
    /// Kernel and geometry.
    pub pair: usize,
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
    /// Seconds that a process takes without profiling.
    pub start_s: f64,
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

/// Kernels that one process profiles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub names: Vec<usize>,
    /// Launches of each configuration.
    pub count: usize,
}

impl Selectable {
    /// The launches that a process profiles, by configuration in execution order.
    pub fn profiled(&self, process: &Process) -> Vec<FirstLaunch> {
        let groups = self.groups.iter().filter(|it| process.names.contains(&it.name));
        first_of_each_config(groups, process.count)
    }

    /// Share of each stage covered by these launches.
    pub fn covered(&self, profiled: &[FirstLaunch]) -> Vec<f64> {
        let mut pairs: Vec<usize> = profiled.iter().map(|it| it.pair).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let stages = self.shares.first().map_or(0, Vec::len);
        let stage = |stage: usize| pairs.iter().map(|pair| self.shares[*pair][stage]).sum();
        (0..stages).map(stage).collect()
    }

    /// Names to consider, largest share first, of a stage.
    fn ranked(&self) -> Vec<usize> {
        let mut launches = vec![Vec::new(); self.names];
        for group in &self.groups {
            launches[group.name].extend_from_slice(&group.launches);
        }
        let share = |of: &Vec<FirstLaunch>| self.covered(of).into_iter().fold(0.0, f64::max);
        let mut names: Vec<(f64, usize)> =
            launches.iter().map(share).zip(0..).filter(|(share, _)| *share > 0.0).collect();
        names.sort_by(|a, b| b.0.total_cmp(&a.0));
        names.truncate(MAX_KERNELS);
        names.into_iter().map(|(_, name)| name).collect()
    }
}

/// The first `count` launches of each configuration, in execution order.
fn first_of_each_config<'a>(
    groups: impl Iterator<Item = &'a LaunchGroup>,
    count: usize,
) -> Vec<FirstLaunch> {
    let mut launches: Vec<(usize, FirstLaunch)> = groups
        .flat_map(|it| it.launches.iter().take(count).map(|launch| (it.config, *launch)))
        .collect();
    launches.sort_unstable();
    launches
        .chunk_by(|a, b| a.0 == b.0)
        .flat_map(|config| config.iter().take(count))
        .map(|(_, launch)| *launch)
        .collect()
}

/// Assigns kernels to processes until each stage's target is covered, in little time. A kernel is
/// in one process. The processes with the most kernels come first.
pub(super) fn assign(of: &Selectable, limits: &ProcessLimits) -> Vec<Process> {
    let mut names: Vec<Vec<LaunchGroup>> = vec![Vec::new(); of.names];
    for group in &of.groups {
        names[group.name].push(group.clone());
    }
    // Each configuration is at least one launch.
    let mut ranked = of.ranked();
    ranked.retain(|name| names[*name].len() <= limits.max_launches);
    let mut best: Option<Assignment> = None;
    for counts in counts_of_processes(limits.max_processes) {
        let start_s = of.start_s * counts.len() as f64;
        let reached = best.as_ref().and_then(Assignment::seconds_to_target);
        if reached.is_some_and(|seconds| start_s >= seconds) {
            continue;
        }
        let mut found = Assignment::new(of, &names, &ranked, limits, &counts);
        found.grow();
        found.shrink();
        if best.as_ref().is_none_or(|best| found.is_better(best)) {
            best = Some(found);
        }
    }
    let mut processes = best.map(Assignment::into_processes).unwrap_or_default();
    processes.iter_mut().for_each(|it| it.names.sort_unstable());
    processes.sort_by_key(|it| Reverse(it.names.len()));
    processes
}

/// Launches of each configuration in each process, as they are tried: any in one and in two
/// processes; of more, in the last one.
fn counts_of_processes(max_processes: usize) -> Vec<Vec<usize>> {
    let one = COUNTS.iter().map(|count| vec![*count]);
    let two = COUNTS.iter().flat_map(|one| {
        COUNTS.iter().filter(move |two| *two >= one).map(move |two| vec![*one, *two])
    });
    let more = (3..=max_processes)
        .flat_map(|all| COUNTS.iter().map(move |last| [vec![1; all - 1], vec![*last]].concat()));
    one.chain(two).chain(more).filter(|counts| counts.len() <= max_processes).collect()
}
