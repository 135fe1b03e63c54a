//! Long calls of the host: operators and functions of CUDA in which it launched nothing for a long
//! time, or between which it loaded code. They load code, choose an algorithm, allocate or compile,
//! mostly on the first call. Outside of them, long calls of the operating system: the launching
//! thread reads or writes, or it waits.

use std::{borrow::Cow, collections::BTreeMap};

use foldhash::HashMap;
use llmprof_core::trace::{
    os_call,
    range::Range,
    runtime_call::{CallKind, loads_code, without_version},
    stage::RangeNames,
    timeline::Timeline,
};

use super::{
    super::{device_time::is_operator, interval::Interval},
    host_activity::{HostActivity, IN_RANGE, LOADING, OS_CALL, OS_WAIT},
    in_gap::{length, mostly_in_gap, overlap, successive_ranges},
};

/// Least duration of such a call, and of its gap: launches and the work between them take
/// microseconds.
pub const LONG_CALL_NS: i64 = 1_000_000;

/// Calls of threads, each with the number of its name, in the order of their starts.
type Calls = BTreeMap<i64, Vec<(Interval, u32)>>;

/// Calls of at least [`LONG_CALL_NS`], of the program and of the operating system, and calls that
/// load code.
#[derive(Default)]
pub struct LongCalls<'a> {
    long: Calls,
    os: Calls,
    loads: Calls,
    numbers: HashMap<Cow<'a, str>, u32>,
    names: Vec<Cow<'a, str>>,
}

impl<'a> LongCalls<'a> {
    pub fn of(trace: &'a Timeline) -> Self {
        let mut all = Self::default();
        let mut is_operator = is_operator(trace);
        let mut ranges: Vec<(&Range, Interval)> = Vec::new();
        for range in &trace.ranges {
            let span = range.end_ns.map(|end| (range.start_ns, end)).filter(|it| is_long(*it));
            if let Some(span) = span.filter(|_| is_operator(range)) {
                ranges.push((range, span));
            }
        }
        all.add_ranges(&ranges);
        for call in trace.framework.iter().filter(|it| is_long((it.start_ns, it.end_ns))) {
            let signature = trace.framework.signatures.get(call.signature as usize);
            let name = signature.map_or("", |it| it.name.as_str());
            let span = (call.start_ns, call.end_ns);
            // A region of the program, such as a compiled one: no operator has such a name.
            all.add(call.global_tid, span, name, is_range(name) && name.contains(' '));
        }
        let is_wanted: Vec<bool> = trace.call_kinds().iter().map(|it| is_own_work(*it)).collect();
        for (_, _, call) in trace.cuda_calls.at_sites(&is_wanted) {
            let (span, name) = ((call.start_ns, call.end_ns), trace.text(call.name));
            let name = without_version(name);
            if is_long(span) {
                all.add(call.global_tid, span, name, false);
            }
            if loads_code(name) {
                let number = all.number(format!("{LOADING} {name}").into());
                all.loads.entry(call.global_tid).or_default().push((span, number));
            }
        }
        for call in trace.os_calls.iter().filter(|it| is_long((it.start_ns, it.end_ns))) {
            let name = trace.text(call.name);
            let start = if os_call::waits(name) { OS_WAIT } else { OS_CALL };
            if !name.is_empty() {
                let number = all.number(format!("{start}{name}").into());
                let of_thread = all.os.entry(call.global_tid).or_default();
                of_thread.push(((call.start_ns, call.end_ns), number));
            }
        }
        for calls in [&mut all.long, &mut all.os, &mut all.loads] {
            calls.values_mut().for_each(|it| it.sort_unstable());
        }
        all
    }

    fn add(&mut self, thread: i64, span: Interval, name: &'a str, is_range: bool) {
        if !name.is_empty() {
            let number = self.number_of(name.into(), is_range);
            self.long.entry(thread).or_default().push((span, number));
        }
    }

    /// The number of a call, or of a range of this name.
    fn number_of(&mut self, name: Cow<'a, str>, is_range: bool) -> u32 {
        self.number(if is_range { format!("{IN_RANGE}{name}").into() } else { name })
    }

    /// Adds ranges; names that differ only in numbers are one name.
    fn add_ranges(&mut self, ranges: &[(&Range, Interval)]) {
        let names = ranges.iter().map(|it| ("", it.0.name.as_str()));
        let (groups, group_of) = RangeNames::grouped(names);
        let mut numbers = Vec::with_capacity(groups.len());
        for name in groups.iter().map(RangeNames::in_rule) {
            let is_range = is_range(&name);
            numbers.push(self.number_of(name.into(), is_range));
        }
        for ((range, span), group) in ranges.iter().zip(group_of) {
            if !range.name.is_empty() {
                let of_thread = self.long.entry(range.global_tid).or_default();
                of_thread.push((*span, numbers[group]));
            }
        }
    }

    /// The number of a name.
    pub fn number(&mut self, name: Cow<'a, str>) -> u32 {
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        self.names.push(name.clone());
        self.numbers.insert(name, self.names.len() as u32 - 1);
        self.names.len() as u32 - 1
    }

    /// Adds the calls in which the host was in a gap until a launch, each with its part of the gap,
    /// in order of time.
    pub fn before(
        &self,
        trace: &Timeline,
        launch: u32,
        gap: Interval,
        found: &mut Vec<(u32, Interval)>,
    ) {
        let call = trace.cuda_calls.get(launch as usize);
        self.divide(call.global_tid, (gap.0, call.start_ns.min(gap.1)), found);
    }

    /// Adds the call in which a thread was for most of a gap, and in the same way the calls of the
    /// time before and after it.
    fn divide(&self, thread: i64, gap: Interval, found: &mut Vec<(u32, Interval)>) {
        if !is_long(gap) {
            return;
        }
        let mut left = vec![gap];
        while let Some(part) = left.pop() {
            match self.inside(thread, part, gap) {
                Some((name, inside)) => {
                    found.push((name, inside));
                    left.extend([(part.0, inside.0), (inside.1, part.1)]);
                }
                None => found.extend(self.ranges_of_most(thread, part, gap)),
            }
        }
        found.sort_unstable_by_key(|it| it.1);
    }

    /// The activity of a thread for most of a part of a gap, with its time there, in this order:
    /// 1. an operator, range or function of CUDA, unless a call of the operating system covers more
    ///    of the part;
    /// 2. a call of the operating system that does not wait;
    /// 3. the loading of code before whose end most of the part lies, for code is chosen or built
    ///    before that, perhaps by another process, for which the thread waits;
    /// 4. a wait in the operating system.
    fn inside(&self, thread: i64, part: Interval, gap: Interval) -> Option<(u32, Interval)> {
        let own = long_call(&self.long, thread, part, gap);
        let os = long_call(&self.os, thread, part, gap);
        match (own, os) {
            (Some(own), Some(os)) if length(os.1) > length(own.1) => Some(os),
            (Some(own), _) => Some(own),
            (None, Some(os)) if !self.is_wait(os.0) => Some(os),
            (None, os) => self.load(thread, part).or(os),
        }
    }

    /// The ranges of the program that together take most of a part of a gap, of which no call has
    /// most.
    fn ranges_of_most(&self, thread: i64, part: Interval, gap: Interval) -> Vec<(u32, Interval)> {
        let Some(calls) = self.long.get(&thread).filter(|_| is_long(part)) else { return vec![] };
        let is_range =
            |number: u32| HostActivity::of(&self.names[number as usize]) == HostActivity::Range;
        let ranges = mostly_in_gap(calls, part, gap)
            .filter(|(_, number)| is_range(*number))
            .map(|(it, number)| (*number, (it.0.max(part.0), it.1.min(part.1))));
        successive_ranges(ranges.filter(|it| is_long(it.1)).collect(), part)
    }

    /// True for the number of a wait in the operating system.
    fn is_wait(&self, number: u32) -> bool {
        HostActivity::of(&self.names[number as usize]) == HostActivity::OsWait
    }

    /// The last call in a gap that loads code.
    fn load(&self, thread: i64, gap: Interval) -> Option<(u32, Interval)> {
        let loads = self.loads.get(&thread).filter(|_| is_long(gap))?;
        let before = loads.partition_point(|it| it.0.0 < gap.1);
        let (span, name) = loads[..before].last().filter(|it| it.0.0 >= gap.0)?;
        let to = span.1.min(gap.1);
        (to - gap.0 >= (gap.1 - gap.0) / 2).then_some((*name, (gap.0, to)))
    }

    pub fn into_names(self) -> Vec<String> {
        self.names.into_iter().map(Cow::into_owned).collect()
    }
}

/// The innermost call of a thread that takes most of a part of a gap, and whose time is mostly this
/// gap, with its time in the part. A call that launched work before and after does not delay by
/// itself.
fn long_call(calls: &Calls, thread: i64, part: Interval, gap: Interval) -> Option<(u32, Interval)> {
    let calls = calls.get(&thread).filter(|_| is_long(part))?;
    mostly_in_gap(calls, part, gap)
        .filter(|(it, _)| overlap(*it, part) >= length(part) / 2)
        .min_by_key(|(it, _)| length(*it))
        .map(|(it, name)| (*name, (it.0.max(part.0), it.1.min(part.1))))
}

fn is_long((start, end): Interval) -> bool {
    end.saturating_sub(start) >= LONG_CALL_NS
}

/// False for calls that launch, wait or copy: their gaps have causes of their own.
fn is_own_work(kind: CallKind) -> bool {
    let is_launch = matches!(kind, CallKind::Kernel | CallKind::Graph | CallKind::Unknown);
    !is_launch && !kind.waits() && !kind.writes_memory()
}

/// False for names with a namespace, which operators of a framework have.
fn is_range(name: &str) -> bool {
    !name.contains("::")
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::timeline::ApiCall;

    use super::*;
    use crate::kernels::tests::capture;

    fn inside(sketch: &str, gap: Interval) -> Option<String> {
        let trace = capture(&format!("range 1 thread 0..1\n{sketch}"));
        let calls = LongCalls::of(&trace);
        let found = calls.inside(trace.ranges[0].global_tid, gap, gap);
        found.map(|it| calls.names[it.0 as usize].to_string())
    }

    #[test]
    fn a_gap_is_named_by_the_innermost_call_that_fills_it() {
        let outer = "range 1 outer 1000000..9000000\nrange 1 inner 1500000..8500000";
        assert_eq!(inside(outer, (1_400_000, 8_600_000)).as_deref(), Some("the range inner"));
        assert_eq!(inside(outer, (8_600_000, 8_650_000)), None, "a short gap");
        assert_eq!(inside(outer, (2_000_000, 4_000_000)), None, "a small part of the call");
        assert_eq!(inside(outer, (8_500_000, 30_000_000)), None, "a small part of the gap");
        assert_eq!(inside(&outer.replace("range 1", "range 2"), (1_400_000, 8_600_000)), None);
    }

    #[test]
    fn a_gap_in_a_range_is_named_by_the_pattern_of_its_range() {
        let name = |ranges: &str, calls: &str| {
            let trace = capture(&format!("{ranges}\n{calls}\ncall 1 9 3000000..3000100"));
            let long = LongCalls::of(&trace);
            let launch = trace.cuda_calls.len() as u32 - 1;
            let mut found = Vec::new();
            long.before(&trace, launch, (900_000, 3_100_000), &mut found);
            let (number, part) = found.first()?;
            Some((long.names[*number as usize].to_string(), *part))
        };
        let layers = "range 1 layer_0 1000000..2900000\nrange 1 layer_1 5000000..7000000";
        let part = (1_000_000, 2_900_000);
        let of = |text: &str| Some((text.to_owned(), part));
        assert_eq!(name(layers, ""), of("the range layer_*"));
        assert_eq!(name(layers, "call 2 1 2000000..2000100"), of("the range layer_*"));
        assert_eq!(name(layers, "call 1 1 950000..950100"), of("the range layer_*"), "before it");
        assert_eq!(name(layers, "call 1 1 2950000..2950100"), of("the range layer_*"), "after it");
        let inside = "call 1 1 2000000..2000100";
        assert_eq!(name(layers, inside), of("the range layer_*"), "a range is not a call");
        let copies = layers.replace("layer", "h2d_transfer_layer");
        assert_eq!(name(&copies, ""), of("the range h2d_transfer_layer_*"), "a part of a word");
        let operator = "range 1 aten::mm 1000000..2900000";
        assert_eq!(name(operator, ""), of("aten::mm"), "an operator is a call");
    }

    #[test]
    fn the_time_before_and_after_a_call_is_divided_in_the_same_way() {
        type Parts = &'static [(&'static str, Interval)];

        let ms = 1_000_000;
        let cases: [(&str, Parts); 8] = [
            ("a 0..51 b 52..95", &[("a", (0, 51)), ("b", (52, 95))]),
            ("a 1..20 b 21..47 c 47..99", &[("a", (1, 20)), ("b", (21, 47)), ("c", (47, 99))]),
            ("a 0..51 all 0..100", &[("a", (0, 51)), ("all", (51, 100))]),
            ("a 0..51 b 52..70", &[("a", (0, 51))]),
            ("a 0..40 b 45..70", &[("a", (0, 40)), ("b", (45, 70))]),
            ("a 0..34 b 34..65 c 70..99", &[("a", (0, 34)), ("b", (34, 65)), ("c", (70, 99))]),
            ("a 0..20 b 45..70", &[]),
            ("a 0..51 b 60..250", &[("a", (0, 51))]),
        ];
        for (ranges, expected) in cases {
            let words: Vec<&str> = ranges.split_whitespace().collect();
            let line = |it: &[&str]| {
                let (from, to) = it[1].split_once("..").unwrap();
                format!("range 1 {} {from}000000..{to}000000", it[0])
            };
            let lines: Vec<String> = words.chunks(2).map(line).collect();
            let trace = capture(&lines.join("\n"));
            let calls = LongCalls::of(&trace);
            let mut found = Vec::new();
            calls.divide(trace.ranges[0].global_tid, (0, 100 * ms), &mut found);
            let named = found.iter().map(|(number, part)| {
                let name = calls.names[*number as usize].as_ref();
                (name.strip_prefix(IN_RANGE).unwrap(), (part.0 / ms, part.1 / ms))
            });
            assert_eq!(named.collect::<Vec<_>>(), expected, "{ranges}");
        }
    }

    #[test]
    fn a_gap_outside_of_calls_and_ranges_is_named_by_the_call_of_the_operating_system() {
        let ms = 1_000_000;
        let name = |lines: &str, loads: bool| {
            let mut trace = capture("range 1 thread 0..1\ncall 1 9 95000000..95000100");
            let sketch = lines.replace('|', "\n").replace("ms", "000000");
            let other = capture(&sketch);
            trace.ranges.extend(other.ranges);
            trace.strings = other.strings;
            trace.os_calls = other.os_calls;
            trace.strings.push("cuModuleLoadData".into());
            let code = trace.strings.len() as u32 - 1;
            let calls = trace.cuda_calls.iter().filter(|_| loads);
            trace.cuda_calls = calls.map(|it| ApiCall { name: code, ..it }).collect();
            let calls = LongCalls::of(&trace);
            let gap = (0, 100 * ms);
            let found = calls.inside(trace.ranges[0].global_tid, gap, gap);
            found.map(|it| calls.names[it.0 as usize].to_string())
        };
        let load = "preparation of code for cuModuleLoadData";
        for (lines, loads, expected) in [
            ("os 1 getc 1ms..99ms", false, Some("the OS call getc")),
            ("os 1 poll 1ms..99ms", false, Some("a wait in poll")),
            ("os 1 __poll 1ms..99ms", false, Some("a wait in __poll")),
            ("os 2 getc 1ms..99ms", false, None),
            ("os 1 getc 1ms..40ms", false, None),
            ("os 1 getc 0ms..300ms", false, None),
            ("os 1 getc 1ms..99ms|range 1 step 0ms..100ms", false, Some("the range step")),
            ("os 1 getc 1ms..99ms|range 1 step 0ms..60ms", false, Some("the OS call getc")),
            ("os 1 poll 1ms..99ms|range 1 step 1ms..99ms", false, Some("the range step")),
            ("os 1 getc 1ms..90ms", true, Some("the OS call getc")),
            ("os 1 waitpid 1ms..90ms", true, Some(load)),
        ] {
            assert_eq!(name(lines, loads).as_deref(), expected, "{lines} {loads}");
        }
    }

    #[test]
    fn a_gap_in_which_code_is_loaded_is_named_by_it_up_to_its_last_load() {
        let mut trace = capture(
            "range 1 thread 0..1\ncall 1 1 3000000..3100000\ncall 1 2 6000000..6200000
             call 1 3 20000000..20000100",
        );
        trace.strings.push("cuLibraryLoadData".into());
        let name = trace.strings.len() as u32 - 1;
        let calls = trace.cuda_calls.iter();
        trace.cuda_calls = calls.map(|it| ApiCall { name, ..it }).collect();
        let calls = LongCalls::of(&trace);
        let thread = trace.ranges[0].global_tid;
        let name = |gap| {
            let (number, part) = calls.inside(thread, gap, gap)?;
            Some((calls.names[number as usize].as_ref(), part))
        };
        let load = "preparation of code for cuLibraryLoadData";
        let gap = (1_000_000, 8_000_000);
        assert_eq!(name(gap), Some((load, (1_000_000, 6_200_000))));
        assert_eq!(name((1_000_000, 15_000_000)), None, "most of the gap is after the last load");
        assert_eq!(name((5_900_000, 6_300_000)), None, "a short gap");
        assert_eq!(name((7_000_000, 19_000_000)), None, "no load in the gap");
    }
}
