//! Sets of groups of ranges that are open at launches.

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::trace::{
    range::Range,
    timeline::{Timeline, process_of},
};

use super::{NONE, Segments, end, place};
use crate::timeline::launches::CallSet;

/// Open ranges at a launch from which sets are not computed: a program that nests as deep does so
/// by mistake.
const MAX_OPEN: usize = 10_000;
/// Maximum size of all sets, groups.
const MAX_GROUPS: usize = 32 << 20;

/// The sets of groups that are open at launches.
#[derive(Debug, Default)]
pub struct OpenSets {
    /// Groups of each set, in order.
    sets: Vec<Box<[u32]>>,
    /// Number of the set over time, which is right only at the launches; [`NONE`] is the empty set.
    threads: BTreeMap<i64, Segments>,
}

/// Ranges nest too deep for sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooDeep {
    /// Ranges that are open at once at a launch.
    pub open: usize,
}

impl OpenSets {
    /// The groups of a set.
    pub fn groups(&self, set: u32) -> &[u32] {
        self.sets.get(set as usize).map_or(&[], |it| it)
    }

    pub fn on(&self, thread: i64) -> Option<&Segments> {
        self.threads.get(&thread)
    }

    /// Finds the sets at the calls in `launches` and at `captures` (time and thread), for each
    /// thread: thread ranges and process ranges, which need not nest.
    pub fn of<'a>(
        trace: &'a Timeline,
        mut group: impl FnMut(&'a Range) -> Option<u32>,
        launches: &CallSet,
        captures: &[(i64, i64)],
    ) -> Result<Self, TooDeep> {
        let mut places: BTreeMap<i64, OpenPlace> = BTreeMap::new();
        let mut finder = SetFinder::default();
        let mut ranges = trace.ranges.iter().filter(|it| it.start_ns < end(it)).peekable();
        let mut at = |(t, thread): (i64, i64)| {
            while let Some(range) = ranges.next_if(|it| it.start_ns <= t) {
                if let Some(group) = group(range) {
                    places.entry(place(range)).or_default().open(range, group);
                }
            }
            finder.add((t, thread), &mut places)
        };
        let mut captures = captures.iter().copied().peekable();
        let calls = trace.cuda_calls.iter().enumerate().filter(|(at, _)| launches.contains(*at));
        for (_, call) in calls {
            while let Some(capture) = captures.next_if(|it| it.0 <= call.start_ns) {
                at(capture)?;
            }
            at((call.start_ns, call.global_tid))?;
        }
        captures.try_for_each(at)?;
        Ok(finder.found)
    }
}

/// Open ranges of a thread or process.
#[derive(Default)]
struct OpenPlace {
    /// End and group.
    open: Vec<(i64, u32)>,
    /// First end of them.
    next_end: i64,
    /// Length from which closed ones are removed.
    limit: usize,
    /// Grows with each change.
    version: u64,
}

impl OpenPlace {
    fn open(&mut self, range: &Range, group: u32) {
        self.next_end =
            if self.open.is_empty() { end(range) } else { self.next_end.min(end(range)) };
        self.open.push((end(range), group));
        self.version += 1;
        if self.open.len() > self.limit {
            self.close(range.start_ns);
            self.limit = 64 + 2 * self.open.len();
        }
    }

    /// Removes the ranges that end until `t`.
    fn close(&mut self, t: i64) {
        if self.next_end <= t && !self.open.is_empty() {
            self.open.retain(|it| it.0 > t);
            self.next_end = self.open.iter().map(|it| it.0).min().unwrap_or(i64::MAX);
            self.version += 1;
        }
    }
}

#[derive(Default)]
struct SetFinder {
    found: OpenSets,
    numbers: HashMap<Box<[u32]>, u32>,
    groups: usize,
    /// Versions of thread and process at the last launch of a thread.
    last: HashMap<i64, [u64; 2]>,
    /// Room for the groups of a launch.
    open: Vec<u32>,
}

impl SetFinder {
    fn add(
        &mut self,
        (t, thread): (i64, i64),
        places: &mut BTreeMap<i64, OpenPlace>,
    ) -> Result<(), TooDeep> {
        let process = Some(process_of(thread)).filter(|it| *it != thread);
        self.open.clear();
        let mut versions = [0; 2];
        let mut open = 0;
        for (place, version) in [Some(thread), process].into_iter().zip(&mut versions) {
            if let Some(place) = place.and_then(|it| places.get_mut(&it)) {
                place.close(t);
                *version = place.version;
                open += place.open.len();
            }
        }
        if open > MAX_OPEN {
            return Err(TooDeep { open });
        }
        if self.last.insert(thread, versions) == Some(versions) {
            return Ok(());
        }
        for place in [Some(thread), process].into_iter().flatten() {
            self.open.extend(places.get(&place).into_iter().flat_map(|it| &it.open).map(|it| it.1));
        }
        self.open.sort_unstable();
        self.open.dedup();
        let set = match self.numbers.get(&*self.open) {
            _ if self.open.is_empty() => NONE,
            Some(known) => *known,
            None => self.number(open)?,
        };
        self.found.threads.entry(thread).or_default().push(t, set);
        Ok(())
    }

    fn number(&mut self, open: usize) -> Result<u32, TooDeep> {
        let groups: Box<[u32]> = self.open.as_slice().into();
        self.groups += groups.len();
        if self.groups > MAX_GROUPS {
            return Err(TooDeep { open });
        }
        let number = self.found.sets.len() as u32;
        self.found.sets.push(groups.clone());
        self.numbers.insert(groups, number);
        Ok(number)
    }
}
