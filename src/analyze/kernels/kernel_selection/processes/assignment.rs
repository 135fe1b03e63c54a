//! Assignments of kernels to a given number of processes, with a given number of launches of each
//! configuration: kernels are added where they cover the most per launch, then what is not needed
//! is taken away.

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

/// Processes to replace, by index.
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
    /// `counts`: launches of each configuration in each process.
    pub fn new(
        of: &'a Selectable,
        groups: &'a [Vec<LaunchGroup>],
        ranked: &'a [usize],
        limits: &'a ProcessLimits,
        counts: &[usize],
    ) -> Self {
        let idle = |count: &usize| (Process { count: *count, names: vec![] }, Yield::default());
        let processes = counts.iter().map(idle).collect();
        Self { of, groups, ranked, limits, processes, value: Value::default() }
    }

    /// Returns true if this covers more, or as much in less time.
    pub fn is_better(&self, than: &Self) -> bool {
        self.value.score > than.value.score + MIN_GAIN || self.value.is_faster(&than.value)
    }

    /// Seconds that this takes, if it covers the target of all stages.
    pub fn seconds_to_target(&self) -> Option<f64> {
        let stages = self.of.shares.first().map_or(0, Vec::len);
        let target = self.limits.target * stages as f64;
        (self.value.score > target - MIN_GAIN).then_some(self.value.seconds)
    }

    /// The processes that profile something.
    pub fn into_processes(self) -> Vec<Process> {
        let all = self.processes.into_iter().map(|(process, _)| process);
        all.filter(|it| !it.names.is_empty()).collect()
    }

    /// Adds kernels until the target is covered, always those with the most coverage per launch. A
    /// kernel that others hide may leave its process.
    pub fn grow(&mut self) {
        // What each process would deliver with one more kernel.
        let mut with: Vec<Vec<Option<Yield>>> =
            vec![vec![None; self.ranked.len()]; self.processes.len()];
        loop {
            let mut best: Option<(f64, usize, usize)> = None;
            for (rank, name) in self.ranked.iter().enumerate() {
                let from = self.process_of(*name);
                let without = from.map(|from| (from, self.yield_of(&self.minus(from, *name))));
                for (at, with) in with.iter_mut().enumerate().filter(|(at, _)| from != Some(*at)) {
                    let of = with[rank].get_or_insert_with(|| self.yield_of(&self.plus(at, *name)));
                    let new: Vec<(usize, &Yield)> =
                        without.iter().map(|(from, of)| (*from, of)).chain([(at, &*of)]).collect();
                    let Some(value) = self.value_of(&new) else { continue };
                    let gain = value.score - self.value.score;
                    let launches = value.launches.saturating_sub(self.value.launches).max(1);
                    let ratio = gain / launches as f64;
                    if gain > MIN_GAIN && best.is_none_or(|(most, ..)| ratio > most) {
                        best = Some((ratio, rank, at));
                    }
                }
            }
            let Some((_, rank, at)) = best else { return };
            let name = self.ranked[rank];
            let from = self.process_of(name).map(|from| (from, self.minus(from, name)));
            let change: Change = [(at, self.plus(at, name))].into_iter().chain(from).collect();
            change.iter().for_each(|(at, _)| with[*at].fill(None));
            self.apply(change);
        }
    }

    /// Takes away what is not needed for the same coverage: kernels, smallest share first, launches
    /// of each configuration, and processes.
    pub fn shrink(&mut self) {
        while self.drop_kernel() || self.save_time() {}
    }

    /// Returns true if the same is covered without one of the kernels, in no more time.
    fn drop_kernel(&mut self) -> bool {
        let mut drops = self.ranked.iter().rev().filter_map(|name| {
            let at = self.process_of(*name)?;
            let change = vec![(at, self.minus(at, *name))];
            let is_as_good = self.value_with(&change)?.is_as_good(&self.value);
            is_as_good.then_some(change)
        });
        let Some(change) = drops.next() else { return false };
        self.apply(change);
        true
    }

    /// Returns true if fewer launches, one process in place of two, or a kernel in another process
    /// takes less time for the same coverage.
    fn save_time(&mut self) -> bool {
        let mut changes = self.fewer_launches();
        changes.extend(self.merged_processes());
        changes.extend(self.ranked.iter().flat_map(|name| self.moves(*name)));
        let is_faster =
            |it: &Change| self.value_with(it).is_some_and(|it| it.is_faster(&self.value));
        let Some(change) = changes.into_iter().find(is_faster) else { return false };
        self.apply(change);
        true
    }

    fn fewer_launches(&self) -> Vec<Change> {
        let all = self.processes.iter().enumerate();
        let fewer = |(at, (process, _)): (usize, &(Process, Yield))| {
            (1..process.count)
                .map(|count| vec![(at, Process { count, names: process.names.clone() })])
                .collect::<Vec<Change>>()
        };
        all.flat_map(fewer).collect()
    }

    fn merged_processes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (at, (one, _)) in self.processes.iter().enumerate() {
            for (other, (two, _)) in self.processes.iter().enumerate().skip(at + 1) {
                let names = [one.names.clone(), two.names.clone()].concat();
                let merged = Process { names, count: one.count.max(two.count) };
                changes.push(vec![(at, merged), (other, Process::default())]);
            }
        }
        changes
    }

    /// Ways to profile an assigned kernel in another process.
    fn moves(&self, name: usize) -> Vec<Change> {
        let Some(from) = self.process_of(name) else { return Vec::new() };
        (0..self.processes.len())
            .filter(|to| *to != from)
            .map(|to| vec![(to, self.plus(to, name)), (from, self.minus(from, name))])
            .collect()
    }

    fn process_of(&self, name: usize) -> Option<usize> {
        self.processes.iter().position(|(process, _)| process.names.contains(&name))
    }

    fn plus(&self, at: usize, name: usize) -> Process {
        let mut process = self.processes[at].0.clone();
        process.names.push(name);
        process
    }

    fn minus(&self, at: usize, name: usize) -> Process {
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
        let new: Vec<(usize, Yield)> =
            change.iter().map(|(at, process)| (*at, self.yield_of(process))).collect();
        let new: Vec<(usize, &Yield)> = new.iter().map(|(at, of)| (*at, of)).collect();
        self.value_of(&new)
    }

    /// The value where these processes deliver this.
    fn value_of(&self, new: &[(usize, &Yield)]) -> Option<Value> {
        let is_kept = |at: usize| new.iter().all(|(changed, _)| *changed != at);
        let kept = self.processes.iter().enumerate().filter(|(at, _)| is_kept(*at));
        let all = kept.map(|(_, (_, of))| of).chain(new.iter().map(|(_, of)| *of));
        let mut covered = vec![0.0; self.of.shares.first().map_or(0, Vec::len)];
        let mut value = Value::default();
        for of in all.filter(|it| it.launches > 0) {
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
            self.processes[at] = (process.clone(), self.yield_of(&process));
        }
    }
}
