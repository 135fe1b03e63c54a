//! Time without a stage, of sketches.

use llmprof_core::trace::{Trace, stage::StageRules, timeline::ApiCall};

use super::*;
use crate::{
    Analysis, analyze,
    kernels::tests::{capture, launching},
    ledger::{LedgerCause, LedgerStage},
};

fn of(sketch: &str) -> Analysis {
    analyze(&Trace { timeline: Some(capture(sketch)), ..Trace::default() }, None, None)
}

fn stage<'a>(analysis: &'a Analysis, name: &str) -> Option<&'a LedgerStage> {
    analysis.ledger.stages.iter().find(|it| it.stage == name)
}

fn ns(analysis: &Analysis, name: &str, cause: LedgerCause) -> i64 {
    let rows = analysis.ledger.of_stage(name).filter(|it| it.cause == cause);
    rows.map(|it| it.ns).sum()
}

fn sum(analysis: &Analysis, name: &str) -> i64 {
    analysis.ledger.of_stage(name).map(|it| it.ns).sum()
}

/// Kernels at 10 to 40, 60 to 100, and 130 to 150 without a call.
const NO_STAGES: &str = "call 1 1 0..1\nkernel 1 a 10..40 7\ncall 1 2 50..51
    kernel 2 b 60..100 7\nkernel 3 c 130..150 7";

#[test]
fn all_time_of_a_capture_without_stages_has_causes_from_its_first_work_to_its_last() {
    let found = of(NO_STAGES);
    assert_eq!(stage(&found, NO_STAGE).map(|it| it.measured_ns), Some(140));
    assert_eq!(sum(&found, NO_STAGE), 140);
    assert_eq!(ns(&found, NO_STAGE, LedgerCause::GapHost), 10, "until the call at 50");
    assert_eq!(ns(&found, NO_STAGE, LedgerCause::GapUnknown), 30, "work without a call");
    let with_stage = of(&format!("range 1 prefill 0..200\n{NO_STAGES}"));
    assert!(stage(&with_stage, NO_STAGE).is_none());
}

#[test]
fn a_capture_whose_only_stage_is_a_warm_up_has_causes_of_the_time_after_it() {
    let found = of(&format!("range 1 warmup 0..45\n{NO_STAGES}"));
    assert_eq!(stage(&found, NO_STAGE).map(|it| it.measured_ns), Some(90), "from 60 to 150");
    assert_eq!(sum(&found, NO_STAGE), 90);
    assert!(stage(&of(&format!("range 1 warmup 0..200\n{NO_STAGES}")), NO_STAGE).is_none());
}

#[test]
fn two_processes_that_share_a_gpu_have_its_time_once() {
    let mut trace = capture(NO_STAGES);
    let other = capture("call 1 1 0..1\nkernel 1 a 150..160 9");
    let moved = |pid: i64| pid + (1 << 24);
    let calls = other.cuda_calls.iter();
    let calls = calls.map(|it| ApiCall { global_tid: moved(it.global_tid), ..it });
    trace.cuda_calls = trace.cuda_calls.iter().chain(calls).collect();
    let kernels = other.kernels.map(|_, it| it.global_pid = moved(it.global_pid));
    trace.kernels = trace.kernels.iter().chain(kernels.iter()).collect();
    let found = analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
    let stage = stage(&found, NO_STAGE).unwrap();
    assert_eq!((stage.measured_ns, stage.instances), (150, Some(2)));
    assert_eq!(sum(&found, NO_STAGE), 150);
}

#[test]
fn a_capture_without_work_has_no_ledger() {
    assert!(of("call 1 1 0..1\ncall 1 2 5..6").ledger.stages.is_empty());
    assert!(of("").ledger.stages.is_empty());
}

/// A step of 100 ns every 300 ns, whose kernel ends with it; `between` is launched outside.
fn steps(between: &str) -> String {
    let step = |at: i64| {
        let times = [(0, 100), (5, 10), (20, 100)].map(|it| (300 * at + it.0, 300 * at + it.1));
        launching("execute_context_0(0)_generation_8(8)", at + 1, times)
    };
    let steps: Vec<String> = (0..4).map(step).collect();
    format!("{}\n{between}\n{}", steps[0], steps[1..].join("\n"))
}

#[test]
fn the_time_between_the_steps_of_an_engine_has_causes_and_the_work_launched_in_it() {
    let found = of(&steps("call 1 90 110..112\nkernel 90 sample 120..150 7"));
    let between = stage(&found, BETWEEN_STEPS).unwrap();
    assert_eq!((between.measured_ns, between.instances), (200, Some(3)), "{between:?}");
    assert_eq!(sum(&found, BETWEEN_STEPS), 200);
    let members = found.ledger.members.iter().filter(|it| it.stage == BETWEEN_STEPS);
    let work = members.filter(|it| it.cause == LedgerCause::Unexplained);
    let work: Vec<_> = work.map(|it| (it.kernel.as_deref(), it.ns)).collect();
    assert_eq!(work, [(Some("sample"), 10)], "30 in three gaps");
    let idle: i64 =
        found.ledger.of_stage(BETWEEN_STEPS).filter(|it| it.cause.is_idle()).map(|it| it.ns).sum();
    assert_eq!(idle, 190, "of 200");
    assert_eq!(found.stage_gpu.totals.iter().filter(|it| it.stage == BETWEEN_STEPS).count(), 1);
}

#[test]
fn threads_with_a_gpu_each_have_their_own_time_between_steps() {
    let step = |at: i64, thread: i64| {
        let start = 300 * at + 50 * (thread - 1);
        let times = [(0, 100), (5, 10), (20, 100)].map(|it| (start + it.0, start + it.1));
        let name = "execute_context_0(0)_generation_8(8)";
        let lines = launching(name, 10 * thread + at, times);
        let of_thread = lines.replace("range 1 ", &format!("range {thread} "));
        of_thread.replace("call 1 ", &format!("call {thread} "))
    };
    let lines: Vec<String> = (0..4).flat_map(|at| [1, 2].map(|thread| step(at, thread))).collect();
    let mut trace = capture(&lines.join("\n"));
    trace.kernels = trace.kernels.map(|_, it| it.device = u32::from(it.correlation_id >= 20));
    let found = analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
    let between = stage(&found, BETWEEN_STEPS).unwrap();
    assert_eq!((between.measured_ns, between.instances), (200, Some(6)), "three of each thread");
    let decode = stage(&found, "decode_all").unwrap();
    assert_eq!((decode.measured_ns, decode.instances), (100, Some(8)));
    let idle = found.ledger.of_stage("decode_all").filter(|it| it.cause.is_idle());
    assert_eq!(idle.map(|it| it.ns).sum::<i64>(), 20, "of one GPU");
}

#[test]
fn around_a_step_that_lost_work_nothing_shows_what_the_gpu_did() {
    let mut trace = capture(&steps("").replace("kernel 2 k 320..400 7", ""));
    let name = trace.strings.len() as u32;
    trace.strings.push("cudaLaunchKernel".into());
    trace.cuda_calls = trace.cuda_calls.iter().map(|it| ApiCall { name, ..it }).collect();
    let found = analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
    assert!(found.findings.iter().any(|it| it.id == "steps_left_out"), "{:?}", found.findings);
    let between = stage(&found, BETWEEN_STEPS).unwrap();
    assert_eq!((between.measured_ns, between.instances), (200, Some(1)), "of the last two steps");
    assert_eq!(sum(&found, BETWEEN_STEPS), 200);
}

#[test]
fn excluded_time_is_neither_time_between_steps_nor_of_a_capture_without_stages() {
    let without_checks = |sketch: &str| {
        let rules = StageRules::with(vec![], vec![], vec!["check".to_owned()]);
        let trace = capture(sketch).with_rules(rules);
        analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None)
    };
    let checks = |times: &[Interval]| {
        let range = |(from, to): &Interval| format!("range 1 check {from}..{to}");
        steps(&times.iter().map(range).collect::<Vec<_>>().join("\n"))
    };
    for (times, expected) in [
        (&[][..], Some((200, 3))),
        (&[(110, 290), (410, 590), (710, 890)], Some((20, 3))),
        (&[(100, 300), (450, 550), (750, 850)], Some((100, 2))),
        (&[(100, 300), (400, 600), (700, 900)], None),
    ] {
        let found = without_checks(&checks(times));
        let between = stage(&found, BETWEEN_STEPS);
        let counted = between.and_then(|it| Some((it.measured_ns, it.instances?)));
        assert_eq!(counted, expected, "{times:?}");
        assert_eq!(sum(&found, BETWEEN_STEPS), expected.map_or(0, |it| it.0));
    }
    for (check, expected) in [("45..60", Some(125)), ("105..125", Some(120)), ("0..200", None)] {
        let found = without_checks(&format!("range 1 check {check}\n{NO_STAGES}"));
        assert_eq!(stage(&found, NO_STAGE).map(|it| it.measured_ns), expected, "{check}");
        assert_eq!(sum(&found, NO_STAGE), expected.unwrap_or(0));
    }
}

#[test]
fn ranks_have_their_own_windows_and_a_pause_without_requests_is_no_gap() {
    let mut trace = capture("call 1 1 0..1\nkernel 1 a 10..40 7");
    let other = capture("call 1 1 5000..5001\nkernel 1 a 9000..9070 9");
    let moved = |pid: i64| pid + (1 << 24);
    let calls = other.cuda_calls.iter();
    let calls = calls.map(|it| ApiCall { global_tid: moved(it.global_tid), ..it });
    trace.cuda_calls = trace.cuda_calls.iter().chain(calls).collect();
    let second = other.kernels.map(|_, it| (it.global_pid, it.device) = (moved(it.global_pid), 1));
    trace.kernels = trace.kernels.iter().chain(second.iter()).collect();
    let found = analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
    let of_ranks = stage(&found, NO_STAGE).unwrap();
    assert_eq!((of_ranks.measured_ns, of_ranks.instances), (50, Some(2)), "30 and 70, busy");
    assert_eq!(sum(&found, NO_STAGE), 50);

    let late = "range 1 execute_context_0(0)_generation_8(8) 900000..900100
        call 1 95 900005..900010\nkernel 95 k 900020..900100 7";
    let found = of(&format!("{}\n{late}", steps("")));
    let between = stage(&found, BETWEEN_STEPS).unwrap();
    assert_eq!((between.measured_ns, between.instances), (200, Some(3)), "{between:?}");
}

#[test]
fn steps_on_two_threads_of_a_process_have_the_time_in_which_it_has_none() {
    let step = |thread: i64, start: i64, id: i64| {
        format!(
            "range {thread} execute_context_0(0)_generation_8(8) {start}..{}
             call {thread} {id} {}..{}\nkernel {id} k {}..{} {thread}\n",
            start + 100,
            start + 5,
            start + 10,
            start + 20,
            start + 100,
        )
    };
    let sketch: String = (0..4).map(|at| step(1 + at % 2, 300 * at, at + 1)).collect();
    let found = of(&sketch);
    let between = stage(&found, BETWEEN_STEPS).unwrap();
    assert_eq!((between.measured_ns, between.instances), (200, Some(3)), "{between:?}");
    assert_eq!(ns(&found, BETWEEN_STEPS, LedgerCause::OtherStages), 0);
}

#[test]
fn steps_that_follow_at_once_have_no_time_between_them() {
    let at_once = "range 1 execute_context_0(0)_generation_8(8) 0..100
        range 1 execute_context_0(0)_generation_8(8) 100..200
        call 1 1 1..2\nkernel 1 k 10..100 7\ncall 1 2 101..102\nkernel 2 k 110..200 7";
    assert!(stage(&of(at_once), BETWEEN_STEPS).is_none());
    let named = "range 1 prefill 0..100\nrange 1 decode_all 300..400
        call 1 1 1..2\nkernel 1 k 10..100 7\ncall 1 2 301..302\nkernel 2 k 310..400 7";
    assert!(stage(&of(named), BETWEEN_STEPS).is_none(), "stages, not steps");
}
