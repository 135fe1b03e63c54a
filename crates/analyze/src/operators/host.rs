//! Host times of operators: time of each call without nested calls, and sums over calls.
//!
//! A call nested in another of the same operator counts once.

use std::collections::BTreeMap;

use llmprof_core::{domain::units::Nanos, trace::event::OperatorCall};

use super::{
    OperatorRecord,
    call_kinds::{CallKey, CallKind, CallKinds},
};
use crate::{
    events::TimedCall,
    kernels::OUTSIDE,
    stats::{percent, ratio},
    timeline::activity::Busy,
};

/// Host time of one call, and its nesting.
#[derive(Debug, Clone, Copy)]
pub struct CallTime {
    /// Time without nested calls, nanoseconds.
    pub exclusive_ns: i64,
    /// True when a call of the same path encloses it.
    pub inside_path: bool,
    /// True when a call of the same rolled-up path encloses it.
    pub inside_rolled: bool,
}

/// Max enclosing calls searched for the same path.
const MAX_ENCLOSING: usize = 64;

/// A call that may enclose the next ones of its thread.
struct OpenCall<'a> {
    call: TimedCall<'a>,
    kind: CallKind,
    time: CallTime,
    /// Start/end ranges inside a call may overlap.
    inside: Busy,
}

/// Computes the time of each call without nested calls. `calls` are outer ones first; `ended` gets
/// each with its time.
pub fn exclusive_times<'a>(
    calls: impl Iterator<Item = TimedCall<'a>>,
    kinds: &mut CallKinds<'a>,
    mut ended: impl FnMut(CallKind, &TimedCall<'a>, CallTime),
) {
    let mut threads: BTreeMap<i64, Vec<OpenCall>> = BTreeMap::new();
    for call in calls {
        let kind = kinds.of(&call);
        let open = threads.entry(call.thread).or_default();
        while let Some(it) = open.pop_if(|outer| outer.call.end_ns < call.end_ns) {
            ended(it.kind, &it.call, it.time);
        }
        // A zero-length call at the end of its predecessor takes no time from it in either order.
        if let Some(outer) = open.last_mut() {
            let (from, to) = outer.inside.add(call.start_ns, call.end_ns);
            let inside = to.saturating_sub(from);
            outer.time.exclusive_ns = outer.time.exclusive_ns.saturating_sub(inside);
        }
        let enclosing = || open.iter().rev().take(MAX_ENCLOSING).map(|outer| outer.kind);
        let time = CallTime {
            exclusive_ns: call.ns(),
            inside_path: enclosing().any(|outer| outer.of_path == kind.of_path),
            inside_rolled: enclosing().any(|outer| outer.of_rolled_path == kind.of_rolled_path),
        };
        open.push(OpenCall { call, kind, time, inside: Busy::default() });
    }
    for it in threads.into_values().flatten() {
        ended(it.kind, &it.call, it.time);
    }
}

/// Sum of the calls of a record.
#[derive(Default)]
pub struct HostTimeSum {
    calls: u64,
    captured: u64,
    /// Calls with a host time that are not inside a call of the same operator.
    outer: u64,
    total: Nanos,
    own: Nanos,
    /// Time of the calls with work, over which rates are given.
    working: Nanos,
    pub flops: u64,
    pub bytes: u64,
    shapes: BTreeMap<Vec<Vec<u64>>, u64>,
    /// Calls without shapes.
    shapeless: u64,
    dtype: String,
}

impl HostTimeSum {
    /// Calls replayed by a graph, without any other figures.
    pub fn captured(calls: u64) -> Self {
        Self { calls, captured: calls, ..Self::default() }
    }

    /// Counts a call, whose time is added apart.
    pub fn add_call(&mut self, call: &OperatorCall) {
        self.calls += 1;
        self.captured += u64::from(call.captured);
        self.add_work(call, 1);
    }

    /// Adds the time of a call: its exclusive time, and true when inside the same operator.
    pub fn add_time(&mut self, call: &TimedCall, (exclusive_ns, inside_itself): (i64, bool)) {
        self.add_nested(call.ns(), inside_itself);
        self.own += Nanos(exclusive_ns);
        self.working += Nanos(exclusive_ns);
    }

    fn add_nested(&mut self, ns: i64, inside_itself: bool) {
        // A nested call's time is already part of the outer call of the same operator.
        if !inside_itself {
            self.total += Nanos(ns);
            self.outer += 1;
        }
    }

    /// Adds a call; `time` is its exclusive time, true when inside the same operator, and the time
    /// of its work.
    pub fn add(&mut self, call: &OperatorCall, time: (i64, bool, i64)) {
        let (exclusive_ns, inside_itself, working_ns) = time;
        self.calls += 1;
        self.add_nested(call.end_ns.saturating_sub(call.start_ns), inside_itself);
        self.own += Nanos(exclusive_ns);
        self.working += Nanos(working_ns);
        self.add_work(call, 1);
    }

    /// Adds a call that a graph replayed `count` times, with the work of all replays. It has no
    /// host time.
    pub fn add_replayed(&mut self, call: &OperatorCall, count: u64) {
        self.calls += count;
        self.captured += count;
        self.add_work(call, count);
    }

    /// Adds the work of `count` calls.
    fn add_work(&mut self, call: &OperatorCall, count: u64) {
        self.flops = self.flops.saturating_add(call.flops);
        self.bytes = self.bytes.saturating_add(call.bytes);
        match self.shapes.get_mut(&call.shapes) {
            _ if call.shapes.is_empty() => self.shapeless += count,
            Some(seen) => *seen += count,
            None => drop(self.shapes.insert(call.shapes.clone(), count)),
        }
        if self.dtype.is_empty() {
            self.dtype = call.dtype.clone();
        }
    }

    /// Host time of the calls in a stage, enclosed calls included.
    pub fn inclusive_ms(&self, stage: &str) -> Option<f64> {
        self.nested(stage, self.total.as_ms())
    }

    /// The figure of a sum, if a call has a host time.
    fn host(&self, value: f64) -> Option<f64> {
        (self.calls > self.captured).then_some(value)
    }

    /// The same of a figure that counts enclosed calls. Outside the included ranges, enclosing
    /// ranges are summed only by exclusive time.
    fn nested(&self, stage: &str, value: f64) -> Option<f64> {
        self.host(value).filter(|_| stage != OUTSIDE)
    }

    /// The record of the summed calls.
    pub fn record(self, key: CallKey, stage_ms: Option<f64>) -> OperatorRecord {
        // Rates are given only when all calls have a host time.
        let rate = |amount: u64| {
            if amount == 0 || self.captured > 0 {
                None
            } else {
                ratio(amount as f64, self.working.as_secs())
            }
        };
        let (inclusive_ms, exclusive_ms) =
            (self.inclusive_ms(&key.stage), self.host(self.own.as_ms()));
        let mean_ms = ratio(self.total.as_ms(), self.outer as f64);
        OperatorRecord {
            calls: self.calls,
            captured_calls: self.captured,
            inclusive_ms,
            mean_ms: mean_ms.and_then(|ms| self.nested(&key.stage, ms)),
            exclusive_ms,
            inclusive_pct: stage_ms.and_then(|stage| percent(inclusive_ms?, stage)),
            exclusive_pct: stage_ms.and_then(|stage| percent(exclusive_ms?, stage)),
            device: None,
            flops_per_s: rate(self.flops),
            bytes_per_s: rate(self.bytes),
            flops: self.flops,
            bytes: self.bytes,
            shape_variants: self.shapes.len() as u64 + u64::from(self.shapeless > 0),
            shapes: self
                .shapes
                .into_iter()
                .max_by_key(|(_, seen)| *seen)
                .filter(|(_, seen)| *seen >= self.shapeless)
                .map(|(shapes, _)| shapes)
                .unwrap_or_default(),
            dtype: self.dtype,
            path: key.path.into_owned(),
            op: key.op.into_owned(),
            stage: key.stage.into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::events::CallList;

    fn call(path: &str, start_ns: i64, end_ns: i64) -> OperatorCall {
        OperatorCall {
            path: path.into(),
            op: "range".into(),
            start_ns,
            end_ns,
            thread: 0,
            captured: false,
            warmup: false,
            repeat: 0,
            stage: "prefill".into(),
            shapes: vec![],
            dtype: String::new(),
            flops: 0,
            bytes: 0,
        }
    }

    /// The times of calls, in their order.
    fn times_of<'a>(calls: impl Iterator<Item = &'a OperatorCall>) -> Vec<CallTime> {
        let calls: Vec<&OperatorCall> = calls.collect();
        let list = CallList::Recorded(calls.clone());
        let mut times = vec![None; calls.len()];
        exclusive_times(list.outer_first(), &mut CallKinds::default(), |_, call, time| {
            let at = calls.iter().position(|it| std::ptr::eq(*it, call.of));
            times[at.unwrap()] = Some(time);
        });
        times.into_iter().map(Option::unwrap).collect()
    }

    #[test]
    fn calls_of_threads_that_run_at_once_take_no_time_from_each_other() {
        let on = |thread: i64, it: OperatorCall| OperatorCall { thread, ..it };
        let calls = [
            on(1, call("attn", 0, 30)),
            on(2, call("attn", 0, 30)),
            on(2, call("q", 5, 15)),
            on(3, call("mlp", 1, 28)),
        ];
        let times = times_of(calls.iter());
        let own: Vec<(i64, bool)> =
            times.iter().map(|it| (it.exclusive_ns, it.inside_path)).collect();
        assert_eq!(own, [(30, false), (20, false), (10, false), (27, false)]);
    }

    proptest! {
        #[test]
        fn exclusive_times_are_never_negative_and_depend_on_their_thread_alone(
            spans in prop::collection::vec((1i64..4, 0i64..40, 1i64..30), 1..30)
        ) {
            let call = |(thread, start, ns): &(i64, i64, i64)| OperatorCall {
                thread: *thread,
                ..call("a", *start, start + ns)
            };
            let calls: Vec<OperatorCall> = spans.iter().map(call).collect();
            let times = times_of(calls.iter());
            for (it, time) in calls.iter().zip(&times) {
                prop_assert!((0..=it.end_ns - it.start_ns).contains(&time.exclusive_ns));
            }
            for thread in 1..4 {
                let own = calls.iter().filter(|it| it.thread == thread);
                let alone = times_of(own);
                let all = calls.iter().zip(&times).filter(|(it, _)| it.thread == thread);
                let all: Vec<i64> = all.map(|(_, time)| time.exclusive_ns).collect();
                prop_assert_eq!(alone.iter().map(|it| it.exclusive_ns).collect::<Vec<_>>(), all);
            }
        }
    }

    #[test]
    fn an_operator_nested_in_itself_counts_its_time_once() {
        let calls = [call("block", 0, 100), call("block", 10, 60), call("q", 20, 30)];
        let times = times_of(calls.iter());
        let mut sums: BTreeMap<CallKey, HostTimeSum> = BTreeMap::new();
        for (call, time) in calls.iter().zip(times) {
            let time = (time.exclusive_ns, time.inside_path, time.exclusive_ns);
            let key = CallKey::of(&call.stage, &call.path, &call.op);
            sums.entry(key).or_default().add(call, time);
        }
        let records: Vec<OperatorRecord> =
            sums.into_iter().map(|(key, sum)| sum.record(key, Some(100e-6))).collect();
        let rows: Vec<_> = records
            .iter()
            .map(|it| {
                (it.path.as_str(), it.calls, it.inclusive_ms, it.exclusive_ms, it.inclusive_pct)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("block", 2, Some(100e-6), Some(90e-6), Some(100.0)),
                ("q", 1, Some(10e-6), Some(10e-6), Some(10.0))
            ]
        );
    }
}
