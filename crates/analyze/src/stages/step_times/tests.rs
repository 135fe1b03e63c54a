//! Tests of the times of single steps.

use llmprof_core::trace::{Trace, collectives::ProcessRank};
use proptest::prelude::*;

use super::*;
use crate::{Analysis, analyze, kernels::tests::capture, timeline::gpu::host_activity::LOADING};

/// Decode steps of these lengths; in each, the host is in `tune` until its only launch.
fn decode(lengths_ms: &[i64]) -> Analysis {
    let end = 1_000_000 * lengths_ms.iter().sum::<i64>();
    let mut lines = vec![format!("range 1 decode_all 0..{end}")];
    let mut at = 0;
    for (id, ms) in lengths_ms.iter().enumerate() {
        let (id, to) = (id + 1, at + ms * 1_000_000);
        let launch = to - 500_000;
        lines.push(format!("range 1 decode_step {at}..{to}"));
        lines.push(format!("range 1 tune {}..{}", at + 1_000, launch - 1_000));
        lines.push(format!("call 1 {id} {launch}..{}", launch + 5_000));
        lines.push(format!("kernel {id} k {}..{} 7", launch + 10_000, to - 10_000));
        at = to;
    }
    analyze(&Trace { timeline: Some(capture(&lines.join("\n"))), ..Trace::default() }, None, None)
}

#[test]
fn outliers_are_named_by_the_call_of_the_host_and_leave_the_median() {
    let analysis = decode(&[1, 1, 62, 56]);
    let times = analysis.step_times.iter().find(|it| it.stage == "decode_all").unwrap();
    assert_eq!((times.p50_ms, times.ms.n, times.outliers), (1.0, 4, 2));
    let longest: Vec<_> =
        times.longest.iter().map(|it| (it.step, it.ms, it.host_call.as_deref())).collect();
    assert_eq!(longest, [(3, 62.0, Some("the range tune")), (4, 56.0, Some("the range tune"))]);
    assert!((times.longest[0].host_call_ms.unwrap() - 61.5).abs() < 0.1);
}

/// Instances of a stage of 1 ms, the third of 9 ms. In each, the GPU works but for 10 us.
fn working(name: &str) -> StepTimes {
    let mut lines = Vec::new();
    let mut at = 0;
    for (id, ms) in [1, 1, 9, 1].into_iter().enumerate() {
        let (id, to) = (2 * id + 1, at + ms * 1_000_000);
        lines.push(format!("range 1 {name} {at}..{to}"));
        for (id, from, to) in [(id, at + 10_000, at + 300_000), (id + 1, at + 300_000, to)] {
            let kernel = if id % 2 == 1 { "short" } else { "long" };
            lines.push(format!("call 1 {id} {}..{}", at + 1_000 + id, at + 1_002 + id));
            lines.push(format!("kernel {id} {kernel} {from}..{to} 7"));
        }
        at = to;
    }
    let trace = Trace { timeline: Some(capture(&lines.join("\n"))), ..Trace::default() };
    analyze(&trace, None, None).step_times.remove(0)
}

#[test]
fn instances_of_a_stage_have_outliers_with_the_work_that_took_longer() {
    for name in ["decode_all", "prefill"] {
        let times = working(name);
        assert_eq!((times.p50_ms, times.outliers), (1.0, 1), "{name}");
        assert_eq!(times.are_instances, name == "decode_all");
        let it = &times.longest[0];
        assert_eq!((it.step, it.host_call.as_deref()), (3, None));
        assert_eq!((it.busy_ms, it.longest_work_ms), (Some(8.99), Some(8.7)));
        assert_eq!(it.longest_work.as_deref(), Some("long"));
    }
}

#[test]
fn steps_that_prepare_code_are_counted_and_not_their_gaps() {
    let steps = [(0, 100), (100, 200), (250, 350)];
    let step = |span: Interval| MeasuredStep {
        span,
        ms: 1.0,
        process: None,
        p50_ms: 1.0,
        has_median: true,
    };
    let stage = StageSteps {
        stage: DECODE,
        range: STEP,
        steps: steps.map(step).into(),
        ms: Spread::of([1.0; 3]).unwrap(),
        p50_ms: 1.0,
        processes: vec![],
        outliers: vec![],
    };
    let count = |gaps: &[(&str, u32, Interval)]| {
        let gap = |it: &(&str, u32, Interval)| LongGap {
            stage: it.0.into(),
            from: it.2.0,
            to: it.2.1,
            call: it.1,
        };
        let splits = WindowSplits {
            host_calls: vec![format!("{LOADING} cuLibraryLoadData"), "tune".into()],
            long_gaps: gaps.iter().map(gap).collect(),
            ..WindowSplits::default()
        };
        preparing(&stage, &splits)
    };
    assert_eq!(count(&[(DECODE, 0, (10, 20)), (DECODE, 0, (30, 90))]), 1, "one step");
    assert_eq!(count(&[(DECODE, 0, (90, 150)), (DECODE, 0, (260, 300))]), 2);
    assert_eq!(count(&[(DECODE, 0, (190, 240))]), 0, "most of it between steps");
    assert_eq!(count(&[(DECODE, 1, (10, 20)), (PREFILL, 0, (10, 20))]), 0);
}

#[test]
fn two_steps_are_apart_and_have_neither_a_median_nor_an_outlier() {
    let times = &decode(&[1, 9]).step_times[0];
    assert_eq!((times.median_ms(), times.apart_ms()), (None, Some((1.0, 9.0))));
    assert_eq!((times.outliers, times.are_steps()), (0, true));
    assert_eq!(decode(&[1, 1, 9]).step_times[0].apart_ms(), None);
}

#[test]
fn equal_steps_have_no_outlier_and_one_step_has_no_median() {
    assert_eq!(decode(&[3, 3, 4]).step_times[0].outliers, 0);
    assert_eq!(decode(&[3]).step_times, []);
}

/// Steps of processes with these times, in turn.
fn measured(processes: &[Vec<f64>]) -> Vec<MeasuredStep> {
    let of_process = |(process, times): (usize, &Vec<f64>)| {
        let step = move |(at, ms): (usize, &f64)| MeasuredStep {
            span: (10 * at as i64, 10 * at as i64 + 9),
            ms: *ms,
            process: Some((process as i64) << 24),
            p50_ms: 0.0,
            has_median: false,
        };
        times.iter().enumerate().map(step).collect::<Vec<_>>()
    };
    processes.iter().enumerate().flat_map(of_process).collect()
}

/// The outliers of steps, as process and milliseconds.
fn outliers_of(mut steps: Vec<MeasuredStep>) -> (bool, Vec<(Option<i64>, f64)>) {
    let is_by_process = set_medians(&mut steps, None);
    let outliers = steps.iter().filter(|it| it.is_outlier());
    (is_by_process, outliers.map(|it| (it.process, it.ms)).collect())
}

proptest! {
    #[test]
    fn a_step_of_a_slow_process_is_an_outlier_only_among_its_own_steps(
        counts in prop::collection::vec(12usize..30, 2..4),
        slower in 1.2..6.0,
        planted in prop::collection::vec((0usize..4, 3.0..9.0), 0..3),
    ) {
        let usual = |process: usize| if process == 0 { 4.0 } else { 4.0 * slower };
        let mut times: Vec<Vec<f64>> =
            counts.iter().enumerate().map(|(at, count)| vec![usual(at); *count]).collect();
        let mut expected: Vec<(Option<i64>, f64)> = vec![];
        for (at, (process, longer)) in planted.iter().enumerate() {
            let process = process % times.len();
            times[process][at] = longer * usual(process);
            expected.push((Some((process as i64) << 24), times[process][at]));
        }
        let (is_by_process, mut found) = outliers_of(measured(&times));
        found.sort_by(|a, b| a.partial_cmp(b).unwrap());
        expected.sort_by(|a, b| a.partial_cmp(b).unwrap());
        prop_assert!(is_by_process);
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn processes_that_agree_have_the_outliers_of_all_their_steps(
        counts in prop::collection::vec(8usize..30, 1..4),
        longer in 2.1..9.0,
    ) {
        let mut times: Vec<Vec<f64>> = counts.iter().map(|count| vec![4.0; *count]).collect();
        times[0][0] = 4.0 * longer;
        let expected = vec![(Some(0), 4.0 * longer)];
        prop_assert_eq!(outliers_of(measured(&times)), (false, expected));
    }
}

/// Times of the decode steps of processes, in a capture.
fn times_of(processes: &[Vec<f64>]) -> StepTimes {
    let steps = measured(processes);
    let range = |it: &MeasuredStep| StageRange {
        name: STEP.into(),
        start_ns: it.span.0,
        end_ns: it.span.1,
        device_ns: Some((1e6 * it.ms) as i64),
        warmup: false,
        repeat: 0,
        step: None,
    };
    let ranges: Vec<StageRange> = steps.iter().map(range).collect();
    let places: Vec<i64> = steps.iter().filter_map(|it| it.process).collect();
    let events = Events { ranges: ranges.iter().collect(), places: &places, ..Events::default() };
    step_times(&events, None).remove(0)
}

#[test]
fn the_median_of_processes_that_differ_is_of_the_slowest_and_halves_are_of_its_steps() {
    let slow = "the slowest process's median";
    let lower = "the slowest process's lower median";
    for (processes, p50_ms, words, medians) in [
        (vec![vec![1.0; 10], vec![3.0; 10]], 3.0, slow, vec![(1, 10, 3.0), (0, 10, 1.0)]),
        (
            vec![vec![1.0; 10], vec![3.0, 3.0, 20.0, 20.0]],
            3.0,
            lower,
            vec![(1, 4, 3.0), (0, 10, 1.0)],
        ),
        (
            vec![vec![1.0, 1.0, 5.0, 5.0], vec![30.0; 4], vec![90.0; 2]],
            30.0,
            slow,
            vec![(1, 4, 30.0), (0, 4, 1.0)],
        ),
        (vec![vec![1.0; 4], vec![1.0; 4]], 1.0, "the median", vec![]),
        (vec![vec![1.0, 1.0, 62.0, 56.0]], 1.0, "the lower median", vec![]),
        (vec![vec![1.0, 1.0, 1.9, 1.9]], 1.0, "the lower median", vec![]),
        (vec![vec![1.0, 1.0, 1.02, 1.9]], 1.0, "the median", vec![]),
    ] {
        let times = times_of(&processes);
        let found = times.processes.iter().map(|it| (it.process, it.steps, it.p50_ms));
        assert_eq!(found.collect::<Vec<_>>(), medians, "{processes:?}");
        assert_eq!((times.p50_ms, times.median_word()), (p50_ms, words), "{processes:?}");
    }
}

proptest! {
    #[test]
    fn the_median_is_of_a_process_whatever_the_numbers_of_steps(
        counts in prop::collection::vec(3usize..40, 2..5),
        slower in 1.2..6.0_f64,
    ) {
        let usual = |process: usize| 4.0 * slower.powi(process as i32);
        let steps = |(process, count): (usize, &usize)| vec![usual(process); *count];
        let times = times_of(&counts.iter().enumerate().map(steps).collect::<Vec<_>>());
        prop_assert!((times.p50_ms - usual(counts.len() - 1)).abs() < 1e-4);
        let found: Vec<u32> = times.processes.iter().map(|it| it.process).collect();
        let slowest_first: Vec<u32> = (0..counts.len() as u32).rev().collect();
        prop_assert_eq!(found, slowest_first);
        prop_assert_eq!(times.outliers, 0);
    }
}

#[test]
fn a_process_of_two_steps_has_no_outlier_next_to_processes_that_differ() {
    let times = [vec![4.0; 9], vec![12.0; 9], vec![4.0, 30.0]];
    assert_eq!(outliers_of(measured(&times)), (true, vec![]));
    let windows = [vec![4.0; 9], vec![12.0; 9]];
    let mut trace = Timeline::default();
    let further = ProcessRank { window_of: Some(0), ..ProcessRank::default() };
    trace.collectives.processes.insert(1 << 24, further);
    let is_by_process = |trace| set_medians(&mut measured(&windows), trace);
    assert_eq!((is_by_process(None), is_by_process(Some(&trace))), (true, false));
}

#[test]
fn of_processes_with_fewer_than_three_steps_the_slowest_has_the_time() {
    for (processes, p50_ms, words) in [
        (vec![vec![5.0], vec![15.0]], 15.0, "the slowest process's time"),
        (vec![vec![15.0], vec![5.0], vec![10.0]], 15.0, "the slowest process's time"),
        (vec![vec![5.0, 6.0], vec![15.0, 17.0]], 16.0, "the slowest process's mean"),
        (vec![vec![5.0, 6.0], vec![15.0]], 15.0, "the slowest process's time"),
    ] {
        let times = times_of(&processes);
        assert_eq!((times.p50_ms, times.median_word()), (p50_ms, words), "{processes:?}");
        assert_eq!((times.median_ms(), times.apart_ms()), (Some(p50_ms), None), "{processes:?}");
        assert_eq!((times.processes.len(), times.outliers), (processes.len(), 0));
        assert!(!has_one_rate(&[times], DECODE), "{processes:?}");
    }
    for (processes, why) in [
        (vec![vec![5.0], vec![5.1]], "alike"),
        (vec![vec![5.0, 20.0], vec![15.0]], "within their spread"),
        (vec![vec![5.0; 3], vec![15.0]], "one has a median"),
        (vec![vec![5.0, 15.0]], "one process"),
    ] {
        assert_eq!(times_of(&processes).processes, [], "{why}");
    }
}

proptest! {
    #[test]
    fn the_median_over_repeats_is_of_the_process_that_the_step_times_are_of(
        processes in prop::collection::vec(prop::collection::vec(1i64..40, 1..6), 2..5),
    ) {
        let (mut ranges, mut places, mut at) = (vec![], vec![], 0);
        for (process, times) in processes.iter().enumerate() {
            for ms in times {
                let (start_ns, end_ns) = (at, at + 1_000_000 * ms);
                at = end_ns;
                ranges.push(StageRange {
                    name: PREFILL.into(),
                    start_ns,
                    end_ns,
                    device_ns: None,
                    warmup: false,
                    repeat: places.len() as u32,
                    step: None,
                });
                places.push((process as i64) << 24);
            }
        }
        let ranges = ranges.iter().collect();
        let events = Events { ranges, places: &places, ..Events::default() };
        let all = step_times(&events, None);
        let slowest = slowest_repeats(&events, &all, &Collectives::default());
        let ttft = repeat_medians(&events, &slowest).ttft_ms.unwrap();
        prop_assert_eq!(ttft.of_slowest, !all[0].processes.is_empty());
        if let Some(ms) = all[0].median_ms() {
            prop_assert!((ttft.p50 - ms).abs() < 1e-9, "{:?} {:?}", ttft, all);
            prop_assert_eq!(ttft.word(), all[0].median_word().trim_start_matches("the "));
        }
    }
}
