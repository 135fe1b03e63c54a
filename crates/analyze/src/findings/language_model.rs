//! The rule which captures are of a language model: advice and pages name prefill, decode and
//! tokens only for these.

use llmprof_core::{
    domain::{finding::Finding, subject::SubjectKind},
    trace::Trace,
};

use super::steps::engine_of;
use crate::{Analysis, stages::STAGES};

/// Evidence of a finding on a capture that may be of any program.
const SIGNS: &str = "signs of a language model";
/// Parts of names of ranges, operators and kernels of language models, in lower case.
const WORDS: [&str; 12] = [
    "prefill",
    "decode",
    "token",
    "attention",
    "attn",
    "kv_cache",
    "kvcache",
    "llama",
    "qwen",
    "transformer",
    "rotary",
    "rmsnorm",
];
/// The same of short words, which other words contain: `argPtr`, `smallMatrix`. They count at the
/// start of a word.
const SHORT_WORDS: [&str; 3] = ["gpt", "llm", "vllm"];
/// Classes of kernels that only these models have.
const CLASSES: [&str; 2] = ["attention", "moe"];
/// Engines that are frameworks of any program.
const FRAMEWORKS: [&str; 2] = ["jax", "transformers"];

/// True if the program is known to run a language model: by its subject, by a statement, by its
/// stages, by its engine, or by a name.
pub fn is_known(analysis: &Analysis, trace: &Trace) -> bool {
    let is_stated = analysis.subject != SubjectKind::Import
        || analysis.stated.is_some()
        || !analysis.requests.latency.is_empty();
    let is_of_stage = || analysis.stages.rows.iter().any(|it| STAGES.contains(&it.stage.as_str()));
    let is_of_engine = || {
        let engine = trace.timeline.as_ref().and_then(engine_of);
        engine.is_some_and(|(engine, _)| !FRAMEWORKS.contains(&engine.name.as_str()))
    };
    let kernels = || analysis.kernels.measured();
    let is_of_class = || kernels().any(|it| CLASSES.contains(&it.class.as_str()));
    let is_named = || {
        let ranges = analysis.sums.ranges.iter().map(|it| it.name.as_str());
        let operators = analysis.operators.rolled.iter().map(|it| it.path.as_str());
        let kernels = kernels().flat_map(|it| [it.kernel_name.as_str(), it.full_name.as_str()]);
        ranges.chain(operators).chain(kernels).any(has_word)
    };
    is_stated || is_of_stage() || is_of_engine() || is_of_class() || is_named()
}

/// The data that only a language model keeps on the device, as remedies name it.
const TOKENS: &str = "sampled tokens";

/// The findings, whose remedies name no tokens if the capture may be of any program.
pub(super) fn with_remedies(
    found: Vec<Finding>,
    analysis: &Analysis,
    trace: &Trace,
) -> Vec<Finding> {
    let names_tokens = |it: &Finding| it.advice.as_deref().is_some_and(|it| it.contains(TOKENS));
    if !found.iter().any(names_tokens) || is_known(analysis, trace) {
        return found;
    }
    let without_tokens = |it: Finding| {
        let advice = it.advice.as_deref().map(|it| it.replace(TOKENS, "results"));
        match advice {
            Some(advice) => it.advise(advice),
            None => it,
        }
    };
    found.into_iter().map(without_tokens).collect()
}

fn has_word(name: &str) -> bool {
    // The places of both texts are the same, for other letters stay.
    let lower = name.to_ascii_lowercase();
    let is_start = |at: usize| {
        let is_upper = name[at..].starts_with(|it: char| it.is_ascii_uppercase());
        name[..at].chars().next_back().is_none_or(|before| match is_upper {
            true => !before.is_ascii_uppercase(),
            false => !before.is_alphabetic(),
        })
    };
    let mut short = SHORT_WORDS.iter().flat_map(|word| lower.match_indices(word));
    WORDS.iter().any(|word| lower.contains(word)) || short.any(|(at, _)| is_start(at))
}

/// True if a finding is on a capture that may be of any program.
pub fn is_of_any_program(finding: &Finding) -> bool {
    finding.evidence.contains_key(SIGNS)
}

/// The finding on missing stages of a capture that may be of any program.
pub fn of_any_program(found: Finding, trace: &Trace) -> Finding {
    let without_ranges =
        trace.timeline.as_ref().filter(|it| it.ranges.is_empty() && it.unclosed.is_empty());
    let advice = match without_ranges {
        Some(nsys) => format!(
            "The capture has no ranges: have the program open {} around its stages, and name them: \
             `--stage NAME=RANGE`, or `stage` of an import.",
            nsys.tool.ranges()
        ),
        None => "Name the ranges that are stages: `--stage NAME=RANGE`, or `stage` of an import."
            .to_owned(),
    };
    let how = match trace.timeline.as_ref().and_then(engine_of) {
        Some((engine, _)) => format!(" `llmprof engines {}` prints how to open some.", engine.name),
        None => String::new(),
    };
    found.with(SIGNS, "none").advise(advice + &how)
}

#[cfg(test)]
mod tests {
    use llmprof_core::{domain::finding::catalogue, trace::engines::engines};

    use super::*;
    use crate::{analyze, kernels::tests::capture};

    /// The finding on missing stages of an import.
    fn no_stages(sketch: &str) -> Finding {
        let timeline = Some(capture(sketch));
        let trace = Trace { subject: SubjectKind::Import, timeline, ..Trace::default() };
        let found = analyze(&trace, None, None).findings;
        found.into_iter().find(|it| it.id == "no_stages").unwrap()
    }

    #[test]
    fn each_framework_is_an_engine() {
        assert!(FRAMEWORKS.iter().all(|name| engines().any(|it| it.name == *name)));
    }

    #[test]
    fn remedies_name_tokens_only_for_programs_with_signs_of_a_language_model() {
        let advice = "Keep sampled tokens on the device, and synchronise once per step or less.";
        for (kernel, expected) in [
            ("flash_fwd_kernel", advice),
            ("add_parallel", "Keep results on the device, and synchronise once per step or less."),
        ] {
            let timeline = Some(capture(&format!("call 1 1 1..2\nkernel 1 {kernel} 5..50 7")));
            let trace = Trace { subject: SubjectKind::Import, timeline, ..Trace::default() };
            let analysis = analyze(&trace, None, None);
            let of = |advice: &str| {
                let found = Finding::new(catalogue::LEDGER_GAP_SYNC, "Waits.").advise(advice);
                with_remedies(vec![found], &analysis, &trace).remove(0).advice.clone().unwrap()
            };
            assert_eq!(of(advice), expected);
            assert_eq!(of("Copy less."), "Copy less.");
        }
    }

    #[test]
    fn advice_names_prefill_and_decode_only_for_programs_with_signs_of_a_language_model() {
        let of = |kernel: &str, range: &str| {
            let work = format!("call 1 1 1..2\nkernel 1 {kernel} 5..50 7");
            match range {
                "" => work,
                range => format!("range 1 {range} 0..60\n{work}"),
            }
        };
        for (kernel, range, is_language_model) in [
            ("add_parallel", "", false),
            ("par_ranged2d_kernel", "solve", false),
            ("flash_fwd_kernel", "", true),
            ("paged_attention_v2", "", true),
            ("add_parallel", "LlamaModel", true),
            ("add_parallel", "next_token", true),
            ("rotary_kernel", "solve", true),
            ("set_argptr", "smallMatrix", false),
            ("setArgPtr", "FULLMATRIX", false),
            ("add_parallel", "GPTBlock", true),
            ("add_parallel", "nanoGPT", true),
            ("add_parallel", "my_llm", true),
        ] {
            let found = no_stages(&of(kernel, range));
            let advice = found.advice.as_deref().unwrap();
            assert_eq!(!is_of_any_program(&found), is_language_model, "{kernel} {range}");
            assert_eq!(advice.contains("prefill"), is_language_model, "{kernel} {range}: {advice}");
            assert_eq!(advice.contains("NAME=RANGE"), !is_language_model, "{advice}");
        }
    }
}
