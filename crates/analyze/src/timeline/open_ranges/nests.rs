//! Nested ranges by thread.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    range::Range,
    timeline::{Timeline, process_of},
};

use super::{NONE, Segments, end, place, threads};

/// Selected spans as a tree.
#[derive(Debug, Default)]
pub struct OpenNest {
    /// The span and its enclosing entry ([`NONE`] if there is none), in order of start.
    pub entries: Vec<(u32, u32)>,
    /// Innermost open entry over time.
    pub segments: Segments,
}

/// Selected ranges as a tree, as visible to one thread. Captures have millions of ranges: the
/// innermost one open at a time is found by the tree itself.
#[derive(Debug, Default)]
pub struct RangeNest {
    /// The range and its enclosing entry ([`NONE`] if there is none), in order of start.
    pub entries: Vec<(u32, u32)>,
}

/// Place of the last lookup in a nest.
#[derive(Debug, Clone, Copy)]
pub struct NestHint {
    /// Number of entries that start until then.
    started: usize,
    at: i64,
    entry: u32,
}

impl Default for NestHint {
    fn default() -> Self {
        Self { started: 0, at: i64::MIN, entry: NONE }
    }
}

impl RangeNest {
    /// Innermost entry open at `t`; [`NONE`] if none is. Fast for lookups in order of time.
    pub fn at(&self, ranges: &[Range], t: i64, hint: &mut NestHint) -> u32 {
        let range = |entry: u32| &ranges[self.entries[entry as usize].0 as usize];
        let has_started = |entry: usize| range(entry as u32).start_ns <= t;
        let is_place = |started: usize| {
            (started == 0 || has_started(started - 1))
                && (started == self.entries.len() || !has_started(started))
        };
        let started = hint.started;
        let (started, is_known) = if started <= self.entries.len() && is_place(started) {
            (started, t >= hint.at)
        } else if started < self.entries.len() && is_place(started + 1) {
            (started + 1, false)
        } else {
            (self.entries.partition_point(|(at, _)| ranges[*at as usize].start_ns <= t), false)
        };
        // The last one that started, or the nearest around it that is still open.
        let last = if is_known { hint.entry } else { (started as u32).wrapping_sub(1) };
        let mut entry = last;
        while entry != NONE && end(range(entry)) <= t {
            entry = self.entries[entry as usize].1;
        }
        *hint = NestHint { started, at: t, entry };
        entry
    }

    /// Sums of entries, each with all entries inside it. `leaves` are in order of their entries.
    /// `visit` gets each entry with its sum, entries inside first, and may change what the
    /// enclosing entry gets.
    pub fn roll_up<V>(
        &self,
        mut leaves: Vec<(u32, V)>,
        mut join: impl FnMut(&mut V, V),
        mut visit: impl FnMut(u32, &mut V),
    ) {
        // Entries around the one before, outermost first: a later entry lies inside all of them.
        let mut around: Vec<(u32, V)> = Vec::new();
        loop {
            let is_leaf = match (leaves.last(), around.last()) {
                (None, None) => return,
                (Some((leaf, _)), Some((outer, _))) => leaf >= outer,
                (leaf, _) => leaf.is_some(),
            };
            let next = if is_leaf { leaves.pop() } else { around.pop() };
            let Some((entry, mut sum)) = next else { return };
            if around.last().is_some_and(|it| it.0 == entry)
                && let Some((_, inside)) = around.pop()
            {
                join(&mut sum, inside);
            }
            visit(entry, &mut sum);
            match self.entries[entry as usize].1 {
                NONE => {}
                outer => match around.last_mut() {
                    Some((at, known)) if *at == outer => join(known, sum),
                    _ => around.push((outer, sum)),
                },
            }
        }
    }

    /// True for each entry inside another one of the same name, by the number of each entry's name.
    pub fn inside_same(&self, names: &[u32]) -> Vec<bool> {
        let mut open: Vec<(u32, u32)> = Vec::new();
        let mut counts: Vec<u32> = Vec::new();
        let entry = |(at, ((_, parent), name)): (usize, (&(u32, u32), &u32))| {
            while let Some((_, closed)) = open.pop_if(|(entry, _)| *entry != *parent) {
                counts[closed as usize] -= 1;
            }
            let name = *name;
            counts.resize(counts.len().max(name as usize + 1), 0);
            let is_inside = counts[name as usize] > 0;
            counts[name as usize] += 1;
            open.push((at as u32, name));
            is_inside
        };
        self.entries.iter().zip(names).enumerate().map(entry).collect()
    }
}

/// Nests the ranges selected by `wanted`, for each thread. If ranges overlap without nesting, the
/// later one counts as the inner one.
pub fn nest_ranges<'a>(
    trace: &'a Timeline,
    mut wanted: impl FnMut(&'a Range) -> bool,
) -> BTreeMap<i64, RangeNest> {
    let mut places: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    for (at, range) in trace
        .ranges
        .iter()
        .enumerate()
        .filter(|(_, range)| range.start_ns < end(range) && wanted(range))
    {
        places.entry(place(range)).or_default().push(at as u32);
    }
    let order = |at: &u32| {
        let range = &trace.ranges[*at as usize];
        (range.start_ns, std::cmp::Reverse(end(range)), *at)
    };
    let mut nests = BTreeMap::new();
    for thread in threads(trace) {
        let process = process_of(thread);
        let own = if thread == process { None } else { places.remove(&thread) };
        let mut visible = own.unwrap_or_default();
        visible.extend(places.get(&process).into_iter().flatten());
        if visible.is_empty() {
            continue;
        }
        if !visible.is_sorted_by_key(order) {
            visible.sort_unstable_by_key(order);
        }
        let span = |at: u32| {
            let range = &trace.ranges[at as usize];
            (range.start_ns, end(range))
        };
        nests.insert(thread, RangeNest { entries: entries(span, &visible, |_, _| ()) });
    }
    nests
}

/// Nests the spans numbered in `order`, which is by start; if spans start together, the longer one
/// comes first.
pub fn nest(span: impl Fn(u32) -> (i64, i64), order: &[u32]) -> OpenNest {
    let mut segments = Segments::default();
    let entries = entries(span, order, |t, entry| segments.push(t, entry));
    OpenNest { entries, segments }
}

/// The entries of a nest. `innermost` gets each time at which another entry is the innermost open
/// one.
fn entries(
    span: impl Fn(u32) -> (i64, i64),
    order: &[u32],
    mut innermost: impl FnMut(i64, u32),
) -> Vec<(u32, u32)> {
    let mut entries: Vec<(u32, u32)> = Vec::with_capacity(order.len());
    // Entry and end. Ends never increase: one that ends before a later one that is open is never
    // the innermost again, nor does it enclose another.
    let mut open: Vec<(u32, i64)> = Vec::new();
    let close = |open: &mut Vec<(u32, i64)>, until: i64, innermost: &mut dyn FnMut(i64, u32)| {
        while let Some((_, t)) = open.pop_if(|(_, end)| *end <= until) {
            while open.pop_if(|(_, end)| *end <= t).is_some() {}
            innermost(t, open.last().map_or(NONE, |it| it.0));
        }
    };
    for &at in order {
        let (start_ns, end_ns) = span(at);
        close(&mut open, start_ns, &mut innermost);
        while open.pop_if(|(_, end)| *end < end_ns).is_some() {}
        let entry = entries.len() as u32;
        entries.push((at, open.last().map_or(NONE, |it| it.0)));
        innermost(start_ns, entry);
        open.push((entry, end_ns));
    }
    close(&mut open, i64::MAX - 1, &mut innermost);
    entries
}
