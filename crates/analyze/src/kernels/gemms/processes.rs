//! GEMMs of a command's processes. Their logs have no stages; the timeline gives each call the
//! stage of its kernel.

use std::collections::BTreeMap;

use llmprof_core::trace::gemm::{GemmCall, GemmShape, ProcessGemms};

use super::{
    ChosenAlgorithm, Gemms,
    join::{JoinedCall, TimelineGemms},
    log_empty, log_gaps, not_joined,
    tallies::ShapeTallies,
};
use crate::{
    kernels::is_measured,
    stages::{DECODE, PREFILL},
};

/// Maximum number of calls that cublasLt logs before the one that belongs to a call of cuBLAS.
const MAX_AHEAD: usize = 1024;

/// Calls of one stage, and those that have a kernel.
#[derive(Default)]
struct StageCalls {
    calls: Vec<GemmCall>,
    joined: Vec<JoinedCall>,
}

/// Counts the GEMMs of all processes, by stage if they are joined to the timeline.
pub fn gemms(processes: &[ProcessGemms], timeline: Option<&TimelineGemms>) -> Gemms {
    let mut gemms = Gemms::default();
    processes.iter().for_each(|it| gemms.findings.extend(log_gaps(&it.cublas, &it.lt)));
    let all: Vec<Vec<GemmCall>> =
        processes.iter().map(calls).filter(|calls| !calls.is_empty()).collect();
    if all.is_empty() {
        gemms.findings.push(log_empty());
        return gemms;
    }
    let grouped = processes.iter().map(|it| it.cublas.grouped).sum();
    let chosen = ChosenAlgorithm::new();
    let joined = timeline.map(|timeline| (timeline, timeline.join_processes(&all, &chosen)));
    let stages = match joined {
        Some((timeline, Ok(joined))) => by_stage(&all, &joined, timeline),
        Some((_, Err(reason))) => {
            gemms.findings.push(not_joined("the command", &reason, grouped));
            one_stage(all)
        }
        None => one_stage(all),
    };
    let place = |stage: &str| match stage {
        PREFILL => 0,
        DECODE => 1,
        "" => 3,
        _ => 2,
    };
    let mut stages: Vec<(String, StageCalls)> = stages.into_iter().collect();
    stages.sort_by_key(|(stage, _)| place(stage));
    for (stage, it) in &stages {
        let mut tallies = ShapeTallies::of(&it.calls);
        if let Some(timeline) = timeline.filter(|_| !it.joined.is_empty()) {
            tallies.add_kernels(&it.calls, &it.joined, timeline);
        }
        gemms.records.extend(tallies.records(stage, &chosen, 0));
    }
    gemms
}

fn one_stage(processes: Vec<Vec<GemmCall>>) -> BTreeMap<String, StageCalls> {
    let calls = processes.into_iter().flatten().collect();
    BTreeMap::from([(String::new(), StageCalls { calls, joined: vec![] })])
}

/// The joined calls by the stage of their kernel; calls of a warm-up are left out.
fn by_stage(
    processes: &[Vec<GemmCall>],
    joined: &[Vec<JoinedCall>],
    timeline: &TimelineGemms,
) -> BTreeMap<String, StageCalls> {
    let mut stages: BTreeMap<String, StageCalls> = BTreeMap::new();
    for (calls, joined) in processes.iter().zip(joined) {
        for it in joined {
            let stage = timeline.stage(&it.gemm);
            if !is_measured(stage) {
                continue;
            }
            let stage = stages.entry(stage.to_owned()).or_default();
            stage.joined.push(JoinedCall { call: stage.calls.len(), ..*it });
            stage.calls.push(calls[it.call].clone());
        }
    }
    stages
}

/// The calls of a process in order: cuBLAS makes most of its products by cublasLt, which logs them
/// again with their algorithm and accumulator; these count once, under the function that the
/// program called.
fn calls(process: &ProcessGemms) -> Vec<GemmCall> {
    let (cublas, lt) = (&process.cublas.calls, &process.lt.calls);
    let mut calls = Vec::with_capacity(cublas.len().max(lt.len()));
    let mut next = 0;
    for call in cublas {
        let ahead = &lt[next..lt.len().min(next + MAX_AHEAD)];
        match ahead.iter().position(|it| same(&it.shape, &call.shape)) {
            Some(at) => {
                calls.extend_from_slice(&ahead[..at]);
                let algorithm = ahead[at].algorithm.clone().or_else(|| call.algorithm.clone());
                let shape = ahead[at].shape.clone();
                calls.push(GemmCall { algorithm, shape, ..call.clone() });
                next += at + 1;
            }
            None => calls.push(call.clone()),
        }
    }
    calls.extend_from_slice(&lt[next..]);
    calls
}

/// Equal but for the accumulator, which cuBLAS chooses by its mode.
fn same(a: &GemmShape, b: &GemmShape) -> bool {
    GemmShape { compute: String::new(), ..a.clone() }
        == GemmShape { compute: String::new(), ..b.clone() }
}
