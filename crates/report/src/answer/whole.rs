//! Sentences on a capture without stages: its devices, kernels, copies and calls.

use llmprof_analyze::{stages::StageTiming, stats::percent};

use super::AnswerRecords;
use crate::format::{bytes, figure, quantity, share, short_name};

/// Ranges that are listed.
const RANGES: usize = 3;
/// Least share of the busy time, percent, of copies that a sentence names.
const NAMED_PCT: f64 = 5.0;

pub fn sentences(records: &AnswerRecords) -> Vec<String> {
    let Some(totals) = records.device_totals.filter(|_| is_without_stages(records)) else {
        return vec![];
    };
    if totals.devices == 0 {
        return vec!["The capture records no kernel, copy or graph of a GPU.".into()];
    }
    let gpus = match totals.devices {
        1 => "The GPU works".to_owned(),
        gpus => format!("{gpus} GPUs work"),
    };
    let busy = totals.busy_pct.map(|pct| {
        format!(
            "{gpus} {} of the {} ms from the first recorded work to the last.",
            share(pct),
            figure(totals.window_ms)
        )
    });
    let kernel = records.longest_kernel.and_then(|it| {
        let pct = percent(it.total_ms, totals.kernel_ms)?;
        Some(format!(
            "The kernel {} takes {} of the kernel time, in {}.",
            short_name(&it.kernel_name),
            share(pct),
            quantity(it.calls, "launch")
        ))
    });
    let copied = totals.transfers.first().and_then(|it| {
        percent(it.total_ms, totals.busy_ms).filter(|pct| *pct >= NAMED_PCT)?;
        let what = match it.kind.as_str() {
            "set" => "Filling memory".to_owned(),
            "other" => "Copying unified memory or between other places".to_owned(),
            kind => format!("Copying {}", kind.replace('_', " ")),
        };
        Some(format!(
            "{what} takes {} ms: {} in {}.",
            figure(it.total_ms),
            bytes(it.bytes),
            quantity(it.calls, "operation")
        ))
    });
    let called = records.longest_call.map(|it| {
        format!(
            "The host spends most time in {}: {} ms in {}.",
            without_version(&it.name),
            figure(it.ns.total as f64 / 1e6),
            quantity(it.ns.count, "call")
        )
    });
    [busy, kernel, copied, called].into_iter().flatten().collect()
}

/// The figures that a capture without stages leaves unknown, and their remedy.
pub fn unknown(records: &AnswerRecords) -> Option<String> {
    let totals = records.device_totals.filter(|_| is_without_stages(records))?;
    if totals.devices == 0 {
        return Some(
            "What the GPU did is unknown: record the CUDA API (`nsys profile -t cuda,nvtx`, or \
             ProfilerActivity.CUDA) in the process that launches the work."
                .into(),
        );
    }
    let names: Vec<String> =
        records.ranges.iter().take(RANGES).map(|it| short_name(&it.name)).collect();
    let remedy = match names.as_slice() {
        [] => "The capture has no ranges: have the program open NVTX ranges called prefill and \
               decode_step."
            .to_owned(),
        names => format!(
            "Name the ranges that are: `--stage prefill=RANGE`, or `stage` of an import. \
             Longest ranges: {}.",
            names.join(", ")
        ),
    };
    Some(format!(
        "How long prefill and decode take is unknown: no range of the capture is a stage. \
         {remedy}"
    ))
}

fn is_without_stages(records: &AnswerRecords) -> bool {
    let stages: &[StageTiming] = records.stages;
    stages.is_empty() && records.ledger.stages.is_empty()
}

/// A function of CUDA without the version that the profiler adds to its name.
fn without_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((name, version)) if version.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => name,
    }
}
