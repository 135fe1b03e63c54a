//! Statements of a reader about a capture, in addition to what the run's folder has.

use llmprof_analyze::parse::saved::SavedRun;
use llmprof_core::{
    domain::{stated_model::StatedModel, subject::Subject},
    trace::stage::StageRules,
};

use super::AnalyzeError;

/// Statements of a reader about a capture.
#[derive(Debug, Clone, Default)]
pub struct Statements {
    /// Stage rules that replace the run's rules.
    pub rules: StageRules,
    /// The model of a command or of a capture, in place of the run's own statement.
    pub model: Option<StatedModel>,
    /// Decode steps of one repeat, without the model.
    pub steps: Option<u64>,
}

/// Replaces the run's statement of the model that ran, or of its decode steps.
pub fn state(
    saved: &mut SavedRun,
    model: Option<StatedModel>,
    steps: Option<u64>,
) -> Result<(), AnalyzeError> {
    if model.is_none() && steps.is_none() {
        return Ok(());
    }
    let computes = match (&mut saved.command, &mut saved.spec.subject) {
        (Some(command), _) => &mut command.computes,
        (None, Subject::Import(import)) => {
            import.new_tokens = steps;
            &mut import.computes
        }
        _ => return Err(AnalyzeError::KnownModel),
    };
    if let Some(model) = model {
        *computes = Some(model.into());
    } else if let Some(stated) = computes {
        stated.new_tokens = steps;
    }
    Ok(())
}
