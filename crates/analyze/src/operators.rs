//! Operator times of a pass: per module path, and rolled up over layers.
//!
//! Host times are of the measured repeats of the unprofiled pass; on an asynchronous device they
//! are the times of the launching calls. Calls replayed by a CUDA graph have no host time. Device
//! time is the time of the kernels that the operator launched in the traced pass.

pub mod call_kinds;
mod device;
pub mod formulas;
pub mod framework;
mod host;
mod kinds;
pub mod products;
pub mod profiled;
pub mod rolled_paths;

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::domain::units::Nanos;
use serde::{Deserialize, Serialize};

pub use self::device::attach;
use self::{
    call_kinds::{CallKey, CallKinds},
    host::{HostTimeSum, exclusive_times},
    products::ProductCalls,
};
use super::{
    events::Events,
    limited::{Limited, Summed},
    stages::{STAGES, Stages},
    stats::percent,
    timeline::activity::Busy,
};

/// Kind of a scope that only encloses other operators.
pub const MODULE: &str = "module";

/// Calls of one operator in one stage, over all measured repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OperatorRecord {
    /// Module path; `*` stands for every index if the record is rolled up over layers or experts.
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
    /// Calls replayed by a CUDA graph, which have no host time; a part of `calls`.
    #[serde(default)]
    pub captured_calls: u64,
    /// Host time of the calls, enclosed calls included; `null`, as are the next two, if a graph
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
    /// Rate over `exclusive_ms`, or over the time of the calls with work for operators of PyTorch,
    /// whose inner calls do the work; `null` for operators without FLOPs, and in captures with
    /// kernels: the host only launches the work, whose rates are in `device`.
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
    /// Launches, including enclosed operators' launches.
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
    /// work for operators of PyTorch; `null` for operators without FLOPs.
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

/// The calls of one pass, summed: [`attach`] makes records of the sums.
pub struct OperatorSums<'a> {
    /// By stage, path and kind.
    by_path: CallSums<'a>,
    /// The same with layer and expert indices replaced by `*`.
    rolled: CallSums<'a>,
    work: BTreeMap<String, StageWork>,
    /// Kernel time inside the calls with work, by stage and path; only of a framework, whose
    /// inner calls launch the kernels.
    working_ns: Option<BTreeMap<(String, String), i64>>,
    products: BTreeMap<String, ProductCalls>,
    /// As [`Operators::uncounted`].
    uncounted: Vec<String>,
    stages: &'a Stages,
}

/// Sums of calls by key, each key once.
type CallSums<'a> = Vec<(CallKey<'a>, HostTimeSum)>;

/// The operators of one pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Operators {
    /// One record per stage, path and kind, longest total first.
    pub by_path: Limited<OperatorRecord>,
    /// The same records with layer and expert indices replaced by `*`.
    pub rolled: Limited<OperatorRecord>,
    pub work: BTreeMap<String, StageWork>,
    /// Products with weights of each stage whose products are all recorded by a framework.
    pub products: BTreeMap<String, ProductCalls>,
    /// Operators of a framework with recorded shapes, whose products or attention are not counted,
    /// longest first.
    pub uncounted: Vec<String>,
}

/// Time of an operator without enclosed operators.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExclusiveTime {
    pub ms: f64,
    /// Share of the stage's kernel time for device time, else of the stage's time, percent.
    pub share_pct: Option<f64>,
    pub on_device: bool,
}

impl Operators {
    /// Rolled-up leaf operators of one stage, longest first: by kernel time if kernels were joined
    /// to operators, since host time on an asynchronous device is launch time; else by host time.
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
pub fn operators<'a>(events: &'a Events, stages: &'a Stages) -> OperatorSums<'a> {
    let mut kinds = CallKinds::default();
    let (mut by_path, mut rolled): (Vec<HostTimeSum>, Vec<HostTimeSum>) = Default::default();
    // FLOPs and bytes, by kind.
    let mut work_sums: Vec<(u64, u64)> = Vec::new();
    // Stages whose operators have no time in part.
    let mut captured: BTreeSet<&str> = BTreeSet::new();
    for call in events.calls.iter().filter(|call| !call.of.warmup) {
        let kind = kinds.of(&call);
        grown(&mut by_path, kind.number).add_call(call.of);
        grown(&mut rolled, kind.rolled).add_call(call.of);
        let (flops, bytes) = grown(&mut work_sums, kind.number);
        *flops = flops.saturating_add(call.of.flops);
        *bytes = bytes.saturating_add(call.of.bytes);
        if call.of.captured && call.of.op != MODULE {
            captured.insert(&call.of.stage);
        }
    }
    // Repeats of several processes may run at once.
    let mut covered: HashMap<(&str, u32), Busy> = HashMap::default();
    let in_order = events.calls.outer_first().inspect(|call| {
        if call.of.op != MODULE && STAGES.contains(&call.of.stage.as_str()) {
            let busy = covered.entry((&call.of.stage, call.repeat)).or_default();
            busy.add(call.start_ns, call.end_ns);
        }
    });
    exclusive_times(in_order, &mut kinds, |kind, call, time| {
        by_path[kind.number as usize].add_time(call, (time.exclusive_ns, time.inside_path));
        rolled[kind.rolled as usize].add_time(call, (time.exclusive_ns, time.inside_rolled));
    });
    let [of_path, of_rolled] = kinds.into_keys();
    let mut work: BTreeMap<&str, StageWork> = BTreeMap::new();
    for (key, (flops, bytes)) in of_path.iter().zip(work_sums) {
        let stage = work.entry(&*key.stage).or_default();
        stage.flops = stage.flops.saturating_add(flops);
        stage.bytes = stage.bytes.saturating_add(bytes);
    }
    let mut work: BTreeMap<String, StageWork> =
        work.into_iter().map(|(stage, work)| (stage.to_owned(), work)).collect();
    let stage_ns = |stage: &str| {
        events.measured(stage).map(|it| Nanos(it.end_ns) - Nanos(it.start_ns)).sum::<Nanos>()
    };
    // The duration of replayed calls is unknown.
    for stage in STAGES.into_iter().filter(|it| !captured.contains(it)) {
        if let Some(work) = work.get_mut(stage) {
            let of_stage = covered.iter().filter(|((of, _), _)| *of == stage);
            let covered: Nanos = of_stage.map(|(_, it)| Nanos(it.ns)).sum();
            work.covered_pct = percent(covered.0 as f64, stage_ns(stage).0 as f64);
        }
    }
    OperatorSums {
        by_path: of_path.into_iter().zip(by_path).collect(),
        rolled: of_rolled.into_iter().zip(rolled).collect(),
        work,
        working_ns: None,
        products: BTreeMap::new(),
        uncounted: vec![],
        stages,
    }
}

/// The element at an index, up to which a list grows.
pub fn grown<T: Default>(list: &mut Vec<T>, at: u32) -> &mut T {
    let at = at as usize;
    if list.len() <= at {
        list.resize_with(at + 1, T::default);
    }
    &mut list[at]
}

impl Summed for OperatorRecord {
    fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.captured_calls = self.captured_calls.saturating_add(other.captured_calls);
        self.inclusive_ms = added(self.inclusive_ms, other.inclusive_ms);
        self.exclusive_ms = added(self.exclusive_ms, other.exclusive_ms);
        self.flops = self.flops.saturating_add(other.flops);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.device = match (self.device, other.device) {
            (Some(sum), Some(more)) => Some(OperatorDevice {
                calls: sum.calls.saturating_add(more.calls),
                kernels: sum.kernels.saturating_add(more.kernels),
                inclusive_ms: sum.inclusive_ms + more.inclusive_ms,
                exclusive_ms: sum.exclusive_ms + more.exclusive_ms,
                ..sum
            }),
            (one, other) => one.or(other),
        };
    }
}

fn added(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}
