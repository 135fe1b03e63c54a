//! Work by process and device of sketches.

use llmprof_core::trace::collectives::ProcessRank;

use super::*;
use crate::kernels::tests::capture;

/// A capture of two identical processes, the second on device 1 and 1,000 ns later.
fn twice(sketch: &str) -> Timeline {
    let (mut both, other) = (capture(sketch), capture(sketch));
    let away = |id: i64| id + (2 << 24);
    for mut range in other.ranges {
        range.global_tid = away(range.global_tid);
        both.ranges.push(range);
    }
    for call in other.cuda_calls.iter() {
        both.cuda_calls.push(llmprof_core::trace::timeline::ApiCall {
            global_tid: away(call.global_tid),
            ..call
        });
    }
    for kernel in other.kernels.iter() {
        let (start_ns, end_ns) = (kernel.start_ns + 1_000, kernel.end_ns + 1_000);
        both.kernels.push(llmprof_core::trace::kernel::Kernel {
            global_pid: away(kernel.global_pid),
            device: 1,
            start_ns,
            end_ns,
            ..kernel.into()
        });
    }
    both
}

const SKETCH: &str = "range 1 prefill 0..100\ncall 1 1 10..11\ncall 1 2 20..21\ncall 1 3 200..201
     kernel 1 k 300..310 7\nkernel 2 k 305..320 8\nkernel 3 l 320..330 7";

fn lines(processes: &Processes) -> String {
    let line = |it: &ProcessStage| {
        let (ns, busy) = (it.kernel_ms.unwrap() * 1e6, it.busy_ms.unwrap() * 1e6);
        format!(
            "{} on {} {:?}: {} launches, {ns:.0} ns, busy {busy:.0}",
            it.process, it.device, it.stage, it.launches
        )
    };
    processes.stages.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn work_by_process_and_device_adds_up_to_the_stage_totals() {
    let trace = twice(SKETCH);
    let timeline = Capture::of(&trace);
    let by_process = processes(&timeline);
    insta::assert_snapshot!(lines(&by_process), @r#"
    7 on 0 "": 1 launches, 10 ns, busy 10
    7 on 0 "prefill": 2 launches, 25 ns, busy 20
    9 on 1 "": 1 launches, 10 ns, busy 10
    9 on 1 "prefill": 2 launches, 25 ns, busy 20
    "#);
    for total in crate::kernels::kernels(&timeline).stages {
        let of_stage = || by_process.stages.iter().filter(|it| it.stage == total.stage);
        let sum: f64 = of_stage().filter_map(|it| it.kernel_ms).sum();
        assert_eq!(of_stage().map(|it| it.launches).sum::<u64>(), total.launches);
        assert!((sum - total.kernel_ms.unwrap()).abs() < 1e-9);
    }
    let kernels: Vec<_> = by_process
        .kernels
        .iter()
        .map(|it| (it.process, it.kernel_name.as_str(), it.calls))
        .collect();
    assert_eq!(kernels, [(7, "k", 2), (9, "k", 2), (7, "l", 1), (9, "l", 1)]);
    let ranges: Vec<_> =
        by_process.ranges.iter().map(|it| (it.process, it.name.as_str(), it.ns.total)).collect();
    assert_eq!(ranges, [(7, "prefill", 100), (9, "prefill", 100)]);
}

#[test]
fn windows_of_one_process_are_one_process_in_every_table() {
    let mut trace = twice(SKETCH);
    trace.kernels = trace.kernels.map(|_, it| it.device = 0);
    let place = ProcessRank { window_of: Some(7 << 24), ..ProcessRank::default() };
    trace.collectives.processes = [(9 << 24, place)].into();
    let by_process = processes(&Capture::of(&trace));
    insta::assert_snapshot!(lines(&by_process), @r#"
    7 on 0 "": 2 launches, 20 ns, busy 20
    7 on 0 "prefill": 4 launches, 50 ns, busy 40
    "#);
    let rows = (by_process.devices(), by_process.kernels.len(), by_process.ranges.len());
    assert_eq!(rows, (1, 0, 0), "one process has no separate kernels and ranges");
    let calls = crate::kernels::nsys_sums::sums(&Capture::of(&trace)).calls;
    assert!(calls.iter().all(|it| it.processes == 1), "{calls:?}");
}

#[test]
fn a_single_process_and_device_has_no_separate_kernels_and_ranges() {
    let mut trace = capture(SKETCH);
    trace.processes = [(7 << 24, "python3".to_owned())].into();
    let by_process = processes(&Capture::of(&trace));
    let rows = (by_process.stages.len(), by_process.kernels.len(), by_process.ranges.len());
    assert_eq!(rows, (2, 0, 0));
    assert_eq!(by_process.stages[0].process_name.as_deref(), Some("python3"));
}

#[test]
fn a_process_that_only_copies_has_a_row() {
    let mut trace = capture(SKETCH);
    let copy = MemoryOp {
        start_ns: 0,
        end_ns: 1,
        bytes: 64,
        kind: llmprof_core::trace::timeline::CopyKind::HostToDevice,
        device: 3,
        stream: None,
        global_pid: 9 << 24,
        correlation_id: 0,
        graph_node: None,
        is_pageable: None,
    };
    trace.copies = vec![copy, copy];
    let by_process = processes(&Capture::of(&trace));
    let row = by_process.stages.iter().find(|it| it.device == 3).unwrap();
    assert_eq!((row.process, row.launches, row.copies, row.copied_bytes), (9, 0, 2, 128));
    assert_eq!(row.busy_ms, Some(1e-6), "the copies overlap");
}
