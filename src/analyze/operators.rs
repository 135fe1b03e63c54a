//! Which operators the time of a pass went to: per module path, and rolled up over layers.
//!
//! Host times are of the plain pass's measured repeats: on a device that runs asynchronously, those of the launching calls. A call that a
//! CUDA graph replayed has no host time. Device time is that of the kernels which the operator launched in the traced pass.

mod host;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::host::{Key, Sum, self_times};
use super::{
    device_time::{DeviceTime, DeviceTimes},
    events::Events,
    interval::covered_ns,
    kernels::{OUTSIDE, StageKernels, is_measured},
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
    /// Of those, calls that a CUDA graph replayed: the host saw none of them.
    #[serde(default)]
    pub captured_calls: u64,
    /// Host time of the calls, with everything they enclose; `null` where a graph replayed all of them, as are the next two.
    #[serde(alias = "total_ms")]
    pub inclusive_ms: Option<f64>,
    /// `inclusive_ms` over the calls that have a host time and are not inside one of the same operator.
    pub mean_ms: Option<f64>,
    /// Host time of the calls, without the calls they enclose.
    #[serde(alias = "self_ms")]
    pub exclusive_ms: Option<f64>,
    /// `inclusive_ms` of the stage's time, percent.
    #[serde(default)]
    pub inclusive_pct: Option<f64>,
    /// `exclusive_ms` of the stage's time, percent.
    #[serde(alias = "share_pct")]
    pub exclusive_pct: Option<f64>,
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
    /// Achieved over `exclusive_ms`; `null` for operators that multiply nothing.
    pub flops_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// Its kernels in the traced pass; `null` where it launched none, or nothing was traced.
    #[serde(default)]
    pub device: Option<OperatorDevice>,
}

/// Kernels that an operator launched in the traced pass, over its measured repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperatorDevice {
    /// Calls that launched kernels, replays of a graph among them.
    #[serde(default)]
    pub calls: u64,
    /// Launches, with everything that it encloses.
    pub kernels: u64,
    /// Their time, with everything that it encloses.
    #[serde(alias = "total_ms")]
    pub inclusive_ms: f64,
    /// `inclusive_ms / calls`.
    #[serde(default)]
    pub mean_ms: Option<f64>,
    /// Their time, without what it encloses.
    #[serde(alias = "self_ms")]
    pub exclusive_ms: f64,
    /// `inclusive_ms` of the stage's kernel time, percent.
    #[serde(default)]
    pub inclusive_pct: Option<f64>,
    /// `exclusive_ms` of the stage's kernel time, percent.
    #[serde(alias = "share_pct")]
    pub exclusive_pct: Option<f64>,
    /// FLOPs of the traced pass over `exclusive_ms`; `null` for operators that multiply nothing.
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

/// An operator's own time, without what it encloses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnTime {
    pub ms: f64,
    /// Of the stage's kernel time where the time is that of kernels, else of the stage's time, percent.
    pub share_pct: Option<f64>,
    pub on_device: bool,
}

impl OperatorRecord {
    /// An operator that only graphs replayed, of which the host saw no call.
    fn replayed(stage: &str, path: &str, calls: u64) -> Self {
        let key = Key { stage: stage.into(), path: path.into(), op: "range".into() };
        Sum::captured(calls).record(key, None)
    }
}

impl Operators {
    /// Rolled-up operators proper of one stage, longest first: by their kernels' time where kernels were joined to operators, for on a device that
    /// runs asynchronously the host's time is that of launching; else by the host's.
    pub fn ranked(&self, stage: &str) -> Vec<(&OperatorRecord, OwnTime)> {
        let leaves = || self.leaves().filter(|it| it.stage == stage);
        let on_device = leaves().any(|it| it.device.is_some());
        let time = |it: &OperatorRecord| match it.device {
            Some(device) => Some((device.exclusive_ms, device.exclusive_pct)),
            None if on_device => None,
            None => it.exclusive_ms.map(|ms| (ms, it.exclusive_pct)),
        };
        let timed = leaves().filter_map(|it| time(it).map(|(ms, share_pct)| (it, OwnTime { ms, share_pct, on_device })));
        let mut ranked: Vec<_> = timed.collect();
        ranked.sort_by(|a, b| b.1.ms.total_cmp(&a.1.ms));
        ranked
    }

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
    let timed: Vec<&OperatorCall> = calls.iter().copied().filter(|call| !call.captured).collect();
    let mut own = self_times(&timed).into_iter();

    let mut by_path = BTreeMap::new();
    let mut rolled = BTreeMap::new();
    let mut work: BTreeMap<String, StageWork> = BTreeMap::new();
    for call in &calls {
        let time = if call.captured { None } else { own.next() };
        Sum::add(&mut by_path, call.path.clone(), call, time.map(|it| (it.own_ns, it.inside_path)));
        Sum::add(&mut rolled, collapse(&call.path), call, time.map(|it| (it.own_ns, it.inside_rolled)));
        let stage = work.entry(call.stage.clone()).or_default();
        stage.flops += call.flops;
        stage.bytes += call.bytes;
    }
    let stage_ns = |stage: &str| events.measured(stage).map(|range| range.end_ns - range.start_ns).sum::<i64>();
    for stage in STAGES {
        if let Some(work) = work.get_mut(stage) {
            let inside = || calls.iter().filter(|call| call.stage == stage && call.op != MODULE);
            // What a graph replayed took some of the stage's time, and nobody saw how much.
            if !inside().any(|call| call.captured) {
                let covered = covered_ns(inside().map(|call| (call.start_ns, call.end_ns)));
                work.covered_pct = percent(covered as f64, stage_ns(stage) as f64);
            }
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
        sort(&mut records);
        records
    };
    Operators { by_path: finish(by_path), rolled: finish(rolled), work }
}

/// Longest on the device first; what has no device time after that, longest on the host first.
fn sort(records: &mut [OperatorRecord]) {
    let device = |it: &OperatorRecord| it.device.map_or(-1.0, |device| device.inclusive_ms);
    let host = |it: &OperatorRecord| it.inclusive_ms.unwrap_or(-1.0);
    let order = |a: &OperatorRecord, b: &OperatorRecord| device(b).total_cmp(&device(a)).then(host(b).total_cmp(&host(a)));
    records.sort_by(|a, b| (a.stage == OUTSIDE).cmp(&(b.stage == OUTSIDE)).then(order(a, b)));
}

/// Sets the kernels of the traced pass beside the operators that launched them. A path that names operators of several kinds in one
/// stage gets none: a range tells the path alone.
pub fn attach(operators: &mut Operators, times: &DeviceTimes, traced: &Events, stages: &[StageKernels]) {
    let mut work: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for call in traced.calls.iter().filter(|call| !call.warmup) {
        let sum = work.entry((&call.stage, &call.path)).or_default();
        *sum = (sum.0 + call.flops, sum.1 + call.bytes);
    }
    let mut by_path: BTreeMap<(String, String), Sums> = BTreeMap::new();
    let mut rolled: BTreeMap<(String, String), Sums> = BTreeMap::new();
    for ((stage, path), time) in &times.operators {
        let (flops, bytes) = work.get(&(stage.as_str(), path.as_str())).copied().unwrap_or_default();
        for (sums, path) in [(&mut by_path, path.clone()), (&mut rolled, collapse(path))] {
            let sum = sums.entry((stage.clone(), path)).or_default();
            sum.time.calls += time.calls;
            sum.time.kernels += time.kernels;
            sum.time.total_ns += time.total_ns;
            sum.time.own_ns += time.own_ns;
            sum.flops += flops;
            sum.bytes += bytes;
        }
    }
    for (records, sums) in [(&mut operators.by_path, by_path), (&mut operators.rolled, rolled)] {
        // Without events of a runner, a replayed operator has no call on the host in the stage of its replay.
        if traced.calls.is_empty() {
            let known: BTreeSet<(String, String)> = records.iter().map(|it| (it.stage.clone(), it.path.clone())).collect();
            let replayed = sums.iter().filter(|(key, _)| !key.0.is_empty() && is_measured(&key.0) && !known.contains(*key));
            records.extend(replayed.map(|((stage, path), sum)| OperatorRecord::replayed(stage, path, sum.time.calls)));
        }
        let mut kinds: BTreeMap<(String, String), u32> = BTreeMap::new();
        records.iter().for_each(|it| *kinds.entry((it.stage.clone(), it.path.clone())).or_default() += 1);
        for record in records.iter_mut() {
            let key = (record.stage.clone(), record.path.clone());
            let of = stages.iter().find(|it| it.stage == key.0);
            let stage_ms = of.and_then(|it| it.kernel_ms).unwrap_or(0.0);
            // What ran inside a whole-traced graph has work and no time.
            let whole = of.is_none_or(|it| it.graph_launches == 0);
            record.device = sums.get(&key).filter(|_| kinds[&key] == 1).map(|sum| sum.device(stage_ms, whole));
        }
        sort(records);
    }
}

/// Device time and work of one operator in one stage.
#[derive(Default)]
struct Sums {
    time: DeviceTime,
    flops: u64,
    bytes: u64,
}

impl Sums {
    /// `whole`: every kernel of the stage is recorded, so that a rate is that of all its work.
    fn device(&self, stage_ms: f64, whole: bool) -> OperatorDevice {
        let (own, inclusive_ms) = (Nanos(self.time.own_ns), Nanos(self.time.total_ns).as_ms());
        let rate = |amount: u64| if amount == 0 || !whole { None } else { ratio(amount as f64, own.as_secs()) };
        OperatorDevice {
            calls: self.time.calls,
            kernels: self.time.kernels,
            inclusive_ms,
            mean_ms: ratio(inclusive_ms, self.time.calls as f64),
            exclusive_ms: own.as_ms(),
            inclusive_pct: percent(inclusive_ms, stage_ms),
            exclusive_pct: percent(own.as_ms(), stage_ms),
            flops_per_s: rate(self.flops),
            bytes_per_s: rate(self.bytes),
        }
    }
}

/// Replaces each numeric part of a path by `*`.
pub fn collapse(path: &str) -> String {
    let parts: Vec<&str> = path
        .split('.')
        .map(|part| if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) { "*" } else { part })
        .collect();
    parts.join(".")
}
