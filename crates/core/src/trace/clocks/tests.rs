//! Tests of clocks that differ by a constant, drift, or cannot be compared.

use proptest::prelude::*;

use super::*;
use crate::domain::finding::Severity;
use crate::trace::{
    kernel::Kernel,
    timeline::{ApiCall, ApiCalls},
};

const PROCESS: i64 = 1 << 24;
const STEPS: i64 = 200;
const STEP_NS: i64 = 1_000_000;

/// Steps of one kernel: launched at 0, started after 6 us, ended after 206 us, awaited until
/// 210 us.
fn steps(wait: &str) -> Timeline {
    let mut trace =
        Timeline { strings: vec!["cudaLaunchKernel".into(), wait.into()], ..Timeline::default() };
    let mut calls = ApiCalls::default();
    for step in 0..STEPS {
        let at = step * STEP_NS;
        let call = |name: u32, from: i64, to: i64, correlation_id: i64| ApiCall {
            name,
            start_ns: at + from,
            end_ns: at + to,
            global_tid: PROCESS | 1,
            correlation_id,
        };
        calls.push(call(0, 0, 4_000, 2 * step + 1));
        calls.push(call(1, 5_000, 210_000, 2 * step + 2));
        trace.kernels.push(Kernel {
            name: 0,
            full_name: 0,
            device: 0,
            stream: 7,
            start_ns: at + 6_000,
            end_ns: at + 206_000,
            global_pid: PROCESS,
            correlation_id: 2 * step + 1,
            grid: [1; 3],
            block: [1; 3],
            registers: 0,
            shared_memory: 0,
            graph_node: None,
        });
    }
    trace.cuda_calls = calls;
    trace
}

/// Moves the kernels by an offset that depends on their index and time.
fn moved(mut trace: Timeline, by: impl Fn(usize, i64) -> i64) -> Timeline {
    trace.kernels = trace.kernels.map(|at, it| {
        (it.start_ns, it.end_ns) =
            (it.start_ns + by(at, it.start_ns), it.end_ns + by(at, it.end_ns));
    });
    trace.kernels.sort();
    trace.settle_device_times();
    trace
}

/// Largest difference between the kernels' times and the original ones.
fn worst_ns(trace: &Timeline) -> i64 {
    let original = steps("cudaDeviceSynchronize");
    let both = trace.kernels.iter().zip(original.kernels.iter());
    both.map(|(it, was)| (it.start_ns - was.start_ns).abs().max((it.end_ns - was.end_ns).abs()))
        .max()
        .unwrap()
}

fn messages(trace: &Timeline) -> Vec<&str> {
    trace.clock_findings.iter().map(|it| it.message.as_str()).collect()
}

#[test]
fn microseconds_are_tolerated() {
    for by in [-9_000, -2_500, 0, 2_500, 9_000] {
        let trace = moved(steps("cudaDeviceSynchronize"), |_, _| by);
        assert!(trace.clock_findings.is_empty() && trace.untimed.is_empty(), "{by}: {trace:?}");
        assert_eq!(worst_ns(&trace), by.abs());
    }
}

#[test]
fn a_clock_that_is_late_is_corrected_and_named() {
    for wait in ["cudaDeviceSynchronize", "cudaStreamSynchronize", "hipStreamSynchronize"] {
        let trace = moved(steps(wait), |_, _| 2_000_000);
        assert_eq!(
            messages(&trace),
            ["The clock of GPU 0 is 2.001 ms late: 200 of 200 waits of the host return up to \
                 1.996 ms before the work that they wait for has ended. Its times are moved to \
                 the host's clock, with an uncertainty of 10 us."]
        );
        assert!(worst_ns(&trace) <= 5_000);
        assert_eq!(trace.clock_findings[0].severity, Severity::Warning);
    }
}

#[test]
fn waits_for_events_prove_nothing() {
    let trace = moved(steps("cudaEventSynchronize"), |_, _| 2_000_000);
    assert!(trace.clock_findings.is_empty());
}

/// The recorded targets of the waits of [`steps`].
fn targets(device: Option<u32>, stream: Option<u32>) -> Vec<WaitTarget> {
    let target = |step| WaitTarget { process: PROCESS, correlation: 2 * step + 2, device, stream };
    (0..STEPS).map(target).collect()
}

#[test]
fn each_of_two_gpus_has_the_evidence_of_waits_that_name_it() {
    for (wait, stream) in [("cudaStreamSynchronize", Some(7)), ("cudaDeviceSynchronize", None)] {
        for late in [0, 1] {
            let mut trace = steps(wait);
            // The other GPU runs the same steps, with calls and waits of its own.
            let add = 2 * STEPS;
            let calls: Vec<ApiCall> = trace.cuda_calls.iter().collect();
            for it in calls {
                let correlation_id = it.correlation_id + add;
                trace.cuda_calls.push(ApiCall { correlation_id, ..it });
            }
            let kernels: Vec<Kernel> = trace.kernels.iter().map(Kernel::from).collect();
            for it in kernels {
                let correlation_id = it.correlation_id + add;
                trace.kernels.push(Kernel { device: 1, correlation_id, ..it });
            }
            trace.kernels = trace.kernels.map(|_, it| {
                let by = if it.device == late { 2_000_000 } else { 0 };
                (it.start_ns, it.end_ns) = (it.start_ns + by, it.end_ns + by);
            });
            trace.kernels.sort();
            trace.cuda_calls.sort();
            trace.wait_targets = targets(Some(0), stream);
            let of_other = targets(Some(1), stream);
            trace.wait_targets.extend(
                of_other.iter().map(|it| WaitTarget { correlation: it.correlation + add, ..*it }),
            );
            trace.settle_device_times();
            let found = messages(&trace);
            assert_eq!(found.len(), 1, "{wait}: {found:?}");
            let expected = format!("The clock of GPU {late} is 2.001 ms late: 200 of 200 waits");
            assert!(found[0].starts_with(&expected), "{wait}: {found:?}");
            let starts: Vec<i64> = trace.kernels.iter().map(|it| it.start_ns).collect();
            assert!(starts.chunks(2).all(|it| it[1] - it[0] <= CLOCK_TOLERANCE_NS));
        }
    }
}

#[test]
fn waits_of_two_processes_are_matched_to_their_work_if_all_of_them_name_device_0() {
    for (wait, stream) in [("cudaStreamSynchronize", Some(7)), ("cudaDeviceSynchronize", None)] {
        for late in [0, 1] {
            let mut trace = steps(wait);
            let other = 2 * PROCESS;
            let calls: Vec<ApiCall> = trace.cuda_calls.iter().collect();
            for it in calls {
                trace.cuda_calls.push(ApiCall { global_tid: other | 1, ..it });
            }
            let kernels: Vec<Kernel> = trace.kernels.iter().map(Kernel::from).collect();
            for it in kernels {
                trace.kernels.push(Kernel { device: 1, global_pid: other, ..it });
            }
            trace.kernels = trace.kernels.map(|_, it| {
                let by = if it.device == late { 2_000_000 } else { 0 };
                (it.start_ns, it.end_ns) = (it.start_ns + by, it.end_ns + by);
            });
            trace.kernels.sort();
            trace.cuda_calls.sort();
            trace.wait_targets = targets(Some(0), stream);
            let of_other = targets(Some(0), stream);
            trace
                .wait_targets
                .extend(of_other.iter().map(|it| WaitTarget { process: other, ..*it }));
            trace.settle_device_times();
            let found = messages(&trace);
            assert_eq!(found.len(), 1, "{wait}: {found:?}");
            let expected = format!("The clock of GPU {late} is 2.001 ms late: 200 of 200 waits");
            assert!(found[0].starts_with(&expected), "{wait}: {found:?}");
        }
    }
}

#[test]
fn a_wait_for_another_stream_proves_nothing() {
    let mut trace = steps("cudaStreamSynchronize");
    trace.wait_targets = targets(None, Some(20));
    assert!(moved(trace, |_, _| 2_000_000).findings.is_empty());
}

#[test]
fn a_clock_without_a_known_offset_is_withheld() {
    // Without a wait, the offset has one bound.
    let trace = moved(steps("cudaEventSynchronize"), |_, _| -2_000_000);
    assert_eq!(trace.clock_findings[0].severity, Severity::Critical);
    assert!(!trace.has_common_clock(PROCESS | 5, 0) && trace.has_common_clock(PROCESS, 1));
    // A jump is not a line.
    let jump = |_, at: i64| if at < STEPS * STEP_NS / 3 { 0 } else { 4_000_000 };
    let trace = moved(steps("cudaDeviceSynchronize"), jump);
    assert!(!trace.has_common_clock(PROCESS, 0), "{:?}", messages(&trace));
}

#[test]
fn few_kernels_with_times_against_the_others_are_excluded() {
    let of = |at: usize| move |it: usize, _: i64| if it == at { -3_000_000 } else { 0 };
    let trace = moved(steps("cudaDeviceSynchronize"), of(50));
    let fault = |trace: &Timeline| trace.untimed.faults().next().unwrap();
    assert_eq!((fault(&trace).0, fault(&trace).1.kernels), (TimeFault::BeforeLaunch, 1));
    assert!(trace.unequal_clocks.is_empty());
    let mut trace = steps("cudaDeviceSynchronize");
    let last = STEPS as usize - 1;
    trace.kernels = trace.kernels.map(|at, it| {
        it.end_ns += if at == last { 60_000_000_000 } else { 0 };
    });
    trace.settle_device_times();
    assert_eq!(fault(&trace).0, TimeFault::OutlastsWait);
    assert_eq!((trace.kernels.len(), trace.clock_findings.len()), (last, 0));
}

proptest! {
    #[test]
    fn times_are_the_hosts_within_the_tolerance_or_withheld(
        offset in -5_000_000i64..5_000_000, drift in -20i64..20
    ) {
        let by = |_: usize, at: i64| offset + at * drift / 1_000;
        let trace = moved(steps("cudaDeviceSynchronize"), by);
        let is_near = worst_ns(&trace) <= CLOCK_TOLERANCE_NS + 6_000;
        prop_assert!(is_near || !trace.has_common_clock(PROCESS, 0), "{:?}", trace.clock_findings);
        prop_assert!(is_near, "a line is known: {:?}", trace.clock_findings);
    }
}
