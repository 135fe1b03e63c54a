//! Sampled metrics of kernels, stages and operators, and the coverage of the samples.

use llmprof_analyze::{
    Analysis,
    sampled::{
        coverage::{GpuSampleCoverage, SampleProblem},
        figures::{SampledKernel, SampledOperator, SampledStage, SampledStageValue, SampledValue},
    },
};
use llmprof_core::{domain::state::Step, trace::gpu_metrics::GpuMetric};

use super::{
    report_table::ReportTable,
    run_facts::or_step_message,
    schema::{TableColumn, count, flag, id, millis, number, percent, size, summed, text},
};
use crate::{
    RunFacts,
    format::{HALF_INTERVAL, with_interval},
};

/// A value that samples do not resolve.
const UNRESOLVED: &str = "not resolved";

const SHOWN: [&str; 13] = [
    "kernel_name",
    "stage",
    "grid",
    "block",
    "mean_ms",
    "share_pct",
    "samples",
    "metrics.sms_active.pct",
    "metrics.sm_issue.pct",
    "metrics.tensor_active.pct",
    "metrics.warps_in_flight.pct",
    "metrics.dram_read.pct",
    "metrics.dram_write.pct",
];
const SHOWN_OF_STAGES: [&str; 10] = [
    "stage",
    "kernel_ms",
    "samples",
    "sm_clock_mhz",
    "metrics.sms_active.pct",
    "metrics.tensor_active.pct",
    "metrics.dram_read.pct",
    "metrics.dram_write.pct",
    "metrics.dram_read.alone_pct",
    "metrics.dram_read.grouped_pct",
];
const SHOWN_OF_OPERATORS: [&str; 7] = [
    "path",
    "stage",
    "total_ms",
    "metrics.sms_active.pct",
    "metrics.tensor_active.pct",
    "metrics.dram_read.pct",
    "metrics.dram_write.pct",
];

/// Calls a macro for each metric that is a percentage: variant, path of its figures, head.
macro_rules! each_metric {
    ($columns:ident, $of:ident) => {
        $columns!($of, SmsActive, "metrics.sms_active", "SMs active");
        $columns!($of, SmIssue, "metrics.sm_issue", "SM issue");
        $columns!($of, TensorActive, "metrics.tensor_active", "Tensor");
        $columns!($of, WarpsInFlight, "metrics.warps_in_flight", "Warps");
        $columns!($of, DramRead, "metrics.dram_read", "DRAM reads");
        $columns!($of, DramWrite, "metrics.dram_write", "DRAM writes");
        $columns!($of, PcieRx, "metrics.pcie_rx", "PCIe RX");
        $columns!($of, PcieTx, "metrics.pcie_tx", "PCIe TX");
    };
}

/// Columns of [`SampledKernel`].
pub fn columns() -> Vec<TableColumn<SampledKernel>> {
    let mut columns: Vec<TableColumn<SampledKernel>> = vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        id("device", "GPU", |it| it.device.into()),
        text("kernel_name", "Kernel", |it| (&it.kernel_name).into()),
        size("grid", "Grid", |it| it.grid.into()),
        size("block", "Block", |it| it.block.into()),
        summed(count("calls", "Calls", |it| it.calls.into())),
        summed(millis("total_ms", "Total ms", |it| it.total_ms.into())),
        millis("mean_ms", "Mean ms", |it| it.mean_ms.into()),
        percent("share_pct", "Share of stage", |it| it.share_pct.into()),
        count("samples", "Samples", |it| it.samples.into()),
        flag("is_concurrent", "Concurrent", |it| it.is_concurrent.into()),
    ];
    macro_rules! of_metric {
        ($columns:ident, $metric:ident, $path:literal, $title:literal) => {
            $columns.extend([
                percent(concat!($path, ".pct"), $title, |it: &SampledKernel| {
                    it.metrics.get(&GpuMetric::$metric).map(|it| it.pct).into()
                })
                .shown(|it| shown(it.metrics.get(&GpuMetric::$metric))),
                number(concat!($path, ".half_width"), "±", 1, |it: &SampledKernel| {
                    it.metrics.get(&GpuMetric::$metric).map(|it| it.half_width).into()
                }),
                id(concat!($path, ".group"), "Group", |it: &SampledKernel| {
                    it.metrics.get(&GpuMetric::$metric).and_then(|it| it.group).into()
                }),
                flag(concat!($path, ".is_group_mean"), "Group mean", |it: &SampledKernel| {
                    it.metrics.get(&GpuMetric::$metric).map(|it| it.is_group_mean).into()
                }),
            ])
        };
    }
    each_metric!(of_metric, columns);
    columns
}

/// Columns of [`SampledStage`].
pub fn stage_columns() -> Vec<TableColumn<SampledStage>> {
    let mut columns: Vec<TableColumn<SampledStage>> = vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        id("device", "GPU", |it| it.device.into()),
        millis("kernel_ms", "Kernel ms", |it| it.kernel_ms.into()),
        count("samples", "Samples", |it| it.samples.into()),
        number("sm_clock_mhz", "SM MHz", 0, |it| it.sm_clock_mhz.into()),
    ];
    macro_rules! of_metric {
        ($columns:ident, $metric:ident, $path:literal, $title:literal) => {
            $columns.extend([
                percent(concat!($path, ".pct"), $title, |it: &SampledStage| {
                    it.metrics.get(&GpuMetric::$metric).map(|it| it.pct).into()
                })
                .shown(|it| shown_of_stage(it.metrics.get(&GpuMetric::$metric))),
                number(concat!($path, ".half_width"), "±", 1, |it: &SampledStage| {
                    it.metrics.get(&GpuMetric::$metric).map(|it| it.half_width).into()
                }),
                percent(concat!($path, ".alone_pct"), "Resolved alone", |it: &SampledStage| {
                    it.metrics.get(&GpuMetric::$metric).and_then(|it| it.alone_pct).into()
                }),
                percent(concat!($path, ".grouped_pct"), "In groups", |it: &SampledStage| {
                    it.metrics.get(&GpuMetric::$metric).and_then(|it| it.grouped_pct).into()
                }),
                percent(concat!($path, ".unresolved_pct"), "Not resolved", |it: &SampledStage| {
                    it.metrics.get(&GpuMetric::$metric).and_then(|it| it.unresolved_pct).into()
                }),
            ])
        };
    }
    each_metric!(of_metric, columns);
    columns
}

/// Columns of [`SampledOperator`].
pub fn operator_columns() -> Vec<TableColumn<SampledOperator>> {
    let mut columns: Vec<TableColumn<SampledOperator>> = vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        id("device", "GPU", |it| it.device.into()),
        text("path", "Operator", |it| (&it.path).into()),
        summed(millis("total_ms", "Total ms", |it| it.total_ms.into())),
    ];
    macro_rules! of_metric {
        ($columns:ident, $metric:ident, $path:literal, $title:literal) => {
            $columns.extend([
                percent(concat!($path, ".pct"), $title, |it: &SampledOperator| {
                    it.metrics.get(&GpuMetric::$metric).map(|it| it.pct).into()
                })
                .shown(|it| shown(it.metrics.get(&GpuMetric::$metric))),
                number(concat!($path, ".half_width"), "±", 1, |it: &SampledOperator| {
                    it.metrics.get(&GpuMetric::$metric).map(|it| it.half_width).into()
                }),
            ])
        };
    }
    each_metric!(of_metric, columns);
    columns
}

/// Columns of [`GpuSampleCoverage`].
pub fn coverage_columns() -> Vec<TableColumn<GpuSampleCoverage>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        id("device", "GPU", |it| it.device.into()),
        id("rate_hz", "Rate Hz", |it| it.rate_hz.into()),
        millis("window_ms", "Device ms", |it| it.window_ms.into()),
        count("expected", "Expected", |it| it.expected.into()),
        count("samples", "Samples", |it| it.samples.into()),
        count("gaps", "Gaps", |it| it.gaps.into()),
        millis("longest_gap_ms", "Longest gap ms", |it| it.longest_gap_ms.into()),
        percent("covered_pct", "Covered", |it| it.covered_pct.into()),
        flag("is_spanned", "Spanned", |it| it.is_spanned.into()),
        text("problem", "Problem", |it| it.problem.map(SampleProblem::as_str).into()),
    ]
}

fn shown(value: Option<&SampledValue>) -> String {
    let Some(value) = value else { return UNRESOLVED.into() };
    let group = value.group.map(|group| match value.is_group_mean {
        true => format!(" (mean of group {group})"),
        false => format!(" (in group {group})"),
    });
    let group = group.unwrap_or_default();
    with_interval(value.pct, value.half_width) + &group
}

fn shown_of_stage(value: Option<&SampledStageValue>) -> String {
    value.map_or_else(|| UNRESOLVED.into(), |it| with_interval(it.pct, it.half_width))
}

/// Sampled metrics by kernel, longest first.
pub fn sampled_kernels(facts: &RunFacts, analysis: &Analysis) -> ReportTable {
    let caption = format!(
        "Metrics of the GPU sampled by nsys without replay, percent of the device's peak; \
         {HALF_INTERVAL}. Launches of one kernel and grid below 3/4 or above 4/3 of their mean \
         duration have a row of their own. For adjacent kernels that samples cannot separate, the \
         mean of their group is shown, which includes the members with a value of their own (in \
         group); a value with an interval wider than ± 10 is not resolved."
    );
    let table = ReportTable::of(
        "sampled_metrics",
        "Sampled Metrics",
        caption,
        (&columns(), &SHOWN),
        &analysis.sampled.kernels,
    )
    .about(analysis.sampled.kernels.iter().map(|it| (it.stage.as_str(), it.kernel_name.as_str())));
    or_step_message(table, facts, Step::GpuMetrics, "No metrics were sampled.")
}

/// Sampled metrics by stage.
pub fn sampled_stages(analysis: &Analysis) -> ReportTable {
    let caption = format!(
        "Means while kernels of the stage run; {HALF_INTERVAL}. Resolved alone and in groups: \
         shares of the kernel time with a value of DRAM reads."
    );
    ReportTable::of(
        "sampled_stages",
        "Sampled Metrics by Stage",
        caption,
        (&stage_columns(), &SHOWN_OF_STAGES),
        &analysis.sampled.stages,
    )
}

/// Sampled metrics by operator.
pub fn sampled_operators(analysis: &Analysis) -> ReportTable {
    let caption = format!(
        "Means over the kernels of an operator, layers rolled up, where the interval is within \
         ± 10; {HALF_INTERVAL}."
    );
    ReportTable::of(
        "sampled_operators",
        "Sampled Metrics by Operator",
        caption,
        (&operator_columns(), &SHOWN_OF_OPERATORS),
        &analysis.sampled.operators,
    )
}
