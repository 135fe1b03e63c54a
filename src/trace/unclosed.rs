//! Ranges that a capture records without an end: closed at the first bound of their end, or left out.
//!
//! Push/pop ranges of one thread and domain nest, so a range ended when the one around it did at the
//! latest, and before the next one beside it began. Without either bound its end is unknown.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    nsys::process_of,
    range::Range,
    stage::{StageRules, WARMUP},
};

/// Later ranges that are compared with one that has no end.
const MAX_LOOKED_AT: usize = 4096;

/// A range without an end, and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Unclosed {
    /// As recorded.
    pub range: Range,
    pub treated: Treated,
}

/// What became of a range without an end; times are nanoseconds since the capture began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treated {
    /// Closed where the range around it ended.
    AtParent(i64),
    /// Closed where the next range beside it began.
    AtSibling(i64),
    /// Left out: nothing bounds its end.
    Dropped,
}

impl Treated {
    /// When the range was closed.
    pub const fn end_ns(self) -> Option<i64> {
        match self {
            Self::AtParent(end) | Self::AtSibling(end) => Some(end),
            Self::Dropped => None,
        }
    }
}

/// Ranges that nest in each other: of one thread (or process, for start/end ranges) and one domain.
type Nest<'a> = (bool, i64, &'a str);

/// Closes the ranges that have no end, removes those whose end nothing bounds, and returns both as
/// recorded. `ranges` come in order of their start and stay so.
pub fn close(ranges: &mut Vec<Range>, rules: &StageRules) -> Vec<Unclosed> {
    let open: Vec<usize> = (0..ranges.len()).filter(|at| ranges[*at].end_ns.is_none()).collect();
    if open.is_empty() {
        return Vec::new();
    }
    let mut nests: BTreeMap<Nest, Vec<usize>> = BTreeMap::new();
    for (at, range) in ranges.iter().enumerate() {
        nests.entry(nest_of(range)).or_default().push(at);
    }
    let mut treated: HashMap<usize, Treated> = HashMap::new();
    for members in nests.values() {
        treated.extend(Bounds::of(ranges, members, rules).treat(members));
    }
    let found = open.iter().map(|at| Unclosed { range: ranges[*at].clone(), treated: treated[at] }).collect();
    open.iter().for_each(|at| ranges[*at].end_ns = treated[at].end_ns());
    ranges.retain(|range| range.end_ns.is_some());
    ranges.sort_by_key(|range| (range.start_ns, std::cmp::Reverse(range.end_ns)));
    found
}

fn nest_of(range: &Range) -> Nest<'_> {
    let place = if range.push_pop { range.global_tid } else { process_of(range.global_tid) };
    (range.push_pop, place, &range.domain)
}

/// What bounds the ends of ranges of one nest.
struct Bounds<'a> {
    ranges: &'a [Range],
    rules: &'a StageRules,
    /// Names inside closed ranges of a name, for names that have an instance without an end.
    inside: HashMap<&'a str, HashSet<&'a str>>,
    /// End of the closed range around each range without an end.
    parents: HashMap<usize, i64>,
}

impl<'a> Bounds<'a> {
    fn of(ranges: &'a [Range], members: &[usize], rules: &'a StageRules) -> Self {
        let mut bounds = Self { ranges, rules, inside: HashMap::new(), parents: HashMap::new() };
        let open = members.iter().filter(|at| ranges[**at].end_ns.is_none());
        let wanted: HashSet<&str> = open.map(|at| ranges[*at].name.as_str()).collect();
        if wanted.is_empty() {
            return bounds;
        }
        let mut around: Vec<(i64, &str)> = Vec::new();
        for at in members {
            let range = &ranges[*at];
            while around.last().is_some_and(|(end, _)| *end <= range.start_ns) {
                around.pop();
            }
            match range.end_ns {
                None => {
                    // Start/end ranges do not nest: one that encloses another by chance bounds nothing.
                    let parent = around.last().filter(|_| range.push_pop);
                    bounds.parents.extend(parent.map(|(end, _)| (*at, *end)));
                }
                Some(end) => {
                    for (_, name) in around.iter().filter(|(_, name)| wanted.contains(name)) {
                        bounds.inside.entry(name).or_default().insert(&range.name);
                    }
                    if wanted.contains(range.name.as_str()) {
                        bounds.inside.entry(&range.name).or_default();
                    }
                    around.push((end, &range.name));
                }
            }
        }
        bounds
    }

    fn treat(&self, members: &[usize]) -> Vec<(usize, Treated)> {
        let open = members.iter().enumerate().filter(|(_, at)| self.ranges[**at].end_ns.is_none());
        let treat = |(place, at): (usize, &usize)| {
            let sibling = self.sibling(*at, &members[place + 1..]).map(Treated::AtSibling);
            let parent = self.parents.get(at).copied().map(Treated::AtParent);
            let first = [sibling, parent].into_iter().flatten().min_by_key(|it| it.end_ns());
            (*at, first.unwrap_or(Treated::Dropped))
        };
        open.map(treat).collect()
    }

    /// Start of the next range beside the one at `at`, among those after it.
    fn sibling(&self, at: usize, later: &[usize]) -> Option<i64> {
        let open = &self.ranges[at];
        let is_stage = |it: &Range| it.name == WARMUP || self.rules.stage(&it.name, &it.domain).is_some();
        let chosen = |it: &Range| self.rules.within.contains(&it.name) || self.rules.without.contains(&it.name);
        let inside = self.inside.get(open.name.as_str());
        let beside = |it: &&Range| {
            it.name == open.name
                || match inside {
                    _ if chosen(open) => false,
                    _ if is_stage(open) || !open.push_pop => is_stage(it),
                    Some(inside) => is_stage(it) || !inside.contains(it.name.as_str()),
                    // Without a closed range of the name, nothing is known to lie inside.
                    None => true,
                }
        };
        let later = later.iter().take(MAX_LOOKED_AT).map(|at| &self.ranges[*at]);
        later.filter(|it| it.start_ns > open.start_ns).find(beside).map(|it| it.start_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(name: &str, start_ns: i64, end_ns: Option<i64>) -> Range {
        Range { domain: String::new(), name: name.into(), start_ns, end_ns, global_tid: 1, push_pop: true }
    }

    fn treated(sketch: &[(&str, i64, Option<i64>)]) -> Vec<(String, Treated)> {
        let mut ranges = sketch.iter().map(|(name, start, end)| range(name, *start, *end)).collect();
        let found = close(&mut ranges, &StageRules::default());
        assert!(ranges.iter().all(|it| it.end_ns.is_some()));
        found.into_iter().map(|it| (it.range.name, it.treated)).collect()
    }

    #[test]
    fn a_stage_without_an_end_ends_where_the_next_stage_begins() {
        let found = treated(&[("prefill", 0, None), ("layer", 1, Some(4)), ("decode_all", 10, Some(20))]);
        assert_eq!(found, [("prefill".to_owned(), Treated::AtSibling(10))]);
    }

    #[test]
    fn a_range_without_an_end_ends_where_the_one_around_it_does() {
        let found = treated(&[("measured", 0, Some(30)), ("prefill", 5, None), ("layer", 6, Some(9))]);
        assert_eq!(found, [("prefill".to_owned(), Treated::AtParent(30))]);
    }

    #[test]
    fn an_operator_ends_before_a_name_that_never_lies_inside_it() {
        let whole = [("q", 0, Some(5)), ("gemm", 1, Some(2)), ("k", 6, Some(9))];
        let found = treated(&[&whole[..], &[("q", 20, None), ("gemm", 21, Some(22)), ("k", 26, Some(29))]].concat());
        assert_eq!(found, [("q".to_owned(), Treated::AtSibling(26))]);
    }

    #[test]
    fn a_range_whose_end_nothing_bounds_is_left_out() {
        assert_eq!(treated(&[("prefill", 0, None), ("layer", 1, Some(4))]), [("prefill".to_owned(), Treated::Dropped)]);
    }

    proptest! {
        /// Stages one after another with operators inside, in a range around all, and any of them without its end.
        #[test]
        fn no_stage_loses_its_ranges_to_one_without_an_end(
            around in any::<bool>(), open in 0usize..8, operators in prop::collection::vec(0usize..4, 4)
        ) {
            let mut ranges = Vec::new();
            if around {
                ranges.push(range("measured", 0, Some(1000)));
            }
            for (at, count) in operators.iter().enumerate() {
                let begin = 10 + 100 * at as i64;
                ranges.push(range(["prefill", "decode_all"][at % 2], begin, Some(begin + 90)));
                for operator in 0..*count as i64 {
                    let begin = begin + 10 + 20 * operator;
                    ranges.push(range("layer", begin, Some(begin + 15)));
                }
            }
            let open = open % ranges.len();
            let whole = ranges.clone();
            ranges[open].end_ns = None;
            let found = close(&mut ranges, &StageRules::default());
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(&found[0].range.name, &whole[open].name);
            for it in ranges.iter().filter(|it| (it.start_ns, &it.name) == (whole[open].start_ns, &whole[open].name)) {
                let next = |other: &&Range| other.start_ns > it.start_ns && ["prefill", "decode_all"].contains(&&*other.name);
                let stage = whole.iter().find(next).filter(|_| it.name != "measured");
                prop_assert!(stage.is_none_or(|stage| it.end_ns.unwrap() <= stage.start_ns));
            }
            let others = |ranges: &[Range]| ranges.iter().filter(|it| it.start_ns != whole[open].start_ns).cloned().collect::<Vec<_>>();
            prop_assert_eq!(others(&ranges), others(&whole));
        }
    }
}
