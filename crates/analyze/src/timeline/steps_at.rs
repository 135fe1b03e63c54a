//! The step that is open at a time on a thread, or on all threads of its process.

use std::{cmp::Reverse, collections::BTreeMap};

use llmprof_core::trace::timeline::process_of;

use super::{
    interval::Interval,
    launches::Cursor,
    open_ranges::{OpenNest, nest},
};

/// Steps by the thread or process on which they are open.
#[derive(Debug, Default)]
pub struct StepsAt {
    nests: BTreeMap<i64, OpenNest>,
}

impl StepsAt {
    /// Nests steps, given as thread or process and times.
    pub fn of(steps: &[(i64, Interval)]) -> Self {
        let mut places: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        for (at, step) in steps.iter().enumerate() {
            places.entry(step.0).or_default().push(at as u32);
        }
        let span = |at: u32| steps[at as usize].1;
        let open = |(place, mut steps): (i64, Vec<u32>)| {
            steps.sort_by_key(|at| (span(*at).0, Reverse(span(*at).1)));
            (place, nest(span, &steps))
        };
        Self { nests: places.into_iter().map(open).collect() }
    }

    pub fn lookup(&self) -> StepLookup<'_> {
        StepLookup { nests: &self.nests, thread: Cursor::default(), process: Cursor::default() }
    }
}

/// Looks up steps, fast in order of time.
pub struct StepLookup<'a> {
    nests: &'a BTreeMap<i64, OpenNest>,
    thread: Cursor<'a>,
    process: Cursor<'a>,
}

impl StepLookup<'_> {
    /// Index of the step that is open at `t` on a thread or else on its process; of several, the
    /// one that started last.
    pub fn at(&mut self, thread: i64, t: i64) -> Option<usize> {
        open_step(self.nests, &mut self.thread, thread, t)
            .or_else(|| open_step(self.nests, &mut self.process, process_of(thread), t))
    }
}

/// The step that is open at a place at `t`.
fn open_step<'a>(
    nests: &'a BTreeMap<i64, OpenNest>,
    cursor: &mut Cursor<'a>,
    place: i64,
    t: i64,
) -> Option<usize> {
    let nest = nests.get(&place)?;
    let entry = cursor.at(place, t, |_| Some(&nest.segments));
    nest.entries.get(entry as usize).map(|(step, _)| *step as usize)
}
