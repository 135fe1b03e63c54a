//! The rules that turn figures into findings: each names its evidence and a remedy, and none fires without evidence.
//!
//! A rule is data ([`rules::Rule`]) with a function from the analysis to findings; adding one is adding an entry to [`RULES`].

mod kernels;
mod rule;
mod rules;
mod time;

pub use self::rules::{RULES, Rule};
use super::{
    Analysis,
    stages::{DECODE, PREFILL, STAGES},
    stats::percent,
};
use crate::{
    run::{Finding, Severity, SubjectKind},
    trace::Trace,
};

/// Above this coefficient of variation, percent, a mean over repeats says little.
const NOISY_CV_PCT: f64 = 10.0;
/// One part dominates another when it takes at least this many times as long.
const DOMINANCE: f64 = 1.2;
/// Operators should account for at least this share of a stage, percent.
const LOW_COVERAGE_PCT: f64 = 90.0;
/// A mixture that hits less than this share of the experts of an even router has collapsed.
const COLLAPSED_PCT: f64 = 50.0;
/// Counted and modelled FLOPs should agree within this, percent.
const COST_TOLERANCE_PCT: f64 = 0.1;
/// A dominant operator takes at least this share of its stage, percent.
const DOMINANT_SHARE_PCT: f64 = 20.0;

/// Applies every rule; worst first, in the rules' order within a severity.
pub fn findings(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let mut found: Vec<Finding> = RULES.iter().flat_map(|rule| rule.apply(analysis, trace)).collect();
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

/// A finding whose severity and advice are its rule's.
fn finding(id: &str, message: String) -> Finding {
    Finding::new(id, Severity::Info, message)
}

fn nothing_measured(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // A command without stages has a finding of its own.
    if !analysis.stages.rows.is_empty() || analysis.subject == SubjectKind::Command {
        return vec![];
    }
    let (message, advice) = analysis.why_no_stages();
    vec![Finding::new("no_stages", Severity::Critical, message).advise(advice)]
}

fn runner_unfinished(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // A capture of another program has no runner that could have ended.
    if analysis.stages.rows.is_empty() || analysis.end.is_some() || !analysis.subject.has_runner() || analysis.only_traced {
        return vec![];
    }
    let message = "The runner's events stop before its last line: figures are those of the repeats that it finished.";
    let finding = Finding::new("runner_unfinished", Severity::Warning, message);
    vec![finding.with("repeats finished", analysis.stages.repeats).advise("Look at the baseline step's log for why it ended.")]
}

fn outputs_differ(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let outputs = analysis.outputs;
    let mut found = Vec::new();
    if outputs.repeats_agree == Some(false) {
        let message = "Repeats of the plain pass computed different outputs from the same inputs.";
        found.push(
            Finding::new("repeats_differ", Severity::Warning, message)
                .advise("Times of repeats may not be comparable: look for operators whose order of summation varies."),
        );
    }
    if outputs.traced_tokens_equal == Some(false) || outputs.traced_logits_equal == Some(false) {
        let message = "The traced pass did not compute what the plain pass computed.";
        let said = |equal: Option<bool>| equal.map_or("unknown", |equal| if equal { "equal" } else { "different" });
        found.push(
            Finding::new("outputs_differ", Severity::Critical, message)
                .with("tokens", said(outputs.traced_tokens_equal))
                .with("logits", said(outputs.traced_logits_equal))
                .advise("Do not attribute this capture to the timed run; check seed, weights and number format of both passes."),
        );
    }
    found
}

fn capture_incomplete(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.nsys else { return vec![] };
    // A stage is missing where a runner timed it and the capture does not hold it: other programs need not have both.
    let timed = |stage: &&str| !trace.baseline.is_empty() && analysis.stages.row(stage).is_some();
    let held = |stage: &str| nsys.ranges.iter().any(|range| nsys.rules.stage(&range.name, &range.domain) == Some(stage));
    let missing: Vec<&str> = STAGES.into_iter().filter(timed).filter(|stage| !held(stage)).collect();
    let mut found = Vec::new();
    if !missing.is_empty() {
        let message = format!("The nsys capture lacks the range {}.", missing.join(" and the range "));
        let mut finding = Finding::new("capture_incomplete", Severity::Warning, message)
            .with("ranges captured", nsys.ranges.len())
            .advise("Take the capture again; if it stays so, update nsys to the driver's version and look at the step's log.");
        for (index, said) in nsys.diagnostics.iter().take(3).enumerate() {
            finding = finding.with(&format!("nsys says ({})", index + 1), said);
        }
        found.push(finding);
    }
    if nsys.impossible_rows > 0 {
        let message = format!(
            "{} rows of the capture have no times, end before they start or lie in no age of computers.",
            nsys.impossible_rows
        );
        found.push(Finding::new("capture_times_impossible", Severity::Warning, message).with("left out", nsys.impossible_rows));
    }
    found
}

fn coverage(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    trace.nsys.as_ref().map_or(vec![], |nsys| super::coverage::findings(analysis, nsys))
}

fn range_not_found(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let checked = trace.nsys.as_ref().map(|nsys| nsys.check_rules(&nsys.rules));
    let said = |unknown: crate::trace::stage::UnknownRange| {
        let available = unknown.available.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
        finding("range_not_found", format!("No range of the capture is named {:?}.", unknown.wanted)).with("available", available)
    };
    checked.and_then(Result::err).map(said).into_iter().collect()
}

fn cold(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    super::cold::findings(&analysis.cold)
}

fn unclosed(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    trace.nsys.as_ref().and_then(super::scopes::unclosed).into_iter().collect()
}

fn overhead_high(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    super::overhead::findings(&analysis.overhead, trace, time::replays(analysis))
}

fn few_repeats(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let whole = analysis.command.as_ref().and_then(|command| command.plain_ms);
    let repeats = whole.map_or(analysis.stages.repeats, |it| it.n);
    if repeats == 0 || repeats >= 3 {
        return vec![];
    }
    let message = match repeats {
        1 => "Only one repeat was measured: how much the times vary is unknown.".to_owned(),
        _ => format!("Only {repeats} repeats were measured: the deviations are rough."),
    };
    vec![Finding::new("few_repeats", Severity::Info, message).with("repeats", repeats).advise(analysis.more_repeats())]
}

fn high_variance(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let advice = match analysis.subject.runs_here() {
        true => "Raise warmup and repeats, and keep other work off the device.",
        false => "Record more instances after a warm-up, and keep other work off the device.",
    };
    let noisy = |(stage, ms): (&str, super::stats::Spread)| {
        let cv = ms.cv_pct().filter(|cv| *cv > NOISY_CV_PCT)?;
        let message = format!("{stage} varies by {cv:.0} % between repeats.");
        Some(
            Finding::new("high_variance", Severity::Warning, message)
                .with("stage", stage)
                .with("mean ms", format!("{:.3}", ms.mean))
                .with("min ms", format!("{:.3}", ms.min))
                .with("max ms", format!("{:.3}", ms.max))
                .advise(advice),
        )
    };
    let whole = analysis.command.as_ref().and_then(|it| Some((it.of.as_str(), it.plain_ms?)));
    whole.into_iter().chain(analysis.stages.rows.iter().map(|row| (row.stage.as_str(), row.ms))).filter_map(noisy).collect()
}

fn dominant_stage(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let (Some(prefill), Some(decode)) = (analysis.stages.row(PREFILL), analysis.stages.row(DECODE)) else { return vec![] };
    let (large, small, advice) = if decode.ms.mean >= prefill.ms.mean {
        (decode, prefill, "Work on what one decode step costs first: it is paid for every token.")
    } else {
        let advice = match analysis.stages.note("vision") {
            Some(_) => "Work on the time to the first token first: vision and the prompt's length decide it.",
            None => "Work on the time to the first token first: the prompt's length decides it.",
        };
        (prefill, decode, advice)
    };
    let times = large.ms.mean / small.ms.mean;
    if !times.is_finite() || times < DOMINANCE {
        return vec![];
    }
    let message = format!("{} takes {times:.1} times as long as {}.", large.stage, small.stage);
    let mut finding = Finding::new("stage_dominates", Severity::Info, message).with("stage", &large.stage);
    for row in [large, small] {
        finding = finding.with(&format!("{} ms", row.stage), format!("{:.3}", row.ms.mean));
    }
    if let Some(vision) = analysis.stages.note("vision").filter(|_| large.stage == PREFILL) {
        finding = finding.with("vision inside prefill ms", format!("{:.3}", vision.ms.mean));
    }
    vec![finding.advise(advice)]
}

fn dominant_operator(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let dominant = |stage: &str| {
        let ranked = analysis.operators.ranked(stage);
        let ((first, longest), (second, next)) = (ranked.first()?, ranked.get(1)?);
        let share = longest.share_pct.filter(|share| *share >= DOMINANT_SHARE_PCT)?;
        if longest.ms < DOMINANCE * next.ms {
            return None;
        }
        let what = if longest.on_device { "kernel time" } else { "time" };
        let message = format!("In {stage}, {} takes {share:.0} % of the {what}.", first.path);
        let finding = Finding::new("operator_dominates", Severity::Info, message)
            .with("operator", &first.path)
            .with("share of stage", format!("{share:.1} %"))
            .with("calls", first.calls)
            .with("next", format!("{} ({:.1} %)", second.path, next.share_pct.unwrap_or(0.0)));
        // Host times are of the repeats that were timed, device times of those of the traced pass.
        let timed = f64::from(analysis.stages.repeats.max(1));
        let repeats = if longest.on_device { time::repeats(analysis, stage) } else { Some(timed) };
        let saving = repeats.and_then(|repeats| time::saving(analysis, stage, longest.ms / repeats));
        Some(finding.saves(saving).advise("Fuse it, reshape it or change its algorithm."))
    };
    STAGES.into_iter().filter_map(dominant).collect()
}

fn uncovered_time(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // On a GPU an operator's host time is that of its launches, and what is left of a stage is mostly waiting for the GPU. Ranges of other
    // programs need not cover their modules: only a runner's records say that what is outside of operators is none.
    let on_cpu = analysis.start.as_ref().is_some_and(|start| start.device == "cpu");
    if !on_cpu || !analysis.subject.has_runner() {
        return Vec::new();
    }
    let uncovered = |stage: &str| {
        let covered = analysis.operators.work.get(stage)?.covered_pct.filter(|covered| *covered < LOW_COVERAGE_PCT)?;
        let outside = |covered: f64| {
            let mean = analysis.stages.row(stage)?.ms.mean;
            time::saving(analysis, stage, mean * (100.0 - covered) / 100.0)
        };
        let message = format!("{:.0} % of {stage} lies between operators, in host code.", 100.0 - covered);
        Some(
            Finding::new("time_between_operators", Severity::Warning, message)
                .with("stage", stage)
                .with("inside operators", format!("{covered:.1} %"))
                .saves(outside(covered))
                .advise("Look for copies and small loops on the host."),
        )
    };
    STAGES.into_iter().filter_map(uncovered).collect()
}

fn experts_collapsed(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let share = |it: &super::experts::ExpertUse| percent(it.distinct.mean, it.expected?);
    let collapsed: Vec<_> = analysis.experts.iter().filter(|it| share(it).is_some_and(|pct| pct < COLLAPSED_PCT)).collect();
    let Some(worst) = collapsed.iter().min_by(|a, b| share(a).unwrap_or(0.0).total_cmp(&share(b).unwrap_or(0.0))) else {
        return vec![];
    };
    let (few, all) = (collapsed.len(), analysis.experts.len());
    let message =
        format!("In {few} of {all} pairs of layer and stage, routing hit less than half the experts of an even router.");
    vec![
        Finding::new("experts_collapsed", Severity::Warning, message)
            .with("worst", format!("layer {} in {}", worst.layer, worst.stage))
            .with("distinct experts", format!("{:.1} of {}", worst.distinct.mean, worst.total))
            .with("an even router", format!("{:.1}", worst.expected.unwrap_or(0.0)))
            .advise("Decode looks cheaper than with trained weights, since fewer experts are read: balance the router."),
    ]
}

fn cost_disagrees(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let Some(cost) = &analysis.cost else { return vec![] };
    let disagrees = |row: &super::mfu::MfuRecord| {
        let modelled = if row.scope == PREFILL { cost.prefill_flops } else { cost.decode_flops };
        let off = percent(row.flops as f64 - modelled as f64, modelled as f64)?;
        if row.flops_source != "counted" || off.abs() <= COST_TOLERANCE_PCT {
            return None;
        }
        let message = format!("FLOPs counted in {} are {off:+.2} % off what the architecture needs.", row.scope);
        Some(
            Finding::new("cost_disagrees", Severity::Warning, message)
                .with("counted FLOPs", row.flops)
                .with("modelled FLOPs", modelled)
                .advise("Rates use the counted figure; an operator is missing from the records or from the cost model."),
        )
    };
    analysis.mfu.rows.iter().filter(|row| STAGES.contains(&row.scope.as_str())).filter_map(disagrees).collect()
}

fn no_peaks(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(ceilings) = &analysis.mfu.ceilings else { return vec![] };
    let mut found = Vec::new();
    if ceilings.datasheet_flops_per_s.is_none() {
        let device = analysis.start.as_ref().map_or("", |start| start.device.as_str());
        let ran_on = trace.environment.device.as_ref().and_then(|device| device.product.as_deref());
        let name = ran_on.or(trace.environment.gpus.first().map(|gpu| gpu.name.as_str()));
        let (message, advice) = match (device, name) {
            ("cpu", _) => (
                "MFU against a datasheet is not given: the model ran on the CPU.".to_owned(),
                "Compare with the measured matrix product, or run on a GPU.",
            ),
            (_, Some(name)) => (
                format!("MFU against a datasheet is not given: no peak in {} is known for {name}.", ceilings.dtype),
                "Add the device to conf/devices.toml with its source.",
            ),
            _ => (
                "MFU against a datasheet is not given: the device's name could not be read.".to_owned(),
                "Install the driver's NVML library (libnvidia-ml.so.1).",
            ),
        };
        found.push(Finding::new("no_datasheet_peak", Severity::Info, message).with("device", device).advise(advice));
    }
    if ceilings.measured_flops_per_s.is_none() {
        let message = "The device's own ceiling was not measured, so use against it is not given.";
        found.push(Finding::new("no_measured_peak", Severity::Info, message).advise(if analysis.subject.has_runner() {
            "Let the run finish: ceilings are measured last."
        } else {
            "Have the command write its ceilings to standard output as events."
        }));
    }
    found
}

fn no_kernels(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some((message, advice)) = why_no_kernels(analysis, trace) else { return vec![] };
    let captured = trace.nsys.as_ref().map_or("none", |_| "taken");
    vec![Finding::new("no_kernel_data", Severity::Info, message).with("nsys capture", captured).advise(advice)]
}

/// Why the kernel table is empty and what fills it; `None` when it is not.
pub fn why_no_kernels(analysis: &Analysis, trace: &Trace) -> Option<(String, &'static str)> {
    if !analysis.kernels.records.is_empty() {
        return None;
    }
    let on_cpu = analysis.start.as_ref().is_some_and(|start| start.device == "cpu");
    let (message, advice) = if on_cpu {
        (
            "There is no kernel data: the model ran on the CPU, which launches no device kernels.",
            "Run on a host with an NVIDIA GPU, with model-runner built with --features cuda.",
        )
    } else if !analysis.graphs.is_empty() {
        (
            "There is no kernel data: CUDA graphs were traced as a whole, and the kernels inside are not recorded.",
            super::graphs::REMEDY,
        )
    } else {
        analysis.why_no_kernels(trace.nsys.is_some())
    };
    Some((message.to_owned(), advice))
}

#[cfg(test)]
mod tests;
