//! Utilisation of measured, datasheet and clocked ceilings.

use llmprof_core::trace::power::{PowerLog, PowerSample, PowerSource, SampledDevice};

use super::*;

#[test]
fn a_utilisation_above_100_percent_is_removed_with_a_finding() {
    let analysis = of("range prefill 0..1 r0\nop a linear 0..1 prefill r0 2000000\nmatmul 1e9");
    assert_eq!(analysis.mfu.rows[0].flops_per_s, Some(2e9));
    assert_eq!(analysis.mfu.rows[0].measured_pct, None);
    assert!(ids(&analysis).contains(&"mfu_impossible"));
}

#[test]
fn utilisation_is_given_against_both_ceilings() {
    let mut baseline =
        events("range prefill 0..1 r0\nop a linear 0..1 prefill r0 1000000\nmatmul 4e9");
    baseline[0] = start("f32", "cuda:0");
    let peaks = DevicePeaks {
        name: "d".into(),
        reported_as: vec![],
        dense_tflops: [("f32".to_owned(), 0.01)].into(),
        boost_mhz: [("f32".to_owned(), 1000.0)].into(),
        memory_gb_s: 1.0,
        source: "s".into(),
    };
    let mfu = analyze(&Trace { baseline, ..Trace::default() }, None, Some(&peaks)).mfu;
    assert_eq!((mfu.rows[0].datasheet_pct, mfu.rows[0].measured_pct), (Some(10.0), Some(25.0)));
}

#[test]
fn ceilings_of_other_dtypes_are_ignored() {
    let mut baseline =
        events("range prefill 0..1 r0\nop a linear 0..1 prefill r0 1000000\nmatmul 4e9");
    baseline[0] = start("bf16", "cpu");
    let mfu = analyze(&Trace { baseline, ..Trace::default() }, None, None).mfu;
    assert_eq!(mfu.rows[0].measured_pct, None);
}

/// Samples of a GPU at these clocks, one every 10 ms for a second.
fn sampled(sm_mhz: u32, memory_mhz: u32) -> PowerLog {
    let device = SampledDevice {
        schema: 1,
        uuid: "GPU-1".into(),
        board_uuid: "GPU-1".into(),
        name: "d".into(),
        gpus: 1,
        period_ns: 10 * MS,
        power_source: PowerSource::Instant,
        power_limit_w: None,
        max_sm_mhz: Some(1980),
        max_memory_mhz: Some(3200),
    };
    let sample = |at: i64| PowerSample {
        t_ns: at * 10 * MS,
        sm_mhz: Some(sm_mhz),
        memory_mhz: Some(memory_mhz),
        ..PowerSample::default()
    };
    PowerLog { device, samples: (0..=100).map(sample).collect(), end: None, others: vec![] }
}

/// A prefill of 0.9 s at 1 TFLOP/s and 100 GB/s on a device of 10 TFLOP/s at 2 GHz and 200 GB/s.
fn clocked(sm_mhz: u32, memory_mhz: u32, boost_mhz: Option<f64>) -> Analysis {
    let mut baseline =
        events("range prefill 0..900 r0\nop a linear 0..900 prefill r0 900000000000");
    baseline[0] = start("f32", "cuda:0");
    for event in &mut baseline {
        if let Event::Op(call) = event {
            call.bytes = 90_000_000_000;
        }
    }
    let peaks = DevicePeaks {
        name: "d".into(),
        reported_as: vec![],
        dense_tflops: [("f32".to_owned(), 10.0)].into(),
        boost_mhz: boost_mhz.map(|mhz| ("f32".to_owned(), mhz)).into_iter().collect(),
        memory_gb_s: 200.0,
        source: "s".into(),
    };
    analyze(
        &Trace { baseline, power: Some(sampled(sm_mhz, memory_mhz)), ..Trace::default() },
        None,
        Some(&peaks),
    )
}

#[test]
fn a_peak_at_observed_clocks_is_scaled_by_them() {
    let mfu = clocked(1000, 1600, Some(2000.0)).mfu;
    for row in &mfu.rows {
        let shares = [
            row.datasheet_pct,
            row.clocked_pct,
            row.datasheet_bandwidth_pct,
            row.clocked_bandwidth_pct,
        ];
        let rounded = shares.map(|pct| pct.unwrap().round());
        assert_eq!(rounded, [10.0, 20.0, 50.0, 100.0], "{}", row.scope);
        assert_eq!(row.sm_mhz, Some(1000.0));
    }
    assert_eq!(mfu.rows.len(), 2, "the stage, and the model");
}

#[test]
fn without_the_datasheet_clock_there_is_no_clocked_peak() {
    let mfu = clocked(1000, 1600, None).mfu;
    assert_eq!(
        (mfu.rows[0].datasheet_pct.map(f64::round), mfu.rows[0].clocked_pct),
        (Some(10.0), None)
    );
}

#[test]
fn a_share_above_the_peak_at_observed_clocks_is_removed() {
    let analysis = clocked(100, 1600, Some(2000.0));
    assert_eq!(
        (analysis.mfu.rows[0].clocked_pct, analysis.mfu.rows[0].datasheet_pct.is_some()),
        (None, true)
    );
    assert!(ids(&analysis).contains(&"mfu_impossible"));
}

#[test]
fn an_operator_is_compared_with_the_ceilings_by_its_exclusive_time() {
    let analysis = of("range prefill 0..10 r0\nop a linear 0..4 prefill r0 4000000
         op b linear 4..5 prefill r0 9000000\nmatmul 4e9");
    let rows: Vec<_> = analysis
        .mfu
        .operators
        .iter()
        .map(|it| (it.path.as_str(), it.exclusive_ms, it.measured_pct))
        .collect();
    assert_eq!(rows, [("a", 4.0, Some(25.0)), ("b", 1.0, None)], "b exceeds the measured product");
    assert!(
        ids(&analysis).contains(&"ceiling_surpassed")
            && !ids(&analysis).contains(&"mfu_impossible")
    );
    assert!(
        analysis.mfu.operators.iter().all(|it| it.time_of == "host" && it.datasheet_pct.is_none())
    );
}

#[test]
fn on_a_gpu_an_operator_without_kernels_has_no_utilisation() {
    let mut baseline =
        events("range prefill 0..10 r0\nop a linear 0..4 prefill r0 4000000\nmatmul 4e9");
    baseline[0] = start("f32", "cuda:0");
    assert_eq!(analyze(&Trace { baseline, ..Trace::default() }, None, None).mfu.operators, []);
}
