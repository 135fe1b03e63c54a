//! Sampler logs of a device with a given draw, joined with stages of known times.

use llmprof_core::{
    domain::finding::Severity,
    trace::{
        event::{Event, StageRange, Steady},
        power::PowerSource,
    },
};

use super::*;
use crate::stages;

mod gpus;

const MS: i64 = 1_000_000;

/// Samples every 20 ms for a second. `watts` is the draw at a time; the energy counter follows it.
fn log(source: PowerSource, counter: bool, watts: impl Fn(i64) -> f64) -> PowerLog {
    let mut joules = 0.0;
    let samples = (0..=50).map(|step| {
        let t_ns = step * 20 * MS;
        let sample = PowerSample {
            t_ns,
            power_w: Some(watts(t_ns)),
            energy_mj: counter.then_some((joules * 1e3) as u64),
            sm_mhz: Some(1_500),
            clock_reasons: Some(if (400..700).contains(&(t_ns / MS)) { 0x4 } else { 0x1 }),
            ..PowerSample::default()
        };
        joules += watts(t_ns) * 0.02;
        sample
    });
    PowerLog {
        device: SampledDevice {
            schema: 1,
            uuid: "GPU-1".into(),
            board_uuid: "GPU-1".into(),
            name: "g".into(),
            gpus: 1,
            period_ns: 20 * MS,
            power_source: source,
            power_limit_w: Some(700.0),
            max_sm_mhz: Some(1_980),
            max_memory_mhz: None,
        },
        samples: samples.collect(),
        end: None,
        others: vec![],
    }
}

/// A stage with its start and end in milliseconds.
fn stage_range((name, start, end): (&str, i64, i64)) -> Event {
    Event::Range(StageRange {
        name: name.into(),
        start_ns: start * MS,
        end_ns: end * MS,
        device_ns: None,
        warmup: false,
        repeat: 0,
        step: None,
    })
}

/// Analyses `log` with stages given as name, start and end in milliseconds.
fn joined(log: &PowerLog, ranges: &[(&str, i64, i64)]) -> Power {
    let events: Vec<Event> = ranges.iter().copied().map(stage_range).collect();
    let events = Events::of(&events);
    power(log, &events, &stages::stages(&events))
}

#[test]
fn energy_is_the_counter_difference_over_all_instances() {
    let log = log(PowerSource::Instant, true, |t| if t < 500 * MS { 100.0 } else { 300.0 });
    let power = joined(&log, &[("prefill", 100, 200), ("prefill", 600, 700)]);
    let stage = &power.stages[0];
    assert_eq!(
        (stage.instances, stage.samples, stage.energy_source),
        (2, 10, Some(EnergySource::Counter))
    );
    assert!((stage.energy_j.unwrap() - 20.0).abs() < 0.1, "10 J and 30 J: {stage:?}");
    assert!((stage.mean_w.unwrap() - 200.0).abs() < 1.0);
    assert_eq!((stage.peak_w, stage.sm_mhz), (Some(300.0), Some(1_500.0)));
}

#[test]
fn without_a_counter_energy_is_the_integral_of_power() {
    let log = log(PowerSource::Instant, false, |_| 250.0);
    let stage = joined(&log, &[("decode_all", 100, 500)]).stages.remove(0);
    assert_eq!(stage.energy_source, Some(EnergySource::Integral));
    assert!((stage.energy_j.unwrap() - 100.0).abs() < 1e-9);
}

#[test]
fn a_reading_that_is_a_mean_over_a_second_is_not_integrated_over_less() {
    let log = log(PowerSource::Average, false, |_| 250.0);
    let stage = joined(&log, &[("decode_all", 100, 500)]).stages.remove(0);
    assert_eq!((stage.energy_j, stage.mean_w), (None, None));
    assert!(
        stage.why.unwrap().contains("400.0 ms, less than two device readings (1000.0 ms apart)")
    );
    assert_eq!(stage.sm_mhz, Some(1_500.0), "clock readings are instantaneous");
}

#[test]
fn a_stage_shorter_than_the_sampling_period_gets_no_figure_but_a_reason() {
    let log = log(PowerSource::Instant, true, |_| 100.0);
    let ranges: Vec<_> = (0..20).map(|step| ("prefill", step * 40 + 15, step * 40 + 25)).collect();
    let stage = joined(&log, &ranges).stages.remove(0);
    assert_eq!(
        (stage.samples, stage.energy_j, stage.sm_mhz, stage.throttled_pct),
        (20, None, None, None)
    );
    assert!(stage.why.unwrap().starts_with("An instance lasts 10.0 ms; 20 samples at one every"));
}

#[test]
fn power_is_preferred_over_a_coarse_counter() {
    let mut log = log(PowerSource::Instant, true, |t| 100.0 + (t / MS % 7) as f64);
    for sample in &mut log.samples {
        sample.energy_mj = Some(sample.t_ns as u64 / 300_000_000);
    }
    let stage = joined(&log, &[("prefill", 100, 200)]).stages.remove(0);
    assert_eq!(stage.energy_source, Some(EnergySource::Integral));
}

#[test]
fn a_decreasing_counter_is_ignored() {
    let mut log = log(PowerSource::Instant, true, |_| 100.0);
    log.samples[30].energy_mj = Some(0);
    assert_eq!(
        joined(&log, &[("prefill", 100, 200)]).stages[0].energy_source,
        Some(EnergySource::Integral)
    );
}

/// Joins `log` with a prefill of 10 ms and a back-to-back run of 70 prefills from 200 ms to 900 ms.
fn back_to_back(log: &PowerLog) -> StagePower {
    let steady =
        Steady { stage: "prefill".into(), start_ns: 200 * MS, end_ns: 900 * MS, instances: 70 };
    let events = [stage_range(("prefill", 15, 25)), Event::Steady(steady)];
    let events = Events::of(&events);
    power(log, &events, &stages::stages(&events)).stages.remove(0)
}

#[test]
fn a_stage_too_short_to_be_read_is_measured_back_to_back() {
    for counter in [true, false] {
        let log = log(
            PowerSource::Instant,
            counter,
            |t| if t < 500 * MS { 100.0 } else { 600.0 } + (t / MS % 3) as f64,
        );
        let stage = back_to_back(&log);
        let run = stage.back_to_back.unwrap();
        assert_eq!(
            (run.seconds, run.instances, stage.why),
            (0.4, 40.0, None),
            "300 ms of rising power are excluded"
        );
        assert!(
            (stage.mean_w.unwrap() - 601.0).abs() < 2.0
                && (stage.energy_j.unwrap() - 6.01).abs() < 0.02
        );
        assert_eq!((stage.samples, stage.sm_mhz, stage.instances), (21, Some(1_500.0), 1));
        let source = if counter { EnergySource::Counter } else { EnergySource::Integral };
        assert_eq!(stage.energy_source, Some(source));
    }
}

#[test]
fn energy_of_a_decode_with_flushes_of_the_cache_is_of_the_run_back_to_back() {
    // Instances with flushes draw 600 W, the run without them 100 W.
    let log = log(PowerSource::Instant, true, |t| if t < 200 * MS { 600.0 } else { 100.0 });
    let decode = |cold_cache: bool, has_run: bool| {
        let start = format!(
            r#"{{"schema":1,"t_ns":0,"unix_ns":0,"pid":1,"model":"m","weights":"synthetic",
            "parameters":1,"weight_bytes":1,"dtype":"bf16","device":"cuda:0","threads":1,
            "prompt_tokens":1,"image_tokens":0,"images":[],"decode_graph":true,"load_ns":0,
            "cold_cache":{cold_cache}}}"#
        );
        let start = serde_json::from_str(&start).unwrap();
        let stage = stages::DECODE;
        let mut events = vec![Event::Start(start), stage_range((stage, 0, 180))];
        let run =
            Steady { stage: stage.into(), start_ns: 200 * MS, end_ns: 900 * MS, instances: 7 };
        events.extend(has_run.then_some(Event::Steady(run)));
        let events = Events::of(&events);
        power(&log, &events, &stages::stages(&events)).stages.remove(0)
    };
    let watts = |it: &StagePower| it.mean_w.unwrap();
    let warm = decode(false, true);
    assert!(watts(&warm) > 500.0 && warm.back_to_back.is_none());
    let cold = decode(true, true);
    assert!(watts(&cold) < 150.0 && cold.back_to_back.is_some());
    let unknown = decode(true, false);
    assert_eq!((unknown.mean_w, unknown.energy_j), (None, None));
    assert!(unknown.why.unwrap().contains("flushes of the L2 cache"));
}

#[test]
fn mean_power_has_students_interval_over_at_least_five_instances() {
    // Instances draw 100, 110, 120, 130 and 140 W: 2.776 x 15.81 / sqrt(5).
    let log = log(PowerSource::Instant, true, |t| 100.0 + 10.0 * (t / (200 * MS)) as f64);
    let ranges: Vec<_> = (0..5).map(|at| ("prefill", 40 + at * 200, 160 + at * 200)).collect();
    let stage = joined(&log, &ranges).stages.remove(0);
    assert!((stage.mean_w.unwrap() - 120.0).abs() < 0.1, "{stage:?}");
    assert!((stage.mean_w_half_width.unwrap() - 19.63).abs() < 0.05, "{stage:?}");
    let four = joined(&log, &ranges[..4]).stages.remove(0);
    assert!(four.mean_w.is_some() && four.mean_w_half_width.is_none(), "{four:?}");
}

#[test]
fn the_interval_of_a_back_to_back_run_is_of_its_parts_and_not_of_its_readings() {
    // Twenty readings of 600 W and 620 W in turn would give 5 W; parts of two of them draw alike.
    for counter in [true, false] {
        let half = |later: f64| {
            let watts = |t: i64| {
                let turn = (t / (20 * MS) % 2) as f64;
                if t < 700 * MS { 600.0 + 20.0 * turn } else { 600.0 + later + 20.0 * turn }
            };
            back_to_back(&log(PowerSource::Instant, counter, watts)).mean_w_half_width.unwrap()
        };
        assert!(half(0.0) < 2.0, "{}", half(0.0));
        assert!(half(100.0) > 30.0, "{}", half(100.0));
    }
    // Values of the driver's mean over a second are not independent within 0.4 s.
    let log = log(PowerSource::Average, false, |_| 250.0);
    assert_eq!(back_to_back(&log).mean_w_half_width, None);
}

#[test]
fn a_back_to_back_run_that_is_too_short_gives_no_figures_but_a_reason() {
    let log = log(PowerSource::Average, false, |_| 250.0);
    let stage = back_to_back(&log);
    assert_eq!((stage.energy_j, stage.mean_w, stage.back_to_back), (None, None, None));
    let why = stage.why.unwrap();
    assert!(
        why.contains("The back-to-back run lasted 0.70 s; 1.00 s are excluded and 0 samples"),
        "{why}"
    );
    assert!(why.ends_with("raise nvml.steady_ms."), "{why}");
}

#[test]
fn a_stage_outside_the_samples_has_no_figures() {
    let log = log(PowerSource::Instant, true, |_| 100.0);
    let stage = joined(&log, &[("prefill", 900, 1_200)]).stages.remove(0);
    assert_eq!((stage.instances, stage.energy_j), (0, None));
    assert_eq!(stage.why.as_deref(), Some("The device was not sampled while the stage ran."));
    let empty = PowerLog { samples: vec![], ..log };
    assert_eq!(joined(&empty, &[("prefill", 0, 10)]).stages[0].energy_j, None);
}

#[test]
fn throttling_is_reported_with_reasons_and_a_remedy_but_idleness_is_not() {
    let log = log(PowerSource::Instant, true, |_| 690.0);
    let power = joined(&log, &[("prefill", 100, 300), ("decode_all", 500, 900)]);
    assert_eq!(power.stages[0].throttled_pct, Some(0.0));
    assert_eq!(power.stages[0].reasons[0].reason, "gpu_idle");
    let found = findings(&power);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].id.as_str(), found[0].severity), ("gpu_throttled", Severity::Warning));
    assert_eq!(found[0].evidence["reasons"], "sw_power_cap 50 %");
    assert_eq!(found[0].evidence["mean power"], "690 of 700 W");
    assert!(found[0].advice.as_ref().unwrap().contains("sudo nvidia-smi -i GPU-1 -pl WATTS"));
}

#[test]
fn a_finding_states_that_figures_of_an_instance_are_of_the_whole_gpu() {
    let mut log = log(PowerSource::Instant, true, |_| 100.0);
    log.device.uuid = "MIG-1".into();
    let ids: Vec<_> = findings(&joined(&log, &[])).into_iter().map(|it| it.id.clone()).collect();
    assert_eq!(ids, ["power_of_whole_gpu"]);
}

#[test]
fn the_curve_is_thin_and_keeps_the_peak() {
    let mut log = log(PowerSource::Instant, true, |_| 100.0);
    log.samples = (0..5_000)
        .map(|step| PowerSample { t_ns: step * MS, power_w: Some(100.0), ..PowerSample::default() })
        .collect();
    log.samples[4_321].power_w = Some(700.0);
    let curve = joined(&log, &[("prefill", 4_000, 9_000)]).curve;
    assert!(
        curve.points.len() <= curve::MAX_POINTS
            && curve.points.iter().any(|point| point.1 == 700.0)
    );
    assert_eq!(
        (curve.bands[0].from_s, curve.bands[0].to_s),
        (4.0, 4.999),
        "a band ends with the samples"
    );
}

#[test]
fn a_counter_as_coarse_as_the_stage_does_not_mix_in_its_neighbours() {
    let mut log = log(
        PowerSource::Instant,
        true,
        |t| if (400..600).contains(&(t / MS)) { 700.0 } else { 100.0 } + (t % 7) as f64,
    );
    let values: Vec<_> = log.samples.iter().map(|it| it.energy_mj).collect();
    for (index, sample) in log.samples.iter_mut().enumerate() {
        sample.energy_mj = values[index / 5 * 5];
    }
    let stage = joined(&log, &[("prefill", 410, 590)]).stages.remove(0);
    assert_eq!(stage.energy_source, Some(EnergySource::Integral));
    assert!((stage.mean_w.unwrap() - 700.0).abs() < 20.0, "{stage:?}");
    assert!((stage.reading_pct.unwrap() - 100.0 * 20.0 / 180.0).abs() < 0.1);
}

#[test]
fn utilisation_counts_where_its_second_lies_in_the_stage() {
    let mut log = log(PowerSource::Instant, true, |_| 100.0);
    // Two seconds: idle in the first, with more memory in use at its end.
    log.samples = (0..=100)
        .map(|step| PowerSample {
            t_ns: step * 20 * MS,
            energy_mj: Some(step.unsigned_abs() * 2_000),
            gpu_pct: Some(if step < 50 { 10 } else { 90 }),
            memory_pct: Some(30),
            memory_used_bytes: Some(if step == 49 { 7 } else { 5 }),
            ..PowerSample::default()
        })
        .collect();
    let figures = |ranges: &[(&str, i64, i64)]| {
        let stage = &joined(&log, ranges).stages[0];
        (stage.gpu_active_pct, stage.memory_active_pct, stage.memory_used_bytes)
    };
    assert_eq!(figures(&[("prefill", 0, 2_000)]), (Some(90.0), Some(30.0), Some(7)));
    assert_eq!(figures(&[("prefill", 0, 900)]), (None, None, Some(5)), "shorter than a second");
    assert_eq!(
        figures(&[("prefill", 500, 1_200), ("prefill", 1_300, 2_000)]),
        (None, None, Some(7)),
        "no second lies in one instance"
    );
}
