//! Rules on the kernels of the timeline, and on the calls that synchronise and copy.
//!
//! A kernel's work is taken from its name, and only where a rule needs no more.

use Severity::{Info, Warning};

use super::{
    Rule, finding,
    saving::{host_saving, kernel_saving, replays_graph, traced_repeats},
};
use crate::{
    analyze::{
        Analysis,
        kernels::KernelRecord,
        stages::{DECODE, STAGES},
        stats::{percent, ratio},
    },
    domain::finding::{Finding, Severity},
    trace::{Trace, names::base_name},
};

/// Kernels or calls matter from this share of a stage, percent.
const MATTERS_PCT: f64 = 5.0;
/// A kernel shorter than this is tiny.
const TINY_MS: f64 = 0.005;
/// Tiny kernels matter from this share of a stage's launches, percent, of at least `TINY_LAUNCHES`.
const TINY_PCT: f64 = 80.0;
const TINY_LAUNCHES: u64 = 100;
/// A shared short name matters from this share of a stage, percent.
const COLLISION_PCT: f64 = 10.0;
/// Synchronising calls per decode step: more than the one at its end.
const SYNCS: f64 = 2.0;
/// Kernels that a finding lists.
const LISTED_KERNELS: usize = 3;
const KERNELS_SAVING: Option<&str> = Some("their own time on the critical path");
const CALLS_SAVING: Option<&str> = Some("the GPU's idle time during those calls");

pub const RULES: &[Rule] = &[
    Rule {
        id: "cast_share",
        severity: Warning,
        fires_on: "kernels named as conversions take at least 5 % of a stage's kernel time",
        advice: "Keep one dtype through the chain of operators.",
        max_saving: KERNELS_SAVING,
        find: cast_share,
    },
    Rule {
        id: "kv_cache_copies",
        severity: Warning,
        fires_on: "kernels that concatenate tensors take at least 5 % of decode's kernel time, \
                   and no graph is replayed",
        advice: "Write keys and values in place into a preallocated cache.",
        max_saving: KERNELS_SAVING,
        find: kv_cache_copies,
    },
    Rule {
        id: "tiny_kernels",
        severity: Info,
        fires_on: "of 100 launches or more in a stage, 80 % are shorter than 5 microseconds",
        advice: "Fuse them: each costs a launch.",
        max_saving: KERNELS_SAVING,
        find: tiny_kernels,
    },
    Rule {
        id: "name_collisions",
        severity: Info,
        fires_on: "kernels with different full names share a short name with 10 % of a stage",
        advice: "Read its row as a sum; the full names are in the capture.",
        max_saving: None,
        find: name_collisions,
    },
    Rule {
        id: "host_sync_in_decode",
        severity: Warning,
        fires_on: "the host synchronises twice or more per decode step",
        advice: "Keep sampled tokens on the device, and synchronise once per step or less.",
        max_saving: CALLS_SAVING,
        find: host_sync_in_decode,
    },
    Rule {
        id: "memcpy_share",
        severity: Warning,
        fires_on: "calls that copy memory take at least 5 % of a stage's host time",
        advice: "Keep data on the device; copy from pinned memory, overlapped with kernels.",
        max_saving: CALLS_SAVING,
        find: memcpy_share,
    },
];

/// Share of `ms` in a stage's kernel time, percent.
pub fn kernel_time_pct(analysis: &Analysis, stage: &str, ms: f64) -> Option<f64> {
    percent(ms, analysis.kernels.stage_ms(stage)?)
}

/// Kernels of a stage whose names contain one of `words`, as one finding.
fn named(
    analysis: &Analysis,
    stage: &str,
    id: &str,
    subject: &str,
    words: &[&str],
) -> Option<Finding> {
    let matches = |it: &&KernelRecord| {
        let name = it.kernel_name.to_lowercase();
        it.stage == stage && words.iter().any(|word| has_word(&name, word))
    };
    let records: Vec<_> = analysis.kernels.measured().filter(matches).collect();
    let total_ms = records.iter().map(|it| it.total_ms).sum();
    let weight =
        kernel_time_pct(analysis, stage, total_ms).filter(|share| *share >= MATTERS_PCT)?;
    let message = format!("{subject} take {weight:.0} % of the kernel time of {stage}.");
    let mut found =
        finding(id, message).with("calls", records.iter().map(|it| it.calls).sum::<u64>());
    for (index, it) in records.iter().take(LISTED_KERNELS).enumerate() {
        found = found.with(
            &format!("kernel ({})", index + 1),
            format!("{}, {:.3} ms", it.kernel_name, it.total_ms),
        );
    }
    let names: Vec<&str> = records.iter().map(|it| it.kernel_name.as_str()).collect();
    Some(found.saves(kernel_saving(analysis, stage, &names, total_ms)))
}

/// Returns whether a name contains `word` at the start of a word: `broadcast` does not match
/// `cast`.
fn has_word(name: &str, word: &str) -> bool {
    name.match_indices(word)
        .any(|(at, _)| !name[..at].ends_with(|before: char| before.is_ascii_alphabetic()))
}

fn cast_share(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let words = ["cast", "convert", "to_dtype"];
    STAGES
        .into_iter()
        .filter_map(|stage| named(analysis, stage, "cast_share", "Dtype conversions", &words))
        .collect()
}

fn kv_cache_copies(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // A graph replays fixed addresses, so its cache does not grow; `index_copy` writes in place.
    if replays_graph(analysis) {
        return vec![];
    }
    let words = ["catarray", "cat_batched", "concat", "repeat_kv"];
    let subject = "Concatenations of tensors, as of a growing KV cache,";
    named(analysis, DECODE, "kv_cache_copies", subject, &words).into_iter().collect()
}

fn tiny_kernels(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |stage: &str| {
        let all: Vec<_> = analysis.kernels.measured().filter(|it| it.stage == stage).collect();
        let tiny = || all.iter().filter(|it| it.mean_ms < TINY_MS);
        let (tiny_calls, calls) =
            (tiny().map(|it| it.calls).sum::<u64>(), all.iter().map(|it| it.calls).sum::<u64>());
        let of_calls = percent(tiny_calls as f64, calls as f64)
            .filter(|pct| *pct >= TINY_PCT && calls >= TINY_LAUNCHES)?;
        let total_ms = tiny().map(|it| it.total_ms).sum();
        let weight = kernel_time_pct(analysis, stage, total_ms)?;
        let message = format!(
            "{of_calls:.0} % of the kernels of {stage} are shorter than {:.0} µs.",
            TINY_MS * 1e3
        );
        let mut found = finding("tiny_kernels", message)
            .with("tiny launches", tiny_calls)
            .with("launches", calls)
            .with("share of kernel time", format!("{weight:.1} %"));
        if stage == DECODE && replays_graph(analysis) {
            found =
                found.advise("Fuse them: each is started on its own, even in a replayed graph.");
        }
        let names: Vec<&str> = tiny().map(|it| it.kernel_name.as_str()).collect();
        Some(found.saves(kernel_saving(analysis, stage, &names, total_ms)))
    };
    STAGES.into_iter().filter_map(found).collect()
}

fn name_collisions(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let collides = |it: &&KernelRecord| {
        it.name_variants > 1 && it.share_pct.is_some_and(|share| share >= COLLISION_PCT)
    };
    let found = |it: &KernelRecord| {
        let message = format!(
            "{} kernels with different parameters share the name {}.",
            it.name_variants,
            base_name(&it.kernel_name)
        );
        finding("name_collisions", message)
            .with("stage", &it.stage)
            .with("variants", it.name_variants)
            .with(
                "share of the stage's kernel time",
                format!("{:.1} %", it.share_pct.unwrap_or_default()),
            )
    };
    analysis.kernels.measured().filter(collides).map(found).collect()
}

fn host_sync_in_decode(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = || {
        let calls = analysis.stage_calls.get(DECODE)?;
        let steps = analysis.stages.decode_steps? as f64 * traced_repeats(analysis, DECODE)?;
        let each = ratio(calls.waits as f64, steps).filter(|each| *each >= SYNCS)?;
        let waited = percent(calls.wait_ms, calls.host_ms)?;
        let message = format!(
            "The host synchronises with the device {each:.1} times per decode step of the traced \
             pass."
        );
        Some(
            finding("host_sync_in_decode", message)
                .with("synchronising calls", calls.waits)
                .with("time in them", format!("{waited:.1} %"))
                .saves(host_saving(analysis, DECODE, waited)),
        )
    };
    found().into_iter().collect()
}

fn memcpy_share(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |stage: &str| {
        let calls = analysis.stage_calls.get(stage)?;
        let weight = percent(calls.copy_ms, calls.host_ms).filter(|share| *share >= MATTERS_PCT)?;
        let message = format!(
            "Calls that copy memory take {weight:.0} % of the host time of {stage} in the traced \
             pass."
        );
        Some(
            finding("memcpy_share", message)
                .with("calls", calls.copies)
                .with("host ms", format!("{:.3}", calls.copy_ms))
                .saves(host_saving(analysis, stage, weight)),
        )
    };
    STAGES.into_iter().filter_map(found).collect()
}
