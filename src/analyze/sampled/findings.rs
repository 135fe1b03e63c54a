//! Findings on samples: none, lost ones, and stages that they do not span.

use std::collections::BTreeSet;

use super::{coverage::GpuSampleCoverage, figures::SampledStage};
use crate::{
    domain::finding::{Finding, Severity},
    trace::{
        gpu_metrics::{GpuMetric, GpuSamples},
        nsys::NsysTrace,
    },
};

/// Ids of findings on samples that are missing: the run is partial.
const LOSSES: [&str; 5] = [
    "gpu_metrics_empty",
    "gpu_metrics_refused",
    "gpu_metrics_overflowed",
    "gpu_metrics_without_kernels",
    "gpu_metrics_do_not_span",
];
/// Messages of nsys that a finding quotes.
const QUOTED_MESSAGES: usize = 3;
/// Share of a stage's kernel time without a value, percent, that a finding reports.
const MUCH_UNRESOLVED_PCT: f64 = 10.0;

/// True for a finding that samples are missing.
pub fn is_loss(finding: &Finding) -> bool {
    LOSSES.contains(&finding.id.as_str())
}

fn warning(id: &str, message: impl Into<String>) -> Finding {
    Finding::new(id, Severity::Warning, message)
}

/// The reason why a capture that was requested with samples has no usable ones.
pub fn problem(trace: &NsysTrace) -> Option<Finding> {
    if let Some(finding) = trace.samples.as_ref().and_then(refused)
        && trace.samples.iter().all(|it| it.devices.is_empty())
    {
        return Some(finding);
    }
    let devices = trace.samples.iter().flat_map(|it| &it.devices);
    let has_metric = |metric: &GpuMetric| !metric.is_clock();
    let is_known = devices
        .clone()
        .any(|device| GpuMetric::ALL.iter().filter(|it| has_metric(it)).any(|it| device.has(*it)));
    if !is_known {
        return Some(empty(trace));
    }
    if trace.kernels.is_empty() && trace.graphs.is_empty() {
        let message = "The capture has samples of the GPU's metrics and no kernels: the samples \
                       belong to nothing.";
        let advice = "record kernels together with the samples: nsys profile -t cuda,nvtx \
                      --gpu-metrics-devices=...";
        return Some(warning("gpu_metrics_without_kernels", message).advise(advice));
    }
    let used: BTreeSet<u32> = trace.kernels.kinds().iter().map(|it| it.device).collect();
    let overflowed: Vec<String> = devices
        .filter(|it| it.overflowed && (used.is_empty() || used.contains(&it.device)))
        .map(|it| it.device.to_string())
        .collect();
    let rate = trace.samples.as_ref().and_then(|it| it.rate_hz);
    (!overflowed.is_empty()).then(|| {
        let message = format!(
            "The buffer of samples overflowed on GPU {}: samples are lost, and others may be \
             displaced, so none of this capture count.",
            overflowed.join(", ")
        );
        let advice = "sample at a lower rate (profiling.gpu_metrics.rates_hz, or \
                      --gpu-metrics-frequency), sample fewer GPUs, or record a shorter run";
        let finding = warning("gpu_metrics_overflowed", message).advise(advice);
        rate.into_iter().fold(finding, |finding, rate| finding.with("rate, Hz", rate))
    })
}

/// The finding of samples that cannot be assigned to a device of the kernels.
pub fn refused(samples: &GpuSamples) -> Option<Finding> {
    let (first, all) = (samples.refused.first()?, &samples.refused);
    let message = format!(
        "Samples of {} of {} sources are left out, because their GPU is unknown: {}.",
        all.len(),
        all.len() + samples.devices.len(),
        first.reason.as_str()
    );
    let finding = warning("gpu_metrics_refused", message);
    let finding = all.iter().take(QUOTED_MESSAGES).fold(finding, |finding, it| {
        let gpu = format!("GPU {}, type {:#x}", it.type_id & 0xff, it.type_id);
        finding.with(&gpu, it.reason.as_str())
    });
    finding
        .advise(
            "export the report again with the nsys that took it, or sample the GPU of the program \
         alone (--gpu-metrics-devices=N)",
        )
        .into()
}

/// The finding of a capture without a value of any known metric.
fn empty(trace: &NsysTrace) -> Finding {
    let samples = trace.samples.as_ref();
    let unread = samples.map(|it| it.unread.as_slice()).unwrap_or_default();
    let of_metrics = |line: &&String| line.contains("GPU Metrics") || line.contains("gpu-metrics");
    let quoted: Vec<&str> = trace
        .diagnostics
        .iter()
        .filter(of_metrics)
        .map(String::as_str)
        .take(QUOTED_MESSAGES)
        .collect();
    let message = "nsys recorded no samples of the GPU's metrics.";
    let mut finding = warning("gpu_metrics_empty", message);
    if !quoted.is_empty() {
        finding = finding.with("nsys", quoted.join(" | "));
    }
    if !unread.is_empty() {
        let names: Vec<&str> = unread.iter().map(String::as_str).take(QUOTED_MESSAGES).collect();
        finding = finding.with("unknown metrics", names.join(", "));
    }
    finding.advise(
        "check that this GPU has the metrics (nsys profile --gpu-metrics-set=help) and that no \
         other profiler or monitor, such as DCGM, reads its counters meanwhile",
    )
}

/// Findings on stages that no capture spans, and on gaps in those that are spanned.
pub fn findings(coverage: &[GpuSampleCoverage]) -> Vec<Finding> {
    let mut places: Vec<(&str, u32)> =
        coverage.iter().map(|it| (it.stage.as_str(), it.device)).collect();
    places.sort_unstable();
    places.dedup();
    let mut found = Vec::new();
    for (stage, device) in places {
        let rows = coverage.iter().filter(|it| it.stage == stage && it.device == device);
        let (spanned, missed): (Vec<_>, Vec<_>) = rows.partition(|it| it.is_spanned);
        if spanned.is_empty() {
            found.push(unspanned(stage, device, &missed));
            continue;
        }
        let gaps: u64 = spanned.iter().map(|it| it.gaps).sum();
        if gaps > 0 {
            let message = format!(
                "{stage}: {gaps} gaps of more than 1.5 periods between samples of GPU {device}."
            );
            let finding = Finding::new("gpu_metrics_gaps", Severity::Info, message);
            let finding = spanned.iter().filter(|it| it.gaps > 0).fold(finding, with_row);
            found.push(finding.advise("sample at a lower rate if figures are missing"));
        }
    }
    found
}

/// The finding of captures with samples and kernels, and no stage.
pub fn no_stages() -> Finding {
    let message = "The capture has samples of the GPU's metrics, and no stage with kernels: \
                   metrics are attributed within stages.";
    let advice = "name the ranges of the stages (stages of an import or command: NAME=RANGE)";
    Finding::new("gpu_metrics_without_stages", Severity::Info, message).advise(advice)
}

/// Findings on stages of which a metric has no value for a tenth of the kernel time or more.
pub fn unresolved(stages: &[SampledStage]) -> Vec<Finding> {
    let of_stage = |stage: &SampledStage| {
        let wide: Vec<(&GpuMetric, f64)> = stage
            .metrics
            .iter()
            .filter_map(|(metric, value)| Some((metric, value.unresolved_pct?)))
            .filter(|(_, pct)| *pct >= MUCH_UNRESOLVED_PCT)
            .collect();
        if wide.is_empty() {
            return None;
        }
        let message = format!(
            "{}: sampled metrics of GPU {} resolve less than 90 % of the kernel time.",
            stage.stage, stage.device
        );
        let finding = Finding::new("gpu_metrics_unresolved", Severity::Info, message)
            .with("samples", stage.samples);
        Some(wide.iter().fold(finding, |finding, (metric, pct)| {
            finding.with(metric.as_str(), format!("{pct:.1} % not resolved"))
        }))
    };
    stages.iter().filter_map(of_stage).collect()
}

fn unspanned(stage: &str, device: u32, rows: &[&GpuSampleCoverage]) -> Finding {
    let message = format!(
        "{stage}: the samples of GPU {device} do not span the stage, which has no sampled metrics."
    );
    let advice = "sample at a lower rate, at which the buffer holds the whole run, and record from \
                  before the stage to after it";
    let finding = warning("gpu_metrics_do_not_span", message).advise(advice);
    rows.iter().copied().fold(finding, |finding, row| with_row(finding, &row))
}

/// Adds the coverage of one capture as evidence.
fn with_row(finding: Finding, row: &&GpuSampleCoverage) -> Finding {
    let covered = row.covered_pct.map_or_else(String::new, |pct| format!("{pct:.1} % of the time"));
    let text = format!("{} of {} samples, {} gaps, {covered}", row.samples, row.expected, row.gaps);
    finding.with(&format!("{} Hz", row.rate_hz), text)
}
