//! Selects the kernels to profile with ncu, from the timeline of the same run.
//!
//! Reading counters takes some tenths of a second per launch, whatever the kernel's own time, so
//! one launch of each geometry of a kernel is profiled unless more are requested, and only until
//! the target share of each stage's kernel time is reached. The selection is a value; coverage
//! counts the launches that the profiled ones stand for, not what was selected.

mod cover;
mod coverage;
mod plan;
mod samples;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use foldhash::{HashMap, HashSet};
use llmprof_core::{
    domain::{profiling::NcuSettings, units::Nanos},
    trace::{
        kernel::LaunchKind,
        names::{base_name, signature},
        range::Range,
        timeline::Timeline,
    },
};

use crate::{
    kernels::{
        LaunchConfig,
        durations::{Durations, Length},
    },
    stages::{DECODE, NO_STAGE, STAGES},
    stats::percent,
    timeline::capture::Capture,
};
use cover::{Candidate, CoverLimits, covered, select};
pub use plan::{CounterPlan, CounterProcess, KernelPair, SelectedStage};
pub use samples::TracedProgram;

/// Divisors of decode that are tried until the target is covered: few steps take less time under
/// ncu, and have fewer geometries.
const PARTS: [u32; 7] = [64, 32, 16, 8, 4, 2, 1];
/// Maximum length of the symbols of a process, in bytes: an argument on Linux has at most 128 KiB.
const MAX_SYMBOL_BYTES: usize = 100_000;

/// Selects launches until `ncu.target_pct` of each stage's kernel time is covered, or of all kernel
/// time in a program without stages; in the first repeat of the first sample: a runner runs only
/// that one under ncu.
pub fn select_kernels(
    trace: &Timeline,
    settings: &NcuSettings,
    traced: TracedProgram,
) -> CounterPlan {
    let limit = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let timeline = StageLaunches::of(trace, traced, limit(settings.launches_per_config));
    let limits = CoverLimits {
        target: settings.target_pct / 100.0,
        max_launches: limit(settings.max_launches),
    };
    let max_processes = limit(settings.max_processes);
    let whole = !traced.is_runner || !timeline.stages.contains(&DECODE);
    let mut best: Option<(f64, CounterPlan)> = None;
    for part in PARTS.into_iter().filter(|part| !whole || *part == 1) {
        let (score, plan) = timeline.plan(part, &limits, max_processes, trace);
        let is_enough = score >= limits.target * timeline.stages.len() as f64 - 1e-9;
        if best.as_ref().is_none_or(|(most, _)| score > most + 1e-9) {
            best = Some((score, plan));
        }
        if is_enough {
            break;
        }
    }
    let plan = best.map(|(_, plan)| plan).unwrap_or_default();
    CounterPlan { sample: (traced.samples > 1).then_some(0), ..plan }
}

/// Kernel launches in stages, in execution order; of a program without stages, all launches.
struct StageLaunches {
    /// Stages with kernels, in execution order.
    stages: Vec<&'static str>,
    /// Kernel time of each stage.
    total: Vec<Nanos>,
    names: Vec<SelectedKernel>,
    /// Name, signature and geometry.
    pairs: Vec<(usize, String, LaunchConfig)>,
    /// Launches of each pair in each stage.
    durations: Vec<Vec<Durations>>,
    /// Launches of decode.
    decoded: usize,
    groups: Vec<LaunchGroup>,
}

/// A kernel to select: one instantiation of a template; without symbols all of a short name.
struct SelectedKernel {
    /// Short name.
    name: String,
    symbol: Option<String>,
}

impl SelectedKernel {
    fn of(trace: &Timeline, kind: &LaunchKind, by_symbol: bool) -> Self {
        let text = |at: u32| trace.text(at);
        let symbol = trace.symbols.get(&kind.full_name).filter(|_| by_symbol);
        Self {
            name: base_name(text(kind.name)).to_owned(),
            symbol: symbol.map(|at| text(*at).to_owned()),
        }
    }
}

/// Launches of one name with one grid, block and shared memory that ncu profiles: the first ones.
#[derive(Clone)]
struct LaunchGroup {
    name: usize,
    /// Kernel and geometry of the first launch.
    pair: usize,
    launches: Vec<FirstLaunch>,
}

#[derive(Clone, Copy)]
struct FirstLaunch {
    stage: usize,
    ns: i64,
    /// Position among the launches of decode, if it is one.
    in_decode: Option<usize>,
}

impl StageLaunches {
    fn of(trace: &Timeline, traced: TracedProgram, per_config: usize) -> Self {
        let capture = Capture::of(trace);
        let end = samples::second_start(&capture, traced).unwrap_or(i64::MAX);
        let known = |stage: Option<&str>| STAGES.iter().position(|it| Some(*it) == stage);
        let starts = || samples::stage_starts(&capture);
        let has_stages = starts().any(|(_, stage, _)| known(stage).is_some());
        let selected = |stage: Option<&str>| match stage.unwrap_or(NO_STAGE) {
            NO_STAGE if !has_stages => Some(STAGES.len()),
            stage => known(Some(stage)),
        };
        let all = || {
            starts()
                .filter(|(_, _, start)| *start < end)
                .filter_map(|(kernel, stage, _)| Some((kernel, selected(stage)?)))
        };
        let present: BTreeSet<usize> = all().map(|(_, stage)| stage).collect();
        let index: HashMap<usize, usize> =
            present.iter().enumerate().map(|(at, stage)| (*stage, at)).collect();
        let mut this = Self {
            stages: present
                .iter()
                .map(|stage| STAGES.get(*stage).copied().unwrap_or(NO_STAGE))
                .collect(),
            total: vec![Nanos(0); present.len()],
            names: vec![],
            pairs: vec![],
            durations: vec![],
            decoded: 0,
            groups: vec![],
        };
        let by_symbol = has_symbols(trace);
        let (mut names, mut pairs) = (HashMap::default(), HashMap::default());
        let mut groups: HashMap<_, usize> = HashMap::default();
        let mut launches = Vec::new();
        for (kernel, stage) in all() {
            let stage = index[&stage];
            let number = if by_symbol { kernel.full_name } else { kernel.name };
            let name = *names.entry(number).or_insert_with(|| {
                this.names.push(SelectedKernel::of(trace, &kernel, by_symbol));
                this.names.len() - 1
            });
            let geometry = (kernel.grid, kernel.block);
            // ncu profiles one launch, of one instantiation, whatever it selects by.
            let pair = *pairs.entry((name, kernel.full_name, geometry)).or_insert_with(|| {
                let full = trace.strings.get(kernel.full_name as usize);
                let signature = full.map(|full| signature(full)).unwrap_or_default();
                this.pairs.push((name, signature, geometry));
                this.durations.push(vec![Durations::default(); present.len()]);
                this.pairs.len() - 1
            });
            let is_decode = this.stages[stage] == DECODE;
            let config = (name, geometry, kernel.shared_memory);
            let group = *groups.entry(config).or_insert_with(|| {
                this.groups.push(LaunchGroup { name, pair, launches: vec![] });
                this.groups.len() - 1
            });
            let first = &mut this.groups[group].launches;
            if first.len() < per_config {
                let in_decode = is_decode.then_some(this.decoded);
                first.push(FirstLaunch { stage, ns: kernel.ns(), in_decode });
            }
            this.decoded += usize::from(is_decode);
            this.durations[pair][stage].count(kernel.ns());
            this.total[stage] += Nanos(kernel.ns());
            launches.push((pair, stage, kernel.ns()));
        }
        for (pair, stage, ns) in launches {
            this.durations[pair][stage].count_length(ns);
        }
        this
    }

    /// The plan over the first 1/`part` of decode, with the sum of the stages' shares, each up to
    /// the target.
    fn plan(
        &self,
        part: u32,
        limits: &CoverLimits,
        max_processes: usize,
        trace: &Timeline,
    ) -> (f64, CounterPlan) {
        let groups = self.running(part);
        let candidates = self.candidates(&groups);
        let assigned = self.in_processes(&select(&candidates, limits), max_processes);
        let process_of = |pair: usize| {
            let group = groups.iter().find(|it| it.pair == pair)?;
            assigned.iter().position(|names| names.contains(&group.name))
        };
        let processes = assigned.iter().map(|names| {
            let of_process = || groups.iter().filter(|it| names.contains(&it.name));
            let launches = || of_process().flat_map(|it| &it.launches);
            let stages: BTreeSet<usize> = launches().map(|it| it.stage).collect();
            let selected = || names.iter().map(|name| &self.names[*name]);
            let mut kernels: Vec<String> = Vec::new();
            for it in selected() {
                if !kernels.contains(&it.name) {
                    kernels.push(it.name.clone());
                }
            }
            CounterProcess {
                kernels,
                symbols: selected().filter_map(|it| it.symbol.clone()).collect(),
                launches: launches().count(),
                stages: stages.into_iter().map(|stage| self.stages[stage].to_owned()).collect(),
            }
        });
        let processes: Vec<CounterProcess> = processes.collect();
        let mut pairs: Vec<KernelPair> = (0..self.pairs.len())
            .filter(|pair| assigned.iter().any(|names| names.contains(&self.pairs[*pair].0)))
            .map(|pair| self.pair(pair, process_of(pair), &groups))
            .collect();
        pairs.sort_by(|a, b| b.total_ms().total_cmp(&a.total_ms()));
        let selected = assigned.iter().flatten().map(|name| &candidates[*name]);
        let covered = covered(selected, self.stages.len());
        let stages = (0..self.stages.len()).map(|at| SelectedStage {
            stage: self.stages[at].to_owned(),
            range: range(self.stages[at], trace),
            kernel_ms: self.total[at].as_ms(),
            planned_pct: percent(covered[at], 1.0),
        });
        let score = covered.iter().map(|share| share.min(limits.target)).sum();
        (score, CounterPlan { stages: stages.collect(), processes, pairs, part, sample: None })
    }

    /// The groups with the launches that run in the first 1/`part` of decode, or before.
    fn running(&self, part: u32) -> Vec<LaunchGroup> {
        let end = self.decoded.div_ceil(part as usize);
        let runs = |it: &FirstLaunch| it.in_decode.is_none_or(|at| at < end);
        let running = |it: &LaunchGroup| {
            let launches: Vec<FirstLaunch> = it.launches.iter().copied().filter(runs).collect();
            (!launches.is_empty()).then_some(LaunchGroup { launches, ..*it })
        };
        self.groups.iter().filter_map(running).collect()
    }

    /// Coverage of each name by the first launches of these groups. A pair with several sizes of
    /// shared memory counts once.
    fn candidates(&self, groups: &[LaunchGroup]) -> Vec<Candidate> {
        let none = Candidate { shares: vec![0.0; self.stages.len()], launches: 0 };
        let mut candidates = vec![none; self.names.len()];
        let mut counted = HashSet::default();
        for group in groups {
            let candidate = &mut candidates[group.name];
            candidate.launches += group.launches.len();
            if !counted.insert(group.pair) {
                continue;
            }
            let times = self.durations[group.pair].iter().zip(&self.total);
            for (share, (launches, total)) in candidate.shares.iter_mut().zip(times) {
                *share += launches.all().ms() / total.as_ms().max(1e-9);
            }
        }
        candidates
    }

    /// Distributes kernels over processes so that their symbols fit into an argument each; kernels
    /// for which there is no room are left out. In a process, kernels are in execution order.
    fn in_processes(&self, names: &[usize], max_processes: usize) -> Vec<Vec<usize>> {
        let mut processes: Vec<(usize, Vec<usize>)> = Vec::new();
        for name in names {
            let bytes = self.names[*name].symbol.as_ref().map_or(0, String::len);
            let has_room = |it: &&mut (usize, Vec<usize>)| it.0 + bytes <= MAX_SYMBOL_BYTES;
            if let Some((used, names)) = processes.iter_mut().find(has_room) {
                *used += bytes;
                names.push(*name);
            } else if processes.len() < max_processes && bytes <= MAX_SYMBOL_BYTES {
                processes.push((bytes, vec![*name]));
            }
        }
        processes.iter_mut().for_each(|(_, names)| names.sort_unstable());
        processes.into_iter().map(|(_, names)| names).collect()
    }

    fn pair(&self, pair: usize, process: Option<usize>, groups: &[LaunchGroup]) -> KernelPair {
        let (name, signature, (grid, block)) = &self.pairs[pair];
        let by_stage = |ms: &dyn Fn(usize) -> f64| -> BTreeMap<String, f64> {
            let ms =
                self.stages.iter().enumerate().map(|(at, stage)| ((*stage).to_owned(), ms(at)));
            ms.filter(|(_, ms)| *ms > 0.0).collect()
        };
        KernelPair {
            kernel: self.names[*name].name.clone(),
            signature: signature.clone(),
            grid: *grid,
            block: *block,
            process,
            ms: by_stage(&|stage| self.durations[pair][stage].all().ms()),
            like_ms: by_stage(&|stage| self.like_ms(pair, stage, groups)),
        }
    }

    /// Time of a pair's launches in a stage that are like launches of these groups: of the same
    /// length if the group is of this stage, else of similar duration.
    fn like_ms(&self, pair: usize, stage: usize, groups: &[LaunchGroup]) -> f64 {
        let of_stage = &self.durations[pair][stage];
        let like = |it: &FirstLaunch| {
            let first = &self.durations[pair][it.stage];
            let length = first.length(it.ns);
            if it.stage == stage {
                Some(length)
            } else {
                of_stage.similar(first.tally(length).mean_ns())
            }
        };
        let of_pair = groups.iter().filter(|it| it.pair == pair).flat_map(|it| &it.launches);
        let lengths: BTreeSet<Length> = of_pair.filter_map(like).collect();
        lengths.into_iter().map(|it| of_stage.tally(it).ms()).sum()
    }
}

/// Returns true if the capture has the symbol of each kernel.
fn has_symbols(trace: &Timeline) -> bool {
    trace.kernels.kinds().iter().all(|kind| trace.symbols.contains_key(&kind.full_name))
}

/// The first range of this stage in ncu syntax: `DOMAIN@RANGE/`, without the slash for start/end
/// ranges.
fn range(stage: &str, trace: &Timeline) -> Option<String> {
    let ranges = || trace.ranges.iter();
    let of_stage = ranges().find(|it| trace.rules.stage(&it.name, &it.domain) == Some(stage));
    // Decode may have only ranges of its steps.
    let is_step = |it: &&Range| stage == DECODE && trace.rules.is_decode_step(&it.name, &it.domain);
    let range = of_stage.or_else(|| ranges().find(is_step))?;
    let is_accepted = |text: &str| {
        text.chars().all(|it| it.is_alphanumeric() || matches!(it, '_' | '-' | '.' | ' '))
    };
    let domain = if range.domain.is_empty() { String::new() } else { format!("{}@", range.domain) };
    let slash = if range.push_pop { "/" } else { "" };
    (is_accepted(&range.domain) && is_accepted(&range.name))
        .then(|| format!("{domain}{}{slash}", range.name))
}
