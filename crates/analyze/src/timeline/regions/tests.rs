//! Regions on sketches: nesting, domains, threads, graphs, warm-up, patterns, and weighted
//! counters.

use glob::Pattern;
use llmprof_core::trace::{
    counter::{CounterValues, LaunchCounters},
    stage::StageRules,
    timeline::GraphNode,
};
use proptest::prelude::*;

use super::*;
use crate::kernels::{counters::counters, tests::capture};

fn regions(capture: &Capture, counters: &[CounterRecord]) -> Vec<Region> {
    super::regions(capture, counters).unwrap().rows
}

fn lines_of(trace: &Timeline) -> String {
    let mut regions = regions(&Capture::of(trace), &[]);
    regions.sort_by(|a, b| (&a.domain, &a.name).cmp(&(&b.domain, &b.name)));
    let line = |it: &Region| {
        format!(
            "{} x{}: {} kernels, {} ns",
            it.name,
            it.instances,
            it.kernels,
            (it.kernel_ms * 1e6).round()
        )
    };
    regions.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn lines(sketch: &str) -> String {
    lines_of(&capture(sketch))
}

const NESTED: &str =
    "range 1 prefill 0..100\nrange 1 layer 10..50\nrange 1 mlp 20..30\nrange 1 layer 60..90
    call 1 1 12..13\ncall 1 2 21..22\ncall 1 3 61..62\ncall 1 4 95..96
    kernel 1 a 200..201 7\nkernel 2 gemm 210..220 7\nkernel 3 a 220..320 7\nkernel 4 a 400..1400 7";

#[test]
fn an_enclosing_region_includes_the_launches_of_its_parts() {
    insta::assert_snapshot!(lines(NESTED), @r"
    layer x2: 3 kernels, 111 ns
    mlp x1: 1 kernels, 10 ns
    prefill x1: 4 kernels, 1111 ns
    ");
}

#[test]
fn a_region_inside_itself_counts_once() {
    let sketch = "range 1 f 0..100\nrange 1 f 10..50\ncall 1 1 12..13\nkernel 1 a 200..205 7";
    insta::assert_snapshot!(lines(sketch), @"f x2: 1 kernels, 5 ns");
}

#[test]
fn domains_do_not_hide_each_others_ranges() {
    let mut trace =
        capture("range 1 f 0..100\nrange 1 f 10..50\ncall 1 1 12..13\nkernel 1 a 200..205 7");
    trace.ranges[1].domain = "other".into();
    insta::assert_snapshot!(lines_of(&trace), @r"
    f x1: 1 kernels, 5 ns
    f x1: 1 kernels, 5 ns
    ");
}

#[test]
fn start_end_regions_include_launches_of_all_threads_and_push_pop_regions_of_one() {
    let sketch = "cross 1 all 0..100\nrange 1 own 0..100\ncall 2 1 12..13\nkernel 1 a 200..205 7";
    insta::assert_snapshot!(lines(sketch), @r"
    all x1: 1 kernels, 5 ns
    own x1: 0 kernels, 0 ns
    ");
}

#[test]
fn warm_up_is_excluded() {
    let sketch = "range 1 warmup 0..50\nrange 1 f 10..40\ncall 1 1 12..13\nkernel 1 a 200..205 7";
    insta::assert_snapshot!(lines(sketch), @r"
    f x1: 0 kernels, 0 ns
    warmup x1: 0 kernels, 0 ns
    ");
}

#[test]
fn a_replayed_kernel_is_in_the_regions_of_its_replay_and_of_its_capture() {
    let mut trace = capture(
        "range 1 mlp 10..20\nrange 1 decode_all 50..60\ncall 1 2 51..52\nkernel 2 k 70..75 7",
    );
    trace.kernels = trace.kernels.map(|_, kernel| kernel.graph_node = Some(31));
    let node = |at_ns, id, original| GraphNode {
        at_ns,
        global_tid: trace.ranges[0].global_tid,
        id,
        original,
    };
    trace.graph_nodes = vec![node(12, 1, None), node(30, 31, Some(1))];
    insta::assert_snapshot!(lines_of(&trace), @r"
    decode_all x1: 1 kernels, 5 ns
    mlp x1: 1 kernels, 5 ns
    ");
}

#[test]
fn patterns_select_regions_and_range_filters_select_kernels() {
    let patterns = |text: &str| vec![Pattern::new(text).unwrap()];
    let mut trace = capture(NESTED);
    trace.rules = StageRules::default().with_regions(patterns("*l*"), patterns("pre*"));
    insta::assert_snapshot!(lines_of(&trace), @r"
    layer x2: 3 kernels, 111 ns
    mlp x1: 1 kernels, 10 ns
    ");
    trace.rules = StageRules::with(vec![], vec!["mlp".into()], vec![]);
    insta::assert_snapshot!(lines_of(&trace), @r"
    layer x2: 1 kernels, 10 ns
    mlp x1: 1 kernels, 10 ns
    prefill x1: 1 kernels, 10 ns
    ");
}

/// A launch in prefill that was profiled.
fn profiled(kernel: &str, ns: f64, sm: f64) -> LaunchCounters {
    LaunchCounters {
        stage: "prefill".into(),
        kernel: kernel.into(),
        grid: Some([1; 3]),
        block: Some([1; 3]),
        values: CounterValues {
            sm_pct: Some(sm),
            duration_ns: Some(ns),
            ..CounterValues::default()
        },
        ..LaunchCounters::default()
    }
}

#[test]
fn counters_are_means_weighted_by_time_with_their_coverage() {
    let trace = capture(NESTED);
    let joined = Capture::of(&trace);
    let read = |launches: &[LaunchCounters]| {
        let records = counters(launches, Some(&joined));
        let layer = regions(&joined, &records).into_iter().find(|it| it.name == "layer").unwrap();
        layer.counters.map(|it| (it.covered_pct.unwrap().round(), it.sm_pct.unwrap().round()))
    };
    assert_eq!(read(&[profiled("gemm", 10.0, 80.0)]), Some((9.0, 80.0)), "10 of 111 ns");
    assert_eq!(
        read(&[profiled("gemm", 10.0, 80.0), profiled("a", 1.0, 14.0), profiled("a", 100.0, 14.0)]),
        Some((100.0, 20.0)),
        "(10 x 80 + 101 x 14) / 111"
    );
    assert_eq!(read(&[]), None);
}

#[test]
fn counters_of_short_launches_do_not_stand_for_long_ones_of_another_region() {
    let mut sketch =
        "range 1 prefill 0..900\nrange 1 short 0..50\nrange 1 long 50..90\n".to_owned();
    for (id, call, ns) in [(1, 10, 20), (2, 20, 20), (3, 60, 64), (4, 70, 64)] {
        let start = 10_000 * id;
        sketch +=
            &format!("call 1 {id} {call}..{call}\nkernel {id} gemm {start}..{} 7\n", start + ns);
    }
    let trace = capture(&sketch);
    let joined = Capture::of(&trace);
    let launches = [profiled("gemm", 22.0, 80.0)];
    let found = regions(&joined, &counters(&launches, Some(&joined)));
    let sm = |name: &str| {
        let region = found.iter().find(|it| it.name == name).unwrap();
        region.counters.map(|it| (it.covered_pct.unwrap().round(), it.sm_pct.unwrap()))
    };
    assert_eq!((sm("short"), sm("long")), (Some((100.0, 80.0)), None));
    assert_eq!(sm("prefill"), Some((24.0, 80.0)));
}

#[test]
fn ranges_that_overlap_without_nesting_hide_no_launch_of_each_other() {
    let calls = "call 1 1 5..6\ncall 1 2 35..36\ncall 1 3 65..66
        kernel 1 k 200..201 7\nkernel 2 k 210..211 7\nkernel 3 k 220..221 7";
    insta::assert_snapshot!(lines(&format!("cross 1 a 0..60\ncross 1 b 30..90\n{calls}")), @r"
    a x1: 2 kernels, 2 ns
    b x1: 2 kernels, 2 ns
    ");
    let both = format!("range 1 x 0..90\ncross 1 x 1..89\n{calls}");
    insta::assert_snapshot!(lines(&both), @"x x2: 3 kernels, 3 ns");
}

proptest! {
    #[test]
    fn a_region_contains_each_kernel_launched_in_any_of_its_ranges(
        ranges in prop::collection::vec(
            (0usize..3, 0i64..8, 1i64..8, 1i64..3, any::<bool>()),
            0..8,
        ),
        calls in prop::collection::btree_map(0i64..70, 1i64..3, 0..12),
    ) {
        // Ranges of both styles, of two threads, which overlap in all ways.
        let line = |(name, at, length, thread, crosses): &(usize, i64, i64, i64, bool)| {
            let style = if *crosses { "cross" } else { "range" };
            format!("{style} {thread} r{name} {}..{}", at * 8, (at + length) * 8)
        };
        let mut sketch: Vec<String> = ranges.iter().map(line).collect();
        for (at, (start, thread)) in calls.iter().enumerate() {
            let id = at + 1;
            sketch.push(format!("call {thread} {id} {start}..{}", start + 1));
            sketch.push(format!("kernel {id} k {}..{} 7", 100 + at, 101 + at));
        }
        let trace = capture(&sketch.join("\n"));
        for region in regions(&Capture::of(&trace), &[]) {
            let named = || ranges.iter().filter(|it| format!("r{}", it.0) == region.name);
            let inside = |(t, thread): &(&i64, &i64)| {
                named().any(|(_, at, length, of, crosses)| {
                    (*crosses || of == *thread) && (at * 8..(at + length) * 8).contains(*t)
                })
            };
            let expected = calls.iter().filter(inside).count() as u64;
            prop_assert_eq!(region.kernels, expected, "{}", region.name);
            prop_assert_eq!(region.instances, named().count() as u64);
        }
    }
}

#[test]
fn a_whole_traced_graph_is_in_the_regions_of_its_launch() {
    let trace = capture(
        "range 1 decode_all 0..50\nrange 1 replay 5..10\ncall 1 1 6..7\ncall 1 2 20..21
         graph 1 5 8..18 7\ngraph 2 5 22..30 7",
    );
    let regions = regions(&Capture::of(&trace), &[]);
    let rows: Vec<_> =
        regions.iter().map(|it| (&*it.name, it.whole_graphs, it.graph_ms, it.kernels)).collect();
    assert_eq!(rows, [("decode_all", 2, 18e-6, 0), ("replay", 1, 10e-6, 0)]);
}

#[test]
fn steps_of_an_engine_are_one_region_by_kind() {
    let step = |at: i64, name: &str| {
        format!(
            "range 1 {name} {at}..{}\ncall 1 {at} {}..{}\nkernel {at} k {}..{} 7",
            at + 10,
            at + 1,
            at + 2,
            at + 3,
            at + 8
        )
    };
    let names = [
        "execute_context_3(145)_generation_0(0)",
        "execute_context_0(0)_generation_3(3)",
        "execute_context_0(0)_generation_2(2)",
        "other",
    ];
    let sketch: Vec<String> = (1..).zip(names).map(|(at, name)| step(at * 20, name)).collect();
    insta::assert_snapshot!(lines(&sketch.join("\n")), @r"
    other x1: 1 kernels, 5 ns
    vllm steps: decode x2: 2 kernels, 10 ns
    vllm steps: prefill x1: 1 kernels, 5 ns
    ");
}
