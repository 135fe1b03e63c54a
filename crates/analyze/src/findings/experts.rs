//! Rules on the routing of mixtures of experts.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::Trace,
};

use super::Rule;
use crate::{
    Analysis,
    stages::{STAGES, experts::ExpertUse, in_sentence},
    stats::{median, percent},
};

/// A mixture that hits less than this share of an even router's experts has collapsed.
const COLLAPSED_PCT: f64 = 50.0;
/// A layer is imbalanced below this share of the median layer's experts.
const IMBALANCED_PCT: f64 = 70.0;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::EXPERTS_COLLAPSED, find: experts_collapsed },
    Rule { id: catalogue::EXPERT_IMBALANCE, find: expert_imbalance },
];

fn experts_collapsed(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let share = |it: &ExpertUse| percent(it.distinct.mean, it.expected?);
    let collapsed: Vec<_> = analysis
        .experts
        .iter()
        .filter(|it| share(it).is_some_and(|pct| pct < COLLAPSED_PCT))
        .collect();
    let Some(worst) =
        collapsed.iter().min_by(|a, b| share(a).unwrap_or(0.0).total_cmp(&share(b).unwrap_or(0.0)))
    else {
        return vec![];
    };
    let (count, all) = (collapsed.len(), analysis.experts.len());
    let message = format!(
        "In {count} of {all} pairs of layer and stage, routing hit less than half the experts of \
         an even router."
    );
    vec![
        Finding::new(catalogue::EXPERTS_COLLAPSED, message)
            .with("worst", format!("layer {} in {}", worst.layer, worst.stage))
            .with("distinct experts", format!("{:.1} of {}", worst.distinct.mean, worst.total))
            .with("an even router", format!("{:.1}", worst.expected.unwrap_or(0.0)))
            .advise(
                "Balance the router: decode reads fewer experts and looks cheaper than with \
                 trained weights.",
            ),
    ]
}

fn expert_imbalance(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let imbalanced = |stage: &&str| {
        let mut layers: Vec<_> = analysis.experts.iter().filter(|it| it.stage == **stage).collect();
        layers.sort_by(|a, b| a.distinct.mean.total_cmp(&b.distinct.mean));
        let (lowest, median) = (layers.first()?, median(layers.iter().map(|it| it.distinct.mean))?);
        let share = percent(lowest.distinct.mean, median)
            .filter(|share| layers.len() >= 3 && *share < IMBALANCED_PCT)?;
        let message = format!(
            "In {stage}, layer {} hits {share:.0} % as many experts as the median layer.",
            lowest.layer,
            stage = in_sentence(stage)
        );
        Some(
            Finding::new(catalogue::EXPERT_IMBALANCE, message)
                .with("layer", lowest.layer)
                .with("distinct", format!("{:.1}", lowest.distinct.mean))
                .with("median", format!("{median:.1}")),
        )
    };
    STAGES.iter().filter_map(imbalanced).collect()
}
