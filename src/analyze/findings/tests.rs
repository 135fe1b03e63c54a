//! Each newer rule on a sketch where it fires, and on one where it must not; and the table of rules, written down.

use std::{collections::BTreeSet, fs, path::Path};

use super::*;
use crate::{
    analyze::{
        cost::{Cost, Traffic},
        counters::CounterRecord,
        experts::ExpertUse,
        gemms::GemmRecord,
        gpu::StageGpu,
        kernels::{KernelRecord, StageKernels},
        mfu::Ceilings,
        roofline::RooflinePoint,
        spans::Spans,
        stage_calls::StageCalls,
        stages::{StageNote, StageTiming},
        stats::Spread,
    },
    trace::{
        counter::{CounterValues, Stall},
        event::{Event, StageRange, Start},
    },
};

const MS: i64 = 1_000_000;

/// Stages of 10 ms, traced in ten repeats of 20 ms whose kernels take 10 ms.
fn analysis() -> Analysis {
    let mut analysis = Analysis::default();
    for stage in STAGES {
        let ms = Spread::of([10.0, 10.0]).unwrap();
        analysis.stages.rows.push(StageTiming { stage: stage.into(), ms, share_pct: None, tokens: None, tokens_per_s: None });
        let stage = stage.to_owned();
        let gpu = StageGpu {
            stage: stage.clone(),
            devices: 1,
            instances: 10,
            window_ms: Some(200.0),
            busy_ms: Some(100.0),
            launches: 2000,
            ..StageGpu::default()
        };
        analysis.stage_gpu.totals.push(gpu);
        analysis.stage_calls.insert(stage.clone(), StageCalls { host_ms: 100.0, ..StageCalls::default() });
        analysis.kernels.stages.push(StageKernels {
            stage,
            launches: 2000,
            kernel_ms: Some(100.0),
            busy_ms: Some(100.0),
            graph_launches: 0,
            graph_ms: 0.0,
        });
    }
    analysis
}

fn start(device: &str, decode_graph: bool, load_ns: i64) -> Option<Start> {
    let text = format!(
        r#"{{"schema":1,"t_ns":0,"unix_ns":0,"pid":1,"model":"m","weights":"synthetic","parameters":1,"weight_bytes":1,"dtype":"bf16",
        "device":"{device}","threads":1,"prompt_tokens":1,"image_tokens":0,"images":[],"decode_graph":{decode_graph},"load_ns":{load_ns}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// Ranges of `name`, one a repeat, each so many milliseconds long.
fn ranges(name: &str, long: &[i64]) -> Vec<Event> {
    let range = |(repeat, ms): (usize, &i64)| {
        let name = name.to_owned();
        Event::Range(StageRange {
            name,
            start_ns: 0,
            end_ns: ms * MS,
            device_ns: None,
            warmup: false,
            repeat: repeat as u32,
            step: None,
        })
    };
    long.iter().enumerate().map(range).collect()
}

fn kernel(name: &str, stage: &str, calls: u64, total_ms: f64) -> KernelRecord {
    let mean_ms = total_ms / calls as f64;
    let (kernel_name, stage, share_pct) = (name.to_owned(), stage.to_owned(), Some(total_ms));
    KernelRecord {
        full_name: kernel_name.clone(),
        kernel_name,
        name_variants: 1,
        class: "other".to_owned(),
        engine: None,
        device: Some(0),
        stage,
        total_ms,
        calls,
        mean_ms,
        launch_ns: Spans::default(),
        grid: [1; 3],
        block: [1; 3],
        registers: 0,
        geometries: 1,
        share_pct,
        counters: None,
        configs: Default::default(),
    }
}

fn with_kernels(records: Vec<KernelRecord>) -> Analysis {
    let mut analysis = analysis();
    analysis.kernels.records = records;
    analysis
}

fn profiled(name: &str, total_ms: f64, values: CounterValues) -> Analysis {
    let record = CounterRecord {
        stage: PREFILL.into(),
        kernel_name: name.into(),
        grid: Some([1; 3]),
        block: Some([1; 3]),
        timeline_calls: Some(1),
        timeline_total_ms: Some(total_ms),
        timeline_mean_ms: Some(total_ms),
        profiled: 1,
        values,
        flops_per_byte: None,
    };
    Analysis { counters: vec![record], ..analysis() }
}

fn product(m: u64, n: u64, share: f64) -> Analysis {
    let text = format!(
        r#"{{"stage":"prefill","m":{m},"n":{n},"k":64,"batch":1,"left_type":"bf16","right_type":"bf16","out_type":"bf16",
        "left_transposed":false,"right_transposed":false,"compute":"32f","function":"f","algorithm":null,"calls":1,"calls_per_step":null,
        "flops_per_call":1,"total_flops":1,"share_pct":{share}}}"#
    );
    let mut analysis = analysis();
    analysis.gemms.records = vec![serde_json::from_str::<GemmRecord>(&text).unwrap()];
    analysis
}

/// Decode reads, and prefill computes, so much at a rate of one per nanosecond.
fn costing(amount: u64) -> Analysis {
    let traffic = Traffic { weight_bytes: amount, ..Traffic::default() };
    let cost = Cost { prefill_flops: amount, decode: traffic, ..Cost::default() };
    let ceilings = Ceilings {
        device: None,
        datasheet_flops_per_s: Some(1e9),
        datasheet_bytes_per_s: Some(1e9),
        datasheet_source: None,
        measured_flops_per_s: None,
        measured_bytes_per_s: None,
        datasheet_mhz: None,
        dtype: "bf16".into(),
    };
    let mut analysis = Analysis { cost: Some(cost), ..analysis() };
    analysis.mfu.ceilings = Some(ceilings);
    analysis
}

/// Asserts that the rule fires on the first sketch and not on the second; gives what it found.
#[track_caller]
fn fires(id: &str, on: (Analysis, Trace), not_on: (Analysis, Trace)) -> Finding {
    let rule = RULES.iter().find(|rule| rule.id == id).unwrap_or_else(|| panic!("no rule {id}"));
    let found = rule.apply(&on.0, &on.1);
    assert_eq!(rule.apply(&not_on.0, &not_on.1), [], "{id} fires without its evidence");
    assert_eq!(rule.apply(&Analysis::default(), &Trace::default()), [], "{id} fires on nothing");
    let found = found.into_iter().next().unwrap_or_else(|| panic!("{id} does not fire"));
    assert!(!found.evidence.is_empty() && found.advice.as_ref().is_some_and(|advice| !advice.is_empty()), "{found:?}");
    assert_eq!(found.saves_at_most.is_some(), !rule.saves.is_empty(), "{id}: {:?}", found.saves_at_most);
    found
}

fn none() -> Trace {
    Trace::default()
}

/// Kernels run for so long in each traced repeat of 20 ms.
fn busy(ms: f64) -> Analysis {
    let mut analysis = analysis();
    analysis.stage_gpu.totals.iter_mut().for_each(|it| it.busy_ms = Some(ms * 10.0));
    analysis
}

#[test]
fn gaps_between_kernels_are_what_a_launch_bound_decode_could_save() {
    // Of 20 ms traced and 10 ms unprofiled, kernels take 4: of 10 they fill the unprofiled pass.
    let found = fires("decode_launch_bound", (busy(4.0), none()), (busy(10.0), none()));
    let saving = found.saves_at_most.clone().unwrap();
    assert_eq!((saving.stage.as_str(), saving.ms, saving.pct.round()), (DECODE, Some(6.0), 60.0));
    assert_eq!((found.evidence["source"].as_str(), found.message.contains("80 %")), ("traced pass", true), "{found:?}");
    // Without an unprofiled pass the traced one decides alone.
    let only = |ms| Analysis { only_traced: true, ..busy(ms) };
    fires("decode_launch_bound", (only(10.0), none()), (only(19.0), none()));
    let eager = |graph, device| {
        let mut analysis = Analysis { start: start(device, graph, 0), ..analysis() };
        analysis.stages.decode_steps = Some(2);
        if device == "cpu" {
            analysis.stage_gpu.totals.clear();
        }
        analysis
    };
    fires("decode_eager", (eager(false, "cuda:0"), none()), (eager(true, "cuda:0"), none()));
    fires("decode_eager", (eager(false, "cuda:0"), none()), (eager(false, "cpu"), none()));
}

/// A profiled kernel of a share of prefill, with these uses of memory and SM.
fn under_roof(share: f64, dram: f64, sm: f64) -> (Analysis, Trace) {
    let point = RooflinePoint {
        stage: PREFILL.into(),
        kernel_name: "k".into(),
        share_pct: Some(share),
        timeline_total_ms: Some(share),
        dram_pct: Some(dram),
        memory_pct: Some(dram),
        sm_pct: Some(sm),
        ..RooflinePoint::default()
    };
    let mut analysis = analysis();
    analysis.roofline.points = vec![point];
    (analysis, none())
}

#[test]
fn a_kernel_at_its_roof_could_save_its_own_share() {
    let found = fires("at_memory_roof", under_roof(20.0, 85.0, 30.0), under_roof(20.0, 79.0, 30.0));
    assert_eq!(found.saves_at_most.unwrap().ms, Some(2.0));
    fires("at_memory_roof", under_roof(20.0, 85.0, 30.0), under_roof(4.0, 85.0, 30.0));
    fires("at_compute_roof", under_roof(20.0, 30.0, 85.0), under_roof(20.0, 90.0, 85.0));
}

#[test]
fn tensor_work_that_nobody_counted_is_said() {
    let with = |flops_complete, tensor| {
        let values = CounterValues { tensor_pct: Some(tensor), flops_complete, ..CounterValues::default() };
        (profiled("gemm", 50.0, values), none())
    };
    fires("tensor_work_uncounted", with(false, 40.0), with(true, 40.0));
    fires("tensor_work_uncounted", with(false, 40.0), with(false, 0.0));
}

#[test]
fn a_stage_far_from_its_floor_says_how_far() {
    // Floors of 2 ms and of 8 ms below 10 ms.
    let found = fires("decode_far_from_bandwidth", (costing(2_000_000), none()), (costing(8_000_000), none()));
    assert_eq!(found.saves_at_most.unwrap().ms, Some(8.0));
    fires("prefill_far_from_compute", (costing(2_000_000), none()), (costing(8_000_000), none()));
}

#[test]
fn parts_that_weigh_much_are_found() {
    let vision = |share| {
        let mut analysis = analysis();
        let ms = Spread::of([share / 10.0]).unwrap();
        analysis.stages.notes = vec![StageNote { part: "vision".into(), inside: PREFILL.into(), ms, share_pct: Some(share) }];
        analysis
    };
    fires("vision_dominates_prefill", (vision(60.0), none()), (vision(40.0), none()));
    let load = |seconds: i64| {
        let mut analysis = Analysis { start: start("cuda:0", false, seconds * 1000 * MS), ..analysis() };
        analysis.stages.wall_ms = Spread::of([20.0]);
        analysis
    };
    fires("load_dominates", (load(9), none()), (load(4), none()));
    let first = |ms| Trace { baseline: ranges(PREFILL, &[ms, 10, 10]), ..Trace::default() };
    fires("warmup_short", (analysis(), first(13)), (analysis(), first(11)));
    let layers = |least: f64| {
        let of = |(layer, distinct): (u32, f64)| {
            let distinct = Spread::of([distinct]).unwrap();
            ExpertUse { layer, stage: PREFILL.into(), distinct, total: 64, expected: None }
        };
        Analysis { experts: [(1, 60.0), (2, least), (3, 61.0)].map(of).to_vec(), ..analysis() }
    };
    fires("expert_imbalance", (layers(30.0), none()), (layers(55.0), none()));
}

#[test]
fn counters_tell_of_a_kernel_only_where_it_matters() {
    let low = CounterValues {
        achieved_occupancy_pct: Some(10.0),
        sm_pct: Some(20.0),
        memory_pct: Some(30.0),
        ..CounterValues::default()
    };
    fires("low_occupancy", (profiled("k", 20.0, low.clone()), none()), (profiled("k", 2.0, low.clone()), none()));
    let busy = CounterValues { sm_pct: Some(90.0), ..low.clone() };
    fires("low_occupancy", (profiled("k", 20.0, low), none()), (profiled("k", 20.0, busy), none()));
    let missing = |hit| CounterValues { l2_hit_pct: Some(hit), dram_pct: Some(80.0), ..CounterValues::default() };
    fires("low_l2_hit", (profiled("k", 20.0, missing(20.0)), none()), (profiled("k", 20.0, missing(80.0)), none()));
    let tensor = CounterValues { tensor_pct: Some(0.0), ..CounterValues::default() };
    fires("tensor_cores_idle", (profiled("gemm_f32", 20.0, tensor.clone()), none()), (profiled("softmax", 20.0, tensor), none()));
    let stalled = |share_pct| CounterValues {
        sm_pct: Some(20.0),
        dram_pct: Some(20.0),
        stalls: vec![Stall { reason: "long_scoreboard".into(), warps_per_issue: 1.0, share_pct }],
        ..CounterValues::default()
    };
    fires("latency_bound", (profiled("k", 20.0, stalled(70.0)), none()), (profiled("k", 20.0, stalled(20.0)), none()));
}

#[test]
fn kernels_are_told_by_what_their_names_say() {
    let of = |name: &str, stage: &str| (with_kernels(vec![kernel(name, stage, 100, 10.0)]), none());
    let found = fires("cast_share", of("cast_bf16_f32", PREFILL), of("gemm", PREFILL));
    assert_eq!(found.saves_at_most.unwrap().ms, Some(1.0), "a tenth of the stage's 10 ms");
    fires("cast_share", of("void vectorized_cast", PREFILL), of("broadcast_add", PREFILL));
    fires("kv_cache_copies", of("CatArrayBatchedCopy", DECODE), of("CatArrayBatchedCopy", PREFILL));
    fires("kv_cache_copies", of("CatArrayBatchedCopy", DECODE), of("index_copy_kernel", DECODE));
    let mut fixed = of("CatArrayBatchedCopy", DECODE);
    fixed.0.stage_gpu.totals.iter_mut().for_each(|it| it.graph_launches = Some(1));
    fires("kv_cache_copies", of("CatArrayBatchedCopy", DECODE), fixed);
    let tiny = |total_ms| (with_kernels(vec![kernel("k", DECODE, 1000, total_ms)]), none());
    fires("tiny_kernels", tiny(2.0), tiny(50.0));
    let variants = |name_variants| (with_kernels(vec![KernelRecord { name_variants, ..kernel("k", DECODE, 12, 50.0) }]), none());
    fires("name_collisions", variants(12), variants(1));
}

#[test]
fn calls_that_wait_or_copy_are_counted_inside_their_stage() {
    let with = |calls: StageCalls| {
        let mut analysis = analysis();
        analysis.stages.decode_steps = Some(2);
        analysis.stage_calls.insert(DECODE.into(), StageCalls { host_ms: 100.0, ..calls });
        (analysis, none())
    };
    let waits = |waits, wait_ms| with(StageCalls { waits, wait_ms, ..StageCalls::default() });
    let copies = |copies, copy_ms| with(StageCalls { copies, copy_ms, ..StageCalls::default() });
    // Twenty steps in ten repeats.
    let found = fires("host_sync_in_decode", waits(60, 6.0), waits(20, 60.0));
    assert_eq!(found.saves_at_most.unwrap().ms, Some(0.6));
    let found = fires("memcpy_share", copies(100, 10.0), copies(100, 1.0));
    assert_eq!(found.saves_at_most.unwrap().ms, Some(1.0));
    // Kernels run nearly all the time: a copy can only have delayed what was left.
    let mut full = copies(100, 10.0);
    full.0.stage_gpu.totals.iter_mut().for_each(|it| it.window_ms = Some(102.0));
    assert!((fires("memcpy_share", full, copies(0, 0.0)).saves_at_most.unwrap().ms.unwrap() - 0.2).abs() < 1e-9);
}

#[test]
fn products_that_fit_tiles_badly_are_found() {
    fires("gemm_small", (product(1, 1280, 50.0), none()), (product(1, 1280, 2.0), none()));
    fires("gemm_tiles_unfilled", (product(129, 1280, 50.0), none()), (product(128, 1280, 50.0), none()));
}

#[test]
fn rules_have_ids_of_their_own_and_are_at_least_two_dozen() {
    let ids: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert!(ids.len() == RULES.len() && ids.len() >= 24, "{} rules, {} ids", RULES.len(), ids.len());
    assert!(RULES.iter().all(|rule| !rule.fires_on.is_empty() && !rule.advice.is_empty()));
}

#[test]
fn the_specification_holds_the_table_of_rules() {
    let mut text = "# Findings\n\nWhat analysis may find in a run. A rule fires only on its evidence, and says what following its advice saves at \
                    most where that can be known. This table is made from the rules: `LLMPROF_BLESS=1 cargo test --lib findings` writes it.\n\n\
                    | Id | Severity | Fires on | Advice | Saves at most |\n| --- | --- | --- | --- | --- |\n"
        .to_owned();
    for rule in RULES {
        let saves = if rule.saves.is_empty() { "not known" } else { rule.saves };
        text.push_str(&format!("| `{}` | {} | {} | {} | {saves} |\n", rule.id, rule.severity, rule.fires_on, rule.advice));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("specs/findings.md");
    if std::env::var_os("LLMPROF_BLESS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert!(fs::read_to_string(&path).is_ok_and(|kept| kept == text), "the rules changed: write specs/findings.md anew");
}

mod subjects;
