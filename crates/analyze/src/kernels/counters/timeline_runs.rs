//! Launches of the timeline that profiled launches stand for: of the same stage, kernel and launch
//! configuration, and of similar duration.

use foldhash::HashMap;
use llmprof_core::trace::{counter::LaunchCounters, stage::StageRules};

use crate::{
    kernels::{
        durations::{Durations, Length, Tally},
        function_names::FunctionNames,
        is_measured, launched,
    },
    timeline::capture::Capture,
};

/// Stage, kernel, its signature, grid and block of timeline launches.
pub type LaunchKey<'a> = (&'a str, &'a str, &'a str, [u32; 3], [u32; 3]);
/// The same for profiled launches, as far as the ncu page has them.
pub type LaunchGroup<'a> = (&'a str, &'a str, &'a str, Option<[u32; 3]>, Option<[u32; 3]>);

/// The launches of one group that take about as long as the profiled ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Like {
    pub of: Durations,
    pub length: Length,
}

impl Like {
    pub fn tally(&self) -> Tally {
        self.of.tally(self.length)
    }

    pub fn has(&self, ns: i64) -> bool {
        self.of.length(ns) == self.length
    }
}

/// The launches of one group.
#[derive(Debug, Default)]
pub struct GroupRuns {
    pub durations: Durations,
    /// Durations of the first launches, as many as were profiled of all kernels.
    first: Vec<i64>,
}

impl GroupRuns {
    /// The launches that each profiled one stands for: `launches`, in execution order, of this
    /// group in `stage`.
    ///
    /// Our passes, and captures with every launch, profiled the first launches. In other captures
    /// durations are compared, though short kernels take longer under ncu, whose replays start with
    /// cold caches.
    pub fn lengths(
        &self,
        launches: &[&LaunchCounters],
        stage: &str,
        rules: &StageRules,
    ) -> Vec<Option<Length>> {
        let is_ours = |it: &&LaunchCounters| {
            let is_in_stage = stage.is_empty() || it.stage_by(rules) == Some(stage);
            (it.all_stages || !it.stage.is_empty()) && is_in_stage
        };
        let are_all = launches.len() as u64 == self.durations.all().calls;
        let are_first = are_all || launches.iter().all(is_ours);
        let length = |(at, launch): (usize, &&LaunchCounters)| {
            if let Some(ns) = self.first.get(at).filter(|_| are_first) {
                return Some(self.durations.length(*ns));
            }
            match launch.values.duration_ns {
                Some(ns) => self.durations.nearest(ns),
                None => self.durations.only(),
            }
        };
        launches.iter().enumerate().map(length).collect()
    }
}

/// A timeline's launches by stage, kernel and launch configuration.
#[derive(Debug, Default)]
pub struct TimelineRuns<'a>(HashMap<LaunchKey<'a>, GroupRuns>);

impl<'a> TimelineRuns<'a> {
    /// `profiled`: number of profiled launches.
    pub fn of(capture: &'a Capture<'a>, names: &'a FunctionNames, profiled: usize) -> Self {
        let launches = || {
            launched(capture).map(|(kernel, stage)| {
                let (name, signature) = names.get(&kernel);
                let key = (stage.unwrap_or(""), name, signature, kernel.grid, kernel.block);
                (key, kernel.ns())
            })
        };
        let mut runs: HashMap<LaunchKey, GroupRuns> = HashMap::default();
        for (key, ns) in launches() {
            let group = runs.entry(key).or_default();
            group.durations.count(ns);
            if group.first.len() < profiled {
                group.first.push(ns);
            }
        }
        launches().for_each(|(key, ns)| runs.entry(key).or_default().durations.count_length(ns));
        Self(runs)
    }

    /// The launches of a group. One without a launch configuration matches only a kernel with a
    /// single one.
    pub fn get<'b>(&'b self, group: LaunchGroup<'b>) -> Option<&'b GroupRuns> {
        let (stage, kernel, signature, grid, block) = group;
        if let (Some(grid), Some(block)) = (grid, block) {
            return self.0.get(&(stage, kernel, signature, grid, block));
        }
        let is_of = |key: &LaunchKey| {
            (key.0, key.1, key.2) == (stage, kernel, signature)
                && grid.is_none_or(|grid| grid == key.3)
                && block.is_none_or(|block| block == key.4)
        };
        let mut matching = self.0.iter().filter(|(key, _)| is_of(key));
        let first = matching.next();
        first.filter(|_| matching.next().is_none()).map(|(_, runs)| runs)
    }

    /// The stage of a profiled launch. Pages of several stages have its ranges; if these do not
    /// name a stage in which it ran, it is the stage with the most matching launches, of equal ones
    /// with most time.
    pub fn stage_of(&self, launch: &'a LaunchCounters, rules: &'a StageRules) -> &'a str {
        let same = |(key, _): &(&LaunchKey, &GroupRuns)| matches(key, launch);
        let named = launch.stage_by(rules).filter(|stage| {
            !launch.stage.is_empty()
                || self.0.is_empty()
                || self.0.iter().filter(same).any(|it| it.0.0 == *stage)
        });
        let dominant = || {
            self.0.iter().filter(same).max_by_key(|(key, runs)| {
                let Tally { calls, ns } = runs.durations.all();
                (is_measured(key.0) && !key.0.is_empty(), calls, ns, **key)
            })
        };
        named.unwrap_or_else(|| dominant().map_or("", |(key, _)| key.0))
    }

    /// Signature of the timeline's kernel that was launched. A page with only function names
    /// matches only a kernel with a single instantiation.
    pub fn signature_of(&self, launch: &'a LaunchCounters) -> &'a str {
        if !launch.signature.is_empty() {
            return &launch.signature;
        }
        let mut matching = self.0.keys().filter(|key| matches(key, launch)).map(|key| key.2);
        let first = matching.next().unwrap_or_default();
        if matching.all(|other| other == first) { first } else { "" }
    }
}

/// Returns true when a timeline launch matches a profiled one, as far as the page has its fields.
fn matches(key: &LaunchKey, launch: &LaunchCounters) -> bool {
    let LaunchCounters { kernel, signature, grid, block, .. } = launch;
    key.1 == kernel
        && (signature.is_empty() || key.2 == signature)
        && grid.is_none_or(|grid| grid == key.3)
        && block.is_none_or(|block| block == key.4)
}
