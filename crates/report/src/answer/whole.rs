//! Sentences on a capture without stages: its devices, kernels, copies and calls.

use std::cmp::Reverse;

use llmprof_analyze::{
    kernels::{KernelRecord, nsys_sums::RangeSum},
    stages::{NO_STAGE, StageTiming},
    stats::percent,
    timeline::device_totals::{DeviceTotals, TransferTotal},
};
use llmprof_core::{
    domain::{finding::catalogue, units::Nanos},
    trace::stage::{RangeNames, is_of_library},
};

use super::{
    AnswerRecords, busy_gpus,
    cited::{Cited, Row},
    on_findings::{
        unmarked_stages, why_excluded, why_left_out, why_no_kernels, why_no_stages,
        why_nothing_ran, why_unended, why_untimed,
    },
    runtime_calls,
};
use crate::{format::short_name, kernel_names::KernelNames};

/// Kinds of work, kernels and copies, that are listed.
const WORK: usize = 3;
/// Ranges that are listed.
const RANGES: usize = 3;
/// Min share of the launched work, percent, of ranges that can be a stage.
const STAGE_PCT: f64 = 10.0;
/// Min share of the recording, percent, of ranges that can be a stage.
const RECORDING_PCT: f64 = 10.0;
/// Least share of the busy time, percent, of copies that a sentence names.
const NAMED_PCT: f64 = 5.0;

pub fn sentences(records: &AnswerRecords) -> Vec<Cited> {
    let Some(totals) = records.device_totals.filter(|_| is_without_stages(records)) else {
        return vec![];
    };
    let called = runtime_calls::longest(records.calls);
    if records.on_cpu {
        return vec![];
    }
    if is_without_work(records, totals) {
        let none = Cited::words("The capture records no kernel, copy or graph of a GPU.");
        return std::iter::once(none).chain(called).collect();
    }
    let busy = busy_gpus::sentence(totals);
    let longest = records.longest_kernel.filter(|_| totals.busy_pct.is_some());
    let kernels = longest.and_then(|it| kernels(it, totals, &records.kernel_names));
    let kernels = kernels.map(|it| (totals.kernel_ms, it));
    let copies = totals.transfers.iter().filter_map(|it| Some((it.total_ms, copies(it, totals)?)));
    let mut work: Vec<(f64, Cited)> = kernels.into_iter().chain(copies).collect();
    work.sort_by(|a, b| b.0.total_cmp(&a.0));
    work.truncate(WORK);
    let work = work.into_iter().map(|it| it.1);
    busy.into_iter().chain(work).chain(called).collect()
}

/// The kernels, and the one that takes most of their time.
fn kernels(longest: &KernelRecord, totals: &DeviceTotals, names: &KernelNames) -> Option<Cited> {
    let row = Row::of("kernels_topk")
        .with("stage", &longest.stage)
        .with("kernel_name", &longest.kernel_name)
        .with("full_name", &longest.full_name);
    let all = Row::of("aggregates");
    let all_ms = all.figure("devices.kernel_ms", totals.kernel_ms);
    let launches = all.count("devices.kernels", totals.kernels);
    let share_of_all = row.figure("total_ms", longest.total_ms).share_of(&all_ms)?.text();
    let name = Cited::name(short_name(&names.of_record(longest)));
    if totals.kernels_before == 0 || totals.kernels_before == totals.kernels {
        let words = match totals.kernels_before {
            0 => "Kernels take {} ms in {}{}: {} of it in {}.",
            _ => "Kernels take {} ms in {} from before the recording{}: {} of it in {}.",
        };
        return Some(Cited::of(
            words,
            [all_ms.short(), launches.quantity("launch"), over_gpus(totals), share_of_all, name],
        ));
    }
    let before_ms = all.figure("devices.kernel_before_ms", totals.kernel_before_ms);
    let before = all.count("devices.kernels_before", totals.kernels_before);
    Some(Cited::of(
        "Kernels take {} ms in {}, and {} ms in {} from before the recording{}: {} of both in {}.",
        [
            all_ms.minus(&before_ms).short(),
            launches.minus(&before).quantity("launch"),
            before_ms.short(),
            before.quantity("launch"),
            over_gpus(totals),
            share_of_all,
            name,
        ],
    ))
}

/// Words for a sum over several GPUs.
fn over_gpus(totals: &DeviceTotals) -> Cited {
    let devices = Row::of("aggregates").count("devices.devices", totals.devices).quantity("GPU");
    let is_sum = totals.devices > 1;
    if is_sum { Cited::of(", summed over {}", [devices]) } else { Cited::default() }
}

/// Copies that take much of the busy time.
fn copies(it: &TransferTotal, totals: &DeviceTotals) -> Option<Cited> {
    percent(it.total_ms, totals.busy_ms).filter(|pct| *pct >= NAMED_PCT)?;
    let what = match it.kind.as_str() {
        "set" => Cited::words("Filling memory"),
        "other" => Cited::words("Copying between GPUs or other places"),
        kind => Cited::of("Copying {}", [Cited::name(kind.replace('_', " "))]),
    };
    let row = Row::of("aggregates.devices.transfers").with("kind", &it.kind);
    Some(Cited::of(
        "{} takes {} ms{}: {} in {}.",
        [
            what,
            row.figure("total_ms", it.total_ms).short(),
            over_gpus(totals),
            row.count("bytes", it.bytes).bytes(),
            row.count("calls", it.calls).quantity("operation"),
        ],
    ))
}

/// The reason why the busy time of a capture without stages is unknown.
pub fn busy_unknown(records: &AnswerRecords) -> Option<String> {
    let totals = records.device_totals.filter(|_| is_without_stages(records))?;
    let why = why_untimed(records.findings).filter(|_| totals.kernels > 0)?;
    totals.busy_pct.is_none().then(|| format!("How much the GPU works is unknown. {why}"))
}

/// The figures that a capture without stages leaves unknown, and their remedy.
pub fn unknown(records: &AnswerRecords) -> Option<String> {
    let totals = records.device_totals.filter(|_| is_without_stages(records))?;
    if is_without_work(records, totals) && !records.on_cpu {
        let remedy = match records.calls.is_empty() {
            false => {
                "The capture has calls of the GPU's runtime and not the work that they launch. \
                 If an older nsys exported its report, export it again with the nsys that recorded \
                 it; otherwise record a part in which kernels run."
            }
            true => why_no_kernels(records.findings).unwrap_or(
                "Record the CUDA API (`nsys profile -t cuda,nvtx`, or ProfilerActivity.CUDA) in \
                 the process that launches the work.",
            ),
        };
        let unknown = || format!("What the GPU did is unknown. {remedy}");
        return Some(why_nothing_ran(records.findings).unwrap_or_else(unknown));
    }
    let reasons = [why_excluded, why_unended, why_left_out];
    if let Some(why) = reasons.iter().find_map(|it| it(records.findings)) {
        return Some(format!("How long prefill and decode take is unknown. {why}"));
    }
    let work = totals.kernels + totals.whole_graphs;
    let names = longest_ranges(records.ranges, work, totals.window_ms);
    let (stages, name) = unmarked_stages(records.findings);
    let remedy = match names.as_slice() {
        [] => why_no_stages(records.findings).to_owned(),
        names => format!(
            "Name their ranges: `--stage {name}=RANGE`, or `stage` of an import. Longest ranges: \
             {}.",
            names.join(", ")
        ),
    };
    Some(format!("How long {stages} take is unknown: the capture does not mark them. {remedy}"))
}

/// Sums over the ranges that one rule names.
struct RangeGroup<'a> {
    names: &'a RangeNames,
    ns: i64,
    projected_ns: i64,
    gpu_ops: u64,
}

/// The ranges of most time that can be a stage, as a rule can name them: numbered ones by their
/// pattern, none of a library, none that launches little of the work or takes a small part of the
/// recording (on the host or on the GPU), and none whose name is too long to be shown.
fn longest_ranges(ranges: &[RangeSum], work: u64, window_ms: f64) -> Vec<String> {
    let is_candidate = |it: &&RangeSum| !it.name.is_empty() && !is_of_library(&it.domain, &it.name);
    let candidates: Vec<&RangeSum> = ranges.iter().filter(is_candidate).collect();
    let named = candidates.iter().map(|it| (it.domain.as_str(), it.name.as_str()));
    let (groups, group_of) = RangeNames::grouped(named);
    let group = |names| RangeGroup { names, ns: 0, projected_ns: 0, gpu_ops: 0 };
    let mut sums: Vec<RangeGroup> = groups.iter().map(group).collect();
    for (it, at) in candidates.iter().zip(group_of) {
        let sum = &mut sums[at];
        let projected_ns = it.projected_ns.as_ref().map_or(0, |ns| ns.total);
        sum.ns = sum.ns.saturating_add(it.ns.total);
        sum.projected_ns = sum.projected_ns.saturating_add(projected_ns);
        sum.gpu_ops = sum.gpu_ops.saturating_add(it.gpu_ops);
    }
    sums.retain(|it| {
        let ns = it.ns.max(it.projected_ns);
        percent(Nanos(ns).as_ms(), window_ms).is_none_or(|it| it >= RECORDING_PCT)
    });
    // Without launches in any range, other threads launch the work of all.
    if ranges.iter().any(|it| it.gpu_ops > 0) {
        let is_much = |ops: u64| percent(ops as f64, work as f64).is_none_or(|it| it >= STAGE_PCT);
        sums.retain(|it| is_much(it.gpu_ops));
    }
    sums.sort_by_key(|it| Reverse(it.ns));
    let is_shown = |it: &&RangeNames| short_name(&it.text()) == it.text();
    let named = sums.iter().map(|it| it.names).filter(is_shown);
    named.take(RANGES).map(RangeNames::in_sentence).collect()
}

/// True if the capture has no work of a GPU, whether its time is valid or not.
fn is_without_work(records: &AnswerRecords, totals: &DeviceTotals) -> bool {
    let is_untimed = || records.findings.iter().any(|it| it.id == catalogue::WORK_UNTIMED);
    totals.devices == 0 && totals.untimed_kernels == 0 && !is_untimed()
}

pub fn is_without_stages(records: &AnswerRecords) -> bool {
    let stages: &[StageTiming] = records.stages;
    stages.is_empty() && records.ledger.stages.iter().all(|it| it.stage == NO_STAGE)
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::timeline::duration_stats::DurationStats;
    use llmprof_core::trace::stage::StageRule;

    use super::*;
    use crate::answer::stored_answer;

    #[test]
    fn copies_on_several_gpus_are_stated_as_their_sum() {
        let transfer = TransferTotal {
            kind: "host_to_device".into(),
            calls: 9,
            bytes: 2_000_000_000,
            total_ms: 1842.0,
        };
        for (devices, over) in [(0, ""), (1, ""), (2, ", summed over 2 GPUs")] {
            let totals = DeviceTotals { devices, busy_ms: 1900.0, ..DeviceTotals::default() };
            assert_eq!(
                copies(&transfer, &totals).unwrap().as_str(),
                format!("Copying host to device takes 1,842 ms{over}: 2.00 GB in 9 operations.")
            );
        }
    }

    #[test]
    fn kernels_that_were_launched_before_the_recording_are_not_counted_as_its_launches() {
        let sentence = |kernels_before: u64, kernel_before_ms: f64| {
            let longest = serde_json::json!({
                "kernel_name": "gemm", "full_name": "gemm", "name_variants": 1, "class": "gemm",
                "engine": null, "device": 0, "stage": "", "total_ms": 12.0, "calls": 241,
                "mean_ms": 0.05, "grid": [1, 1, 1], "block": [32, 1, 1], "registers": 0,
                "launch_configs": 1, "share_pct": null, "launch_ns": { "count": 2,
                "total": 9, "mean": 4.5, "median": 4.5, "min": 4, "max": 5, "std": null }
            });
            let totals = DeviceTotals {
                kernels: 1465,
                kernel_ms: 48.0,
                kernels_before,
                kernel_before_ms,
                ..DeviceTotals::default()
            };
            let longest = serde_json::from_value(longest).unwrap();
            kernels(&longest, &totals, &KernelNames::default()).unwrap().as_str().to_owned()
        };
        let whole = "Kernels take 48.0 ms in 1,465 launches: 25 % of it in gemm.";
        assert_eq!(sentence(0, 0.0), whole);
        assert_eq!(sentence(1465, 48.0), whole.replace("es:", "es from before the recording:"));
        assert_eq!(
            sentence(436, 13.5),
            "Kernels take 34.5 ms in 1,029 launches, and 13.5 ms in 436 launches from before the \
             recording: 25 % of both in gemm."
        );
    }

    #[test]
    fn a_capture_whose_only_step_is_cut_has_its_remedy_once_and_offers_no_range() {
        let message = "1 of 1 step is left out of all times: 1 cut by the start or the end of the \
                       recording.";
        let report = serde_json::json!({
            "aggregates": {"devices": {
                "devices": 1, "window_ms": 500.0, "busy_ms": 25.0, "busy_pct": 5.0, "kernels": 16,
                "kernel_ms": 20.0, "whole_graphs": 0, "transfers": []
            }},
            "ranges": [{
                "domain": "", "name": "vllm steps: prefill", "style": "push_pop", "gpu_ops": 16,
                "ns": {"count": 1, "total": 5, "mean": 5.0, "median": 5.0, "min": 5, "max": 5,
                    "std": null}
            }],
            "findings": [{
                "id": "steps_left_out", "severity": "warning", "message": message,
                "advice": "Record it whole.", "evidence": {}
            }],
        });
        let answer = stored_answer(&serde_json::to_vec(&report).unwrap()).unwrap().remove(0);
        let expected =
            format!("How long prefill and decode take is unknown. {message} Record it whole.");
        assert_eq!(answer.unknown, [expected]);
        assert!(answer.overhead.iter().all(|it| !it.as_str().contains("left out")), "stated once");
    }

    #[test]
    fn numbered_ranges_are_offered_once_by_a_pattern_that_a_rule_accepts() {
        let range = |domain: &str, name: String, ns: i64| RangeSum {
            domain: domain.into(),
            name,
            style: "push_pop".into(),
            ns: DurationStats::of(&[ns]),
            projected_ns: None,
            gpu_ops: 0,
        };
        let steps = (0..120).map(|at| range("vllm", format!("step_{at}"), 10));
        let others = [
            range("", "generate".into(), 5000),
            range("", "x".repeat(60), 4000),
            range("", String::new(), 3000),
            range("CCCL", "cub::DeviceScan".into(), 2000),
            range("", "load".into(), 1000),
            range("", "tokenize".into(), 900),
        ];
        let ranges: Vec<RangeSum> = steps.chain(others).collect();
        let names = longest_ranges(&ranges, 100, 0.005);
        assert_eq!(names, ["`generate`", "`step_*@vllm` (120 names)", "`load`"]);
        let rule = "decode_all=step_*@vllm".parse::<StageRule>().unwrap();
        assert!(rule.matches("step_119", "vllm") && !rule.matches("step_119_attention", "vllm"));
    }

    #[test]
    fn ranges_of_libraries_and_ranges_with_little_of_the_work_are_not_offered_as_stages() {
        let range = |domain: &str, name: &str, gpu_ops: u64| RangeSum {
            domain: domain.into(),
            name: name.into(),
            style: "push_pop".into(),
            ns: DurationStats::of(&[1000]),
            projected_ns: None,
            gpu_ops,
        };
        let ranges = [
            range("", "aten::to", 90),
            range("", "flash_attn::_flash_attn_forward", 90),
            range("", "ProfilerStep", 100),
            range("", "FSDP::pre_forward (blocks.15)", 90),
            range("NCCL", "ncclSend", 90),
            range("", "FlashAttnFunc", 2),
            range("", "load_weights", 0),
        ];
        assert!(longest_ranges(&ranges, 100, 0.005).is_empty());
        let idle = [range("", "aten::to", 90), range("", "detach_", 0)];
        assert!(longest_ranges(&idle, 100, 0.005).is_empty(), "no other thread launches the work");
        let own = [("Model::forward", 60), ("token_1", 5), ("token_2", 5)];
        let own = own.map(|(name, ops)| range("", name, ops));
        let all: Vec<RangeSum> = ranges.into_iter().chain(own).collect();
        assert_eq!(longest_ranges(&all, 100, 0.005), ["`token_*` (2 names)", "`Model::forward`"]);
    }

    #[test]
    fn ranges_that_take_a_small_part_of_the_recording_are_not_offered_as_stages() {
        let names = |host_ns: i64, gpu_ns: Option<i64>, window_ms: f64| {
            let range = |at: u32| RangeSum {
                domain: String::new(),
                name: format!("step_{at}"),
                style: "push_pop".into(),
                ns: DurationStats::of(&[host_ns]),
                projected_ns: gpu_ns.map(|ns| DurationStats::of(&[ns])),
                gpu_ops: 50,
            };
            longest_ranges(&[range(0), range(1)], 100, window_ms)
        };
        for (host_ns, gpu_ns, is_offered) in [
            (1_000_000, None, false),
            (4_900_000, Some(4_900_000), false),
            (5_000_000, None, true),
            (1_000_000, Some(5_000_000), true),
        ] {
            let offered = names(host_ns, gpu_ns, 100.0);
            assert_eq!(!offered.is_empty(), is_offered, "two of {host_ns} {gpu_ns:?} in 100 ms");
        }
        assert!(!names(1, None, 0.0).is_empty(), "the length of the recording is unknown");
    }
}
