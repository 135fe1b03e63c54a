//! Rules on the kernels of the timeline.
//!
//! A kernel's work is taken from its name, and only if a rule needs no more.

use llmprof_core::{
    domain::{
        digits::figure,
        finding::{
            Finding,
            catalogue::{self, FindingId},
        },
    },
    trace::{Trace, names::base_name},
};

use super::{
    Rule,
    saving::{kernel_saving, replays_graph},
};
use crate::{
    Analysis,
    kernels::KernelRecord,
    stages::{DECODE, STAGES, in_sentence},
    stats::percent,
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
/// Kernels that a finding lists.
const LISTED_KERNELS: usize = 3;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::KV_CACHE_COPIES, find: kv_cache_copies },
    Rule { id: catalogue::TINY_KERNELS, find: tiny_kernels },
    Rule { id: catalogue::NAME_COLLISIONS, find: name_collisions },
];

/// Share of `ms` in a stage's kernel time, percent.
pub fn kernel_time_pct(analysis: &Analysis, stage: &str, ms: f64) -> Option<f64> {
    percent(ms, analysis.kernels.stage_ms(stage)?)
}

/// Kernels of a stage whose names contain one of `words`, as one finding.
fn named(
    analysis: &Analysis,
    stage: &str,
    id: FindingId,
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
    let message = format!(
        "{subject} take {weight:.0} % of the kernel time of {stage}.",
        stage = in_sentence(stage)
    );
    let mut found =
        Finding::new(id, message).with("calls", records.iter().map(|it| it.calls).sum::<u64>());
    for (index, it) in records.iter().take(LISTED_KERNELS).enumerate() {
        found = found.with(
            &format!("kernel ({})", index + 1),
            format!("{}, {} ms", it.kernel_name, figure(it.total_ms)),
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

fn kv_cache_copies(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // A graph replays fixed addresses, so its cache does not grow; `index_copy` writes in place.
    if replays_graph(analysis) {
        return vec![];
    }
    let words = ["catarray", "cat_batched", "concat", "repeat_kv"];
    let subject = "Concatenations of tensors, as of a growing KV cache,";
    named(analysis, DECODE, catalogue::KV_CACHE_COPIES, subject, &words).into_iter().collect()
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
            TINY_MS * 1e3,
            stage = in_sentence(stage)
        );
        let mut found = Finding::new(catalogue::TINY_KERNELS, message)
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
        Finding::new(catalogue::NAME_COLLISIONS, message)
            .with("stage", &it.stage)
            .with("variants", it.name_variants)
            .with(
                "share of the stage's kernel time",
                format!("{:.1} %", it.share_pct.unwrap_or_default()),
            )
    };
    analysis.kernels.measured().filter(collides).map(found).collect()
}
