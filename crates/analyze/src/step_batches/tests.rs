//! Tests of the rows of an engine's steps.

use llmprof_core::trace::{collectives::ProcessRank, timeline::Timeline};
use proptest::prelude::*;

use super::*;
use crate::{
    kernels::tests::{capture, launching},
    timeline::{capture::Capture, engine_steps::engine_steps},
};

fn rows(sketch: &str) -> Vec<StepBatch> {
    rows_of(&capture(sketch))
}

fn rows_of(trace: &Timeline) -> Vec<StepBatch> {
    step_batches(&engine_steps(&Capture::of(trace)), &trace.collectives)
}

#[test]
fn steps_of_as_many_requests_with_a_similar_context_are_one_row() {
    let step = |at: i64, requests: u64, keys: u64| {
        let name = format!(
            "execute_{requests}_context_0(sq0sk0sqsq0sqsk0)\
             _generation_{requests}(sq{requests}sk{keys}sqsq{requests}sqsk{keys})"
        );
        let times = [(0, 900_000), (0, 10), (100, 500_000)];
        let start = 1_000_000 * at;
        launching(&name, at + 1, times.map(|it| (start + it.0, start + it.1)))
    };
    let sketch = [
        step(0, 4, 4_000),
        step(1, 4, 4_040),
        step(2, 4, 4_080),
        step(3, 4, 4_082),
        step(4, 4, 40_000),
        step(5, 2, 2_000),
    ];
    let rows = rows(&sketch.join("\n"));
    let short: Vec<_> =
        rows.iter().map(|it| (it.requests, it.steps, it.context_min, it.context_max)).collect();
    assert_eq!(
        short,
        [
            (Some(2), 1, Some(1_000), Some(1_000)),
            (Some(4), 4, Some(1_000), Some(1_021)),
            (Some(4), 1, Some(10_000), Some(10_000)),
        ]
    );
    assert_eq!(rows[1].context_mean, Some(1_013), "16,202 keys of 16 requests");
    assert_eq!((rows[1].p50_ms, rows[1].period_ms), (0.9, Some(1.0)));
    let rate = |row: usize| rows[row].tokens_per_s.unwrap();
    assert!((rate(1) - 4.0 / 1e-3).abs() < 1e-6, "tokens come at the ends of steps");
    assert_eq!((rows[0].period_ms, rows[2].period_ms), (None, None), "one step of each");
    assert!((rate(0) - 2.0 / 0.9e-3).abs() < 1e-6);
    assert!((rate(2) - 4.0 / 0.9e-3).abs() < 1e-6, "idle time may follow one step");
}

#[test]
fn the_rate_within_a_step_is_over_the_time_next_to_it() {
    let of = |times: &[f64]| {
        let step = |(at, ms): (usize, &f64)| {
            let (start, end) = (1_000 * at as i64, 1_000 * at as i64 + *ms as i64);
            let name = "execute_context_0(0)_generation_2(2)";
            let times = [(start, end), (start + 1, start + 2), (start + 3, end)];
            launching(name, at as i64 + 1, times)
        };
        let steps: Vec<String> = times.iter().enumerate().map(step).collect();
        let row = rows(&steps.join("\n")).remove(0);
        assert_eq!(row.rate_scope(), " within a step", "{times:?}");
        let rate = row.tokens_per_s.unwrap() * row.p50_ms / 1e3;
        assert!((rate - 2.0).abs() < 1e-9, "{times:?}");
        ((row.p50_ms * 1e6).round() as i64, common_batch([&row]).is_some())
    };
    assert_eq!(of(&[420.0]), (420, true));
    assert_eq!(of(&[420.0, 500.0]), (460, false), "two times that differ");
    assert_eq!(of(&[420.0, 430.0]), (425, true), "two alike times");
    assert_eq!(of(&[420.0, 430.0, 900.0]), (430, true));
}

#[test]
fn tokens_come_at_the_ends_of_steps_that_the_host_starts_early() {
    // Steps start every 100 ns, and their work takes 1,000 ns each, one after another.
    let step = |at: i64| {
        let (host, work) = (100 * at, 1_000 * at + 50);
        let times = [(host, host + 90), (host + 10, host + 20), (work, work + 1_000)];
        launching("execute_context_0(0)_generation_8(8)", at + 1, times)
    };
    let steps: Vec<String> = (0..6).map(step).collect();
    let row = &rows(&steps.join("\n"))[0];
    assert_eq!((row.steps, row.period_ms), (6, Some(1e-3)));
    assert!((row.tokens_per_s.unwrap() - 8.0 / 1e-6).abs() < 1.0);
}

#[test]
fn phases_that_no_step_of_a_row_has_are_unknown() {
    let range = |mode: &str, from: i64, to: i64| format!("range 1 step[{mode}~bs=2] {from}..{to}");
    let round = |at: i64| {
        let (drafts, verified) =
            (range("DECODE", at, at + 3), range("TARGET_VERIFY", at + 4, at + 9));
        format!("{drafts}\n{verified}")
    };
    let of = |lines: &[String]| {
        let mut trace = capture(&lines.join("\n"));
        trace.ranges.iter_mut().for_each(|it| it.name = it.name.replace('~', " "));
        let rows = rows_of(&trace);
        let row = |it: &StepBatch| (it.class, it.drafts, it.verify_ms.map(|ms| ms * 1e6));
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let whole = (StepClass::Decode, Some(1.0), Some(5.0));
    assert_eq!(of(&[round(0), round(20), round(40)]), [whole]);
    // The recording ends after a draft.
    let cut = of(&[round(0), round(20), round(40), range("DECODE", 60, 63)]);
    assert_eq!(cut, [whole, (StepClass::Other, Some(1.0), None)]);
}

#[test]
fn steps_that_compute_several_tokens_of_a_request_have_no_rate_and_their_number_of_tokens() {
    let of = |name: &str| {
        let step = |at: i64| {
            let times = [(0, 9), (1, 2), (2, 9)].map(|(from, to)| (from + 20 * at, to + 20 * at));
            launching(name, at, times)
        };
        let row = rows(&(1..5).map(step).collect::<Vec<_>>().join("\n")).remove(0);
        (row.computed_tokens, row.tokens_per_s.is_some(), row.is_speculative())
    };
    assert_eq!(of("execute_context_0(0)_generation_6(24)"), (Some(24.0), false, true));
    assert_eq!(of("execute_context_0(0)_generation_6(6)"), (None, true, false));
    assert_eq!(of("execute_context_2(24)_generation_0(0)"), (None, true, false));
}

#[test]
fn steps_of_a_warm_up_and_of_a_cold_first_instance_count_in_no_time() {
    let step = |at: i64, ns: i64| {
        let times = [(at, at + ns), (at + 10, at + 20), (at + 20, at + 60)];
        launching("execute_context_0(0)_generation_2(2)", at, times)
    };
    let steps = [1_000, 2_000, 3_000].map(|at| step(at, 100)).join("\n");
    let all = rows(&format!("range 1 warmup 10..900\n{}\n{steps}", step(20, 800)));
    assert_eq!((all[0].steps, all[0].ms.max), (3, 1e-4));
    // The first call of a kernel.
    let mut trace = capture(&format!("{}\n{steps}", step(20, 800)));
    let of = |trace: &Timeline| {
        let mut capture = Capture::of(trace);
        let cold = crate::stages::cold::mark(&mut capture).len();
        (cold, step_batches(&engine_steps(&capture), &trace.collectives)[0].steps)
    };
    assert_eq!(of(&trace), (1, 3));
    trace.ranges.retain(|it| it.start_ns == 20);
    assert_eq!(of(&trace), (0, 1));
}

#[test]
fn a_step_without_work_counts_in_no_time_unless_the_capture_has_no_work() {
    let range = "range 1 execute_context_0(0)_generation_2(2) 0..100
        range 1 execute_context_0(0)_generation_2(2) 200..900";
    let work = "call 1 1 10..11\nkernel 1 k 20..60 7";
    assert_eq!(rows(&format!("{range}\n{work}"))[0].steps, 1);
    assert_eq!(rows(range)[0].steps, 2);
}

/// Rows of steps by process and milliseconds, of one batch.
fn of_processes(steps: &[(u32, f64)], ranks: &Collectives) -> Vec<StepBatch> {
    let name = "execute_context_0(0)_generation_2(2)";
    let trace = capture(&launching(name, 1, [(0, 90), (0, 10), (10, 90)]));
    let record = engine_steps(&Capture::of(&trace)).remove(0);
    let of = |(process, step_ms): &(u32, f64)| EngineStepRecord {
        process: *process,
        step_ms: *step_ms,
        period_ms: Some(step_ms + 1.0),
        ..record.clone()
    };
    step_batches(&steps.iter().map(of).collect::<Vec<_>>(), ranks)
}

#[test]
fn processes_whose_times_differ_have_rows_of_their_own() {
    let rank = |rank| ProcessRank { rank: Some(rank), ..ProcessRank::default() };
    let mut ranks = Collectives::default();
    ranks.processes.insert(8 << 24, rank(1));
    let of = |fast: &[f64], slow: &[f64]| {
        let fast = fast.iter().map(|ms| (7, *ms));
        let steps: Vec<(u32, f64)> = fast.chain(slow.iter().map(|ms| (8, *ms))).collect();
        let rows = of_processes(&steps, &ranks);
        let common = common_batch(&rows).unwrap();
        let each = rows.iter().map(|it| (it.process_name(), it.steps, it.p50_ms, it.period_ms));
        (each.collect::<Vec<_>>(), common.p50_ms)
    };
    let (rows, common) = of(&[4.0, 4.0, 4.1], &[6.0, 6.0, 6.0]);
    let named = |it: &str| Some(it.to_owned());
    assert_eq!(
        rows,
        [(named("process 7"), 3, 4.0, Some(5.0)), (named("rank 1"), 3, 6.0, Some(7.0))]
    );
    assert_eq!(common, 6.0, "the slowest");
    assert_eq!(of(&[6.0; 4], &[4.0; 9]).1, 6.0, "not the one with the most steps");
    for (fast, slow, why) in [
        (vec![4.0; 3], vec![4.1; 3], "alike"),
        (vec![4.0; 3], vec![6.0; 2], "two have no median"),
        (vec![3.0, 4.0, 6.0], vec![4.0, 6.0, 7.0], "within their spread"),
    ] {
        let rows = of(&fast, &slow).0;
        assert!(matches!(rows.as_slice(), [(None, ..)]), "{why}: {rows:?}");
    }
}

#[test]
fn windows_of_one_process_are_one_process() {
    let (name, other) = ("execute_context_0(0)_generation_2(2)", 1_i64 << 40);
    let of = |second_ms: i64, window_of: Option<i64>| {
        let step = |at: i64| {
            let (second, from) = (at / 3, 10_000_000 * at);
            let (thread, ms) = (second * other + 1, if second == 0 { 4 } else { second_ms });
            let (id, to) = (at + 1, from + 1_000_000 * ms);
            let call = format!("call {thread} {id} {}..{}", from + 1, from + 2);
            let kernel = format!("kernel {id} k {}..{} 7", from + 10, to - 10);
            format!("range {thread} {name} {from}..{to}\n{call}\n{kernel}")
        };
        let mut trace = capture(&(0..6).map(step).collect::<Vec<_>>().join("\n"));
        let process = |id: i64| 7 << 24 | if id > 3 { other } else { 0 };
        trace.kernels = trace.kernels.map(|_, it| it.global_pid = process(it.correlation_id));
        let place = ProcessRank { window_of, ..ProcessRank::default() };
        trace.collectives.processes.insert(process(4), place);
        let rows = rows_of(&trace);
        rows.iter().map(|it| (it.process, it.processes, it.steps)).collect::<Vec<_>>()
    };
    let second = Some(1 << 16 | 7);
    assert_eq!(of(4, None), [(None, 2, 6)], "two processes");
    assert_eq!(of(6, None), [(Some(7), 1, 3), (second, 1, 3)]);
    assert_eq!(of(4, Some(7 << 24)), [(None, 1, 6)], "one process");
    assert_eq!(of(6, Some(7 << 24)), [(None, 1, 6)]);
}

proptest! {
    #[test]
    fn each_step_is_in_one_row_and_no_median_is_of_processes_without_a_common_time(
        fast in prop::collection::vec(10u32..20, 1..30),
        slow in prop::collection::vec(22u32..60, 1..30),
        between in prop::collection::vec(10u32..60, 0..30),
    ) {
        let of = |process: u32, times: &[u32]| {
            times.iter().map(|ms| (process, f64::from(*ms))).collect::<Vec<_>>()
        };
        let steps = [of(1, &fast), of(2, &slow), of(3, &between)].concat();
        let rows = of_processes(&steps, &Collectives::default());
        prop_assert_eq!(rows.iter().map(|it| it.steps).sum::<u64>(), steps.len() as u64);
        for row in &rows {
            let own = steps.iter().filter(|it| row.process.is_none_or(|process| it.0 == process));
            let own: Vec<f64> = own.map(|it| it.1).collect();
            prop_assert_eq!(row.p50_ms, stated_median(own.iter().copied()).unwrap());
            prop_assert_eq!(row.has_two_halves, has_two_halves(own));
        }
        if fast.len().min(slow.len()) >= LEAST_MEDIAN {
            prop_assert!(rows.iter().all(|it| it.process.is_some()), "{:?}", rows);
            let with_median = rows.iter().filter(|it| it.steps >= LEAST_MEDIAN as u64);
            let slowest = with_median.map(StepBatch::pace_ms).fold(0.0, f64::max);
            prop_assert_eq!(common_batch(&rows).map(StepBatch::pace_ms), Some(slowest));
        }
    }
}

#[test]
fn processes_with_steps_of_several_lengths_differ_if_all_lengths_are_longer() {
    let of = |lengths: &[f64], times: usize| -> Vec<f64> {
        let noise = |at: usize| 1.0 + 0.01 * (at % 9) as f64;
        let all = (0..times).flat_map(|_| lengths.iter().copied()).enumerate();
        all.map(|(at, ms)| ms * noise(at)).collect()
    };
    for (fast, slow, times, expected) in [
        (&[37.0, 100.0][..], &[111.0, 300.0][..], 10, true),
        (&[37.0, 200.0], &[111.0, 600.0], 15, true),
        (&[4.0, 8.0, 16.0, 32.0], &[6.0, 12.0, 24.0, 48.0], 30, true),
        (&[37.0, 100.0], &[37.0, 300.0], 15, false),
        (&[37.0, 100.0], &[20.0, 300.0], 15, false),
        (&[37.0, 100.0], &[37.0, 100.0], 15, false),
    ] {
        let found = do_differ([of(fast, times), of(slow, times)]);
        assert_eq!(found, expected, "{fast:?} {slow:?}");
    }
}

/// Parts from 0 to 1 by a linear congruential generator, the same in each run.
fn random_parts() -> impl FnMut() -> f64 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[test]
fn equal_processes_with_wide_noise_seldom_differ() {
    type Shape = fn(f64, f64) -> f64;
    const PAIRS: usize = 2_000;
    let shapes: [(&str, Shape); 3] = [
        ("uniform", |part, _| 0.7 + 0.6 * part),
        ("exponential", |part, _| -(1.0 - part).ln()),
        ("two lengths", |part, noise| {
            let length = if part < 0.5 { 37.0 } else { 100.0 };
            length * (0.9 + 0.2 * noise)
        }),
    ];
    let mut random = random_parts();
    for (name, shape) in shapes {
        let mut process = || {
            let steps = 12 + (29.0 * random()) as usize;
            (0..steps).map(|_| shape(random(), random())).collect::<Vec<f64>>()
        };
        let differ = (0..PAIRS).filter(|_| do_differ([process(), process()])).count();
        assert!(100 * differ <= PAIRS, "{name}: {differ} of {PAIRS} pairs");
    }
}

proptest! {
    #[test]
    fn times_within_the_tolerance_never_differ(
        processes in prop::collection::vec(prop::collection::vec(0.98..1.02_f64, 3..40), 2..5),
    ) {
        prop_assert!(!do_differ(processes));
    }

    #[test]
    fn a_process_whose_steps_of_two_lengths_are_all_longer_differs(
        counts in (13usize..30, 13usize..30), longer in 1.5..8.0_f64, slower in 1.1..4.0_f64,
    ) {
        let of = |pairs: usize, ms: f64| [vec![ms; pairs], vec![longer * ms; pairs]].concat();
        prop_assert!(do_differ([of(counts.0, 4.0), of(counts.1, 4.0 * slower)]));
    }
}
