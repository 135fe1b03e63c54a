//! Runs on several GPUs.

use super::*;

/// Logs of GPUs with these draws, watts; a GPU without a draw was not sampled.
fn gpus(watts: &[Option<f64>]) -> PowerLog {
    let mut first = log(PowerSource::Instant, true, |_| watts[0].unwrap());
    first.device.gpus = watts.len() as u32;
    let other = |(number, watts): (usize, &Option<f64>)| {
        let watts = (*watts)?;
        let mut other = log(PowerSource::Instant, true, |_| watts);
        other.device.board_uuid = format!("GPU-{number}");
        Some(other)
    };
    first.others = (2..).zip(&watts[1..]).map(other).collect();
    first
}

proptest::proptest! {
    #[test]
    fn energy_and_power_of_several_gpus_are_sums_or_absent_with_the_reason(
        watts in proptest::collection::vec(proptest::option::weighted(0.8, 100.0_f64..700.0), 1..9),
    ) {
        let watts: Vec<Option<f64>> = [Some(300.0)].into_iter().chain(watts).collect();
        let power = joined(&gpus(&watts), &[("decode_all", 100, 500)]);
        let stage = &power.stages[0];
        let count = watts.len() as u32;
        proptest::prop_assert_eq!((stage.gpus, power.device.gpus), (count, count));
        proptest::prop_assert_eq!(stage.sm_mhz, Some(1_500.0));
        match watts.iter().copied().sum::<Option<f64>>() {
            Some(sum) => {
                let close = |it: Option<f64>, expected: f64| {
                    it.is_some_and(|it| (it / expected - 1.0).abs() < 0.01)
                };
                proptest::prop_assert!(close(stage.mean_w, sum), "{stage:?}");
                proptest::prop_assert!(close(stage.energy_j, 0.4 * sum), "{stage:?}");
                proptest::prop_assert!(close(stage.peak_w, sum) && close(power.peak_w, sum));
                let limit_w = Some(700.0 * f64::from(count));
                proptest::prop_assert_eq!(power.device.power_limit_w, limit_w);
                proptest::prop_assert_eq!(&stage.why, &None);
            }
            None => {
                let of_stage = [stage.mean_w, stage.energy_j, stage.peak_w, stage.joules_per_token];
                proptest::prop_assert_eq!(of_stage, [None; 4]);
                proptest::prop_assert_eq!((power.peak_w, stage.energy_source), (None, None));
                let why = stage.why.clone().unwrap_or_default();
                let of = format!("of {count} GPUs");
                proptest::prop_assert!(why.contains("not sampled") && why.contains(&of), "{why}");
            }
        }
    }
}

#[test]
fn a_gpu_whose_readings_do_not_cover_a_stage_is_the_reason_why_sums_are_missing() {
    let mut log = gpus(&[Some(300.0), Some(200.0)]);
    let other = log.others[0].as_mut().unwrap();
    other.samples.retain(|it| it.t_ns < 200 * MS);
    let stage = joined(&log, &[("decode_all", 100, 500)]).stages.remove(0);
    assert_eq!((stage.energy_j, stage.mean_w), (None, None));
    assert!(stage.why.unwrap().starts_with("GPU 2 of 2: "));
}

#[test]
fn instances_of_one_gpu_have_its_energy_once() {
    let mut log = gpus(&[Some(300.0), Some(300.0)]);
    let other = log.others[0].as_mut().unwrap();
    other.device.board_uuid.clone_from(&log.device.board_uuid);
    let power = joined(&log, &[("decode_all", 100, 500)]);
    assert_eq!((power.device.gpus, power.stages[0].gpus), (1, 1));
    assert!((power.stages[0].mean_w.unwrap() - 300.0).abs() < 3.0);
}

#[test]
fn clocks_are_means_over_gpus_and_throttling_is_of_the_gpu_with_the_largest_share() {
    let mut log = gpus(&[Some(300.0), Some(200.0)]);
    log.samples.iter_mut().for_each(|it| it.clock_reasons = Some(0x1));
    let other = log.others[0].as_mut().unwrap();
    other.samples.iter_mut().for_each(|it| it.sm_mhz = Some(1_000));
    let power = joined(&log, &[("decode_all", 400, 600)]);
    let stage = &power.stages[0];
    assert_eq!((stage.sm_mhz, stage.throttled_pct), (Some(1_250.0), Some(100.0)));
    let found = findings(&power);
    let start = "At least one of 2 GPUs was throttled during 100 % of ";
    assert!(found[0].message.starts_with(start), "{}", found[0].message);
}
