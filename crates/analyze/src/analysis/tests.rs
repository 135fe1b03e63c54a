//! The analysis on sketches of events, one event per line.

mod utilisation;

use llmprof_core::{
    domain::device_peaks::DevicePeaks,
    trace::{
        event::{Ceiling, Event, OperatorCall, Output, StageRange},
        timeline::Timeline,
    },
};

use super::*;
use crate::{kernels::tests::capture, stages::DECODE};

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
        sequences: vec![],
        image_tokens: 0,
        images: vec![],
        decode_graph: false,
        cold_cache: false,
        load_ns: 0,
    })
}

/// Events from lines such as `range prefill 0..10 r0`, `warm prefill 0..10 r0`, `op a.b linear
/// 0..5 prefill r0 flops` (times in ms) and `out r0 7,8 hash`.
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
                thread: 0,
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
        ref words => panic!("unknown line: {words:?}"),
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
    let stages =
        of("warm prefill 0..900 r0\nrange prefill 1000..1010 r0\nrange prefill 2000..2014 r1")
            .stages;
    let prefill = stages.row("prefill").unwrap().ms;
    assert_eq!((prefill.mean, prefill.n), (12.0, 2));
}

#[test]
fn time_per_output_token_is_decode_time_over_steps() {
    let steps =
        "range decode_step 20..24 r0\nrange decode_step 24..30 r0\nrange decode_all 20..30 r0";
    let stages = of(&format!("range prefill 0..18 r0\n{steps}")).stages;
    assert_eq!((stages.per_token_ms.unwrap().mean, stages.decode_steps), (5.0, Some(2)));
    assert_eq!(stages.row(DECODE).unwrap().tokens_per_s, Some(200.0));
    assert_eq!(stages.wall_ms.unwrap().mean, 30.0, "time between the stages counts");
    assert_eq!(stages.tokens_per_s.unwrap().mean, 100.0, "the first token counts");
}

#[test]
fn time_per_output_token_of_different_repeats_is_all_time_over_all_steps() {
    let sketch = "range decode_step 10..14 r0\nrange decode_step 14..18 r0
        range decode_all 10..18 r0
        range decode_step 30..31 r1\nrange decode_step 31..32 r1\nrange decode_step 32..33 r1
        range decode_step 33..34 r1\nrange decode_all 30..34 r1";
    let stages = of(sketch).stages;
    let (per_token, step) = (stages.per_token_ms.unwrap(), stages.step_ms.unwrap());
    assert_eq!((stages.decode_steps, per_token.mean, step.mean), (None, 2.0, 2.0));
    assert_eq!((per_token.min, per_token.max, per_token.n), (1.0, 4.0, 2));
}

#[test]
fn a_runner_that_stopped_in_a_repeat_has_finished_the_repeats_before_it() {
    let repeat = |r: u32| {
        format!("range prefill 0..10 r{r}\nrange decode_all 10..20 r{r}\nout r{r} 7,8 hash\n")
    };
    for (events, whole) in [
        (repeat(0) + &repeat(1) + "range prefill 0..10 r2", "2 whole repeats"),
        (repeat(0) + "range prefill 0..10 r1\nrange decode_all 10..20 r1", "1 whole repeat"),
        ("range prefill 0..10 r0".to_owned(), "0 whole repeats"),
    ] {
        let found = of(&events).findings.into_iter().find(|it| it.id == "runner_unfinished");
        let message = format!("The runner stopped before its last event, after {whole}.");
        assert_eq!(found.unwrap().message, message);
    }
}

#[test]
fn vision_never_adds_to_a_sum() {
    let stages =
        of("range vision 1..9 r0\nrange prefill 0..10 r0\nrange decode_all 10..20 r0").stages;
    assert_eq!((stages.rows.len(), stages.wall_ms.unwrap().mean), (2, 20.0));
    assert_eq!(stages.note("vision").unwrap().share_pct, Some(80.0));
}

#[test]
fn exclusive_time_is_without_enclosed_calls() {
    let sketch = "range prefill 0..20 r0
        op a.0.q linear 2..6 prefill r0 100\nop a.0.k linear 6..9 prefill r0 50
        op a.0 module 0..10 prefill r0 0
        op a.1.q linear 12..18 prefill r0 100";
    let operators = of(sketch).operators;
    let find = |path: &str| operators.rolled.iter().find(|it| it.path == path).unwrap();
    assert_eq!((find("a.*").exclusive_ms, find("a.*").inclusive_ms), (Some(3.0), Some(10.0)));
    let q = find("a.*.q");
    assert_eq!(
        (q.calls, q.inclusive_ms, q.mean_ms, q.exclusive_pct),
        (2, Some(10.0), Some(5.0), Some(50.0))
    );
    assert_eq!(q.flops_per_s, Some(20_000.0));
    assert_eq!(operators.by_path.len(), 4);
    assert_eq!(operators.work["prefill"].covered_pct, Some(65.0));
}

#[test]
fn a_replayed_call_has_work_but_no_host_time() {
    let mut baseline = events(
        "range decode_all 0..20 r0\nop a linear 5..5 decode_all r0 100
         op b linear 6..6 decode_all r0 100",
    );
    for event in &mut baseline {
        if let Event::Op(call) = event {
            call.captured = true;
        }
    }
    let analysis = analyze(&Trace { baseline, ..Trace::default() }, None, None);
    let record = &analysis.operators.rolled[0];
    assert_eq!(
        (record.inclusive_ms, record.mean_ms, record.exclusive_ms, record.exclusive_pct),
        (None, None, None, None)
    );
    assert_eq!(
        (record.calls, record.captured_calls, record.flops, record.flops_per_s),
        (1, 1, 100, None)
    );
    assert_eq!(analysis.operators.work[DECODE].covered_pct, None, "unknown is not zero");
    assert!(
        !ids(&analysis).contains(&"time_between_operators")
            && !ids(&analysis).contains(&"operator_dominates")
    );
    assert_eq!(
        (analysis.mfu.rows[0].flops, analysis.mfu.rows[0].flops_source.as_str()),
        (200, "counted")
    );
}

#[test]
fn a_traced_pass_with_other_outputs_is_reported() {
    let plain = events("range prefill 0..1 r0\nout r0 7,8 x");
    for (traced, proven) in
        [("out r0 7,8 x", true), ("out r0 7,9 x", false), ("out r0 7,8 y", false)]
    {
        let analysis = analyze(
            &Trace { baseline: plain.clone(), traced: events(traced), ..Trace::default() },
            None,
            None,
        );
        assert_eq!(!ids(&analysis).contains(&"outputs_differ"), proven, "{traced}");
    }
}

#[test]
fn overhead_above_a_quarter_is_reported() {
    let pass = |ms| events(&format!("range prefill 0..{ms} r0"));
    let of = |traced: i32, nsys: Option<Timeline>| {
        let passes =
            Trace { baseline: pass(100), traced: pass(traced), timeline: nsys, ..Trace::default() };
        analyze(&passes, None, None)
    };
    for (traced, high) in [(125, false), (126, true)] {
        let analysis = of(traced, Some(capture("range 1 prefill 0..126")));
        assert_eq!(analysis.overhead[0].overhead_pct, Some(f64::from(traced - 100)));
        assert_eq!(ids(&analysis).contains(&"overhead_high"), high);
    }
    // A recording without the stage, and none.
    for nsys in [Some(Timeline::default()), None] {
        let analysis = of(126, nsys);
        assert!(analysis.overhead.is_empty() && !ids(&analysis).contains(&"overhead_high"));
    }
}

#[test]
fn a_stage_dominates_when_a_fifth_longer() {
    let stage = |decode: i64| {
        of(&format!("range prefill 0..100 r0\nrange decode_all 100..{} r0", 100 + decode))
    };
    assert!(!ids(&stage(119)).contains(&"stage_dominates"));
    assert!(ids(&stage(120)).contains(&"stage_dominates"));
}

#[test]
fn variance_is_reported_and_unknown_with_one_repeat() {
    let noisy = of("range prefill 0..10 r0\nrange prefill 20..40 r1\nrange prefill 50..60 r2");
    assert!(ids(&noisy).contains(&"high_variance"));
    let single = of("range prefill 0..10 r0");
    assert!(ids(&single).contains(&"few_repeats") && !ids(&single).contains(&"high_variance"));
}

#[test]
fn a_capture_without_a_stage_is_incomplete() {
    let trace = Trace {
        baseline: events("range prefill 0..1 r0"),
        timeline: Some(Default::default()),
        ..Trace::default()
    };
    let analysis = analyze(&trace, None, None);
    assert!(
        ids(&analysis).contains(&"capture_incomplete")
            && ids(&analysis).contains(&"no_kernel_data")
    );
}

#[test]
fn a_part_of_a_stage_has_its_gpu_time_where_known() {
    let mut events = events("range vision 0..2 r0\nrange prefill 0..10 r0");
    let note = |events: &[Event]| {
        let stages = stages::stages(&Events::of(events));
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
fn an_empty_trace_has_no_figures() {
    let analysis = analyze(&Trace::default(), None, None);
    assert_eq!(analysis.stages, Stages::default());
    assert!(ids(&analysis).contains(&"no_stages"));
}
