//! Sums, values and covariance of a few rows.

use super::*;

fn row(entries: &[(u32, f64)], value: f64) -> SampleRow {
    SampleRow { stage: 1, period_ns: 1e3, entries: entries.to_vec(), values: vec![value] }
}

#[test]
fn an_inverse_times_its_matrix_is_one() {
    let matrix = vec![4.0, 2.0, 0.5, 2.0, 5.0, 1.0, 0.5, 1.0, 3.0];
    let product = product(&inverse(matrix.clone(), 3).unwrap(), &matrix, 3);
    for (at, value) in product.iter().enumerate() {
        let expected = if at % 4 == 0 { 1.0 } else { 0.0 };
        assert!((value - expected).abs() < 1e-12, "{product:?}");
    }
    assert_eq!(inverse(vec![1.0, 2.0, 2.0, 1.0], 2), None);
}

#[test]
fn separable_kernels_have_their_values_and_gaps_count_as_zero() {
    let mut sums = StageSums::new(2, &[0, 1], 1);
    for at in 0..400 {
        let share = f64::from(at % 4) / 4.0;
        sums.add(&row(&[(0, share), (1, 0.9 - share)], 80.0 * share + 20.0 * (0.9 - share)));
    }
    let estimate = sums.solve(0).unwrap();
    assert!((estimate.values[0] - 80.0).abs() < 0.2, "{estimate:?}");
    assert!((estimate.values[1] - 20.0).abs() < 0.2, "{estimate:?}");
    let mean = sums.mean(0, &estimate.values, &[0.0; 4]).unwrap().value;
    let expected = (80.0 * 0.375 + 20.0 * 0.525) / 0.9;
    assert!((mean - expected).abs() < 1e-9, "{mean} {expected}");
}

#[test]
fn kernels_that_always_run_together_have_wide_intervals_and_a_narrow_sum() {
    let (mut sums, rows) =
        (StageSums::new(2, &[0, 1], 1), vec![row(&[(0, 0.5), (1, 0.5)], 50.0); 100]);
    rows.iter().for_each(|row| sums.add(row));
    let estimate = sums.solve(0).unwrap();
    let mut meat = Meat::new(2, 1);
    rows.iter().for_each(|row| meat.add(row, std::slice::from_ref(&estimate)));
    let covariance = sums.covariance(&estimate, meat.into_sums().remove(0)).unwrap();
    assert!(covariance[0].sqrt() > 30.0, "{covariance:?}");
    let mean = (covariance[0] + covariance[1] + covariance[2] + covariance[3]) / 4.0;
    assert!(mean.sqrt() < 1.0, "{covariance:?}");
}

#[test]
fn the_mean_of_kernels_is_that_of_all_samples_less_the_copies() {
    let mut sums = StageSums::new(2, &[0], 1);
    // The kernel has 40 and 80 in equal times, and samples with copies half of both.
    sums.add(&row(&[(0, 0.5)], 20.0));
    sums.add(&row(&[(0, 0.5), (1, 0.5)], 40.0 + 10.0));
    sums.add(&row(&[(1, 0.5)], 10.0));
    let mean = sums.mean(0, &[f64::NAN, 20.0], &[0.0; 4]).unwrap();
    assert!((mean.value - 60.0).abs() < 1e-9, "{mean:?}");
    let exact = sums.mean(0, &[0.0, 20.0], &[0.0; 4]).unwrap().error;
    let unsure = sums.mean(0, &[0.0, 20.0], &[0.0, 0.0, 0.0, 9.0]).unwrap().error;
    assert!((unsure - exact.hypot(3.0)).abs() < 1e-9, "copies as long as the kernels");
    assert_eq!((sums.busy(), sums.rows, sums.samples.clone()), (1.0, 3, vec![2]));
}

#[test]
fn a_few_samples_do_not_make_a_narrow_interval() {
    let mut sums = StageSums::new(1, &[0], 1);
    let rows = [row(&[(0, 1.0)], 50.0), row(&[(0, 1.0)], 50.0)];
    rows.iter().for_each(|row| sums.add(row));
    let estimate = sums.solve(0).unwrap();
    let covariance = sums.covariance(&estimate, vec![0.0]).unwrap();
    assert!(covariance[0].sqrt() > 2.0, "{covariance:?}");
    assert!(StageSums::new(1, &[0], 1).solve(0).is_none());
}

#[test]
fn parts_of_one_kernel_in_one_sample_are_one_sample_of_the_kernel() {
    let mut sums = StageSums::new(4, &[0, 0, 1], 1);
    sums.add(&row(&[(0, 0.2), (1, 0.3), (3, 0.1)], 50.0));
    sums.add(&row(&[(1, 0.3), (2, 0.4)], 50.0));
    assert_eq!(sums.samples, [2, 1]);
    assert!((sums.busy_ns() - 1_200.0).abs() < 1e-9, "{sums:?}");
}

#[test]
fn small_values_may_be_lower_than_the_percents_that_they_are_rounded_to() {
    let of = |value: f64| {
        let mut sums = StageSums::new(1, &[0], 1);
        (0..200).for_each(|_| sums.add(&row(&[(0, 0.1)], value)));
        let estimate = sums.solve(0).unwrap();
        [sums.rounding(0, &estimate).unwrap()[0], sums.mean_rounding(0)]
    };
    let is_near = |found: [f64; 2], truth: f64| found.iter().all(|it| (it - truth).abs() < 0.2);
    assert!(is_near(of(1.0), 10.0), "what is above 0 is at least 1: {:?}", of(1.0));
    assert!(is_near(of(3.0), 5.0), "to the nearest percent: {:?}", of(3.0));
    assert_eq!((of(0.0), of(40.0)), ([0.0; 2], [0.0; 2]), "0 is 0, and larger values vary");
}
