//! Kernels on sketches of captures, and the sketches shared with other tests.

use std::{num::ParseIntError, str::FromStr};

use llmprof_core::trace::{
    event::STAGE_DOMAIN,
    kernel::Kernel,
    range::{self, Range},
    timeline::{ApiCall, CopyKind, GraphLaunch, MemoryOp, Timeline},
};

use super::*;

const PROCESS: i64 = 7 << 24;

/// Builds a capture from lines such as `range T prefill 0..10`, `call T 1 2..3` (correlation),
/// `kernel 1 gemm 4..9 stream 7`, `graph 1 ID 4..9 stream`, `copy 1 BYTES 4..9`, `fill 1 BYTES
/// 4..9`.
pub(crate) fn capture(sketch: &str) -> Timeline {
    let mut trace = Timeline::default();
    for line in sketch.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !words.is_empty() {
            add(&mut trace, &words);
        }
    }
    range::sort(&mut trace.ranges);
    trace
}

/// Lines of a range with one launch: start and end of the range, its call and its kernel.
pub(crate) fn launching(name: &str, id: i64, times: [(i64, i64); 3]) -> String {
    let [range, call, kernel] = times.map(|(from, to)| format!("{from}..{to}"));
    format!("range 1 {name} {range}\ncall 1 {id} {call}\nkernel {id} k {kernel} 7")
}

fn number<T: FromStr<Err = ParseIntError>>(text: &str) -> T {
    text.parse().unwrap()
}

/// Adds one line of a sketch, given as words.
fn add(trace: &mut Timeline, words: &[&str]) {
    let (start, end) = words[3].split_once("..").unwrap();
    let (start_ns, end_ns) = (number(start), number(end));
    let thread = |text: &str| PROCESS | number::<i64>(text);
    match *words {
        [kind @ ("range" | "cross"), tid, name, _] => trace.ranges.push(Range::new(
            (STAGE_DOMAIN, name),
            (start_ns, Some(end_ns)),
            (thread(tid), kind == "range"),
        )),
        ["call", tid, correlation, _] => trace.cuda_calls.push(ApiCall {
            name: 0,
            start_ns,
            end_ns,
            global_tid: thread(tid),
            correlation_id: number(correlation),
        }),
        ["os", tid, name, _] => {
            let name = string_index(trace, name);
            trace.os_calls.push(ApiCall {
                name,
                start_ns,
                end_ns,
                global_tid: thread(tid),
                correlation_id: 0,
            });
        }
        ["kernel", correlation, name, _, stream] => {
            let name = string_index(trace, name);
            trace.kernels.push(Kernel {
                name,
                full_name: name,
                device: 0,
                stream: number(stream),
                start_ns,
                end_ns,
                global_pid: PROCESS,
                correlation_id: number(correlation),
                grid: [1; 3],
                block: [1; 3],
                registers: 0,
                shared_memory: 0,
                graph_node: None,
            });
        }
        ["graph", correlation, id, _, stream] => trace.graphs.push(GraphLaunch {
            start_ns,
            end_ns,
            device: 0,
            stream: number(stream),
            global_pid: PROCESS,
            correlation_id: number(correlation),
            graph: Some(number(id)),
        }),
        [kind @ ("copy" | "fill"), correlation, bytes, _] => trace.copies.push(MemoryOp {
            start_ns,
            end_ns,
            bytes: number(bytes),
            kind: if kind == "fill" { CopyKind::Set } else { CopyKind::DeviceToHost },
            device: 0,
            stream: None,
            global_pid: PROCESS,
            correlation_id: number(correlation),
            graph_node: None,
            is_pageable: None,
        }),
        _ => panic!("unknown line: {words:?}"),
    }
}

/// Index of a string, which is added if missing.
fn string_index(trace: &mut Timeline, text: &str) -> u32 {
    let known = trace.strings.iter().position(|known| known == text);
    known.unwrap_or_else(|| {
        trace.strings.push(text.into());
        trace.strings.len() - 1
    }) as u32
}

fn summed(sketch: &str) -> KernelTimes {
    let trace = capture(sketch);
    kernels(&Capture::of(&trace))
}

/// One line per record: `stage name calls total_ns`.
fn table(sketch: &str) -> String {
    let kernels = summed(sketch);
    let line = |it: &KernelRecord| {
        format!("{:?} {} {} {}", it.stage, it.kernel_name, it.calls, (it.total_ms * 1e6).round())
    };
    kernels.records.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_kernel_belongs_to_the_stage_that_launched_it_even_when_it_runs_later() {
    let sketch =
        "range 1 prefill 0..10\nrange 1 decode_all 10..20\ncall 1 1 8..9\nkernel 1 gemm 15..25 7";
    insta::assert_snapshot!(table(sketch), @r#""prefill" gemm 1 10"#);
}

#[test]
fn records_are_per_stage_and_name_longest_first() {
    let sketch = "range 1 prefill 0..10\nrange 1 decode_all 10..20
        call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 11..12
        kernel 1 gemm 20..22 7\nkernel 2 gemm 22..25 7\nkernel 3 gemm 30..37 7";
    insta::assert_snapshot!(table(sketch), @r#"
    "decode_all" gemm 1 7
    "prefill" gemm 2 5
    "#);
}

#[test]
fn a_range_of_another_thread_claims_a_launch_only_if_it_crosses_threads() {
    let launch = "call 2 1 1..2\nkernel 1 gemm 5..6 7";
    let push_pop = table(&format!("range 1 prefill 0..10\n{launch}"));
    insta::assert_snapshot!(push_pop, @r#""" gemm 1 1"#);
    let start_end = table(&format!("cross 1 prefill 0..10\n{launch}"));
    insta::assert_snapshot!(start_end, @r#""prefill" gemm 1 1"#);
}

#[test]
fn warm_up_is_separate_from_measured_work() {
    let sketch = "range 1 warmup 0..10\nrange 1 prefill 1..9\ncall 1 1 2..3\nkernel 1 gemm 5..6 7";
    let kernels = summed(sketch);
    assert_eq!(kernels.records[0].stage, WARMUP);
    assert_eq!(kernels.measured().count(), 0);
}

#[test]
fn overlapping_kernels_count_once_as_busy_time() {
    let sketch = "range 1 prefill 0..10\ncall 1 1 1..2\ncall 1 2 2..3
                  kernel 1 a 10..20 7\nkernel 2 b 15..25 8";
    let stage = &summed(sketch).stages[0];
    assert_eq!((stage.kernel_ms, stage.busy_ms, stage.launches), (Some(20e-6), Some(15e-6), 2));
}

#[test]
fn a_whole_traced_graph_and_a_copy_are_busy_time_but_not_kernel_time() {
    let sketch = "range 1 prefill 0..10\ncall 1 1 1..2\ncall 1 2 2..3\ncall 1 3 4..5
                  kernel 1 a 10..20 7\ngraph 2 5 15..40 7\ncopy 3 100 38..44";
    let stage = &summed(sketch).stages[0];
    assert_eq!((stage.launches, stage.kernel_ms, stage.busy_ms), (1, Some(10e-6), Some(34e-6)));
    assert_eq!((stage.graph_launches, stage.graph_ms), (1, 25e-6));
}

#[test]
fn a_kernel_without_its_launch_is_an_orphan() {
    let kernels = summed("range 1 prefill 0..10\nkernel 9 gemm 5..6 7");
    assert_eq!((kernels.orphans, kernels.records[0].stage.as_str()), (1, ""));
}

/// A capture in prefill with kernels of the short name `k` and distinct full names, of these
/// durations in ns.
fn variants(times: &[i64]) -> KernelTimes {
    let mut trace = capture("range 1 prefill 0..10000");
    trace.strings.push("k".into());
    for (at, ns) in times.iter().enumerate() {
        let sketch = capture(&format!(
            "call 1 {} 1..2\nkernel {0} k {}..{} 7",
            at + 1,
            at * 1000,
            at as i64 * 1000 + ns
        ));
        trace.cuda_calls.push(sketch.cuda_calls.get(0));
        trace.strings.push(format!("k<{at}>"));
        let full_name = trace.strings.len() as u32 - 1;
        trace.kernels.push(Kernel { name: 0, full_name, ..sketch.kernels.get(0).into() });
    }
    kernels(&Capture::of(&trace))
}

#[test]
fn a_full_name_with_a_tenth_of_the_time_of_its_short_name_has_its_own_row() {
    let rows = |times: &[i64]| {
        variants(times)
            .records
            .iter()
            .map(|it| (it.full_name.clone(), it.name_variants))
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(&[90, 10]), [("k<0>".to_owned(), 1), ("k<1>".to_owned(), 1)]);
    assert_eq!(
        rows(&[5; 12]).iter().map(|it| it.1).collect::<Vec<_>>(),
        [12],
        "none of twelve equal variants is significant"
    );
    assert_eq!(variants(&[5; 12]).full.len(), 12);
}

#[test]
fn no_row_mixes_significant_variants_and_no_time_is_lost() {
    for times in [
        &[7][..],
        &[1, 99],
        &[50, 30, 20],
        &[9; 30],
        &[100, 1, 1, 1, 1],
        &[4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4],
    ] {
        let kernels = variants(times);
        let all: i64 = times.iter().sum();
        assert!(
            kernels
                .records
                .iter()
                .all(|it| it.name_variants == 1 || times.iter().all(|ns| 10 * ns < all))
        );
        for sum in [
            kernels.records.iter().map(|it| it.launch_ns.total).sum::<i64>(),
            kernels.full.iter().map(|it| it.launch_ns.total).sum(),
        ] {
            assert_eq!(all, sum);
        }
        assert_eq!(kernels.full.len(), times.len());
    }
}

#[test]
fn work_outside_the_included_ranges_is_one_row_and_in_no_top_list() {
    let mut trace = capture(
        "range 1 measured 10..20\nrange 1 prefill 11..15\nrange 1 prefill 30..40
         call 1 1 1..2\ncall 1 2 12..13\ncall 1 3 17..18\ncall 1 4 31..32
         kernel 1 setup 5..9 7\nkernel 2 a 12..14 7\nkernel 3 b 18..19 7\nkernel 4 c 33..36 7",
    );
    trace.rules =
        llmprof_core::trace::stage::StageRules::with(vec![], vec!["measured".into()], vec![]);
    let kernels = kernels(&Capture::of(&trace));
    let measured: Vec<_> =
        kernels.measured().map(|it| (it.kernel_name.as_str(), it.stage.as_str())).collect();
    assert_eq!(measured, [("a", "prefill"), ("b", "")]);
    let outside = kernels.stages.iter().find(|it| it.stage == OUTSIDE).unwrap();
    assert_eq!((outside.launches, outside.kernel_ms.map(|ms| (ms * 1e6).round())), (2, Some(7.0)));
}
