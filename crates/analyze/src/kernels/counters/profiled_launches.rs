//! Counters of the launches of a timeline.

use foldhash::HashMap;

use super::{super::function_names::FunctionNames, CounterRecord, timeline_runs::LaunchGroup};
use crate::timeline::{capture::Capture, open_ranges::NONE};

/// The counters that stand for each launch, by kind and stage.
pub struct ProfiledLaunches<'a> {
    counters: &'a [CounterRecord],
    stages: usize,
    /// Indexes of records by number of the kind and of the stage; empty without counters.
    records: Vec<Vec<u32>>,
}

impl<'a> ProfiledLaunches<'a> {
    pub fn of(capture: &Capture, counters: &'a [CounterRecord]) -> Self {
        let stages = capture.stage_count();
        let mut by_group: HashMap<LaunchGroup, Vec<u32>> = HashMap::default();
        for (at, it) in (0..).zip(counters).filter(|(_, it)| it.like.is_some()) {
            by_group.entry(it.config()).or_default().push(at);
        }
        if by_group.is_empty() {
            return Self { counters, stages, records: vec![] };
        }
        let names = FunctionNames::of(capture.trace);
        let of = |(kind, stage): (usize, usize)| {
            let kind = &capture.trace.kernels.kinds()[kind];
            let (name, signature) = names.get(kind);
            let stage = capture.stage_label(stage);
            let group = (stage, name, signature, Some(kind.grid), Some(kind.block));
            by_group.get(&group).cloned().unwrap_or_default()
        };
        let kinds = 0..capture.trace.kernels.kinds().len();
        let places = kinds.flat_map(|kind| (0..stages).map(move |stage| (kind, stage)));
        Self { counters, stages, records: places.map(of).collect() }
    }

    /// Index of the counters that stand for a launch of this kind, stage and duration;
    /// [`NONE`] without any.
    pub fn index(&self, kind: u32, stage: usize, ns: i64) -> u32 {
        let records = self.records.get(kind as usize * self.stages + stage);
        let stands =
            |at: &&u32| self.get(**at).is_some_and(|it| it.like.is_some_and(|like| like.has(ns)));
        records.and_then(|all| all.iter().find(stands)).copied().unwrap_or(NONE)
    }

    pub fn get(&self, index: u32) -> Option<&'a CounterRecord> {
        self.counters.get(index as usize)
    }
}
