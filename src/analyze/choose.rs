//! Which kernels a stage's counters are to be read of, from the timeline of the same run.
//!
//! Reading counters takes half a second per launch, so the kernels that the stage's time goes to are read, a few launches each.
//! Pure: the choice is a value, and what it covers is said.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{kernels::launched, launches::Launches, stages::STAGES, stats::percent};
use crate::{
    profiling::NcuSettings,
    run::{Finding, Severity},
    trace::{kernel::Kernel, nsys::NsysTrace, units::Nanos},
};

/// What the pass over one stage is to profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    pub stage: String,
    /// The ranges that are the stage, as ncu names them; absent where their name is none that it takes.
    #[serde(default)]
    pub range: Option<String>,
    /// Longest total first.
    pub kernels: Vec<Chosen>,
    /// Share of the stage's kernel time that they take, percent.
    pub covered_pct: Option<f64>,
    pub window: Window,
}

/// One kernel, by its short name, over all geometries that it was launched with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    pub name: String,
    pub total_ms: f64,
    pub shapes: Vec<Shape>,
}

/// Launches of one kernel with one geometry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub launches: usize,
    pub total_ms: f64,
}

/// Which launches are profiled: after the first `skip` of each geometry, the next `count`. A geometry is told by its grid and
/// block alone, so that kernels with the same one share the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub skip: usize,
    pub count: usize,
    /// Part of the stage that is enough, from its beginning: one in this many. More would be too many geometries.
    pub part: u32,
}

/// How much is chosen.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Kernels per stage.
    top: usize,
    /// Launches of each kernel and geometry.
    samples: usize,
    /// Launches of the stage.
    most: usize,
}

/// Chooses the longest kernels of each stage that launched any.
pub fn choose(trace: &NsysTrace, settings: &NcuSettings) -> Vec<Choice> {
    let joined = Launches::of(trace);
    let whole = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let bounds = Bounds { top: whole(settings.top_n), samples: whole(settings.launches), most: whole(settings.most_launches) };
    let mut stages: BTreeMap<&str, Vec<Kernel>> = BTreeMap::new();
    for (kernel, stage) in launched(trace, &joined) {
        if let Some(stage) = stage.filter(|stage| STAGES.contains(stage)) {
            stages.entry(stage).or_default().push(kernel);
        }
    }
    let chosen = |stage: &&'static str| Some(choice(stage, stages.get(stage)?, trace, bounds));
    STAGES.iter().filter_map(chosen).collect()
}

fn choice(stage: &str, launches: &[Kernel], trace: &NsysTrace, bounds: Bounds) -> Choice {
    let ms = |launches: &[Kernel]| launches.iter().map(|it| Nanos(it.end_ns - it.start_ns)).sum::<Nanos>().as_ms();
    let mut names: BTreeMap<u32, Vec<Kernel>> = BTreeMap::new();
    launches.iter().for_each(|kernel| names.entry(kernel.name).or_default().push(*kernel));
    let mut ranked: Vec<(u32, Vec<Kernel>, f64)> = names
        .into_iter()
        .map(|(name, kernels)| (name, ms(&kernels), kernels))
        .map(|(name, ms, kernels)| (name, kernels, ms))
        .collect();
    ranked.sort_by(|a, b| b.2.total_cmp(&a.2));
    ranked.truncate(bounds.top);

    let kernels: Vec<Chosen> = ranked
        .iter()
        .map(|(name, kernels, total_ms)| {
            let mut shapes: BTreeMap<Geometry, Vec<Kernel>> = BTreeMap::new();
            kernels.iter().for_each(|it| shapes.entry((it.grid, it.block)).or_default().push(*it));
            let shape = |((grid, block), launches): (Geometry, Vec<Kernel>)| {
                let (total_ms, launches) = (ms(&launches), launches.len());
                Shape { grid, block, launches, total_ms }
            };
            let name = trace.strings.get(*name as usize).cloned().unwrap_or_default();
            Chosen { name, total_ms: *total_ms, shapes: shapes.into_iter().map(shape).collect() }
        })
        .collect();
    let covered = kernels.iter().map(|it| it.total_ms).sum();
    let wanted: Vec<Kernel> =
        launches.iter().copied().filter(|it: &Kernel| ranked.iter().any(|(name, ..)| *name == it.name)).collect();
    Choice {
        stage: stage.into(),
        range: range(stage, trace),
        kernels,
        covered_pct: percent(covered, ms(launches)),
        window: window(&wanted, bounds),
    }
}

/// The first ranges that are this stage, in ncu's words: `DOMAIN@RANGE/`, without the slash for those that may cross threads.
fn range(stage: &str, trace: &NsysTrace) -> Option<String> {
    let range = trace.ranges.iter().find(|it| trace.rules.stage(&it.name, &it.domain) == Some(stage))?;
    let plain = |text: &str| text.chars().all(|it| it.is_alphanumeric() || matches!(it, '_' | '-' | '.' | ' '));
    let domain = if range.domain.is_empty() { String::new() } else { format!("{}@", range.domain) };
    let slash = if range.push_pop { "/" } else { "" };
    (plain(&range.domain) && plain(&range.name)).then(|| format!("{domain}{}{slash}", range.name))
}

type Geometry = ([u32; 3], [u32; 3]);

/// The window that gives each kernel and geometry its samples, not the first ones where there are more, and no more than a pass
/// may take: else a shorter part of the stage is profiled, and with it fewer geometries.
fn window(launches: &[Kernel], bounds: Bounds) -> Window {
    let mut part = 1;
    loop {
        let begin = &launches[..launches.len() / part as usize];
        let (window, profiled) = window_of(begin, part, bounds);
        if profiled <= bounds.most || begin.len() < 2 * bounds.samples {
            return window;
        }
        part *= 2;
    }
}

/// The window over these launches, and how many it takes in.
fn window_of(launches: &[Kernel], part: u32, bounds: Bounds) -> (Window, usize) {
    let mut groups: BTreeMap<Geometry, Vec<u32>> = BTreeMap::new();
    launches.iter().for_each(|it| groups.entry((it.grid, it.block)).or_default().push(it.name));
    let mut fewest = usize::MAX;
    for names in groups.values() {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        names.iter().for_each(|name| *counts.entry(*name).or_default() += 1);
        fewest = counts.into_values().fold(fewest, usize::min);
    }
    // What is launched once would be lost by skipping; the others are taken from the middle of the rarest.
    let skip = if fewest == usize::MAX { 0 } else { fewest.saturating_sub(bounds.samples).div_ceil(2) };
    let count = groups.values().map(|names| needed(names, skip, bounds.samples)).max().unwrap_or(1);
    let profiled = |count: usize| groups.values().map(|names| names.len().saturating_sub(skip).min(count)).sum::<usize>();
    let mut count = count;
    while count > 1 && profiled(count) > bounds.most {
        count -= 1;
    }
    (Window { skip, count, part }, profiled(count))
}

/// Launches after `skip` until every kernel of this geometry has its samples, or has no more.
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

impl Choice {
    pub fn names(&self) -> Vec<String> {
        self.kernels.iter().map(|it| it.name.clone()).collect()
    }

    /// Says what is covered where that is less than `enough_pct`.
    pub fn finding(&self, enough_pct: f64) -> Option<Finding> {
        let covered = self.covered_pct.filter(|covered| *covered < enough_pct)?;
        let message = format!(
            "the counters of {} are of {} kernels that take {covered:.1} % of its kernel time",
            self.stage,
            self.kernels.len()
        );
        Some(Finding::new("counters_cover_little", Severity::Info, message).with("kernels", self.names().join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::kernels::tests::capture, *};
    use crate::{profiling::Profiling, run::Mode};

    fn settings(top_n: u32) -> NcuSettings {
        NcuSettings { top_n, ..Profiling::bundled(Mode::Deep).unwrap().ncu }
    }

    /// Launches of decode in order: `a b a a@2` (grid 2), each `ns` long by its letter's place.
    fn chosen(launches: &str, top: u32) -> Choice {
        let mut sketch = String::from("range 1 decode_all 0..1000000\n");
        let mut grids = Vec::new();
        for (at, word) in launches.split_whitespace().enumerate() {
            let (name, grid) = word.split_once('@').unwrap_or((word, "1"));
            let (id, ns) = (at + 1, u64::from(name.as_bytes()[0] - b'a' + 1));
            grids.push(grid.parse().unwrap());
            sketch += &format!("call 1 {id} {id}..{id}\nkernel {id} {name} {}..{} 7\n", id * 100, id as u64 * 100 + ns);
        }
        let mut trace = capture(&sketch);
        trace.kernels = trace.kernels.map(|at, kernel| kernel.grid = [grids[at], 1, 1]);
        choose(&trace, &settings(top)).remove(0)
    }

    #[test]
    fn the_longest_kernels_of_a_stage_are_chosen_and_their_share_is_known() {
        let choice = chosen("a b c c d", 2); // 1 + 2 + 3 + 3 + 4
        assert_eq!(choice.names(), ["c", "d"]);
        assert!((choice.covered_pct.unwrap() - 1000.0 / 13.0).abs() < 1e-9);
        assert_eq!(
            choice.finding(80.0).unwrap().message,
            "the counters of decode_all are of 2 kernels that take 76.9 % of its kernel time"
        );
        assert_eq!(chosen("a b c c d", 4).finding(80.0), None);
    }

    #[test]
    fn samples_come_from_the_middle_unless_a_kernel_runs_once() {
        assert_eq!(chosen(&"a ".repeat(21), 5).window, Window { skip: 9, count: 3, part: 1 });
        assert_eq!(chosen("a a a a b@2", 5).window, Window { skip: 0, count: 3, part: 1 });
    }

    #[test]
    fn kernels_that_share_a_geometry_share_the_count() {
        // Counted per grid and block: a third b comes only as the ninth launch of the geometry.
        assert_eq!(chosen("a a b a a b a a b", 5).window, Window { skip: 0, count: 9, part: 1 });
    }

    #[test]
    fn many_geometries_are_cut_down_to_a_part_of_the_stage() {
        let launches: String = (0..1000).map(|grid| format!("a@{grid} ")).collect();
        let choice = chosen(&launches, 5);
        assert_eq!((choice.window, choice.kernels[0].shapes.len()), (Window { skip: 0, count: 1, part: 16 }, 1000));
    }

    #[test]
    fn warm_up_is_not_chosen_from_and_a_trace_without_kernels_gives_no_choice() {
        let sketch = "range 1 warmup 0..10\nrange 1 prefill 1..9\ncall 1 1 2..3\nkernel 1 gemm 5..6 7";
        assert_eq!(choose(&capture(sketch), &settings(5)), []);
        assert_eq!(choose(&capture(""), &settings(5)), []);
    }
}
