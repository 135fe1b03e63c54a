//! Tests of change points against the reference implementation, and of gates by simulation.

use llmprof_core::domain::headline::FigureName;

use super::{
    change_points::{ChangePoint, change_points},
    gate::{GateDesign, GateVerdict, GatedFigure, MAX_RUNS, overall},
    noise::Noise,
};
use crate::stats::Spread;

/// A generator of normal deviates with a fixed seed: SplitMix64 (Steele et al., 2014), and Box and
/// Muller's transformation.
struct Deviates(u64);

impl Deviates {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.uniform()).cos()
    }

    /// `n` runs around `level` with a deviation of 1 %.
    fn runs(&mut self, level: f64, n: usize) -> Vec<f64> {
        (0..n).map(|_| level * (1.0 + 0.01 * self.normal())).collect()
    }
}

/// A series of `n` runs that starts at 10 and changes by a factor at each index.
fn series(seed: u64, n: usize, steps: &[(usize, f64)]) -> Vec<f64> {
    let (mut deviates, mut level) = (Deviates(seed), 10.0);
    (0..n)
        .map(|at| {
            level *= steps.iter().filter(|(step, _)| *step == at).map(|it| it.1).product::<f64>();
            level * (1.0 + 0.01 * deviates.normal())
        })
        .collect()
}

#[test]
fn change_points_are_those_of_apache_otava() {
    // apache-otava 0.8.0: compute_change_points(values, window_len=50, max_pvalue=0.001). It keeps
    // a stale p of a point whose right neighbour was merged: these are of the final intervals.
    type Case<'a> = (u64, usize, &'a [(usize, f64)], &'a [(usize, f64)]);
    let cases: [Case; 8] = [
        (
            1,
            200,
            &[(60, 1.03), (110, 1.05), (150, 1.10)],
            &[(60, 1.808_650_5e-23), (110, 1.739_417_5e-38), (150, 3.339_431_4e-63)],
        ),
        (2, 200, &[], &[(147, 4.252_088_3e-5), (152, 8.692_468e-4)]),
        (3, 120, &[(40, 1.02), (80, 0.98)], &[(40, 6.890_037_5e-18), (80, 4.845_701_4e-21)]),
        (4, 60, &[(50, 1.05)], &[(50, 1.889_534_2e-21)]),
        (5, 300, &[(100, 1.01), (200, 1.01)], &[(100, 4.043_146_8e-15), (199, 1.011_333_1e-10)]),
        (6, 5, &[], &[]),
        (7, 40, &[(39, 1.2)], &[(39, 2.003_492_7e-22)]),
        (
            8,
            500,
            &[(10, 1.03), (13, 0.97), (250, 1.02), (260, 1.02)],
            &[(253, 3.045_99e-11), (261, 3.696_859_9e-6), (277, 8.566_818e-4)],
        ),
    ];
    for (seed, n, steps, expected) in cases {
        let found = change_points(&series(seed, n, steps));
        let at: Vec<usize> = found.iter().map(|it| it.index).collect();
        assert_eq!(at, expected.iter().map(|it| it.0).collect::<Vec<_>>(), "seed {seed}");
        for (point, (_, p)) in found.iter().zip(expected) {
            assert!((point.p / p - 1.0).abs() < 1e-5, "seed {seed}: {} is not {p}", point.p);
        }
    }
}

#[test]
fn planted_changes_of_3_5_and_10_percent_are_found_where_they_are() {
    for seed in 100..110 {
        let found = change_points(&series(seed, 200, &[(60, 1.03), (110, 1.05), (150, 1.10)]));
        for at in [60usize, 110, 150] {
            assert!(found.iter().any(|it| it.index.abs_diff(at) <= 2), "seed {seed}: {found:?}");
        }
        assert!(found.len() <= 5, "seed {seed}: {found:?}");
    }
}

#[test]
fn a_step_without_noise_is_one_change_and_a_constant_has_none() {
    let step: Vec<f64> = [[1.0; 30], [2.0; 30]].concat();
    let expected = ChangePoint { index: 30, p: 0.0, before: 1.0, after: 2.0 };
    assert_eq!(change_points(&step), [expected]);
    for short in [&[][..], &[1.0], &[1.0, 5.0], &[3.0; 200]] {
        assert_eq!(change_points(short), [], "{} values", short.len());
    }
}

/// Gates a candidate, whose level differs from the baseline's by `factor` in the first figure, as
/// runs are added; `builds` earlier builds have five runs each.
fn gate(
    deviates: &mut Deviates,
    (figures, builds): (usize, usize),
    (factor, threshold_pct): (f64, f64),
) -> GateVerdict {
    let names = &FigureName::ALL[..figures];
    let sides: Vec<_> = (0..figures)
        .map(|figure| {
            let lower = names[figure].lower_is_better();
            let worse = if figure > 0 { 1.0 } else { factor };
            let earlier: Vec<Vec<f64>> = (0..builds).map(|_| deviates.runs(10.0, 5)).collect();
            let baseline = deviates.runs(10.0, MAX_RUNS);
            let candidate = deviates.runs(if lower { 10.0 * worse } else { 10.0 / worse }, 5);
            let groups = || earlier.iter().chain([&baseline]).map(Vec::as_slice);
            let (noise, runs) = (Noise::within(groups()), groups().flatten().copied());
            let level = Spread::of(runs).map(|it| it.mean);
            (baseline, candidate, noise, level)
        })
        .collect();
    let design = GateDesign { figures, max_runs: MAX_RUNS };
    for runs in 1..=MAX_RUNS {
        let decided: Vec<_> = names
            .iter()
            .zip(&sides)
            .map(|(name, (baseline, candidate, noise, level))| {
                design.decide(&GatedFigure {
                    name: *name,
                    threshold_pct,
                    baseline,
                    candidate: &candidate[..runs],
                    noise: *noise,
                    level: *level,
                })
            })
            .collect();
        let verdict = overall(decided.iter().map(|it| it.verdict));
        if verdict != GateVerdict::Inconclusive || runs == MAX_RUNS {
            return verdict;
        }
    }
    GateVerdict::Inconclusive
}

/// A change of three deviations in one figure, and the threshold, percent.
const WORSE: (f64, f64) = (1.03, 2.0);
/// Equal builds, and a threshold of three deviations.
const EQUAL: (f64, f64) = (1.0, 3.0);
/// Equal builds, and a threshold so low that no gate passes before its last run.
const NEVER_PASSED: (f64, f64) = (1.0, 0.01);

/// Share of `n` gates that end with a regression, and with a pass.
fn shares(seed: u64, n: u32, size: (usize, usize), change: (f64, f64)) -> (f64, f64) {
    let mut deviates = Deviates(seed);
    let verdicts: Vec<GateVerdict> = (0..n).map(|_| gate(&mut deviates, size, change)).collect();
    let share = |of| verdicts.iter().filter(|it| **it == of).count() as f64 / f64::from(n);
    (share(GateVerdict::Regression), share(GateVerdict::Passed))
}

/// One in a hundred, and three standard deviations of the share of `n` simulated gates.
fn one_percent(n: u32) -> f64 {
    0.01 + 3.0 * (0.01 * 0.99 / f64::from(n)).sqrt()
}

#[test]
fn at_most_one_gate_of_equal_builds_in_a_hundred_fails_over_all_figures() {
    let all = (FigureName::ALL.len(), 10);
    let (failed, passed) = shares(7, 1500, all, EQUAL);
    assert!(failed <= one_percent(1500) && passed > 0.9, "{failed} failed, {passed} passed");
    let (failed, _) = shares(10, 1500, all, NEVER_PASSED);
    assert!(failed <= one_percent(1500), "{failed} failed at a threshold below the noise");
}

#[test]
fn a_change_of_three_deviations_is_detected_with_five_runs_per_side() {
    let (found, missed) = shares(8, 800, (FigureName::TIMES.len(), 8), WORSE);
    assert!(found >= 0.95 && missed <= 0.05, "{found} found, {missed} passed");
    let (found, _) = shares(9, 500, (FigureName::ALL.len(), 45), WORSE);
    assert!(found >= 0.93, "{found} found among all figures");
}

/// 360,000 gates: the figures of specs/series.md.
#[test]
#[ignore = "minutes in a release build; `just gates` runs it"]
fn the_published_rates_of_gates_hold_over_many_simulations() {
    for size in [(1, 4), (3, 8), (7, 45)] {
        let (failed, _) = shares(11, 50_000, size, EQUAL);
        let (never_passed, _) = shares(13, 50_000, size, NEVER_PASSED);
        let (found, missed) = shares(12, 20_000, size, WORSE);
        let (figures, builds) = size;
        println!(
            "{figures} figures, {builds} builds: {failed} fail, {never_passed} below the noise, \
             {found} found, {missed} pass"
        );
        assert!(failed <= 0.01, "{figures} figures: {failed}");
        assert!(never_passed <= one_percent(50_000), "{figures} figures: {never_passed}");
        assert!(found >= 0.95, "{figures} figures: {found}");
    }
}

fn decide(
    baseline: &[f64],
    candidate: &[f64],
    noise: Option<Noise>,
) -> super::gate::FigureDecision {
    let name = FigureName::Tpot;
    let level = Some(10.0);
    let it = GatedFigure { name, threshold_pct: 3.0, baseline, candidate, noise, level };
    GateDesign { figures: 1, max_runs: MAX_RUNS }.decide(&it)
}

#[test]
fn noise_above_the_threshold_is_inconclusive_and_never_a_pass() {
    let noise = Some(Noise { log_std: 0.10, freedom: 30.0 });
    let five = decide(&[10.0; 5], &[10.0; 5], noise);
    assert_eq!((five.verdict, five.more_runs), (GateVerdict::Inconclusive, false));
    let one = decide(&[10.0; 5], &[10.0], noise);
    assert_eq!((one.verdict, one.more_runs), (GateVerdict::Inconclusive, true));
    let unknown = decide(&[10.0], &[10.0], None);
    assert_eq!((unknown.verdict, unknown.more_runs), (GateVerdict::Inconclusive, true));
    let absent = decide(&[10.0], &[], noise);
    assert_eq!((absent.verdict, absent.more_runs), (GateVerdict::Inconclusive, false));
}

#[test]
fn one_run_decides_a_large_change_and_an_improvement_passes() {
    let noise = Some(Noise { log_std: 0.01, freedom: 60.0 });
    assert_eq!(decide(&[10.0; 5], &[11.0], noise).verdict, GateVerdict::Regression);
    let better = decide(&[10.0; 5], &[9.0], noise);
    assert_eq!(better.verdict, GateVerdict::Passed);
    assert!(better.worse_pct.is_some_and(|pct| (pct + 10.0).abs() < 1e-9));
    // Significant, but far below the threshold.
    let exact = Some(Noise { log_std: 0.0001, freedom: 60.0 });
    assert_eq!(decide(&[10.0; 5], &[10.1], exact).verdict, GateVerdict::Passed);
}

#[test]
fn a_rate_is_judged_as_the_time_that_is_its_reciprocal() {
    let noise = Some(Noise { log_std: 0.01, freedom: 60.0 });
    let judge = |name, baseline: f64, candidate: f64| {
        let (baseline, candidate) = (&[baseline; 5], &[candidate; 5]);
        let level = Some(baseline[0]);
        let it = GatedFigure { name, threshold_pct: 3.0, baseline, candidate, noise, level };
        GateDesign { figures: 1, max_runs: MAX_RUNS }.decide(&it)
    };
    let time = judge(FigureName::Tpot, 10.0, 10.5);
    let rate = judge(FigureName::TokensPerS, 1.0 / 10.0, 1.0 / 10.5);
    assert_eq!((time.verdict, rate.verdict), (GateVerdict::Regression, GateVerdict::Regression));
    let pairs = [(time.worse_pct, rate.worse_pct), (time.bound_pct, rate.bound_pct)];
    assert!(pairs.iter().all(|(a, b)| (a.unwrap() - b.unwrap()).abs() < 1e-9), "{pairs:?}");
    assert!((time.worse_pct.unwrap() - 5.0).abs() < 1e-9);
}

#[test]
fn a_gate_without_figures_is_inconclusive() {
    assert_eq!(overall([]), GateVerdict::Inconclusive);
    use GateVerdict::{Inconclusive, Passed, Regression};
    assert_eq!(overall([Passed, Inconclusive]), Inconclusive);
    assert_eq!(overall([Regression, Inconclusive, Passed]), Regression);
}

#[test]
fn noise_is_pooled_within_builds_and_not_between_them() {
    let builds = [vec![10.0, 10.1], vec![20.0, 20.2], vec![30.0]];
    let noise = Noise::within(builds.iter().map(Vec::as_slice)).unwrap();
    assert!((noise.log_std - 1.01f64.ln() / 2f64.sqrt()).abs() < 1e-12 && noise.freedom == 2.0);
    assert_eq!(Noise::within([&[10.0][..], &[]]), None);
    assert_eq!(Noise::within([&[0.0, -1.0][..]]), None, "without a logarithm");
}
