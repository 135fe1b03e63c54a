//! Rules on the causes of the gap ledger: one finding per stage and cause, largest saving first.
//!
//! Small causes are rows of the ledger alone. Gaps of decode that a rule of its own reports are not
//! reported twice.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::{
        finding::{Finding, Saving, Severity},
        units::Nanos,
    },
    trace::Trace,
};

use super::{
    Rule, finding,
    stage_time::{decode_eager, decode_launch_bound},
};
use crate::{
    Analysis,
    ledger::{LedgerCause, LedgerRow},
    stages::DECODE,
    stats::percent,
};
use Severity::{Info, Warning};

/// A cause matters from this saving, percent of its stage.
const MATTERS_PCT: f64 = 3.0;
/// Unexplained time matters from this share, percent.
const UNEXPLAINED_PCT: f64 = 10.0;
/// Kernels that a finding lists.
const LISTED_KERNELS: usize = 3;
const OWN_TIME: Option<&str> =
    Some("the cause's time in which its kernels run alone; of gaps, at most the unprofiled ones");
const FIRES_ON: &str = "the cause of this name in the gap ledger can save at least 3 % of a stage";

/// The rule of one cause.
const fn rule(id: &'static str, advice: &'static str) -> Rule {
    Rule { id, severity: Warning, fires_on: FIRES_ON, advice, max_saving: OWN_TIME, find: causes }
}

pub const RULES: &[Rule] = &[
    rule(
        "ledger_copies_and_casts",
        "Keep one dtype and layout through the chain of operators, and data on the device.",
    ),
    rule(
        "ledger_collective_wait",
        "Balance the work of the ranks; the table ranks names the one that the others wait for.",
    ),
    rule(
        "ledger_collective_transfer",
        "Overlap collective operations with computation, send less, or use a faster link.",
    ),
    rule("ledger_collectives", "Overlap collective operations with computation, or send less."),
    rule(
        "ledger_more_bytes",
        "Read each operand once: fuse passes over the same data, and check for uncoalesced \
         strides.",
    ),
    rule(
        "ledger_tensor_cores",
        "Use a dtype and sizes supported by tensor cores (bf16 or f16, multiples of 8).",
    ),
    rule("ledger_tiles", "Choose tiles that divide the product's sizes."),
    rule(
        "ledger_waves",
        "Launch more blocks: divide the work further, or run small kernels at the same time.",
    ),
    rule(
        "ledger_instructions",
        "Reduce instructions besides the products: conversions, index arithmetic, exponentials.",
    ),
    rule(
        "ledger_memory_traffic",
        "Fuse the kernel with its neighbours, so that activations stay on the SM.",
    ),
    rule(
        "ledger_latency",
        "Use smaller tiles or fewer registers for more warps, or more independent work per thread.",
    ),
    rule("ledger_gap_host", "Launch earlier: prepare the next work while the GPU runs."),
    rule("ledger_gap_launch", "Launch less often: replay a CUDA graph, or fuse operators."),
    rule(
        "ledger_gap_sync",
        "Keep sampled tokens on the device, and synchronise once per step or less.",
    ),
    rule(
        "ledger_gap_copy",
        "Copy less, and overlapped with kernels; to and from the host, in pinned memory.",
    ),
    rule("ledger_gap_in_graph", "Fuse small kernels: each starts after the one before it."),
    rule(
        "ledger_gap_queued",
        "Fuse small kernels, or start them before the previous one ends (programmatic dependent \
         launch).",
    ),
    rule("ledger_other_stages", "Keep work of other stages off the GPU meanwhile."),
    Rule {
        id: "ledger_unexplained",
        severity: Info,
        fires_on: "no evidence explains at least 10 % of a stage's time",
        advice: "Collect counters of more kernels: profiling.ncu in mode deep, or ncu by hand.",
        max_saving: None,
        find: unexplained,
    },
];

/// Findings on the causes that matter, largest saving first.
fn causes(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let reported = !decode_launch_bound(analysis, trace).is_empty()
        || !decode_eager(analysis, trace).is_empty();
    let is_reported = |row: &LedgerRow| {
        let launching = matches!(row.cause, LedgerCause::GapHost | LedgerCause::GapLaunch);
        reported && launching && row.stage == DECODE
    };
    let rows = analysis.ledger.rows.iter();
    rows.filter(|row| row.cause.is_cause() && !is_reported(row))
        .filter_map(|row| cause(analysis, row))
        .collect()
}

fn cause(analysis: &Analysis, row: &LedgerRow) -> Option<Finding> {
    let stage = analysis.ledger.stages.iter().find(|it| it.stage == row.stage)?;
    let pct = percent(row.max_saving_ns as f64, stage.measured_ns as f64)
        .filter(|pct| *pct >= MATTERS_PCT)?;
    let saving =
        Saving { stage: row.stage.clone(), ms: Some(Nanos(row.max_saving_ns).as_ms()), pct };
    let (ms, share) = (Nanos(row.ns).as_ms(), row.share_pct.unwrap_or(0.0));
    let message = format!(
        "{}: {ms:.3} ms ({share:.0} %) above the floor by {}.",
        row.stage,
        row.cause.words()
    );
    let mut found = finding(&format!("ledger_{}", row.cause), message)
        .with("pass", &row.pass)
        .with("counters", &row.counter)
        .with("samples", row.samples);
    for (at, (name, ns, evidence)) in kernels(analysis, row).into_iter().enumerate() {
        let text = format!("{name}, {:.3} ms: {evidence}", Nanos(ns).as_ms());
        found = found.with(&format!("kernel ({})", at + 1), text);
    }
    Some(found.saves(Some(saving)))
}

/// The largest kernels of a row with their time, and the evidence of their largest member.
fn kernels<'a>(analysis: &'a Analysis, row: &'a LedgerRow) -> Vec<(String, i64, &'a str)> {
    let mut by_name: BTreeMap<String, (i64, &str)> = BTreeMap::new();
    for it in analysis.ledger.members(&row.stage, row.cause) {
        let name = it.kernel.clone().or_else(|| it.operator.clone());
        let name = name.unwrap_or_else(|| "start of the stage".into());
        by_name.entry(name).or_insert((0, it.evidence.as_str())).0 += it.ns;
    }
    let mut all: Vec<_> = by_name.into_iter().map(|(name, it)| (name, it.0, it.1)).collect();
    all.sort_by_key(|it| std::cmp::Reverse(it.1));
    all.truncate(LISTED_KERNELS);
    all
}

fn unexplained(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |row: &LedgerRow| {
        let share = row.share_pct.filter(|share| *share >= UNEXPLAINED_PCT)?;
        let stage = analysis.ledger.stages.iter().find(|it| it.stage == row.stage)?;
        stage.floor_of?;
        let message = format!("No evidence explains {share:.0} % of the time of {}.", row.stage);
        let mut found = finding("ledger_unexplained", message)
            .with("ms", format!("{:.3}", Nanos(row.ns).as_ms()));
        for (at, (name, ns, evidence)) in kernels(analysis, row).into_iter().enumerate() {
            let text = format!("{name}, {:.3} ms: {evidence}", Nanos(ns).as_ms());
            found = found.with(&format!("kernel ({})", at + 1), text);
        }
        Some(found)
    };
    let rows = analysis.ledger.rows.iter();
    rows.filter(|row| row.cause == LedgerCause::Unexplained).filter_map(found).collect()
}

/// Sorts findings of the ledger by saving, in the places that they have among the others.
pub fn largest_first(found: &mut [Finding]) {
    let is_cause = |it: &Finding| RULES.iter().any(|rule| rule.id == it.id);
    let Some(first) = found.iter().position(is_cause) else { return };
    let count = found[first..].iter().take_while(|it| is_cause(it)).count();
    let saving = |it: &Finding| it.max_saving.as_ref().and_then(|it| it.ms).unwrap_or(0.0);
    found[first..first + count].sort_by(|a, b| saving(b).total_cmp(&saving(a)));
}
