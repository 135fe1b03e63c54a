//! Findings on the first page: what they withhold, and the conditions of the figures.

use llmprof_analyze::{findings::language_model, timeline::open_ranges::STAGES_WITHOUT_END};
use llmprof_core::domain::finding::{
    Finding, Severity,
    catalogue::{self, FindingId},
};

use super::cited::Cited;

/// Findings on times that are not valid: critical if figures are withheld.
const ON_TIMES: [FindingId; 2] = [catalogue::WORK_UNTIMED, catalogue::DEVICE_CLOCK_DIFFERS];
/// Findings on stages or a timeline that lack work.
const ON_WORK: [FindingId; 4] = [
    catalogue::KERNELS_LOST,
    catalogue::KERNELS_UNATTRIBUTED,
    catalogue::STAGE_LAUNCHED_ELSEWHERE,
    catalogue::STAGE_WITHOUT_WORK,
];
/// Findings that withhold nothing: the figures are right under a condition.
const CONDITIONS: [FindingId; 10] = [
    catalogue::GPU_NAME_DOUBTED,
    catalogue::HOST_BUSY,
    catalogue::STEP_NAMES_UNKNOWN,
    catalogue::STEPS_LEFT_OUT,
    catalogue::OUTPUTS_DIFFER,
    catalogue::STATED_STEPS_DIFFER,
    catalogue::STATED_MODEL_ON_SEVERAL_GPUS,
    catalogue::TRACE_CLOCKS_DIFFER,
    catalogue::TRACE_TIMES_COARSE,
    catalogue::TRACE_STACKS_RECORDED,
];
/// Findings on shown times that are corrected, or lack some work.
const ON_SHOWN_TIMES: [FindingId; 5] = [
    catalogue::COLD_FIRST_INSTANCE,
    catalogue::STEPS_INFERRED,
    catalogue::WORK_BEFORE_RECORDING,
    catalogue::EVENTS_CUT,
    catalogue::EVENTS_WITHOUT_END,
];

/// Findings on waits of ranks for one another.
const ON_RANKS: [FindingId; 2] = [catalogue::COLLECTIVE_STRAGGLER, catalogue::COLLECTIVE_SKEW];

fn is_one_of(finding: &Finding, ids: &[FindingId]) -> bool {
    ids.iter().any(|id| finding.id == *id)
}

fn is_critical(finding: &Finding) -> bool {
    finding.severity == Severity::Critical
}

/// The message, with its advice.
fn text(finding: &Finding) -> String {
    match &finding.advice {
        Some(advice) => format!("{} {advice}", finding.message),
        None => finding.message.clone(),
    }
}

/// Critical findings, for whose reason figures are withheld: the first of each id.
///
/// Captures without stages have sentences of their own.
pub fn withheld(findings: &[Finding]) -> impl Iterator<Item = String> + '_ {
    let others = |it: &&Finding| {
        is_critical(it) && it.id != catalogue::NO_STAGES && !is_one_of(it, &CONDITIONS)
    };
    let mut seen: Vec<&str> = Vec::new();
    findings.iter().filter(others).filter_map(move |it| {
        let is_new = !seen.contains(&it.id.as_str());
        seen.push(&it.id);
        is_new.then(|| text(it))
    })
}

/// Findings without which the figures would be misread.
pub fn conditions(findings: &[Finding]) -> impl Iterator<Item = Cited> + '_ {
    let stated =
        findings.iter().filter(|it| is_one_of(it, &CONDITIONS)).map(|it| Cited::name(text(it)));
    let is_shown = |it: &&Finding| {
        is_one_of(it, &ON_SHOWN_TIMES)
            || it.severity == Severity::Warning && is_one_of(it, &ON_TIMES)
    };
    let shown = |it: &Finding| match it.id == catalogue::STEPS_INFERRED {
        true => Cited::name(&it.message).naming("engine_steps"),
        false => Cited::name(&it.message),
    };
    stated.chain(findings.iter().filter(is_shown).map(shown))
}

/// The rank that others wait for, or that it is another each time, with advice.
pub fn on_ranks(findings: &[Finding]) -> impl Iterator<Item = Cited> + '_ {
    let of_ranks = findings.iter().filter(|it| is_one_of(it, &ON_RANKS));
    of_ranks.map(|it| Cited::name(text(it)).naming("ranks"))
}

/// The reason for a page without any time, with its remedy.
pub fn why_nothing_timed(findings: &[Finding]) -> Option<String> {
    findings.iter().find(|it| it.id == catalogue::NO_STAGES).map(text)
}

/// The remedy for a trace that runs nothing.
pub fn why_nothing_ran(findings: &[Finding]) -> Option<String> {
    findings.iter().find(|it| it.id == catalogue::GRAPH_CAPTURE_ALONE).map(text)
}

/// True if the capture lacks kernels, or the calls that launched some.
pub fn lacks_work(findings: &[Finding]) -> bool {
    let missing = [catalogue::KERNELS_LOST, catalogue::KERNELS_UNATTRIBUTED];
    findings.iter().any(|it| is_one_of(it, &missing))
}

/// The reason for absent times of a device, with its remedy, if a finding names it.
pub fn why_untimed(findings: &[Finding]) -> Option<String> {
    let is_reason =
        |it: &&Finding| is_one_of(it, &ON_WORK) || is_critical(it) && is_one_of(it, &ON_TIMES);
    let none = || findings.iter().find(|it| it.id == catalogue::NO_KERNEL_DATA);
    findings.iter().filter(is_reason).max_by_key(|it| it.severity).or_else(none).map(text)
}

/// The remedy for a capture without kernels.
pub fn why_no_kernels(findings: &[Finding]) -> Option<&str> {
    findings.iter().find(|it| it.id == catalogue::NO_KERNEL_DATA)?.advice.as_deref()
}

/// The reason for absent times of stages, with its remedy, if their ranges have no end.
pub fn why_unended(findings: &[Finding]) -> Option<String> {
    let is_reason = |it: &&Finding| {
        it.id == catalogue::RANGE_UNCLOSED && it.evidence.contains_key(STAGES_WITHOUT_END)
    };
    findings.iter().find(is_reason).map(text)
}

/// The reason for absent times of stages, with its remedy, if a range filter leaves all out.
pub fn why_excluded(findings: &[Finding]) -> Option<String> {
    findings.iter().find(|it| it.id == catalogue::STAGES_EXCLUDED).map(text)
}

/// The reason for absent times of stages, with its remedy, if the capture marks steps and none
/// counts.
pub fn why_left_out(findings: &[Finding]) -> Option<String> {
    findings.iter().find(|it| it.id == catalogue::STEPS_LEFT_OUT).map(text)
}

/// The finding on a capture without stages.
fn no_stages(findings: &[Finding]) -> Option<&Finding> {
    let ids = [catalogue::NO_STAGES, catalogue::COMMAND_WITHOUT_STAGES];
    findings.iter().find(|it| is_one_of(it, &ids))
}

/// The stages that a capture does not mark, and the name of one in a rule.
pub fn unmarked_stages(findings: &[Finding]) -> (&'static str, &'static str) {
    match no_stages(findings).is_some_and(language_model::is_of_any_program) {
        true => ("the stages of the program", "NAME"),
        false => ("prefill and decode", "prefill"),
    }
}

/// The remedy for a capture without ranges, of its engine and profiler.
pub fn why_no_stages(findings: &[Finding]) -> &str {
    let found = no_stages(findings);
    let advice = found.and_then(|it| it.advice.as_deref());
    advice.unwrap_or("Have the program open ranges called prefill and decode_step.")
}
