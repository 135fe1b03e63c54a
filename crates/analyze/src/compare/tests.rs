//! Verdicts on figures whose noise is known exactly.

use super::*;
use crate::timeline::duration_stats::DurationStats;

fn figures(times: &[(&str, &[f64])]) -> RunFigures {
    let figure = |(name, times): &(&str, &[f64])| {
        let spread = Spread::of(times.iter().copied()).unwrap();
        ((String::new(), (*name).to_owned()), Measured::over_repeats(&spread, None))
    };
    times.iter().map(figure).collect()
}

fn side(stages: &[(&str, &[f64])]) -> ComparedRun {
    ComparedRun { stages: figures(stages), ..ComparedRun::default() }
}

fn changed(a: &[f64], b: &[f64], history: &[&[f64]]) -> Change {
    let earlier: Vec<ComparedRun> = history.iter().map(|times| side(&[("x", times)])).collect();
    diff(vec![], &side(&[("x", a)]), &side(&[("x", b)]), &earlier).stages.remove(0)
}

fn verdicts(
    a: &[(&str, &[f64])],
    b: &[(&str, &[f64])],
    checks: Vec<ComparabilityCheck>,
) -> Vec<(String, ChangeVerdict)> {
    diff(checks, &side(a), &side(b), &[])
        .stages
        .into_iter()
        .map(|it| (it.name, it.verdict))
        .collect()
}

/// Two runs with one kernel each of one call per repeat: its calls, and repeats of a host stage
/// that vary by half.
fn kernels(a: &[i64], b: &[i64], history: &[&[i64]]) -> Change {
    let run = |calls: &[i64]| {
        let kernel = Measured::over_calls(&DurationStats::of(calls), Some(calls.len() as u64));
        let stages = figures(&[("decode_all", &[10.0, 20.0, 15.0])]);
        ComparedRun {
            kernels: [(("decode_all".to_owned(), "gemm".to_owned()), kernel)].into(),
            stages,
            ..ComparedRun::default()
        }
    };
    let earlier: Vec<ComparedRun> = history.iter().map(|calls| run(calls)).collect();
    diff(vec![], &run(a), &run(b), &earlier).kernels.remove(0)
}

#[test]
fn a_change_is_significant_only_beyond_the_noise_of_both() {
    let steady: &[f64] = &[10.0, 10.1, 9.9];
    let cases: [(&[f64], ChangeVerdict); 5] = [
        (&[12.0, 12.1, 11.9], ChangeVerdict::Slower),
        (&[8.0, 8.1, 7.9], ChangeVerdict::Faster),
        (&[10.1, 10.2, 10.0], ChangeVerdict::WithinNoise),
        (&[8.0, 20.0, 14.0], ChangeVerdict::WithinNoise),
        (&[12.0], ChangeVerdict::Unknown),
    ];
    for (times, expected) in cases {
        assert_eq!(changed(steady, times, &[]).verdict, expected, "{times:?}");
    }
}

#[test]
fn a_change_of_41_percent_over_three_repeats_is_significant_despite_overlapping_intervals() {
    let change = changed(&[9.5, 10.0, 10.5], &[12.6, 14.1, 15.6], &[]);
    let (a, b) = (change.a.unwrap(), change.b.unwrap());
    assert!(change.change_ms < a.noise_ms.unwrap() + b.noise_ms.unwrap(), "the intervals overlap");
    assert_eq!(change.verdict, ChangeVerdict::Slower, "{}", change.reason);
    // t = 4.1 / 0.9129 = 4.491 with 2.44 degrees of freedom.
    assert!((change.p_value.unwrap() - 0.0317).abs() < 2e-3, "{:?}", change.p_value);
}

#[test]
fn of_many_operators_a_small_p_value_is_no_change_unless_chance_makes_it_rarely() {
    // Row `at` differs by `3 at` hundredths of its standard deviation; the last row by 50 of them.
    let run = |shift: f64| {
        let operator = |at: u32| {
            let by = if at == 99 { 50.0 * shift } else { 0.03 * shift * f64::from(at) };
            let times = [9.0 + by, 10.0 + by, 11.0 + by];
            let key = ("decode_all".to_owned(), format!("op{at:02}"));
            (key, Measured::over_repeats(&Spread::of(times).unwrap(), None))
        };
        ComparedRun { operators: (0..100).map(operator).collect(), ..ComparedRun::default() }
    };
    let found = diff(vec![], &run(0.0), &run(1.0), &[]).operators;
    let is_slower = |it: &&Change| it.verdict == ChangeVerdict::Slower;
    let slower: Vec<&str> = found.iter().filter(is_slower).map(|it| &*it.name).collect();
    assert_eq!(slower, ["op99"]);
    let small = found.iter().find(|it| it.name == "op98").unwrap();
    assert!(small.p_value.unwrap() < ALPHA && small.detectable_ms.is_some());
    assert!(small.reason.contains("as one of so many rows is by chance"), "{}", small.reason);
    assert_eq!(max_p_of(vec![0.9, 0.01, 0.02]), 0.02);
    assert_eq!(max_p_of(vec![0.9, 0.04, 0.5]), 0.0);
    assert_eq!(max_p_of(vec![]), 0.0);
}

#[test]
fn within_noise_states_the_smallest_detectable_change_and_the_repeats_that_halve_it() {
    let change = changed(&[9.0, 10.0, 11.0], &[9.1, 10.1, 11.1], &[]);
    assert_eq!((change.verdict, change.repeats_to_halve), (ChangeVerdict::WithinNoise, Some(8)));
    // (2.776 + 0.941) * sqrt(2 / 3).
    assert!((change.detectable_ms.unwrap() - 3.035).abs() < 2e-3, "{:?}", change.detectable_ms);
    assert_eq!(
        change.reason,
        "0.100 ms apart (p = 0.908); smallest detectable change 3.04 ms, 30.4 %; 8 repeats on \
         each side would find half of it"
    );
}

#[test]
fn a_kernel_twice_as_slow_is_slower_on_a_noisy_host_too() {
    let change = kernels(&[1_000_000, 1_010_000, 990_000], &[2_000_000, 2_010_000, 1_990_000], &[]);
    assert_eq!(
        (change.verdict, change.change_pct.map(f64::round)),
        (ChangeVerdict::Slower, Some(100.0)),
        "{}",
        change.reason
    );
}

#[test]
fn a_small_change_of_a_kernel_needs_earlier_runs_for_a_verdict() {
    let (a, b) = ([1_000_000i64, 1_001_000, 999_000], [1_030_000i64, 1_031_000, 1_029_000]);
    let alone = kernels(&a, &b, &[]);
    assert_eq!(alone.verdict, ChangeVerdict::Unknown);
    assert!(alone.reason.contains("runs may differ by 5 %"), "{}", alone.reason);
    let steady: [&[i64]; 3] =
        [&[1_001_000, 1_001_500], &[999_000, 999_500], &[1_000_000, 1_000_500]];
    assert_eq!(kernels(&a, &b, &steady).verdict, ChangeVerdict::Slower);
    let drifting: [&[i64]; 3] =
        [&[1_060_000, 1_060_500], &[960_000, 960_500], &[1_000_000, 1_000_500]];
    let noisy = kernels(&a, &b, &drifting);
    assert_eq!(
        (noisy.verdict, noisy.repeats_to_halve),
        (ChangeVerdict::WithinNoise, None),
        "{}",
        noisy.reason
    );
    assert!(noisy.reason.contains("more repeats would not lower it"), "{}", noisy.reason);
}

#[test]
fn instances_of_one_run_are_not_repeats() {
    let around = |mean: f64| Spread::of([mean, mean + 0.001, mean - 0.001]).unwrap();
    let run = |measured| ComparedRun {
        stages: [((String::new(), "decode step".to_owned()), measured)].into(),
        ..ComparedRun::default()
    };
    let of = |measure: fn(&Spread) -> Measured, ms: f64, history: &[f64]| {
        let side = |ms: f64| run(measure(&around(ms)));
        let history: Vec<ComparedRun> = history.iter().map(|ms| side(*ms)).collect();
        diff(vec![], &side(1.0), &side(ms), &history).stages.remove(0)
    };
    let steady = [1.0005, 0.9995, 1.0];
    for (ms, history, of_repeats, of_instances) in [
        (1.03, &[][..], ChangeVerdict::Slower, ChangeVerdict::Unknown),
        (0.97, &[], ChangeVerdict::Faster, ChangeVerdict::Unknown),
        (1.1, &[], ChangeVerdict::Slower, ChangeVerdict::Slower),
        (1.0, &[], ChangeVerdict::WithinNoise, ChangeVerdict::WithinNoise),
        (1.03, &steady, ChangeVerdict::Slower, ChangeVerdict::Slower),
    ] {
        let repeats = of(|ms| Measured::over_repeats(ms, None), ms, history);
        let instances = of(Measured::over_instances, ms, history);
        assert_eq!((repeats.verdict, instances.verdict), (of_repeats, of_instances), "{ms}");
        let Measured { repeats, calls, .. } = instances.a.unwrap();
        assert_eq!((repeats, calls), (None, Some(3)));
        let drift = instances.reason.contains("runs may differ by 5 %");
        assert_eq!(drift, of_instances == ChangeVerdict::Unknown, "{}", instances.reason);
        let detectable = instances.detectable_ms.unwrap_or(f64::INFINITY);
        assert!(detectable > 0.0499, "{detectable}");
    }
}

#[test]
fn every_verdict_has_its_reason() {
    let measured = |times: &[f64]| {
        Some(Measured::over_repeats(&Spread::of(times.iter().copied()).unwrap(), Some(4)))
    };
    let (steady, once) = (measured(&[1.0, 1.1, 0.9]), measured(&[1.0]));
    let obstacles = ["device of run A is unknown".to_owned()];
    let judge = |obstacles| VerdictBasis {
        obstacles,
        history: &[],
        drift_pct: 0.0,
        unit: "calls",
        max_p: ALPHA,
    };
    let key = (String::new(), "x".to_owned());
    let cases: [(_, _, &[String], _); 5] = [
        (steady, measured(&[2.0, 2.1, 1.9]), &[], "1.00 ms apart (p < 0.001), beyond noise"),
        (steady, once, &[], "measured once in B: its noise is unknown"),
        (steady, steady, &obstacles, "device of run A is unknown"),
        (steady, None, &[], "absent in run B"),
        (None, steady, &[], "absent in run A"),
    ];
    for (a, b, obstacles, expected) in cases {
        assert_eq!(judge(obstacles).change(&key, a, b).reason, expected);
    }
}

#[test]
fn the_largest_change_is_first_and_one_sided_figures_are_listed() {
    let (a, b) = (
        [("x", &[1.0, 1.0][..]), ("gone", &[3.0, 3.0])],
        [("x", &[2.0, 2.0][..]), ("new", &[9.0, 9.0])],
    );
    let expected = [
        ("new", ChangeVerdict::OnlyInB),
        ("gone", ChangeVerdict::OnlyInA),
        ("x", ChangeVerdict::Slower),
    ];
    assert_eq!(
        verdicts(&a, &b, vec![]),
        expected.map(|(name, verdict)| (name.to_owned(), verdict))
    );
}

#[test]
fn a_decisive_difference_or_a_required_unknown_fact_prevents_every_verdict() {
    let value = |text: &str| Some(text.to_owned());
    let (a, b) = ([("x", &[1.0, 1.0][..])], [("x", &[2.0, 2.0][..])]);
    let with = |check| verdicts(&a, &b, vec![check])[0].1;
    for (other, decides, expected) in [
        (value("H100"), VerdictEffect::UnlessSame, ChangeVerdict::NotComparable),
        (None, VerdictEffect::UnlessSame, ChangeVerdict::NotComparable),
        (value("H200"), VerdictEffect::UnlessSame, ChangeVerdict::Slower),
        (value("H100"), VerdictEffect::WhereDifferent, ChangeVerdict::NotComparable),
        (None, VerdictEffect::WhereDifferent, ChangeVerdict::Slower),
        (value("H100"), VerdictEffect::Never, ChangeVerdict::Slower),
    ] {
        assert_eq!(
            with(ComparabilityCheck::of("device", value("H200"), other.clone(), decides)),
            expected,
            "{other:?} {decides:?}"
        );
    }
    assert_eq!(
        with(ComparabilityCheck::near("clock", "MHz", (Some(1980.0), Some(1500.0)), 5.0)),
        ChangeVerdict::NotComparable
    );
    assert_eq!(
        with(ComparabilityCheck::near("clock", "MHz", (Some(1980.0), Some(1950.0)), 5.0)),
        ChangeVerdict::Slower
    );
}
