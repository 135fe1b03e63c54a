//! Comparability of two runs: the facts that a verdict requires.
//!
//! A fact that a report does not state is unknown, never a default of the request.

use llmprof_analyze::compare::{ComparabilityCheck, RUN_DRIFT_PCT, VerdictEffect};
use llmprof_core::domain::subject::Subject;

use super::request_latencies::load_text;
use crate::{
    format::{count, quantity},
    headline::{self, device},
    profile::LLMProfileReport,
};

type Report = LLMProfileReport;

/// The facts about both runs, and whether each prevents a verdict.
pub fn checks(a: &Report, b: &Report) -> Vec<ComparabilityCheck> {
    use VerdictEffect::{Never, UnlessSame, WhereDifferent};
    let both = |what: &str, decides: VerdictEffect, of: fn(&Report) -> Option<String>| {
        ComparabilityCheck::of(what, of(a), of(b), decides)
    };
    let clock = |stage: &str| {
        let of =
            |it: &Report| it.power.as_ref()?.stages.iter().find(|row| row.stage == stage)?.sm_mhz;
        ComparabilityCheck::near(
            &format!("SM clock in {stage}"),
            "MHz",
            (of(a), of(b)),
            RUN_DRIFT_PCT,
        )
    };
    let mut checks = vec![
        both("model", WhereDifferent, |it| it.spec.model().map(str::to_owned)),
        both("part", WhereDifferent, part),
        both("parameters", WhereDifferent, |it| it.model.parameters.map(count)),
        both("dtype", WhereDifferent, |it| it.model.dtype.clone()),
        both("weights", Never, |it| it.model.weights.clone()),
        both("device", UnlessSame, device),
        both("driver", Never, |it| it.environment.driver.clone()),
        both("pass that was timed", WhereDifferent, |it| Some(headline::timed_pass(it).into())),
        both("stage ranges", WhereDifferent, |it| {
            Some(rules(it, |rules| &rules.0, "by their standard names"))
        }),
        both("include_ranges", WhereDifferent, |it| {
            Some(rules(it, |rules| &rules.1, "everything"))
        }),
        both("exclude_ranges", WhereDifferent, |it| Some(rules(it, |rules| &rules.2, "nothing"))),
        inputs_check(a, b),
        both("prompt positions", WhereDifferent, prompt),
        both("decode steps", WhereDifferent, |it| it.aggregates.decode_steps.map(count)),
        both("seed", Never, |it| Some(it.spec.workload()?.seed.to_string())),
        both("decode", Never, |it| {
            Some(if it.model.decode_graph? { "a replayed CUDA graph" } else { "eager" }.into())
        }),
        both("mode", Never, |it| Some(it.spec.mode()?.to_string())),
        both("warm-up and repeats", Never, |it| {
            it.spec.passes().map(|it| format!("{} and {}", it.warmup, it.repeats))
        }),
        both("llmprof", Never, |it| {
            let commit = it
                .environment
                .git_commit
                .as_deref()
                .map(|commit| format!(", {commit}"))
                .unwrap_or_default();
            Some(format!("{}{commit}", it.environment.llmprof))
        }),
        both("nsys", Never, |it| it.environment.nsys.clone()),
        both("ncu", Never, |it| it.environment.ncu.clone()),
    ];
    let call = |it: &Report| serde_json::to_string(it.spec.call()?).ok();
    if call(a).or(call(b)).is_some() {
        checks.push(ComparabilityCheck::of("command", call(a), call(b), WhereDifferent));
    }
    let load = |it: &Report| load_text(&it.aggregates.loads);
    if load(a).or(load(b)).is_some() {
        checks.push(ComparabilityCheck::of("load", load(a), load(b), WhereDifferent));
    }
    // Profilers slow a program differently; without another one it was nsys, or none.
    if a.environment.profiler.is_some() || b.environment.profiler.is_some() {
        checks.push(both("profiler", WhereDifferent, profiler));
    }
    if a.power.is_some() || b.power.is_some() {
        checks.extend(["prefill", "decode_all"].map(clock));
    }
    checks
}

/// The profiler by its name without its version.
fn profiler(it: &Report) -> Option<String> {
    let own = it.environment.profiler.as_deref().unwrap_or("nsys");
    Some(own.split(" (").next().unwrap_or(own).to_owned())
}

/// Positions of the prompt, or of all prompts of a batch.
fn prompt(it: &Report) -> Option<String> {
    let positions = count(it.model.prompt_tokens?);
    Some(match it.model.batch {
        Some(batch) if batch > 1 => format!("{positions} of {} sequences", count(batch)),
        _ => positions,
    })
}

/// The part of a model that ran.
fn part(report: &Report) -> Option<String> {
    match &report.spec.subject {
        Subject::Model(_) => Some("the whole model".into()),
        Subject::Part(it) => Some(it.part.0.clone()),
        Subject::Command(_) | Subject::Import(_) => None,
    }
}

/// Ranges of stages, included ranges and excluded ranges.
type Rules = (Vec<String>, Vec<String>, Vec<String>);

/// One list of a capture's rules, as text; `none` if it is empty.
fn rules(report: &Report, list: fn(&Rules) -> &Vec<String>, none: &str) -> String {
    let stated =
        report.stage_rules.clone().map(|it| (it.stages, it.include_ranges, it.exclude_ranges));
    // Older reports of imports have the rules only in the request.
    let asked = || {
        report
            .spec
            .import()
            .map(|it| (it.stages.clone(), it.include_ranges.clone(), it.exclude_ranges.clone()))
    };
    let mut names = stated.or_else(asked).map(|rules| list(&rules).clone()).unwrap_or_default();
    names.sort();
    if names.is_empty() { none.to_owned() } else { names.join(", ") }
}

/// Inputs are the same if their prompts and images are. A report of an earlier version has the
/// hashes of the images alone.
fn inputs_check(a: &Report, b: &Report) -> ComparabilityCheck {
    let hashed = |it: &Report| {
        let hash = it.inputs_sha256.as_ref()?;
        let images = quantity(it.inputs.len() as u64, "image");
        Some(format!("{images}, sha256 {}", hash.get(..12).unwrap_or(hash)))
    };
    let (of_a, of_b) = match (hashed(a), hashed(b)) {
        (Some(a), Some(b)) => (Some(a), Some(b)),
        _ => (inputs(a), inputs(b)),
    };
    ComparabilityCheck::of("inputs", of_a, of_b, VerdictEffect::WhereDifferent)
}

/// The images by hash and the manifest's name; `None` if the run states no inputs.
fn inputs(report: &Report) -> Option<String> {
    let hashes: Vec<&str> =
        report.inputs.iter().map(|it| it.sha256.get(..12).unwrap_or(&it.sha256)).collect();
    let manifest = &report.spec.workload()?.inputs_manifest;
    let images = if hashes.is_empty() { "no images".into() } else { hashes.join(", ") };
    Some(format!("{manifest} ({images})"))
}
