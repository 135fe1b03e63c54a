//! Sketches with a step that lost kernels, calls or its range: no other step notices.

use llmprof_core::trace::{
    Trace,
    engine_steps::StepClass,
    framework::TimelineTool,
    inferred_steps::InferredStep,
    kernel::KernelTrace,
    stage::StageRules,
    timeline::{ApiCall, Timeline},
    untimed::TimeFault,
};
use proptest::prelude::*;

use super::*;
use crate::{
    Analysis, analyze,
    kernels::tests::capture,
    stages::{BETWEEN_STEPS, DECODE},
};

mod edges;

/// Kernels of a step.
const KERNELS: i64 = 4;
const STEP: &str = "execute_context_0(0)_generation_8(8)";

/// Data of one step that a recording lost.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Loss {
    /// Kernels from this one on.
    Kernels(i64),
    /// One kernel has no valid time.
    Time(i64),
    /// Calls from this one on.
    Calls(i64),
    KernelsAndCalls,
    Range,
}

fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        (0..KERNELS).prop_map(Loss::Kernels),
        (0..KERNELS).prop_map(Loss::Time),
        (0..KERNELS).prop_map(Loss::Calls),
        Just(Loss::KernelsAndCalls),
        Just(Loss::Range),
    ]
}

/// Steps of 600 ns every 1,000 ns, in ranges of this name, with kernels to their ends.
fn steps(count: i64, name: &str) -> Timeline {
    let mut lines = Vec::new();
    for at in 0..count {
        let start = 1_000 * at;
        lines.push(format!("range 1 {name} {start}..{}", start + 600));
        for kernel in 0..KERNELS {
            let (id, call) = (KERNELS * at + kernel + 1, start + 10 * (kernel + 1));
            let from = start + 100 * (kernel + 1);
            lines.push(format!("call 1 {id} {call}..{}", call + 5));
            lines.push(format!("kernel {id} k{kernel} {from}..{} 7", from + 90));
        }
    }
    launching(&lines.join("\n"))
}

/// A capture whose calls launch kernels.
fn launching(sketch: &str) -> Timeline {
    let mut trace = capture(sketch);
    let name = trace.strings.len() as u32;
    trace.strings.push("cudaLaunchKernel_v7000".into());
    trace.cuda_calls = trace.cuda_calls.iter().map(|it| ApiCall { name, ..it }).collect();
    trace
}

/// The recording without some data of the step with this number.
fn without(mut trace: Timeline, step: i64, loss: Loss) -> Timeline {
    let from = |kernel: i64| {
        let first = KERNELS * step + 1;
        move |id: i64| (first + kernel..first + KERNELS).contains(&id)
    };
    let keep_kernels = |trace: &Timeline, is_lost: &dyn Fn(i64) -> bool| -> KernelTrace {
        trace.kernels.iter().filter(|it| !is_lost(it.correlation_id)).collect()
    };
    match loss {
        Loss::Kernels(kernel) => trace.kernels = keep_kernels(&trace, &from(kernel)),
        Loss::Time(kernel) => {
            let id = KERNELS * step + 1 + kernel;
            let lost = trace.kernels.iter().find(|it| it.correlation_id == id).unwrap();
            trace.untimed.add_kernel(lost, TimeFault::NotRecorded, 0);
            trace.kernels = keep_kernels(&trace, &|it| it == id);
        }
        Loss::Calls(kernel) => {
            let is_lost = from(kernel);
            let kept = trace.cuda_calls.iter().filter(|it| !is_lost(it.correlation_id));
            trace.cuda_calls = kept.collect();
        }
        Loss::KernelsAndCalls => {
            trace = without(trace, step, Loss::Calls(0));
            trace.kernels = keep_kernels(&trace, &from(0));
        }
        Loss::Range => trace.ranges.retain(|it| it.start_ns != 1_000 * step),
    }
    trace
}

fn of(trace: Timeline) -> Analysis {
    analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None)
}

/// Start and time of each step that counts.
fn times(analysis: &Analysis) -> Vec<(f64, f64)> {
    let counted = analysis.engine_steps.iter().filter(|it| it.state.counts());
    counted.map(|it| (it.start_ms, it.step_ms)).collect()
}

fn message(analysis: &Analysis) -> Option<&str> {
    let found = analysis.findings.iter().find(|it| it.id == "steps_left_out");
    found.map(|it| it.message.as_str())
}

fn between(analysis: &Analysis) -> Option<(i64, Option<u64>)> {
    let stage = analysis.ledger.stages.iter().find(|it| it.stage == BETWEEN_STEPS);
    stage.map(|it| (it.measured_ns, it.instances))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_step_that_lost_data_is_named_and_changes_no_time_of_others(
        count in 7i64..12,
        step in 1i64..6,
        loss in loss(),
    ) {
        let whole = of(steps(count, STEP));
        let found = of(without(steps(count, STEP), step, loss));
        let start = step as f64 * 1e-3;
        let others: Vec<(f64, f64)> = times(&whole)
            .into_iter()
            .filter(|it| (it.0 - start).abs() > 1e-9)
            .collect();
        prop_assert_eq!(times(&found), others);
        let (before, after) = (&whole.step_batches[0], &found.step_batches[0]);
        prop_assert_eq!(after.steps + 1, before.steps);
        prop_assert_eq!((after.p50_ms, after.period_ms), (before.p50_ms, before.period_ms));
        prop_assert_eq!((after.ms.min, after.ms.max), (before.ms.min, before.ms.max));
        let (decode, left) = (whole.stages.row(DECODE).unwrap(), found.stages.row(DECODE).unwrap());
        prop_assert_eq!((left.ms.mean, left.ms.n + 1), (decode.ms.mean, decode.ms.n));
        prop_assert_eq!(message(&whole), None);
        let expected = format!("1 of {count} steps is left out of all times: 1 with");
        let named = message(&found).unwrap();
        prop_assert!(named.starts_with(&expected), "{}", named);
        let gaps = count as u64 - 1;
        prop_assert_eq!(between(&whole), Some((400, Some(gaps))));
        // Work without a time may have run at any time.
        if !matches!(loss, Loss::Time(_)) {
            prop_assert_eq!(between(&found), Some((400, Some(gaps - 2))));
        }
    }

    #[test]
    fn a_decode_step_that_lost_work_is_taken_out_of_its_decode(
        count in 5i64..9,
        step in 1i64..4,
        loss in loss(),
    ) {
        let whole = of(in_decode(steps(count, "decode_step"), (0, 1_000 * count)));
        let found = without(steps(count, "decode_step"), step, loss);
        let found = of(in_decode(found, (0, 1_000 * count)));
        let (before, after) = (&whole.step_times[0], &found.step_times[0]);
        prop_assert_eq!(u64::from(before.ms.n), count as u64);
        prop_assert_eq!(u64::from(after.ms.n), count as u64 - 1);
        prop_assert_eq!((after.p50_ms, after.ms.min), (before.p50_ms, before.ms.min));
        prop_assert_eq!(whole.stages.decode_steps, Some(count as u64));
        prop_assert_eq!(found.stages.row(DECODE), None);
        prop_assert_eq!(found.stages.steps_as_repeats(DECODE), Some(count as u64 - 1));
        let window = |it: &Analysis| {
            let row = it.stage_gpu.totals.iter().find(|it| it.stage == DECODE).unwrap();
            (row.window_ms.map(|ms| (ms * 1e6).round() as i64), row.launches as i64)
        };
        prop_assert_eq!(window(&whole), (Some(1_000 * count), KERNELS * count));
        // Without a range, a step lasts from the one before to the one after.
        let lost = if loss == Loss::Range { 1_400 } else { 600 };
        prop_assert_eq!(window(&found), (Some(1_000 * count - lost), KERNELS * (count - 1)));
        let busy = |it: &Analysis| {
            let row = it.stage_gpu.totals.iter().find(|it| it.stage == DECODE).unwrap();
            row.busy_ms.map(|ms| (ms * 1e6).round() as i64)
        };
        prop_assert_eq!(busy(&found), Some(90 * KERNELS * (count - 1)));
        let left_out = found.stage_shares.iter().find(|it| it.stage == LEFT_OUT).unwrap();
        prop_assert_eq!((left_out.wall_ms * 1e6).round() as i64, lost);
        let pct: f64 = found.stage_shares.iter().filter_map(|it| it.wall_share_pct).sum();
        prop_assert!((pct - 100.0).abs() < 1e-9, "{}", pct);
        let expected = format!("1 of {count} steps is left out of all times: 1 with");
        prop_assert!(message(&found).unwrap().starts_with(&expected));
    }
}

/// The recording with a decode around its steps.
fn in_decode(mut trace: Timeline, (start, end): (i64, i64)) -> Timeline {
    trace.ranges.push(capture(&format!("range 1 decode_all {start}..{end}")).ranges.remove(0));
    llmprof_core::trace::range::sort(&mut trace.ranges);
    trace
}

#[test]
fn a_lost_step_that_queued_has_the_time_between_the_work_around_it() {
    // The host starts a step every 100 ns, whose kernel takes 1,000.
    let step = |at: i64| {
        let (start, id, work) = (100 * at, at + 1, 1_000 * at + 50);
        format!(
            "range 1 decode_step {start}..{}\ncall 1 {id} {}..{}\nkernel {id} k {work}..{} 7",
            start + 90,
            start + 10,
            start + 20,
            work + 1_000
        )
    };
    let sketch: Vec<String> = (0..8).map(step).collect();
    let whole = launching(&sketch.join("\n"));
    for lost in [vec![3], vec![3, 4]] {
        let mut trace = in_decode(whole.clone(), (0, 800));
        trace.kernels =
            trace.kernels.iter().filter(|it| !lost.contains(&(it.start_ns / 1_000))).collect();
        let found = of(trace);
        let total = found.stage_gpu.totals.iter().find(|it| it.stage == DECODE).unwrap();
        let kernels = found.kernels.stages.iter().find(|it| it.stage == DECODE).unwrap();
        let ns = |ms: Option<f64>| ms.map(|ms| (ms * 1e6).round() as i64);
        let expected = 1_000 * (8 - lost.len() as i64);
        assert_eq!(ns(kernels.busy_ms), Some(expected));
        assert_eq!((ns(total.busy_ms), ns(total.idle_ms)), (Some(expected), Some(50)));
    }
}

#[test]
fn a_decode_has_no_gpu_time_if_its_work_runs_in_the_time_of_a_step_that_is_left_out() {
    let has_gpu_time = |from: i64| {
        let mut lines = Vec::new();
        for (at, start) in (0..8).map(|at| (at, 100_000 * at)) {
            lines.push(format!("range 1 decode_step {start}..{}", start + 60_000));
            lines.push(format!("call 1 {} {start}..{}", at + 1, start + 5_000));
            let end = start + 60_000;
            lines.push(match at {
                // Step 3 lost its kernel; other work of the decode is launched before it.
                3 => format!("kernel 9 sample {from}..{} 7", from + 20_000),
                _ => format!("kernel {} k {}..{end} 7", at + 1, start + 10_000),
            });
        }
        lines.insert(9, "call 1 9 270000..271000".to_owned());
        let found = of(in_decode(launching(&lines.join("\n")), (0, 800_000)));
        assert!(message(&found).is_some());
        found.stage_gpu.totals.iter().any(|it| it.stage == DECODE)
    };
    assert_eq!((has_gpu_time(275_000), has_gpu_time(320_000)), (true, false));
}

#[test]
fn steps_are_compared_in_a_decode_of_any_name() {
    let of = |mut trace: Timeline| {
        trace.ranges.push(capture("range 1 generate 0..8000").ranges.remove(0));
        llmprof_core::trace::range::sort(&mut trace.ranges);
        let rules = vec!["decode=generate".parse().unwrap()];
        of(trace.with_rules(StageRules::with(rules, vec![], vec![])))
    };
    let (whole, lost) = (steps(8, "decode_step"), Loss::Kernels(2));
    let found = of(without(whole.clone(), 3, lost));
    assert_eq!((message(&of(whole)), found.step_times[0].ms.n), (None, 7));
    let expected = "1 of 8 steps is left out of all times: 1 with missing kernels.";
    assert_eq!(message(&found), Some(expected));
}

#[test]
fn a_decode_step_inside_a_step_of_an_engine_is_a_part_of_it() {
    let mut trace = steps(6, STEP);
    trace.ranges.push(capture("range 1 decode_step 2005..2595").ranges.remove(0));
    llmprof_core::trace::range::sort(&mut trace.ranges);
    let found = of(trace);
    assert_eq!((message(&found), found.step_batches[0].steps), (None, 6));
}

#[test]
fn the_time_of_decode_is_of_the_decode_that_lost_no_step() {
    let two = |trace| of(in_decode(in_decode(trace, (0, 4_000)), (4_000, 8_000)));
    let whole = two(steps(8, "decode_step"));
    let found = two(without(steps(8, "decode_step"), 5, Loss::Kernels(2)));
    assert_eq!((found.stages.decode_steps, found.stages.cut_steps), (Some(4), 3));
    let row = found.stages.row(DECODE).unwrap();
    assert_eq!((row.ms.n, row.ms.mean), (1, whole.stages.row(DECODE).unwrap().ms.mean));
    assert_eq!(found.step_times[0].ms.n, 7);
    let lost = (4..8).fold(steps(8, "decode_step"), |it, at| without(it, at, Loss::Kernels(2)));
    let found = two(lost);
    assert_eq!((found.stages.decode_steps, found.stages.cut_steps), (Some(4), 0));
    assert_eq!(
        message(&found),
        Some("4 of 8 steps are left out of all times: 4 with missing kernels.")
    );
}

#[test]
fn the_wall_time_of_steps_left_out_is_the_time_that_no_other_stage_has() {
    let mut lines = vec![
        format!("range 1 {STEP} 0..100\ncall 1 1 10..15\nkernel 1 k 20..4000 7"),
        "kernel 6 k 5020..5500 7".to_owned(),
    ];
    for at in 1..6 {
        let (start, id) = (1_000 * at, at + 1);
        lines.push(format!("range 1 {STEP} {start}..{}", start + 600));
        lines.push(format!("call 1 {id} {}..{}", start + 10, start + 15));
    }
    let found = of(launching(&lines.join("\n")));
    let walls = |stage: &str| {
        let row = found.stage_shares.iter().find(|it| it.stage == stage).unwrap();
        (row.instances, (row.wall_ms * 1e6).round() as i64)
    };
    assert_eq!(walls(DECODE), (Some(2), 4_600));
    assert_eq!(walls(LEFT_OUT), (Some(4), 600), "the others lie under the first step's kernel");
    assert!(found.findings.iter().all(|it| it.id != "kernels_lost"), "steps_left_out names them");
}

#[test]
fn a_step_whose_range_is_not_on_its_thread_counts_once() {
    let mut trace = steps(8, STEP);
    let other = capture(&format!("range 2 {STEP} 3000..3600")).ranges.remove(0);
    trace.ranges.retain(|it| it.start_ns != 3_000);
    trace.ranges.push(other);
    llmprof_core::trace::range::sort(&mut trace.ranges);
    assert_eq!(
        message(&of(trace)),
        Some("1 of 8 steps is left out of all times: 1 without recorded work on a device.")
    );
}

#[test]
fn the_remedy_for_steps_that_lost_kernels_is_of_the_profiler() {
    let advice = |loss, tool| {
        let mut trace = without(steps(8, STEP), 3, loss);
        trace.tool = tool;
        let found = of(trace).findings.into_iter().find(|it| it.id == "steps_left_out").unwrap();
        (found.message.contains("missing"), found.advice.clone().unwrap_or_default())
    };
    let (is_missing, of_nsys) = advice(Loss::Kernels(2), TimelineTool::Nsys);
    assert!(is_missing && of_nsys.contains("an nsys at least as new"), "{of_nsys}");
    for loss in [Loss::Kernels(2), Loss::Time(2), Loss::Calls(2)] {
        let (is_missing, of_pytorch) = advice(loss, TimelineTool::Pytorch);
        assert_eq!(is_missing, !matches!(loss, Loss::Time(_)));
        assert!(!of_pytorch.contains("nsys"), "{of_pytorch}");
    }
}

#[test]
fn steps_count_with_what_the_recording_has_if_none_of_their_stage_is_whole() {
    let mut trace = steps(5, STEP);
    for step in 0..5 {
        trace = without(trace, step, Loss::Kernels(2));
    }
    let found = of(trace);
    assert_eq!((message(&found), found.step_batches[0].steps), (None, 5));
    assert!(found.engine_steps.iter().all(|it| it.state == StepState::Incomplete));
    assert!(found.findings.iter().any(|it| it.id == "kernels_lost"));
}

#[test]
fn steps_that_a_range_filter_leaves_out_are_no_time_between_steps() {
    let mut trace = steps(6, STEP);
    let other = "execute_context_0(0)_generation_2(2)";
    let excluded = trace.ranges.iter_mut().find(|it| it.start_ns == 2_000).unwrap();
    excluded.name = other.into();
    let rules = StageRules::with(vec![], vec![], vec![other.to_owned()]);
    let found = of(trace.with_rules(rules));
    assert_eq!(found.engine_steps[2].state, StepState::Excluded);
    assert_eq!(found.step_batches.iter().map(|it| it.steps).collect::<Vec<_>>(), [5]);
    assert_eq!(between(&found), Some((400, Some(3))), "of five gaps");
    assert_eq!(message(&found), None, "as asked");
}

#[test]
fn a_step_of_an_unknown_class_is_no_time_between_steps() {
    let mut trace = steps(4, "forward");
    let global_tid = trace.ranges[0].global_tid;
    let step = |(run, class): (u32, Option<StepClass>)| {
        let start_ns = 1_000 * i64::from(run);
        let (end_ns, is_scheduled) = (start_ns + 600, true);
        InferredStep {
            class,
            global_tid,
            start_ns,
            end_ns,
            run,
            is_scheduled,
            ..InferredStep::default()
        }
    };
    let decode = Some(StepClass::Decode);
    let classes = (0..).zip([decode, None, decode, decode]);
    trace.inferred.steps = classes.map(step).collect();
    assert_eq!(between(&of(trace)), Some((400, Some(1))), "of the last two steps");
}
