//! Host times of operators: what each call took without those nested in it, and sums over calls.
//!
//! A call that encloses another of the same operator has its time once.

use std::collections::BTreeMap;

use super::{OperatorRecord, collapse};
use crate::{
    analyze::{
        kernels::OUTSIDE,
        stats::{percent, ratio},
    },
    trace::{event::OperatorCall, units::Nanos},
};

/// Host time of one call beside those around it.
#[derive(Debug, Clone, Copy)]
pub struct CallTime {
    /// Nanoseconds that none of the calls nested in it accounts for.
    pub own_ns: i64,
    /// Whether a call of the same path, or of the same one with layers rolled up, encloses it.
    pub inside_path: bool,
    pub inside_rolled: bool,
}

/// Calls around one that are looked at for its own path.
const MAX_AROUND: usize = 64;

/// The time of each call without those nested in it.
pub fn self_times(calls: &[&OperatorCall]) -> Vec<CallTime> {
    let rolled: Vec<String> = calls.iter().map(|call| collapse(&call.path)).collect();
    // A call is written when it returns: of two with the same times, the later one encloses the earlier.
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_unstable_by(|&a, &b| {
        let (x, y) = (calls[a], calls[b]);
        x.start_ns.cmp(&y.start_ns).then(y.end_ns.cmp(&x.end_ns)).then(b.cmp(&a))
    });
    let whole = |call: &&OperatorCall| CallTime { own_ns: call.end_ns - call.start_ns, inside_path: false, inside_rolled: false };
    let mut own: Vec<CallTime> = calls.iter().map(whole).collect();
    let mut open: Vec<usize> = Vec::new();
    for index in order {
        while open.last().is_some_and(|&outer| calls[outer].end_ns < calls[index].end_ns) {
            open.pop();
        }
        // A zero-length call at its predecessor's end follows it: it takes nothing from it either way.
        if let Some(&outer) = open.last() {
            own[outer].own_ns -= calls[index].end_ns - calls[index].start_ns;
        }
        let around = || open.iter().rev().take(MAX_AROUND).filter(|outer| calls[**outer].stage == calls[index].stage);
        own[index].inside_path = around().any(|outer| calls[*outer].path == calls[index].path);
        own[index].inside_rolled = around().any(|outer| rolled[*outer] == rolled[index]);
        open.push(index);
    }
    own
}

/// What the calls of a record have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub stage: String,
    pub path: String,
    pub op: String,
}

/// Sums over the calls of a record.
#[derive(Default)]
pub struct Sum {
    calls: u64,
    captured: u64,
    /// Calls with a host time that no call of the same operator encloses.
    outer: u64,
    total: Nanos,
    own: Nanos,
    flops: u64,
    bytes: u64,
    shapes: BTreeMap<Vec<Vec<u64>>, u64>,
    dtype: String,
}

impl Sum {
    /// Calls that a graph replayed, of which nothing else is known.
    pub fn captured(calls: u64) -> Self {
        Self { calls, captured: calls, ..Self::default() }
    }

    pub fn add(sums: &mut BTreeMap<Key, Self>, path: String, call: &OperatorCall, time: Option<(i64, bool)>) {
        let key = Key { stage: call.stage.clone(), path, op: call.op.clone() };
        let sum = sums.entry(key).or_default();
        sum.calls += 1;
        match time {
            Some((own_ns, inside_itself)) => {
                // Time inside a call of the same operator is that call's already.
                if !inside_itself {
                    sum.total += Nanos(call.end_ns - call.start_ns);
                    sum.outer += 1;
                }
                sum.own += Nanos(own_ns);
            }
            None => sum.captured += 1,
        }
        sum.flops += call.flops;
        sum.bytes += call.bytes;
        match sum.shapes.get_mut(&call.shapes) {
            Some(seen) => *seen += 1,
            None => drop(sum.shapes.insert(call.shapes.clone(), 1)),
        }
        if sum.dtype.is_empty() {
            sum.dtype = call.dtype.clone();
        }
    }

    pub fn record(self, key: Key, stage_ms: Option<f64>) -> OperatorRecord {
        // Work of calls without a host time is not divided by that of the others.
        let timed = (self.calls - self.captured) as f64;
        let rate = |amount: u64| if amount == 0 || self.captured > 0 { None } else { ratio(amount as f64, self.own.as_secs()) };
        let host = |value: f64| (timed > 0.0).then_some(value);
        // Ranges that enclose each other are summed there by their own time alone.
        let nested = |value: f64| host(value).filter(|_| key.stage != OUTSIDE);
        OperatorRecord {
            calls: self.calls,
            captured_calls: self.captured,
            inclusive_ms: nested(self.total.as_ms()),
            mean_ms: ratio(self.total.as_ms(), self.outer as f64).and_then(nested),
            exclusive_ms: host(self.own.as_ms()),
            inclusive_pct: stage_ms.and_then(|whole| percent(nested(self.total.as_ms())?, whole)),
            exclusive_pct: stage_ms.and_then(|whole| percent(host(self.own.as_ms())?, whole)),
            device: None,
            flops_per_s: rate(self.flops),
            bytes_per_s: rate(self.bytes),
            flops: self.flops,
            bytes: self.bytes,
            shape_variants: self.shapes.len() as u64,
            shapes: self.shapes.into_iter().max_by_key(|(_, seen)| *seen).map(|(shapes, _)| shapes).unwrap_or_default(),
            dtype: self.dtype,
            path: key.path,
            op: key.op,
            stage: key.stage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(path: &str, start_ns: i64, end_ns: i64) -> OperatorCall {
        OperatorCall {
            path: path.into(),
            op: "range".into(),
            start_ns,
            end_ns,
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

    #[test]
    fn an_operator_inside_itself_takes_its_time_once() {
        let calls = [call("block", 0, 100), call("block", 10, 60), call("q", 20, 30)];
        let times = self_times(&calls.iter().collect::<Vec<_>>());
        let mut sums = BTreeMap::new();
        for (call, time) in calls.iter().zip(times) {
            Sum::add(&mut sums, call.path.clone(), call, Some((time.own_ns, time.inside_path)));
        }
        let records: Vec<OperatorRecord> = sums.into_iter().map(|(key, sum)| sum.record(key, Some(100e-6))).collect();
        let told: Vec<_> =
            records.iter().map(|it| (it.path.as_str(), it.calls, it.inclusive_ms, it.exclusive_ms, it.inclusive_pct)).collect();
        assert_eq!(told, [("block", 2, Some(100e-6), Some(90e-6), Some(100.0)), ("q", 1, Some(10e-6), Some(10e-6), Some(10.0))]);
    }
}
