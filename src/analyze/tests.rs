//! The analysis on sketches of events: each line is one event, each test one claim.

use super::{device::DevicePeaks, stages::DECODE, *};
use crate::trace::{
    event::{Ceiling, Event, OperatorCall, Output, StageRange},
    power::{PowerLog, PowerSample, PowerSource, SampledDevice},
};

const MS: i64 = 1_000_000;

fn start(dtype: &str, device: &str) -> Event {
    Event::Start(Start {
        schema: 1,
        t_ns: 0,
        unix_ns: 0,
        pid: 1,
        model: "m".into(),
        target: None,
        weights: "synthetic".into(),
        parameters: 1,
        weight_bytes: 4,
        dtype: dtype.into(),
        device: device.into(),
        threads: 1,
        prompt_tokens: 10,
        image_tokens: 0,
        images: vec![],
        decode_graph: false,
        load_ns: 0,
    })
}

/// `range prefill 0..10 r0`, `warm prefill 0..10 r0`, `op a.b linear 0..5 prefill r0 flops` (times in ms), `out r0 7,8 hash`.
fn events(sketch: &str) -> Vec<Event> {
    let span = |text: &str| -> (i64, i64) {
        let (from, to) = text.split_once("..").unwrap();
        (from.parse::<i64>().unwrap() * MS, to.parse::<i64>().unwrap() * MS)
    };
    let repeat = |text: &str| text.strip_prefix('r').unwrap().parse::<u32>().unwrap();
    let line = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [kind @ ("range" | "warm"), name, at, of] => {
            let (start_ns, end_ns) = span(at);
            let step = (name == "decode_step").then_some(0);
            Event::Range(StageRange {
                name: name.into(),
                start_ns,
                end_ns,
                device_ns: None,
                warmup: kind == "warm",
                repeat: repeat(of),
                step,
            })
        }
        ["op", path, op, at, stage, of, flops] => {
            let (start_ns, end_ns) = span(at);
            Event::Op(OperatorCall {
                path: path.into(),
                op: op.into(),
                start_ns,
                end_ns,
                captured: false,
                warmup: false,
                repeat: repeat(of),
                stage: stage.into(),
                shapes: vec![],
                dtype: "f32".into(),
                flops: flops.parse().unwrap(),
                bytes: 8,
            })
        }
        ["out", of, tokens, hash] => Event::Output(Output {
            warmup: false,
            repeat: repeat(of),
            tokens: tokens.split(',').map(|token| token.parse().unwrap()).collect(),
            logits_sha256: hash.into(),
        }),
        ["matmul", per_second] => Event::Ceiling(Ceiling {
            what: "matmul".into(),
            dtype: "f32".into(),
            shape: vec![1],
            per_second: per_second.parse().unwrap(),
            tries: 1,
        }),
        ref words => panic!("no such line: {words:?}"),
    };
    let sketched = sketch.lines().map(str::trim).filter(|it| !it.is_empty()).map(line);
    [start("f32", "cpu")].into_iter().chain(sketched).collect()
}

fn of(sketch: &str) -> Analysis {
    analyze(&Trace { baseline: events(sketch), ..Trace::default() }, None, None)
}

fn ids(analysis: &Analysis) -> Vec<&str> {
    analysis.findings.iter().map(|finding| finding.id.as_str()).collect()
}

#[test]
fn warm_up_is_never_part_of_a_timing() {
    let stages = of("warm prefill 0..900 r0\nrange prefill 1000..1010 r0\nrange prefill 2000..2014 r1").stages;
    let prefill = stages.row("prefill").unwrap().ms;
    assert_eq!((prefill.mean, prefill.n), (12.0, 2));
}

#[test]
fn a_token_takes_decodes_time_over_its_steps() {
    let steps = "range decode_step 20..24 r0\nrange decode_step 24..30 r0\nrange decode_all 20..30 r0";
    let stages = of(&format!("range prefill 0..18 r0\n{steps}")).stages;
    assert_eq!((stages.per_token_ms.unwrap().mean, stages.decode_steps), (5.0, Some(2)));
    assert_eq!(stages.row(DECODE).unwrap().tokens_per_s, Some(200.0));
    assert_eq!(stages.wall_ms.unwrap().mean, 30.0, "what lies between the stages counts as well");
    assert_eq!(stages.tokens_per_s.unwrap().mean, 100.0, "the first token counts as well");
}

#[test]
fn vision_never_adds_to_a_sum() {
    let stages = of("range vision 1..9 r0\nrange prefill 0..10 r0\nrange decode_all 10..20 r0").stages;
    assert_eq!((stages.rows.len(), stages.wall_ms.unwrap().mean), (2, 20.0));
    assert_eq!(stages.note("vision").unwrap().share_pct, Some(80.0));
}

#[test]
fn an_enclosing_call_keeps_only_what_its_parts_leave() {
    let sketch = "range prefill 0..20 r0
        op a.0.q linear 2..6 prefill r0 100\nop a.0.k linear 6..9 prefill r0 50\nop a.0 module 0..10 prefill r0 0
        op a.1.q linear 12..18 prefill r0 100";
    let operators = of(sketch).operators;
    let find = |path: &str| operators.rolled.iter().find(|it| it.path == path).unwrap();
    assert_eq!((find("a.*").exclusive_ms, find("a.*").inclusive_ms), (Some(3.0), Some(10.0)));
    let q = find("a.*.q");
    assert_eq!((q.calls, q.inclusive_ms, q.mean_ms, q.exclusive_pct), (2, Some(10.0), Some(5.0), Some(50.0)));
    assert_eq!(q.flops_per_s, Some(20_000.0));
    assert_eq!(operators.by_path.len(), 4);
    assert_eq!(operators.work["prefill"].covered_pct, Some(65.0));
}

#[test]
fn a_call_that_a_graph_replayed_has_work_but_no_host_time() {
    let mut baseline =
        events("range decode_all 0..20 r0\nop a linear 5..5 decode_all r0 100\nop b linear 6..6 decode_all r0 100");
    for event in &mut baseline {
        if let Event::Op(call) = event {
            call.captured = true;
        }
    }
    let analysis = analyze(&Trace { baseline, ..Trace::default() }, None, None);
    let record = &analysis.operators.rolled[0];
    assert_eq!((record.inclusive_ms, record.mean_ms, record.exclusive_ms, record.exclusive_pct), (None, None, None, None));
    assert_eq!((record.calls, record.captured_calls, record.flops, record.flops_per_s), (1, 1, 100, None));
    assert_eq!(analysis.operators.work[DECODE].covered_pct, None, "what nobody saw is not nothing");
    assert!(!ids(&analysis).contains(&"time_between_operators") && !ids(&analysis).contains(&"operator_dominates"));
    assert_eq!((analysis.mfu.rows[0].flops, analysis.mfu.rows[0].flops_source.as_str()), (200, "counted"));
}

#[test]
fn a_utilisation_above_the_whole_is_refused_with_a_finding() {
    let analysis = of("range prefill 0..1 r0\nop a linear 0..1 prefill r0 2000000\nmatmul 1e9");
    assert_eq!(analysis.mfu.rows[0].flops_per_s, Some(2e9));
    assert_eq!(analysis.mfu.rows[0].measured_pct, None);
    assert!(ids(&analysis).contains(&"mfu_impossible"));
}

#[test]
fn utilisation_is_given_against_both_ceilings() {
    let mut baseline = events("range prefill 0..1 r0\nop a linear 0..1 prefill r0 1000000\nmatmul 4e9");
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
fn no_ceiling_of_another_number_format_is_used() {
    let mut baseline = events("range prefill 0..1 r0\nop a linear 0..1 prefill r0 1000000\nmatmul 4e9");
    baseline[0] = start("bf16", "cpu");
    let mfu = analyze(&Trace { baseline, ..Trace::default() }, None, None).mfu;
    assert_eq!(mfu.rows[0].measured_pct, None);
}

#[test]
fn a_traced_pass_that_computed_something_else_is_found() {
    let plain = events("range prefill 0..1 r0\nout r0 7,8 x");
    for (traced, proven) in [("out r0 7,8 x", true), ("out r0 7,9 x", false), ("out r0 7,8 y", false)] {
        let analysis = analyze(&Trace { baseline: plain.clone(), traced: events(traced), ..Trace::default() }, None, None);
        assert_eq!(!ids(&analysis).contains(&"outputs_differ"), proven, "{traced}");
    }
}

#[test]
fn tracing_that_slowed_a_stage_by_more_than_a_quarter_is_found() {
    let pass = |ms| events(&format!("range prefill 0..{ms} r0"));
    for (traced, high) in [(125, false), (126, true)] {
        let analysis = analyze(&Trace { baseline: pass(100), traced: pass(traced), ..Trace::default() }, None, None);
        assert_eq!(analysis.overhead[0].overhead_pct, Some(f64::from(traced - 100)));
        assert_eq!(ids(&analysis).contains(&"overhead_high"), high);
    }
}

#[test]
fn a_stage_dominates_from_a_fifth_more_on() {
    let stage = |decode: i64| of(&format!("range prefill 0..100 r0\nrange decode_all 100..{} r0", 100 + decode));
    assert!(!ids(&stage(119)).contains(&"stage_dominates"));
    assert!(ids(&stage(120)).contains(&"stage_dominates"));
}

#[test]
fn noise_between_repeats_is_found_and_one_repeat_knows_none() {
    let noisy = of("range prefill 0..10 r0\nrange prefill 20..40 r1\nrange prefill 50..60 r2");
    assert!(ids(&noisy).contains(&"high_variance"));
    let single = of("range prefill 0..10 r0");
    assert!(ids(&single).contains(&"few_repeats") && !ids(&single).contains(&"high_variance"));
}

#[test]
fn a_capture_without_a_stage_is_incomplete() {
    let trace = Trace { baseline: events("range prefill 0..1 r0"), nsys: Some(Default::default()), ..Trace::default() };
    let analysis = analyze(&trace, None, None);
    assert!(ids(&analysis).contains(&"capture_incomplete") && ids(&analysis).contains(&"no_kernel_data"));
}

#[test]
fn a_part_of_a_stage_takes_the_time_that_the_gpu_took_where_that_is_known() {
    let mut events = events("range vision 0..2 r0\nrange prefill 0..10 r0");
    let note = |events: &[Event]| {
        let stages = stages::stages(&events::Events::of(events));
        stages.note("vision").map(|note| note.ms.mean)
    };
    assert_eq!(note(&events), Some(2.0));
    for event in &mut events {
        if let Event::Range(range) = event {
            range.device_ns = (range.name == "vision").then_some(7 * MS);
        }
    }
    assert_eq!(note(&events), Some(7.0));
}

#[test]
fn an_empty_trace_is_analysed_without_a_number() {
    let analysis = analyze(&Trace::default(), None, None);
    assert_eq!(analysis.stages, Stages::default());
    assert!(ids(&analysis).contains(&"no_stages"));
}

/// Samples of a GPU at these clocks, one every 10 ms of the first second.
fn sampled(sm_mhz: u32, memory_mhz: u32) -> PowerLog {
    let device = SampledDevice {
        schema: 1,
        uuid: "GPU-1".into(),
        board_uuid: "GPU-1".into(),
        name: "d".into(),
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
    PowerLog { device, samples: (0..=100).map(sample).collect(), end: None }
}

/// A prefill of 0.9 s at 1 TFLOP/s and 100 GB/s on a device of 10 TFLOP/s at 2 GHz and 200 GB/s.
fn clocked(sm_mhz: u32, memory_mhz: u32, boost_mhz: Option<f64>) -> Analysis {
    let mut baseline = events("range prefill 0..900 r0\nop a linear 0..900 prefill r0 900000000000");
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
    analyze(&Trace { baseline, power: Some(sampled(sm_mhz, memory_mhz)), ..Trace::default() }, None, Some(&peaks))
}

#[test]
fn a_peak_at_observed_clocks_is_scaled_by_them() {
    let mfu = clocked(1000, 1600, Some(2000.0)).mfu;
    for row in &mfu.rows {
        let shares = [row.datasheet_pct, row.clocked_pct, row.datasheet_bandwidth_pct, row.clocked_bandwidth_pct];
        let rounded = shares.map(|pct| pct.unwrap().round());
        assert_eq!(rounded, [10.0, 20.0, 50.0, 100.0], "{}", row.scope);
        assert_eq!(row.sm_mhz, Some(1000.0));
    }
    assert_eq!(mfu.rows.len(), 2, "the stage, and the model that it is all of");
}

#[test]
fn without_the_clock_of_the_datasheet_no_peak_at_clocks_is_told() {
    let mfu = clocked(1000, 1600, None).mfu;
    assert_eq!((mfu.rows[0].datasheet_pct.map(f64::round), mfu.rows[0].clocked_pct), (Some(10.0), None));
}

#[test]
fn more_than_the_peak_at_observed_clocks_is_refused() {
    let analysis = clocked(100, 1600, Some(2000.0));
    assert_eq!((analysis.mfu.rows[0].clocked_pct, analysis.mfu.rows[0].datasheet_pct.is_some()), (None, true));
    assert!(ids(&analysis).contains(&"mfu_impossible"));
}

#[test]
fn an_operator_is_set_beside_the_ceilings_by_its_own_time() {
    let analysis =
        of("range prefill 0..10 r0\nop a linear 0..4 prefill r0 4000000\nop b linear 4..5 prefill r0 9000000\nmatmul 4e9");
    let told: Vec<_> = analysis.mfu.operators.iter().map(|it| (it.path.as_str(), it.exclusive_ms, it.measured_pct)).collect();
    assert_eq!(told, [("a", 4.0, Some(25.0)), ("b", 1.0, None)], "b is faster than what was measured");
    assert!(ids(&analysis).contains(&"ceiling_surpassed") && !ids(&analysis).contains(&"mfu_impossible"));
    assert!(analysis.mfu.operators.iter().all(|it| it.time_of == "host" && it.datasheet_pct.is_none()));
}

#[test]
fn on_a_gpu_an_operator_without_kernels_has_no_use() {
    let mut baseline = events("range prefill 0..10 r0\nop a linear 0..4 prefill r0 4000000\nmatmul 4e9");
    baseline[0] = start("f32", "cuda:0");
    assert_eq!(analyze(&Trace { baseline, ..Trace::default() }, None, None).mfu.operators, []);
}
