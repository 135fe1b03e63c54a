//! Which range was open on a thread at a time: stages by their rules, and nested ranges by their domain.
//!
//! A push/pop range is open on its thread, a start/end range on all threads of its process. Answers come from sorted segments, so that
//! millions of questions in order of time cost little.

use std::collections::{BTreeMap, HashSet};

use super::interval::{Cover, Interval, union};
use crate::{
    run::{Finding, Severity},
    trace::{
        nsys::{NsysTrace, process_of},
        range::Range,
        unclosed::Treated,
    },
};

/// Nothing is open there.
pub const NONE: u32 = u32::MAX;
/// What is there lies outside the included ranges.
pub const EXCLUDED: u32 = NONE - 1;

/// A value per stretch of time, from one point to the next.
#[derive(Debug, Default)]
pub struct Segments {
    from: Vec<i64>,
    value: Vec<u32>,
}

impl Segments {
    fn push(&mut self, from: i64, value: u32) {
        if self.from.last() == Some(&from) {
            self.from.pop();
            self.value.pop();
        }
        if self.value.last().copied().unwrap_or(NONE) != value {
            self.from.push(from);
            self.value.push(value);
        }
    }

    /// The value at `t`; `hint` is where the last answer was found.
    pub fn at(&self, t: i64, hint: &mut usize) -> u32 {
        let holds = |at: usize| at > 0 && self.from[at - 1] <= t && self.from.get(at).is_none_or(|next| t < *next);
        if *hint > self.from.len() || !holds(*hint) {
            *hint = if *hint < self.from.len() && holds(*hint + 1) {
                *hint + 1
            } else {
                self.from.partition_point(|from| *from <= t)
            };
        }
        if *hint == 0 { NONE } else { self.value[*hint - 1] }
    }
}

/// The end of a range; one without an end encloses nothing.
fn end(range: &Range) -> i64 {
    range.end_ns.unwrap_or(range.start_ns)
}

/// Ranges by where they are open: a thread, or a whole process.
fn place(range: &Range) -> i64 {
    if range.push_pop { range.global_tid } else { process_of(range.global_tid) }
}

/// Ranges without an end that a finding names.
const MAX_NAMED: usize = 5;

/// The ranges without an end, and how they were closed.
pub fn unclosed(trace: &NsysTrace) -> Option<Finding> {
    let mut names: Vec<&str> = trace.unclosed.iter().map(|it| it.range.name.as_str()).collect();
    names.dedup();
    let first = names.first()?;
    let message = match trace.unclosed.len() {
        1 => format!("The range {first} has no end in the capture."),
        count => format!("{count} ranges have no end in the capture, {first} among them."),
    };
    let count = |is: fn(&Treated) -> bool| trace.unclosed.iter().filter(|it| is(&it.treated)).count();
    let mut finding = Finding::new("range_unclosed", Severity::Warning, message)
        .with("closed at the end of the range around it", count(|it| matches!(it, Treated::AtParent(_))))
        .with("closed at the start of the next range beside it", count(|it| matches!(it, Treated::AtSibling(_))))
        .with("left out", count(|it| matches!(it, Treated::Dropped)));
    for (at, it) in trace.unclosed.iter().take(MAX_NAMED).enumerate() {
        let domain = if it.range.domain.is_empty() { String::new() } else { format!("@{}", it.range.domain) };
        let treated = match it.treated {
            Treated::AtParent(end) | Treated::AtSibling(end) => format!("closed at {end} ns"),
            Treated::Dropped => "left out".to_owned(),
        };
        let range = format!("{}{domain} from {} ns, {treated}", it.range.name, it.range.start_ns);
        finding = finding.with(&format!("range ({})", at + 1), range);
    }
    Some(finding)
}

/// One stretch of a stage on a thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Instance {
    /// Index into [`Stages::labels`].
    pub label: usize,
    pub start_ns: i64,
    pub end_ns: i64,
    /// Thread or process that it is open on.
    pub place: i64,
    /// Whether its end is a bound, because the capture records none.
    pub estimated: bool,
}

/// Where stages are open. Of those open at once the first label counts, which is the warm-up.
#[derive(Debug, Default)]
pub struct StageScopes {
    pub labels: Vec<String>,
    pub instances: Vec<Instance>,
    threads: BTreeMap<i64, Segments>,
}

impl StageScopes {
    /// Finds the stages of a capture; `warmup` is the label of what only warms up.
    pub fn of(trace: &NsysTrace, warmup: &str) -> Self {
        let rules = &trace.rules;
        let mut scopes = Self { labels: vec![warmup.to_owned()], ..Self::default() };
        scopes.labels.extend(rules.names().into_iter().map(str::to_owned));
        let mut open: BTreeMap<(i64, usize), Vec<Interval>> = BTreeMap::new();
        let (mut within, mut without): (BTreeMap<i64, Vec<Interval>>, BTreeMap<i64, Vec<Interval>>) = Default::default();
        for range in &trace.ranges {
            let at = (range.start_ns, end(range));
            if rules.within.contains(&range.name) {
                within.entry(place(range)).or_default().push(at);
            }
            if rules.without.contains(&range.name) {
                without.entry(place(range)).or_default().push(at);
            }
            let is_warmup = range.name == warmup && !rules.within.contains(&range.name);
            let stage = if is_warmup { Some(warmup) } else { rules.stage(&range.name, &range.domain) };
            if let Some(label) = stage.and_then(|stage| scopes.labels.iter().position(|label| label == stage)) {
                open.entry((place(range), label)).or_default().push(at);
            }
        }
        for ((place, label), intervals) in open {
            for (start_ns, end_ns) in union(intervals) {
                scopes.instances.push(Instance { label, start_ns, end_ns, place, estimated: false });
            }
        }
        scopes.instances.sort_by_key(|it| (it.start_ns, it.label));
        scopes.mark_estimated(trace);
        let of_place = |map: &BTreeMap<i64, Vec<Interval>>, thread: i64| {
            Cover::new([thread, process_of(thread)].iter().filter_map(|place| map.get(place)).flatten().copied())
        };
        for thread in threads(trace) {
            let (inside, outside) = (of_place(&within, thread), of_place(&without, thread));
            let counts = |t: i64| (rules.within.is_empty() || inside.holds(t)) && !outside.holds(t);
            let segments = scopes.segments(thread, counts, [&inside, &outside]);
            scopes.threads.insert(thread, segments);
        }
        scopes.keep_counted();
        scopes
    }

    /// The instances as one thread sees them.
    fn segments(&self, thread: i64, counts: impl Fn(i64) -> bool, bounds: [&Cover; 2]) -> Segments {
        let here = |it: &Instance| it.place == thread || it.place == process_of(thread);
        let mine: Vec<u32> = (0..self.instances.len() as u32).filter(|at| here(&self.instances[*at as usize])).collect();
        let instance = |at: u32| &self.instances[at as usize];
        let mut points: Vec<i64> = mine.iter().flat_map(|at| [instance(*at).start_ns, instance(*at).end_ns]).collect();
        points.extend(bounds.iter().flat_map(|cover| cover.intervals()).flat_map(|(start, end)| [*start, *end]));
        points.push(i64::MIN);
        points.sort_unstable();
        points.dedup();
        let (mut segments, mut next, mut open): (Segments, usize, Vec<u32>) = Default::default();
        for t in points {
            open.retain(|at| t < instance(*at).end_ns);
            while next < mine.len() && instance(mine[next]).start_ns <= t {
                open.push(mine[next]);
                next += 1;
            }
            let first = open.iter().copied().min_by_key(|at| instance(*at).label);
            segments.push(t, if counts(t) { first.unwrap_or(NONE) } else { EXCLUDED });
        }
        segments
    }

    /// Marks the instances that end where a range without an end was closed.
    fn mark_estimated(&mut self, trace: &NsysTrace) {
        let closed: HashSet<(i64, i64)> =
            trace.unclosed.iter().filter_map(|it| Some((place(&it.range), it.treated.end_ns()?))).collect();
        for instance in &mut self.instances {
            instance.estimated = closed.contains(&(instance.place, instance.end_ns));
        }
    }

    /// Gives instances of which nothing counts an empty time, so that they are told nowhere: those of a warm-up, or left out by a rule.
    fn keep_counted(&mut self) {
        let mut counted = vec![false; self.instances.len()];
        for segments in self.threads.values() {
            segments.value.iter().filter(|value| **value < EXCLUDED).for_each(|value| counted[*value as usize] = true);
        }
        for (instance, counted) in self.instances.iter_mut().zip(counted) {
            if !counted {
                instance.end_ns = instance.start_ns;
            }
        }
    }

    /// What is open on `thread`, as indices of instances.
    pub fn on(&self, thread: i64) -> Option<&Segments> {
        self.threads.get(&thread)
    }
}

/// Every thread that something could be launched from.
fn threads(trace: &NsysTrace) -> Vec<i64> {
    let mut threads: Vec<i64> = trace.cuda_calls.sites().iter().map(|(_, thread)| *thread).collect();
    threads.extend(trace.graph_nodes.iter().map(|node| node.global_tid));
    threads.extend(trace.ranges.iter().map(|range| range.global_tid));
    threads.sort_unstable();
    threads.dedup();
    threads
}

/// The ranges that a filter lets through, nested, as one thread sees them.
#[derive(Debug, Default)]
pub struct Nest {
    /// The range, and the entry that encloses it ([`NONE`] without), in order of their start.
    pub entries: Vec<(u32, u32)>,
    pub segments: Segments,
}

/// Nests the ranges that `wanted` lets through, for each thread. Of ranges that overlap without nesting the later one counts.
pub fn nests(trace: &NsysTrace, wanted: impl Fn(&Range) -> bool) -> BTreeMap<i64, Nest> {
    let mut places: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    for (at, range) in trace.ranges.iter().enumerate().filter(|(_, range)| wanted(range) && range.start_ns < end(range)) {
        places.entry(place(range)).or_default().push(at as u32);
    }
    let mut nests = BTreeMap::new();
    for thread in threads(trace) {
        let mut mine: Vec<u32> = [thread, process_of(thread)].iter().filter_map(|it| places.get(it)).flatten().copied().collect();
        if mine.is_empty() {
            continue;
        }
        mine.sort_unstable_by_key(|at| {
            (trace.ranges[*at as usize].start_ns, std::cmp::Reverse(end(&trace.ranges[*at as usize])), *at)
        });
        nests.insert(thread, nest(&trace.ranges, &mine));
    }
    nests
}

fn nest(ranges: &[Range], order: &[u32]) -> Nest {
    let mut nest = Nest::default();
    let mut open: Vec<u32> = Vec::new();
    let end_of = |nest: &Nest, entry: u32| end(&ranges[nest.entries[entry as usize].0 as usize]);
    let close = |nest: &mut Nest, open: &mut Vec<u32>, until: i64| {
        while let Some(&top) = open.last() {
            let t = end_of(nest, top);
            if t > until {
                break;
            }
            while open.last().is_some_and(|top| end_of(nest, *top) <= t) {
                open.pop();
            }
            nest.segments.push(t, open.last().copied().unwrap_or(NONE));
        }
    };
    for &at in order {
        let range = &ranges[at as usize];
        close(&mut nest, &mut open, range.start_ns);
        let parent = open.iter().rev().copied().find(|entry| end_of(&nest, *entry) >= end(range)).unwrap_or(NONE);
        let entry = nest.entries.len() as u32;
        nest.entries.push((at, parent));
        nest.segments.push(range.start_ns, entry);
        open.push(entry);
    }
    close(&mut nest, &mut open, i64::MAX - 1);
    nest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::{event::STAGE_DOMAIN, stage::StageRules};

    const NAMES: [&str; 6] = ["warmup", "prefill", "decode_all", "measured", "skipped", "other"];

    fn range((name, start, length, thread, push_pop): (usize, i64, i64, i64, bool)) -> Range {
        Range {
            domain: STAGE_DOMAIN.into(),
            name: NAMES[name].into(),
            start_ns: start,
            end_ns: (length < 19).then_some(start + length),
            global_tid: (7 << 24) | thread,
            push_pop,
        }
    }

    prop_compose! {
        fn trace()(mut ranges in prop::collection::vec((0usize..6, 0i64..40, 0i64..20, 1i64..3, any::<bool>()), 0..10)) -> NsysTrace {
            ranges.sort_by_key(|it| it.1);
            let mut ranges: Vec<Range> = ranges.into_iter().map(range).collect();
            ranges.sort_by_key(|it| (it.start_ns, std::cmp::Reverse(end(it))));
            // Each thread is known by a range that says nothing.
            ranges.extend([1, 2].map(|thread| range((5, 100, 0, thread, true))));
            NsysTrace { ranges, ..NsysTrace::default() }
        }
    }

    /// Ranges that are open on a thread at a time, by index.
    fn open(trace: &NsysTrace, thread: i64, t: i64) -> impl Iterator<Item = usize> + '_ {
        let here = move |it: &Range| it.global_tid == thread || !it.push_pop;
        (0..trace.ranges.len()).filter(move |at| {
            let it = &trace.ranges[*at];
            here(it) && it.start_ns <= t && t < end(it)
        })
    }

    proptest! {
        #[test]
        fn the_stage_at_any_time_is_the_first_that_is_open_where_anything_counts(
            trace in trace(), within in any::<bool>(), without in any::<bool>()
        ) {
            let chosen = |on: bool, name: &str| if on { vec![name.to_owned()] } else { vec![] };
            let rules = StageRules::with(vec![], chosen(within, "measured"), chosen(without, "skipped"));
            let trace = NsysTrace { rules, ..trace };
            let scopes = StageScopes::of(&trace, "warmup");
            for thread in [(7 << 24) | 1, (7 << 24) | 2] {
                let mut hint = 0;
                for t in 0..70 {
                    let named = |name: &str| open(&trace, thread, t).any(|at| trace.ranges[at].name == name);
                    let counts = (!within || named("measured")) && (!without || !named("skipped"));
                    let expected = ["warmup", "prefill", "decode_all"].into_iter().find(|name| counts && named(name));
                    let instance = scopes.on(thread).map_or(NONE, |it| it.at(t, &mut hint));
                    let found = scopes.instances.get(instance as usize).map(|it| scopes.labels[it.label].as_str());
                    prop_assert_eq!(found, expected, "at {} on {}", t, thread);
                }
            }
        }

        #[test]
        fn the_innermost_range_at_any_time_is_the_one_that_was_opened_last(trace in trace()) {
            let nests = nests(&trace, |_| true);
            for thread in [(7 << 24) | 1, (7 << 24) | 2] {
                let mut hint = 0;
                for t in (0..70).chain([3, 60, 0]) {
                    let latest = |at: &usize| (trace.ranges[*at].start_ns, std::cmp::Reverse(end(&trace.ranges[*at])), *at);
                    let expected = open(&trace, thread, t).max_by_key(latest);
                    let nest = nests.get(&thread);
                    let entry = nest.map_or(NONE, |nest| nest.segments.at(t, &mut hint));
                    let found = nest.and_then(|nest| Some(nest.entries.get(entry as usize)?.0 as usize));
                    prop_assert_eq!(found, expected, "at {} on {}", t, thread);
                    let parent = nest.and_then(|nest| nest.entries.get(nest.entries.get(entry as usize)?.1 as usize));
                    if let (Some(parent), Some(inner)) = (parent, found) {
                        let (outer, inner) = (&trace.ranges[parent.0 as usize], &trace.ranges[inner]);
                        prop_assert!(outer.start_ns <= inner.start_ns && end(inner) <= end(outer));
                    }
                }
            }
        }
    }
}
