//! Rooflines and regions of real captures with ncu pages.

use std::collections::HashMap;

use llmprof_analyze::{
    analyze,
    kernels::counters::counters,
    roofline::RooflinePoint,
    timeline::{capture::Capture, regions::regions},
};
use llmprof_core::{
    domain::device_peaks::Devices,
    trace::{Trace, names::canonical, stage::StageRules},
};

use crate::parse::captures::{capture, decode_page};

#[test]
fn the_roofline_of_a_real_page_has_points_or_reasons_for_all_kernels() {
    let page = decode_page();
    assert_eq!(page.device.as_deref(), Some("NVIDIA H200"));
    let devices = Devices::from_toml(include_str!("../../../conf/devices.toml")).unwrap();
    let trace = Trace {
        timeline: Some(capture("hf-llama-e2e")),
        counters: page.launches,
        ..Trace::default()
    };
    let analysis = analyze(&trace, None, devices.find("NVIDIA H200"));
    let line = |it: &RooflinePoint| {
        let rate = it.flops_per_s.zip(it.flops_per_byte);
        let rate = rate.map_or("-".to_owned(), |(rate, ratio)| {
            format!("{:.2} GFLOP/s at {ratio:.3} FLOP/B", rate / 1e9)
        });
        let roof = it.datasheet_pct.map_or("-".to_owned(), |pct| format!("{pct:.2} %"));
        let bound = it.bound.map_or("-", |it| it.as_str());
        let format = it.format.as_deref().unwrap_or("-");
        let name = match it.kernel_name.split_once("_sdpa_") {
            Some((start, _)) => format!("{start}_sdpa"),
            None => it.kernel_name.clone(),
        };
        assert_eq!(it.stage, "decode_all");
        format!("{name}: {rate}, {format}, {roof}, {bound}")
    };
    let lines: Vec<String> = analysis.roofline.points.iter().map(line).collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT: -, -, -, latency
    nvjet_sm90_tst_8x64_64x16_2x1_v_bz_TNN: -, -, -, latency
    nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT: -, -, -, latency
    elementwise_kernel: 0.39 GFLOP/s at 0.052 FLOP/B, fp32, 0.16 %, latency
    unrolled_elementwise_kernel: 0.00 GFLOP/s at 0.000 FLOP/B, -, -, latency
    cudnn_generated_fort_native_sdpa: -, -, -, latency
    reduce_kernel: 1.96 GFLOP/s at 0.093 FLOP/B, fp32, 0.44 %, latency
    vectorized_elementwise_kernel: 1.53 GFLOP/s at 0.260 FLOP/B, fp32, 0.12 %, latency
    elementwise_kernel: 0.00 GFLOP/s at 0.000 FLOP/B, -, -, latency
    vectorized_elementwise_kernel: 1.44 GFLOP/s at 0.165 FLOP/B, fp32, 0.18 %, latency
    CatArrayBatchedCopy: 0.00 GFLOP/s at 0.000 FLOP/B, -, -, latency
    elementwise_kernel: 0.66 GFLOP/s at 0.090 FLOP/B, fp32, 0.15 %, latency
    vectorized_elementwise_kernel: 0.00 GFLOP/s at 0.000 FLOP/B, -, -, latency
    vectorized_elementwise_kernel: 0.96 GFLOP/s at 0.393 FLOP/B, fp32, 0.05 %, latency
    vectorized_elementwise_kernel: 0.91 GFLOP/s at 0.097 FLOP/B, fp32, 0.20 %, latency
    vectorized_elementwise_kernel: 0.00 GFLOP/s at 0.000 FLOP/B, -, -, latency
    splitKreduce_kernel: 2.31 GFLOP/s at 0.246 FLOP/B, fp32, 0.20 %, latency
    vectorized_elementwise_kernel: 39.32 GFLOP/s at 4.813 FLOP/B, fp32, 0.17 %, latency
    lean_reduction_kernel: 10.73 GFLOP/s at 0.659 FLOP/B, fp32, 0.34 %, latency
    CatArrayBatchedCopy_vectorized: 0.00 GFLOP/s at 0.000 FLOP/B, -, -, latency
    ");
    let over = |it: &&RooflinePoint| it.datasheet_pct.is_some_and(|pct| pct > 100.0);
    assert_eq!(analysis.roofline.points.iter().filter(over).count(), 0);
    assert!(
        analysis
            .roofline
            .points
            .iter()
            .all(|it| it.flops_per_byte.is_some() != it.missing.is_some())
    );
}

/// nsys and ncu print each name in their own way.
#[test]
fn counters_of_a_real_page_have_the_time_of_their_instantiation_alone() {
    let nsys = capture("hf-llama-e2e");
    let timeline = Capture::of(&nsys);
    let mut ran: HashMap<_, i64> = HashMap::new();
    let names: HashMap<u32, String> = nsys
        .kernels
        .kinds()
        .iter()
        .map(|it| (it.full_name, canonical(&nsys.strings[it.full_name as usize])))
        .collect();
    for (kernel, join) in timeline.kernels() {
        let name = names[&kernel.full_name].as_str();
        let key = (timeline.stage(join.instance), name, Some(kernel.grid), Some(kernel.block));
        *ran.entry(key).or_default() += kernel.ns();
    }
    let records = counters(&decode_page().launches, Some(&timeline));
    assert!(records.len() > 10, "{}", records.len());
    for it in &records {
        let key = (it.stage.as_str(), &*canonical(&it.full_name), it.grid, it.block);
        let ms = ran.get(&key).map(|ns| *ns as f64 / 1e6);
        let found = it.timeline_total_ms;
        let differs = found.zip(ms).is_none_or(|(found, ms)| (found - ms).abs() > 1e-9);
        assert!(!differs, "{found:?} and {ms:?} ms of {}", it.full_name);
    }
}

#[test]
fn regions_of_a_real_capture_equal_the_counts_of_sql() {
    let mut trace = capture("hf-llama-e2e");
    trace.rules = StageRules::with(vec![], vec!["measured".into()], vec![]);
    let joined = Capture::of(&trace);
    let counters = counters(&decode_page().launches, Some(&joined));
    let regions = regions(&joined, &counters).unwrap().rows;
    let of = |name: &str| regions.iter().find(|it| it.name == name).unwrap();
    let attention = of("decoder.self_attn");
    assert_eq!((attention.domain.as_str(), attention.kernels), ("LLM", 136 + 2_304));
    assert!((attention.kernel_ms - (0.7240 + 8.1973)).abs() < 1e-3, "{}", attention.kernel_ms);
    let covered = attention.counters.unwrap().covered_pct.unwrap();
    assert!((1.0..=100.0).contains(&covered), "{covered}");
    let classes: f64 = attention.classes.iter().map(|it| it.ms).sum();
    assert!((classes - attention.kernel_ms).abs() < 1e-9);
    let stages = of("prefill").kernel_ms + of("decode_all").kernel_ms;
    assert!(
        (of("measured").kernel_ms - stages).abs() < 1e-9,
        "the included range contains exactly its stages"
    );
}

#[test]
fn regions_of_a_replayed_graph_are_those_of_its_replay_and_of_its_capture() {
    let trace = capture("torch-cuda-graph-node");
    let regions = regions(&Capture::of(&trace), &[]).unwrap().rows;
    let layers: f64 =
        regions.iter().filter(|it| it.name.starts_with("layer_")).map(|it| it.kernel_ms).sum();
    let replayed: i64 =
        trace.kernels.iter().filter(|it| it.graph_node.is_some()).map(|it| it.ns()).sum();
    assert!(layers >= 0.99 * replayed as f64 / 1e6, "{layers}");
    let steps = regions.iter().find(|it| it.name == "decode_step").unwrap();
    assert!(steps.kernels >= 4_608);
}
