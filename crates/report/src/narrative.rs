//! The report's summary in sentences: each one states a measured figure or a finding.

use llmprof_analyze::{
    Analysis,
    stages::{DECODE, PREFILL, STAGES, cold::COLD_PART, in_sentence},
    timeline::graphs,
};
use llmprof_core::domain::{
    finding::{Finding, Severity},
    units::capitalised,
};

use super::{
    answer::Answer,
    format::{MAJORITY_PCT, figure, of_interval, pct, quantity, scaled},
    kernel_names::KernelNames,
    waits::Waits,
};

/// Sentences on where the time went, most general first. The first page of a run on the CPU has its
/// operators.
pub fn narrative(analysis: &Analysis, on_cpu: bool) -> Vec<String> {
    [whole(analysis), vision(analysis)]
        .into_iter()
        .chain(STAGES.map(|stage| match on_cpu {
            true => covered(analysis, stage),
            false => operators(analysis, stage),
        }))
        .chain([kernels(analysis)])
        .chain(STAGES.map(|stage| whole_graphs(analysis, stage)))
        .chain([utilisation(analysis), proof(analysis)])
        .flatten()
        .collect()
}

/// Advice of the findings that the answer lacks: critical ones, then by saving, then those without
/// one. Findings with one advice are one recommendation.
pub fn recommendations(findings: &[Finding], answer: &Answer) -> Vec<String> {
    let saving = |it: &Finding| it.max_saving.as_ref().and_then(|it| it.ms).unwrap_or(0.0);
    let mut ranked: Vec<&Finding> =
        findings.iter().filter(|finding| finding.severity > Severity::Info).collect();
    ranked.sort_by(|a, b| {
        let is_critical = |it: &Finding| it.severity == Severity::Critical;
        is_critical(b).cmp(&is_critical(a)).then(saving(b).total_cmp(&saving(a)))
    });
    let mut found: Vec<(&str, String)> = Vec::new();
    for it in ranked.into_iter().chain(takeaways(findings)) {
        let Some(advice) = it.advice.as_deref().filter(|it| !answer.advises(it)) else { continue };
        match found.iter_mut().find(|known| known.0 == advice) {
            Some((_, messages)) => messages.extend([" ", it.message.as_str()]),
            None => found.push((advice, it.message.clone())),
        }
    }
    found.into_iter().map(|(advice, messages)| format!("{messages} {advice}")).collect()
}

/// Findings on dominating stages and operators.
fn takeaways(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(|it| {
        it.severity == Severity::Info
            && matches!(it.id.as_str(), "stage_dominates" | "operator_dominates")
    })
}

/// Operators of a stage that a sentence names.
const NAMED: usize = 3;
/// The means of the parts of a repeat may exceed its mean by this factor.
const OVERLAPPING: f64 = 1.02;

fn whole(analysis: &Analysis) -> Option<String> {
    let stages = &analysis.stages;
    let wall = stages.wall_ms.filter(|_| !Waits::of(&analysis.ledger).any())?;
    // A capture may have one prefill and hundreds of decode steps: no repeat has one of each. Means
    // over other instances are not parts of a repeat.
    if stages.rows.iter().any(|row| row.ms.n != wall.n) {
        return None;
    }
    // Stages that overlap, or are of other repeats, do not add up to it.
    let sum: f64 = STAGES.into_iter().filter_map(|it| Some(stages.row(it)?.ms.mean)).sum();
    if sum > OVERLAPPING * wall.mean {
        return None;
    }
    let share = |stage| {
        let row = stages.row(stage)?;
        Some(format!(
            "{} {} ms ({})",
            in_sentence(&row.stage),
            figure(row.ms.mean),
            pct(row.share_pct?)
        ))
    };
    let parts: Vec<String> = STAGES.into_iter().filter_map(share).collect();
    let time = wall.std.map_or_else(
        || format!("{} ms", figure(wall.mean)),
        |std| {
            let [mean, std] = of_interval(wall.mean, std);
            format!("{mean} ms on average (deviation {std})")
        },
    );
    Some(format!("One repeat takes {time}: {}.", parts.join(", then ")))
}

fn vision(analysis: &Analysis) -> Option<String> {
    let note = analysis.stages.note("vision")?;
    let parts =
        analysis.stages.notes.iter().filter(|it| it.part != "vision" && it.part != COLD_PART);
    let largest = parts.max_by(|a, b| a.ms.mean.total_cmp(&b.ms.mean));
    let largest = largest
        .map(|it| format!(", most of it in {} ({} ms)", it.part, figure(it.ms.mean)))
        .unwrap_or_default();
    Some(format!(
        "Vision takes {} ms, {} of {PREFILL}{largest}.",
        figure(note.ms.mean),
        pct(note.share_pct?)
    ))
}

fn operators(analysis: &Analysis, stage: &str) -> Option<String> {
    let ranked = analysis.operators.ranked(stage);
    let shares: Vec<(&str, f64)> =
        ranked.iter().filter_map(|(it, own)| Some((it.path.as_str(), own.share_pct?))).collect();
    if !ranked.first()?.1.on_device {
        let covered = analysis.operators.work.get(stage)?.covered_pct?;
        return longest(stage, &shares, ("time", ["the stage"; 2], covered));
    }
    let time = match graphs::of_stage(&analysis.graphs, stage) {
        Some(_) => "recorded kernel time",
        None => "kernel time",
    };
    longest(stage, &shares, (time, ["it", time], shares.iter().map(|it| it.1).sum()))
}

/// The longest operators of a stage, and the share of all operators in a time with these names.
/// Most of the time is in the named ones only if their shares are more than half of it.
fn longest(
    stage: &str,
    shares: &[(&str, f64)],
    (time, [it, whole], covered): (&str, [&str; 2], f64),
) -> Option<String> {
    let named = || shares.iter().take(NAMED);
    let names: Vec<String> =
        named().map(|(name, share)| format!("{name} ({})", pct(*share))).collect();
    if names.is_empty() {
        return None;
    }
    let (stage, names, covered) = (in_sentence(stage), names.join(", "), pct(covered));
    Some(match named().map(|it| it.1).sum::<f64>() > MAJORITY_PCT {
        true => format!(
            "In {stage}, most {time} goes to {names}; operators account for {covered} of {it}."
        ),
        false => {
            format!("In {stage}, operators account for {covered} of {whole}; longest: {names}.")
        }
    })
}

fn covered(analysis: &Analysis, stage: &str) -> Option<String> {
    let covered = pct(analysis.operators.work.get(stage)?.covered_pct?);
    Some(format!("Operators account for {covered} of {}.", in_sentence(stage)))
}

fn kernels(analysis: &Analysis) -> Option<String> {
    let first = analysis.kernels.measured().find(|it| !it.stage.is_empty())?;
    let name = KernelNames::of(analysis.kernels.measured()).of_record(first);
    let stage = in_sentence(&first.stage);
    let calls = quantity(first.calls, "call");
    let longest =
        if analysis.graphs.is_empty() { "longest kernel" } else { "longest recorded kernel" };
    Some(format!("The {longest} is {name} in {stage}: {} ms over {calls}.", figure(first.total_ms)))
}

fn whole_graphs(analysis: &Analysis, stage: &str) -> Option<String> {
    let (launches, total) = graphs::of_stage(&analysis.graphs, stage)?;
    Some(format!(
        "CUDA graphs traced as a whole: {} in {}, {} ms on the GPU, at most {} ms each; the \
         kernels inside are not recorded.",
        quantity(launches, "launch"),
        in_sentence(stage),
        figure(total),
        figure(graphs::longest(&analysis.graphs, stage)),
    ))
}

fn utilisation(analysis: &Analysis) -> Option<String> {
    let waits = Waits::of(&analysis.ledger);
    let sentence = |stage: &str| {
        let row = analysis.mfu.rows.iter().find(|row| row.scope == stage && !waits.has(stage))?;
        let shares =
            [(row.datasheet_pct, "the datasheet's peak"), (row.measured_pct, "the measured GEMM")];
        let shares: Vec<String> = shares
            .into_iter()
            .filter_map(|(share, of)| Some(format!("{} of {of}", pct(share?))))
            .collect();
        let shares =
            if shares.is_empty() { String::new() } else { format!(", {}", shares.join(" and ")) };
        let stage = in_sentence(stage);
        Some(format!("{stage} reaches {}{shares}", scaled(row.flops_per_s?, "FLOP/s")))
    };
    let all: Vec<String> = [PREFILL, DECODE].into_iter().filter_map(sentence).collect();
    (!all.is_empty()).then(|| format!("{}.", capitalised(&all.join("; "))))
}

fn proof(analysis: &Analysis) -> Option<String> {
    let outputs = analysis.outputs;
    let equal = outputs.traced_tokens_equal? && outputs.traced_logits_equal?;
    equal.then(|| {
        "The traced pass computed the same tokens and logits as the unprofiled one.".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::{
        stages::{StageTiming, Stages},
        stats::Spread,
    };
    use llmprof_core::domain::finding::catalogue;

    use super::*;

    #[test]
    fn advice_that_the_answer_or_another_finding_has_is_not_recommended_again() {
        let finding = |message: &str, advice: &str| {
            Finding::new(catalogue::HOST_BUSY, message).advise(advice.to_owned())
        };
        let answer = Answer { unknown: vec!["It is unknown. Do A.".into()], ..Answer::default() };
        let all = [finding("One.", "Do A."), finding("Two.", "Do B."), finding("Three.", "Do B.")];
        assert_eq!(recommendations(&all, &answer), ["Two. Three. Do B."]);
    }

    #[test]
    fn a_repeat_has_one_instance_of_each_stage() {
        let first = |prefills: usize, decode_steps: usize| {
            let row = |(stage, ms): (&str, &[f64])| StageTiming {
                stage: stage.into(),
                ms: Spread::of(ms.iter().copied()).unwrap(),
                share_pct: Some(50.0),
                tokens: None,
                tokens_per_s: None,
            };
            let rows = [(PREFILL, &vec![10.0; prefills][..]), (DECODE, &vec![10.0; decode_steps])];
            let rows = rows.map(row).into();
            let stages = Stages { rows, wall_ms: Spread::of([20.0]), ..Stages::default() };
            narrative(&Analysis { stages, ..Analysis::default() }, false).into_iter().next()
        };
        let repeat = "One repeat takes 20.0 ms: prefill 10.0 ms (50.0 %), then decode 10.0 ms \
                      (50.0 %).";
        assert_eq!(first(1, 1).as_deref(), Some(repeat));
        for (prefills, decodes) in [(1, 256), (1, 2), (2, 1), (2, 2)] {
            assert_eq!(first(prefills, decodes), None, "means over other instances");
        }
    }

    #[test]
    fn operators_take_most_of_the_time_only_if_their_shares_are_more_than_half() {
        let sentence = |shares: &[f64]| {
            let names = ["op0", "op1", "op2", "op3"];
            let shares: Vec<(&str, f64)> = names.into_iter().zip(shares.iter().copied()).collect();
            longest(DECODE, &shares, ("kernel time", ["it", "kernel time"], 80.0)).unwrap()
        };
        assert_eq!(
            sentence(&[40.0, 11.0]),
            "In decode, most kernel time goes to op0 (40.0 %), op1 (11.0 %); operators account \
             for 80.0 % of it."
        );
        assert_eq!(
            sentence(&[0.6, 0.1]),
            "In decode, operators account for 80.0 % of kernel time; longest: op0 (0.6 %), op1 \
             (0.1 %)."
        );
        assert!(sentence(&[15.0; 4]).contains("; longest: "), "45 % in the named ones");
    }
}
