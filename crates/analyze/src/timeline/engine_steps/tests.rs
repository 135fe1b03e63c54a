//! Steps of sketched captures, with their work.

use llmprof_core::trace::{Trace, clocks::UnequalClock, stage::StageRules, timeline::Timeline};
use proptest::prelude::*;

use super::*;
use crate::{
    kernels::tests::{capture, launching},
    timeline::open_ranges::{EXCLUDED, NONE},
};

fn of(sketch: &str) -> Vec<EngineStepRecord> {
    let trace = capture(sketch);
    engine_steps(&Capture::of(&trace))
}

#[test]
fn a_step_has_the_work_that_was_launched_in_its_range() {
    let steps = of("range 1 execute_context_1(512)_generation_0(0) 100..200
         range 1 execute_context_0(0)_generation_1(1) 300..400
         range 1 prepare 300..310
         call 1 1 110..111\ncall 1 2 150..151\ncall 1 3 310..311\ncall 1 4 390..391
         call 1 5 450..451
         kernel 1 a 120..140 7\nkernel 2 a 160..260 7\nkernel 3 b 320..340 7
         kernel 4 b 395..415 7\nkernel 5 c 460..470 7");
    let rows: Vec<_> = steps
        .iter()
        .map(|it| {
            let us = |ms: f64| (ms * 1e6).round() as i64;
            (
                it.class.unwrap(),
                us(it.start_ms),
                us(it.host_ms),
                it.device_ms.map(us),
                it.gap_ms.map(us),
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            (StepClass::Prefill, 0, 100, Some(140), Some(20)),
            (StepClass::Decode, 200, 100, Some(95), Some(55)),
        ]
    );
    assert_eq!((steps[0].kernels, steps[0].prefill_tokens), (2, Some(512)));
    assert!(!steps[0].is_replayed);
}

#[test]
fn named_steps_with_work_on_an_unknown_clock_have_times_of_the_host_alone() {
    let mut trace = capture(
        "range 1 execute_context_0(0)_generation_1(1) 100..200
         range 1 execute_context_0(0)_generation_1(1) 300..400
         call 1 1 110..111\ncall 1 2 310..311
         kernel 1 a 120..190 7\nkernel 2 a 2000320..2000390 7",
    );
    let process = process_of(trace.ranges[0].global_tid);
    trace.unequal_clocks.push(UnequalClock { process, device: 0 });
    for it in engine_steps(&Capture::of(&trace)) {
        assert_eq!((it.step_ms, it.host_ms, it.kernels), (100e-6, 100e-6, 1));
        assert_eq!((it.device_ms, it.gap_ms, it.unrecorded_wait_ms), (None, None, 0.0));
    }
}

#[test]
fn excluded_time_is_in_no_time_of_a_step() {
    // Steps of 100 ns every 200 ns, each with kernels at 20 to 50 and 60 to 100.
    let step = |at: i64| {
        let (start, first, second) = (200 * at, 2 * at + 1, 2 * at + 2);
        let after = |ns: i64| start + ns;
        let launch = |id: i64, call: i64, (from, to): Interval| {
            let (call, end) = (after(call), after(call + 1));
            format!("call 1 {id} {call}..{end}\nkernel {id} a {}..{} 7", after(from), after(to))
        };
        let range = format!("range 1 execute_context_0(0)_generation_8(8) {start}..{}", after(100));
        [range, launch(first, 10, (20, 50)), launch(second, 55, (60, 100))].join("\n")
    };
    let steps = [step(0), step(1), step(2)].join("\n");
    let ns = |ms: f64| (ms * 1e6).round() as i64;
    let whole = (100, 100, Some(200), Some(80), Some(10));
    for (check, at, expected) in [
        ("1000..1010", 1, whole),
        ("240..270", 1, (70, 70, None, Some(20), Some(0))),
        ("240..270", 2, whole),
        ("252..254", 1, (98, 98, None, Some(78), Some(8))),
        ("310..390", 1, whole),
        ("310..390", 2, (100, 100, None, Some(80), Some(10))),
    ] {
        let rules = StageRules::with(vec![], vec![], vec!["check".to_owned()]);
        let trace = capture(&format!("{steps}\nrange 1 check {check}")).with_rules(rules);
        let it = &engine_steps(&Capture::of(&trace))[at];
        let times = (ns(it.host_ms), ns(it.step_ms), it.period_ms.map(ns));
        let device = (it.device_ms.map(ns), it.gap_ms.map(ns));
        let found = (times.0, times.1, times.2, device.0, device.1);
        assert_eq!(found, expected, "step {at} without {check}");
    }
}

/// Kernels of each step, and the number of instances of all stages.
fn kernels(trace: &Timeline) -> (Vec<u64>, usize) {
    let timeline = Capture::of(trace);
    let steps = engine_steps(&timeline);
    (steps.iter().map(|it| it.kernels).collect(), timeline.stages.instances.len())
}

#[test]
fn a_step_in_two_domains_or_around_itself_is_one_with_all_of_its_work() {
    let work = "call 1 1 10..11\ncall 1 2 60..61\ncall 1 3 110..111
        kernel 1 a 20..21 7\nkernel 2 a 70..71 7\nkernel 3 a 120..121 7";
    let plain = "range 1 execute_context_0(0)_generation_4(4) 0..100
        range 1 execute_context_0(0)_generation_4(4) 100..200";
    assert_eq!(kernels(&capture(&format!("{plain}\n{work}"))), (vec![2, 1], 2));
    let mut twice = capture(&format!("{plain}\n{plain}\n{work}"));
    twice.ranges[2..].iter_mut().for_each(|it| it.domain = "other".into());
    twice.ranges.sort_by_key(|it| it.start_ns);
    assert_eq!(kernels(&twice), (vec![2, 1], 2));
    let inside = "range 1 execute_context_0(0)_generation_4(4) 20..30";
    assert_eq!(kernels(&capture(&format!("{plain}\n{inside}\n{work}"))), (vec![2, 1], 2));
    let other = "range 1 execute_context_1(9)_generation_0(0) 20..30";
    let both = capture(&format!("{plain}\n{other}\n{work}"));
    assert_eq!(kernels(&both), (vec![2, 0, 1], 3), "work after the end of the inner step");
}

#[test]
fn a_start_end_step_has_the_work_of_all_threads_of_its_process() {
    let sketch = "cross 1 execute_context_0(0)_generation_4(4) 0..100
        range 3 execute_context_1(9)_generation_0(0) 0..100
        call 1 1 10..11\ncall 2 2 60..61\ncall 3 3 70..71
        kernel 1 a 20..21 7\nkernel 2 a 70..71 7\nkernel 3 a 80..81 7";
    assert_eq!(kernels(&capture(sketch)), (vec![2, 1], 2));
}

proptest! {
    #[test]
    fn steps_are_the_instances_of_stages_and_have_no_launches_of_others(
        ranges in prop::collection::vec(
            (0usize..3, 0i64..60, 1i64..40, 1i64..3, any::<bool>()),
            1..8,
        ),
        calls in prop::collection::btree_map(0i64..100, 1i64..3, 0..12),
    ) {
        const NAMES: [&str; 3] = [
            "execute_context_0(0)_generation_4(4)",
            "execute_context_0(0)_generation_2(2)",
            "execute_context_1(9)_generation_0(0)",
        ];
        let mut sketch: Vec<String> = Vec::new();
        for (name, start, ns, thread, crosses) in ranges {
            let (style, name) = (if crosses { "cross" } else { "range" }, NAMES[name]);
            sketch.push(format!("{style} {thread} {name} {start}..{}", start + ns));
        }
        for (id, (start, thread)) in (1..).zip(&calls) {
            sketch.push(format!("call {thread} {id} {start}..{}", start + 1));
            sketch.push(format!("kernel {id} k {}..{} 7", 100 + id, 101 + id));
        }
        let trace = capture(&sketch.join("\n"));
        let timeline = Capture::of(&trace);
        let steps = engine_steps(&timeline);
        for class in [StepClass::Prefill, StepClass::Decode] {
            let of_class = steps.iter().filter(|it| it.class == Some(class)).count();
            let labels = &timeline.stages.labels;
            let label = labels.iter().position(|it| Some(it.as_str()) == class.stage());
            let instances = timeline.stages.instances.iter();
            let instances = instances.filter(|it| Some(it.label) == label).count();
            prop_assert_eq!(of_class, instances);
        }
        let in_steps: u64 = steps.iter().map(|it| it.kernels).sum();
        let in_stages = timeline.kernel_joins().map(|it| it.instance);
        let in_stages = in_stages.filter(|it| *it != NONE && *it != EXCLUDED).count();
        prop_assert_eq!(in_steps, in_stages as u64);
    }
}

#[test]
fn a_step_without_work_has_no_device_time_and_other_ranges_are_no_steps() {
    let steps = of("range 1 step[DECODE_bs=1] 0..10\nrange 1 decode_step 0..10");
    assert!(steps.is_empty());
    let steps = of("range 1 execute_context_0(0)_generation_1(1) 300..400");
    assert_eq!((steps[0].device_ms, steps[0].gap_ms, steps[0].kernels), (None, None, 0));
}

/// Nanoseconds since the end of the step before, by step.
fn periods(sketch: &str) -> Vec<Option<i64>> {
    let mut trace = capture(sketch);
    trace.ranges.iter_mut().for_each(|it| it.name = it.name.replace('~', " "));
    let steps = engine_steps(&Capture::of(&trace));
    steps.iter().map(|it| it.period_ms.map(|ms| (ms * 1e6).round() as i64)).collect()
}

#[test]
fn a_step_after_one_of_another_class_or_mode_has_no_period() {
    let of_class = "range 1 execute_context_0(0)_generation_1(1) 0..10
        range 1 execute_context_0(0)_generation_1(1) 20..30
        range 1 execute_context_1(9)_generation_0(0) 30..40
        range 1 execute_context_0(0)_generation_1(1) 40..50";
    assert_eq!(periods(of_class), [None, Some(20), None, None]);
    let of_mode = "range 1 step[A~bs=1] 0..10\nrange 1 step[B~bs=1] 20..30
        range 1 step[B~bs=1] 30..50";
    assert_eq!(periods(of_mode), [None, None, Some(20)]);
}

#[test]
fn threads_with_steps_at_once_have_periods_of_their_own_and_one_engine_may_change_threads() {
    let step = |thread: u32, from: i64, to: i64| {
        format!("range {thread} execute_context_0(0)_generation_1(1) {from}..{to}")
    };
    let of = |steps: &[(u32, i64, i64)]| {
        let lines: Vec<String> = steps.iter().map(|it| step(it.0, it.1, it.2)).collect();
        periods(&lines.join("\n"))
    };
    let two = [(1, 0, 100), (2, 50, 150), (1, 100, 200), (2, 150, 250)];
    assert_eq!(of(&two), [None, None, Some(100), Some(100)]);
    let one = [(1, 0, 100), (2, 100, 200), (1, 200, 300)];
    assert_eq!(of(&one), [None, Some(100), Some(100)]);
}

#[test]
fn a_step_lasts_until_its_copies_have_ended_and_so_do_the_times_of_steps() {
    let name = "execute_context_0(0)_generation_2(2)";
    let step = |at: i64| {
        let times = [(at, at + 100), (at + 10, at + 20), (at + 20, at + 60)];
        let (id, call, copy) = (9_000 + at, at + 30, at + 60);
        let work = format!("call 1 {id} {call}..{}\ncopy {id} 8 {copy}..{}", at + 40, at + 150);
        format!("{}\n{work}", launching(name, 1 + at, times))
    };
    let trace = capture(&[step(0), step(1_000), step(2_000)].join("\n"));
    for it in engine_steps(&Capture::of(&trace)) {
        let device = (it.device_ms, it.gap_ms);
        assert_eq!((it.step_ms, device), (150e-6, (Some(130e-6), Some(0.0))), "{it:?}");
    }
    let found = crate::analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
    assert_eq!(found.step_times[0].ms.max, found.step_batches[0].ms.max);
}

#[test]
fn a_step_is_busy_while_any_kind_of_its_work_runs_in_any_order() {
    let range = "range 1 execute_context_0(0)_generation_2(2) 0..1000";
    for (work, expected) in [
        ("graph 1 5 100..900 7", (800, 0)),
        // The kernel starts after the graph: neither hides the other.
        ("graph 1 5 100..900 7\nkernel 2 k 910..950 7", (850, 10)),
        ("kernel 1 k 20..60 7\ngraph 2 5 100..900 7", (880, 40)),
        ("kernel 1 k 100..200 7\ncopy 2 8 200..500", (400, 0)),
        ("fill 1 8 50..90\nkernel 2 k 100..200 7\ncopy 3 8 150..300", (250, 10)),
        ("fill 1 8 50..90\ngraph 2 5 100..700 7\nkernel 3 k 650..800 8", (750, 10)),
    ] {
        let calls = 1..=work.lines().count();
        let calls = calls.map(|id| format!("call 1 {id} {id}0..{id}5\n")).collect::<String>();
        let it = &of(&format!("{range}\n{calls}{work}"))[0];
        let ns = |ms: Option<f64>| (ms.unwrap() * 1e6).round() as i64;
        assert_eq!((ns(it.device_ms), ns(it.gap_ms)), expected, "{work}");
    }
}
