//! Rules on the references of a measurement: modelled costs, peaks of the device, kernels.

use llmprof_core::{
    domain::{
        digits::figure,
        finding::{Finding, catalogue},
        subject::SubjectKind,
    },
    trace::Trace,
};

use super::Rule;
use crate::{
    Analysis,
    roofline::{
        limits::{RateOf, RemovedRate},
        mfu::MfuRecord,
    },
    stages::{PREFILL, STAGES, in_sentence},
    stats::percent,
};

/// Counted and modelled FLOPs should agree within this, percent.
const COST_TOLERANCE_PCT: f64 = 0.1;

/// Omitted rates that a finding names.
const LISTED_RATES: usize = 20;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::COST_DISAGREES, find: cost_disagrees },
    Rule { id: catalogue::RATE_ABOVE_PEAK, find: |it, _| removed_rates(it, RateOf::Flops) },
    Rule {
        id: catalogue::OPERAND_RATE_ABOVE_BANDWIDTH,
        find: |it, _| removed_rates(it, RateOf::Bytes),
    },
    Rule { id: catalogue::NO_DATASHEET_PEAK, find: no_datasheet_peak },
    Rule { id: catalogue::NO_MEASURED_PEAK, find: no_measured_peak },
    Rule { id: catalogue::GPU_NAME_DOUBTED, find: gpu_name_doubted },
    Rule { id: catalogue::NO_KERNEL_DATA, find: no_kernel_data },
];

fn cost_disagrees(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let Some(cost) = &analysis.cost else { return vec![] };
    let disagrees = |row: &MfuRecord| {
        let modelled = if row.scope == PREFILL { cost.prefill_flops } else { cost.decode_flops };
        let off = percent(row.flops as f64 - modelled as f64, modelled as f64)?;
        if row.flops_source != "counted" || off.abs() <= COST_TOLERANCE_PCT {
            return None;
        }
        let message = format!(
            "{} % {} FLOPs are counted in {} than the architecture needs.",
            figure(off.abs()),
            if off < 0.0 { "fewer" } else { "more" },
            in_sentence(&row.scope)
        );
        Some(
            Finding::new(catalogue::COST_DISAGREES, message)
                .with("counted FLOPs", row.flops)
                .with("modelled FLOPs", modelled)
                .advise(
                    "Look for an operator that the records or the cost model lack; rates use the \
                     counted FLOPs.",
                ),
        )
    };
    analysis
        .mfu
        .rows
        .iter()
        .filter(|row| STAGES.contains(&row.scope.as_str()))
        .filter_map(disagrees)
        .collect()
}

fn removed_rates(analysis: &Analysis, of: RateOf) -> Vec<Finding> {
    let all: Vec<&RemovedRate> = analysis.removed_rates.iter().filter(|it| it.of == of).collect();
    let Some(first) = all.first() else { return vec![] };
    let others = match all.len() - 1 {
        0 => String::new(),
        1 => " One other rate is omitted as well.".into(),
        others => format!(" {others} other rates are omitted as well."),
    };
    let (id, what, unit) = match of {
        RateOf::Flops => (catalogue::RATE_ABOVE_PEAK, "compute", "TFLOP/s"),
        RateOf::Bytes => (catalogue::OPERAND_RATE_ABOVE_BANDWIDTH, "move operands at", "TB/s"),
    };
    let rate = |it: &RemovedRate| format!("{:.2} {unit}, {:.0} %", it.per_s / 1e12, it.pct);
    let message = format!(
        "{} would {what} {} of the device's peak: the rate is omitted.{others}",
        first.row,
        rate(first)
    );
    let finding = Finding::new(id, message).with("omitted rates", all.len());
    let listed = all.iter().take(LISTED_RATES).enumerate();
    vec![listed.fold(finding, |finding, (at, it)| {
        finding.with(&format!("rate ({:02})", at + 1), format!("{}: {}", it.row, rate(it)))
    })]
}

fn no_datasheet_peak(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let ceilings = analysis.mfu.ceilings.as_ref();
    let Some(ceilings) = ceilings.filter(|it| it.datasheet_flops_per_s.is_none()) else {
        return vec![];
    };
    let device = analysis.start.as_ref().map_or("", |start| start.device.as_str());
    let ran_on = trace.environment.device.as_ref().and_then(|device| device.product.as_deref());
    let name = ran_on.or(trace.environment.gpus.first().map(|gpu| gpu.name.as_str()));
    let name = name.map(str::trim).filter(|name| !name.is_empty());
    let (message, advice) = match (device, name) {
        ("cpu", _) => (
            "MFU against a datasheet is not available: the model ran on the CPU.".to_owned(),
            "Compare with the measured matrix product, or run on a GPU.",
        ),
        (_, Some(name)) => (
            format!(
                "MFU against a datasheet is not available: no {} peak is known for {name}.",
                ceilings.dtype
            ),
            catalogue::NO_DATASHEET_PEAK.advice.unwrap_or_default(),
        ),
        _ if analysis.subject == SubjectKind::Import => (
            "MFU against a datasheet is not available: the capture does not name its GPU."
                .to_owned(),
            "Import a capture that still states its device: deviceProperties of a trace by \
             PyTorch, or the table TARGET_INFO_GPU of an export by nsys.",
        ),
        _ => (
            "MFU against a datasheet is not available: the device's name could not be read."
                .to_owned(),
            "Install the driver's NVML library (libnvidia-ml.so.1).",
        ),
    };
    // An import has no start, but may name its GPU.
    let device = if device.is_empty() { name.unwrap_or_default() } else { device };
    vec![Finding::new(catalogue::NO_DATASHEET_PEAK, message).with("device", device).advise(advice)]
}

fn no_measured_peak(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let ceilings = analysis.mfu.ceilings.as_ref();
    // For a stated model, nothing was to be measured.
    if analysis.stated.is_some() || ceilings.is_none_or(|it| it.measured_flops_per_s.is_some()) {
        return vec![];
    }
    let message = "The device's ceiling was not measured, so utilisation of it is not available.";
    let advice = match analysis.subject {
        SubjectKind::Model | SubjectKind::Part => "Let the run finish: ceilings are measured last.",
        SubjectKind::Command => "Have the command write its ceilings to standard output as events.",
        SubjectKind::Import => {
            "Compare with the datasheet: no capture has measured ceilings. A run of a model on \
             that device has them."
        }
    };
    vec![Finding::new(catalogue::NO_MEASURED_PEAK, message.to_owned()).advise(advice)]
}

/// A GPU of a name by one vendor that runs calls of the other.
fn gpu_name_doubted(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = trace.timeline.as_ref().filter(|it| !it.cuda_calls.sites().is_empty()) else {
        return vec![];
    };
    let (calls, other) = if nsys.calls_hip() { ("HIP", "NVIDIA") } else { ("CUDA", "AMD") };
    let gpus = &trace.environment.gpus;
    let is_other = gpus.iter().all(|it| it.name.trim().starts_with(other));
    let Some(name) = gpus.first().map(|it| it.name.trim()).filter(|_| is_other) else {
        return vec![];
    };
    let message = format!(
        "The capture names its GPU {name}, and it has calls of {calls}: one of the two is not of \
         this recording. Peaks, and figures that need them, are for the named GPU."
    );
    vec![
        Finding::new(catalogue::GPU_NAME_DOUBTED, message)
            .with("GPU", name)
            .with("calls", calls)
            .advise(
                "Check whether the host that recorded the file has the GPUs that the file names.",
            ),
    ]
}

fn no_kernel_data(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some((message, advice)) = why_no_kernels(analysis, trace) else { return vec![] };
    let captured = trace.timeline.as_ref().map_or("none", |_| "taken");
    vec![
        Finding::new(catalogue::NO_KERNEL_DATA, message)
            .with("nsys capture", captured)
            .advise(advice),
    ]
}

/// The reason for an empty kernel table and its remedy; `None` if it has rows.
pub fn why_no_kernels(analysis: &Analysis, trace: &Trace) -> Option<(String, &'static str)> {
    if !analysis.kernels.records.is_empty() {
        return None;
    }
    let on_cpu = analysis.is_on_cpu();
    let (message, advice) = if on_cpu {
        (
            "There is no kernel data: the model ran on the CPU, which launches no device kernels.",
            "Run on a host with an NVIDIA GPU, with model-runner built with --features cuda.",
        )
    } else if !analysis.graphs.is_empty() {
        (
            "There is no kernel data: CUDA graphs were traced as a whole, without the kernels \
             inside.",
            catalogue::GRAPHS_TRACED_WHOLE.advice.unwrap_or_default(),
        )
    } else if trace.timeline.as_ref().is_some_and(|it| !it.untimed.kernels.is_empty()) {
        (
            "There is no kernel data: no kernel of the capture has a valid time.",
            catalogue::WORK_UNTIMED.advice.unwrap_or_default(),
        )
    } else if analysis.coverage.iter().any(|it| it.launched > 0) {
        (
            "There is no kernel data: the capture has launches, and the kernels of none of them.",
            catalogue::KERNELS_LOST.advice.unwrap_or_default(),
        )
    } else if analysis.subject == SubjectKind::Import
        && records_runtime(trace)
        && !analysis.is_graph_capture()
    {
        (
            "There is no kernel data: CUDA was recorded, and the timeline contains no kernels.",
            "Record the process and the part of it that launch kernels on a GPU: nothing recorded \
             here did.",
        )
    } else {
        analysis.why_no_kernels(trace.timeline.is_some())
    };
    Some((message.to_owned(), advice))
}

/// True if CUDA was recorded: nsys was to record it, or the capture has calls or copies.
fn records_runtime(trace: &Trace) -> bool {
    trace.timeline.as_ref().is_some_and(|it| {
        let is_requested = it.requested.iter().any(|kind| kind == "Cuda");
        is_requested || !it.cuda_calls.is_empty() || !it.copies.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{
        environment::Gpu,
        framework::TimelineTool::{self, Nsys, Pytorch},
        timeline::{ApiCall, Timeline},
    };

    use super::*;
    use crate::roofline::mfu::Ceilings;

    fn message(subject: SubjectKind, gpu_name: &str) -> (String, Option<String>) {
        let ceilings = Ceilings {
            device: None,
            datasheet_flops_per_s: None,
            datasheet_bytes_per_s: None,
            datasheet_source: None,
            measured_flops_per_s: None,
            measured_bytes_per_s: None,
            datasheet_mhz: None,
            dtype: "bf16".into(),
        };
        let mut analysis = Analysis { subject, ..Analysis::default() };
        analysis.mfu.ceilings = Some(ceilings);
        let mut trace = Trace::default();
        trace.environment.gpus = vec![Gpu { name: gpu_name.into(), ..Gpu::default() }];
        let found = no_datasheet_peak(&analysis, &trace).remove(0);
        (found.message.clone(), found.advice.clone())
    }

    #[test]
    fn a_capture_that_does_not_name_its_gpu_is_called_so_with_a_remedy() {
        for name in ["", " "] {
            let (message, advice) = message(SubjectKind::Import, name);
            assert!(message.ends_with("the capture does not name its GPU."), "{message}");
            assert!(advice.is_some_and(|it| it.contains("TARGET_INFO_GPU")));
        }
        let (unread, advice) = message(SubjectKind::Command, "");
        assert!(unread.ends_with("the device's name could not be read."), "{unread}");
        assert!(advice.is_some_and(|it| it.contains("libnvidia-ml")));
        let (unknown, _) = message(SubjectKind::Import, "NVIDIA X1");
        assert!(unknown.ends_with("no bf16 peak is known for NVIDIA X1."), "{unknown}");
    }

    #[test]
    fn a_gpu_of_one_vendor_with_calls_of_the_other_is_doubted() {
        let found = |tool: TimelineTool, call: &str, gpus: &[&str]| {
            let strings = vec![call.to_owned()];
            let mut nsys = Timeline { tool, strings, ..Timeline::default() };
            let (name, global_tid, correlation_id) = (0, 1, 1);
            let call = ApiCall { name, start_ns: 0, end_ns: 1, global_tid, correlation_id };
            nsys.cuda_calls.push(call);
            let mut trace = Trace { timeline: Some(nsys), ..Trace::default() };
            let gpu = |name: &&str| Gpu { name: (*name).into(), ..Gpu::default() };
            trace.environment.gpus = gpus.iter().map(gpu).collect();
            !gpu_name_doubted(&Analysis::default(), &trace).is_empty()
        };
        let (h100, mi300) = ("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X");
        assert!(found(Pytorch, "hipGraphLaunch", &[h100]));
        assert!(found(Pytorch, "cudaLaunchKernel", &[mi300]));
        for (tool, call, gpus) in [
            (Pytorch, "hipGraphLaunch", &[mi300][..]),
            (Pytorch, "hipGraphLaunch", &[h100, mi300]),
            (Pytorch, "hipGraphLaunch", &[]),
            (Pytorch, "cudaLaunchKernel", &[h100]),
            (Nsys, "cudaLaunchKernel_v7000", &[h100]),
        ] {
            assert!(!found(tool, call, gpus), "{call} {gpus:?}");
        }
    }
}
