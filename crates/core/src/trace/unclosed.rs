//! Ranges recorded without an end: closed at the earliest bound of their end, or dropped.
//!
//! Push/pop ranges of one thread and domain nest, so a range ends no later than its parent and
//! before its next sibling starts. Without either bound its end is unknown.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    range::{self, Range},
    stage::{StageRules, WARMUP},
    timeline::process_of,
};

/// Max later ranges compared with an unclosed one.
const MAX_COMPARED: usize = 4096;
/// Max later ranges compared with all unclosed ones; the ends of further ones are unknown.
const MAX_ALL_COMPARED: usize = 50_000_000;
/// Max enclosing names to which a range is added as one of their contents, innermost first.
const MAX_ENCLOSING: usize = 256;

/// An unclosed range and its resolution.
#[derive(Debug, Clone, PartialEq)]
pub struct Unclosed {
    /// As recorded.
    pub range: Range,
    pub outcome: UnclosedOutcome,
}

/// Resolution of an unclosed range; times are nanoseconds since the start of the capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnclosedOutcome {
    /// Closed at the end of the enclosing range.
    AtParent(i64),
    /// Closed at the start of the next sibling range.
    AtSibling(i64),
    /// Dropped: nothing bounds its end.
    Dropped,
}

impl UnclosedOutcome {
    /// Time at which the range was closed.
    pub const fn end_ns(self) -> Option<i64> {
        match self {
            Self::AtParent(end) | Self::AtSibling(end) => Some(end),
            Self::Dropped => None,
        }
    }
}

/// Key of ranges that nest: style, thread (process for start/end ranges) and domain.
type RangeNest<'a> = (bool, i64, &'a str);

/// Closes unclosed ranges, removes those without a bound, and returns both as recorded. `ranges`
/// are sorted by start and stay so.
pub fn close(ranges: &mut Vec<Range>, rules: &StageRules) -> Vec<Unclosed> {
    let open: Vec<usize> = (0..ranges.len()).filter(|at| ranges[*at].end_ns.is_none()).collect();
    if open.is_empty() {
        return Vec::new();
    }
    let mut nests: BTreeMap<RangeNest, Vec<usize>> = BTreeMap::new();
    for (at, range) in ranges.iter().enumerate() {
        nests.entry(nest_of(range)).or_default().push(at);
    }
    let mut outcomes: HashMap<usize, UnclosedOutcome> = HashMap::new();
    for members in nests.values() {
        outcomes.extend(EndBounds::of(ranges, members, rules).outcomes(members));
    }
    let found = open
        .iter()
        .map(|at| Unclosed { range: ranges[*at].clone(), outcome: outcomes[at] })
        .collect();
    open.iter().for_each(|at| ranges[*at].end_ns = outcomes[at].end_ns());
    ranges.retain(|range| range.end_ns.is_some());
    range::sort(ranges);
    found
}

fn nest_of(range: &Range) -> RangeNest<'_> {
    let place = if range.push_pop { range.global_tid } else { process_of(range.global_tid) };
    (range.push_pop, place, &range.domain)
}

/// Bounds on the ends of the ranges of one nest.
struct EndBounds<'a> {
    ranges: &'a [Range],
    rules: &'a StageRules,
    /// Names seen inside closed ranges of each name that has an unclosed instance.
    inside: HashMap<&'a str, HashSet<&'a str>>,
    /// End of the closed range around each unclosed range, by index.
    parents: HashMap<usize, i64>,
}

impl<'a> EndBounds<'a> {
    fn of(ranges: &'a [Range], members: &[usize], rules: &'a StageRules) -> Self {
        let mut bounds = Self { ranges, rules, inside: HashMap::new(), parents: HashMap::new() };
        let open = members.iter().filter(|at| ranges[**at].end_ns.is_none());
        let wanted: HashSet<&str> = open.map(|at| ranges[*at].name.as_str()).collect();
        if wanted.is_empty() {
            return bounds;
        }
        // Each with the number of wanted ones up to it.
        let mut around: Vec<(i64, usize)> = Vec::new();
        let mut wanted_around: Vec<&str> = Vec::new();
        for at in members {
            let range = &ranges[*at];
            while around.pop_if(|(end, _)| *end <= range.start_ns).is_some() {}
            wanted_around.truncate(around.last().map_or(0, |it| it.1));
            match range.end_ns {
                None => {
                    // Start/end ranges do not nest: an overlap is coincidental and bounds nothing.
                    let parent = around.last().filter(|_| range.push_pop);
                    bounds.parents.extend(parent.map(|(end, _)| (*at, *end)));
                }
                Some(end) => {
                    for name in wanted_around.iter().rev().take(MAX_ENCLOSING) {
                        bounds.inside.entry(name).or_default().insert(&range.name);
                    }
                    if wanted.contains(range.name.as_str()) {
                        bounds.inside.entry(&range.name).or_default();
                        wanted_around.push(&range.name);
                    }
                    around.push((end, wanted_around.len()));
                }
            }
        }
        bounds
    }

    fn outcomes(&self, members: &[usize]) -> Vec<(usize, UnclosedOutcome)> {
        let open = members.iter().enumerate().filter(|(_, at)| self.ranges[**at].end_ns.is_none());
        let mut compared = 0;
        let outcome = |(place, at): (usize, &usize)| {
            let later = &members[place + 1..];
            let later =
                later.partition_point(|it| self.ranges[*it].start_ns <= self.ranges[*at].start_ns);
            let later =
                if compared < MAX_ALL_COMPARED { &members[place + 1 + later..] } else { &[] };
            let sibling = self.sibling(*at, later, &mut compared).map(UnclosedOutcome::AtSibling);
            let parent = self.parents.get(at).copied().map(UnclosedOutcome::AtParent);
            let first = [sibling, parent].into_iter().flatten().min_by_key(|it| it.end_ns());
            (*at, first.unwrap_or(UnclosedOutcome::Dropped))
        };
        open.map(outcome).collect()
    }

    /// Start of the next sibling of the range at `at` among `later`, which start later. Counts the
    /// ranges that it compares.
    fn sibling(&self, at: usize, later: &[usize], compared: &mut usize) -> Option<i64> {
        let open = &self.ranges[at];
        let is_stage =
            |it: &Range| it.name == WARMUP || self.rules.stage(&it.name, &it.domain).is_some();
        let chosen = |it: &Range| self.rules.includes(&it.name) || self.rules.excludes(&it.name);
        let inside = self.inside.get(open.name.as_str());
        let is_sibling = |it: &&Range| {
            it.name == open.name
                || match inside {
                    _ if chosen(open) => false,
                    _ if is_stage(open) || !open.push_pop => is_stage(it),
                    Some(inside) => is_stage(it) || !inside.contains(it.name.as_str()),
                    // Without a closed range of the name, its contents are unknown.
                    None => true,
                }
        };
        let later = later.iter().take(MAX_COMPARED).map(|at| &self.ranges[*at]);
        let mut later = later.inspect(|_| *compared += 1);
        later.find(is_sibling).map(|it| it.start_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(name: &str, start_ns: i64, end_ns: Option<i64>) -> Range {
        Range::new(("", name), (start_ns, end_ns), (1, true))
    }

    fn outcomes(sketch: &[(&str, i64, Option<i64>)]) -> Vec<(String, UnclosedOutcome)> {
        let mut ranges =
            sketch.iter().map(|(name, start, end)| range(name, *start, *end)).collect();
        let found = close(&mut ranges, &StageRules::default());
        assert!(ranges.iter().all(|it| it.end_ns.is_some()));
        found.into_iter().map(|it| (it.range.name.clone(), it.outcome)).collect()
    }

    #[test]
    fn a_stage_without_an_end_ends_where_the_next_stage_starts() {
        let found =
            outcomes(&[("prefill", 0, None), ("layer", 1, Some(4)), ("decode_all", 10, Some(20))]);
        assert_eq!(found, [("prefill".to_owned(), UnclosedOutcome::AtSibling(10))]);
    }

    #[test]
    fn a_range_without_an_end_ends_with_its_parent() {
        let found =
            outcomes(&[("measured", 0, Some(30)), ("prefill", 5, None), ("layer", 6, Some(9))]);
        assert_eq!(found, [("prefill".to_owned(), UnclosedOutcome::AtParent(30))]);
    }

    #[test]
    fn an_operator_ends_before_a_name_that_never_lies_inside_it() {
        let closed = [("q", 0, Some(5)), ("gemm", 1, Some(2)), ("k", 6, Some(9))];
        let open = [("q", 20, None), ("gemm", 21, Some(22)), ("k", 26, Some(29))];
        let found = outcomes(&[&closed[..], &open[..]].concat());
        assert_eq!(found, [("q".to_owned(), UnclosedOutcome::AtSibling(26))]);
    }

    #[test]
    fn a_range_without_a_bound_is_dropped() {
        assert_eq!(
            outcomes(&[("prefill", 0, None), ("layer", 1, Some(4))]),
            [("prefill".to_owned(), UnclosedOutcome::Dropped)]
        );
    }

    proptest! {
        /// Consecutive stages with operators inside, optionally in one enclosing range, with any
        /// one range unclosed.
        #[test]
        fn an_unclosed_range_takes_no_time_from_the_next_stage(
            around in any::<bool>(), open in 0usize..8,
            operators in prop::collection::vec(0usize..4, 4)
        ) {
            let mut ranges = Vec::new();
            if around {
                ranges.push(range("measured", 0, Some(1000)));
            }
            for (at, count) in operators.iter().enumerate() {
                let start = 10 + 100 * at as i64;
                ranges.push(range(["prefill", "decode_all"][at % 2], start, Some(start + 90)));
                for operator in 0..*count as i64 {
                    let start = start + 10 + 20 * operator;
                    ranges.push(range("layer", start, Some(start + 15)));
                }
            }
            let open = open % ranges.len();
            let closed = ranges.clone();
            ranges[open].end_ns = None;
            let found = close(&mut ranges, &StageRules::default());
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(&found[0].range.name, &closed[open].name);
            let unclosed = &closed[open];
            let same = |it: &&Range| (it.start_ns, &it.name) == (unclosed.start_ns, &unclosed.name);
            for it in ranges.iter().filter(same) {
                let next = |other: &&Range| {
                    other.start_ns > it.start_ns
                        && ["prefill", "decode_all"].contains(&other.name.as_str())
                };
                let stage = closed.iter().find(next).filter(|_| it.name != "measured");
                prop_assert!(stage.is_none_or(|stage| it.end_ns.unwrap() <= stage.start_ns));
            }
            let others = |ranges: &[Range]| {
                let other = |it: &&Range| it.start_ns != unclosed.start_ns;
                ranges.iter().filter(other).cloned().collect::<Vec<_>>()
            };
            prop_assert_eq!(others(&ranges), others(&closed));
        }
    }
}
