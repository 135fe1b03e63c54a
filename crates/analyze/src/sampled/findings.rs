//! Findings on samples: none, lost ones, and stages that they do not span.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::{
        digits::figure,
        finding::{
            Finding,
            catalogue::{self, FindingId},
        },
    },
    trace::{
        gpu_metrics::{DeviceSamples, GpuMetric, GpuSamples},
        timeline::Timeline,
    },
};

use super::{
    coverage::{GpuSampleCoverage, SampleProblem},
    figures::SampledStage,
};
use crate::{stages::in_sentence, stats::percent, timeline::interval::Interval};

/// Ids of findings on samples that are missing: the run is partial.
const LOSSES: [FindingId; 8] = [
    catalogue::GPU_METRICS_EMPTY,
    catalogue::GPU_METRICS_OTHER_GPU,
    catalogue::GPU_METRICS_LACKING,
    catalogue::GPU_METRICS_TOO_FEW,
    catalogue::GPU_METRICS_REFUSED,
    catalogue::GPU_METRICS_OVERFLOWED,
    catalogue::GPU_METRICS_WITHOUT_KERNELS,
    catalogue::GPU_METRICS_DO_NOT_SPAN,
];
/// Metrics that every GPU has; figures and causes need them.
const EXPECTED: [GpuMetric; 6] = [
    GpuMetric::SmsActive,
    GpuMetric::SmIssue,
    GpuMetric::TensorActive,
    GpuMetric::WarpsInFlight,
    GpuMetric::DramRead,
    GpuMetric::DramWrite,
];
/// Min share of a device's samples with a value of a metric, percent, for figures of the metric.
const MIN_COMPLETE_PCT: f64 = 99.0;
/// Messages of nsys that a finding quotes.
const QUOTED_MESSAGES: usize = 3;
/// Share of a stage's kernel time without a value, percent, that a finding reports.
const MUCH_UNRESOLVED_PCT: f64 = 10.0;

/// True for a finding that samples are missing.
pub fn is_loss(finding: &Finding) -> bool {
    LOSSES.iter().any(|id| finding.id == *id)
}

/// The reason why a capture that was requested with samples has no usable ones.
pub fn problem(trace: &Timeline) -> Option<Finding> {
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
        let message = "The capture has samples of the GPU's metrics and no kernels to attribute \
                       them to.";
        let advice = match trace.cuda_calls.is_empty() {
            true => {
                "Record kernels together with the samples: nsys profile -t cuda,nvtx \
                 --gpu-metrics-devices=..."
            }
            false => {
                "Export the report again with an nsys as new as the one that recorded it: calls \
                 of CUDA are recorded, and no kernels"
            }
        };
        return Some(Finding::new(catalogue::GPU_METRICS_WITHOUT_KERNELS, message).advise(advice));
    }
    let kernels = trace.kernels.kinds().iter().map(|it| it.device);
    let used: BTreeSet<u32> = kernels.chain(trace.graphs.iter().map(|it| it.device)).collect();
    let overflowed: Vec<String> = devices
        .filter(|it| it.overflowed && used.contains(&it.device))
        .map(|it| it.device.to_string())
        .collect();
    let rate = trace.samples.as_ref().and_then(|it| it.rate_hz);
    (!overflowed.is_empty()).then(|| {
        let message = format!(
            "The buffer of samples overflowed on GPU {}: samples are lost, and others may be \
             displaced, so none of its samples are used.",
            overflowed.join(", ")
        );
        let advice = "Sample at a lower rate (profiling.gpu_metrics.rates_hz, or \
                      --gpu-metrics-frequency), sample fewer GPUs, or record a shorter run";
        let finding = Finding::new(catalogue::GPU_METRICS_OVERFLOWED, message).advise(advice);
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
    let finding = Finding::new(catalogue::GPU_METRICS_REFUSED, message);
    let finding = all.iter().take(QUOTED_MESSAGES).fold(finding, |finding, it| {
        let gpu = format!("GPU {}, type {:#x}", it.type_id & 0xff, it.type_id);
        finding.with(&gpu, it.reason.as_str())
    });
    finding
        .advise(
            "Export the report again with the nsys that took it, or sample the GPU of the program \
         alone (--gpu-metrics-devices=N)",
        )
        .into()
}

/// The finding of a capture without a value of any known metric.
fn empty(trace: &Timeline) -> Finding {
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
    let (rows, names) = samples.map_or((0, 0), |it| (it.rows, it.names));
    let unnamed = "The capture has samples of the GPU's metrics without the names of the metrics \
                   (TARGET_INFO_GPU_METRICS).";
    let unknown =
        "The capture has samples of the GPU's metrics, but no valid value of a known one.";
    let (message, advice) = match (rows, names) {
        (0, _) => ("nsys recorded no samples of the GPU's metrics.", CHECK_METRICS),
        (_, 0) => (unnamed, "Export the report again with the nsys that took it"),
        _ => (unknown, CHECK_METRICS),
    };
    let mut finding = Finding::new(catalogue::GPU_METRICS_EMPTY, message);
    if rows > 0 {
        finding = finding.with("rows of samples", rows);
    }
    if !quoted.is_empty() {
        finding = finding.with("nsys", quoted.join(" | "));
    }
    if !unread.is_empty() {
        let names: Vec<&str> = unread.iter().map(String::as_str).take(QUOTED_MESSAGES).collect();
        finding = finding.with("unknown metrics", names.join(", "));
    }
    finding.advise(advice)
}

/// Remedy for metrics that samples lack.
const CHECK_METRICS: &str = "check that this GPU has the metrics (nsys profile \
                             --gpu-metrics-set=help) and that no other profiler or monitor, such \
                             as DCGM, reads its counters meanwhile";

/// True if enough samples have a value of the metric for figures of it: in each of these stages,
/// given by their device time, or in the whole capture if no stage is spanned.
pub fn is_usable(
    device: &DeviceSamples,
    stages: &[(&str, &[Interval])],
    metric: GpuMetric,
) -> bool {
    let is_complete = |(count, all): (usize, usize)| {
        all == 0 || percent(count as f64, all as f64).is_some_and(|pct| pct >= MIN_COMPLETE_PCT)
    };
    if stages.is_empty() {
        return device.has(metric) && is_complete((device.count(metric), device.times().len()));
    }
    device.has(metric)
        && stages.iter().all(|(_, windows)| is_complete(device.count_inside(windows, metric)))
}

/// Findings on the values of a device's samples: metrics that are missing from one of these stages,
/// or left out.
pub fn values(device: &DeviceSamples, stages: &[(&str, &[Interval])]) -> Vec<Finding> {
    let lacking: Vec<GpuMetric> =
        EXPECTED.into_iter().filter(|metric| !is_usable(device, stages, *metric)).collect();
    let left_out = (device.invalid > 0).then_some(device.invalid);
    if lacking.is_empty() {
        let finding = left_out.map(|count| {
            let message = format!(
                "Values of samples of GPU {} are outside the range of their metric, and left out.",
                device.device
            );
            Finding::new(catalogue::GPU_METRICS_INVALID, message).with("values", count)
        });
        return finding.into_iter().collect();
    }
    let names: Vec<&str> = lacking.iter().map(|it| it.as_str()).collect();
    let message = format!(
        "Samples of GPU {} lack {}: figures of them are absent.",
        device.device,
        names.join(", ")
    );
    let finding = Finding::new(catalogue::GPU_METRICS_LACKING, message).advise(CHECK_METRICS);
    let with_share = |finding: Finding, metric: &GpuMetric| {
        finding.with(metric.as_str(), least_share(device, stages, *metric))
    };
    let finding = lacking.iter().fold(finding, with_share);
    vec![left_out.into_iter().fold(finding, |it, count| it.with("invalid values", count))]
}

/// The share of samples with a metric: of the stage with the least, or without stages of all.
fn least_share(
    device: &DeviceSamples,
    stages: &[(&str, &[Interval])],
    metric: GpuMetric,
) -> String {
    let share = |(count, all): (usize, usize)| percent(count as f64, all as f64).unwrap_or(100.0);
    let mut shares: Vec<(f64, String)> = stages
        .iter()
        .map(|(stage, it)| {
            (share(device.count_inside(it, metric)), format!(" of {}", in_sentence(stage)))
        })
        .collect();
    if stages.is_empty() {
        shares.push((share((device.count(metric), device.times().len())), String::new()));
    }
    let least = shares.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    match least.filter(|(pct, _)| *pct > 0.0) {
        Some((pct, stage)) => format!("{pct:.1} % of the samples{stage}"),
        None => "no sample".into(),
    }
}

/// The finding of GPUs that run kernels of stages and have no samples, by device.
pub fn other_gpu(
    unsampled: &BTreeMap<u32, Vec<String>>,
    samples: Option<&GpuSamples>,
) -> Option<Finding> {
    // Samples without a device, or without values, have a finding of their own.
    let samples = samples.filter(|it| it.refused.is_empty() && !it.devices.is_empty())?;
    let (_, stages) = unsampled.first_key_value()?;
    let numbers = |devices: &mut dyn Iterator<Item = u32>| -> String {
        devices.map(|it| it.to_string()).collect::<Vec<_>>().join(", ")
    };
    let message = format!(
        "Kernels of {} ran on GPU {}, of which the capture has no samples; it has those of GPU {}.",
        stages.join(" and "),
        numbers(&mut unsampled.keys().copied()),
        numbers(&mut samples.devices.iter().map(|it| it.device)),
    );
    let advice = "Sample all GPUs of the program: nsys profile --gpu-metrics-devices=all";
    Some(Finding::new(catalogue::GPU_METRICS_OTHER_GPU, message).advise(advice))
}

/// Findings on stages with samples, if too few of these have work of only the stage.
pub fn too_few(stages: &[SampledStage]) -> Vec<Finding> {
    let without = stages.iter().filter(|it| it.samples == 0 || it.metrics.is_empty());
    let finding = |it: &SampledStage| {
        let message = format!(
            "{}: too few samples of GPU {} have work of this stage alone; it has no sampled means.",
            in_sentence(&it.stage),
            it.device
        );
        Finding::new(catalogue::GPU_METRICS_TOO_FEW, message)
            .with("kernel time", format!("{} ms", figure(it.kernel_ms)))
            .with("samples of the stage alone", it.samples)
    };
    without.map(finding).collect()
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
            // Overflows have a finding of their own.
            let missed: Vec<&GpuSampleCoverage> = missed
                .into_iter()
                .filter(|it| it.problem != Some(SampleProblem::Overflow))
                .collect();
            found.extend(missed.first().map(|first| unspanned(first, &missed)));
            continue;
        }
        let gaps: u64 = spanned.iter().map(|it| it.gaps).sum();
        if gaps > 0 {
            let message = format!(
                "{}: samples of GPU {device} are more than 1.5 periods apart ({gaps} times).",
                in_sentence(stage)
            );
            let finding = Finding::new(catalogue::GPU_METRICS_GAPS, message);
            found.push(spanned.iter().filter(|it| it.gaps > 0).fold(finding, with_row));
        }
    }
    found
}

/// The finding of captures with samples and kernels, and no stage.
pub fn no_stages() -> Finding {
    let message = "The capture has samples of the GPU's metrics, and no stage with kernels: \
                   metrics are attributed within stages.";
    let advice = "Name the ranges of the stages (stages of an import or command: NAME=RANGE)";
    Finding::new(catalogue::GPU_METRICS_WITHOUT_STAGES, message).advise(advice)
}

/// Findings on stages in which a metric has no value for a tenth of the kernel time or more.
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
            in_sentence(&stage.stage),
            stage.device
        );
        let finding =
            Finding::new(catalogue::GPU_METRICS_UNRESOLVED, message).with("samples", stage.samples);
        Some(wide.iter().fold(finding, |finding, (metric, pct)| {
            finding.with(metric.as_str(), format!("{pct:.1} % not resolved"))
        }))
    };
    stages.iter().filter_map(of_stage).collect()
}

/// The finding of a stage without usable samples, with the problem of the first capture.
fn unspanned(first: &GpuSampleCoverage, rows: &[&GpuSampleCoverage]) -> Finding {
    let GpuSampleCoverage { stage, device, .. } = first;
    let late = first.late_ms.unwrap_or_default();
    let displaced = format!("are displaced by {late:.2} ms against its kernels");
    let (problem, advice) = match first.problem {
        Some(SampleProblem::Displaced) => (displaced.as_str(), RECORD_AGAIN),
        Some(SampleProblem::TooMany) => ("are more than their rate gives", RECORD_AGAIN),
        Some(SampleProblem::StartsLate) => ("start after its first kernel", RECORD_ALL),
        Some(SampleProblem::EndsEarly) => ("end before its last kernel", RECORD_ALL),
        _ => ("cover less than 90 % of its device time", RECORD_ALL),
    };
    let message = format!(
        "{}: the samples of GPU {device} {problem}; the stage has no sampled metrics.",
        in_sentence(stage)
    );
    let finding = Finding::new(catalogue::GPU_METRICS_DO_NOT_SPAN, message).advise(advice);
    rows.iter().copied().fold(finding, |finding, row| with_row(finding, &row))
}

const RECORD_AGAIN: &str = "Export the report again with the nsys that took it; if the problem \
                            stays, record it again";
const RECORD_ALL: &str = "Sample at a lower rate, at which the buffer holds the whole run, and \
                          record from before the stage to after it";

/// Adds the coverage of one capture as evidence.
fn with_row(finding: Finding, row: &&GpuSampleCoverage) -> Finding {
    let covered =
        row.covered_pct.map_or_else(String::new, |pct| format!("{pct:.1} % of the time covered"));
    let (samples, expected, gaps) = (row.samples, row.expected, row.gaps);
    let text = format!("samples: {samples} of {expected}; gaps: {gaps}; {covered}");
    finding.with(&format!("{} Hz", row.rate_hz), text)
}
