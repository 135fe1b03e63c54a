//! The part of each stage instance that a capture has.

use std::collections::{BTreeMap, HashSet};

use llmprof_core::trace::{
    range::Range,
    timeline::{Timeline, process_of},
    unclosed::{Unclosed, UnclosedOutcome},
};

use super::{Extent, OpenStages, PlaceIntervals, StageInstance, place, step_ranges};
use crate::{
    stages::PREFILL,
    timeline::{interval::Interval, recorded::MIN_QUIET_NS},
};

impl OpenStages {
    /// Marks the instances that are not whole. `loose` contains the runs of decode steps that lie
    /// in no decode range; `decode` is the index of the decode label.
    pub(super) fn mark_extents(&mut self, trace: &Timeline, loose: &PlaceIntervals, decode: usize) {
        let closed: HashSet<(i64, i64)> = trace
            .unclosed
            .iter()
            .filter_map(|it| Some((place(&it.range), it.outcome.end_ns()?)))
            .collect();
        let of_stage = first_unbounded(trace, |it| trace.rules.ruled_stage(&it.name, &it.domain));
        let of_steps = first_unbounded(trace, |it| {
            trace.rules.is_decode_step(&it.name, &it.domain).then_some(())
        });
        let is_prefill = |it: &&StageInstance| self.labels[it.label] == PREFILL;
        let mut prefills: HashSet<i64> =
            self.instances.iter().filter(is_prefill).map(|it| it.place).collect();
        prefills.extend(of_stage.keys().filter(|(_, it)| *it == PREFILL).map(|(place, _)| place));
        // Runs of inferred decode steps have no range around them either.
        let inferred = trace.inferred.generating_threads();
        let last: BTreeMap<i64, usize> =
            self.instances.iter().enumerate().map(|(at, it)| (it.place, at)).collect();
        let is_ranged = |it: &&StageInstance| {
            let runs = loose.get(&it.place);
            it.label == decode
                && runs.is_some_and(|all| all.binary_search(&(it.start_ns, it.end_ns)).is_err())
        };
        let ranged: HashSet<i64> =
            self.instances.iter().filter(is_ranged).map(|it| it.place).collect();
        let mut seen = HashSet::new();
        let starts = ProcessStarts::of(trace);
        for at in 0..self.instances.len() {
            let it = self.instances[at];
            let is_inferred = it.label == decode && inferred.contains(&it.place);
            let is_run =
                |runs: &Vec<Interval>| runs.binary_search(&(it.start_ns, it.end_ns)).is_ok();
            let is_loose = it.label == decode && loose.get(&it.place).is_some_and(is_run);
            // The prefill of a first decode lies before the recording, and its first steps may.
            let is_first = seen.insert(it.place) && (is_loose || is_inferred);
            let lacks_start = is_first
                && (prefills.contains(&it.place)
                    || starts.is_at_start(trace, it.place, it.start_ns));
            let lacks_end = |step: &i64| {
                let mut later =
                    self.instances[at + 1..].iter().filter(|next| next.place == it.place);
                it.start_ns <= *step && later.next().is_none_or(|next| *step < next.start_ns)
            };
            let ends_late = last[&it.place] == at && trace.inferred.cut_threads.contains(&it.place);
            let is_cut_run = lacks_start || of_steps.get(&(it.place, ())).is_some_and(lacks_end);
            let unbounded = of_stage.get(&(it.place, self.labels[it.label].as_str()));
            // The range around a run is not recorded if other decodes of the thread have one.
            let lacks_range = is_loose && ranged.contains(&it.place);
            let is_cut = lacks_range
                || is_loose && is_cut_run
                || is_inferred && (lacks_start || ends_late)
                || unbounded.is_some_and(|start| *start <= it.start_ns);
            self.instances[at].extent = if is_cut {
                Extent::Cut
            } else if closed.contains(&(it.place, it.end_ns)) {
                Extent::EstimatedEnd
            } else {
                Extent::Whole
            };
        }
    }

    /// Shortens decodes whose range lasts longer than the recording: the time without a step before
    /// the first call and after the last work is not recorded, if it is longer than each step.
    pub(super) fn trim_decodes(&mut self, trace: &Timeline, decode: usize) {
        let is_step = |it: &Range| {
            trace.rules.is_decode_step(&it.name, &it.domain)
                || trace.rules.is_step_in_decode(&it.name, &it.domain)
        };
        let mut steps: Option<PlaceIntervals> = None;
        for at in 0..self.instances.len() {
            let it = self.instances[at];
            let process = process_of(it.place);
            let Some((first, last)) = self.records.of_process(process).map(|it| it.times) else {
                continue;
            };
            let is_beyond = it.start_ns < first || last < it.end_ns;
            if it.label != decode || it.extent == Extent::EstimatedEnd || !is_beyond {
                continue;
            }
            let steps = steps.get_or_insert_with(|| {
                let mut found = step_ranges(trace, is_step);
                for step in &self.steps {
                    found.entry(step.place).or_default().push((step.start_ns, step.end_ns));
                }
                found.values_mut().for_each(|all| all.sort_unstable());
                found
            });
            let is_inside = |step: &&Interval| {
                let is_same = **step == (it.start_ns, it.end_ns);
                !is_same && it.start_ns <= step.0 && step.1 <= it.end_ns
            };
            let all = steps.get(&it.place).map_or(&[][..], Vec::as_slice);
            let from = all.partition_point(|step| step.0 < it.start_ns);
            let inside = || {
                let of_range = all[from..].iter().take_while(|step| step.0 <= it.end_ns);
                of_range.filter(is_inside)
            };
            let is_recorded = |step: &&Interval| first <= step.1 && step.0 <= last;
            let is_whole = |step: &&Interval| first <= step.0 && step.1 <= last;
            let Some(longest) = inside().filter(is_whole).map(|it| it.1 - it.0).max() else {
                continue;
            };
            let least = longest.max(MIN_QUIET_NS);
            let start = inside().filter(is_recorded).map(|it| it.0).fold(first, i64::min);
            let end = inside().filter(is_recorded).map(|it| it.1).fold(last, i64::max);
            let is_at_bound = self.records.is_at_bound(process, (it.start_ns, it.end_ns));
            let it = &mut self.instances[at];
            if is_at_bound {
                it.extent = Extent::Cut;
            }
            if start - it.start_ns > least {
                (it.start_ns, it.extent) = (start, Extent::Cut);
            }
            if it.end_ns - end > least {
                (it.end_ns, it.extent) = (end, Extent::Cut);
            }
        }
        self.instances.sort_by_key(|it| (it.start_ns, it.label));
    }
}

/// When the recording of each process starts.
struct ProcessStarts(BTreeMap<i64, i64>);

impl ProcessStarts {
    /// The first range or call of each process.
    fn of(trace: &Timeline) -> Self {
        let mut first: BTreeMap<i64, i64> = BTreeMap::new();
        let ranges = trace.ranges.iter().map(|it| (it.global_tid, it.start_ns));
        let calls = trace.cuda_calls.iter().map(|it| (it.global_tid, it.start_ns));
        for (thread, start_ns) in ranges.chain(calls) {
            let known = first.entry(process_of(thread)).or_insert(start_ns);
            *known = start_ns.min(*known);
        }
        Self(first)
    }

    /// True if less time than a step takes lies between the start of the recording and a decode
    /// that starts at `start_ns`: steps before it would not be recorded.
    fn is_at_start(&self, trace: &Timeline, decode_place: i64, start_ns: i64) -> bool {
        let is_step = |it: &Range| {
            place(it) == decode_place && trace.rules.is_decode_step(&it.name, &it.domain)
        };
        let named = step_ranges(trace, is_step).into_values().flatten();
        let inferred = trace.inferred.steps.iter().filter(|it| it.global_tid == decode_place);
        let inferred = inferred.map(|it| (it.start_ns, it.end_ns));
        let mut steps = named.chain(inferred).filter(|it| it.0 >= start_ns);
        let Some(first) = steps.next() else { return false };
        // A short pause between steps is a part of each.
        let until = steps.next().map_or(first.1, |next| next.0);
        let recorded = self.0.get(&process_of(decode_place)).copied().unwrap_or(start_ns);
        start_ns - recorded < until - first.0
    }
}

/// Start of the first range of each kind that nothing bounds, by place: what follows on its thread
/// is a part of it.
fn first_unbounded<'a, T: Ord>(
    trace: &'a Timeline,
    kind: impl Fn(&'a Range) -> Option<T>,
) -> BTreeMap<(i64, T), i64> {
    let mut first = BTreeMap::new();
    let unbounded = trace.unclosed.iter().filter(|it| it.outcome == UnclosedOutcome::Dropped);
    for Unclosed { range, .. } in unbounded {
        if let Some(kind) = kind(range) {
            let start = first.entry((place(range), kind)).or_insert(range.start_ns);
            *start = range.start_ns.min(*start);
        }
    }
    first
}
