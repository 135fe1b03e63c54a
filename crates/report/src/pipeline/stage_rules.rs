//! Stage rules of the captures of a run, and the steps inferred if they find none.

use llmprof_analyze::timeline::inferred_steps;
use llmprof_core::trace::{Trace, stage::StageRules, timeline::Timeline};

use super::AnalyzeError;

/// Sets the rules of a run's timelines; of one under the profiler of PyTorch if nsys has none. A
/// rule of `is_named` was given by hand and must match.
pub fn set(trace: &mut Trace, rules: StageRules, is_named: bool) -> Result<(), AnalyzeError> {
    let pytorch = trace.pytorch.take().map(|it| apply(it, rules.clone()));
    match &mut trace.timeline {
        None => trace.timeline = pytorch,
        Some(_) => trace.pytorch = pytorch,
    }
    if let Some(nsys) = trace.timeline.take() {
        // A command may not reach a range that its settings name.
        trace.timeline = Some(if is_named { with_rules(nsys, rules)? } else { apply(nsys, rules) });
    }
    Ok(())
}

/// Sets the stage rules of a capture, which must contain each range that they name.
pub fn with_rules(nsys: Timeline, rules: StageRules) -> Result<Timeline, AnalyzeError> {
    nsys.check_rules(&rules).map_err(|source| AnalyzeError::Rules { source })?;
    Ok(apply(nsys, rules))
}

/// Sets the stage rules of a timeline, and infers its steps if they find no stage.
pub fn apply(nsys: Timeline, rules: StageRules) -> Timeline {
    let mut nsys = nsys.with_rules(rules);
    nsys.inferred = inferred_steps::infer(&nsys);
    nsys
}

/// The standard stage rules, with these before them.
pub fn rules_of(
    stages: &[String],
    include_ranges: &[String],
    exclude_ranges: &[String],
) -> StageRules {
    // Each was parsed when it was submitted.
    let stages = stages.iter().filter_map(|rule| rule.parse().ok()).collect();
    StageRules::with(stages, include_ranges.to_vec(), exclude_ranges.to_vec())
}
