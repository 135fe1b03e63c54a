//! Device time of operators: each kernel counts for the range open on the launching thread when its
//! launching call started.
//!
//! A kernel of a replayed CUDA graph was launched when its node was captured: it counts for the
//! operator open then, and for the stage of the replay. Operators have an NVTX domain of their own;
//! in programs without it, all ranges that are not stages are operators.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use llmprof_core::trace::{
    event::{DECODE_STEP, OPERATOR_DOMAIN, STAGE_DOMAIN},
    kernel::TracedKernel,
    range::{ByLabel, Range, RangeLabel},
    stage::StageRules,
    timeline::{GraphNode, Timeline},
};

use super::{
    capture::Capture,
    framework_nests,
    open_at::{OpenAt, operator_nests},
    withheld::{TimelineFigure, Withheld},
};
use crate::{
    kernels::WARMUP,
    stages::VISION_PARTS,
    timeline::open_ranges::{NONE, RangeNest},
};

/// Ranges of the stage domain, other than stages, that are not operators.
const NOT_OPERATORS: [&str; 4] = [WARMUP, "measured", DECODE_STEP, "ProfilerStep"];
/// Max clones between a captured node and a replayed one.
const MAX_CLONES: usize = 8;

/// Kernels of one operator in one stage.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DeviceTime {
    /// Executions: range instances that launched kernels, and replays of captured ones.
    pub calls: u64,
    /// Kernels, including enclosed ranges' kernels.
    pub kernels: u64,
    /// Kernel time, including enclosed ranges.
    pub total_ns: i64,
    /// Kernel time without enclosed ranges.
    pub exclusive_ns: i64,
}

/// Device time by stage and operator name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceTimes {
    pub operators: BTreeMap<(String, String), DeviceTime>,
    /// Time of kernels replayed by graphs.
    pub replayed_ns: i64,
    /// Part of `replayed_ns` whose operator is known.
    pub replayed_known_ns: i64,
}

impl DeviceTimes {
    /// Removes the operators of stages whose figures are withheld.
    pub fn withhold(&mut self, withheld: &Withheld) {
        self.operators.retain(|(stage, _), _| !withheld.has(stage, TimelineFigure::OperatorTime));
    }
}

/// Rule for which ranges of a timeline are operators.
pub struct OperatorRule<'a> {
    has_domain: bool,
    rules: &'a StageRules,
}

impl<'a> OperatorRule<'a> {
    pub fn of(trace: &'a Timeline) -> Self {
        let has_domain = trace.ranges.iter().any(|range| range.domain == OPERATOR_DOMAIN);
        Self { has_domain, rules: &trace.rules }
    }

    pub fn selects(&self, range: &RangeLabel) -> bool {
        if self.has_domain {
            return range.domain == OPERATOR_DOMAIN;
        }
        let name = range.name.as_str();
        let rules = self.rules;
        let is_stage = || {
            NOT_OPERATORS.contains(&name)
                || VISION_PARTS.contains(&name)
                || rules.marks_stage(name, &range.domain)
        };
        let is_filter = || rules.includes(name) || rules.excludes(name);
        (range.domain == STAGE_DOMAIN || range.domain.is_empty()) && !is_stage() && !is_filter()
    }
}

/// Returns a predicate for ranges of a timeline that are operators.
pub fn is_operator<'a>(trace: &'a Timeline) -> impl FnMut(&'a Range) -> bool {
    let rule = OperatorRule::of(trace);
    let mut known = ByLabel::new(move |label| rule.selects(label));
    move |range| known.get(range)
}

/// Sums the kernels of a capture by operator.
pub fn device_times(capture: &Capture) -> DeviceTimes {
    if let Some(index) = &capture.framework {
        return framework_nests::device_times(capture, index);
    }
    let nests = operator_nests(capture.trace);
    let mut operators = OpenAt::new(capture, &nests);
    let mut sums = NestSums::default();
    let mut times = DeviceTimes::default();
    for (kernel, join) in capture.kernels() {
        let entry = operators.of(kernel.graph_node, join);
        if kernel.graph_node.is_some() {
            times.replayed_ns += kernel.ns();
            times.replayed_known_ns += if entry.is_some() { kernel.ns() } else { 0 };
        }
        if let Some((thread, entry)) = entry {
            let place = (thread, entry, capture.stage_number(join.instance));
            sums.add(place, join.call, &kernel);
        }
    }
    let named = |((number, name), time): ((usize, &str), DeviceTime)| {
        // Operators outside every stage have an empty stage, unlike their kernels.
        let stage = if number == 0 { "" } else { capture.stage_label(number) };
        ((stage.to_owned(), name.to_owned()), time)
    };
    times.operators = sums.by_name(capture.trace, &nests).into_iter().map(named).collect();
    times
}

/// Place of a kernel: thread, entry of its nest, stage number.
type NestPlace = (usize, u32, usize);

/// Sums by place of the innermost operator.
#[derive(Default)]
struct NestSums {
    numbers: HashMap<NestPlace, usize>,
    /// Each with the last launching call.
    sums: Vec<(NestPlace, DeviceTime, u32)>,
    last: usize,
}

impl NestSums {
    /// Adds a kernel, launched by `call`.
    fn add(&mut self, place: NestPlace, call: u32, kernel: &TracedKernel) {
        if self.sums.get(self.last).is_none_or(|it| it.0 != place) {
            self.last = *self.numbers.entry(place).or_insert_with(|| {
                self.sums.push((place, DeviceTime::default(), NONE));
                self.sums.len() - 1
            });
        }
        let (_, sum, last_call) = &mut self.sums[self.last];
        // Kernels of one replay share its launch; all kernels of an open range are of one call.
        if sum.calls == 0 || (kernel.graph_node.is_some() && *last_call != call) {
            sum.calls += 1;
        }
        *last_call = call;
        sum.kernels += 1;
        sum.exclusive_ns += kernel.ns();
        sum.total_ns += kernel.ns();
    }

    /// Adds each entry to those around it, and sums entries by stage number and name.
    fn by_name<'a>(
        self,
        trace: &'a Timeline,
        nests: &[(i64, RangeNest)],
    ) -> HashMap<(usize, &'a str), DeviceTime> {
        let Self { mut sums, .. } = self;
        sums.sort_unstable_by_key(|it| it.0);
        let mut names = RangeNames::of(trace);
        let mut by_name: HashMap<(usize, u32), DeviceTime> = HashMap::default();
        let mut sums = sums.into_iter().peekable();
        for (thread, (_, nest)) in nests.iter().enumerate() {
            // By entry, the sums of each stage.
            let mut leaves: Vec<(u32, Vec<(usize, DeviceTime)>)> = Vec::new();
            while let Some(((_, entry, stage), sum, _)) = sums.next_if(|it| it.0.0 == thread) {
                match leaves.last_mut() {
                    Some((last, stages)) if *last == entry => stages.push((stage, sum)),
                    _ => leaves.push((entry, vec![(stage, sum)])),
                }
            }
            if leaves.is_empty() {
                continue;
            }
            // A name nested inside itself counts once.
            let numbers: Vec<u32> = nest.entries.iter().map(|it| names.number(it.0)).collect();
            let inside_itself = nest.inside_same(&numbers);
            nest.roll_up(leaves, join_stages, |entry, stages| {
                let name = numbers[entry as usize];
                for (stage, sum) in stages {
                    let all = by_name.entry((*stage, name)).or_default();
                    all.exclusive_ns += std::mem::take(&mut sum.exclusive_ns);
                    if !inside_itself[entry as usize] {
                        all.calls += sum.calls;
                        all.kernels += sum.kernels;
                        all.total_ns += sum.total_ns;
                    }
                }
            });
        }
        let named = |((stage, name), sum)| ((stage, names.name(name)), sum);
        by_name.into_iter().map(named).collect()
    }
}

/// Adds the stage sums of an entry to the entry around it.
fn join_stages(outer: &mut Vec<(usize, DeviceTime)>, inner: Vec<(usize, DeviceTime)>) {
    for (stage, sum) in inner {
        match outer.iter_mut().find(|it| it.0 == stage) {
            Some((_, known)) => {
                known.calls = known.calls.max(sum.calls);
                known.kernels += sum.kernels;
                known.exclusive_ns += sum.exclusive_ns;
                known.total_ns += sum.total_ns;
            }
            None => outer.push((stage, sum)),
        }
    }
}

/// Numbers of the names of ranges, whatever their domain.
struct RangeNames<'a> {
    trace: &'a Timeline,
    of_label: HashMap<*const RangeLabel, u32>,
    numbers: HashMap<&'a str, u32>,
    names: Vec<&'a str>,
}

impl<'a> RangeNames<'a> {
    fn of(trace: &'a Timeline) -> Self {
        let (of_label, numbers, names) = Default::default();
        Self { trace, of_label, numbers, names }
    }

    /// The number of the name of the range at an index.
    fn number(&mut self, range: u32) -> u32 {
        let label: &'a RangeLabel = self.trace.ranges[range as usize].label();
        *self.of_label.entry(label).or_insert_with(|| {
            *self.numbers.entry(&label.name).or_insert_with(|| {
                self.names.push(&label.name);
                self.names.len() as u32 - 1
            })
        })
    }

    fn name(&self, number: u32) -> &'a str {
        self.names[number as usize]
    }
}

/// The captured node that each graph node was cloned from, by node id.
pub(crate) fn captured_nodes(nodes: &[GraphNode]) -> HashMap<u64, GraphNode> {
    let mut by_id: HashMap<u64, GraphNode> = HashMap::default();
    for node in nodes {
        // A clone is recorded twice, the second time with its source.
        let order = |it: &GraphNode| (it.at_ns, it.original.is_some());
        let known = by_id.entry(node.id).or_insert(*node);
        if order(known) < order(node) {
            *known = *node;
        }
    }
    let origin = |node: &GraphNode| {
        let (mut at, mut seen) = (*node, HashSet::default());
        while seen.len() < MAX_CLONES && seen.insert(at.id) {
            match at.original.and_then(|id| by_id.get(&id)) {
                Some(before) => at = *before,
                None => break,
            }
        }
        at
    };
    by_id.values().map(|node| (node.id, origin(node))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    /// One line per operator and stage: `stage name kernels total exclusive`.
    fn lines(trace: &Timeline) -> String {
        let times = device_times(&Capture::of(trace));
        let line = |((stage, name), it): (&(String, String), &DeviceTime)| {
            format!("{stage:?} {name} {} {} {}", it.kernels, it.total_ns, it.exclusive_ns)
        };
        times.operators.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Puts the ranges of operators into their domain.
    fn with_domain(sketch: &str) -> Timeline {
        let mut trace = capture(sketch);
        for range in trace
            .ranges
            .iter_mut()
            .filter(|range| !matches!(range.name.as_str(), "prefill" | "decode_all" | "warmup"))
        {
            range.domain = OPERATOR_DOMAIN.into();
        }
        trace
    }

    #[test]
    fn an_enclosing_operator_includes_the_kernels_of_its_parts() {
        let trace = with_domain(
            "range 1 prefill 0..100\nrange 1 a 10..50\nrange 1 a.q 20..30
             call 1 1 12..13\ncall 1 2 21..22\ncall 1 3 60..61
             kernel 1 k 200..205 7\nkernel 2 k 205..215 7\nkernel 3 k 215..315 7",
        );
        insta::assert_snapshot!(lines(&trace), @r#"
        "prefill" a 2 15 5
        "prefill" a.q 1 10 10
        "#);
    }

    #[test]
    fn a_stage_range_between_two_operators_does_not_break_their_nesting() {
        let trace = with_domain(
            "range 1 model 0..100\nrange 1 prefill 10..50\nrange 1 q 20..30
             call 1 1 21..22\nkernel 1 k 200..210 7",
        );
        insta::assert_snapshot!(lines(&trace), @r#"
        "prefill" model 1 10 0
        "prefill" q 1 10 10
        "#);
    }

    #[test]
    fn a_replayed_kernel_belongs_to_the_range_of_its_capture_and_the_stage_of_its_replay() {
        let mut trace = with_domain(
            "range 1 q 10..20\nrange 1 decode_all 50..60\ncall 1 1 12..13\ncall 1 2 51..52
             kernel 2 k 70..75 7\nkernel 2 k 80..85 7",
        );
        trace.kernels =
            trace.kernels.map(|at, kernel| kernel.graph_node = Some(if at == 0 { 31 } else { 99 }));
        let node = |at_ns, id, original| GraphNode {
            at_ns,
            global_tid: trace.ranges[0].global_tid,
            id,
            original,
        };
        trace.graph_nodes = vec![node(12, 1, None), node(30, 21, Some(1)), node(40, 31, Some(21))];
        insta::assert_snapshot!(lines(&trace), @r#""decode_all" q 1 5 5"#);
        let times = device_times(&Capture::of(&trace));
        assert_eq!((times.replayed_ns, times.replayed_known_ns), (10, 5));
    }

    #[test]
    fn an_operator_in_a_graph_is_called_once_per_replay() {
        let mut trace = with_domain(
            "range 1 layer 5..30\nrange 1 q 10..20\nrange 1 decode_all 50..90
             call 1 2 51..52\ncall 1 3 61..62
             kernel 2 k 70..75 7\nkernel 2 l 75..80 7\nkernel 3 k 80..85 7\nkernel 3 l 85..90 7",
        );
        trace.kernels =
            trace.kernels.map(|at, kernel| kernel.graph_node = Some(31 + at as u64 % 2));
        let node = |at_ns, id| GraphNode {
            at_ns,
            global_tid: trace.ranges[0].global_tid,
            id,
            original: None,
        };
        trace.graph_nodes = vec![node(12, 31), node(14, 32)];
        let times = device_times(&Capture::of(&trace));
        let of = |name: &str| times.operators[&("decode_all".to_owned(), name.to_owned())];
        assert_eq!((of("q").calls, of("q").kernels, of("layer").calls), (2, 4, 2));
    }

    #[test]
    fn a_start_end_range_is_open_on_every_thread_and_a_push_pop_range_on_its_own() {
        let both = "cross 1 a 0..100\nrange 1 b 0..100\ncall 2 1 12..13\nkernel 1 k 200..205 7";
        insta::assert_snapshot!(lines(&with_domain(both)), @r#""" a 1 5 5"#);
    }

    #[test]
    fn without_an_operator_domain_all_ranges_other_than_stages_are_operators() {
        let sketch = "range 1 prefill 0..100\nrange 1 layer_0 10..50\nrange 1 layer_0 20..30
            call 1 1 21..22\nkernel 1 k 200..205 7";
        insta::assert_snapshot!(lines(&capture(sketch)), @r#""prefill" layer_0 1 5 5"#);
    }
}
