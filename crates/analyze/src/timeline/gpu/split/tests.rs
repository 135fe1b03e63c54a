//! Divided windows of sketches.

use llmprof_core::trace::timeline::{ApiCall, pid_of};
use proptest::prelude::*;

use super::*;
use crate::{kernels::tests::capture, timeline::gpu::device_tables};

/// One line per work and gap: `stage name calls ns alone`, `stage gap reason count ns after`.
fn lines(trace: &Timeline) -> String {
    let splits = device_tables(&Capture::of(trace), None, &WantedSteps::default()).1;
    let name = |of: &WorkOf| {
        let operator = of.operator.map(|at| splits.operators[at as usize].as_str()).unwrap_or("-");
        match of.kind {
            WorkKind::Kernel(at) => {
                let kind = &trace.kernels.kinds()[at as usize];
                format!("{operator} {}", trace.strings[kind.name as usize])
            }
            other => format!("{operator} {other:?}"),
        }
    };
    let mut lines = Vec::new();
    for it in &splits.stages {
        lines.push(format!(
            "{} windows {} ns {} other {}",
            it.stage, it.windows, it.window_ns, it.other_ns
        ));
        let work = it.work.iter().map(|(of, time)| {
            format!("{} calls {} ns {} alone {}", name(of), time.calls, time.ns, time.alone_ns)
        });
        lines.extend(work);
        let gaps = it.gaps.iter().map(|(gap, GapSum { count, ns, .. })| {
            let after = gap.after.as_ref().map(&name).unwrap_or_default();
            format!("{:?} {count} {ns} after {after}", gap.reason)
        });
        lines.extend(gaps);
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

#[test]
fn overlapping_kernels_share_the_time_and_the_first_gets_the_remainder() {
    let sketch = "range 1 prefill 0..40\ncall 1 1 1..2\ncall 1 2 2..3\ncall 1 3 3..4
        kernel 1 a 10..20 7\nkernel 2 b 15..22 8\nkernel 3 c 17..20 9";
    insta::assert_snapshot!(lines(&capture(sketch)), @"
    prefill windows 1 ns 40 other 0
    - a calls 1 ns 7 alone 5
    - b calls 1 ns 4 alone 2
    - c calls 1 ns 1 alone 0
    Host 0 1 after
    Host 1 18 after - b
    Launch 1 9 after
    ");
}

#[test]
fn gaps_have_their_reason_and_the_work_before_them() {
    let mut trace = capture(
        "range 1 prefill 0..100\ncall 1 1 5..10\ncall 1 2 40..50\ncall 1 3 51..52
         kernel 1 a 12..20 7\nkernel 1 b 25..30 7\nkernel 2 c 55..60 7\nkernel 3 d 70..100 7",
    );
    trace.kernels = trace.kernels.map(|at, it| it.graph_node = (at < 2).then_some(9));
    insta::assert_snapshot!(lines(&trace), @"
    prefill windows 1 ns 100 other 0
    - a calls 1 ns 8 alone 8
    - b calls 1 ns 5 alone 5
    - c calls 1 ns 5 alone 5
    - d calls 1 ns 30 alone 30
    Host 0 5 after
    Host 0 10 after - b
    Launch 1 7 after
    Launch 1 15 after - b
    InGraph 1 5 after - a
    Queued 1 10 after - c
    ");
}

#[test]
fn an_instance_on_two_gpus_is_one_with_two_windows() {
    let mut trace = capture(
        "range 1 prefill 0..100\ncall 1 1 1..2\ncall 1 2 2..3
         kernel 1 a 10..20 7\nkernel 2 a 10..20 7",
    );
    trace.kernels = trace.kernels.map(|at, it| it.device = at as u32);
    let stage =
        device_tables(&Capture::of(&trace), None, &WantedSteps::default()).1.stages.remove(0);
    assert_eq!((stage.instances, stage.windows), (1, 2));
}

#[test]
fn launches_of_graphs_are_told_from_launches_of_kernels() {
    let mut trace = capture(
        "range 1 prefill 0..100\ncall 1 1 5..40\ncall 1 2 50..60\nkernel 1 a 30..40 7
         kernel 2 b 60..100 7",
    );
    let first = trace.strings.len() as u32;
    trace.strings.extend(["hipGraphLaunch", "hipLaunchKernel"].map(str::to_owned));
    let calls = trace.cuda_calls.iter().map(|it| llmprof_core::trace::timeline::ApiCall {
        name: first + it.correlation_id as u32 - 1,
        ..it
    });
    trace.cuda_calls = calls.collect();
    insta::assert_snapshot!(lines(&trace), @"
    prefill windows 1 ns 100 other 0
    - a calls 1 ns 10 alone 10
    - b calls 1 ns 40 alone 40
    Host 0 5 after
    Host 1 10 after - a
    Launch 0 10 after - a
    GraphLaunch 1 25 after
    ");
}

#[test]
fn work_of_other_stages_is_no_time_of_this_one() {
    let sketch = "range 1 prefill 0..50\nrange 1 decode_all 50..100\ncall 1 1 1..2\ncall 1 2 51..52
        kernel 1 a 10..80 7\nkernel 2 b 60..70 8";
    insta::assert_snapshot!(lines(&capture(sketch)), @"
    prefill windows 1 ns 80 other 0
    - a calls 1 ns 70 alone 70
    Host 0 1 after
    Launch 1 9 after
    decode_all windows 1 ns 40 other 10
    - b calls 1 ns 10 alone 10
    Host 1 20 after - a
    ");
}

#[test]
fn other_work_has_the_process_stage_or_thread_that_launched_it() {
    let sketch = "range 1 decode_all 0..100\nrange 1 prefill 100..200\nrange 2 prefill 0..5
        call 1 1 1..2\ncall 2 2 1..2\ncall 3 3 1..2\ncall 4 4 1..2
        kernel 1 own 10..20 7\nkernel 3 thread 15..30 9\nkernel 2 stage 30..40 8
        kernel 4 training 50..80 6\nkernel 4 small 80..85 6";
    let mut trace = capture(sketch);
    let other: i64 = 1 << 40;
    let process = (7 << 24) | other;
    trace.kernels = trace.kernels.map(|at, it| it.global_pid |= if at > 2 { other } else { 0 });
    let of_call = |it: ApiCall| match it.correlation_id {
        4 => ApiCall { global_tid: it.global_tid | other, ..it },
        _ => it,
    };
    trace.cuda_calls = trace.cuda_calls.iter().map(of_call).collect();
    trace.processes = [(process, "python3".to_owned())].into();
    let splits = device_tables(&Capture::of(&trace), None, &WantedSteps::default()).1;
    let decode = splits.stages.iter().find(|it| it.stage == "decode_all").unwrap();
    let mut found: Vec<_> =
        decode.other.iter().map(|it| (it.launcher.as_str(), it.largest.as_str(), it.ns)).collect();
    found.sort_unstable();
    let process =
        format!("work of another process (python3, pid {}), of no stage", pid_of(process));
    let expected = [
        (process.as_str(), "training", 35),
        ("work of no stage, launched by thread 3", "thread", 10),
        ("work of prefill", "stage", 10),
    ];
    assert_eq!(found, expected);
    assert_eq!(decode.other_ns, 55);
}

proptest! {
    #[test]
    fn every_nanosecond_of_a_window_has_one_place(
        kernels in prop::collection::vec((0i64..60, 0i64..25, 0u32..3), 0..14)
    ) {
        let mut sketch = String::from("range 1 prefill 0..70\n");
        for at in 0..kernels.len() {
            sketch += &format!("call 1 {} 0..1\n", at + 1);
        }
        let mut kernels = kernels;
        kernels.sort_unstable();
        for (at, (start, ns, stream)) in kernels.iter().enumerate() {
            sketch += &format!("kernel {} k{} {start}..{} {stream}\n", at + 1, at % 4, start + ns);
        }
        let trace = capture(&sketch);
        let splits = device_tables(&Capture::of(&trace), None, &WantedSteps::default()).1;
        for it in &splits.stages {
            let runs = |t: &i64| kernels.iter().any(|(at, ns, _)| (*at..at + ns).contains(t));
            let busy = (0..90).filter(runs);
            let work: i64 = it.work.values().map(|time| time.ns).sum();
            prop_assert_eq!(work, busy.count() as i64);
            prop_assert_eq!(it.other_ns, 0);
            let gaps: i64 = it.gaps.values().map(|gap| gap.ns).sum();
            prop_assert_eq!(work + gaps, it.window_ns);
            prop_assert!(it.work.values().all(|time| (0..=time.ns).contains(&time.alone_ns)));
        }
    }
}

#[test]
fn a_stream_that_waits_at_the_start_of_a_stage_was_blocked_before_its_first_launch() {
    let sketch = "range 1 prefill 0..800000\ncall 1 1 200000..210000\nkernel 1 a 700000..800000 7";
    insta::assert_snapshot!(lines(&capture(sketch)), @"
    prefill windows 1 ns 800000 other 0
    - a calls 1 ns 100000 alone 100000
    Unrecorded 1 700000 after
    ");
    let late = sketch.replace("200000..210000", "400000..410000");
    insta::assert_snapshot!(lines(&capture(&late)), @"
    prefill windows 1 ns 800000 other 0
    - a calls 1 ns 100000 alone 100000
    Host 1 400000 after
    Launch 0 10000 after
    Unrecorded 0 290000 after
    ");
}

#[test]
fn stages_of_two_divisions_keep_their_operators_and_calls() {
    let of = |stage: &str, operator: &str| {
        let sketch = format!(
            "range 1 {stage} 0..60\nrange 1 {operator} 1..50\ncall 1 1 2..3\nkernel 1 a 10..40 7"
        );
        device_tables(&Capture::of(&capture(&sketch)), None, &WantedSteps::default()).1
    };
    let (mut all, more) = (of("prefill", "attend"), of("decode_all", "project"));
    all.append(more);
    let operators: Vec<_> = all
        .stages
        .iter()
        .flat_map(|it| it.work.keys())
        .filter_map(|it| Some(all.operators[it.operator? as usize].as_str()))
        .collect();
    assert_eq!(operators, ["attend", "project"]);
}

#[test]
fn launched_work_that_starts_a_millisecond_late_waited_for_something_else() {
    let gap = |ns: i64, reason: &str| {
        let (from, end) = (100 + ns, 10_000_000);
        let sketch = format!(
            "range 1 prefill 0..{end}\ncall 1 1 1..2\ncall 1 2 3..4
             kernel 1 a 10..100 7\nkernel 2 b {from}..{end} 7"
        );
        let found = lines(&capture(&sketch));
        assert!(found.contains(&format!("{reason} 1 {ns} after - a")), "{found}");
    };
    gap(2_000_000, "Wait");
    gap(900_000, "Queued");
}

#[test]
fn launched_work_that_starts_late_while_another_gpu_works_waits_for_nothing_unrecorded() {
    let cases =
        [("500000..900000", "Queued"), ("500000..510000", "Wait"), ("3000000..3900000", "Wait")];
    for (other, reason) in cases {
        let mut trace = capture(&format!(
            "range 1 prefill 0..4000000\ncall 1 1 1..2\ncall 1 2 3..4\ncall 1 3 5..6
             kernel 1 a 10..100 7\nkernel 3 c {other} 7\nkernel 2 b 2000100..4000000 7"
        ));
        trace.kernels = trace.kernels.map(|at, it| it.device = u32::from(at == 1));
        let found = lines(&trace);
        assert!(found.contains(&format!("{reason} 1 2000000 after - a")), "{other}: {found}");
    }
}

#[test]
fn a_gap_has_the_name_of_a_range_for_its_time_in_the_range_alone() {
    for (tune, inside) in [
        (2_000_000..8_000_000, 6_000_000),
        (0..9_000_000, 9_000_000),
        (3_000_000..9_500_000, 6_000_000),
        (6_000_000..8_000_000, 0),
    ] {
        let sketch = format!(
            "range 1 prefill 0..10000000\nrange 1 tune {}..{}\ncall 1 1 9000000..9000010
             kernel 1 a 9000015..10000000 7",
            tune.start, tune.end
        );
        let splits = device_tables(&Capture::of(&capture(&sketch)), None, &WantedSteps::default());
        let gaps = &splits.1.stages[0].gaps;
        let of = |wanted: GapReason| -> i64 {
            gaps.iter().filter(|it| it.0.reason == wanted).map(|it| it.1.ns).sum()
        };
        let found = [GapReason::LongCall, GapReason::Host, GapReason::Launch].map(of);
        assert_eq!(found, [inside, 9_000_000 - inside, 15], "{tune:?}");
    }
}

proptest! {
    #[test]
    fn each_gap_is_counted_once_and_its_parts_add_up(
        gaps in prop::collection::vec((1i64..6_000_000, 0i64..6_000_000, 0i64..3_000_000), 1..12)
    ) {
        let (mut at, mut sketch, mut idle) = (0, String::new(), 0);
        for (id, (before, launch, range)) in gaps.iter().enumerate() {
            let (from, called) = (at, at + before);
            at = called + launch;
            sketch += &format!("range 1 tune {from}..{}\n", from + before.min(range));
            sketch += &format!("call 1 {} {called}..{}\n", id + 1, at + 50);
            sketch += &format!("kernel {} k {at}..{} 7\n", id + 1, at + 100);
            idle += before + launch;
            at += 100;
        }
        let sketch = format!("range 1 prefill 0..{at}\n{sketch}");
        let splits = device_tables(&Capture::of(&capture(&sketch)), None, &WantedSteps::default());
        let stage = &splits.1.stages[0];
        prop_assert_eq!(stage.gaps.values().map(|it| it.count).sum::<u64>(), gaps.len() as u64);
        prop_assert_eq!(stage.gaps.values().map(|it| it.ns).sum::<i64>(), idle);
        let is_part = |it: &&GapSum| it.count == 0;
        prop_assert!(stage.gaps.values().filter(is_part).all(|it| it.parts > 0 && it.ns > 0));
    }
}

#[test]
fn the_rest_of_a_gap_is_divided_too_and_is_a_part_of_it() {
    let sketch = "range 1 prefill 0..100000000\nrange 1 load 0..51000000
        range 1 fetch 52000000..95000000\ncall 1 1 96000000..96000010
        kernel 1 a 96000015..100000000 7";
    let splits = device_tables(&Capture::of(&capture(sketch)), None, &WantedSteps::default()).1;
    let part = |(of, sum): (&GapAfter, &GapSum)| {
        let call = of.call.map_or("", |it| splits.host_calls[it as usize].as_str());
        (of.reason, call, (sum.count, sum.parts), sum.ns)
    };
    let mut found: Vec<_> = splits.stages[0].gaps.iter().map(part).collect();
    found.sort_unstable_by_key(|it| std::cmp::Reverse(it.3));
    let expected = [
        (GapReason::LongCall, "the range load", (1, 0), 51_000_000),
        (GapReason::LongCall, "the range fetch", (0, 1), 43_000_000),
        (GapReason::Host, "", (0, 1), 2_000_000),
        (GapReason::Launch, "", (0, 1), 15),
    ];
    assert_eq!(found, expected);
    assert_eq!(splits.long_gaps.len(), 2);
}
