//! Rules on the threads that launch work: off their core while a GPU idles, or in one function; and
//! on processes that use the driver unrecorded.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::{
        digits::{self, figure},
        finding::{Finding, catalogue},
    },
    trace::{Trace, timeline::pid_of},
};

use super::{CoreTaker, GapFunction, HostCpuTables, HostStage, HostThread};
use crate::{Analysis, findings::Rule, stages::in_sentence, stats::percent};

/// Share of a stage's time on its GPUs from which a part of its idle time is stated, percent.
const MIN_PCT: f64 = 3.0;
/// Samples of a stage from which their functions are stated, and share of the first of them.
const MIN_SAMPLES: u64 = 20;
const MIN_FUNCTION_PCT: f64 = 20.0;
/// Name of the operating system's kernel among files.
const KERNEL: &str = "[kernel.kallsyms]";
/// Samples in the driver that show that a process uses it.
const MIN_DRIVER_SAMPLES: u64 = 5;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::SWITCHES_CONTRADICT_CALLS, find: switches_contradict_calls },
    Rule { id: catalogue::PROCESS_UNTRACED, find: process_untraced },
    Rule { id: catalogue::LAUNCHING_THREAD_DISPLACED, find: off_core },
    Rule { id: catalogue::LAUNCHING_THREAD_OFF_CORE, find: off_core },
    Rule { id: catalogue::GAPS_IN_FUNCTION, find: gaps_in_function },
];

fn switches_contradict_calls(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let Some(host) = &analysis.host_cpu else { return vec![] };
    let Some(pct) = host.calls_on_core_pct.filter(|pct| *pct < super::PROVEN_PCT) else {
        return vec![];
    };
    let message = format!(
        "Only {pct:.1} % of the calls of CUDA start while their thread is on a core by the \
         recorded switches of threads, so the switches were recorded at other times."
    );
    let found = Finding::new(catalogue::SWITCHES_CONTRADICT_CALLS, message);
    vec![found.with("switches without a counterpart", host.unpaired_switches)]
}

/// Processes that were sampled in the driver, without a recorded call or kernel.
fn process_untraced(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let recorded = analysis.host_cpu.as_ref().filter(|it| it.is_system_wide == Some(true));
    let mut processes: BTreeMap<u32, Vec<&HostThread>> = BTreeMap::new();
    for thread in recorded.iter().flat_map(|it| &it.threads) {
        processes.entry(thread.process).or_default().push(thread);
    }
    let kinds = trace.timeline.iter().flat_map(|it| it.kernels.kinds());
    let with_kernels: BTreeSet<u32> = kinds.map(|it| pid_of(it.global_pid)).collect();
    let finding = |(process, threads): (u32, Vec<&HostThread>)| {
        let samples: u64 = threads.iter().map(|it| it.driver_samples).sum();
        let is_traced = threads.iter().any(|it| it.calls_cuda) || with_kernels.contains(&process);
        if samples < MIN_DRIVER_SAMPLES || is_traced {
            return None;
        }
        let name = named(threads[0].process_name.as_deref(), process);
        let message = format!(
            "NVIDIA's driver was sampled {samples} times in {name}, and no call of CUDA and no \
             kernel of it is recorded: its work is not in this report."
        );
        Some(Finding::new(catalogue::PROCESS_UNTRACED, message).with("samples in libcuda", samples))
    };
    processes.into_iter().filter_map(finding).collect()
}

/// Stages whose launching thread was off its core while a GPU waited for it.
fn off_core(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(host) = &analysis.host_cpu else { return vec![] };
    let has_os_calls = trace.timeline.as_ref().is_some_and(|it| !it.os_calls.is_empty());
    let mut found = Vec::new();
    for it in &host.stages {
        let (Some(off), Some(taken), Some(window)) =
            (it.off_core_ms, it.taken_ms, window_ms(analysis, &it.stage))
        else {
            continue;
        };
        let is_large = |ms: f64| percent(ms, window).is_some_and(|pct| pct >= MIN_PCT);
        match longest_on_core(host, &it.stage) {
            Some(by) if is_large(taken) => found.push(displaced(it, &by, (off, taken))),
            _ if is_large(off) => found.push(off_its_core(it, (host, has_os_calls), (off, taken))),
            _ => {}
        }
    }
    found
}

/// The process whose threads were longest on the core of the launching thread, and their time, ms.
fn longest_on_core(host: &HostCpuTables, stage: &str) -> Option<(String, f64)> {
    let mut processes: BTreeMap<u32, (&CoreTaker, f64)> = BTreeMap::new();
    for it in host.takers.iter().filter(|it| it.stage == stage) {
        processes.entry(it.process).or_insert((it, 0.0)).1 += it.total_ms;
    }
    let (first, ms) = processes.into_values().max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some((named(first.process_name.as_deref(), first.process), ms))
}

/// The start of both messages.
fn off_core_of(stage: &HostStage, off: f64) -> String {
    format!(
        "A GPU idled for {} ms in {} because nothing was launched: for {} ms of that, the \
         launching thread was on no core",
        figure(stage.idle_host_ms),
        in_sentence(&stage.stage),
        figure(off),
    )
}

fn displaced(stage: &HostStage, (by, by_ms): &(String, f64), (off, taken): (f64, f64)) -> Finding {
    let message = format!(
        "{}, and for {} ms others ran on the core that it had left, longest {by} with {} ms.",
        off_core_of(stage, off),
        figure(taken),
        figure(*by_ms),
    );
    about(Finding::new(catalogue::LAUNCHING_THREAD_DISPLACED, message), stage, (off, taken))
}

/// The same with its evidence.
fn about(finding: Finding, stage: &HostStage, (off, taken): (f64, f64)) -> Finding {
    finding
        .with("stage", &stage.stage)
        .with("idle for the host, ms", format!("{:.3}", stage.idle_host_ms))
        .with("thread on no core, ms", format!("{off:.3}"))
        .with("others on its core, ms", format!("{taken:.3}"))
}

/// The core was empty, or the threads on it were not recorded.
fn off_its_core(
    stage: &HostStage,
    (host, has_os_calls): (&HostCpuTables, bool),
    (off, taken): (f64, f64),
) -> Finding {
    let others = match host.is_system_wide {
        Some(true) => {
            "no other thread was recorded on the core that it had left: it waited, as \
                       for a lock, a timer or a file"
        }
        Some(false) => {
            "no other thread of its program was recorded on the core that it had left, \
                        and other programs were not recorded"
        }
        None => {
            "no other thread was recorded on the core that it had left; the capture does not \
                 show whether other programs were recorded"
        }
    };
    let advice = match host.is_system_wide {
        Some(true) if has_os_calls => {
            "Look up the call that it waits in: the gap ledger names gaps by recorded calls of the \
             operating system."
        }
        Some(true) => {
            "Look up what it waits for: with osrt in profiling.nsys.trace, nsys records \
                       the calls of the operating system."
        }
        _ => {
            "Record the switches of all processes (profiling.nsys.cpuctxsw system-wide): they \
              show whether it waited or others had its core."
        }
    };
    let meanwhile = match taken > 0.0 {
        true => format!("for {} ms of that", figure(off - taken)),
        false => "meanwhile".to_owned(),
    };
    let message = format!("{}; {meanwhile} {others}.", off_core_of(stage, off));
    let finding = Finding::new(catalogue::LAUNCHING_THREAD_OFF_CORE, message).advise(advice);
    let finding = about(finding, stage, (off, taken));
    match host.unpaired_switches {
        0 => finding,
        lost => finding.with("switches without a counterpart", lost),
    }
}

/// Stages in whose gaps most samples are in one function.
fn gaps_in_function(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let Some(host) = &analysis.host_cpu else { return vec![] };
    let finding = |it: &HostStage| {
        let idle_pct = percent(it.idle_host_ms, window_ms(analysis, &it.stage)?)?;
        let is_large = |by: &&GapFunction| {
            by.stage == it.stage && by.share_pct.is_some_and(|pct| pct >= MIN_FUNCTION_PCT)
        };
        let mut large = host.functions.iter().filter(is_large);
        let first = large.clone().find(|it| it.function.is_some()).or_else(|| large.next())?;
        let share = first.share_pct?;
        let is_stated = it.samples >= MIN_SAMPLES && idle_pct >= MIN_PCT;
        is_stated.then(|| in_function(it, first, share))
    };
    host.stages.iter().filter_map(finding).collect()
}

fn in_function(stage: &HostStage, first: &GapFunction, share: f64) -> Finding {
    let function = match (&first.function, first.module.as_str()) {
        (None, KERNEL) => "the kernel of the operating system".into(),
        (Some(name), KERNEL) => format!("{name} of the kernel of the operating system"),
        (Some(name), file) => format!("{name} of {file}"),
        (None, file) => format!("functions of {file} without symbols"),
    };
    let message = format!(
        "While a GPU idled in {} because nothing was launched, the launching thread was in \
         {function} in {} of {} samples ({share:.1} %).",
        in_sentence(&stage.stage),
        digits::count(first.samples),
        digits::count(stage.samples),
    );
    Finding::new(catalogue::GAPS_IN_FUNCTION, message)
        .with("stage", &stage.stage)
        .with("idle for the host, ms", format!("{:.3}", stage.idle_host_ms))
        .with("samples", stage.samples)
}

/// Time of the windows of a stage on its GPUs.
fn window_ms(analysis: &Analysis, stage: &str) -> Option<f64> {
    analysis.stage_gpu.totals.iter().find(|it| it.stage == stage)?.window_ms
}

/// A process with its number.
fn named(name: Option<&str>, process: u32) -> String {
    match (name, process) {
        (_, 0) => "a process that nsys could not identify".into(),
        (Some(name), process) => format!("{name} (process {process})"),
        (None, process) => format!("process {process}"),
    }
}
