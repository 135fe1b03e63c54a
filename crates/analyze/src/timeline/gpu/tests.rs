//! GPU activity on sketches, and the resulting figures of a stage.

use llmprof_core::trace::timeline::{ApiCall, Timeline, process_of};

use super::*;
use crate::kernels::tests::{capture, launching};

/// Figures of prefill: `window busy host copy sync unknown gaps`. Calls of correlation 9 wait.
fn figures(sketch: &str) -> [i64; 7] {
    let mut trace = capture(sketch);
    let name = trace.strings.len() as u32;
    trace.strings.extend(["cudaLaunchKernel".to_owned(), "cudaStreamSynchronize_v3020".to_owned()]);
    let named = |call: ApiCall| ApiCall {
        name: if call.correlation_id == 9 { name + 1 } else { name },
        ..call
    };
    trace.cuda_calls = trace.cuda_calls.iter().map(named).collect();
    let stage =
        device_tables(&Capture::of(&trace), None, &WantedSteps::default()).0.totals.remove(0);
    let ns = |ms: Option<f64>| ms.map_or(-1, |ms| (ms * 1e6).round() as i64);
    let idle =
        [stage.idle_host_ms, stage.idle_copy_ms, stage.idle_sync_ms, stage.idle_unknown_ms].map(ns);
    [
        ns(stage.window_ms),
        ns(stage.busy_ms),
        idle[0],
        idle[1],
        idle[2],
        idle[3],
        stage.gaps.map_or(-1, |gaps| gaps as i64),
    ]
}

#[test]
fn a_gpu_waiting_for_the_host_is_idle_until_the_launch() {
    let sketch = "range 1 prefill 0..50\ncall 1 1 5..6\ncall 1 2 30..32
                  kernel 1 a 10..20 7\nkernel 2 b 35..60 7";
    assert_eq!(
        figures(sketch),
        [60, 35, 25, 0, 0, 0, 2],
        "0..10 and 20..35; the window ends with its last kernel"
    );
}

#[test]
fn idle_time_before_work_launched_earlier_has_an_unknown_reason() {
    let sketch = "range 1 prefill 0..30\ncall 1 1 0..1\ncall 1 2 1..2
                  kernel 1 a 1..10 7\nkernel 2 b 14..30 8";
    assert_eq!(figures(sketch), [30, 25, 1, 0, 0, 4, 2]);
}

#[test]
fn time_after_the_launching_call_returned_has_an_unknown_reason() {
    let sketch = |starts: &str| {
        figures(&format!(
            "range 1 prefill 0..40000\ncall 1 1 0..1\ncall 1 2 5000..8000\ncall 1 9 8000..40000
             kernel 1 a 1..1000 7\nkernel 2 b {starts}..40000 7"
        ))
    };
    assert_eq!(sketch("18000"), [40_000, 22_999, 17_001, 0, 0, 0, 2], "10 us are the launch");
    assert_eq!(sketch("30000"), [40_000, 10_999, 7_001, 0, 0, 22_000, 2]);
}

#[test]
fn waiting_in_the_driver_is_separate_from_host_work() {
    let sketch = "range 1 prefill 0..40\ncall 1 1 0..1\ncall 1 9 5..22\ncall 1 2 30..31
                  kernel 1 a 0..20 7\nkernel 2 b 32..40 7";
    assert_eq!(
        figures(sketch),
        [40, 28, 10, 0, 2, 0, 1],
        "20..22 in the wait, 22..32 until the launch"
    );
}

#[test]
fn kernels_on_two_streams_leave_no_gap_where_one_of_them_runs() {
    let sketch = "range 1 prefill 0..30\ncall 1 1 0..1\ncall 1 2 1..2
                  kernel 1 a 0..20 7\nkernel 2 b 10..30 8";
    assert_eq!(figures(sketch), [30, 30, 0, 0, 0, 0, 0]);
}

#[test]
fn time_after_the_last_kernel_counts_as_host_time() {
    let sketch = "range 1 prefill 0..30\ncall 1 1 0..1\nkernel 1 a 0..20 7";
    assert_eq!(figures(sketch), [30, 20, 10, 0, 0, 0, 1]);
}

/// All rows as `stage device: window busy other idle`, in nanoseconds; `-` for missing figures.
fn rows(trace: &Timeline) -> Vec<String> {
    let gpus = device_tables(&Capture::of(trace), None, &WantedSteps::default()).0;
    let ns = |ms: Option<f64>| ms.map_or("-".into(), |ms| format!("{}", (ms * 1e6).round()));
    let device = |device: Option<u32>| device.map_or("all".into(), |device| device.to_string());
    let row = |it: &StageGpu| {
        let figures = [it.window_ms, it.busy_ms, it.other_ms, it.idle_ms].map(ns).join(" ");
        format!("{} {}: {figures}", it.stage, device(it.device))
    };
    gpus.totals.iter().chain(&gpus.devices).map(row).collect()
}

#[test]
fn a_whole_traced_graph_is_busy_from_start_to_end() {
    let trace = capture(
        "range 1 decode_all 0..100\ncall 1 1 2..4\ncall 1 2 52..54\ngraph 1 7 10..50 7
         graph 2 7 60..95 7\ncopy 2 64 95..98",
    );
    assert_eq!(rows(&trace), ["decode_all 0: 100 78 0 22"]);
    let stage =
        device_tables(&Capture::of(&trace), None, &WantedSteps::default()).0.totals.remove(0);
    assert!(stage.busy_is_upper_bound);
    assert_eq!((stage.whole_graphs, stage.launches, stage.busy_pct), (2, 0, Some(78.0)));
}

#[test]
fn graph_launches_are_counted_by_stage_for_both_kinds_of_tracing() {
    let mut trace = capture(
        "range 1 decode_all 0..100\ncall 1 1 2..4\ncall 1 2 52..54\ncall 1 3 120..121
         kernel 1 a 5..9 7",
    );
    trace.strings[0] = "cudaGraphLaunch_v10000".into();
    let stage =
        device_tables(&Capture::of(&trace), None, &WantedSteps::default()).0.totals.remove(0);
    assert_eq!(
        (stage.graph_launches, stage.whole_graphs, stage.busy_is_upper_bound),
        (Some(2), 0, false)
    );
}

#[test]
fn two_gpus_do_not_hide_each_others_idle_time() {
    let mut trace = capture(
        "range 1 prefill 0..40\ncall 1 1 0..1\ncall 1 2 1..2
         kernel 1 a 0..20 7\nkernel 2 b 20..40 7",
    );
    trace.kernels = trace.kernels.map(|at, kernel| kernel.device = at as u32);
    assert_eq!(
        rows(&trace),
        ["prefill all: 80 40 0 40", "prefill 0: 40 20 0 20", "prefill 1: 40 20 0 20"]
    );
}

#[test]
fn work_of_another_stage_is_neither_busy_nor_idle_time() {
    let trace = capture(
        "range 1 prefill 0..10\nrange 1 decode_all 10..50\ncall 1 1 0..1\ncall 1 2 12..13
         kernel 1 a 1..30 7\nkernel 2 b 35..50 7",
    );
    // The time in which decode was queued behind prefill belongs to prefill.
    assert_eq!(rows(&trace), ["prefill 0: 30 29 0 1", "decode_all 0: 20 15 0 5"]);
    let trace = capture(
        "range 1 prefill 0..10\nrange 1 decode_all 10..50\ncall 1 1 0..1\ncall 1 2 12..13
         call 1 3 14..15\nkernel 1 a 1..30 7\nkernel 2 b 20..25 8\nkernel 3 b 35..50 8",
    );
    assert_eq!(rows(&trace), ["prefill 0: 30 29 0 1", "decode_all 0: 30 20 5 5"]);
}

#[test]
fn fills_are_separate_from_copies() {
    let trace = capture(
        "range 1 prefill 0..10\ncall 1 1 0..1\ncall 1 2 1..2\ncopy 1 100 1..3\nfill 2 4000 3..4",
    );
    let stage =
        device_tables(&Capture::of(&trace), None, &WantedSteps::default()).0.totals.remove(0);
    let copies: Vec<_> =
        stage.copies.iter().map(|it| (it.kind.as_str(), it.calls, it.bytes)).collect();
    assert_eq!(
        (copies, stage.fills, stage.filled_bytes),
        (vec![("device_to_host", 1, 100)], 1, 4_000)
    );
    assert_eq!(stage.busy_ms, Some(3e-6), "a device that copies or fills is not idle");
}

#[test]
fn a_capture_without_gpu_work_and_launches_has_no_gpu_rows() {
    let quiet = capture("range 1 prefill 0..10\nrange 1 decode_all 10..20");
    assert_eq!(rows(&quiet), Vec::<String>::new());
    let mut lost = capture("range 1 prefill 0..10\ncall 1 1 0..1\nkernel 1 a 1..3 7");
    lost.strings[0] = "cudaLaunchKernel_v7000".into();
    lost.kernels.truncate(0);
    lost.kernels = Default::default();
    assert_eq!(rows(&lost), ["prefill all: - - - -"], "unrecorded work cannot be measured");
}

#[test]
fn a_kernel_before_its_launch_removes_figures_that_compare_two_clocks() {
    let sketch = |kernel: &str| {
        capture(&format!(
            "range 1 prefill 15000..19000\nrange 1 decode_all 19000..19900
             call 1 1 16000..16001\ncall 1 2 19100..19101\n{kernel}\nkernel 2 b 19200..19300 7"
        ))
    };
    assert_eq!(
        rows(&sketch("kernel 1 a 15100..15300 7"))[0],
        "prefill 0: 4000 200 0 3800",
        "within the tolerance"
    );
    let early = sketch("kernel 1 a 5000..15300 7");
    assert_eq!(rows(&early), ["prefill 0: - - - -", "decode_all 0: 900 100 0 800"]);
    let gpus = device_tables(&Capture::of(&early), None, &WantedSteps::default()).0;
    assert_eq!(gpus.early, [EarlyStart { stage: "prefill".into(), count: 1, worst_ns: 11_000 }]);
}

#[test]
fn a_kernel_of_unknown_stage_removes_busy_time_where_it_ran() {
    let trace = capture(
        "range 1 prefill 0..20\nrange 1 decode_all 20..40\ncall 1 1 1..2
         kernel 1 a 2..8 7\nkernel 9 lost 25..30 7",
    );
    assert_eq!(rows(&trace), ["prefill 0: 20 6 0 14", "decode_all 0: 20 - - 15"]);
}

#[test]
fn overlapping_kernels_and_copies_are_parts_of_busy_time() {
    let trace = capture(
        "range 1 prefill 0..40\ncall 1 1 0..1\ncall 1 2 1..2\ncall 1 3 2..3\ncall 1 4 3..4
         kernel 1 a 2..20 7\nkernel 2 b 10..30 8\ncopy 3 64 25..38\ncopy 4 64 28..39",
    );
    let stage =
        device_tables(&Capture::of(&trace), None, &WantedSteps::default()).0.totals.remove(0);
    let ns = |ms: Option<f64>| (ms.unwrap() * 1e6).round();
    let figures =
        [stage.busy_ms, stage.overlap_ms, stage.copying_ms, stage.copy_overlap_ms].map(ns);
    assert_eq!(figures, [37.0, 10.0, 14.0, 5.0], "2..39; 10..20; 25..39; 25..30");
}

#[test]
fn a_graph_whose_gpu_is_unknown_is_of_no_gpu_and_hides_the_busy_time_of_its_stage() {
    let mut trace = capture(
        "range 1 prefill 0..50\nrange 1 decode_all 60..100\ncall 1 1 5..6\ncall 1 2 61..62
         call 1 3 62..63
         kernel 1 a 10..20 7\nkernel 2 a 65..70 7\ngraph 3 5 70..90 8",
    );
    trace.graphs[0].device = llmprof_core::trace::timeline::ON_HOST;
    let timeline = Capture::of(&trace);
    let (gpus, splits, _) = device_tables(&timeline, None, &WantedSteps::default());
    let row = |stage: &str| gpus.totals.iter().find(|it| it.stage == stage).unwrap().clone();
    let (prefill, decode) = (row("prefill"), row("decode_all"));
    assert_eq!((prefill.devices, prefill.busy_ms), (1, Some(10e-6)));
    assert_eq!((decode.devices, decode.window_ms, decode.whole_graphs), (1, Some(40e-6), 1));
    assert_eq!((decode.busy_ms, decode.idle_ms, decode.other_ms), (None, None, None));
    let unplaced = ReasonSet::from([WithheldReason::UnplacedGraph]);
    assert_eq!(gpus.devices.len(), 0);
    assert_eq!(gpus.reasons.last(), Some(&("decode_all".to_owned(), unplaced)));
    assert_eq!(splits.stages.iter().map(|it| it.stage.as_str()).collect::<Vec<_>>(), ["prefill"]);
    let kernels = crate::kernels::kernels(&timeline).stages;
    let busy = kernels.iter().map(|it| (it.stage.as_str(), it.busy_ms));
    assert_eq!(busy.collect::<Vec<_>>(), [("decode_all", None), ("prefill", Some(10e-6))]);
    let processes = crate::timeline::processes::processes(&timeline);
    assert_eq!(processes.devices(), 1);
}

#[test]
fn an_instance_has_the_mean_number_of_gpus_on_which_it_runs_kernels() {
    // Instances, each of a thread that launches on this GPU.
    let gpus = |work: &[(i64, u32)]| {
        let line = |(at, (thread, _)): (usize, &(i64, u32))| {
            let (id, t) = (at as i64 + 1, 100 * at as i64);
            let sketch = launching("prefill", id, [(t, t + 90), (t + 5, t + 6), (t + 10, t + 20)]);
            sketch
                .replace("range 1", &format!("range {thread}"))
                .replace("call 1", &format!("call {thread}"))
        };
        let lines: Vec<String> = work.iter().enumerate().map(line).collect();
        let mut trace = capture(&format!("{}\ncopy 0 8 0..1", lines.join("\n")));
        trace.kernels = trace.kernels.map(|at, it| {
            it.device = work[at].1;
            it.global_pid |= process_of(work[at].0);
        });
        trace.copies.iter_mut().for_each(|it| it.device = 2);
        let found = device_tables(&Capture::of(&trace), None, &WantedSteps::default()).0;
        found.gpus_of_instance("prefill")
    };
    let other = 1 << 40;
    assert_eq!(gpus(&[(1, 0), (1, 1)]), 2.0, "one thread launches on both");
    assert_eq!(gpus(&[(1, 0), (2, 1)]), 1.0, "each thread has a GPU");
    assert_eq!(gpus(&[(1, 0), (1, 0)]), 1.0, "another GPU has a copy only");
    assert_eq!(gpus(&[(1, 0), (1, 1), (other, 0), (other, 0)]), 1.5, "half of them use two");
    assert_eq!(gpus(&[(1, 0), (1, 1), (other, 0)]), 5.0 / 3.0, "two of three use two");
    assert_eq!(StageGpus::default().gpus_of_instance("prefill"), 1.0);
}
