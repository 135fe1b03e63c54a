//! Charts of the HTML report: bars of stages, operators and kernels; decode steps
//! and the timeline of one; experts; power and clocks over time; roofline.
//!
//! Each chart is next to the table with its numbers.

mod batches;
mod gpu;
pub mod modules;
mod stages;
pub mod step;

use llmprof_analyze::{
    Analysis,
    kernels::KernelRecord,
    operators::{ExclusiveTime, OperatorRecord},
    power::Power,
    stages::{DECODE, PREFILL, STAGES},
};
use serde::Serialize;

use super::{
    scatter::{Dot, RoofLine, scatter},
    svg::{self, Bar, ColumnChart},
    timeline::{Timeline, timeline},
};
use crate::{
    format::{decimals, ms, pct, scaled, short_ms},
    kernel_names::KernelNames,
};

/// Number of drawn operators.
const OPERATORS: usize = 12;
/// Number of drawn kernels.
const KERNELS: usize = 12;
/// Style class of decode.
const DECODE_CLASS: &str = "decode";
/// Steps that fit as columns of at least a pixel on a phone.
const STEPS: usize = 256;

/// The charts; empty text if there is nothing to draw.
#[derive(Debug, Clone, Serialize)]
pub struct ReportCharts {
    stages: String,
    /// Legend of the lighter parts of the bars of `stages`.
    stage_part: String,
    operators: String,
    kernels: String,
    steps: String,
    batches: String,
    step: String,
    /// Legend of `step`.
    step_keys: Vec<step::LegendEntry>,
    experts: Vec<(String, String)>,
    power: String,
    clock: String,
    memory: String,
    overlap: String,
    roofline: String,
}

/// Draws the figures.
pub fn figures(analysis: &Analysis) -> ReportCharts {
    let (step, step_keys) = step::step(analysis);
    let (power, clock) = power(analysis);
    ReportCharts {
        stages: stages::stages(analysis),
        stage_part: stages::part_legend(analysis),
        operators: operators(analysis),
        kernels: kernels(analysis),
        steps: steps(analysis),
        batches: batches::batches(analysis),
        step,
        step_keys,
        experts: experts(analysis),
        power,
        clock,
        memory: gpu::memory(analysis),
        overlap: gpu::overlap(analysis),
        roofline: roofline(analysis),
    }
}

fn operators(analysis: &Analysis) -> String {
    let mut ranked: Vec<_> =
        STAGES.iter().flat_map(|stage| analysis.operators.ranked(stage)).collect();
    ranked.sort_by(|a, b| b.1.ms.total_cmp(&a.1.ms));
    let on_device = ranked.iter().any(|(_, own)| own.on_device);
    let bar = |(it, own): &(&OperatorRecord, ExclusiveTime)| Bar {
        label: it.path.clone(),
        shown: format!("{} ms", short_ms(own.ms))
            + &own.share_pct.map(|share| format!(" · {}", pct(share))).unwrap_or_default(),
        value: own.ms,
        class: class(&it.stage),
        ..Bar::default()
    };
    let bars: Vec<Bar> = ranked
        .iter()
        .filter(|(_, own)| own.on_device == on_device)
        .take(OPERATORS)
        .map(bar)
        .collect();
    let what = if on_device {
        "the kernels of an operator in the traced pass"
    } else {
        "the operators themselves"
    };
    let description = format!(
        "The {} operators that take longest, by the time of {what}; the table below holds the \
         same figures.",
        bars.len()
    );
    let title = if on_device { "Top operators by kernel time" } else { "Top operators by time" };
    drawn(!bars.is_empty(), || svg::bars("operator-bars", title, &description, &bars))
}

fn steps(analysis: &Analysis) -> String {
    let curve = &analysis.stages.step_curve_ms;
    let description = match analysis.stages.step_ms {
        Some(all) => format!("{} steps, from {} to {} ms.", curve.len(), ms(all.min), ms(all.max)),
        None => return String::new(),
    };
    let shown = |step: usize, value: f64| format!("step {}: {} ms", step + 1, ms(value));
    drawn((2..=STEPS).contains(&curve.len()), || {
        let ends = format!("steps 1 to {}", curve.len());
        let class = DECODE_CLASS;
        let drawn = ColumnChart { class, scale: None, values: curve, unit: "ms", ends: &ends };
        svg::columns("step-columns", "Time of each decode step", &description, &drawn, shown)
    })
}

/// Kernels of all stages, longest first.
fn kernels(analysis: &Analysis) -> String {
    let names = KernelNames::of(analysis.kernels.measured());
    let bar = |it: &KernelRecord| Bar {
        label: names.of_record(it),
        shown: format!("{} ms", short_ms(it.total_ms))
            + &it.share_pct.map(|share| format!(" · {}", pct(share))).unwrap_or_default(),
        value: it.total_ms,
        class: class(&it.stage),
        ..Bar::default()
    };
    let of_stages = analysis.kernels.measured().filter(|it| STAGES.contains(&it.stage.as_str()));
    let bars: Vec<Bar> = of_stages.take(KERNELS).map(bar).collect();
    let description = format!(
        "The {} longest kernels of the traced pass; the table below has the same figures.",
        bars.len()
    );
    drawn(!bars.is_empty(), || svg::bars("kernel-bars", "Top kernels by time", &description, &bars))
}

/// Distinct experts of each layer by stage, out of all experts.
fn experts(analysis: &Analysis) -> Vec<(String, String)> {
    let of = |stage: &&str| {
        let layers: Vec<_> = analysis.experts.iter().filter(|it| it.stage == **stage).collect();
        let values: Vec<f64> = layers.iter().map(|it| it.distinct.mean).collect();
        let total = layers.iter().map(|it| it.total).max()?;
        let shown = |at: usize, value: f64| {
            format!("layer {}: {} of {total} experts", layers[at].layer, decimals(value, 1))
        };
        let description = format!("{} layers; a full column is all {total} experts.", layers.len());
        let ends = format!("layers {} to {}", layers.first()?.layer, layers.last()?.layer);
        let drawn = ColumnChart {
            class: class(stage),
            scale: Some(f64::from(total)),
            values: &values,
            unit: "experts",
            ends: &ends,
        };
        let title = format!("Experts used per forward in {stage}");
        Some((
            title.clone(),
            svg::columns(&format!("experts-{stage}"), &title, &description, &drawn, shown),
        ))
    };
    STAGES.iter().filter_map(of).collect()
}

/// The samples of a curve, in words.
fn sampled(power: &Power) -> String {
    let of_gpus = match power.device.gpus {
        1 => String::new(),
        gpus => format!(" of {gpus} GPUs"),
    };
    let seconds = decimals(power.curve.seconds, 1);
    format!("{} samples{of_gpus} over {seconds} seconds.", power.samples)
}

/// Stages behind a curve over the unprofiled pass.
fn bands(power: &Power) -> Vec<(&'static str, f64, f64, String)> {
    let band = |band: &llmprof_analyze::power::StageBand| {
        let what = if band.warmup { "warm-up" } else { "measured" };
        let tooltip = format!(
            "{} ({what}), from {} to {} s",
            band.stage,
            decimals(band.from_s, 3),
            decimals(band.to_s, 3)
        );
        (if band.warmup { "other" } else { class(band.stage) }, band.from_s, band.to_s, tooltip)
    };
    power.curve.bands.iter().map(band).collect()
}

/// Power and SM clock over time.
fn power(analysis: &Analysis) -> (String, String) {
    let Some(power) = &analysis.power else { return Default::default() };
    let bands = bands(power);
    let drawn = Timeline {
        seconds: power.curve.seconds,
        points: &power.curve.points,
        bands: bands.clone(),
        limit: power
            .device
            .power_limit_w
            .map(|limit| (limit, format!("power limit: {} W", decimals(limit, 0)))),
        unit: "W",
    };
    let clock = Timeline {
        points: &power.curve.sm_mhz,
        bands,
        limit: power
            .device
            .max_sm_mhz
            .map(|most| (f64::from(most), format!("highest clock: {most} MHz"))),
        unit: "MHz",
        ..drawn
    };
    let description = sampled(power);
    let [of_power, of_clock] = match power.device.gpus {
        1 => ["Power over time".to_owned(), "SM clock over time".to_owned()],
        gpus => [
            format!("Power over time, sum over {gpus} GPUs"),
            format!("SM clock over time, first of {gpus} GPUs"),
        ],
    };
    (
        timeline("power-curve", &of_power, &description, &drawn),
        timeline("clock-curve", &of_clock, &description, &clock),
    )
}

/// Styles of a chart in a file of its own.
const ALONE: &str = "<style>:root{--ink:#12161c;--dim:#55606e;--critical:#b3261e;\
    --line:#dde3ea;--prefill:#3f6d00;--decode:#0b62b8;--other:#8a94a1}\
    @media(prefers-color-scheme:dark){:root{--ink:#e9edf2;--dim:#a0abb8;--critical:#ff8a80;\
    --line:#2a323d;--prefill:#76b900;--decode:#58a6ff;--other:#7d8794}}\
    text{fill:var(--dim);font:500 12.5px ui-monospace,Menlo,Consolas,monospace}\
    .band{opacity:.22}.prefill{fill:var(--prefill)}.decode{fill:var(--decode)}\
    .other{fill:var(--other)}.curve{fill:none;stroke:var(--ink);stroke-width:1.5}\
    .grid{stroke:var(--line)}.limit{stroke:var(--critical);stroke-dasharray:4 4}</style>";

/// Power over time as a separate file; `None` if there is nothing to draw.
pub fn power_drawing(analysis: &Analysis) -> Option<String> {
    let (inline, _) = power(analysis);
    let (opening, rest) = inline.split_once('>')?;
    let opening = opening.replacen("<svg", "<svg xmlns=\"http://www.w3.org/2000/svg\"", 1);
    Some(format!("{opening}>{ALONE}{rest}"))
}

fn roofline(analysis: &Analysis) -> String {
    let roofline = &analysis.roofline;
    let dot = |(at, point): (usize, &llmprof_analyze::roofline::RooflinePoint)| {
        let (flops_per_byte, flops_per_s) = (point.flops_per_byte?, point.flops_per_s?);
        let bound =
            point.bound.map(|bound| format!(", bound by {}", bound.as_str())).unwrap_or_default();
        let rate = scaled(flops_per_s, "FLOP/s");
        let tooltip = format!(
            "{}: {} in {}, {rate} at {} FLOP/B{bound}",
            at + 1,
            point.kernel_name,
            point.stage,
            decimals(flops_per_byte, 2)
        );
        let drawn = flops_per_byte > 0.0 && flops_per_s > 0.0;
        drawn.then(|| Dot {
            number: at + 1,
            tooltip,
            class: class(&point.stage),
            flops_per_byte,
            flops_per_s,
        })
    };
    let dots: Vec<Dot> = roofline.points.iter().enumerate().filter_map(dot).collect();
    let used = |dtype: &str| {
        roofline.points.iter().any(|point| point.roof_dtype.as_deref() == Some(dtype))
    };
    let line = |roof: &llmprof_analyze::roofline::Roof| RoofLine {
        label: format!("{} {}, {}", roof.source, roof.dtype, scaled(roof.flops_per_s, "FLOP/s")),
        flops_per_s: roof.flops_per_s,
        bytes_per_s: roof.bytes_per_s,
        measured: roof.source == "measured",
    };
    let lines: Vec<RoofLine> =
        roofline.roofs.iter().filter(|roof| used(&roof.dtype)).map(line).collect();
    let description = format!(
        "{} of {} profiled kernels; the table below numbers them.",
        dots.len(),
        roofline.points.len()
    );
    scatter("roofline-chart", "Kernels under the device's roofs", &description, &lines, &dots)
}

fn drawn(any: bool, draw: impl FnOnce() -> String) -> String {
    if any { draw() } else { String::new() }
}

fn class(stage: &str) -> &'static str {
    match stage {
        PREFILL => "prefill",
        DECODE => DECODE_CLASS,
        _ => "other",
    }
}
