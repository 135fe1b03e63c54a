//! Collective operations of several ranks, the ranks, and their skew by step.

use llmprof_analyze::{
    Analysis,
    collectives::{CollectiveRecord, RankRecord, RankVerdict, StepSkew},
};

use super::{
    report_table::ReportTable,
    schema::{TableColumn, bytes, bytes_per_s, count, id, micros, millis, percent, summed, text},
};

const SHOWN: [&str; 13] = [
    "stage",
    "group",
    "kind",
    "bytes",
    "ranks",
    "calls",
    "kernel_ms",
    "skew_us",
    "wait_us",
    "transfer_us",
    "bus_bytes_per_s",
    "slowest_rank",
    "verdict",
];
const SHOWN_RANKS: [&str; 9] = [
    "group",
    "rank",
    "process",
    "device",
    "calls",
    "kernel_ms",
    "wait_ms",
    "transfer_ms",
    "times_last",
];

/// Columns of [`CollectiveRecord`].
pub fn columns() -> Vec<TableColumn<CollectiveRecord>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("group", "Group", |it| (&it.group).into()),
        text("kind", "Operation", |it| it.kind.as_str().into()),
        text("dtype", "Dtype", |it| (&it.dtype).into()),
        bytes("bytes", "Size", |it| it.bytes.into()),
        count("ranks", "Ranks", |it| it.ranks.into()),
        summed(count("calls", "Calls", |it| it.calls.into())),
        summed(count("joined", "Joined", |it| it.joined.into())),
        summed(millis("kernel_ms", "Kernel ms", |it| it.kernel_ms.into())),
        micros("skew_us", "Skew us", |it| it.skew_us.into()),
        micros("wait_us", "Wait us", |it| it.wait_us.into()),
        micros("transfer_us", "Transfer us", |it| it.transfer_us.into()),
        bytes_per_s("algorithm_bytes_per_s", "Algorithm bandwidth", |it| {
            it.algorithm_bytes_per_s.into()
        }),
        bytes_per_s("bus_bytes_per_s", "Bus bandwidth", |it| it.bus_bytes_per_s.into()),
        id("slowest_rank", "Slowest rank", |it| it.slowest_rank.into()),
        percent("slowest_pct", "Slowest %", |it| it.slowest_pct.into()),
        text("verdict", "Verdict", |it| it.verdict.map(RankVerdict::as_str).into()),
    ]
}

/// Columns of [`RankRecord`].
pub fn rank_columns() -> Vec<TableColumn<RankRecord>> {
    vec![
        text("group", "Group", |it| (&it.group).into()),
        id("rank", "Rank", |it| it.rank.into()),
        id("process", "Process", |it| it.process.into()),
        id("device", "Device", |it| it.device.into()),
        summed(count("calls", "Calls", |it| it.calls.into())),
        summed(count("joined", "Joined", |it| it.joined.into())),
        summed(millis("kernel_ms", "Kernel ms", |it| it.kernel_ms.into())),
        summed(millis("wait_ms", "Wait ms", |it| it.wait_ms.into())),
        summed(millis("transfer_ms", "Transfer ms", |it| it.transfer_ms.into())),
        summed(count("times_last", "Times last", |it| it.times_last.into())),
        micros("clock_offset_us", "Clock offset us", |it| it.clock_offset_us.into()),
        micros("clock_spread_us", "Offset's spread us", |it| it.clock_spread_us.into()),
    ]
}

/// Columns of [`StepSkew`].
pub fn step_columns() -> Vec<TableColumn<StepSkew>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("group", "Group", |it| (&it.group).into()),
        id("step", "Step", |it| it.step.into()),
        summed(count("joined", "Joined", |it| it.joined.into())),
        micros("skew_us", "Skew us", |it| it.skew_us.into()),
        summed(millis("wait_ms", "Wait ms", |it| it.wait_ms.into())),
        summed(millis("transfer_ms", "Transfer ms", |it| it.transfer_ms.into())),
        id("slowest_rank", "Slowest rank", |it| it.slowest_rank.into()),
    ]
}

/// Operations by group, kind and size.
pub fn collectives(analysis: &Analysis) -> ReportTable {
    let caption = "Collective operations by stage, group, kind and size. Skew, wait (mean over \
                   the ranks, until the last one starts) and transfer (from then on) are medians. \
                   The bus bandwidth is NCCL's: size by transfer, times the factor of the kind.";
    let records = &analysis.collectives.records;
    ReportTable::of("collectives", "Collective Operations", caption, (&columns(), &SHOWN), records)
}

/// Ranks by group.
pub fn ranks(analysis: &Analysis) -> ReportTable {
    let caption = "Time of each rank in collective operations, outside the warm-up: waiting until \
                   the last rank started, and transfer from then on.";
    let records = &analysis.collectives.ranks;
    ReportTable::of("ranks", "Ranks", caption, (&rank_columns(), &SHOWN_RANKS), records)
}
