//! A search for the assignment that takes the least time: kernels are added where they cover the
//! most per second, then what is not needed is taken away.

use super::{
    FirstLaunch, LAUNCH_S, LaunchGroup, MIN_GAIN, Process, ProcessLimits, Selectable,
    first_of_each_config,
};

/// Processes with their kernels, while they are searched for.
pub(super) struct Assignment<'a> {
    of: &'a Selectable,
    /// Groups of each name.
    groups: &'a [Vec<LaunchGroup>],
    /// Names to consider, largest share first.
    ranked: &'a [usize],
    limits: &'a ProcessLimits,
    max_count: usize,
    processes: Vec<(Process, Yield)>,
    /// Of all processes.
    value: Value,
}

/// What a process delivers.
#[derive(Debug, Clone, Default)]
struct Yield {
    /// Share of each stage.
    covered: Vec<f64>,
    launches: usize,
}

/// What an assignment covers, and takes.
#[derive(Debug, Clone, Copy, Default)]
struct Value {
    /// Covered shares of all stages, each up to the target.
    score: f64,
    launches: usize,
    seconds: f64,
}

/// Processes to replace, by index; one after the last is added, one without kernels removed.
type Change = Vec<(usize, Process)>;

impl Value {
    /// Returns true if this covers as much in less time.
    fn is_faster(&self, than: &Self) -> bool {
        self.is_as_good(than) && self.seconds < than.seconds - MIN_GAIN
    }

    /// Returns true if this covers as much in no more time.
    fn is_as_good(&self, than: &Self) -> bool {
        self.score > than.score - MIN_GAIN && self.seconds < than.seconds + MIN_GAIN
    }
}

impl<'a> Assignment<'a> {
    pub fn new(
        of: &'a Selectable,
        groups: &'a [Vec<LaunchGroup>],
        ranked: &'a [usize],
        limits: &'a ProcessLimits,
        max_count: usize,
    ) -> Self {
        let (processes, value) = (Vec::new(), Value::default());
        Self { of, groups, ranked, limits, max_count, processes, value }
    }

    /// Returns true if this covers more, or as much in less time.
    pub fn is_better(&self, than: &Self) -> bool {
        self.value.score > than.value.score + MIN_GAIN || self.value.is_faster(&than.value)
    }

    pub fn into_processes(self) -> Vec<Process> {
        self.processes.into_iter().map(|(process, _)| process).collect()
    }

    /// Adds kernels until the target is covered, always those with the most coverage per second.
    pub fn grow(&mut self) {
        loop {
            let mut best: Option<(f64, Change)> = None;
            for name in self.ranked {
                for change in self.additions(*name) {
                    let Some(value) = self.value_with(&change) else { continue };
                    let gain = value.score - self.value.score;
                    let ratio = gain / (value.seconds - self.value.seconds).max(LAUNCH_S);
                    if gain > MIN_GAIN && best.as_ref().is_none_or(|(most, _)| ratio > *most) {
                        best = Some((ratio, change));
                    }
                }
            }
            let Some((_, change)) = best else { return };
            self.apply(change);
        }
    }

    /// Takes away what is not needed for the same coverage: kernels, smallest share first, launches
    /// of each configuration, and processes.
    pub fn shrink(&mut self) {
        while self.drop_kernel() || self.take_away() {}
    }

    /// Returns true if the same is covered without one of the kernels, in no more time.
    fn drop_kernel(&mut self) -> bool {
        let names = self.ranked.iter().rev();
        let mut drops = names.filter_map(|name| {
            let at = self.process_of(*name)?;
            let change = vec![(at, self.without(at, *name))];
            let is_as_good = self.value_with(&change)?.is_as_good(&self.value);
            is_as_good.then_some(change)
        });
        let Some(change) = drops.next() else { return false };
        self.apply(change);
        true
    }

    /// Returns true if a change takes less time for the same coverage.
    fn take_away(&mut self) -> bool {
        let count = self.processes.len();
        for at in 0..count {
            let process = self.processes[at].0.clone();
            for fewer in 1..process.count {
                if self.try_change(vec![(at, Process { count: fewer, ..process.clone() })]) {
                    return true;
                }
            }
            for other in at + 1..count {
                let second = &self.processes[other].0;
                let names = [process.names.clone(), second.names.clone()].concat();
                for count in process.count.max(second.count)..=self.max_count {
                    let merged = Process { names: names.clone(), count };
                    if self.try_change(vec![(at, merged), (other, Process::default())]) {
                        return true;
                    }
                }
            }
        }
        let names = self.ranked;
        names.iter().any(|name| {
            let changes = self.additions(*name);
            let is_assigned = self.process_of(*name).is_some();
            is_assigned && changes.into_iter().any(|change| self.try_change(change))
        })
    }

    /// Makes a change that takes less time for the same coverage.
    fn try_change(&mut self, change: Change) -> bool {
        let is_faster = self.value_with(&change).is_some_and(|it| it.is_faster(&self.value));
        if is_faster {
            self.apply(change);
        }
        is_faster
    }

    /// Ways to profile more of a kernel: in each process, and in another one.
    fn additions(&self, name: usize) -> Vec<Change> {
        let from = self.process_of(name);
        let mut changes = Vec::new();
        for (at, (process, _)) in self.processes.iter().enumerate() {
            for count in self.useful_counts(process, name) {
                let mut names = process.names.clone();
                if from != Some(at) {
                    names.push(name);
                } else if count == process.count {
                    continue;
                }
                let mut change = vec![(at, Process { names, count })];
                change.extend(self.moved(name, from, at));
                changes.push(change);
            }
        }
        let next = self.processes.len();
        if next < self.limits.max_processes {
            let process = Process { names: vec![name], count: 1 };
            let mut change = vec![(next, process)];
            change.extend(self.moved(name, from, next));
            changes.push(change);
        }
        changes
    }

    /// The process that a kernel leaves.
    fn moved(&self, name: usize, from: Option<usize>, to: usize) -> Option<(usize, Process)> {
        let from = from.filter(|from| *from != to)?;
        Some((from, self.without(from, name)))
    }

    /// Launches of each configuration with which a process reaches more of a kernel.
    fn useful_counts(&self, process: &Process, name: usize) -> Vec<usize> {
        let others = || process.names.iter().filter(|it| **it != name);
        let mut counts = vec![process.count];
        for group in &self.groups[name] {
            let same = |it: &&LaunchGroup| it.config == group.config;
            let rivals = others().flat_map(|it| &self.groups[*it]).filter(same);
            let rivals: Vec<usize> = rivals.flat_map(|it| &it.launches).map(|it| it.at).collect();
            for (own, launch) in group.launches.iter().enumerate() {
                let before = rivals.iter().filter(|at| **at < launch.at).count() + own;
                let is_new = group.launches[..own].iter().all(|it| it.pair != launch.pair);
                counts.extend(is_new.then_some(before + 1));
            }
        }
        counts.retain(|it| (process.count..=self.max_count).contains(it));
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    fn process_of(&self, name: usize) -> Option<usize> {
        self.processes.iter().position(|(process, _)| process.names.contains(&name))
    }

    fn without(&self, at: usize, name: usize) -> Process {
        let mut process = self.processes[at].0.clone();
        process.names.retain(|it| *it != name);
        process
    }

    fn yield_of(&self, process: &Process) -> Yield {
        let groups = process.names.iter().flat_map(|name| &self.groups[*name]);
        let profiled: Vec<FirstLaunch> = first_of_each_config(groups, process.count);
        Yield { covered: self.of.covered(&profiled), launches: profiled.len() }
    }

    /// The value after a change; `None` if it has too many launches.
    fn value_with(&self, change: &Change) -> Option<Value> {
        let new: Vec<Yield> = change.iter().map(|(_, process)| self.yield_of(process)).collect();
        let is_kept = |at: usize| change.iter().all(|(changed, _)| *changed != at);
        let kept = self.processes.iter().enumerate().filter(|(at, _)| is_kept(*at));
        let all = kept.map(|(_, (_, of))| of).chain(&new).filter(|it| it.launches > 0);
        let mut covered = vec![0.0; self.of.shares.first().map_or(0, Vec::len)];
        let mut value = Value::default();
        for of in all {
            covered.iter_mut().zip(&of.covered).for_each(|(sum, share)| *sum += share);
            value.launches += of.launches;
            value.seconds += self.of.start_s + LAUNCH_S * of.launches as f64;
        }
        value.score = covered.into_iter().map(|share| share.min(self.limits.target)).sum();
        (value.launches <= self.limits.max_launches).then_some(value)
    }

    fn apply(&mut self, change: Change) {
        let Some(value) = self.value_with(&change) else { return };
        self.value = value;
        for (at, process) in change {
            let of = self.yield_of(&process);
            match self.processes.get_mut(at) {
                Some(changed) => *changed = (process, of),
                None => self.processes.push((process, of)),
            }
        }
        self.processes.retain(|(process, _)| !process.names.is_empty());
    }
}
