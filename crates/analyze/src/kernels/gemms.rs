//! GEMMs of each stage: shapes, dtypes, call counts, selected algorithms, and the time of their
//! kernels in the timeline.
//!
//! In the program's row-major terms, left operand first; the library's log has the operands in
//! reverse.

mod join;
pub mod operators;
mod processes;
mod tallies;

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
    },
    trace::{
        event::DECODE_STEP,
        gemm::{GemmCall, GemmLog, GemmShape, GemmTrace},
        names::base_name,
    },
};
use serde::{Deserialize, Serialize};

use self::{
    join::{StageJoin, TimelineGemms},
    tallies::ShapeTallies,
};
use crate::{
    events::Events,
    kernels::{LaunchConfig, counters::CounterRecord},
    roofline::{ceilings::DeviceCeilings, mfu::TOLERANCE_PCT},
    stages::{DECODE, PREFILL, in_sentence},
    stats::{percent, ratio},
    timeline::capture::Capture,
};

/// Origin of a record: a log of the library, or the operator that launched the kernel.
pub const LOG: &str = "log";
pub const OPERATOR: &str = "operator";

fn log_origin() -> String {
    LOG.to_owned()
}

/// All calls of one GEMM shape in one stage: `batch` products of (m x k) and (k x n).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GemmRecord {
    /// Empty when the stage is unknown.
    #[cfg_attr(feature = "schema", schema(example = "prefill"))]
    pub stage: String,
    /// `log`: the log of a library; `operator`: the shapes of an operator whose kernel no log has.
    #[serde(default = "log_origin")]
    #[cfg_attr(feature = "schema", schema(example = "log"))]
    pub origin: String,
    #[cfg_attr(feature = "schema", schema(example = 512))]
    pub m: u64,
    #[cfg_attr(feature = "schema", schema(example = 1280))]
    pub n: u64,
    #[cfg_attr(feature = "schema", schema(example = 1280))]
    pub k: u64,
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub batch: u64,
    /// Dtypes of the left operand, the right operand and the result.
    #[cfg_attr(feature = "schema", schema(example = "bf16"))]
    pub left_type: String,
    pub right_type: String,
    pub out_type: String,
    /// True when the operand is stored transposed; false if the operator recorded no layout.
    pub left_transposed: bool,
    pub right_transposed: bool,
    /// Dtype of the accumulator; empty if an operator recorded the product.
    #[cfg_attr(feature = "schema", schema(example = "32f"))]
    pub compute: String,
    /// Name of the library function, or of the operator.
    #[cfg_attr(feature = "schema", schema(example = "cublasGemmStridedBatchedEx"))]
    pub function: String,
    /// Algorithm that the library selected, if its log has it.
    pub algorithm: Option<String>,
    /// Calls in the logged pass; of an operator in the traced one.
    pub calls: u64,
    /// Calls per decode step; `null` for other stages.
    pub calls_per_step: Option<f64>,
    /// `2 * batch * m * n * k`: a multiply-add counts as two; complex operands need four times as
    /// many.
    pub flops_per_call: u64,
    pub total_flops: u64,
    /// Share of the GEMM FLOPs of one execution of the stage, percent.
    pub share_pct: Option<f64>,
    /// Kernel with the most time; `null`, as are the figures below, if the calls were not joined to
    /// kernels of the traced pass.
    #[serde(default)]
    pub kernel_name: Option<String>,
    /// Launches in the traced pass.
    #[serde(default)]
    pub kernel_calls: Option<u64>,
    /// Time of these launches, reductions of split k included.
    #[serde(default)]
    pub kernel_ms: Option<f64>,
    /// `kernel_ms / kernel_calls`.
    #[serde(default)]
    pub kernel_mean_us: Option<f64>,
    #[serde(default)]
    pub flops_per_s: Option<f64>,
    /// Source of the ceiling: `measured` on this device, else `datasheet`.
    #[serde(default)]
    pub ceiling: Option<String>,
    /// Share of the ceiling of the dtype, percent.
    #[serde(default)]
    pub ceiling_pct: Option<f64>,
    /// Rows, columns and depth of the kernel's tile.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = "8x64x64"))]
    pub tile: Option<String>,
    /// `m n k` over the same sides rounded up to whole tiles, percent.
    #[serde(default)]
    pub tile_fill_pct: Option<f64>,
    /// Blocks over those that the device can hold at once, if ncu profiled the launch.
    #[serde(default)]
    pub waves: Option<f64>,
    /// Grid and block of the kernel with the most time, and its signature
    /// ([`llmprof_core::trace::names::signature`]).
    #[serde(skip)]
    pub launch: Option<LaunchConfig>,
    #[serde(skip)]
    pub signature: String,
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

/// Counts the GEMMs of the logged passes by stage and shape, and joins them to their kernels.
pub fn gemms(trace: &GemmTrace, capture: Option<&Capture>) -> Gemms {
    let timeline = capture.map(TimelineGemms::of);
    if !trace.processes.is_empty() {
        return processes::gemms(&trace.processes, timeline.as_ref());
    }
    // cuBLAS calls cublasLt internally, so a GEMM may be in both logs; only one log is counted.
    let has_cublas = [&trace.prefill, &trace.all]
        .iter()
        .any(|log| !log.calls.is_empty() || log.incomplete + log.grouped > 0);
    let (prefill, all) =
        if has_cublas { (&trace.prefill, &trace.all) } else { (&trace.lt_prefill, &trace.lt_all) };
    let mut gemms = Gemms {
        decode_steps: trace.decode_steps,
        findings: log_gaps(prefill, all),
        ..Gemms::default()
    };
    if prefill.calls.is_empty() && all.calls.is_empty() {
        gemms.findings.push(log_empty());
        return gemms;
    }
    let chosen = algorithms(trace);
    let same = |(a, b): (&GemmCall, &GemmCall)| a.shape == b.shape && a.function == b.function;
    let same_start =
        all.calls.len() >= prefill.calls.len() && prefill.calls.iter().zip(&all.calls).all(same);
    let join = timeline.as_ref().map(|it| it.join_last(PREFILL, &prefill.calls, &chosen));
    let joined = (timeline.as_ref().zip(join), prefill.grouped);
    gemms.add_stage(PREFILL, &prefill.calls, joined, &chosen);
    if same_start {
        let calls = &all.calls[prefill.calls.len()..];
        let steps = (calls, trace.decode_steps);
        let join = timeline.as_ref().map(|it| it.join_steps(DECODE, steps, &chosen));
        let grouped = all.grouped.saturating_sub(prefill.grouped);
        gemms.add_stage(DECODE, calls, (timeline.as_ref().zip(join), grouped), &chosen);
    } else {
        let message = "The two GEMM logs start differently: decode's GEMMs cannot be separated \
                       from prefill's.";
        let finding = Finding::new(catalogue::GEMM_STAGES_UNKNOWN, message);
        gemms.findings.push(
            finding
                .with("GEMMs of prefill", prefill.calls.len())
                .with("GEMMs of both", all.calls.len()),
        );
        gemms.add_stage("", &all.calls, (None, 0), &chosen);
    }
    gemms
}

impl Gemms {
    /// Adds the records of a stage: of the joined calls, or of all `calls`. Its log also has
    /// `grouped` calls.
    fn add_stage(
        &mut self,
        stage: &str,
        calls: &[GemmCall],
        (joined, grouped): (Option<(&TimelineGemms, StageJoin)>, u64),
        chosen: &ChosenAlgorithm,
    ) {
        if calls.is_empty() {
            return;
        }
        let mut tallies = match joined {
            Some((timeline, Ok((calls, joined)))) => {
                let mut tallies = ShapeTallies::of(calls);
                tallies.add_kernels(calls, &joined, timeline);
                tallies
            }
            Some((_, Err(reason))) => {
                self.findings.push(not_joined(stage, &reason, grouped));
                ShapeTallies::of(calls)
            }
            None => ShapeTallies::of(calls),
        };
        let steps = if stage == DECODE { self.decode_steps } else { 0 };
        self.records.extend(tallies.records(stage, chosen, steps));
    }

    /// Adds the products of operators, recorded in the pass with these events, and shares of all.
    pub fn add_operators(&mut self, records: Vec<GemmRecord>, traced: &Events) {
        if records.is_empty() {
            return;
        }
        let steps = traced.measured(DECODE_STEP).count() as f64;
        let decode_steps = self.decode_steps as f64;
        let executions = |it: &GemmRecord| match (it.origin == OPERATOR, it.stage.as_str()) {
            (true, DECODE) => steps,
            (true, stage) => traced.measured(stage).count() as f64,
            (false, DECODE) => decode_steps,
            (false, _) => 1.0,
        };
        for record in records {
            let steps = if record.stage == DECODE { steps } else { 0.0 };
            let calls_per_step = ratio(record.calls as f64, steps);
            self.records.push(GemmRecord { calls_per_step, ..record });
        }
        let mut stages: Vec<String> = Vec::new();
        for it in &self.records {
            if !stages.contains(&it.stage) {
                stages.push(it.stage.clone());
            }
        }
        for stage in &stages {
            let of_stage = || self.records.iter().filter(|it| it.stage == *stage);
            // The calls of one origin are comparable without the number of executions.
            let is_mixed = of_stage().any(|it| it.origin != self.origin_of(stage));
            let weight = |it: &GemmRecord| {
                let executions = if is_mixed { executions(it) } else { 1.0 };
                ratio(it.total_flops as f64, executions)
            };
            let total: Option<f64> = of_stage().map(weight).sum();
            let shares: Vec<Option<f64>> =
                of_stage().map(|it| percent(weight(it)?, total?)).collect();
            let of_stage = self.records.iter_mut().filter(|it| it.stage == *stage);
            of_stage.zip(shares).for_each(|(it, share)| it.share_pct = share);
        }
        let place = |it: &GemmRecord| stages.iter().position(|stage| *stage == it.stage);
        self.records.sort_by(|a, b| {
            let share = |it: &GemmRecord| it.share_pct.unwrap_or(-1.0);
            place(a).cmp(&place(b)).then(share(b).total_cmp(&share(a)))
        });
    }

    /// Origin of the first record of a stage.
    fn origin_of(&self, stage: &str) -> &str {
        self.records.iter().find(|it| it.stage == stage).map_or("", |it| &it.origin)
    }

    /// Adds waves of blocks, if ncu profiled the launch.
    pub fn add_counters(&mut self, counters: &[CounterRecord]) {
        for it in &mut self.records {
            let (Some(name), Some((grid, block))) = (&it.kernel_name, it.launch) else { continue };
            let profiled = counters.iter().find(|profiled| {
                profiled.stage == it.stage
                    && profiled.kernel_name == base_name(name)
                    && profiled.signature == it.signature
                    && (profiled.grid, profiled.block) == (Some(grid), Some(block))
            });
            it.waves = profiled.and_then(|it| it.values.waves);
        }
    }

    /// Adds the share of the ceiling of each record's dtype: measured, else of the datasheet; a
    /// share above 100 % is absent.
    pub fn add_ceilings(&mut self, ceilings: &DeviceCeilings) {
        for it in &mut self.records {
            let Some(rate) = it.flops_per_s else { continue };
            let Some(dtype) = ceiling_dtype(it) else { continue };
            let share = |ceiling: Option<f64>| {
                percent(rate, ceiling?).filter(|pct| *pct <= 100.0 + TOLERANCE_PCT)
            };
            let measured = share(ceilings.measured_flops(dtype)).map(|pct| (pct, "measured"));
            let datasheet = || Some((share(ceilings.datasheet_flops(dtype))?, "datasheet"));
            if let Some((pct, source)) = measured.or_else(datasheet) {
                (it.ceiling_pct, it.ceiling) = (Some(pct), Some(source.to_owned()));
            }
        }
    }
}

/// The dtype whose ceiling applies; `None` if the operands differ.
fn ceiling_dtype(it: &GemmRecord) -> Option<&str> {
    if it.left_type != it.right_type {
        return None;
    }
    // cuBLAS may compute products of f32 in tf32 by a setting that no log shows.
    let names = [it.kernel_name.as_deref().unwrap_or(""), &it.signature];
    let is_tf32 = it.left_type == "f32" && names.iter().any(|name| name.contains("tf32"));
    Some(match it.compute.as_str() {
        _ if is_tf32 => "tf32",
        "32f_fast_tf32" => "tf32",
        "32f_fast_16bf" => "bf16",
        "32f_fast_16f" => "f16",
        _ => &it.left_type,
    })
}

fn log_empty() -> Finding {
    Finding::new(catalogue::GEMM_LOG_EMPTY, "The cuBLAS logs contain no complete GEMM.")
}

/// `grouped` calls in the log have kernels, but no sizes.
fn not_joined(stage: &str, reason: &str, grouped: u64) -> Finding {
    let without_sizes = match grouped {
        0 => String::new(),
        count => format!(", and {} grouped GEMM calls without sizes", digits::count(count)),
    };
    let of = in_sentence(stage);
    let message = format!("GEMMs of {of} have no kernel times: {reason}{without_sizes}.");
    Finding::new(catalogue::GEMM_KERNELS_NOT_JOINED, message).with("stage", stage)
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
            "{} calls in the GEMM logs lack their sizes and are not counted: the log is truncated.",
            digits::count(incomplete)
        );
        findings.push(Finding::new(catalogue::GEMM_CALLS_INCOMPLETE, message));
    }
    let grouped = prefill.grouped.max(all.grouped);
    if grouped > 0 {
        let message = format!(
            "{grouped} grouped GEMM calls log no sizes per group and are not counted: shares are \
             of the other calls."
        );
        findings.push(Finding::new(catalogue::GEMM_CALLS_INCOMPLETE, message));
    }
    if prefill.cut || all.cut {
        let message = "A GEMM log exceeds the read limit: its last GEMMs are not counted.";
        findings.push(Finding::new(catalogue::GEMM_LOG_CUT, message));
    }
    findings
}

#[cfg(test)]
mod tests;
