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
}

/// Replaces the statement of the model that ran.
pub fn state(saved: &mut SavedRun, model: StatedModel) -> Result<(), AnalyzeError> {
    match (&mut saved.command, &mut saved.spec.subject) {
        (Some(command), _) => command.computes = Some(model.into()),
        (None, Subject::Import(import)) => import.computes = Some(model.into()),
        _ => return Err(AnalyzeError::KnownModel),
    }
    Ok(())
}
