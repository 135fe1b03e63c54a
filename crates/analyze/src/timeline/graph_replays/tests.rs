//! Joins on sketches of captures and replays.

use llmprof_core::trace::{
    event::STAGE_DOMAIN,
    framework::OperatorSignature,
    graph_capture::{CapturedGraph, CapturedLaunch, CapturedOperator, NodeWork},
    kernel::{Kernel, UNNUMBERED_NODE},
    range::Range,
    timeline::{ApiCall, CopyKind, MemoryOp},
};
use proptest::prelude::*;

use super::*;

const PROCESS: i64 = 7 << 24;
const HIP: &str = "hipLaunchKernel";

fn string(trace: &mut Timeline, text: &str) -> u32 {
    let known = trace.strings.iter().position(|it| it == text);
    known.unwrap_or_else(|| {
        trace.strings.push(text.into());
        trace.strings.len() - 1
    }) as u32
}

/// A captured launch: operator, kernel's name or none, side of the grid or 0.
type Launch<'a> = (&'a str, Option<&'a str>, u32);

/// Adds a capture of these launches, whose operators have inputs of `batch` rows.
fn add_graph(trace: &mut Timeline, batch: u64, launches: &[Launch]) -> usize {
    let first = trace.graph_captures.operators.len() as u32;
    let mut found = Vec::new();
    for (at, (operator, kernel, grid)) in launches.iter().enumerate() {
        let at_ns = at as i64 * 10;
        let signature = trace.framework.signatures.len() as u32;
        trace.framework.signatures.push(OperatorSignature {
            name: (*operator).into(),
            shapes: vec![vec![batch, 16], vec![batch, 16]],
            types: vec!["c10::BFloat16".into(); 2],
            ..OperatorSignature::default()
        });
        let known = trace
            .framework
            .signatures
            .iter()
            .position(|it| it == &trace.framework.signatures[signature as usize]);
        trace.graph_captures.operators.push(CapturedOperator {
            start_ns: at_ns - 1,
            end_ns: at_ns + 5,
            signature: known.unwrap() as u32,
            is_range: false,
        });
        found.push(CapturedLaunch {
            at_ns,
            work: if *operator == "aten::copy_" { NodeWork::Copy } else { NodeWork::Kernel },
            call: string(trace, HIP),
            kernel: kernel.map(|it| string(trace, it)),
            grid: if *grid == 0 { [0; 3] } else { [*grid, 1, 1] },
            block: [0; 3],
            call_site: None,
        });
    }
    trace.graph_captures.graphs.push(CapturedGraph {
        file: format!("bs_{batch}.json"),
        batch: Some(batch),
        launches: found,
        operators: first..trace.graph_captures.operators.len() as u32,
        is_whole: true,
        ..CapturedGraph::default()
    });
    trace.graph_captures.graphs.len() - 1
}

/// Adds a replay inside a range: name, side of the grid and stream of each kernel; a name of digits
/// is a copy of so many bytes.
fn add_replay(trace: &mut Timeline, step: &str, nodes: &[(&str, u32, u32)]) {
    let correlation_id = trace.cuda_calls.len() as i64 + 1;
    let at = correlation_id * 10_000;
    let name = string(trace, "cudaGraphLaunch");
    let global_tid = PROCESS | 1;
    trace.cuda_calls.push(ApiCall {
        name,
        start_ns: at,
        end_ns: at + 5,
        global_tid,
        correlation_id,
    });
    trace.ranges.push(Range::new(
        (STAGE_DOMAIN, step),
        (at - 10, Some(at + 9000)),
        (global_tid, true),
    ));
    for (node, (name, grid, stream)) in nodes.iter().enumerate() {
        let start_ns = at + 10 + node as i64 * 10;
        let end_ns = start_ns + 7;
        if let Ok(bytes) = name.parse() {
            trace.copies.push(MemoryOp {
                start_ns,
                end_ns,
                bytes,
                kind: CopyKind::DeviceToDevice,
                device: 0,
                stream: None,
                global_pid: PROCESS,
                correlation_id,
                graph_node: None,
                is_pageable: None,
            });
            continue;
        }
        let name = string(trace, name);
        trace.kernels.push(Kernel {
            name,
            full_name: name,
            device: 0,
            stream: *stream,
            start_ns,
            end_ns,
            global_pid: PROCESS,
            correlation_id,
            grid: if *grid == 0 { [0; 3] } else { [*grid, 1, 1] },
            block: [0; 3],
            registers: 0,
            shared_memory: 0,
            graph_node: Some(UNNUMBERED_NODE | (correlation_id as u64) << 16 | node as u64),
        });
    }
}

fn decode(requests: u64) -> String {
    format!("execute_context_0(0)_generation_{requests}({requests})")
}

/// Graph of each joined replay, and the reasons of the others.
fn outcome(trace: &Timeline) -> (Vec<u32>, Vec<NotJoined>) {
    let replays = GraphReplays::of(&Capture::of(trace));
    let reasons = replays.not_joined.keys().copied().collect();
    (replays.joined.iter().map(|it| it.graph).collect(), reasons)
}

const MM: Launch = ("aten::mm", None, 0);
const NORM: Launch = ("triton_norm", None, 0);

#[test]
fn a_kernel_has_the_operator_and_shapes_of_its_launch() {
    let mut trace = Timeline::default();
    add_graph(&mut trace, 4, &[NORM, MM]);
    add_replay(&mut trace, &decode(4), &[("triton_norm", 4, 7), ("nvjet", 9, 7)]);
    let capture = Capture::of(&trace);
    let index = capture.framework.as_ref().unwrap();
    let name = |kernel| index.name_of(&trace, kernel);
    assert_eq!([name(0), name(1)], [Some("triton_norm"), Some("aten::mm")]);
    assert_eq!(index.replays.all, ReplaySum { replays: 1, ns: 14 });
}

#[test]
fn a_padded_step_replays_the_graph_whose_geometry_a_full_step_shows() {
    let mut trace = Timeline::default();
    for batch in [2, 4, 8] {
        add_graph(&mut trace, batch, &[NORM, MM]);
    }
    let eight = [("triton_norm", 8, 7), ("nvjet", 9, 7)];
    add_replay(&mut trace, &decode(8), &eight);
    add_replay(&mut trace, &decode(6), &eight);
    assert_eq!(outcome(&trace), (vec![2, 2], vec![]));
    // A graph of 4 may not be given, and has other geometries.
    trace.graph_captures.graphs.remove(1);
    add_replay(&mut trace, &decode(3), &[("triton_norm", 4, 7), ("nvjet", 9, 7)]);
    assert_eq!(outcome(&trace), (vec![1, 1], vec![NotJoined::BatchUnproven]));
    trace.graph_captures.listed = vec![2, 4, 8];
    assert_eq!(outcome(&trace), (vec![1, 1], vec![NotJoined::BatchUnproven]));
    trace.graph_captures.listed = vec![2, 8];
    assert_eq!(outcome(&trace), (vec![1, 1, 1], vec![]));
    add_replay(&mut trace, &decode(9), &eight);
    assert_eq!(outcome(&trace).1, [NotJoined::BatchMissing]);
}

#[test]
fn several_tokens_of_a_request_are_rows_of_the_batch() {
    let mut trace = Timeline::default();
    for batch in [2, 8] {
        add_graph(&mut trace, batch, &[MM]);
    }
    add_replay(&mut trace, "execute_context_0(0)_generation_2(8)", &[("nvjet", 0, 7)]);
    add_replay(&mut trace, &decode(2), &[("nvjet", 0, 7)]);
    assert_eq!(outcome(&trace), (vec![1, 0], vec![]));
}

#[test]
fn the_number_of_a_graph_joins_its_padded_steps_to_full_ones() {
    let mut trace = Timeline::default();
    for batch in [4, 8] {
        add_graph(&mut trace, batch, &[MM]);
    }
    for requests in [8, 6, 3] {
        add_replay(&mut trace, &decode(requests), &[("nvjet", 0, 7)]);
    }
    assert_eq!(outcome(&trace), (vec![1], vec![NotJoined::BatchUnproven]));
    let graphs = [1, 1, 2];
    trace.kernels = trace.kernels.map(|at, it| it.graph_node = Some(graphs[at] << 32 | 5));
    assert_eq!(outcome(&trace), (vec![1, 1], vec![NotJoined::BatchUnproven]));
}

#[test]
fn without_a_step_a_capture_is_chosen_by_its_geometry_or_if_it_is_the_only_one() {
    let mut trace = Timeline::default();
    add_graph(&mut trace, 4, &[("aten::mm", Some("gemm"), 4)]);
    add_graph(&mut trace, 8, &[("aten::mm", Some("gemm"), 8)]);
    add_replay(&mut trace, "step", &[("gemm", 8, 7)]);
    assert_eq!(outcome(&trace), (vec![1], vec![]));
    trace.kernels = trace.kernels.map(|_, it| it.grid = [0; 3]);
    assert_eq!(outcome(&trace), (vec![], vec![NotJoined::BatchUnproven]));
    trace.graph_captures.graphs.pop();
    assert_eq!(outcome(&trace), (vec![0], vec![]));
}

#[test]
fn copies_and_fills_are_nodes_whether_engines_or_kernels_execute_them() {
    let mut trace = Timeline::default();
    add_graph(&mut trace, 4, &[MM, ("aten::copy_", None, 0)]);
    add_replay(&mut trace, &decode(4), &[("nvjet", 1, 7), ("256", 0, 7)]);
    add_replay(&mut trace, &decode(4), &[("nvjet", 1, 7), ("__amd_rocclr_copyBuffer", 1, 7)]);
    add_replay(&mut trace, &decode(4), &[("nvjet", 1, 7), ("__amd_rocclr_fillBuffer", 1, 7)]);
    assert_eq!(outcome(&trace), (vec![0, 0], vec![NotJoined::NoCapture]));
}

#[test]
fn counts_names_and_calls_that_differ_are_not_joined() {
    let base = |launches: &[Launch], nodes: &[(&str, u32, u32)]| {
        let mut trace = Timeline::default();
        add_graph(&mut trace, 4, launches);
        add_replay(&mut trace, &decode(4), nodes);
        trace
    };
    let (norm, gemm) = (("triton_norm", 4, 7), ("nvjet", 9, 7));
    let none = (vec![], vec![NotJoined::NoCapture]);
    assert_eq!(outcome(&base(&[NORM, MM], &[norm])), none, "cut by the edge of the window");
    assert_eq!(outcome(&base(&[NORM, MM], &[gemm, norm])), none);
    assert_eq!(outcome(&base(&[("aten::mm", Some("a"), 0)], &[gemm])), none);
    assert_eq!(outcome(&base(&[("aten::mm", Some("nvjet"), 8)], &[gemm])), none);
    assert_eq!(outcome(&base(&[("aten::mm", Some("nvjet"), 9)], &[gemm])), (vec![0], vec![]));
    // One kernel is not launched by two functions.
    let mut trace = base(&[MM, MM], &[gemm, gemm]);
    assert_eq!(outcome(&trace).0, [0]);
    trace.graph_captures.graphs[0].launches[1].call = string(&mut trace, "cuLaunchKernel");
    assert_eq!(outcome(&trace), none);
}

#[test]
fn a_cut_capture_and_one_of_another_rank_name_nothing() {
    let mut trace = Timeline::default();
    add_graph(&mut trace, 4, &[MM]);
    add_replay(&mut trace, &decode(4), &[("nvjet", 4, 7)]);
    trace.graph_captures.graphs[0].is_whole = false;
    assert_eq!(outcome(&trace), (vec![], vec![NotJoined::CaptureCut]));
    trace.graph_captures.graphs[0].is_whole = true;
    trace.graph_captures.graphs[0].rank = Some(1);
    let place = |rank| collectives::ProcessRank { rank: Some(rank), ..Default::default() };
    use llmprof_core::trace::collectives;
    trace.collectives.processes.insert(PROCESS, place(0));
    assert_eq!(outcome(&trace), (vec![], vec![NotJoined::NoCapture]));
    trace.collectives.processes.insert(PROCESS, place(1));
    assert_eq!(outcome(&trace), (vec![0], vec![]));
}

#[test]
fn two_captures_of_one_batch_count_only_if_they_are_alike() {
    let mut trace = Timeline::default();
    add_graph(&mut trace, 4, &[MM]);
    add_graph(&mut trace, 4, &[MM]);
    add_replay(&mut trace, &decode(4), &[("nvjet", 4, 7)]);
    assert_eq!(outcome(&trace), (vec![0], vec![]));
    add_graph(&mut trace, 4, &[("aten::addmm", None, 0)]);
    assert_eq!(outcome(&trace), (vec![], vec![NotJoined::BatchUnproven]));
}

#[test]
fn on_several_streams_launches_are_joined_by_name_where_their_order_is_known() {
    let named = |name| ("op", Some(name), 0);
    let mut trace = Timeline::default();
    add_graph(&mut trace, 4, &[("a1", Some("a"), 0), named("b"), ("a2", Some("a"), 0)]);
    // The second stream runs ahead of the first.
    add_replay(&mut trace, &decode(4), &[("b", 0, 8), ("a", 0, 7), ("a", 0, 7)]);
    let names = |trace: &Timeline| -> Vec<Option<String>> {
        let capture = Capture::of(trace);
        let index = capture.framework.as_ref().unwrap();
        let name = |at| index.name_of(trace, at).map(str::to_owned);
        (0..trace.kernels.len()).map(name).collect()
    };
    let some = |it: &str| Some(it.to_owned());
    assert_eq!(names(&trace), [some("op"), some("a1"), some("a2")]);
    // The same kernel on both streams: which of its launches is unknown.
    trace.kernels = trace.kernels.map(|at, it| it.stream = 7 + at as u32 / 2);
    assert_eq!(names(&trace), [some("op"), None, None]);
    trace.graph_captures.graphs[0].launches[1].kernel = None;
    assert_eq!(outcome(&trace), (vec![], vec![NotJoined::Streams]));
}

fn launch_names() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0usize..3, 1..6)
}

proptest! {
    /// An engine captures `graphs`, and each step replays the smallest that holds its requests. Not
    /// all captures are given, and replays may be cut.
    #[test]
    fn a_kernel_never_has_an_operator_of_another_kernel_or_graph(
        batches in prop::collection::btree_map(2u64..9, launch_names(), 1..4),
        given in prop::collection::vec(any::<bool>(), 4),
        steps in prop::collection::vec((1u64..10, 0usize..7, 7u32..9), 1..6),
        has_names in any::<bool>(), has_grids in any::<bool>(), is_listed in any::<bool>(),
    ) {
        const KERNELS: [&str; 3] = ["k0", "k1", "k2"];
        let mut trace = Timeline::default();
        if is_listed {
            trace.graph_captures.listed = batches.keys().copied().collect();
        }
        for ((batch, names), _) in batches.iter().zip(&given).filter(|(_, it)| **it) {
            let launch = |it: &usize| (KERNELS[*it], has_names.then(|| KERNELS[*it]), 0);
            let launches: Vec<Launch> = names.iter().map(launch).collect();
            add_graph(&mut trace, *batch, &launches);
        }
        let mut truth = Vec::new();
        for (requests, cut, stream) in &steps {
            let Some((batch, names)) = batches.range(requests..).next() else { continue };
            let grid = if has_grids { *batch as u32 } else { 0 };
            let node = |(at, it): (usize, &usize)| {
                (KERNELS[*it], grid, if at == 0 { *stream } else { 7 })
            };
            let nodes: Vec<_> = names.iter().enumerate().map(node).collect();
            let kept: Vec<_> = nodes.into_iter().enumerate().filter(|(at, _)| at != cut).collect();
            truth.extend(kept.iter().map(|(at, _)| (*batch, names[*at])));
            let kept: Vec<_> = kept.into_iter().map(|(_, it)| it).collect();
            add_replay(&mut trace, &decode(*requests), &kept);
        }
        let replays = GraphReplays::of(&Capture::of(&trace));
        for (at, (graph, launch)) in replays.kernels.iter().enumerate() {
            if *graph != NONE {
                let captured = &trace.graph_captures.graphs[*graph as usize];
                prop_assert_eq!(captured.batch, Some(truth[at].0), "another graph");
                let operator = captured.operators.start + launch;
                let operator = trace.graph_captures.operators[operator as usize].signature;
                let name = &trace.framework.signatures[operator as usize].name;
                prop_assert_eq!(name, KERNELS[truth[at].1], "another kernel");
            }
        }
    }
}
