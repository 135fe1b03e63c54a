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
    format::{figure, of_interval, pct, quantity, scaled},
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
/// one.
pub fn recommendations(findings: &[Finding], answer: &Answer) -> Vec<String> {
    let sentence = |finding: &Finding| {
        let advice = finding.advice.as_ref().filter(|it| !answer.advises(it))?;
        Some(format!("{} {advice}", finding.message))
    };
    let saving = |it: &Finding| it.max_saving.as_ref().and_then(|it| it.ms).unwrap_or(0.0);
    let mut ranked: Vec<&Finding> =
        findings.iter().filter(|finding| finding.severity > Severity::Info).collect();
    ranked.sort_by(|a, b| {
        let is_critical = |it: &Finding| it.severity == Severity::Critical;
        is_critical(b).cmp(&is_critical(a)).then(saving(b).total_cmp(&saving(a)))
    });
    ranked.into_iter().chain(takeaways(findings)).filter_map(sentence).collect()
}

/// Findings on dominating stages and operators.
fn takeaways(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(|it| {
        it.severity == Severity::Info
            && matches!(it.id.as_str(), "stage_dominates" | "operator_dominates")
    })
}

/// The means of the parts of a pass may exceed its mean by this factor.
const OVERLAPPING: f64 = 1.02;

fn whole(analysis: &Analysis) -> Option<String> {
    let stages = &analysis.stages;
    let wall = stages.wall_ms?;
    // A capture may have one prefill and hundreds of decode steps: no pass has one of each.
    let number = stages.instances(stages.rows.first()?);
    if stages.rows.iter().any(|row| stages.instances(row) != number) {
        return None;
    }
    // Stages that overlap, or are of other passes, do not add up to it.
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
            format!("{mean} ms (deviation {std})")
        },
    );
    Some(format!("One pass takes {time}: {}.", parts.join(", then ")))
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
    let named: Vec<String> = ranked
        .iter()
        .take(3)
        .filter_map(|(it, own)| Some(format!("{} ({})", it.path, pct(own.share_pct?))))
        .collect();
    if named.is_empty() {
        return None;
    }
    let named = named.join(", ");
    if ranked[0].1.on_device {
        let shares = ranked.iter().filter_map(|(_, own)| own.share_pct);
        let time = if graphs::of_stage(&analysis.graphs, stage).is_some() {
            "recorded kernel time"
        } else {
            "kernel time"
        };
        return Some(format!(
            "In {}, most {time} goes to {named}; operators account for {} of it.",
            in_sentence(stage),
            pct(shares.sum::<f64>())
        ));
    }
    let covered = pct(analysis.operators.work.get(stage)?.covered_pct?);
    Some(format!(
        "In {}, most time goes to {named}; operators account for {covered} of the stage.",
        in_sentence(stage)
    ))
}

fn covered(analysis: &Analysis, stage: &str) -> Option<String> {
    let covered = pct(analysis.operators.work.get(stage)?.covered_pct?);
    Some(format!("Operators account for {covered} of {}.", in_sentence(stage)))
}

fn kernels(analysis: &Analysis) -> Option<String> {
    let first = analysis.kernels.measured().find(|it| !it.stage.is_empty())?;
    let (name, stage) = (&first.kernel_name, in_sentence(&first.stage));
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
    let sentence = |stage: &str| {
        let row = analysis.mfu.rows.iter().find(|row| row.scope == stage)?;
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
    fn advice_that_the_answer_has_is_not_recommended_again() {
        let finding = |advice: &str| {
            Finding::new(catalogue::HOST_BUSY, "The host was busy.").advise(advice.to_owned())
        };
        let answer = Answer { unknown: vec!["It is unknown. Do A.".into()], ..Answer::default() };
        let found = recommendations(&[finding("Do A."), finding("Do B.")], &answer);
        assert_eq!(found, ["The host was busy. Do B."]);
    }

    #[test]
    fn a_pass_has_one_instance_of_each_stage() {
        let first = |decode_steps: usize| {
            let row = |(stage, ms): (&str, &[f64])| StageTiming {
                stage: stage.into(),
                ms: Spread::of(ms.iter().copied()).unwrap(),
                share_pct: Some(50.0),
                tokens: None,
                tokens_per_s: None,
            };
            let rows = [(PREFILL, &[10.0][..]), (DECODE, &vec![10.0; decode_steps])];
            let rows = rows.map(row).into();
            let stages = Stages { rows, wall_ms: Spread::of([20.0]), ..Stages::default() };
            narrative(&Analysis { stages, ..Analysis::default() }, false).into_iter().next()
        };
        let pass = "One pass takes 20.0 ms: prefill 10.0 ms (50.0 %), then decode 10.0 ms \
                    (50.0 %).";
        assert_eq!(first(1).as_deref(), Some(pass));
        assert_eq!(first(256), None);
    }
}
