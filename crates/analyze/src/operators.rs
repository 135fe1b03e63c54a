//! Operator times of a pass: per module path, and rolled up over layers.
//!
//! Host times are of the measured repeats of the unprofiled pass; on an asynchronous device they
//! are those of the launching calls. Calls replayed by a CUDA graph have no host time. Device time
//! is that of the kernels launched by the operator in the traced pass.

pub mod formulas;
pub mod framework;
mod host;
mod kinds;
pub mod products;
pub mod profiled;
pub mod rolled_paths;

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::{domain::units::Nanos, trace::event::OperatorCall};
use serde::{Deserialize, Serialize};

use self::{
    host::{CallKey, HostTimeSum, exclusive_times},
    products::ProductCalls,
    rolled_paths::{RolledPaths, collapse},
};
use super::{
    events::Events,
    kernels::{OUTSIDE, StageKernels, is_measured},
    stages::{STAGES, Stages},
    stats::{percent, ratio},
};
use crate::timeline::{
    device_time::{DeviceTime, DeviceTimes},
    interval::{Interval, covered_ns},
};

/// Kind of a scope that only encloses other operators.
pub const MODULE: &str = "module";

/// Calls of one operator in one stage, over all measured repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OperatorRecord {
    /// Module path; `*` stands for every index where the record is rolled up over layers or
    /// experts.
    #[cfg_attr(feature = "schema", schema(example = "decoder.layers.*.self_attn.q_proj"))]
    pub path: String,
    /// Kind of operator: `linear`, `matmul`, `norm`, ...; `module` for a scope that only encloses
    /// other operators.
    #[cfg_attr(feature = "schema", schema(example = "linear"))]
    pub op: String,
    /// Empty outside every stage.
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    pub calls: u64,
    /// Of those, calls replayed by a CUDA graph, which have no host time.
    #[serde(default)]
    pub captured_calls: u64,
    /// Host time of the calls, enclosed calls included; `null`, as are the next two, where a graph
    /// replayed all of them.
    pub inclusive_ms: Option<f64>,
    /// `inclusive_ms` over the calls with a host time that are not inside a call of the same
    /// operator.
    pub mean_ms: Option<f64>,
    /// Host time of the calls, without enclosed calls.
    pub exclusive_ms: Option<f64>,
    /// `inclusive_ms` of the stage's time, percent.
    #[serde(default)]
    pub inclusive_pct: Option<f64>,
    /// `exclusive_ms` of the stage's time, percent.
    pub exclusive_pct: Option<f64>,
    /// Operand shapes of the most frequent call, activations first.
    #[cfg_attr(feature = "schema", schema(example = json!([[1, 1280], [1280, 1280]])))]
    pub shapes: Vec<Vec<u64>>,
    /// Distinct combinations of shapes among the calls.
    pub shape_variants: u64,
    pub dtype: String,
    /// FLOPs of all calls.
    pub flops: u64,
    /// Bytes of operands and results of all calls.
    pub bytes: u64,
    /// Rate over `exclusive_ms`, or over the time of the calls with FLOPs for operators of PyTorch,
    /// whose inner calls do the work; `null` for operators without FLOPs.
    pub flops_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// Kernels in the traced pass; `null` without kernels or a traced pass.
    #[serde(default)]
    pub device: Option<OperatorDevice>,
}

/// Kernels that an operator launched in the traced pass, over its measured repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OperatorDevice {
    /// Calls that launched kernels, including replays of a graph.
    #[serde(default)]
    pub calls: u64,
    /// Launches, including those of enclosed operators.
    pub kernels: u64,
    /// Kernel time, including enclosed operators.
    pub inclusive_ms: f64,
    /// `inclusive_ms / calls`.
    #[serde(default)]
    pub mean_ms: Option<f64>,
    /// Kernel time, without enclosed operators.
    pub exclusive_ms: f64,
    /// `inclusive_ms` of the stage's kernel time, percent.
    #[serde(default)]
    pub inclusive_pct: Option<f64>,
    /// `exclusive_ms` of the stage's kernel time, percent.
    pub exclusive_pct: Option<f64>,
    /// FLOPs of the traced pass over `exclusive_ms`, or over the kernels inside the calls with
    /// FLOPs for operators of PyTorch; `null` for operators without FLOPs.
    pub flops_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
}

/// FLOPs, bytes and coverage of one stage's calls, over all measured repeats.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StageWork {
    pub flops: u64,
    pub bytes: u64,
    /// Share of the stage's time inside operators other than modules, percent.
    pub covered_pct: Option<f64>,
}

/// The operators of one pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Operators {
    /// One record per stage, path and kind, longest total first.
    pub by_path: Vec<OperatorRecord>,
    /// The same records with layer and expert indices replaced by `*`.
    pub rolled: Vec<OperatorRecord>,
    pub work: BTreeMap<String, StageWork>,
    /// Kernel time inside the calls with FLOPs, by stage and path; only of a framework, whose
    /// inner calls launch the kernels.
    pub working_ns: Option<BTreeMap<(String, String), i64>>,
    /// Products with weights of each stage whose products are all recorded by a framework.
    pub products: BTreeMap<String, ProductCalls>,
}

/// Time of an operator without enclosed operators.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExclusiveTime {
    pub ms: f64,
    /// Share of the stage's kernel time for device time, else of the stage's time, percent.
    pub share_pct: Option<f64>,
    pub on_device: bool,
}

impl OperatorRecord {
    /// An operator replayed by graphs alone, without a call on the host.
    fn replayed(stage: &str, path: &str, calls: u64) -> Self {
        let key = CallKey { stage: stage.into(), path: path.into(), op: "range".into() };
        HostTimeSum::captured(calls).record(key, None)
    }
}

impl Operators {
    /// Rolled-up leaf operators of one stage, longest first: by kernel time where kernels were
    /// joined to operators, since host time on an asynchronous device is launch time; else by host
    /// time.
    pub fn ranked(&self, stage: &str) -> Vec<(&OperatorRecord, ExclusiveTime)> {
        let leaves = || self.leaves().filter(|it| it.stage == stage);
        let on_device = leaves().any(|it| it.device.is_some());
        let time = |it: &OperatorRecord| match it.device {
            Some(device) => Some((device.exclusive_ms, device.exclusive_pct)),
            None if on_device => None,
            None => it.exclusive_ms.map(|ms| (ms, it.exclusive_pct)),
        };
        let timed = leaves().filter_map(|it| {
            time(it).map(|(ms, share_pct)| (it, ExclusiveTime { ms, share_pct, on_device }))
        });
        let mut ranked: Vec<_> = timed.collect();
        ranked.sort_by(|a, b| b.1.ms.total_cmp(&a.1.ms));
        ranked
    }

    /// Rolled-up records of leaf operators, longest total first.
    pub fn leaves(&self) -> impl Iterator<Item = &OperatorRecord> {
        self.rolled.iter().filter(|record| record.op != MODULE)
    }

    /// The dtype with the most FLOPs; `None` without any.
    pub fn main_dtype(&self) -> Option<String> {
        let mut flops: BTreeMap<&str, u64> = BTreeMap::new();
        for it in self.by_path.iter().filter(|it| it.flops > 0 && !it.dtype.is_empty()) {
            let sum = flops.entry(&it.dtype).or_default();
            *sum = sum.saturating_add(it.flops);
        }
        flops.into_iter().max_by_key(|(_, sum)| *sum).map(|(dtype, _)| dtype.to_owned())
    }

    /// Rolled-up records of enclosing modules, longest total first.
    pub fn modules(&self) -> impl Iterator<Item = &OperatorRecord> {
        self.rolled.iter().filter(|record| record.op == MODULE)
    }
}

/// Sums the measured calls of one pass.
pub fn operators(events: &Events, stages: &Stages) -> Operators {
    let calls: Vec<&OperatorCall> =
        events.calls.iter().copied().filter(|call| !call.warmup).collect();
    let timed: Vec<&OperatorCall> = calls.iter().copied().filter(|call| !call.captured).collect();
    let mut times = exclusive_times(&timed).into_iter();

    let mut paths = RolledPaths::default();
    let mut by_path: HashMap<(&str, &str, &str), HostTimeSum> = HashMap::default();
    let mut rolled: HashMap<(&str, u32, &str), HostTimeSum> = HashMap::default();
    let mut work: HashMap<&str, StageWork> = HashMap::default();
    for call in &calls {
        let time = if call.captured { None } else { times.next() };
        let (stage, op) = (call.stage.as_str(), call.op.as_str());
        by_path
            .entry((stage, &call.path, op))
            .or_default()
            .add(call, time.map(|it| (it.exclusive_ns, it.inside_path, it.exclusive_ns)));
        rolled
            .entry((stage, paths.number(&call.path), op))
            .or_default()
            .add(call, time.map(|it| (it.exclusive_ns, it.inside_rolled, it.exclusive_ns)));
        let stage = work.entry(stage).or_default();
        stage.flops += call.flops;
        stage.bytes += call.bytes;
    }
    let mut work: BTreeMap<String, StageWork> =
        work.into_iter().map(|(stage, work)| (stage.to_owned(), work)).collect();
    let stage_ns = |stage: &str| {
        events.measured(stage).map(|range| range.end_ns - range.start_ns).sum::<i64>()
    };
    for stage in STAGES {
        if let Some(work) = work.get_mut(stage) {
            let inside = || calls.iter().filter(|call| call.stage == stage && call.op != MODULE);
            // The duration of replayed calls is unknown.
            if !inside().any(|call| call.captured) {
                // Repeats of several processes may run at once.
                let mut repeats: BTreeMap<u32, Vec<Interval>> = BTreeMap::new();
                for call in inside() {
                    repeats.entry(call.repeat).or_default().push((call.start_ns, call.end_ns));
                }
                let covered: i64 = repeats.into_values().map(covered_ns).sum();
                work.covered_pct = percent(covered as f64, stage_ns(stage) as f64);
            }
        }
    }
    let total_ms = |stage: &str| stages.row(stage).map(|row| row.ms.mean * f64::from(row.ms.n));
    let key = |(stage, path, op): (&str, &str, &str)| CallKey {
        stage: stage.into(),
        path: path.into(),
        op: op.into(),
    };
    let by_path = by_path.into_iter().map(|(of, sum)| (key(of), sum)).collect();
    let rolled = rolled
        .into_iter()
        .map(|((stage, path, op), sum)| (key((stage, paths.path(path), op)), sum))
        .collect();
    let (by_path, rolled) = (records(by_path, total_ms), records(rolled, total_ms));
    Operators { by_path, rolled, work, ..Operators::default() }
}

/// The records of sums, sorted. `stage_ms` returns the time of a stage.
fn records(
    sums: BTreeMap<CallKey, HostTimeSum>,
    stage_ms: impl Fn(&str) -> Option<f64>,
) -> Vec<OperatorRecord> {
    let record = |(key, sum): (CallKey, HostTimeSum)| {
        let ms = stage_ms(&key.stage);
        sum.record(key, ms)
    };
    let mut records: Vec<_> = sums.into_iter().map(record).collect();
    sort(&mut records);
    records
}

/// Sorts by device time, then records without device time by host time, longest first.
fn sort(records: &mut [OperatorRecord]) {
    let device = |it: &OperatorRecord| it.device.map_or(-1.0, |device| device.inclusive_ms);
    let host = |it: &OperatorRecord| it.inclusive_ms.unwrap_or(-1.0);
    let order = |a: &OperatorRecord, b: &OperatorRecord| {
        device(b).total_cmp(&device(a)).then(host(b).total_cmp(&host(a)))
    };
    records.sort_by(|a, b| (a.stage == OUTSIDE).cmp(&(b.stage == OUTSIDE)).then(order(a, b)));
}

/// Attaches the kernels of the traced pass to the operators that launched them. A path with
/// operators of several kinds in one stage gets none: its range does not identify the kind.
/// `same_pass`: the records are of the traced pass.
pub fn attach(
    operators: &mut Operators,
    times: &DeviceTimes,
    (traced, same_pass): (&Events, bool),
    stages: &[StageKernels],
) {
    let work = traced_work(operators, traced, same_pass);
    let mut by_path: BTreeMap<(String, String), OperatorSums> = BTreeMap::new();
    let mut rolled: BTreeMap<(String, String), OperatorSums> = BTreeMap::new();
    for (key, time) in &times.operators {
        let (stage, path) = key;
        let (flops, bytes) = work.get(&(stage.clone(), path.clone())).copied().unwrap_or_default();
        for (sums, path) in [(&mut by_path, path.clone()), (&mut rolled, collapse(path))] {
            let sum = sums.entry((stage.clone(), path)).or_default();
            sum.time.calls += time.calls;
            sum.time.kernels += time.kernels;
            sum.time.total_ns += time.total_ns;
            sum.time.exclusive_ns += time.exclusive_ns;
            sum.working_ns += match &operators.working_ns {
                Some(working) => working.get(key).copied().unwrap_or(0),
                None => time.exclusive_ns,
            };
            sum.flops = sum.flops.saturating_add(flops);
            sum.bytes = sum.bytes.saturating_add(bytes);
        }
    }
    for (records, sums) in [(&mut operators.by_path, by_path), (&mut operators.rolled, rolled)] {
        // Without runner events, replayed operators have no host call in the stage of their
        // replay.
        if traced.calls.is_empty() {
            let known: BTreeSet<(String, String)> =
                records.iter().map(|it| (it.stage.clone(), it.path.clone())).collect();
            let replayed = sums.iter().filter(|(key, _)| {
                !key.0.is_empty() && is_measured(&key.0) && !known.contains(*key)
            });
            records.extend(
                replayed.map(|((stage, path), sum)| {
                    OperatorRecord::replayed(stage, path, sum.time.calls)
                }),
            );
        }
        let mut kinds: BTreeMap<(String, String), u32> = BTreeMap::new();
        records
            .iter()
            .for_each(|it| *kinds.entry((it.stage.clone(), it.path.clone())).or_default() += 1);
        for record in records.iter_mut() {
            let key = (record.stage.clone(), record.path.clone());
            let stage = stages.iter().find(|it| it.stage == key.0);
            let stage_ms = stage.and_then(|it| it.kernel_ms).unwrap_or(0.0);
            // Operators inside a whole-traced graph have work but no time.
            let complete = stage.is_none_or(|it| it.graph_launches == 0);
            let sum = sums.get(&key).filter(|_| kinds[&key] == 1);
            record.device = sum.map(|sum| sum.device(stage_ms, complete));
        }
        sort(records);
    }
}

/// FLOPs and bytes of the traced pass by stage and path: of its events, or of the records if those
/// are of the same pass.
fn traced_work(
    operators: &Operators,
    traced: &Events,
    same_pass: bool,
) -> BTreeMap<(String, String), (u64, u64)> {
    let mut work: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    if same_pass {
        let of = |it: &OperatorRecord| ((it.stage.clone(), it.path.clone()), (it.flops, it.bytes));
        return operators.by_path.iter().map(of).collect();
    }
    for call in traced.calls.iter().filter(|call| !call.warmup) {
        let sum = work.entry((call.stage.clone(), call.path.clone())).or_default();
        *sum = (sum.0 + call.flops, sum.1 + call.bytes);
    }
    work
}

/// Device time and work of one operator in one stage.
#[derive(Default)]
struct OperatorSums {
    time: DeviceTime,
    /// Kernel time over which rates are given.
    working_ns: i64,
    flops: u64,
    bytes: u64,
}

impl OperatorSums {
    /// Rates need `complete`: every kernel of the stage is recorded.
    fn device(&self, stage_ms: f64, complete: bool) -> OperatorDevice {
        let (own, inclusive_ms) =
            (Nanos(self.time.exclusive_ns), Nanos(self.time.total_ns).as_ms());
        let working = Nanos(self.working_ns);
        let rate = |amount: u64| {
            if amount == 0 || !complete { None } else { ratio(amount as f64, working.as_secs()) }
        };
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
