//! Results of the host checks, as plain values.

use serde::{Deserialize, Serialize};

use crate::domain::finding::{Finding, Severity};

/// All checks of one run of `llmprof doctor`, in the order in which they depend on each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Checkup {
    /// RFC 3339, UTC.
    #[cfg_attr(feature = "schema", schema(example = "2026-11-20T09:00:00.000Z"))]
    pub checked_at: String,
    /// The worst state among the checks.
    pub state: CheckState,
    pub checks: Vec<HostCheck>,
}

/// The result of one check of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HostCheck {
    /// Stable name of the check, snake case; a check of each GPU appears once per GPU.
    #[cfg_attr(feature = "schema", schema(example = "nsys"))]
    pub id: String,
    pub state: CheckState,
    /// The observation, in one sentence.
    pub message: String,
    /// The fix, as a command if one exists; `null` if no action is needed.
    pub remedy: Option<String>,
}

/// Severity of a check's result, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    Ok,
    /// A feature cannot be collected on this host, or measurements may be disturbed.
    Warning,
    /// Runs cannot succeed here.
    Failure,
}

impl CheckState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

/// The outcome of one check: a message when it passed, else the finding.
pub type CheckResult = Result<String, Finding>;

impl HostCheck {
    /// Builds the check `id` from its result. Evidence becomes part of the message.
    pub fn of(id: &str, checked: CheckResult) -> Self {
        match checked {
            Ok(message) => Self { id: id.into(), state: CheckState::Ok, message, remedy: None },
            Err(finding) => {
                let state = match finding.severity {
                    Severity::Info => CheckState::Ok,
                    Severity::Warning => CheckState::Warning,
                    Severity::Critical => CheckState::Failure,
                };
                let evidence: Vec<String> = finding
                    .evidence
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}"))
                    .collect();
                let evidence = if evidence.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", evidence.join(", "))
                };
                Self {
                    id: id.into(),
                    state,
                    message: finding.message.clone() + &evidence,
                    remedy: finding.advice.clone(),
                }
            }
        }
    }
}

impl Checkup {
    /// Combines checks; the state is the worst of theirs.
    pub fn of(checked_at: String, checks: Vec<HostCheck>) -> Self {
        let state = checks.iter().map(|check| check.state).max().unwrap_or(CheckState::Ok);
        Self { checked_at, state, checks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::finding::catalogue;

    #[test]
    fn a_checkup_is_as_good_as_its_worst_check() {
        let warning =
            Finding::new(catalogue::NCU_MISSING, "no x").with("reason", "lost").advise("get x");
        let check = HostCheck::of("tool", Err(warning));
        assert_eq!(
            (check.state, check.message.as_str(), check.remedy.as_deref()),
            (CheckState::Warning, "no x (reason: lost)", Some("get x"))
        );
        let fine = HostCheck::of("disk", Ok("plenty".into()));
        assert_eq!(
            Checkup::of(String::new(), vec![fine.clone(), check, fine]).state,
            CheckState::Warning
        );
        assert_eq!(Checkup::of(String::new(), vec![]).state, CheckState::Ok);
    }
}
