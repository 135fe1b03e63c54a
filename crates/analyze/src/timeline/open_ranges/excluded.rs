//! Parts of stages that a range filter leaves out, and steps inside them that are left out: they
//! count in no time of their stage.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::timeline::process_of;

use super::{EXCLUDED, OpenStages, Segments};
use crate::timeline::interval::{Interval, IntervalSet};

impl Segments {
    /// The parts of an interval in which the value is `wanted`, in order.
    fn parts(&self, wanted: u32, (start, end): Interval) -> impl Iterator<Item = Interval> {
        let first = self.from.partition_point(|from| *from <= start).saturating_sub(1);
        let is_before = move |at: &usize| self.from[*at] < end;
        let parts = (first..self.from.len()).take_while(is_before);
        let parts = parts.filter(move |at| self.value[*at] == wanted).map(move |at| {
            let until = self.from.get(at + 1).map_or(end, |until| end.min(*until));
            (self.from[at].max(start), until)
        });
        parts.filter(|it| it.0 < it.1)
    }
}

/// The first value at each time that is not excluded.
fn merged(parts: &[&Segments]) -> Segments {
    let mut points: Vec<i64> = parts.iter().flat_map(|it| it.from.iter().copied()).collect();
    points.sort_unstable();
    points.dedup();
    let mut hints = vec![0; parts.len()];
    let mut found = Segments::default();
    for t in points {
        let mut values = parts.iter().zip(&mut hints).map(|(it, hint)| it.at(t, hint));
        found.push(t, values.find(|it| *it != EXCLUDED).unwrap_or(EXCLUDED));
    }
    found
}

impl OpenStages {
    /// Merges the segments of the threads of each process that make calls, or of all of its threads
    /// if none does: a filter range of one thread leaves out no time of the others.
    pub(super) fn merge_threads(&mut self, callers: &BTreeSet<i64>) {
        let mut of_process: BTreeMap<i64, Vec<(i64, &Segments)>> = BTreeMap::new();
        for (thread, segments) in &self.threads {
            of_process.entry(process_of(*thread)).or_default().push((*thread, segments));
        }
        let merge = |(process, threads): (i64, Vec<(i64, &Segments)>)| {
            let calling = threads.iter().filter(|it| callers.contains(&it.0)).map(|it| it.1);
            let calling: Vec<&Segments> = calling.collect();
            match calling.is_empty() {
                true => (process, merged(&threads.iter().map(|it| it.1).collect::<Vec<_>>())),
                false => (process, merged(&calling)),
            }
        };
        self.processes = of_process.into_iter().map(merge).collect();
    }

    /// The segments of a thread, or of a process: its merged threads, or one of them if no filter
    /// is set.
    pub(super) fn segments_of(&self, place: i64) -> Option<&Segments> {
        if let Some(merged) = self.processes.get(&place) {
            return Some(merged);
        }
        // A process has the number before its threads' numbers.
        let (thread, segments) = self.threads.range(place..).next()?;
        let is_open = [*thread, process_of(*thread)].contains(&place);
        is_open.then_some(segments)
    }

    /// A value that holds for all the time of a process that no range filter leaves out.
    pub(super) fn unless_excluded(&self, process: i64, value: u32) -> Segments {
        let mut found = Segments::default();
        found.push(i64::MIN, value);
        let known = self.processes.get(&process).into_iter();
        for (from, it) in known.flat_map(|it| it.from.iter().zip(&it.value)) {
            found.push(*from, if *it == EXCLUDED { EXCLUDED } else { value });
        }
        found
    }

    /// True if a range filter leaves out `t` on a thread, or on all threads of a process.
    pub fn is_excluded(&self, place: i64, t: i64) -> bool {
        self.segments_of(place).is_some_and(|it| it.at(t, &mut 0) == EXCLUDED)
    }

    /// The parts of a range of the host that a range filter leaves out. Work that runs after the
    /// range has ended is not a part of it.
    pub fn excluded_in(&self, place: i64, range: Interval) -> IntervalSet {
        let segments = self.segments_of(place).into_iter();
        IntervalSet::new(segments.flat_map(|it| it.parts(EXCLUDED, range)))
    }

    /// The parts of a host range that do not count in its time: what a range filter leaves out, and
    /// steps inside it that are left out, to the end of their work.
    pub fn uncounted_in(&self, place: i64, range: Interval) -> IntervalSet {
        let excluded = self.excluded_in(place, range);
        let steps = self.states.inside(place, range);
        IntervalSet::new(excluded.intervals().iter().copied().chain(steps))
    }

    /// Nanoseconds of a span that a range filter leaves out of its range.
    pub fn excluded_ns(&self, place: i64, range: Interval, span: Interval) -> i64 {
        self.excluded_in(place, range).overlap_ns(span.0, span.1)
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::stage::StageRules;

    use crate::{
        kernels::tests::capture,
        stages::{PREFILL, stages},
        timeline::capture::Capture,
    };

    fn rules(include: &[&str], exclude: &[&str]) -> StageRules {
        let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
        StageRules::with(vec![], names(include), names(exclude))
    }

    const SKETCH: &str = "range 1 measured 20..90\nrange 1 prefill 10..100\nrange 1 check 30..50
        call 1 1 21..22\nkernel 1 a 22..28 7\ncall 1 2 31..32\nkernel 2 b 33..49 7
        call 1 3 60..61\nkernel 3 c 62..120 7";

    #[test]
    fn a_range_filter_leaves_out_its_part_of_a_range_and_not_the_work_after_its_end() {
        let excluded = |rules: StageRules| {
            let trace = capture(SKETCH).with_rules(rules);
            let stages = Capture::of(&trace).stages;
            let place = stages.instances[0].place;
            stages.excluded_in(place, (10, 100)).intervals().to_vec()
        };
        assert_eq!(excluded(rules(&[], &[])), []);
        assert_eq!(excluded(rules(&[], &["check"])), [(30, 50)]);
        assert_eq!(excluded(rules(&["measured"], &["check"])), [(10, 20), (30, 50), (90, 100)]);
    }

    #[test]
    fn a_filter_range_of_one_thread_leaves_out_no_time_of_others_that_make_calls() {
        // A stage of the process; thread 2 launches its work.
        const STAGE: &str = "cross 1 prefill 10..100\ncall 2 1 21..22\nkernel 1 a 22..28 7";
        let excluded = |lines: &str, rules: StageRules| {
            let trace = capture(&format!("{STAGE}\n{lines}")).with_rules(rules);
            let stages = Capture::of(&trace).stages;
            let it = stages.instances[0];
            assert_eq!(stages.at(it.place, 20), Some(0), "{lines}");
            stages.excluded_in(it.place, (it.start_ns, it.end_ns)).intervals().to_vec()
        };
        let (measured, check) = (rules(&["measured"], &[]), rules(&[], &["check"]));
        let idle = "call 1 9 500..501";
        for (lines, rules, expected) in [
            ("range 2 measured 0..200", &measured, vec![]),
            ("range 2 measured 20..90", &measured, vec![(10, 20), (90, 100)]),
            ("cross 2 measured 20..90", &measured, vec![(10, 20), (90, 100)]),
            ("range 2 check 30..50", &check, vec![(30, 50)]),
            ("range 1 check 30..50", &check, vec![]),
            ("range 1 check 30..50\nrange 2 check 40..60", &check, vec![(40, 60)]),
        ] {
            assert_eq!(excluded(lines, rules.clone()), expected, "{lines}");
        }
        let with_idle = |lines: &str| format!("{lines}\n{idle}");
        let of_two = |lines: &str, rules: &StageRules| excluded(&with_idle(lines), rules.clone());
        assert_eq!(of_two("range 2 measured 0..200", &measured), []);
        assert_eq!(of_two("range 1 check 30..50\nrange 2 check 40..60", &check), [(40, 50)]);
        assert_eq!(of_two("cross 1 check 30..50", &check), [(30, 50)]);
    }

    #[test]
    fn sums_of_a_stage_lack_the_time_of_excluded_ranges() {
        let of = |rules: StageRules| {
            let trace = capture(SKETCH).with_rules(rules);
            let trace = llmprof_core::trace::Trace { timeline: Some(trace), ..Default::default() };
            let found = crate::analyze(&trace, None, None);
            let ns = |ms: f64| (ms * 1e6).round() as i64;
            let gpu = found.stage_gpu.totals.iter().find(|it| it.stage == PREFILL).unwrap();
            let measured = found.ledger.stages.iter().find(|it| it.stage == PREFILL).unwrap();
            let rows: i64 = found.ledger.of_stage(PREFILL).map(|it| it.ns).sum();
            assert_eq!(rows, measured.measured_ns);
            (
                found.stages.row(PREFILL).map(|it| ns(it.ms.mean)),
                measured.measured_ns,
                gpu.window_ms.map(ns),
                gpu.busy_ms.map(ns),
            )
        };
        assert_eq!(of(rules(&[], &[])), (Some(110), 110, Some(110), Some(6 + 16 + 58)));
        assert_eq!(of(rules(&[], &["check"])), (Some(90), 90, Some(90), Some(6 + 58)));
        let within = of(rules(&["measured"], &["check"]));
        assert_eq!(within, (Some(70), 70, Some(70), Some(6 + 48)), "not from 90 to 100");
    }

    #[test]
    fn a_stage_of_excluded_ranges_alone_has_no_row() {
        let trace = capture(SKETCH).with_rules(rules(&[], &["prefill"]));
        let capture = Capture::of(&trace);
        let events = crate::external_capture::CaptureEvents::of(&capture, None);
        assert!(stages(&events.by_kind(&trace)).rows.is_empty());
        assert!(capture.stages.is_excluded(capture.stages.instances[0].place, 10));
    }
}
