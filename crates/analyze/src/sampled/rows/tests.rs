//! Rows of sketches of work and samples.

use proptest::prelude::*;

use super::*;

fn work(start_ns: i64, end_ns: i64, stage: u16, unknown: u32) -> Work {
    Work { start_ns, end_ns, stage, unknown }
}

/// The rows of samples at 0, 100, 200, ...: stage, entries in percent of the period, value.
fn rows(kernels: Vec<Work>, copies: Vec<Work>, shift: TimeShift) -> Vec<String> {
    let mut samples = DeviceSamples::new(0);
    (0..6).for_each(|at| samples.push(at * 100, GpuMetric::DramRead, at as u16));
    samples.finish();
    let every = vec![1; 3];
    let spans = spans(&kernels, &copies, &samples, 100, &every);
    let (samples, period_ns, delay_ns) = (&samples, 100, 0);
    let of = SampledWork { kernels, copies, samples, period_ns, delay_ns, spans, every };
    let mut rows = Vec::new();
    of.each_row(shift, &[GpuMetric::DramRead], |row| {
        let entries = row.entries.iter().map(|(at, share)| format!("{at}:{:.0}", share * 100.0));
        let entries: Vec<String> = entries.collect();
        rows.push(format!("{} {} = {}", row.stage, entries.join(" "), row.values[0]));
    });
    rows
}

#[test]
fn a_row_has_the_share_of_the_period_after_the_sample_that_each_kernel_fills() {
    let kernels = vec![work(120, 170, 1, 0), work(180, 230, 1, 1), work(350, 360, 1, 0)];
    assert_eq!(
        rows(kernels, vec![], TimeShift::default()),
        ["1 0:50 1:20 = 1", "1 1:30 = 2", "1 0:10 = 3"]
    );
}

#[test]
fn samples_of_two_stages_or_of_none_have_no_row() {
    let kernels = vec![work(110, 150, 1, 0), work(160, 190, 2, 0), work(210, 220, 2, 1)];
    let other = [work(310, 320, NO_STAGE, 9), work(420, 430, 1, 0), work(440, 450, 0, 9)];
    let kernels = [kernels, other.to_vec()].concat();
    assert_eq!(rows(kernels, vec![], TimeShift::default()), ["2 1:10 = 2"]);
}

#[test]
fn kernels_that_run_at_once_share_the_time_and_a_copy_does_not() {
    let kernels = vec![work(100, 180, 1, 0), work(120, 140, 1, 1)];
    let copy = vec![work(150, 200, 1, 2)];
    let of = |is_additive| TimeShift { is_additive, ..TimeShift::default() };
    let (shared, copies) = (of(false), copy.clone());
    assert_eq!(rows(kernels.clone(), copies, shared), ["1 0:70 1:10 2:50 = 1"]);
    assert_eq!(rows(kernels, copy, of(true)), ["1 0:80 1:20 2:50 = 1"], "unless they may add up");
}

#[test]
fn a_kernel_counts_nothing_at_its_edges_and_all_samples_may_lag() {
    let lag = TimeShift { lag_ns: 20, ..TimeShift::default() };
    assert_eq!(rows(vec![work(130, 150, 1, 0)], vec![], lag), ["1 0:20 = 1"]);
    assert_eq!(rows(vec![work(110, 130, 1, 0)], vec![], lag), ["1 0:10 = 0", "1 0:10 = 1"]);
    let idle = TimeShift { idle_ns: 10, ..TimeShift::default() };
    assert_eq!(rows(vec![work(110, 190, 1, 0)], vec![], idle), ["1 0:60 = 1"]);
    assert_eq!(
        rows(vec![work(110, 120, 1, 0)], vec![], idle),
        ["1 0:2 = 1"],
        "at most 40 % of a short kernel on either side"
    );
}

fn all_rows(of: &SampledWork, shift: TimeShift) -> Vec<(u16, Entries, Vec<f64>)> {
    let mut rows = Vec::new();
    of.each_row(shift, &[GpuMetric::DramRead], |row| {
        rows.push((row.stage, row.entries.clone(), row.values.clone()));
    });
    rows
}

proptest! {
    #[test]
    fn samples_far_from_the_work_of_stages_have_no_row(
        kernels in prop::collection::vec((0i64..400_000, 1i64..9_000, 0u16..3, 0u32..4), 0..30),
        copies in prop::collection::vec((0i64..400_000, 1i64..9_000, 0u16..3), 0..4),
        (idle_ns, lag_ns) in (0i64..1_500, -1_500i64..1_500),
    ) {
        let mut samples = DeviceSamples::new(0);
        (0..200i64).for_each(|at| samples.push(at * 2_000, GpuMetric::DramRead, 1));
        samples.finish();
        let of = |(start, ns, stage, unknown)| work(start, start + ns, stage, unknown);
        let mut kernels: Vec<Work> = kernels.into_iter().map(of).collect();
        let copies = copies.into_iter().map(|(start, ns, stage)| (start, ns, stage, 9));
        let mut copies: Vec<Work> = copies.map(of).collect();
        kernels.sort_by_key(|it| it.start_ns);
        copies.sort_by_key(|it| it.start_ns);
        let every = vec![1; 3];
        let spans = spans(&kernels, &copies, &samples, 2_000, &every);
        let (samples, period_ns, delay_ns) = (&samples, 2_000, DELAY_NS);
        let mut of = SampledWork { kernels, copies, samples, period_ns, delay_ns, spans, every };
        let shift = TimeShift { idle_ns, lag_ns, is_additive: false };
        let near = all_rows(&of, shift);
        of.spans = vec![SampleSpan { samples: 0..200, kernel: 0, copy: 0, chunk: 0 }];
        prop_assert_eq!(near, all_rows(&of, shift));
    }

    #[test]
    fn of_a_stage_with_many_samples_every_nth_chunk_is_used_and_of_others_all(
        kernels in prop::collection::vec((0i64..4_000_000, 1i64..90_000, 1u16..3), 1..60),
        n in 2usize..5,
    ) {
        let mut samples = DeviceSamples::new(0);
        (0..2_000i64).for_each(|at| samples.push(at * 2_000, GpuMetric::DramRead, at as u16));
        samples.finish();
        let of = |(start, ns, stage)| work(start, start + ns, stage, 0);
        let mut kernels: Vec<Work> = kernels.into_iter().map(of).collect();
        kernels.sort_by_key(|it| it.start_ns);
        let work = |every: Vec<usize>| {
            let spans = spans(&kernels, &[], &samples, 2_000, &every);
            let (samples, kernels) = (&samples, kernels.clone());
            let (period_ns, delay_ns, copies) = (2_000, DELAY_NS, vec![]);
            SampledWork { kernels, copies, samples, period_ns, delay_ns, spans, every }
        };
        let all = work(vec![1; 3]);
        let part = work(vec![1, 1, n]);
        let rows = |of: &SampledWork| all_rows(of, TimeShift::default());
        let of_stage = |of: &SampledWork, stage: u16| -> Vec<_> {
            rows(of).into_iter().filter(|row| row.0 == stage).collect()
        };
        prop_assert_eq!(of_stage(&all, 1), of_stage(&part, 1));
        let (all, part) = (of_stage(&all, 2), of_stage(&part, 2));
        prop_assert!(part.iter().all(|row| all.contains(row)));
        prop_assert!(part.len() <= all.len() / n + CHUNK, "{} of {}", part.len(), all.len());
        prop_assert!(part.len() + CHUNK >= all.len() / n / 2 || all.len() < 2 * CHUNK);
    }
}
