//! GEMMs of each stage: shapes, dtypes, call counts and selected algorithms.
//!
//! In the program's row-major terms, left operand first; the library's log has the operands in
//! reverse.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    analyze::{
        stages::{DECODE, PREFILL},
        stats::percent,
    },
    domain::finding::{Finding, Severity},
    trace::gemm::{GemmCall, GemmLog, GemmShape, GemmTrace},
};

/// All calls of one GEMM shape in one stage: `batch` products of (m x k) and (k x n).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GemmRecord {
    /// Empty when the stage is unknown.
    #[schema(example = "prefill")]
    pub stage: String,
    #[schema(example = 512)]
    pub m: u64,
    #[schema(example = 1280)]
    pub n: u64,
    #[schema(example = 1280)]
    pub k: u64,
    #[schema(example = 1)]
    pub batch: u64,
    /// Dtypes of the left operand, the right operand and the result.
    #[schema(example = "bf16")]
    pub left_type: String,
    pub right_type: String,
    pub out_type: String,
    /// True when the operand is stored transposed.
    pub left_transposed: bool,
    pub right_transposed: bool,
    /// Dtype of the accumulator.
    #[schema(example = "32f")]
    pub compute: String,
    /// Name of the library function.
    #[schema(example = "cublasGemmStridedBatchedEx")]
    pub function: String,
    /// Algorithm that the library selected, where its log has it.
    pub algorithm: Option<String>,
    /// Calls in the logged pass.
    pub calls: u64,
    /// Calls per decode step; `null` for other stages.
    pub calls_per_step: Option<f64>,
    /// `2 * batch * m * n * k`: a multiply-add counts as two.
    pub flops_per_call: u64,
    pub total_flops: u64,
    /// Share of the stage's GEMM FLOPs, percent.
    pub share_pct: Option<f64>,
}

/// The GEMMs of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gemms {
    /// By stage, most FLOPs first.
    pub records: Vec<GemmRecord>,
    /// Decode steps of the logged pass.
    pub decode_steps: u64,
    pub findings: Vec<Finding>,
}

/// Counts the GEMMs of the logged passes by stage and shape.
pub fn gemms(trace: &GemmTrace) -> Gemms {
    // cuBLAS calls cublasLt internally, so a GEMM may be in both logs; only one log is counted.
    let has_cublas =
        [&trace.prefill, &trace.all].iter().any(|log| !log.calls.is_empty() || log.incomplete > 0);
    let (prefill, all) =
        if has_cublas { (&trace.prefill, &trace.all) } else { (&trace.lt_prefill, &trace.lt_all) };
    let mut gemms = Gemms {
        decode_steps: trace.decode_steps,
        findings: log_gaps(prefill, all),
        ..Gemms::default()
    };
    if prefill.calls.is_empty() && all.calls.is_empty() {
        let message = "The cuBLAS logs contain no complete GEMM.";
        let finding = Finding::new("gemm_log_empty", Severity::Warning, message);
        gemms.findings.push(
            finding.advise("Check the files below gemm_log/: the runner may use another library."),
        );
        return gemms;
    }
    let chosen = algorithms(trace);
    let same = |(a, b): (&GemmCall, &GemmCall)| a.shape == b.shape && a.function == b.function;
    let same_start =
        all.calls.len() >= prefill.calls.len() && prefill.calls.iter().zip(&all.calls).all(same);
    let mut stages = vec![(PREFILL, prefill.calls.as_slice())];
    if same_start {
        stages.push((DECODE, &all.calls[prefill.calls.len()..]));
    } else {
        let message = "The two GEMM logs start differently: decode's GEMMs cannot be separated \
                       from prefill's.";
        let finding = Finding::new("gemm_stages_unknown", Severity::Warning, message);
        gemms.findings.push(
            finding
                .with("GEMMs of prefill", prefill.calls.len())
                .with("GEMMs of both", all.calls.len()),
        );
        stages.push(("", &all.calls));
    }
    for (stage, calls) in stages {
        gemms.records.extend(records(stage, calls, &chosen, trace.decode_steps));
    }
    gemms
}

fn records(
    stage: &str,
    calls: &[GemmCall],
    chosen: &ChosenAlgorithm,
    decode_steps: u64,
) -> Vec<GemmRecord> {
    let mut kinds: BTreeMap<(&GemmShape, &str), (u64, BTreeSet<&str>)> = BTreeMap::new();
    for call in calls {
        let kind = kinds.entry((&call.shape, &call.function)).or_default();
        kind.0 += 1;
        kind.1.extend(call.algorithm.as_deref());
    }
    let mut records: Vec<GemmRecord> = kinds
        .into_iter()
        .map(|((shape, function), (calls, logged))| {
            let known = if logged.is_empty() {
                chosen.get(shape).cloned().unwrap_or_default()
            } else {
                logged
            };
            let algorithm = known.into_iter().collect::<Vec<_>>().join("; or ");
            GemmRecord {
                stage: stage.to_owned(),
                m: shape.m,
                n: shape.n,
                k: shape.k,
                batch: shape.batch,
                left_type: shape.left_type.clone(),
                right_type: shape.right_type.clone(),
                out_type: shape.out_type.clone(),
                left_transposed: shape.left_transposed,
                right_transposed: shape.right_transposed,
                compute: shape.compute.clone(),
                function: function.to_owned(),
                algorithm: Some(algorithm).filter(|it| !it.is_empty()),
                calls,
                calls_per_step: (stage == DECODE && decode_steps > 0)
                    .then(|| calls as f64 / decode_steps as f64),
                flops_per_call: shape.flops(),
                total_flops: shape.flops().saturating_mul(calls),
                share_pct: None,
            }
        })
        .collect();
    let total: f64 = records.iter().map(|it| it.total_flops as f64).sum();
    records.iter_mut().for_each(|it| it.share_pct = percent(it.total_flops as f64, total));
    records.sort_by_key(|it| std::cmp::Reverse(it.total_flops));
    records
}

/// Algorithms that cublasLt selected, by shape.
type ChosenAlgorithm<'a> = BTreeMap<&'a GemmShape, BTreeSet<&'a str>>;

/// Collects the algorithms from the cublasLt logs.
fn algorithms(trace: &GemmTrace) -> ChosenAlgorithm<'_> {
    let mut chosen = ChosenAlgorithm::new();
    for call in trace.lt_prefill.calls.iter().chain(&trace.lt_all.calls) {
        chosen.entry(&call.shape).or_default().extend(call.algorithm.as_deref());
    }
    chosen
}

/// Findings on incomplete logs.
fn log_gaps(prefill: &GemmLog, all: &GemmLog) -> Vec<Finding> {
    let mut findings = Vec::new();
    let incomplete = prefill.incomplete + all.incomplete;
    if incomplete > 0 {
        let message = format!(
            "{incomplete} calls in the GEMM logs lack their sizes and are not counted: the log is \
             truncated."
        );
        findings.push(Finding::new("gemm_calls_incomplete", Severity::Info, message));
    }
    if prefill.cut || all.cut {
        let message = "A GEMM log exceeds the read limit: its last GEMMs are not counted.";
        findings.push(
            Finding::new("gemm_log_cut", Severity::Warning, message)
                .advise("Request fewer tokens."),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(m: u64, n: u64, k: u64, algorithm: Option<&str>) -> GemmCall {
        let bf16 = || "bf16".to_owned();
        let shape = GemmShape {
            m,
            n,
            k,
            batch: 1,
            left_type: bf16(),
            right_type: bf16(),
            out_type: bf16(),
            left_transposed: false,
            right_transposed: true,
            compute: "32f".into(),
        };
        GemmCall { shape, function: "cublasGemmEx".into(), algorithm: algorithm.map(str::to_owned) }
    }

    fn log(calls: &[(u64, u64, u64)]) -> GemmLog {
        GemmLog {
            calls: calls.iter().map(|&(m, n, k)| call(m, n, k, None)).collect(),
            ..GemmLog::default()
        }
    }

    fn table(gemms: &Gemms) -> Vec<(&str, u64, u64, Option<f64>, u64)> {
        gemms
            .records
            .iter()
            .map(|it| (it.stage.as_str(), it.m, it.calls, it.calls_per_step, it.total_flops))
            .collect()
    }

    #[test]
    fn calls_beyond_those_of_the_first_log_are_decode() {
        let prefill = log(&[(512, 8, 4), (512, 8, 4)]);
        let all = log(&[(512, 8, 4), (512, 8, 4), (1, 8, 4), (1, 8, 4), (1, 8, 4), (1, 8, 4)]);
        let gemms = gemms(&GemmTrace { prefill, all, decode_steps: 2, ..GemmTrace::default() });
        assert_eq!(
            table(&gemms),
            [("prefill", 512, 2, None, 65_536), ("decode_all", 1, 4, Some(2.0), 256)]
        );
        assert_eq!((gemms.records[0].share_pct, gemms.findings), (Some(100.0), vec![]));
    }

    #[test]
    fn logs_that_start_differently_give_no_decode_stage() {
        let gemms = gemms(&GemmTrace {
            prefill: log(&[(512, 8, 4)]),
            all: log(&[(7, 8, 4), (1, 8, 4)]),
            ..GemmTrace::default()
        });
        assert_eq!(
            gemms.records.iter().map(|it| it.stage.as_str()).collect::<Vec<_>>(),
            ["prefill", "", ""]
        );
        assert_eq!(gemms.findings[0].id, "gemm_stages_unknown");
    }

    #[test]
    fn algorithms_of_cublaslt_are_added_to_cublas_calls_and_not_counted_again() {
        let lt =
            GemmLog { calls: vec![call(512, 8, 4, Some("algorithm 66"))], ..GemmLog::default() };
        let both = GemmTrace {
            prefill: log(&[(512, 8, 4)]),
            all: log(&[(512, 8, 4)]),
            lt_prefill: lt.clone(),
            ..GemmTrace::default()
        };
        let counted = gemms(&both);
        assert_eq!((counted.records.len(), counted.records[0].calls), (1, 1));
        assert_eq!(counted.records[0].algorithm.as_deref(), Some("algorithm 66"));
        let alone =
            gemms(&GemmTrace { lt_prefill: lt.clone(), lt_all: lt, ..GemmTrace::default() });
        assert_eq!(
            alone.records.len(),
            1,
            "a program that calls cublasLt directly has no other log"
        );
    }

    #[test]
    fn empty_and_truncated_logs_are_findings() {
        let cut = GemmLog { incomplete: 3, cut: true, ..GemmLog::default() };
        let gemms = gemms(&GemmTrace { all: cut, ..GemmTrace::default() });
        let ids: Vec<_> = gemms.findings.iter().map(|it| it.id.as_str()).collect();
        assert_eq!(
            (ids, gemms.records.len()),
            (vec!["gemm_calls_incomplete", "gemm_log_cut", "gemm_log_empty"], 0)
        );
    }
}
