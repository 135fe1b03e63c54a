//! Sampled metrics of the GPU: counters of all kernels without replay, from captures of nsys with
//! samples at a fixed rate.
//!
//! Everything here is arithmetic on values. A figure has an interval and a number of samples, or it
//! is absent and a finding has the reason. `specs/formulas.md` has the method.

mod assumed_times;
mod attribution;
pub mod coverage;
mod displacement;
mod equations;
pub mod figures;
pub mod findings;
mod groups;
mod operators;
mod parts;
mod rows;
mod unknowns;

use std::collections::BTreeSet;

pub use self::findings::problem;
use llmprof_core::{domain::finding::Finding, trace::Trace};

use self::{
    coverage::{GpuSampleCoverage, StageSamples, period_ns},
    figures::{SampledKernel, SampledOperator, SampledStage},
    unknowns::DeviceCapture,
};
use crate::timeline::{capture::Capture, interval::Interval};

/// Sampled metrics of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledMetrics {
    /// Samples by capture, device and stage.
    pub coverage: Vec<GpuSampleCoverage>,
    pub stages: Vec<SampledStage>,
    /// By stage, name, grid and block, longest first.
    pub kernels: Vec<SampledKernel>,
    /// Operators with at least one resolved metric, longest first.
    pub operators: Vec<SampledOperator>,
    /// Stages with kernels on a GPU that was not sampled.
    pub unsampled: BTreeSet<String>,
    /// True if samples were requested and a stage has none that span it.
    pub lost: bool,
    pub findings: Vec<Finding>,
}

/// A timeline with its stages on sampled devices.
struct SampledCapture<'a> {
    timeline: &'a Capture<'a>,
    stages: Vec<StageSamples>,
}

/// Analyses the captures with samples, from the passes that sample or from an import. `recorded` is
/// the traced pass, if it has samples.
pub fn sampled_metrics(trace: &Trace, recorded: Option<&Capture>) -> SampledMetrics {
    let passes: Vec<Capture> = trace.sampled.iter().map(Capture::of).collect();
    let of_stages =
        |timeline| SampledCapture { timeline, stages: coverage::stage_samples(timeline) };
    let captures: Vec<SampledCapture> = passes.iter().chain(recorded).map(of_stages).collect();
    let mut sampled = SampledMetrics::default();
    let mut has_problem = false;
    for capture in &captures {
        let problem = problem(capture.timeline.trace);
        has_problem |= problem.is_some();
        sampled.findings.extend(problem);
        let samples = capture.timeline.trace.samples.as_ref();
        // Without any samples that count, their refusal is the problem.
        sampled
            .findings
            .extend(samples.filter(|it| !it.devices.is_empty()).and_then(findings::refused));
        let values = samples.iter().flat_map(|it| &it.devices).flat_map(|device| {
            let spanned = capture.of_device(device.device).map_or(Vec::new(), |it| it.spanned);
            findings::values(device, &spanned)
        });
        let unsampled = coverage::unsampled(capture.timeline);
        for finding in values.chain(findings::other_gpu(&unsampled, samples)) {
            // The passes of several rates lack the same.
            if !sampled.findings.iter().any(|it| it.message == finding.message) {
                sampled.findings.push(finding);
            }
        }
        sampled.unsampled.extend(unsampled.into_values().flatten());
        sampled.coverage.extend(capture.stages.iter().map(|it| it.coverage.clone()));
    }
    let spanned = sampled.coverage.iter().filter(|it| it.is_spanned);
    let devices: BTreeSet<u32> = spanned.map(|it| it.device).collect();
    for device in devices {
        let of_device: Vec<DeviceCapture> =
            captures.iter().filter_map(|it| it.of_device(device)).collect();
        let figures = attribution::attribute(&of_device);
        sampled.stages.extend(figures.stages);
        sampled.kernels.extend(figures.kernels);
        let is_known = |it: &SampledOperator| !it.metrics.is_empty();
        sampled.operators.extend(figures.operators.into_iter().filter(is_known));
    }
    let gaps = findings::findings(&sampled.coverage);
    sampled.findings.extend(gaps);
    sampled.findings.extend(findings::too_few(&sampled.stages));
    sampled.findings.extend(findings::unresolved(&sampled.stages));
    let is_explained = has_problem || !sampled.unsampled.is_empty();
    if sampled.coverage.is_empty() && !is_explained && !captures.is_empty() {
        sampled.findings.push(findings::no_stages());
    }
    sampled.lost = sampled.findings.iter().any(findings::is_loss);
    sampled
}

impl SampledCapture<'_> {
    /// The capture of one device; `None` unless its samples span a stage.
    fn of_device(&self, device: u32) -> Option<DeviceCapture<'_>> {
        let all = self.timeline.trace.samples.as_ref()?;
        let samples = all.devices.iter().find(|it| it.device == device)?;
        let is_spanned = |it: &&GpuSampleCoverage| it.device == device && it.is_spanned;
        let of_device = self.stages.iter().filter(|it| is_spanned(&&it.coverage));
        let spanned: Vec<(&str, &[Interval])> =
            of_device.map(|it| (it.coverage.stage.as_str(), it.windows.as_slice())).collect();
        let period_ns = period_ns(all, samples)? as i64;
        let timeline = self.timeline;
        let capture = DeviceCapture { timeline, device, samples, period_ns, spanned };
        (!capture.spanned.is_empty()).then_some(capture)
    }
}

#[cfg(test)]
mod tests;
