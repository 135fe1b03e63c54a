//! Device time of operators: the kernels of the traced pass that each launched.

use std::borrow::Cow;

use foldhash::{HashMap, HashSet};
use llmprof_core::domain::units::Nanos;

use super::{OperatorDevice, OperatorRecord, Operators, rolled_paths::collapse, sort};
use crate::{
    events::Events,
    kernels::{StageKernels, is_measured},
    stats::{percent, ratio},
    timeline::device_time::{DeviceTime, DeviceTimes},
};

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
    let mut by_path: HashMap<PathKey, OperatorSums> = HashMap::default();
    let mut rolled: HashMap<PathKey, OperatorSums> = HashMap::default();
    for ((stage, path), time) in &times.operators {
        let (flops, bytes) = work.get(&(stage, path)).copied().unwrap_or_default();
        let working_ns = match &operators.working_ns {
            Some(working) => working.get(&(stage.clone(), path.clone())).copied().unwrap_or(0),
            None => time.exclusive_ns,
        };
        let paths = [(&mut by_path, Cow::Borrowed(path.as_str())), (&mut rolled, collapse(path))];
        for (sums, path) in paths {
            let sum = sums.entry((stage, path)).or_default();
            sum.time.calls += time.calls;
            sum.time.kernels += time.kernels;
            sum.time.total_ns += time.total_ns;
            sum.time.exclusive_ns += time.exclusive_ns;
            sum.working_ns += working_ns;
            sum.flops = sum.flops.saturating_add(flops);
            sum.bytes = sum.bytes.saturating_add(bytes);
        }
    }
    drop(work);
    for (records, sums) in
        [(&mut operators.by_path.rows, by_path), (&mut operators.rolled.rows, rolled)]
    {
        // Without runner events, replayed operators have no host call in the stage of their
        // replay.
        if traced.calls.is_empty() {
            records.extend(replayed(records, &sums));
        }
        let mut kinds: HashMap<PathKey, u32> = HashMap::default();
        for it in records.iter() {
            *kinds.entry((&it.stage, it.path.as_str().into())).or_default() += 1;
        }
        let device = |record: &OperatorRecord| {
            let key: PathKey = (&record.stage, record.path.as_str().into());
            let stage = stages.iter().find(|it| it.stage == key.0);
            let stage_ms = stage.and_then(|it| it.kernel_ms).unwrap_or(0.0);
            // Operators inside a whole-traced graph have work but no time.
            let complete = stage.is_none_or(|it| it.graph_launches == 0);
            let sum = sums.get(&key).filter(|_| kinds[&key] == 1);
            sum.map(|sum| sum.device(stage_ms, complete))
        };
        let devices: Vec<Option<OperatorDevice>> = records.iter().map(device).collect();
        records.iter_mut().zip(devices).for_each(|(record, device)| record.device = device);
        sort(records);
    }
}

/// Stage and path of an operator.
type PathKey<'a> = (&'a str, Cow<'a, str>);

/// Records of operators that graphs alone replayed, in order.
fn replayed(
    records: &[OperatorRecord],
    sums: &HashMap<PathKey, OperatorSums>,
) -> Vec<OperatorRecord> {
    let known: HashSet<(&str, &str)> =
        records.iter().map(|it| (it.stage.as_str(), it.path.as_str())).collect();
    let is_replayed = |(stage, path): &&PathKey| {
        !stage.is_empty() && is_measured(stage) && !known.contains(&(stage, path.as_ref()))
    };
    let mut keys: Vec<&PathKey> = sums.keys().filter(is_replayed).collect();
    keys.sort_unstable();
    let record = |key: &PathKey| OperatorRecord::replayed(key.0, &key.1, sums[key].time.calls);
    keys.into_iter().map(record).collect()
}

/// FLOPs and bytes of the traced pass by stage and path: of its events, or of the records if those
/// are of the same pass.
fn traced_work<'a>(
    operators: &'a Operators,
    traced: &Events<'a>,
    same_pass: bool,
) -> HashMap<(&'a str, &'a str), (u64, u64)> {
    let mut work: HashMap<(&str, &str), (u64, u64)> = HashMap::default();
    if same_pass {
        let with_work = operators.by_path.iter().filter(|it| it.flops + it.bytes > 0);
        let of = |it: &'a OperatorRecord| ((&*it.stage, &*it.path), (it.flops, it.bytes));
        return with_work.map(of).collect();
    }
    for call in traced.calls.iter().map(|it| it.of).filter(|call| !call.warmup) {
        let sum = work.entry((&call.stage, &call.path)).or_default();
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
