//! Events of captures on sketches.

use llmprof_core::trace::{
    clocks::UnequalClock,
    engine_steps::StepClass,
    inferred_steps::InferredStep,
    stage::StageRules,
    timeline::{Timeline, process_of},
};
use proptest::prelude::*;

use super::*;
use crate::{
    kernels::tests::capture,
    stages::{Stages, cold::ColdInstance, stages},
    stats::Spread,
};

#[test]
fn the_share_of_a_stage_is_that_of_all_its_instances() {
    let decode = (5..15).map(|at| format!("\nrange 1 decode_all {at}0..{}0", at + 1));
    let stages = of(&capture(&("range 1 prefill 0..50".to_owned() + &decode.collect::<String>())));
    let shares: Vec<(&str, u32, f64)> = stages
        .rows
        .iter()
        .map(|it| (it.stage.as_str(), it.ms.n, it.share_pct.unwrap().round()))
        .collect();
    assert_eq!(shares, [("prefill", 1, 33.0), ("decode_all", 10, 67.0)]);
    let mut stages = stages;
    let stage = "prefill".to_owned();
    stages.add_cold(&[ColdInstance { stage, ms: 900.0, ..ColdInstance::default() }]);
    assert_eq!(stages.rows[0].share_pct, Some(50.0), "a cold one is as long as the other");
}

fn of(trace: &Timeline) -> Stages {
    stages(&CaptureEvents::of(&Capture::of(trace), None).by_kind(trace))
}

#[test]
fn instances_are_separate_repeats_with_their_steps() {
    let trace = capture(
        "range 1 prefill 0..10\nrange 1 decode_all 10..40
         range 1 decode_step 10..25\nrange 1 decode_step 25..40
         range 1 prefill 50..70\nrange 1 decode_all 70..110
         range 1 decode_step 70..90\nrange 1 decode_step 90..110
         range 1 warmup 200..300\nrange 1 prefill 210..290",
    );
    let stages = of(&trace);
    assert_eq!((stages.repeats, stages.decode_steps), (2, Some(2)));
    assert_eq!(
        stages.row("prefill").map(|row| (row.ms.min * 1e6, row.ms.max * 1e6)),
        Some((10.0, 20.0))
    );
    assert_eq!(stages.per_token_ms.map(|it| (it.mean * 1e7).round()), Some(175.0));
}

#[test]
fn steps_with_work_on_an_unknown_clock_have_no_times() {
    let mut trace = capture(
        "range 1 decode_all 10..40\nrange 1 decode_step 10..25\nrange 1 decode_step 25..40
         call 1 1 11..12\ncall 1 2 26..27\nkernel 1 a 13..20 7\nkernel 2 a 2000028..2000038 7",
    );
    let steps = |trace: &Timeline| {
        let events = CaptureEvents::of(&Capture::of(trace), None).events;
        let times = events.iter().filter_map(|it| match it {
            Event::Range(it) if it.name == DECODE_STEP => Some((it.start_ns, it.end_ns)),
            _ => None,
        });
        times.collect::<Vec<_>>()
    };
    assert_eq!(steps(&trace), [(10, 25), (25, 2_000_038)]);
    let process = process_of(trace.ranges[0].global_tid);
    trace.unequal_clocks.push(UnequalClock { process, device: 0 });
    assert_eq!(steps(&trace), []);
    assert_eq!(ns(of(&trace).per_token_ms), Some(15));
}

/// Nanoseconds of a time in milliseconds.
fn ns(spread: Option<Spread>) -> Option<i64> {
    spread.map(|it| (it.mean * 1e6).round() as i64)
}

#[test]
fn a_part_recorded_in_two_domains_counts_once() {
    let sketch = "range 1 prefill 0..10\nrange 1 vision 1..5\nrange 1 decode_all 10..50
        range 1 decode_step 10..30\nrange 1 decode_step 30..50";
    let mut trace = capture(sketch);
    let other = |it: &Range, by: i64| {
        let mut other = it.clone();
        other.domain = "other".into();
        (other.start_ns, other.end_ns) = (it.start_ns + by, it.end_ns.map(|end| end - by));
        other
    };
    let parts: Vec<Range> = trace.ranges.clone();
    let parts =
        || parts.iter().filter(|it| VISION_PARTS.contains(&&*it.name) || it.name == DECODE_STEP);
    // Inside, around, and ending later than the first.
    for by in [1, 0, -1] {
        let mut found = trace.clone();
        found.ranges.extend(parts().map(|it| other(it, by.max(0))));
        if by < 0 {
            found.ranges.iter_mut().filter(|it| it.domain == "other").for_each(|it| {
                (it.start_ns, it.end_ns) = (it.start_ns + 1, it.end_ns.map(|end| end + 1));
            });
        }
        found.ranges.sort_by_key(|it| (it.start_ns, std::cmp::Reverse(it.end_ns)));
        let stages = of(&found);
        assert_eq!(stages.decode_steps, Some(2), "{by}");
        assert_eq!(ns(stages.note("vision").map(|it| it.ms)), Some(4), "{by}");
    }
    trace.ranges.push(range_of("prefill", 60, 70));
    assert_eq!(ns(of(&trace).note("vision").map(|it| it.ms)), Some(4), "of the instance with it");
}

fn range_of(name: &str, start: i64, end: i64) -> Range {
    capture(&format!("range 1 {name} {start}..{end}")).ranges.remove(0)
}

#[test]
fn a_whole_pass_is_a_prefill_and_the_one_decode_that_follows_it_on_its_thread() {
    let wall = |sketch: &str| {
        let wall = of(&capture(sketch)).wall_ms;
        wall.map(|it| ((it.min * 1e6).round() as i64, (it.max * 1e6).round() as i64, it.n))
    };
    let two = "range 1 prefill 0..10\nrange 1 decode_all 12..40
        range 1 prefill 100..120\nrange 1 decode_all 120..160";
    assert_eq!(wall(two), Some((40, 60, 2)));
    assert_eq!(wall("range 1 decode_all 12..40\nrange 1 prefill 100..120"), None);
    assert_eq!(wall("range 1 prefill 0..10\nrange 2 decode_all 12..40"), None, "other thread");
    assert_eq!(wall("range 1 prefill 0..10\nrange 1 prefill 10..20"), None);
    let tokens = "range 1 prefill 0..10\nrange 1 decode_all 10..15\nrange 1 decode_all 15..20";
    assert_eq!(wall(tokens), None, "which part of the pass the second one is, is unknown");
    let warmup = "range 1 prefill 0..10\nrange 1 warmup 11..15\nrange 1 decode_all 16..20";
    assert_eq!(wall(warmup), None);
    let engine = "range 1 execute_context_1(9)_generation_0(0) 0..10
        range 1 execute_context_0(0)_generation_1(1) 10..20";
    assert_eq!(wall(engine), None, "steps of an engine serve several requests");
    assert_eq!(wall(&engine.replace("range", "cross")), None, "in start/end ranges as well");
}

#[test]
fn the_recorded_steps_of_a_decode_that_the_recording_cuts_are_no_whole_decode() {
    let mut trace =
        capture("range 1 prefill 0..10\nrange 1 decode_step 12..20\nrange 1 decode_step 20..30");
    let steps = of(&trace);
    assert_eq!((steps.wall_ms.map(|it| it.n), steps.decode_steps), (Some(1), Some(2)));
    let mut decode = range_of("decode_all", 11, 12);
    decode.end_ns = None;
    trace.ranges.insert(1, decode);
    let cut = of(&trace.with_rules(StageRules::default()));
    assert_eq!((cut.wall_ms, cut.decode_steps, cut.row("decode_all")), (None, None, None));
    assert_eq!((cut.cut_steps, cut.steps_as_repeats("decode_all")), (2, Some(2)));
    assert_eq!(cut.row("prefill").unwrap().share_pct, None, "decode may take longer");
    assert_eq!(cut.per_token_ms, steps.per_token_ms);
    assert_eq!(cut.first_token_ms, steps.first_token_ms);
}

#[test]
fn a_decode_before_the_first_prefill_of_a_recording_has_no_start() {
    let window = "range 1 decode_step 0..8\nrange 1 decode_step 8..16
         range 1 prefill 20..30\nrange 1 decode_step 30..40";
    let found = of(&capture(window));
    assert_eq!(
        (ns(found.row("decode_all").map(|it| it.ms)), found.decode_steps),
        (Some(10), Some(1))
    );
    assert_eq!((found.cut_steps, found.steps_as_repeats("decode_all")), (2, None));
    assert_eq!(found.per_token_ms.map(|it| it.n), Some(2));
    // A step without an end cuts the decode that contains it.
    let mut trace = capture(window);
    let mut step = range_of("decode_step", 40, 41);
    step.end_ns = None;
    trace.ranges.push(step);
    let cut = of(&trace.with_rules(StageRules::default()));
    assert_eq!((cut.row("decode_all"), cut.steps_as_repeats("decode_all")), (None, Some(3)));
    assert_eq!((ns(cut.per_token_ms), cut.wall_ms), (Some(9), None));
    // Without a prefill, steps before these are possible only if the recording starts with them.
    let steps = "range 1 decode_step 20..28\nrange 1 decode_step 28..36";
    let of_steps = |before: &str| {
        let found = of(&capture(&format!("{before}\n{steps}")));
        (found.cut_steps, found.decode_steps)
    };
    assert_eq!([of_steps(""), of_steps("range 1 load 13..18")], [(2, None); 2]);
    assert_eq!(of_steps("range 1 load 12..18"), (0, Some(2)));
}

#[test]
fn a_step_of_an_engine_generates_a_token_of_each_of_its_requests() {
    let stages = of(&capture(
        "range 1 execute_context_1(9)_generation_0(0) 0..10
         range 1 execute_context_0(0)_generation_1(1) 10..15
         range 1 execute_context_2(9)_generation_3(3) 20..32
         range 1 execute_context_0(0)_generation_5(5) 32..47",
    ));
    let names: Vec<_> = stages.rows.iter().map(|it| it.stage.as_str()).collect();
    assert_eq!(names, ["prefill", "decode_all", "mixed"]);
    let shares: f64 = stages.rows.iter().filter_map(|it| it.share_pct).sum();
    assert!((shares - 100.0).abs() < 1e-9);
    // 6 tokens in 20 ns.
    let decode = stages.row("decode_all").unwrap();
    assert_eq!((decode.tokens, decode.tokens_per_s.map(f64::round)), (None, Some(3e8)));
    assert_eq!(stages.decode_tokens_per_s.map(|it| (it.mean.round(), it.n)), Some((3e8, 1)));
    assert_eq!(ns(stages.per_token_ms), Some(10), "of one request");
}

#[test]
fn tokens_of_inferred_steps_are_unknown_without_a_stated_batch() {
    let mut trace = capture("call 1 1 -20..-19\nkernel 1 a 2..8 7");
    let step = |start_ns: i64| InferredStep {
        class: Some(StepClass::Decode),
        global_tid: (7 << 24) | 1,
        start_ns,
        end_ns: start_ns + 10,
        run: 1,
        ..InferredStep::default()
    };
    trace.inferred.steps = vec![step(0), step(10)];
    let tokens = |batch| {
        let timeline = Capture::of(&trace);
        let found = stages(&CaptureEvents::of(&timeline, batch).by_kind(&trace));
        assert_eq!((found.decode_steps, ns(found.per_token_ms)), (Some(2), Some(10)));
        let row = found.row("decode_all").unwrap().clone();
        (row.tokens, row.tokens_per_s.is_some(), found.decode_tokens_per_s.is_some())
    };
    assert_eq!(tokens(None), (None, false, false));
    assert_eq!(tokens(Some(3)), (Some(6), true, true));
}

#[test]
fn a_stage_and_a_step_last_until_their_work_has_ended() {
    let trace = capture(
        "range 1 prefill 0..20\nrange 1 decode_all 21..320
         range 1 decode_step 22..30\nrange 1 decode_step 30..40
         call 1 1 1..2\ncall 1 2 23..24\ncall 1 3 31..32
         kernel 1 a 3..100 7\nkernel 2 b 100..180 7\nkernel 3 b 180..300 7",
    );
    let found = CaptureEvents::of(&Capture::of(&trace), None);
    let messages: Vec<_> = found.findings.iter().map(|it| it.message.as_str()).collect();
    assert!(messages[0].starts_with("In 1 of 1 range of prefill, the GPU still works when"));
    assert!(messages[1].starts_with("In 1 of 1 range of decode, the GPU still worked on"));
    let stages = stages(&found.by_kind(&trace));
    let times = [stages.first_token_ms, stages.row("decode_all").map(|it| it.ms), stages.wall_ms];
    assert_eq!(times.map(ns), [Some(100), Some(220), Some(320)]);
    let curve: Vec<_> = stages.step_curve_ms.iter().map(|it| (it * 1e6).round()).collect();
    assert_eq!(curve, [80.0, 120.0]);
    let closed = capture("range 1 prefill 0..20\ncall 1 1 1..2\nkernel 1 a 3..19 7");
    assert!(CaptureEvents::of(&Capture::of(&closed), None).findings.is_empty());
}

#[test]
fn ranges_that_touch_or_overlap_are_instances_of_their_own_and_nested_ones_are_not() {
    let times = |sketch: &str| {
        let ms = of(&capture(sketch)).row("prefill").unwrap().ms;
        ((ms.mean * 1e6).round() as i64, ms.n)
    };
    let touching = "range 1 prefill 0..10\nrange 1 prefill 10..20\nrange 1 prefill 20..30";
    assert_eq!(times(touching), (10, 3));
    assert_eq!(times("cross 1 prefill 0..10\ncross 1 prefill 5..15"), (10, 2));
    assert_eq!(
        times("range 1 prefill 0..10\nrange 1 prefill 0..10\nrange 1 prefill 2..8"),
        (10, 1)
    );
}

proptest! {
    #[test]
    fn a_repeat_has_one_prefill_at_most_and_its_decode_follows_it(
        ranges in prop::collection::vec((0usize..4, 0i64..3, 1i64..20, 1i64..4), 0..16)
    ) {
        const NAMES: [&str; 4] = ["prefill", "decode_all", "warmup", "other"];
        let (mut next, mut trace) = ([0i64; 3], Timeline::default());
        for (name, gap, length, thread) in ranges {
            let start = next[thread as usize - 1] + gap;
            next[thread as usize - 1] = start + length;
            let end = start + length;
            let sketch = format!("range {thread} {} {start}..{end}", NAMES[name]);
            trace.ranges.extend(capture(&sketch).ranges);
        }
        trace.ranges.sort_by_key(|it| (it.start_ns, std::cmp::Reverse(it.end_ns)));
        let timeline = Capture::of(&trace);
        let repeats = passes::repeats(&timeline);
        let instances = &timeline.stages.instances;
        let of_stage = |stage: &str, repeat: Option<u32>| -> Vec<usize> {
            let same = |at: &usize| repeats[*at] == repeat && timeline.stages.label(*at) == stage;
            (0..instances.len()).filter(same).collect()
        };
        for repeat in repeats.iter().filter(|it| it.is_some()) {
            let (prefills, decodes) = (of_stage(PREFILL, *repeat), of_stage(DECODE, *repeat));
            prop_assert!(prefills.len() <= 1 && decodes.len() <= 1);
            if let ([prefill], [decode]) = (&prefills[..], &decodes[..]) {
                let (a, b) = (&instances[*prefill], &instances[*decode]);
                prop_assert!(a.place == b.place && a.end_ns <= b.start_ns);
                let between = instances.iter().filter(|it| {
                    it.place == a.place && a.start_ns < it.start_ns && it.start_ns < b.start_ns
                });
                prop_assert_eq!(between.count(), 0);
            }
        }
    }
}

proptest! {
    /// Passes without a pause within them, recorded from `from` to `until` by a profiler that lacks
    /// the ranges opened before, and the ends of those closed after.
    #[test]
    fn a_window_has_the_times_of_the_decodes_that_it_contains_whole(
        passes in prop::collection::vec((2i64..6, prop::collection::vec(2i64..6, 1..5)), 1..5),
        has_decodes in any::<bool>(),
        (from, until) in (0i64..16, 1i64..90),
    ) {
        let (mut at, mut ranges, mut whole) = (0, Vec::new(), Vec::new());
        for (prefill, steps) in &passes {
            let (start, decode) = (2 * at, 2 * (at + prefill));
            let end = decode + 2 * steps.iter().sum::<i64>();
            ranges.push(range_of("prefill", start, decode));
            ranges.extend(has_decodes.then(|| range_of("decode_all", decode, end)));
            let mut step = decode;
            for length in steps {
                ranges.push(range_of("decode_step", step, step + 2 * length));
                step += 2 * length;
            }
            let first = if has_decodes { decode } else { start };
            if 2 * from <= first && end < 2 * until + 1 {
                whole.push(end - decode);
            }
            at = end / 2;
        }
        // The window ends inside a range, or after all.
        let (from, until) = (2 * from, 2 * until + 1);
        ranges.retain(|it| from <= it.start_ns && it.start_ns < until);
        ranges.iter_mut().filter(|it| it.end_ns > Some(until)).for_each(|it| it.end_ns = None);
        prop_assume!(ranges.iter().any(|it| it.name == "prefill"));
        let steps: Vec<i64> = ranges
            .iter()
            .filter(|it| it.name == "decode_step")
            .filter_map(|it| Some(it.end_ns? - it.start_ns))
            .collect();
        let trace = Timeline { ranges, ..Timeline::default() };
        let found = of(&trace.with_rules(StageRules::default()));
        let stated = found.row("decode_all").map(|row| (row.ms.n, (row.ms.total() * 1e6).round()));
        let expected = (!whole.is_empty()).then(|| (whole.len() as u32, whole.iter().sum::<i64>()));
        prop_assert_eq!(stated, expected.map(|(n, total)| (n, total as f64)));
        prop_assert_eq!(found.wall_ms.map_or(0, |it| it.n) as usize <= whole.len(), true);
        if let Some(step) = found.step_ms.filter(|_| !has_decodes) {
            prop_assert_eq!(step.n as usize, steps.len());
        }
    }
}
