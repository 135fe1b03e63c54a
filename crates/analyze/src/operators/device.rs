//! Device time of operators: the kernels of the traced pass that each launched.

use std::borrow::Cow;

use foldhash::{HashMap, HashSet};
use llmprof_core::domain::units::Nanos;

use super::{
    CallSums, OperatorDevice, OperatorRecord, OperatorSums, Operators, call_kinds::CallKey, grown,
    host::HostTimeSum, rolled_paths::collapse,
};
use crate::{
    events::Events,
    kernels::{OUTSIDE, StageKernels, is_measured},
    limited::{Limited, sort_kept},
    stages::Stages,
    stats::{percent, ratio},
    timeline::device_time::{DeviceTime, DeviceTimes},
};

/// The records of sums, with the kernels of the traced pass that the operators launched. A path
/// with operators of several kinds in one stage gets none: its range does not identify the kind.
/// `same_pass`: the sums are of the traced pass.
pub fn attach(
    sums: OperatorSums,
    times: &DeviceTimes,
    (traced, same_pass): (&Events, bool),
    stages: &[StageKernels],
) -> Operators {
    let OperatorSums { by_path, rolled, work, working_ns, products, uncounted, stages: timings } =
        sums;
    let traced_work = traced_work(&by_path, traced, same_pass);
    let working_ns = |key: &(String, String), time: &DeviceTime| match &working_ns {
        Some(working) => working.get(key).copied().unwrap_or(0),
        None => time.exclusive_ns,
    };
    // By path, or by rolled-up path.
    let device_sums = |path_of: fn(&str) -> Cow<str>| {
        let mut sums = DeviceSums::default();
        for (key @ (stage, path), time) in &times.operators {
            let next = sums.numbers.len() as u32;
            let number = *sums.numbers.entry((stage, path_of(path))).or_insert(next);
            let sum = grown(&mut sums.sums, number);
            sum.add(time, working_ns(key, time), traced_work.get(&(&**stage, &**path)));
        }
        sums
    };
    let has_calls = !traced.calls.is_empty();
    let list = |calls, sums| records(calls, (&sums, stages), timings, has_calls);
    let rolled = list(rolled, device_sums(collapse));
    let own = device_sums(|path| path.into());
    drop(traced_work);
    Operators { by_path: list(by_path, own), rolled, work, products, uncounted }
}

#[derive(Default)]
struct DeviceSums<'a> {
    /// By stage and path of an operator.
    numbers: HashMap<(&'a str, Cow<'a, str>), u32>,
    sums: Vec<DeviceSum>,
}

/// One record per key, longest first: by device time, then records without device time by host
/// time. Records are made one at a time, so that those beyond the limit of a table take no memory.
fn records<'a>(
    mut calls: CallSums<'a>,
    (devices, stages): (&'a DeviceSums<'a>, &[StageKernels]),
    timings: &Stages,
    has_calls: bool,
) -> Limited<OperatorRecord> {
    // Without runner events, replayed operators have no host call in the stage of their replay.
    if !has_calls {
        let replayed = replayed(&calls, devices);
        calls.extend(replayed);
    }
    // Records of equal times are in the order of their keys.
    calls.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let is_same = |a: &CallKey, b: &CallKey| (&a.stage, &a.path) == (&b.stage, &b.path);
    let number = |at: usize| {
        let key = &calls[at].0;
        let before = at.checked_sub(1).and_then(|before| calls.get(before));
        let has_kinds = before.into_iter().chain(calls.get(at + 1)).any(|it| is_same(&it.0, key));
        let number = devices.numbers.get(&(&*key.stage, Cow::from(&*key.path))).copied();
        number.filter(|_| !has_kinds)
    };
    let numbers: Vec<Option<u32>> = (0..calls.len()).map(number).collect();
    let device = |at: usize| numbers[at].map(|number| &devices.sums[number as usize]);
    let place = |(at, (key, sum)): (usize, &(CallKey, HostTimeSum))| {
        let device_ms = device(at).map_or(-1.0, DeviceSum::inclusive_ms);
        let host_ms = sum.inclusive_ms(&key.stage).unwrap_or(-1.0);
        (key.stage == OUTSIDE, device_ms, host_ms, at)
    };
    let mut order: Vec<_> = calls.iter().enumerate().map(place).collect();
    sort_kept(&mut order, |a, b| {
        let longer = || b.1.total_cmp(&a.1).then(b.2.total_cmp(&a.2));
        a.0.cmp(&b.0).then_with(longer).then(a.3.cmp(&b.3))
    });
    Limited::of(order.into_iter().map(|(.., at)| {
        let empty = (CallKey::of("", "", ""), HostTimeSum::default());
        let (key, sum) = std::mem::replace(&mut calls[at], empty);
        let kernels = stages.iter().find(|it| it.stage == key.stage);
        let ms = timings.total_ms(&key.stage);
        let device = device(at).map(|it| it.device(kernels));
        let mut record = OperatorRecord { device, ..sum.record(key, ms) };
        // On a device that the host does not wait for, host time is the time of launches.
        if !stages.is_empty() {
            (record.flops_per_s, record.bytes_per_s) = (None, None);
        }
        record
    }))
}

/// Sums of operators that graphs alone replayed.
fn replayed<'a>(calls: &CallSums, devices: &'a DeviceSums) -> CallSums<'a> {
    let known: HashSet<(&str, &str)> =
        calls.iter().map(|(key, _)| (&*key.stage, &*key.path)).collect();
    let is_replayed = |stage: &str, path: &str| {
        !stage.is_empty() && is_measured(stage) && !known.contains(&(stage, path))
    };
    let replayed = devices.numbers.iter().filter(|((stage, path), _)| is_replayed(stage, path));
    let sum = |((stage, path), number): (&'a (&'a str, Cow<'a, str>), &u32)| {
        let calls = devices.sums[*number as usize].time.calls;
        (CallKey::of(stage, path, "range"), HostTimeSum::captured(calls))
    };
    replayed.map(sum).collect()
}

/// FLOPs and bytes of the traced pass by stage and path: of its events, or of the sums if those
/// are of the same pass.
fn traced_work<'a>(
    sums: &'a CallSums,
    traced: &Events<'a>,
    same_pass: bool,
) -> HashMap<(&'a str, &'a str), (u64, u64)> {
    let mut work: HashMap<(&str, &str), (u64, u64)> = HashMap::default();
    if same_pass {
        let with_work = sums.iter().filter(|(_, sum)| sum.flops > 0 || sum.bytes > 0);
        let of = |(key, sum): &'a (CallKey, HostTimeSum)| {
            ((&*key.stage, &*key.path), (sum.flops, sum.bytes))
        };
        return with_work.map(of).collect();
    }
    for call in traced.calls.iter().map(|it| it.of).filter(|call| !call.warmup) {
        let sum = work.entry((&call.stage, &call.path)).or_default();
        *sum = (sum.0.saturating_add(call.flops), sum.1.saturating_add(call.bytes));
    }
    work
}

/// Device time and work of one operator in one stage.
#[derive(Default)]
struct DeviceSum {
    time: DeviceTime,
    /// Kernel time over which rates are given.
    working_ns: i64,
    flops: u64,
    bytes: u64,
}

impl DeviceSum {
    fn add(&mut self, time: &DeviceTime, working_ns: i64, work: Option<&(u64, u64)>) {
        self.time.calls += time.calls;
        self.time.kernels += time.kernels;
        self.time.total_ns += time.total_ns;
        self.time.exclusive_ns += time.exclusive_ns;
        self.working_ns += working_ns;
        let (flops, bytes) = work.copied().unwrap_or_default();
        self.flops = self.flops.saturating_add(flops);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn inclusive_ms(&self) -> f64 {
        Nanos(self.time.total_ns).as_ms()
    }

    /// `stage`: the kernels of its stage.
    fn device(&self, stage: Option<&StageKernels>) -> OperatorDevice {
        let stage_ms = stage.and_then(|it| it.kernel_ms).unwrap_or(0.0);
        // Operators inside a whole-traced graph have work but no time.
        let is_complete = stage.is_none_or(|it| it.graph_launches == 0);
        let (own, inclusive_ms) = (Nanos(self.time.exclusive_ns), self.inclusive_ms());
        let working = Nanos(self.working_ns);
        let rate = |amount: u64| {
            if amount == 0 || !is_complete { None } else { ratio(amount as f64, working.as_secs()) }
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
