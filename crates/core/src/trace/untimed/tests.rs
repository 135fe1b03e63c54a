//! Tests of kernels that outlast their successors, and of times that were not recorded.

use super::*;
use crate::trace::timeline::Timeline;

/// Kernels of one stream as start, end and launch of their graph; 0 for a kernel of its own.
fn timeline(kernels: &[(i64, i64, i64)]) -> Timeline {
    let mut trace = Timeline::default();
    for (at, (start_us, end_us, graph_launch)) in kernels.iter().enumerate() {
        let is_node = *graph_launch != 0;
        trace.kernels.push(Kernel {
            name: 0,
            full_name: 0,
            device: 0,
            stream: 7,
            start_ns: start_us * 1_000,
            end_ns: end_us * 1_000,
            global_pid: 1 << 24,
            correlation_id: if is_node { *graph_launch } else { 1_000 + at as i64 },
            grid: [1; 3],
            block: [1; 3],
            registers: 0,
            shared_memory: 0,
            graph_node: is_node.then_some(at as u64),
        });
    }
    trace.kernels.sort();
    trace
}

/// Starts of the excluded kernels, microseconds.
fn excluded(mut trace: Timeline) -> Vec<i64> {
    trace.exclude_overlong();
    trace.untimed.kernels.iter().map(|it| it.start_ns / 1_000).collect()
}

#[test]
fn a_kernel_that_outlasts_a_later_one_of_its_stream_has_no_valid_time() {
    let kernels = [(0, 10, 0), (12, 5_000, 0), (24, 30, 0), (32, 40, 0)];
    assert_eq!(excluded(timeline(&kernels)), [12]);
    let mut trace = timeline(&kernels);
    trace.exclude_overlong();
    let (fault, count) = trace.untimed.faults().next().unwrap();
    assert_eq!((fault, count.kernels), (TimeFault::OutlastsSuccessor, 1));
    assert_eq!(count.worst, Some((4_970_000, 0)), "beyond the first successor");
    assert_eq!(trace.kernels.len(), 3);
}

#[test]
fn a_kernel_outlasts_a_successor_behind_one_that_it_overlaps() {
    // The second is partly covered, the third wholly.
    assert_eq!(excluded(timeline(&[(0, 100, 0), (50, 120, 0), (60, 80, 0)])), [0, 50]);
}

#[test]
fn a_successor_that_starts_early_and_ends_later_is_valid() {
    assert_eq!(
        excluded(timeline(&[(0, 10, 0), (8, 20, 0), (19, 30, 0), (29, 30, 0)])),
        Vec::<i64>::new()
    );
}

#[test]
fn ends_that_differ_by_rounding_are_valid() {
    assert_eq!(excluded(timeline(&[(0, 12, 0), (10, 10, 0)])), Vec::<i64>::new());
    assert_eq!(excluded(timeline(&[(0, 13, 0), (10, 10, 0)])), [0]);
}

#[test]
fn branches_of_one_graph_launch_overlap_and_launches_do_not() {
    let branches = [(0, 100, 5), (10, 20, 5), (30, 90, 5), (40, 50, 5)];
    assert_eq!(excluded(timeline(&branches)), Vec::<i64>::new());
    let next = [&branches[..], &[(60, 70, 6)]].concat();
    assert_eq!(excluded(timeline(&next)), [0, 30]);
}

#[test]
fn kernels_of_other_streams_devices_and_processes_are_not_successors() {
    for change in [
        |it: &mut Kernel| it.stream = 8,
        |it: &mut Kernel| it.device = 1,
        |it: &mut Kernel| it.global_pid = 2 << 24,
    ] {
        let mut trace = timeline(&[(0, 100, 0), (10, 20, 0)]);
        trace.kernels = trace.kernels.map(|at, it| {
            if at == 1 {
                change(it);
            }
        });
        assert_eq!(excluded(trace), Vec::<i64>::new());
    }
}

#[test]
fn times_of_zero_were_not_recorded() {
    assert_eq!(TimeFault::of(0, 0), Some(TimeFault::NotRecorded));
    assert_eq!(TimeFault::of(-7, -7), Some(TimeFault::NotRecorded), "relative to a base");
    assert_eq!((TimeFault::of(0, 5), TimeFault::of(5, 5)), (None, None));
}
