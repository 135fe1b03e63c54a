//! Selects the kernels to profile with ncu in each stage, from the timeline of the same run.
//!
//! Reading counters takes about half a second per launch, so only the kernels with the most time
//! are profiled, a few launches each. The selection is a value and reports its coverage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    analyze::{kernels::launched, stages::STAGES, stats::percent, timeline::launches::LaunchIndex},
    domain::{
        finding::{Finding, Severity},
        profiling::NcuSettings,
        units::Nanos,
    },
    trace::{kernel::Kernel, nsys::NsysTrace},
};

/// Kernels to profile in the pass over one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageSelection {
    pub stage: String,
    /// The stage's range in ncu syntax; absent where ncu does not accept its name.
    #[serde(default)]
    pub range: Option<String>,
    /// Longest total first.
    pub kernels: Vec<SelectedKernel>,
    /// Share of the stage's kernel time taken by these kernels, percent.
    pub covered_pct: Option<f64>,
    pub window: LaunchWindow,
}

/// One kernel, by its short name, over all its launch configurations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelectedKernel {
    pub name: String,
    pub total_ms: f64,
    pub shapes: Vec<LaunchShape>,
}

/// Launches of one kernel with one launch configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub launches: usize,
    pub total_ms: f64,
}

/// Launches to profile: of each launch configuration the first `skip` are skipped and the next
/// `count` profiled. ncu counts by grid and block alone, so kernels with the same configuration
/// share the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchWindow {
    pub skip: usize,
    pub count: usize,
    /// Divisor of the stage: only its first 1/`part` is profiled, which limits the number of launch
    /// configurations.
    pub part: u32,
}

/// Limits of a selection.
#[derive(Debug, Clone, Copy)]
struct SelectionLimits {
    /// Max kernels per stage.
    top: usize,
    /// Launches per kernel and launch configuration.
    samples: usize,
    /// Max launches per stage.
    max_launches: usize,
}

/// Selects the longest kernels of each stage that launched any.
pub fn select_kernels(trace: &NsysTrace, settings: &NcuSettings) -> Vec<StageSelection> {
    let joined = LaunchIndex::of(trace);
    let limit = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let limits = SelectionLimits {
        top: limit(settings.top_n),
        samples: limit(settings.launches),
        max_launches: limit(settings.max_launches),
    };
    let mut stages: BTreeMap<&str, Vec<Kernel>> = BTreeMap::new();
    for (kernel, stage) in launched(trace, &joined) {
        if let Some(stage) = stage.filter(|stage| STAGES.contains(stage)) {
            stages.entry(stage).or_default().push(kernel);
        }
    }
    let selection =
        |stage: &&'static str| Some(select_for_stage(stage, stages.get(stage)?, trace, limits));
    STAGES.iter().filter_map(selection).collect()
}

fn select_for_stage(
    stage: &str,
    launches: &[Kernel],
    trace: &NsysTrace,
    limits: SelectionLimits,
) -> StageSelection {
    let ms = |launches: &[Kernel]| {
        launches.iter().map(|it| Nanos(it.end_ns - it.start_ns)).sum::<Nanos>().as_ms()
    };
    let mut names: BTreeMap<u32, Vec<Kernel>> = BTreeMap::new();
    launches.iter().for_each(|kernel| names.entry(kernel.name).or_default().push(*kernel));
    let mut ranked: Vec<(u32, Vec<Kernel>, f64)> = names
        .into_iter()
        .map(|(name, kernels)| (name, ms(&kernels), kernels))
        .map(|(name, ms, kernels)| (name, kernels, ms))
        .collect();
    ranked.sort_by(|a, b| b.2.total_cmp(&a.2));
    ranked.truncate(limits.top);

    let kernels: Vec<SelectedKernel> = ranked
        .iter()
        .map(|(name, kernels, total_ms)| {
            let mut shapes: BTreeMap<GridAndBlock, Vec<Kernel>> = BTreeMap::new();
            kernels.iter().for_each(|it| shapes.entry((it.grid, it.block)).or_default().push(*it));
            let shape = |((grid, block), launches): (GridAndBlock, Vec<Kernel>)| {
                let (total_ms, launches) = (ms(&launches), launches.len());
                LaunchShape { grid, block, launches, total_ms }
            };
            let name = trace.strings.get(*name as usize).cloned().unwrap_or_default();
            SelectedKernel {
                name,
                total_ms: *total_ms,
                shapes: shapes.into_iter().map(shape).collect(),
            }
        })
        .collect();
    let covered = kernels.iter().map(|it| it.total_ms).sum();
    let selected: Vec<Kernel> = launches
        .iter()
        .copied()
        .filter(|it: &Kernel| ranked.iter().any(|(name, ..)| *name == it.name))
        .collect();
    StageSelection {
        stage: stage.into(),
        range: range(stage, trace),
        kernels,
        covered_pct: percent(covered, ms(launches)),
        window: window(&selected, limits),
    }
}

/// The first range of this stage in ncu syntax: `DOMAIN@RANGE/`, without the slash for start/end
/// ranges.
fn range(stage: &str, trace: &NsysTrace) -> Option<String> {
    let range =
        trace.ranges.iter().find(|it| trace.rules.stage(&it.name, &it.domain) == Some(stage))?;
    let is_accepted = |text: &str| {
        text.chars().all(|it| it.is_alphanumeric() || matches!(it, '_' | '-' | '.' | ' '))
    };
    let domain = if range.domain.is_empty() { String::new() } else { format!("{}@", range.domain) };
    let slash = if range.push_pop { "/" } else { "" };
    (is_accepted(&range.domain) && is_accepted(&range.name))
        .then(|| format!("{domain}{}{slash}", range.name))
}

type GridAndBlock = ([u32; 3], [u32; 3]);

/// The window that takes the samples of each kernel and configuration from the middle of its
/// launches. Halves the profiled part of the stage while the pass would exceed its max launches.
fn window(launches: &[Kernel], limits: SelectionLimits) -> LaunchWindow {
    let mut part = 1;
    loop {
        let start = &launches[..launches.len() / part as usize];
        let (window, profiled) = window_of(start, part, limits);
        if profiled <= limits.max_launches || start.len() < 2 * limits.samples {
            return window;
        }
        part *= 2;
    }
}

/// The window for these launches, and the number of launches that it profiles.
fn window_of(launches: &[Kernel], part: u32, limits: SelectionLimits) -> (LaunchWindow, usize) {
    let mut groups: BTreeMap<GridAndBlock, Vec<u32>> = BTreeMap::new();
    launches.iter().for_each(|it| groups.entry((it.grid, it.block)).or_default().push(it.name));
    let mut fewest = usize::MAX;
    for names in groups.values() {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        names.iter().for_each(|name| *counts.entry(*name).or_default() += 1);
        fewest = counts.into_values().fold(fewest, usize::min);
    }
    // Skipping would lose a kernel launched once; the others are sampled from the middle of the
    // rarest.
    let skip =
        if fewest == usize::MAX { 0 } else { fewest.saturating_sub(limits.samples).div_ceil(2) };
    let count = groups.values().map(|names| needed(names, skip, limits.samples)).max().unwrap_or(1);
    let profiled = |count: usize| {
        groups.values().map(|names| names.len().saturating_sub(skip).min(count)).sum::<usize>()
    };
    let mut count = count;
    while count > 1 && profiled(count) > limits.max_launches {
        count -= 1;
    }
    (LaunchWindow { skip, count, part }, profiled(count))
}

/// Launches after `skip` until every kernel of this configuration has its samples, or has no more.
fn needed(names: &[u32], skip: usize, samples: usize) -> usize {
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    let mut needed = 1;
    for (at, name) in names.iter().enumerate().skip(skip) {
        let seen = seen.entry(*name).or_default();
        *seen += 1;
        if *seen <= samples {
            needed = at - skip + 1;
        }
    }
    needed
}

impl StageSelection {
    /// Names of the selected kernels.
    pub fn names(&self) -> Vec<String> {
        self.kernels.iter().map(|it| it.name.clone()).collect()
    }

    /// A finding when the coverage is below `enough_pct`.
    pub fn finding(&self, enough_pct: f64) -> Option<Finding> {
        let covered = self.covered_pct.filter(|covered| *covered < enough_pct)?;
        let message = format!(
            "the counters of {} cover {} kernels with {covered:.1} % of its kernel time",
            self.stage,
            self.kernels.len()
        );
        Some(
            Finding::new("counters_cover_little", Severity::Info, message)
                .with("kernels", self.names().join(", ")),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analyze::kernels::tests::capture,
        domain::{mode::Mode, profiling::Profiling},
    };

    fn settings(top_n: u32) -> NcuSettings {
        NcuSettings { top_n, ..Profiling::bundled(Mode::Deep).unwrap().ncu }
    }

    /// Launches of decode in order: `a b a a@2` (grid 2); the duration in ns is the letter's
    /// position.
    fn select(launches: &str, top: u32) -> StageSelection {
        let mut sketch = String::from("range 1 decode_all 0..1000000\n");
        let mut grids = Vec::new();
        for (at, word) in launches.split_whitespace().enumerate() {
            let (name, grid) = word.split_once('@').unwrap_or((word, "1"));
            let (id, ns) = (at + 1, u64::from(name.as_bytes()[0] - b'a' + 1));
            grids.push(grid.parse().unwrap());
            sketch += &format!(
                "call 1 {id} {id}..{id}\nkernel {id} {name} {}..{} 7\n",
                id * 100,
                id as u64 * 100 + ns
            );
        }
        let mut trace = capture(&sketch);
        trace.kernels = trace.kernels.map(|at, kernel| kernel.grid = [grids[at], 1, 1]);
        select_kernels(&trace, &settings(top)).remove(0)
    }

    #[test]
    fn the_longest_kernels_of_a_stage_are_selected_with_their_share() {
        let selection = select("a b c c d", 2); // 1 + 2 + 3 + 3 + 4
        assert_eq!(selection.names(), ["c", "d"]);
        assert!((selection.covered_pct.unwrap() - 1000.0 / 13.0).abs() < 1e-9);
        assert_eq!(
            selection.finding(80.0).unwrap().message,
            "the counters of decode_all cover 2 kernels with 76.9 % of its kernel time"
        );
        assert_eq!(select("a b c c d", 4).finding(80.0), None);
    }

    #[test]
    fn samples_come_from_the_middle_unless_a_kernel_runs_once() {
        assert_eq!(select(&"a ".repeat(21), 5).window, LaunchWindow { skip: 9, count: 3, part: 1 });
        assert_eq!(select("a a a a b@2", 5).window, LaunchWindow { skip: 0, count: 3, part: 1 });
    }

    #[test]
    fn kernels_with_the_same_launch_configuration_share_the_count() {
        // ncu counts per grid and block: the third b is the ninth launch of the configuration.
        let selection = select("a a b a a b a a b", 5);
        assert_eq!(selection.window, LaunchWindow { skip: 0, count: 9, part: 1 });
    }

    #[test]
    fn many_launch_configurations_limit_the_profiled_part_of_the_stage() {
        let launches: String = (0..1000).map(|grid| format!("a@{grid} ")).collect();
        let selection = select(&launches, 5);
        assert_eq!(
            (selection.window, selection.kernels[0].shapes.len()),
            (LaunchWindow { skip: 0, count: 1, part: 16 }, 1000)
        );
    }

    #[test]
    fn warm_up_and_traces_without_kernels_give_no_selection() {
        let sketch =
            "range 1 warmup 0..10\nrange 1 prefill 1..9\ncall 1 1 2..3\nkernel 1 gemm 5..6 7";
        assert_eq!(select_kernels(&capture(sketch), &settings(5)), []);
        assert_eq!(select_kernels(&capture(""), &settings(5)), []);
    }
}
