//! Outliers of sketches: one call, kernel or wait planted in one of twenty steps.

use llmprof_core::trace::{
    Trace,
    timeline::{ApiCall, Timeline, tid_of},
};

use super::*;
use crate::{analyze, kernels::tests::capture, timeline::gpu::step_idle::LongestGap};

const US: i64 = 1_000;
const MS: i64 = 1_000_000;
/// Another process.
const OTHER: i64 = 8 << 24;
/// Correlation of calls with the name under test.
const PLANTED: i64 = 9_000;

/// Twenty decode steps of 4 ms, each with a call of this name of 0.2 ms before its launch; the call
/// in the eleventh takes 36 ms longer.
fn with_call(name: &str) -> OutlierStep {
    let (mut lines, mut at) = (Vec::new(), 0);
    for id in 1..=20 {
        let longer = if id == 11 { 36 * MS } else { 0 };
        let call = (at + 300 * US, at + 500 * US + longer);
        let (launch, to) = (at + 800 * US + longer, at + 4 * MS + longer);
        lines.push(format!("range 1 decode_step {at}..{to}"));
        lines.push(format!("call 1 {PLANTED} {}..{}", call.0, call.1));
        lines.push(format!("call 1 {id} {launch}..{}", launch + 5 * US));
        lines.push(format!("kernel {id} k {}..{} 7", launch + 10 * US, to - 10 * US));
        at = to;
    }
    let trace = named(&format!("range 1 decode_all 0..{at}\n{}", lines.join("\n")), name);
    outliers(trace).remove(0)
}

/// A sketch whose planted calls have this name, and whose other calls launch kernels.
fn named(sketch: &str, name: &str) -> Timeline {
    let mut trace = capture(sketch);
    let first = trace.strings.len() as u32;
    trace.strings.extend(["cudaLaunchKernel".to_owned(), name.to_owned()]);
    let named =
        |it: ApiCall| ApiCall { name: first + u32::from(it.correlation_id >= PLANTED), ..it };
    trace.cuda_calls = trace.cuda_calls.iter().map(named).collect();
    trace
}

/// Moves the second thread of a sketch, with its kernels, to another process on another device.
fn in_two_processes(mut trace: Timeline) -> Timeline {
    let moved = |tid: i64| if tid_of(tid) == 2 { OTHER | 2 } else { tid };
    let of_second = trace.cuda_calls.iter().filter(|it| tid_of(it.global_tid) == 2);
    let ids: BTreeSet<i64> = of_second.map(|it| it.correlation_id).collect();
    trace.ranges.iter_mut().for_each(|it| it.global_tid = moved(it.global_tid));
    let calls = trace.cuda_calls.iter();
    trace.cuda_calls = calls.map(|it| ApiCall { global_tid: moved(it.global_tid), ..it }).collect();
    trace.kernels = trace.kernels.map(|_, it| {
        if ids.contains(&it.correlation_id) {
            (it.global_pid, it.device) = (OTHER, 1);
        }
    });
    trace
}

fn outliers(trace: Timeline) -> Vec<OutlierStep> {
    let found = analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
    found.step_times.into_iter().find(|it| it.stage == "decode_all").unwrap().longest
}

#[test]
fn a_call_of_each_family_names_the_step_that_it_delays() {
    let families: [(LedgerCause, &[&str]); 3] = [
        (
            LedgerCause::GapSync,
            &[
                "cudaStreamSynchronize",
                "cudaDeviceSynchronize",
                "cudaEventSynchronize",
                "cuCtxSynchronize",
                "hipEventSynchronize",
            ],
        ),
        (
            LedgerCause::GapCopy,
            &["cudaMemcpy", "cudaMemcpyAsync", "hipMemcpyWithStream", "cuMemcpyDtoH_v2"],
        ),
        (
            LedgerCause::GapLongCall,
            &["cudaMalloc", "cudaFree", "cuMemMap", "cudaGraphInstantiate", "cudaGraphExecUpdate"],
        ),
    ];
    for (cause, names) in families {
        for name in names {
            let it = with_call(name);
            assert_eq!((it.step, it.cause), (11, Some(cause)), "{name}: {it:?}");
            let call = it.host_call.as_deref();
            assert!(call.is_some_and(|call| name.starts_with(call)), "{name}: {call:?}");
            assert!((it.host_call_ms.unwrap() - 36.2).abs() < 0.1, "{name}: {it:?}");
            assert_eq!(it.usual_call_ms, Some(0.2), "{name}");
            let idle = it.idle.iter().find(|it| it.cause == cause).unwrap();
            assert!(idle.ms >= 36.0, "{name}: {idle:?}");
        }
    }
}

#[test]
fn a_call_of_any_name_is_found_in_the_longest_gap_of_its_thread() {
    for name in ["cuXyzUnknown", "cudaLaunchKernel", "hipModuleLaunchKernel", "cudaGraphLaunch"] {
        let sketch = format!("call 1 {PLANTED} 100..900\ncall 2 {PLANTED} 0..1000");
        let trace = named(&sketch, name);
        let thread = trace.cuda_calls.iter().find(|it| tid_of(it.global_tid) == 1).unwrap();
        let gap = |span| Some(LongestGap { span, thread: Some(thread.global_tid) });
        let found = in_gaps(&trace, &[gap((0, 1_000)), gap((0, 2_000)), None]);
        let call = CallInGap { name: name.into(), ns: 800 };
        assert_eq!(found, [Some(call), None, None], "{name}");
    }
}

#[test]
fn a_step_is_not_delayed_by_the_gaps_of_another_process() {
    // Two processes with steps of 1 ms at the same times, the last of 9 ms: the kernels of one work
    // longer, and the host of the other is in a range until its launch.
    let mut lines = Vec::new();
    for (tid, is_idle) in [(1, false), (2, true)] {
        let mut at = 0;
        lines.push(format!("range {tid} decode_all 0..{}", 12 * MS));
        for (number, ms) in [1, 1, 1, 9].into_iter().enumerate() {
            let (id, to) = (100 * tid + number as i64, at + ms * MS);
            let launch = if is_idle { to - 500 * US } else { at + US };
            lines.push(format!("range {tid} decode_step {at}..{to}"));
            if is_idle {
                lines.push(format!("range {tid} tune {}..{}", at + US, launch - US));
            }
            lines.push(format!("call {tid} {id} {launch}..{}", launch + 5 * US));
            lines.push(format!("kernel {id} k{tid} {}..{} 7", launch + 10 * US, to - 10 * US));
            at = to;
        }
    }
    let found = outliers(in_two_processes(named(&lines.join("\n"), "")));
    let mut named: Vec<_> =
        found.iter().map(|it| (it.host_call.as_deref(), it.longest_work.as_deref())).collect();
    named.sort_unstable();
    assert_eq!(named, [(None, Some("k1")), (Some("the range tune"), None)]);
}

#[test]
fn a_step_that_launches_kernels_instead_of_the_graph_has_their_number() {
    // Five steps of 1 ms with a graph, and one of 9 ms with 40 kernels.
    let (mut lines, mut at) = (Vec::new(), 0);
    for step in 0..6 {
        let (count, to) = if step == 3 { (40, at + 9 * MS) } else { (1, at + MS) };
        lines.push(format!("range 1 decode_step {at}..{to}"));
        for kernel in 0..count {
            let id = if step == 3 { 100 + kernel } else { PLANTED + step };
            let launch = at + 200 * US * (kernel + 1);
            lines.push(format!("call 1 {id} {launch}..{}", launch + 5 * US));
            lines.push(format!("kernel {id} k {}..{} 7", launch + 10 * US, launch + 60 * US));
        }
        at = to;
    }
    let sketch = format!("range 1 decode_all 0..{at}\n{}", lines.join("\n"));
    let found = outliers(named(&sketch, "cudaGraphLaunch"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].step, found[0].single_launches), (4, Some(40)));
    assert_eq!(outliers(named(&sketch, "cudaLaunchKernel"))[0].single_launches, None);
}

#[test]
fn the_usual_call_is_of_the_steps_own_process() {
    // Steps of 4 ms in two processes, whose calls take 0.2 and 1 ms; the eleventh of the first is
    // longer by its call.
    let mut lines = Vec::new();
    for (tid, call_us) in [(1, 200), (2, 1_000)] {
        let mut at = 0;
        for number in 0..20 {
            let longer = if (tid, number) == (1, 10) { 36 * MS } else { 0 };
            let call = (at + 300 * US, at + (300 + call_us) * US + longer);
            let (launch, to) = (call.1 + 300 * US, at + 4 * MS + longer);
            let id = 100 * tid + number;
            lines.push(format!("range {tid} decode_step {at}..{to}"));
            lines.push(format!("call {tid} {PLANTED} {}..{}", call.0, call.1));
            lines.push(format!("call {tid} {id} {launch}..{}", launch + 5 * US));
            lines.push(format!("kernel {id} k{tid} {}..{} 7", launch + 10 * US, to - 10 * US));
            at = to;
        }
        lines.push(format!("range {tid} decode_all 0..{at}"));
    }
    let trace = named(&lines.join("\n"), "cudaStreamSynchronize");
    let found = outliers(in_two_processes(trace));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].host_call.as_deref(), Some("cudaStreamSynchronize"));
    assert_eq!(found[0].usual_call_ms, Some(0.2));
}

#[test]
fn single_launches_are_compared_with_steps_of_the_same_process() {
    // The first process replays a graph in five steps and launches 40 kernels in the fourth. The
    // second replays none in its 30 steps of one kernel.
    let mut lines = Vec::new();
    for (tid, steps) in [(1, 6), (2, 30)] {
        let mut at = 0;
        for step in 0..steps {
            let is_single = (tid, step) == (1, 3);
            let (count, to) = if is_single { (40, at + 9 * MS) } else { (1, at + MS) };
            lines.push(format!("range {tid} decode_step {at}..{to}"));
            for kernel in 0..count {
                let id = match (tid, is_single) {
                    (1, true) => 100 + kernel,
                    (1, false) => PLANTED + step,
                    _ => 200 + step,
                };
                let launch = at + 200 * US * (kernel + 1);
                lines.push(format!("call {tid} {id} {launch}..{}", launch + 5 * US));
                lines.push(format!("kernel {id} k {}..{} 7", launch + 10 * US, launch + 60 * US));
            }
            at = to;
        }
        lines.push(format!("range {tid} decode_all 0..{at}"));
    }
    let found = outliers(in_two_processes(named(&lines.join("\n"), "cudaGraphLaunch")));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].single_launches, Some(40));
}

#[test]
fn a_step_in_which_a_graph_is_captured_has_the_capture() {
    // Six steps of 1 ms with a kernel; in the fourth, the host captures a graph for some time.
    let captured = |capture_ms: i64, rest_ms: i64| {
        let (mut lines, mut at, mut names) = (Vec::new(), 0, vec![]);
        for step in 0..6 {
            let more = if step == 3 { (capture_ms + rest_ms) * MS } else { 0 };
            let (launch, to) = (at + 200 * US + more, at + MS + more);
            lines.push(format!("range 1 decode_step {at}..{to}"));
            if step == 3 {
                let (from, end) = (at + 100 * US, at + 100 * US + capture_ms * MS);
                let middle = from / 2 + end / 2;
                for (start, end, name) in [
                    (from, from + US, "cudaStreamBeginCapture_v10000"),
                    (from + 2 * US, from + 3 * US, "cudaLaunchKernel_v7000"),
                    (middle, middle + US, "cudaStreamEndCapture_v10000"),
                    (middle + US, end, "cudaGraphInstantiate_v12000"),
                ] {
                    lines.push(format!("call 1 {} {start}..{end}", PLANTED + names.len() as i64));
                    names.push(name);
                }
            }
            let id = step + 1;
            lines.push(format!("call 1 {id} {launch}..{}", launch + 5 * US));
            lines.push(format!("kernel {id} k {}..{} 7", launch + 10 * US, to - 10 * US));
            at = to;
        }
        let mut trace = named(&format!("range 1 decode_all 0..{at}\n{}", lines.join("\n")), "");
        let first = trace.strings.len() as u32;
        trace.strings.extend(names.into_iter().map(str::to_owned));
        let renamed = |it: ApiCall| match it.correlation_id {
            id if id >= PLANTED => ApiCall { name: first + (id - PLANTED) as u32, ..it },
            _ => it,
        };
        trace.cuda_calls = trace.cuda_calls.iter().map(renamed).collect();
        let found = outliers(trace);
        assert_eq!((found.len(), found[0].step), (1, 4), "{found:?}");
        (found[0].captures, found[0].capture_ms.map(f64::round))
    };
    assert_eq!(captured(20, 0), (Some(1), Some(20.0)));
    assert_eq!(captured(20, 15), (Some(1), Some(20.0)));
    assert_eq!(captured(5, 15), (None, None), "most of the delay lies outside the capture");
}

#[test]
fn a_call_names_only_a_wait_of_the_gpu_for_the_host() {
    for (reason, is_named) in [
        (GapReason::LongCall, true),
        (GapReason::Host, true),
        (GapReason::Launch, true),
        (GapReason::GraphLaunch, true),
        (GapReason::Sync, true),
        (GapReason::Copy, true),
        (GapReason::Profiler, false),
        (GapReason::InGraph, false),
        (GapReason::Queued, false),
        (GapReason::Unrecorded, false),
        (GapReason::Wait, false),
        (GapReason::Unknown, false),
    ] {
        let mut it = OutlierStep { ms: 40.0, ..OutlierStep::default() };
        let reasons = BTreeMap::from([(reason, 36 * MS)]);
        let idle = StepIdle { reasons, ..StepIdle::default() };
        let call = CallInGap { name: "cudaStreamSynchronize".into(), ns: 35 * MS };
        add_idle(&mut it, (&idle, Some(call)), (19, 4.0));
        assert_eq!(it.cause, Some(LedgerCause::of_gap(reason)));
        assert_eq!(it.host_call.is_some(), is_named, "{reason:?}: {it:?}");
    }
}

#[test]
fn the_usual_work_is_of_the_steps_own_process() {
    // Steps of two processes at the same times, each of two kernels of one name. The kernels take
    // half of the step, and almost all of the eleventh.
    let mut lines = Vec::new();
    for (tid, usual_ms) in [(1, 4), (2, 8)] {
        let mut at = 0;
        for number in 0..20 {
            let ms = if number == 10 { 5 * usual_ms } else { usual_ms };
            let (id, to) = (100 * tid + 2 * number, at + ms * MS);
            let work = MS * if number == 10 { ms - 1 } else { ms / 2 };
            let (from, middle) = (at + 100 * US, at + 100 * US + work / 2);
            lines.push(format!("range {tid} decode_step {at}..{to}"));
            for (id, from, to) in [(id, from, middle), (id + 1, middle, from + work)] {
                lines.push(format!("call {tid} {id} {}..{}", at + US + id, at + US + id + 1));
                lines.push(format!("kernel {id} gemm {from}..{to} 7"));
            }
            at = to;
        }
        lines.push(format!("range {tid} decode_all 0..{at}"));
    }
    let found = outliers(in_two_processes(named(&lines.join("\n"), "")));
    let works: Vec<_> = found
        .iter()
        .map(|it| (it.ms, it.longest_work.as_deref(), it.longest_work_ms, it.usual_work_ms))
        .collect();
    let gemm = Some("gemm");
    assert_eq!(works, [(40.0, gemm, Some(39.0), Some(4.0)), (20.0, gemm, Some(19.0), Some(2.0))]);
}
