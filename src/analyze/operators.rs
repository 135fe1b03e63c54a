//! Which operators the time of a pass went to: per module path, and rolled up over layers.
//!
//! Times are host times of the plain pass's measured repeats. On a device that runs asynchronously they are the times of the
//! launching calls; device time comes from the kernels.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    events::Events,
    interval::covered_ns,
    stages::{STAGES, Stages},
    stats::{percent, ratio},
};
use crate::trace::{event::OperatorCall, units::Nanos};

/// The kind of a scope that only encloses others.
pub const MODULE: &str = "module";

/// Calls of one operator in one stage, over all measured repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperatorRecord {
    /// Module path; `*` stands for every index where the record is rolled up over layers or experts.
    #[schema(example = "decoder.layers.*.self_attn.q_proj")]
    pub path: String,
    /// Kind of operator: `linear`, `matmul`, `norm`, ...; `module` for a scope that only encloses others.
    #[schema(example = "linear")]
    pub op: String,
    /// Empty outside every stage.
    #[schema(example = "decode_all")]
    pub stage: String,
    pub calls: u64,
    /// Time of the calls, with everything they enclose.
    pub total_ms: f64,
    /// `total_ms / calls`.
    pub mean_ms: f64,
    /// Time of the calls, without the calls they enclose.
    pub self_ms: f64,
    /// `self_ms` of the stage's time, percent.
    pub share_pct: Option<f64>,
    /// Shapes of the most frequent call's operands, activations first.
    #[schema(example = json!([[1, 1280], [1280, 1280]]))]
    pub shapes: Vec<Vec<u64>>,
    /// Distinct combinations of shapes among the calls.
    pub shape_variants: u64,
    pub dtype: String,
    /// FLOPs of all calls.
    pub flops: u64,
    /// Bytes of operands and results of all calls.
    pub bytes: u64,
    /// Achieved over `self_ms`; `null` for operators that multiply nothing.
    pub flops_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
}

/// FLOPs, bytes and coverage of one stage's calls, over all measured repeats.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StageWork {
    pub flops: u64,
    pub bytes: u64,
    /// Share of the stage's time inside some operator that is no bare module, percent.
    pub covered_pct: Option<f64>,
}

/// The operators of one pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Operators {
    /// One record per stage, path and kind, longest total first.
    pub by_path: Vec<OperatorRecord>,
    /// The same with layer and expert indices collapsed to `*`.
    pub rolled: Vec<OperatorRecord>,
    pub work: BTreeMap<String, StageWork>,
}

impl Operators {
    /// Rolled-up records of operators proper, longest total first.
    pub fn leaves(&self) -> impl Iterator<Item = &OperatorRecord> {
        self.rolled.iter().filter(|record| record.op != MODULE)
    }

    /// Rolled-up records of enclosing scopes, longest total first.
    pub fn modules(&self) -> impl Iterator<Item = &OperatorRecord> {
        self.rolled.iter().filter(|record| record.op == MODULE)
    }
}

/// Sums the measured calls of one pass.
pub fn operators(events: &Events, stages: &Stages) -> Operators {
    let calls: Vec<&OperatorCall> = events.calls.iter().copied().filter(|call| !call.warmup).collect();
    let own = self_times(&calls);

    let mut by_path = BTreeMap::new();
    let mut rolled = BTreeMap::new();
    let mut work: BTreeMap<String, StageWork> = BTreeMap::new();
    for (call, own_ns) in calls.iter().zip(own) {
        Sum::add(&mut by_path, call.path.clone(), call, own_ns);
        Sum::add(&mut rolled, collapse(&call.path), call, own_ns);
        let stage = work.entry(call.stage.clone()).or_default();
        stage.flops += call.flops;
        stage.bytes += call.bytes;
    }
    let stage_ns = |stage: &str| events.measured(stage).map(|range| range.end_ns - range.start_ns).sum::<i64>();
    for stage in STAGES {
        if let Some(work) = work.get_mut(stage) {
            let inside = calls.iter().filter(|call| call.stage == stage && call.op != MODULE);
            let covered = covered_ns(inside.map(|call| (call.start_ns, call.end_ns)));
            work.covered_pct = percent(covered as f64, stage_ns(stage) as f64);
        }
    }
    let total_ms = |stage: &str| stages.row(stage).map(|row| row.ms.mean * f64::from(row.ms.n));
    let finish = |sums: BTreeMap<Key, Sum>| {
        let mut records: Vec<_> = sums
            .into_iter()
            .map(|(key, sum)| {
                let stage_ms = total_ms(&key.stage);
                sum.record(key, stage_ms)
            })
            .collect();
        records.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
        records
    };
    Operators { by_path: finish(by_path), rolled: finish(rolled), work }
}

/// Replaces each numeric part of a path by `*`.
pub fn collapse(path: &str) -> String {
    let parts: Vec<&str> = path
        .split('.')
        .map(|part| if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) { "*" } else { part })
        .collect();
    parts.join(".")
}

/// Nanoseconds of each call that none of the calls nested in it accounts for.
fn self_times(calls: &[&OperatorCall]) -> Vec<i64> {
    // A call is written when it returns: of two with the same times, the later one encloses the earlier.
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_unstable_by(|&a, &b| {
        let (x, y) = (calls[a], calls[b]);
        x.start_ns.cmp(&y.start_ns).then(y.end_ns.cmp(&x.end_ns)).then(b.cmp(&a))
    });
    let mut own: Vec<i64> = calls.iter().map(|call| call.end_ns - call.start_ns).collect();
    let mut open: Vec<usize> = Vec::new();
    for index in order {
        while open.last().is_some_and(|&outer| calls[outer].end_ns < calls[index].end_ns) {
            open.pop();
        }
        // A zero-length call at its predecessor's end follows it: it takes nothing from it either way.
        if let Some(&outer) = open.last() {
            own[outer] -= calls[index].end_ns - calls[index].start_ns;
        }
        open.push(index);
    }
    own
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    stage: String,
    path: String,
    op: String,
}

#[derive(Default)]
struct Sum {
    calls: u64,
    total: Nanos,
    own: Nanos,
    flops: u64,
    bytes: u64,
    shapes: BTreeMap<Vec<Vec<u64>>, u64>,
    dtype: String,
}

impl Sum {
    fn add(sums: &mut BTreeMap<Key, Self>, path: String, call: &OperatorCall, own_ns: i64) {
        let key = Key { stage: call.stage.clone(), path, op: call.op.clone() };
        let sum = sums.entry(key).or_default();
        sum.calls += 1;
        sum.total += Nanos(call.end_ns - call.start_ns);
        sum.own += Nanos(own_ns);
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

    fn record(self, key: Key, stage_ms: Option<f64>) -> OperatorRecord {
        let rate = |amount: u64| if amount == 0 { None } else { ratio(amount as f64, self.own.as_secs()) };
        OperatorRecord {
            calls: self.calls,
            total_ms: self.total.as_ms(),
            mean_ms: self.total.as_ms() / self.calls as f64,
            self_ms: self.own.as_ms(),
            share_pct: stage_ms.and_then(|whole| percent(self.own.as_ms(), whole)),
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
