//! Sketches of analyses, each with the evidence of one rule.

use llmprof_core::trace::{
    counter::CounterValues,
    event::{Event, StageRange, Start},
};

use super::super::*;
use crate::{
    kernels::{KernelRecord, StageKernels, counters::CounterRecord, gemms::GemmRecord},
    roofline::RooflinePoint,
    stages::{PREFILL, STAGES, StageTiming, stage_calls::StageCalls},
    stats::Spread,
    timeline::{duration_stats::DurationStats, gpu::StageGpu},
};

pub const MS: i64 = 1_000_000;

/// Stages of 10 ms, traced in ten repeats of 20 ms whose kernels take 10 ms.
pub fn analysis() -> Analysis {
    let mut analysis = Analysis::default();
    for stage in STAGES {
        let ms = Spread::of([10.0, 10.0]).unwrap();
        analysis.stages.rows.push(StageTiming {
            stage: stage.into(),
            ms,
            share_pct: None,
            tokens: None,
            tokens_per_s: None,
        });
        let stage = stage.to_owned();
        let gpu = StageGpu {
            stage: stage.clone(),
            devices: 1,
            instances: 10,
            repeats: Some(10.0),
            window_ms: Some(200.0),
            busy_ms: Some(100.0),
            launches: 2000,
            ..StageGpu::default()
        };
        analysis.stage_gpu.totals.push(gpu);
        analysis
            .stage_calls
            .insert(stage.clone(), StageCalls { host_ms: 100.0, ..StageCalls::default() });
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

pub fn start(device: &str, decode_graph: bool, load_ns: i64) -> Option<Start> {
    let text = format!(
        r#"{{"schema":1,"t_ns":0,"unix_ns":0,"pid":1,"model":"m","weights":"synthetic",
        "parameters":1,"weight_bytes":1,"dtype":"bf16","device":"{device}","threads":1,
        "prompt_tokens":1,"image_tokens":0,"images":[],"decode_graph":{decode_graph},
        "load_ns":{load_ns}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// Ranges of `name`, one per repeat, `long` milliseconds each.
pub fn ranges(name: &str, long: &[i64]) -> Vec<Event> {
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

pub fn kernel(name: &str, stage: &str, calls: u64, total_ms: f64) -> KernelRecord {
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
        launch_ns: DurationStats::default(),
        grid: [1; 3],
        block: [1; 3],
        registers: 0,
        launch_configs: 1,
        share_pct,
        counters: None,
        configs: Default::default(),
        full_names: vec![],
    }
}

pub fn with_kernels(records: Vec<KernelRecord>) -> Analysis {
    let mut analysis = analysis();
    analysis.kernels.records = records;
    analysis
}

pub fn profiled(name: &str, total_ms: f64, values: CounterValues) -> Analysis {
    let record = CounterRecord {
        stage: PREFILL.into(),
        kernel_name: name.into(),
        grid: Some([1; 3]),
        block: Some([1; 3]),
        timeline_calls: Some(1),
        timeline_total_ms: Some(total_ms),
        timeline_mean_ms: Some(total_ms),
        unlike_ms: None,
        like: None,
        profiled: 1,
        full_name: String::new(),
        signature: String::new(),
        profiled_in: None,
        values,
        flops_per_byte: None,
    };
    Analysis { counters: vec![record], ..analysis() }
}

pub fn gemm(m: u64, n: u64, share: f64) -> Analysis {
    let text = format!(
        r#"{{"stage":"prefill","m":{m},"n":{n},"k":64,"batch":1,"left_type":"bf16",
        "right_type":"bf16","out_type":"bf16","left_transposed":false,"right_transposed":false,
        "compute":"32f","function":"f","algorithm":null,"calls":1,"calls_per_step":null,
        "flops_per_call":1,"total_flops":1,"share_pct":{share}}}"#
    );
    let mut analysis = analysis();
    analysis.gemms.records = vec![serde_json::from_str::<GemmRecord>(&text).unwrap()];
    analysis
}

pub fn no_trace() -> Trace {
    Trace::default()
}

/// Kernels run for `ms` in each traced repeat of 20 ms.
pub fn busy(ms: f64) -> Analysis {
    let mut analysis = analysis();
    analysis.stage_gpu.totals.iter_mut().for_each(|it| it.busy_ms = Some(ms * 10.0));
    analysis
}

/// A profiled kernel with `share` of prefill, and its utilisation of device memory and SM.
pub fn under_roof(share: f64, dram: f64, sm: f64) -> (Analysis, Trace) {
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
    (analysis, no_trace())
}
