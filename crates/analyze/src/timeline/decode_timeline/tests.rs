//! Steps of small captures, slice by slice.

use llmprof_core::trace::{
    event::{Event, OPERATOR_DOMAIN, OperatorCall, StageRange},
    timeline::Timeline,
};

use super::*;
use crate::{events::Events, kernels::tests::capture, stages::DECODE, timeline::capture::Capture};

/// One line per slice: `track name operator start duration`; slices of other steps are marked.
fn lines(trace: &Timeline) -> String {
    let Some(step) = traced_step(&Capture::of(trace)) else { return "none".into() };
    let head = format!(
        "step {} of {}: window {} lead {} busy {} idle {} kernels {}",
        step.step,
        step.steps,
        step.window_us * 1e3,
        step.lead_us * 1e3,
        step.busy_us * 1e3,
        step.idle_us.unwrap() * 1e3,
        step.kernels
    );
    let slice = |it: &StepSlice| {
        let operator = it.operator.as_deref().unwrap_or("-");
        let other = if it.own { "" } else { " (other step)" };
        format!(
            "{} {:?} {operator} {} {}{other}",
            it.track,
            it.name,
            it.start_us * 1e3,
            it.duration_us * 1e3
        )
    };
    std::iter::once(head).chain(step.slices.iter().map(slice)).collect::<Vec<_>>().join("\n")
}

fn with_operators(sketch: &str) -> Timeline {
    let mut trace = capture(sketch);
    let stage = |name: &str| matches!(name, "prefill" | "decode_all" | "warmup" | "decode_step");
    trace
        .ranges
        .iter_mut()
        .filter(|it| !stage(&it.name))
        .for_each(|it| it.domain = OPERATOR_DOMAIN.into());
    trace
}

#[test]
fn the_step_of_median_length_is_shown_with_its_nested_operators() {
    let trace = with_operators(
        "range 1 decode_all 0..300
         range 1 decode_step 0..100\nrange 1 decode_step 100..150\nrange 1 decode_step 150..290
         range 1 layer 5..80\nrange 1 layer.q 10..20\nrange 1 layer.k 20..30
         call 1 1 12..14\ncall 1 2 22..24\ncall 1 3 40..41\ncall 1 4 110..111\ncall 1 5 160..161
         kernel 1 a 15..25 7\nkernel 2 b 30..40 7\nkernel 3 c 60..70 8\nkernel 4 d 112..120 7
         kernel 5 e 170..180 7",
    );
    insta::assert_snapshot!(lines(&trace), @r#"
    step 1 of 3: window 100 lead 0 busy 30 idle 70 kernels 3
    calls "a" - 12 2
    calls "a" - 22 2
    calls "a" - 40 1
    operators 1 "layer" - 15 55
    operators 2 "layer.q" - 15 10
    operators 2 "layer.k" - 30 10
    stream 7 "a" layer.q 15 10
    stream 7 "b" layer.k 30 10
    stream 8 "c" layer 60 10
    "#);
}

#[test]
fn a_step_with_ranges_of_two_domains_counts_once() {
    let sketch = "range 1 decode_all 0..300\nrange 1 decode_step 0..100
        range 1 decode_step 2..98\nrange 1 decode_step 100..210\nrange 1 decode_step 102..208
        call 1 1 12..14\ncall 1 2 112..114\nkernel 1 a 15..25 7\nkernel 2 a 115..125 7";
    let mut trace = capture(sketch);
    for it in trace.ranges.iter_mut().filter(|it| it.start_ns % 100 == 2) {
        it.domain = "other".into();
    }
    let step = traced_step(&Capture::of(&trace)).unwrap();
    assert_eq!((step.step, step.steps, step.window_us), (1, 2, 0.1));
}

#[test]
fn a_step_launched_while_the_gpu_was_busy_starts_with_its_first_kernel() {
    let trace = with_operators(
        "range 1 decode_all 0..100\nrange 1 decode_step 10..40
         call 1 1 5..6\ncall 1 2 12..14
         kernel 1 a 8..45 7\nkernel 2 b 48..60 7\nkernel 1 a 55..70 9",
    );
    insta::assert_snapshot!(lines(&trace), @r#"
    step 1 of 1: window 12 lead 38 busy 12 idle 0 kernels 1
    stream 7 "b" - 0 12
    stream 9 "a" - 7 5 (other step)
    "#);
}

#[test]
fn warm_up_steps_and_steps_without_kernels_are_not_shown() {
    let sketches = [
        "range 1 warmup 0..50\nrange 1 decode_all 1..40\nrange 1 decode_step 2..30
         call 1 1 3..4\nkernel 1 a 5..9 7",
        "range 1 decode_all 1..40\nrange 1 decode_step 2..30\ncall 1 1 3..4",
        "range 1 decode_all 1..40\ncall 1 1 3..4\nkernel 1 a 5..9 7",
    ];
    for sketch in sketches {
        assert_eq!(lines(&capture(sketch)), "none");
    }
}

#[test]
fn without_kernels_the_unprofiled_step_shows_host_operators() {
    let step = |start_ns, end_ns| {
        let (name, repeat) = (STEP.to_owned(), 0);
        Event::Range(StageRange {
            name,
            start_ns,
            end_ns,
            device_ns: None,
            warmup: false,
            repeat,
            step: None,
        })
    };
    let op = |path: &str, op: &str, start_ns, end_ns| {
        Event::Op(OperatorCall {
            path: path.into(),
            op: op.into(),
            start_ns,
            end_ns,
            thread: 0,
            captured: false,
            warmup: false,
            repeat: 0,
            stage: DECODE.into(),
            shapes: vec![],
            dtype: String::new(),
            flops: 0,
            bytes: 0,
        })
    };
    let events = [
        op("l.q", "linear", 1000, 3000),
        op("l", "module", 500, 5000),
        step(0, 6000),
        op("x", "norm", 7000, 8000),
        step(6000, 9000),
    ];
    let second = unprofiled_step(&Events::of(&events)).unwrap();
    assert_eq!((second.step, second.steps, second.window_us, second.busy_us), (2, 2, 3.0, 1.0));
    let first = unprofiled_step(&Events::of(&events[..3])).unwrap();
    let slices: Vec<_> = first
        .slices
        .iter()
        .map(|it| (&*it.track, &*it.name, it.class.as_deref(), it.start_us, it.duration_us))
        .collect();
    assert_eq!(
        slices,
        [("operators 1", "l", None, 0.5, 4.5), ("operators 2", "l.q", Some("linear"), 1.0, 2.0)]
    );
    assert_eq!(unprofiled_step(&Events::of(&[])), None);
}

#[test]
fn a_step_with_a_whole_traced_graph_is_busy_while_the_graph_runs() {
    let trace = with_operators(
        "range 1 decode_all 0..300
         range 1 decode_step 0..100\nrange 1 decode_step 100..190\nrange 1 decode_step 190..300
         call 1 1 2..4\ncall 1 2 102..104\ncall 1 3 192..194
         graph 1 5 10..98 7\ngraph 2 5 110..188 7\ngraph 3 5 200..290 7",
    );
    let step = traced_step(&Capture::of(&trace)).unwrap();
    assert_eq!((step.window_us, step.busy_us, step.idle_us), (0.1, 0.088, Some(0.012)));
    assert_eq!((step.kernels, step.whole_graphs, step.devices), (0, 1, 1));
    let slice = step.slices.iter().find(|it| it.track == "stream 7").unwrap();
    assert_eq!(
        (slice.name.as_str(), slice.class.as_deref(), slice.own),
        ("CUDA graph 5, traced as a whole", Some("graph"), true)
    );
}

#[test]
fn idle_time_of_a_step_is_summed_over_its_gpus() {
    let mut trace = with_operators(
        "range 1 decode_all 0..100\nrange 1 decode_step 0..100\ncall 1 1 2..4\ncall 1 2 5..6
         kernel 1 a 10..60 7\nkernel 2 b 60..100 7",
    );
    trace.kernels = trace.kernels.map(|at, kernel| kernel.device = at as u32);
    let step = traced_step(&Capture::of(&trace)).unwrap();
    assert_eq!((step.devices, step.busy_us, step.idle_us), (2, 0.09, Some(0.11)));
}

#[test]
fn a_step_with_a_kernel_before_its_launch_is_not_shown() {
    let trace = with_operators(
        "range 1 decode_all 0..90000\nrange 1 decode_step 40000..50000
         call 1 1 45000..45001\nkernel 1 a 1000..46000 7",
    );
    assert_eq!(traced_step(&Capture::of(&trace)), None);
}
