//! Floors of sketched decode steps of an engine, on a GPU with the peaks of an H200.

use llmprof_core::{
    domain::{device_peaks::DevicePeaks, dtype::Dtype, model::PRESETS, stated_model::StatedModel},
    trace::{
        Trace,
        engine_steps::{MIXED, Phase, StepClass},
        inferred_steps::InferredStep,
    },
};
use proptest::prelude::*;

use crate::{
    Analysis, analyze,
    kernels::tests::{capture, launching},
    ledger::{LedgerStage, necessary::why_shared},
    model_work::KnownModel,
    stages::{DECODE, STAGES},
    step_batches::StepBatch,
};

/// Bytes per millisecond.
const BANDWIDTH: f64 = 4.8e9;
const MS: u64 = 1_000_000;

/// Steps of one batch: requests, mean context, nanoseconds of each step.
type Batch = (u64, Option<u64>, u64);

fn model(name: &str, batch: u64) -> StatedModel {
    let text = PRESETS.iter().find(|it| it.0 == name).unwrap().1;
    StatedModel {
        model: toml::from_str(text).unwrap(),
        prompt_tokens: 40,
        new_tokens: None,
        batch,
        dtype: Dtype::Bf16,
    }
}

fn peaks() -> DevicePeaks {
    DevicePeaks {
        name: "d".into(),
        reported_as: vec![],
        dense_tflops: [("bf16".to_owned(), 989.0)].into(),
        boost_mhz: [].into(),
        memory_gb_s: BANDWIDTH * 1e-6,
        source: "s".into(),
    }
}

/// Three steps of each batch, on one GPU or in turn on several.
fn steps(batches: &[Batch], gpus: u32) -> Trace {
    let (mut sketch, mut start) = (Vec::new(), 0);
    for &(n, context, ns) in batches {
        let name = match context.map(|it| it * n) {
            Some(keys) => format!(
                "execute_{n}_context_0(sq0sk0sqsq0sqsk0)_generation_{n}(sq{n}sk{keys}sqsq{n}\
                 sqsk{keys})"
            ),
            None => format!("execute_context_0(0)_generation_{n}({n})"),
        };
        for _ in 0..3 {
            let end = start + ns as i64;
            let times = [(start, end), (start + 10, start + 11), (start + 12, end - 1)];
            sketch.push(launching(&name, sketch.len() as i64 + 1, times));
            start = end;
        }
    }
    let mut nsys = capture(&sketch.join("\n"));
    nsys.kernels = nsys.kernels.map(|at, it| it.device = at as u32 % gpus);
    Trace { timeline: Some(nsys), ..Trace::default() }
}

fn analysed(batches: &[Batch], stated: &StatedModel) -> Analysis {
    analyze(&steps(batches, 1), Some(KnownModel::Stated(stated)), Some(&peaks()))
}

fn row(analysis: &Analysis) -> &StepBatch {
    assert_eq!(analysis.step_batches.len(), 1);
    &analysis.step_batches[0]
}

/// The floor of a step of `n` requests of a model that takes 10 s.
fn floor(name: &str, n: u64, context: Option<u64>) -> f64 {
    row(&analysed(&[(n, context, 10_000 * MS)], &model(name, n))).floor_ms.unwrap()
}

fn is_refuted(analysis: &Analysis) -> bool {
    analysis.findings.iter().any(|it| it.id == "stated_model_refuted")
}

#[test]
fn a_floor_has_the_weights_once_and_the_keys_and_values_of_each_request() {
    // 596,049,920 parameters, and 2 x 28 layers x 8 heads x 128 elements for each position.
    let (weights, position) = (2.0 * 596_049_920.0 / BANDWIDTH, 2.0 * 57_344.0 / BANDWIDTH);
    for (n, context) in [(1, 1_000), (32, 1_000), (32, 8_000)] {
        let floor = floor("qwen3-0.6b", n, Some(context));
        let expected = weights + (n * context) as f64 * position;
        // A key and a value are written, too.
        assert!((floor / expected - 1.0).abs() < 0.01, "{n} x {context}: {floor} {expected}");
    }
    let longer = floor("qwen3-0.6b", 32, Some(8_000)) - floor("qwen3-0.6b", 32, Some(1_000));
    assert!((longer - 32.0 * 7_000.0 * position).abs() < 1e-9, "{longer}");
}

#[test]
fn a_batch_reads_the_experts_that_its_tokens_choose() {
    let floor = |n: u64| floor("deepseek-ocr", n, Some(100));
    // 11 layers with 64 experts (3 x 1,280 x 896); a token reads 6 in each layer.
    let expert = 2.0 * 11.0 * 3.0 * 1_280.0 * 896.0 / BANDWIDTH;
    // Read for 100 positions, and written for one.
    let cache = |n: u64| (n * 101 * 61_440) as f64 / BANDWIDTH;
    let experts = |n: u64| floor(n) - cache(n);
    let more = experts(32) - experts(1);
    let distinct = 64.0 * (1.0 - (58.0_f64 / 64.0).powi(32));
    assert!((more / ((distinct - 6.0) * expert) - 1.0).abs() < 0.01, "{more}");
    // FLOPs limit the products of many rows.
    assert!(experts(1 << 14) - experts(1) > 5.0 * 58.0 * expert);
}

#[test]
fn a_row_has_a_floor_and_a_ratio_or_the_reason_for_none() {
    let dense = |batch| Some(model("qwen3-0.6b", batch));
    let mixture = |batch| Some(model("deepseek-ocr", batch));
    let known = |n| (n, Some(1_000), 4 * MS);
    for (batch, stated, gpus, (has_floor, has_ratio), why) in [
        (known(1), dense(1), 1, (true, true), ""),
        (known(32), dense(32), 1, (true, true), ""),
        (known(1), mixture(1), 1, (true, true), ""),
        (known(32), mixture(32), 1, (true, true), ""),
        ((8, None, 4 * MS), dense(8), 1, (true, false), "key lengths"),
        ((8, None, 4 * MS), mixture(8), 1, (true, false), "key lengths"),
        // The requests of the steps count, not the stated batch.
        (known(8), dense(64), 1, (true, true), ""),
        (known(8), dense(8), 2, (false, false), "stated_model_on_several_gpus"),
        (known(8), None, 1, (false, false), "No model is stated"),
        // Below the floor, and not by more than a cache may hold.
        ((8, Some(1_000), MS / 4), dense(8), 1, (false, false), "less than the floor"),
        ((8, Some(1_000), MS / 80), dense(8), 1, (false, false), "stated_model_refuted"),
        ((70_000, None, 4_000 * MS), dense(70_000), 1, (false, false), "more requests"),
    ] {
        let trace = steps(&[batch], gpus);
        let known = stated.as_ref().map(KnownModel::Stated);
        let analysis = analyze(&trace, known, Some(&peaks()));
        let row = row(&analysis);
        assert_eq!((row.floor_ms.is_some(), row.times_floor.is_some()), (has_floor, has_ratio));
        let reason = row.floor_missing.as_deref().unwrap_or("");
        assert!(reason.contains(why) && reason.is_empty() == why.is_empty(), "{why}: {reason}");
    }
    let trace = steps(&[known(8)], 1);
    let stated = dense(8).unwrap();
    let analysis = analyze(&trace, Some(KnownModel::Stated(&stated)), None);
    let why = row(&analysis).floor_missing.as_deref().unwrap();
    assert!(why.contains("bandwidth is unknown"), "{why}");
}

#[test]
fn requests_of_a_name_that_no_engine_has_leave_the_other_rows() {
    let analysis =
        analysed(&[(8, None, 4 * MS), (u64::MAX / 8, None, 4 * MS)], &model("qwen3-0.6b", 8));
    let has_floor = |it: &StepBatch| (it.floor_ms.is_some(), it.tokens_per_s.is_some());
    let rows: Vec<_> = analysis.step_batches.iter().map(has_floor).collect();
    assert_eq!(rows, [(true, true), (false, true)]);
}

#[test]
fn steps_of_several_tokens_and_of_prefill_have_no_floor() {
    for (name, class, why) in [
        ("execute_context_1(40)_generation_0(0)", StepClass::Prefill, None),
        ("execute_context_0(0)_generation_2(6)", StepClass::Decode, Some("draft model")),
    ] {
        let nsys = capture(&launching(name, 1, [(0, 4_000_000), (2, 3), (4, 3_999_999)]));
        let trace = Trace { timeline: Some(nsys), ..Trace::default() };
        let stated = model("qwen3-0.6b", if class == StepClass::Decode { 2 } else { 1 });
        let analysis = analyze(&trace, Some(KnownModel::Stated(&stated)), Some(&peaks()));
        let row = row(&analysis);
        assert_eq!((row.class, row.floor_ms, row.times_floor), (class, None, None));
        match (why, &row.floor_missing) {
            (None, None) => {}
            (Some(why), Some(reason)) => assert!(reason.contains(why), "{reason}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// A prefill and three decode steps of 10 ms, inferred; `drafts` precede each decode step's
/// verification.
fn inferred(is_scheduled: bool, drafts: usize) -> Trace {
    let work = |at: i64| {
        let (id, t) = (at + 1, 10 * MS as i64 * at);
        let (called, from, to) = (t + 2, t + 4, t + 9 * MS as i64);
        format!("call 1 {id} {called}..{}\nkernel {id} k {from}..{to} 7", called + 1)
    };
    let mut nsys = capture(&[0, 1, 2, 3].map(work).join("\n"));
    let global_tid = nsys.cuda_calls.get(0).global_tid;
    let step = |at: u32| {
        let start_ns = 10 * MS as i64 * i64::from(at);
        let phase = |class| Phase { class, start_ns, end_ns: start_ns + 100 };
        let classes = [vec![StepClass::Draft; drafts], vec![StepClass::Verify]].concat();
        let phases = classes.into_iter().map(phase).filter(|_| at > 0 && drafts > 0);
        InferredStep {
            class: Some(if at == 0 { StepClass::Prefill } else { StepClass::Decode }),
            global_tid,
            start_ns,
            end_ns: start_ns + 10 * MS as i64,
            run: if is_scheduled { at + 1 } else { at.min(1) + 1 },
            is_scheduled,
            prefill_requests: (at == 0).then_some(1),
            prefill_tokens: (at == 0).then_some(40),
            phases: phases.collect(),
            ..InferredStep::default()
        }
    };
    nsys.inferred.steps = [0, 1, 2, 3].map(step).to_vec();
    Trace { timeline: Some(nsys), ..Trace::default() }
}

#[test]
fn no_stage_has_a_floor_or_an_mfu_if_steps_speculate_scheduled_or_inferred() {
    let stated = model("qwen3-0.6b", 1);
    for (is_scheduled, drafts) in [(false, 0), (false, 1), (false, 3), (true, 1), (true, 3)] {
        let trace = inferred(is_scheduled, drafts);
        let analysis = analyze(&trace, Some(KnownModel::Stated(&stated)), Some(&peaks()));
        for name in STAGES {
            let stage = analysis.ledger.stages.iter().find(|it| it.stage == name).unwrap();
            let has_floor = drafts == 0;
            assert_eq!(stage.floor_ns.is_some(), has_floor, "{name} {drafts}: {stage:?}");
            assert_eq!(stage.times_floor.is_some(), has_floor, "{name} {drafts}");
            let has_reason = stage.missing.iter().any(|it| it.contains("draft model"));
            assert_eq!(has_reason, !has_floor, "{name} {drafts}: {:?}", stage.missing);
            let has_mfu = analysis.mfu.rows.iter().any(|it| it.scope == name);
            assert_eq!(has_mfu, has_floor, "{name} {drafts}");
        }
        if drafts > 0 {
            let unstated = reasons(&analyze(&trace, None, Some(&peaks())));
            assert_eq!(unstated, reasons(&analysis), "{is_scheduled} {drafts}");
            assert!(!unstated.contains("--model-config"), "{unstated}");
            assert!(unstated.contains("tokens per second with and without"), "{unstated}");
        }
    }
}

/// Reasons for the floors that stages and steps lack.
fn reasons(analysis: &Analysis) -> String {
    let stages = analysis.ledger.stages.iter().flat_map(|it| &it.missing);
    let steps = analysis.step_batches.iter().filter_map(|it| it.floor_missing.as_ref());
    stages.chain(steps).map(String::as_str).collect::<Vec<_>>().join("\n")
}

fn stage(analysis: &Analysis) -> &LedgerStage {
    analysis.ledger.stages.iter().find(|it| it.stage == DECODE).unwrap()
}

#[test]
fn the_floor_of_a_stage_is_the_mean_over_its_steps_whatever_batch_is_stated() {
    let batches = [(1, Some(1_000), 4 * MS), (8, Some(2_000), 4 * MS), (32, Some(500), 4 * MS)];
    for (name, stated) in [("qwen3-0.6b", 1), ("qwen3-0.6b", 64), ("deepseek-ocr", 8)] {
        let analysis = analysed(&batches, &model(name, stated));
        let rows = &analysis.step_batches;
        let sum: f64 = rows.iter().map(|it| it.floor_ms.unwrap() * it.steps as f64).sum();
        let steps: u64 = rows.iter().map(|it| it.steps).sum();
        let stage = stage(&analysis);
        let floor_ms = stage.floor_ns.unwrap() as f64 / 1e6;
        assert_eq!((steps, stage.instances), (9, Some(9)));
        assert!((floor_ms / (sum / steps as f64) - 1.0).abs() < 1e-3, "{name}: {floor_ms} {sum}");
        assert!(stage.times_floor.is_some_and(|it| it > 1.0) && !is_refuted(&analysis));
    }
}

#[test]
fn a_stage_whose_steps_lack_a_count_has_no_floor_and_the_reason() {
    let known = |n| (n, Some(1_000), 4 * MS);
    for (batches, why) in [
        (vec![known(8)], None),
        (vec![known(8), (8, None, 4 * MS)], Some("key lengths")),
        (vec![(70_000, None, 4_000 * MS)], Some("more requests")),
    ] {
        let analysis = analysed(&batches, &model("qwen3-0.6b", 8));
        let stage = stage(&analysis);
        assert_eq!(stage.floor_ns.is_none(), why.is_some(), "{:?}", stage.missing);
        let reasons: Vec<_> =
            stage.missing.iter().filter(|it| it.starts_with("How fast it could be")).collect();
        assert_eq!(reasons.len(), usize::from(why.is_some()), "{reasons:?}");
        assert!(why.is_none_or(|why| reasons[0].contains(why)), "{reasons:?}");
        let modelled = analysis.mfu.rows.iter().any(|it| it.flops_source == "modelled");
        assert_eq!(modelled, why.is_none());
    }
}

#[test]
fn a_prefill_step_has_the_stated_floor_only_if_it_reads_the_stated_prompts() {
    for (tokens, batch, stated_batch, has_floor) in
        [(40, 1, 1, true), (80, 2, 2, true), (80, 2, 1, false), (41, 1, 1, false)]
    {
        let name = format!("execute_context_{batch}({tokens})_generation_0(0)");
        let nsys = capture(&launching(&name, 1, [(0, 4_000_000), (2, 3), (4, 3_999_999)]));
        let trace = Trace { timeline: Some(nsys), ..Trace::default() };
        let stated = model("qwen3-0.6b", stated_batch);
        let analysis = analyze(&trace, Some(KnownModel::Stated(&stated)), Some(&peaks()));
        let stage = analysis.ledger.stages.iter().find(|it| it.stage == "prefill").unwrap();
        assert_eq!(stage.floor_ns.is_some(), has_floor, "{name}: {:?}", stage.missing);
        assert!(!is_refuted(&analysis), "{name}");
    }
}

#[test]
fn steps_that_read_prompts_and_generate_have_no_floor_and_one_reason() {
    for (gpus, why) in [(1, "these do both"), (2, "stated_model_on_several_gpus")] {
        let step = |at: i64| {
            let start = at * 10_000_000;
            let times = [(0, 4_000_000), (2, 3), (4, 3_999_999)];
            let times = times.map(|(from, to)| (start + from, start + to));
            launching("execute_context_1(40)_generation_1(1)", at + 1, times)
        };
        let mut nsys = capture(&[step(0), step(1)].join("\n"));
        nsys.kernels = nsys.kernels.map(|at, it| it.device = at as u32 % gpus);
        let trace = Trace { timeline: Some(nsys), ..Trace::default() };
        let stated = model("qwen3-0.6b", 1);
        let analysis = analyze(&trace, Some(KnownModel::Stated(&stated)), Some(&peaks()));
        let stage = analysis.ledger.stages.iter().find(|it| it.stage == MIXED).unwrap();
        let reasons: Vec<_> =
            stage.missing.iter().filter(|it| it.starts_with("How fast it could be")).collect();
        assert_eq!((stage.floor_ns, reasons.len()), (None, 1), "{:?}", stage.missing);
        assert!(reasons[0].contains(why), "{}", reasons[0]);
    }
}

#[test]
fn stage_and_steps_of_a_model_that_gpus_share_have_the_same_reason_for_no_floor() {
    let step = |at: i64| {
        let start = at * 10_000_000;
        let times = [(0, 4_000_000), (2, 3), (4, 3_999_999)];
        let times = times.map(|(from, to)| (start + from, start + to));
        launching("execute_context_0(0)_generation_1(1)", at + 1, times)
    };
    let mut nsys = capture(&[step(0), step(1), step(2), step(3)].join("\n"));
    nsys.kernels = nsys.kernels.map(|at, it| it.device = at as u32 % 2);
    let trace = Trace { timeline: Some(nsys), ..Trace::default() };
    let stated = model("qwen3-0.6b", 1);
    let analysis = analyze(&trace, Some(KnownModel::Stated(&stated)), Some(&peaks()));
    let why = why_shared(&analysis).unwrap();
    let stage = analysis.ledger.stages.iter().find(|it| it.stage == DECODE).unwrap();
    assert!(stage.missing.iter().filter(|it| it.contains(why)).count() == 1, "{stage:?}");
    let expected = format!("The floor is unknown: {why}.");
    let rows: Vec<_> = analysis.step_batches.iter().map(|it| it.floor_missing.as_ref()).collect();
    assert!(!rows.is_empty() && rows.iter().all(|it| *it == Some(&expected)), "{rows:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_stated_batch_or_prompt_refutes_the_model_of_an_engines_steps(
        is_mixture in any::<bool>(),
        (stated_batch, prompt_tokens) in (1_u64..512, 1_u64..8_192),
        batches in prop::collection::vec(
            (1_u64..64, prop::option::of(1_u64..4_000)), 1..4),
    ) {
        let name = if is_mixture { "deepseek-ocr" } else { "qwen3-0.6b" };
        let stated = StatedModel { prompt_tokens, ..model(name, stated_batch) };
        let batches: Vec<Batch> =
            batches.into_iter().map(|(n, context)| (n, context, 100 * MS)).collect();
        let analysis = analysed(&batches, &stated);
        prop_assert!(!is_refuted(&analysis));
        let other = analysed(&batches, &model(name, batches[0].0));
        prop_assert_eq!(&analysis.step_batches, &other.step_batches);
        prop_assert_eq!(stage(&analysis), stage(&other));
    }

    #[test]
    fn a_floor_grows_with_the_batch_and_the_context(
        is_mixture in any::<bool>(),
        (n, more) in (1_u64..200, 0_u64..200),
        (context, longer) in (1_u64..4_000, 0_u64..4_000),
    ) {
        let name = if is_mixture { "deepseek-ocr" } else { "qwen3-0.6b" };
        let floor = |n, context| floor(name, n, context);
        let base = floor(n, Some(context));
        prop_assert!(base > 0.0 && base <= floor(n + more, Some(context)));
        prop_assert!(base <= floor(n, Some(context + longer)));
        prop_assert!(floor(n, None) <= base, "a lower bound");
    }

    #[test]
    fn no_step_takes_less_than_a_floor_that_is_stated(
        is_mixture in any::<bool>(),
        batches in prop::collection::vec(
            (1_u64..64, prop::option::of(1_u64..4_000), 2_000_u64..20_000_000), 1..4),
    ) {
        let name = if is_mixture { "deepseek-ocr" } else { "qwen3-0.6b" };
        let analysis = analysed(&batches, &model(name, batches[0].0));
        for row in &analysis.step_batches {
            prop_assert!(row.floor_ms.is_none_or(|ms| ms <= row.p50_ms));
            prop_assert!(row.times_floor.is_none_or(|it| it >= 1.0));
            prop_assert_eq!(row.times_floor.is_none(), row.floor_missing.is_some());
            prop_assert!(row.floor_ms.is_none() || !is_refuted(&analysis));
            let missing = row.floor_missing.as_deref().unwrap_or("");
            prop_assert_eq!(missing.contains("refuted"), is_refuted(&analysis));
        }
    }
}
