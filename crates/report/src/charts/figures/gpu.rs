//! Charts of the GPU: operations that ran at once by stage, and memory in use over time.

use llmprof_analyze::{Analysis, timeline::gpu::StageGpu};

use super::{bands, class, drawn, sampled};
use crate::{
    charts::{
        svg::{self, Bar},
        timeline::{Timeline, timeline},
    },
    format::short_ms,
};

/// Kernels and copies of each stage, and the part of them that ran next to other kernels; empty
/// if nothing ran at once.
pub fn overlap(analysis: &Analysis) -> String {
    let bars: Vec<Bar> = analysis.stage_gpu.totals.iter().flat_map(stage_bars).collect();
    let any = bars.iter().any(|bar| bar.part.is_some());
    let described: Vec<String> =
        bars.iter().map(|bar| format!("{} {}", bar.label, bar.shown)).collect();
    drawn(any, || svg::bars("overlap-bars", "Operations at once", &described.join("; "), &bars))
}

fn stage_bars(it: &StageGpu) -> Vec<Bar> {
    let bar = |what: &str, class, all: Option<f64>, part: Option<f64>| {
        let (all, part) = (all.filter(|ms| *ms > 0.0)?, part?);
        Some(Bar {
            label: format!("{}: {what}", it.stage),
            shown: format!("{} ms · {} ms at once", short_ms(all), short_ms(part)),
            value: all,
            class,
            part: (part > 0.0).then(|| (format!("next to kernels: {} ms", short_ms(part)), part)),
            ..Bar::default()
        })
    };
    let kernels = bar("busy", class(&it.stage), it.busy_ms, it.overlap_ms);
    let copies = bar("copies", "other", it.copying_ms, it.copy_overlap_ms);
    kernels.into_iter().chain(copies).collect()
}

/// Memory in use on the device over time, by all processes.
pub fn memory(analysis: &Analysis) -> String {
    let Some(power) = &analysis.power else { return String::new() };
    let chart = Timeline {
        seconds: power.curve.seconds,
        points: &power.curve.memory_gb,
        bands: bands(power),
        limit: None,
        unit: "GB",
    };
    let title = match power.device.gpus {
        1 => "Device memory in use over time".to_owned(),
        gpus => format!("Device memory in use over time, first of {gpus} GPUs"),
    };
    timeline("memory-curve", &title, &sampled(power), &chart)
}
