//! Percentages without a bound.

/// Percentages that may exceed 100 or be negative, with the reason. Rules of their own remove uses
/// of a ceiling above 101 % (`mfu_impossible`, `roofline_impossible`, `ceiling_surpassed`).
pub const UNBOUNDED: &[(&str, &str)] = &[
    ("Change.change_pct", "a figure may more than double between two runs"),
    ("ChangePoint.change_pct", "a figure may more than double within a series"),
    ("RunSummary.change_pct", "a figure may more than double between two runs"),
    ("SeriesView.noise_pct", "runs of one build may differ by more than their mean"),
    ("GateFigure.noise_pct", "runs of one build may differ by more than their mean"),
    ("GateFigure.threshold_pct", "a setting"),
    ("GateFigure.worse_pct", "a figure may more than double between two builds"),
    ("GateFigure.bound_pct", "a bound of `worse_pct`"),
    ("GateFigure.detectable_pct", "a multiple of the noise"),
    (
        "OverheadRecord.overhead_pct",
        "tracing may more than double a time, and noise may exceed its effect",
    ),
    ("AlignmentKernelSide.share_pct", "a kernel's time over a sum that contains it"),
    ("AlignmentPower.throttled_pct", "StagePower.throttled_pct, which is bounded"),
    ("HostLoad.cpu_wait_pct", "limited to 100 % where it is measured"),
    ("HostLoad.busy_pct", "a setting"),
    ("StagePower.reading_pct", "a reading may last longer than a stage"),
    ("MfuRecord.datasheet_pct", "removed above 101 % by the rule mfu_impossible"),
    ("SweepRow.mfu_pct", "MfuRecord.datasheet_pct of its run"),
    ("MfuRecord.measured_pct", "removed above 101 % by the rule mfu_impossible"),
    ("MfuRecord.clocked_pct", "removed above 101 % by the rule mfu_impossible"),
    (
        "MfuRecord.datasheet_bandwidth_pct",
        "removed above 101 % by the rule operand_rate_above_bandwidth",
    ),
    ("MfuRecord.measured_bandwidth_pct", "caches may serve operands, counted per call"),
    ("MfuRecord.clocked_bandwidth_pct", "caches may serve operands, counted per call"),
    ("OperatorMfu.datasheet_pct", "removed above 101 % by the rule mfu_impossible"),
    ("OperatorMfu.measured_pct", "removed above 101 % by the rule ceiling_surpassed"),
    ("OperatorMfu.clocked_pct", "removed above 101 % by the rule mfu_impossible"),
    (
        "OperatorMfu.datasheet_bandwidth_pct",
        "removed above 101 % by the rule operand_rate_above_bandwidth",
    ),
    ("OperatorMfu.measured_bandwidth_pct", "caches may serve operands, counted per call"),
    ("OperatorMfu.clocked_bandwidth_pct", "caches may serve operands, counted per call"),
    ("GemmRecord.ceiling_pct", "a ceiling that would be exceeded is not used"),
    ("RooflinePoint.datasheet_pct", "removed above 101 % by the rule roofline_impossible"),
    (
        "RooflinePoint.measured_pct",
        "a measured product is not a physical limit: another kernel may exceed it",
    ),
];
