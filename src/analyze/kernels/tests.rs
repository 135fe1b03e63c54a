//! Kernels on sketches of captures, and the sketches that other tests use too.

use super::*;
use crate::trace::{
    event::STAGE_DOMAIN,
    nsys::{ApiCall, CopyKind, GraphLaunch, MemoryOp},
    range::Range,
};

const PROCESS: i64 = 7 << 24;

/// Builds a capture from lines such as `range T prefill 0..10`, `call T 1 2..3` (correlation), `kernel 1 gemm 4..9 stream 7`,
/// `graph 1 ID 4..9 stream`, `copy 1 BYTES 4..9`, `fill 1 BYTES 4..9`.
pub(crate) fn capture(sketch: &str) -> NsysTrace {
    let mut trace = NsysTrace::default();
    for words in sketch.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).filter(|words| !words.is_empty()) {
        let interval = |text: &str| -> (i64, i64) {
            let (start, end) = text.split_once("..").unwrap();
            (start.parse().unwrap(), end.parse().unwrap())
        };
        let thread = |text: &str| PROCESS | text.parse::<i64>().unwrap();
        match words[..] {
            [kind @ ("range" | "cross"), tid, name, at] => {
                let (start_ns, end_ns) = interval(at);
                trace.ranges.push(Range {
                    domain: STAGE_DOMAIN.into(),
                    name: name.into(),
                    start_ns,
                    end_ns: Some(end_ns),
                    global_tid: thread(tid),
                    push_pop: kind == "range",
                });
            }
            ["call", tid, correlation, at] => {
                let (start_ns, end_ns) = interval(at);
                let correlation_id = correlation.parse().unwrap();
                trace.cuda_calls.push(ApiCall { name: 0, start_ns, end_ns, global_tid: thread(tid), correlation_id });
            }
            ["kernel", correlation, name, at, stream] => {
                let (start_ns, end_ns) = interval(at);
                let index = trace.strings.iter().position(|known| known == name).unwrap_or_else(|| {
                    trace.strings.push(name.into());
                    trace.strings.len() - 1
                }) as u32;
                trace.kernels.push(Kernel {
                    name: index,
                    full_name: index,
                    device: 0,
                    stream: stream.parse().unwrap(),
                    start_ns,
                    end_ns,
                    global_pid: PROCESS,
                    correlation_id: correlation.parse().unwrap(),
                    grid: [1; 3],
                    block: [1; 3],
                    registers: 0,
                    graph_node: None,
                });
            }
            ["graph", correlation, id, at, stream] => {
                let (start_ns, end_ns) = interval(at);
                trace.graphs.push(GraphLaunch {
                    start_ns,
                    end_ns,
                    device: 0,
                    stream: stream.parse().unwrap(),
                    global_pid: PROCESS,
                    correlation_id: correlation.parse().unwrap(),
                    graph: Some(id.parse().unwrap()),
                });
            }
            [kind @ ("copy" | "fill"), correlation, bytes, at] => {
                let (start_ns, end_ns) = interval(at);
                trace.copies.push(MemoryOp {
                    start_ns,
                    end_ns,
                    bytes: bytes.parse().unwrap(),
                    kind: if kind == "fill" { CopyKind::Set } else { CopyKind::DeviceToHost },
                    device: 0,
                    global_pid: PROCESS,
                    correlation_id: correlation.parse().unwrap(),
                    graph_node: None,
                });
            }
            _ => panic!("no such line: {words:?}"),
        }
    }
    trace
}

fn summed(sketch: &str) -> Kernels {
    let trace = capture(sketch);
    kernels(&trace, &Launches::of(&trace))
}

/// One line per record: `stage name calls total_ns`.
fn table(sketch: &str) -> String {
    let kernels = summed(sketch);
    let line = |it: &KernelRecord| format!("{:?} {} {} {}", it.stage, it.kernel_name, it.calls, (it.total_ms * 1e6).round());
    kernels.records.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_kernel_belongs_to_the_stage_that_launched_it_even_when_it_runs_later() {
    let sketch = "range 1 prefill 0..10\nrange 1 decode_all 10..20\ncall 1 1 8..9\nkernel 1 gemm 15..25 7";
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
fn another_threads_range_does_not_claim_a_launch_unless_it_crosses_threads() {
    let launch = "call 2 1 1..2\nkernel 1 gemm 5..6 7";
    insta::assert_snapshot!(table(&format!("range 1 prefill 0..10\n{launch}")), @r#""" gemm 1 1"#);
    insta::assert_snapshot!(table(&format!("cross 1 prefill 0..10\n{launch}")), @r#""prefill" gemm 1 1"#);
}

#[test]
fn warm_up_is_kept_apart_from_what_was_measured() {
    let sketch = "range 1 warmup 0..10\nrange 1 prefill 1..9\ncall 1 1 2..3\nkernel 1 gemm 5..6 7";
    let kernels = summed(sketch);
    assert_eq!(kernels.records[0].stage, WARMUP);
    assert_eq!(kernels.measured().count(), 0);
}

#[test]
fn kernels_on_two_streams_are_busy_once() {
    let sketch = "range 1 prefill 0..10\ncall 1 1 1..2\ncall 1 2 2..3\nkernel 1 a 10..20 7\nkernel 2 b 15..25 8";
    let stage = &summed(sketch).stages[0];
    assert_eq!((stage.kernel_ms, stage.busy_ms, stage.launches), (Some(20e-6), Some(15e-6), 2));
}

#[test]
fn a_graph_that_was_traced_as_a_whole_and_a_copy_are_busy_time_and_not_kernel_time() {
    let sketch = "range 1 prefill 0..10\ncall 1 1 1..2\ncall 1 2 2..3\ncall 1 3 4..5\nkernel 1 a 10..20 7\ngraph 2 5 15..40 7
        copy 3 100 38..44";
    let stage = &summed(sketch).stages[0];
    assert_eq!((stage.launches, stage.kernel_ms, stage.busy_ms), (1, Some(10e-6), Some(34e-6)));
    assert_eq!((stage.graph_launches, stage.graph_ms), (1, 25e-6));
}

#[test]
fn a_kernel_without_its_launch_is_an_orphan() {
    let kernels = summed("range 1 prefill 0..10\nkernel 9 gemm 5..6 7");
    assert_eq!((kernels.orphans, kernels.records[0].stage.as_str()), (1, ""));
}

/// A capture in prefill whose kernels of the short name `k` have these full names, each for so many ns.
fn variants(times: &[i64]) -> Kernels {
    let mut trace = capture("range 1 prefill 0..10000");
    trace.strings.push("k".into());
    for (at, ns) in times.iter().enumerate() {
        let sketch = capture(&format!("call 1 {} 1..2\nkernel {0} k {}..{} 7", at + 1, at * 1000, at as i64 * 1000 + ns));
        trace.cuda_calls.push(sketch.cuda_calls.get(0));
        trace.strings.push(format!("k<{at}>"));
        let full_name = trace.strings.len() as u32 - 1;
        trace.kernels.push(Kernel { name: 0, full_name, ..sketch.kernels.get(0) });
    }
    kernels(&trace, &Launches::of(&trace))
}

#[test]
fn a_full_name_of_a_tenth_of_the_time_of_its_short_name_has_a_row_of_its_own() {
    let rows =
        |times: &[i64]| variants(times).records.iter().map(|it| (it.full_name.clone(), it.name_variants)).collect::<Vec<_>>();
    assert_eq!(rows(&[90, 10]), [("k<0>".to_owned(), 1), ("k<1>".to_owned(), 1)]);
    assert_eq!(rows(&[5; 12]).iter().map(|it| it.1).collect::<Vec<_>>(), [12], "none of twelve equals matters by itself");
    assert_eq!(variants(&[5; 12]).full.len(), 12);
}

#[test]
fn no_row_mixes_a_variant_that_matters_and_none_loses_time() {
    for times in [&[7][..], &[1, 99], &[50, 30, 20], &[9; 30], &[100, 1, 1, 1, 1], &[4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]] {
        let kernels = variants(times);
        let all: i64 = times.iter().sum();
        assert!(kernels.records.iter().all(|it| it.name_variants == 1 || times.iter().all(|ns| 10 * ns < all)));
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
fn what_lies_outside_the_included_ranges_is_one_row_and_in_no_top_list() {
    let mut trace = capture(
        "range 1 measured 10..20\nrange 1 prefill 11..15\nrange 1 prefill 30..40\ncall 1 1 1..2\ncall 1 2 12..13
         call 1 3 17..18\ncall 1 4 31..32\nkernel 1 setup 5..9 7\nkernel 2 a 12..14 7\nkernel 3 b 18..19 7\nkernel 4 c 33..36 7",
    );
    trace.rules = crate::trace::stage::StageRules::with(vec![], vec!["measured".into()], vec![]);
    let kernels = kernels(&trace, &Launches::of(&trace));
    let measured: Vec<_> = kernels.measured().map(|it| (it.kernel_name.as_str(), it.stage.as_str())).collect();
    assert_eq!(measured, [("a", "prefill"), ("b", "")]);
    let outside = kernels.stages.iter().find(|it| it.stage == OUTSIDE).unwrap();
    assert_eq!((outside.launches, outside.kernel_ms.map(|ms| (ms * 1e6).round())), (2, Some(7.0)));
}
