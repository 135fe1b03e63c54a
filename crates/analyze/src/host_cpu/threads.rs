//! Threads on the cores of the host.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use llmprof_core::{
    domain::units::Nanos,
    trace::{
        host_cpu::{HostCpu, SampledFunction},
        timeline::{Timeline, pid_of, process_of, tid_of},
    },
};

use super::{HostThread, names::Names};
use crate::stats::percent;

/// File of NVIDIA's driver in a process that uses CUDA.
const DRIVER: &str = "libcuda.so";

#[derive(Default)]
struct ThreadSums {
    ns: i64,
    runs: u64,
    cores: BTreeSet<u32>,
    samples: u64,
    functions: BTreeMap<SampledFunction, u64>,
}

/// One row per thread, longest on cores first; without switches, most samples first.
pub fn threads(host: &HostCpu, trace: &Timeline) -> Vec<HostThread> {
    let mut all: BTreeMap<i64, ThreadSums> = BTreeMap::new();
    for run in host.runs() {
        let sums = all.entry(run.global_tid).or_default();
        sums.ns = sums.ns.saturating_add(run.end_ns - run.start_ns);
        sums.runs += 1;
        sums.cores.insert(run.core);
    }
    for it in host.samples() {
        let sums = all.entry(it.global_tid).or_default();
        sums.samples += 1;
        if let Some(function) = it.function {
            *sums.functions.entry(function).or_default() += 1;
        }
    }
    let callers = trace.cuda_calls.threads();
    let names = Names::of(trace);
    let has_switches = host.has_switches();
    let row = |(thread, sums): (i64, ThreadSums)| {
        let of_driver = |it: &SampledFunction| names.module(*it).starts_with(DRIVER);
        let most = sums.functions.iter().max_by_key(|(at, count)| (**count, Reverse(**at)));
        HostThread {
            process: pid_of(thread),
            process_name: names.process(process_of(thread)),
            thread: tid_of(thread),
            thread_name: names.thread(thread),
            calls_cuda: callers.contains(&thread),
            on_core_ms: has_switches.then(|| Nanos(sums.ns).as_ms()),
            switches: has_switches.then_some(sums.runs),
            cores: has_switches.then_some(sums.cores.len() as u64),
            samples: sums.samples,
            driver_samples: sums.functions.iter().filter(|it| of_driver(it.0)).map(|it| it.1).sum(),
            function: most.and_then(|it| names.function(*it.0)),
            module: most.map(|it| names.module(*it.0)),
            function_pct: most.and_then(|it| percent(*it.1 as f64, sums.samples as f64)),
        }
    };
    let mut rows: Vec<HostThread> = all.into_iter().map(row).collect();
    rows.sort_by(|a, b| {
        let time = |it: &HostThread| it.on_core_ms.unwrap_or_default();
        time(b).total_cmp(&time(a)).then(b.samples.cmp(&a.samples))
    });
    rows
}
