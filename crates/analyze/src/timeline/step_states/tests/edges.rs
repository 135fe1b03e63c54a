//! Recordings that start or end inside steps: of both profilers, with the ranges that cross an edge
//! kept, clipped or removed.

use llmprof_core::trace::timeline::process_of;

use super::*;
use crate::{stages::PREFILL, timeline::interval::Interval};

const MS: i64 = 1_000_000;
/// From one step to the next, and the length of a step.
const PERIOD: i64 = 12 * MS;
const LENGTH: i64 = 10 * MS;
const PREFILL_STEP: &str = "execute_context_1(64)_generation_0(0)";

/// Form in which a recording has the ranges that cross its edges.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Crossing {
    Kept,
    Clipped,
    Removed,
}

/// A range of this name from `start`, in which each of some calls is followed by its kernel.
fn eager(lines: &mut Vec<String>, name: &str, (start, end): Interval, launches: i64) {
    lines.push(format!("range 1 {name} {start}..{end}"));
    for at in 0..launches {
        let (id, from) = (lines.len(), start + at * MS);
        lines.push(format!("call 1 {id} {}..{}", from + MS / 5, from + 3 * MS / 10));
        lines.push(format!("kernel {id} k{at} {}..{} 7", from + 7 * MS / 20, from + 9 * MS / 10));
    }
}

/// Steps of this name, the first from `start`.
fn eager_steps(lines: &mut Vec<String>, name: &str, start: i64, count: i64) {
    for from in (0..count).map(|at| start + PERIOD * at) {
        eager(lines, name, (from, from + LENGTH), 8);
    }
}

fn steps_of(name: &str, count: i64) -> Timeline {
    let mut lines = Vec::new();
    eager_steps(&mut lines, name, 0, count);
    launching(&lines.join("\n"))
}

/// The recording from one time to another. The profiler of PyTorch writes both.
fn window(mut trace: Timeline, (from, to): Interval, how: (Crossing, TimelineTool)) -> Timeline {
    let (crossing, tool) = how;
    let is_in = |start: i64, end: i64| match crossing {
        Crossing::Removed => from <= start && end <= to,
        Crossing::Kept | Crossing::Clipped => from < end && start < to,
    };
    trace.tool = tool;
    trace.cuda_calls = trace.cuda_calls.iter().filter(|it| is_in(it.start_ns, it.end_ns)).collect();
    trace.kernels = trace.kernels.iter().filter(|it| is_in(it.start_ns, it.end_ns)).collect();
    trace.ranges.retain(|it| is_in(it.start_ns, it.end_ns.unwrap_or(it.start_ns)));
    for it in trace.ranges.iter_mut().filter(|_| crossing == Crossing::Clipped) {
        it.start_ns = it.start_ns.max(from);
        it.end_ns = it.end_ns.map(|end| end.min(to));
    }
    if tool == TimelineTool::Pytorch {
        let processes = trace.ranges.iter().map(|it| process_of(it.global_tid));
        trace.windows = processes.map(|process| (process, (from, to))).collect();
    }
    llmprof_core::trace::range::sort(&mut trace.ranges);
    trace
}

fn how() -> impl Strategy<Value = (Crossing, TimelineTool)> {
    let crossing = [Crossing::Kept, Crossing::Clipped, Crossing::Removed];
    let tools = [TimelineTool::Nsys, TimelineTool::Pytorch];
    (prop::sample::select(crossing.to_vec()), prop::sample::select(tools.to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_cut_at_any_time_adds_no_step_with_less_work_and_keeps_the_median(
        count in 10i64..14,
        from in 1..3 * PERIOD,
        until in 1..3 * PERIOD,
        how in how(),
    ) {
        let whole = steps_of(STEP, count);
        let before = of(whole.clone());
        let found = of(window(whole, (from, PERIOD * count - until), how));
        for it in found.engine_steps.iter().filter(|it| it.state.counts()) {
            prop_assert_eq!(it.kernels, 8, "{:?}", it);
        }
        let median = |it: &Analysis| it.step_batches[0].p50_ms;
        prop_assert!((median(&found) - median(&before)).abs() < 1e-6, "{}", median(&found));
        let steps = u64::try_from(count).unwrap();
        prop_assert!((steps - 6..=steps).contains(&found.step_batches[0].steps));
    }

    #[test]
    fn a_decode_has_the_time_of_its_recorded_steps_however_long_its_range_lasts(
        count in 6i64..9,
        tail in 0..400 * MS,
    ) {
        let end = PERIOD * (count - 1) + LENGTH;
        let trace = steps_of("decode_step", count);
        let found = of(in_decode(trace, (0, end + tail)));
        let decode = found.stage_gpu.totals.iter().find(|it| it.stage == DECODE).unwrap();
        let ns = decode.window_ms.map(|ms| (ms * 1e6).round() as i64).unwrap();
        let is_unrecorded = tail > LENGTH;
        prop_assert_eq!(ns, if is_unrecorded { end } else { end + tail });
        let is_cut = found.stages.row(DECODE).is_none();
        prop_assert_eq!(is_cut, is_unrecorded);
        let steps = found.stages.cut_steps + found.stages.decode_steps.unwrap_or(0);
        prop_assert_eq!(steps, u64::try_from(count).unwrap());
    }
}

/// The only prefill, of 20 ms and 19 layers with a launch each, before or after 6 decode steps.
fn layers(is_last: bool) -> Timeline {
    let mut lines = Vec::new();
    eager(&mut lines, PREFILL_STEP, (100 * MS, 120 * MS), 19);
    eager_steps(&mut lines, STEP, if is_last { 0 } else { 122 * MS }, 6);
    lines.extend((100..119).map(|at| format!("range 1 layer {}..{}", at * MS, (at + 1) * MS)));
    launching(&lines.join("\n"))
}

proptest! {
    #[test]
    fn the_only_step_of_a_kind_is_cut_at_any_share_if_calls_of_its_ranges_are_missing(
        lost in 0i64..17,
        is_last in any::<bool>(),
    ) {
        let mut trace = layers(is_last);
        let is_in = |start: i64| match is_last {
            true => start < (119 - lost) * MS,
            false => start >= (100 + lost) * MS,
        };
        trace.cuda_calls = trace.cuda_calls.iter().filter(|it| is_in(it.start_ns)).collect();
        trace.kernels = trace.kernels.iter().filter(|it| is_in(it.start_ns)).collect();
        let found = of(trace);
        prop_assert_eq!(found.stages.row(PREFILL).is_some(), lost == 0, "{:?}", message(&found));
        prop_assert_eq!(message(&found).is_some(), lost > 0);
        prop_assert_eq!(found.stages.row(DECODE).map(|it| it.ms.n), Some(6));
    }
}

/// A prefill from `start`, which launches work from 100 to 119 ms, and 6 decode steps.
fn engine(start: i64) -> Timeline {
    let mut lines = Vec::new();
    eager(&mut lines, PREFILL_STEP, (100 * MS, 120 * MS), 19);
    lines[0] = format!("range 1 {PREFILL_STEP} {start}..{}", 120 * MS);
    eager_steps(&mut lines, STEP, 122 * MS, 6);
    launching(&lines.join("\n"))
}

#[test]
fn the_only_step_of_a_stage_has_no_time_if_the_recording_cuts_it() {
    let is_timed = |trace: Timeline| {
        let found = of(trace);
        let expected = "1 of 1 step is left out of all times: 1 cut by the start or the end of the \
                        recording, with ";
        let is_timed = found.stages.row(PREFILL).is_some();
        assert_eq!(message(&found).is_some_and(|it| it.starts_with(expected)), !is_timed);
        assert_eq!(found.stages.row(DECODE).map(|it| it.ms.n), Some(6));
        is_timed
    };
    let of_tool = |tool: TimelineTool| {
        move |trace: Timeline, from: i64| window(trace, (from, 250 * MS), (Crossing::Clipped, tool))
    };
    let (nsys, pytorch) = (of_tool(TimelineTool::Nsys), of_tool(TimelineTool::Pytorch));
    assert!(is_timed(nsys(engine(100 * MS), 0)));
    assert!(is_timed(pytorch(engine(100 * MS), 0)));
    assert!(!is_timed(pytorch(engine(100 * MS), 110 * MS)), "from the bound");
    assert!(!is_timed(nsys(engine(32 * MS), 0)), "nothing is recorded in most of it");
    assert!(!is_timed(pytorch(engine(32 * MS), 0)), "inside the bounds as well");
    let mut prepared = engine(32 * MS);
    let work = format!("range 1 tokenize {}..{}", 42 * MS, 52 * MS);
    prepared.ranges.push(capture(&work).ranges.remove(0));
    assert!(is_timed(nsys(prepared, 0)), "the host did other work");
}

#[test]
fn a_step_at_an_edge_with_less_work_counts_if_it_starts_and_ends_as_others_do() {
    // The step and its launch that the program left out, or the recording lacks.
    for (step, launch, is_cut) in [(0, 3, false), (0, 0, true), (19, 3, false), (19, 7, true)] {
        let mut trace = steps_of(STEP, 20);
        let from = PERIOD * step + MS * launch;
        let is_left = |start: i64| !(from..from + MS).contains(&start);
        trace.cuda_calls = trace.cuda_calls.iter().filter(|it| is_left(it.start_ns)).collect();
        trace.kernels = trace.kernels.iter().filter(|it| is_left(it.start_ns)).collect();
        let found = of(trace);
        assert_eq!(message(&found).is_some(), is_cut, "{launch} of step {step}");
        assert_eq!(found.step_batches[0].steps, if is_cut { 19 } else { 20 });
    }
}

proptest! {
    #[test]
    fn a_cut_step_is_named_with_its_share_of_the_recorded_gpu_time(lost in 1i64..17) {
        let mut trace = layers(false);
        let is_in = |start: i64| start >= (100 + lost) * MS;
        trace.cuda_calls = trace.cuda_calls.iter().filter(|it| is_in(it.start_ns)).collect();
        trace.kernels = trace.kernels.iter().filter(|it| is_in(it.start_ns)).collect();
        // All kernels take the same time.
        let pct = 100.0 * (19 - lost) as f64 / (19 - lost + 6 * 8) as f64;
        let expected = format!(
            "1 of 1 step is left out of all times: 1 cut by the start or the end of the recording, \
             with {pct:.1} % of the recorded GPU time."
        );
        let found = of(trace);
        prop_assert_eq!(message(&found), Some(expected.as_str()));
        let named = found.findings.iter().filter(|it| it.message.contains("recorded GPU time"));
        prop_assert_eq!(named.count(), 1);
    }
}
