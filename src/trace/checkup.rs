//! What a look at the host found, check by check: plain values.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::{Finding, Severity};

/// All checks of one look, in the order in which they depend on each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Checkup {
    /// RFC 3339, UTC.
    #[schema(example = "2026-11-20T09:00:00.000Z")]
    pub checked_at: String,
    /// The worst of the checks.
    pub state: CheckState,
    pub checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// Stable name of the check, snake case; a check of each GPU comes once for each.
    #[schema(example = "nsys")]
    pub id: String,
    pub state: CheckState,
    /// What was seen, in one sentence.
    pub message: String,
    /// What to do, as a command where one does it; `null` where nothing needs doing.
    pub remedy: Option<String>,
}

/// How good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    Ok,
    /// Something that can be asked for cannot be collected here, or figures may be disturbed.
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

/// What one check saw: in order, with what is there; or what to tell a person.
pub type Checked = Result<String, Finding>;

impl Check {
    /// The check `id` as it came out. Evidence becomes part of the message.
    pub fn of(id: &str, checked: Checked) -> Self {
        match checked {
            Ok(message) => Self { id: id.into(), state: CheckState::Ok, message, remedy: None },
            Err(finding) => {
                let state = match finding.severity {
                    Severity::Info => CheckState::Ok,
                    Severity::Warning => CheckState::Warning,
                    Severity::Critical => CheckState::Failure,
                };
                let evidence: Vec<String> = finding.evidence.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                let evidence = if evidence.is_empty() { String::new() } else { format!(" ({})", evidence.join(", ")) };
                Self { id: id.into(), state, message: finding.message + &evidence, remedy: finding.advice }
            }
        }
    }
}

impl Checkup {
    /// Puts checks together.
    pub fn of(checked_at: String, checks: Vec<Check>) -> Self {
        let state = checks.iter().map(|check| check.state).max().unwrap_or(CheckState::Ok);
        Self { checked_at, state, checks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkup_is_as_good_as_its_worst_check() {
        let warning = Finding::new("x", Severity::Warning, "no x").with("reason", "lost").advise("get x");
        let check = Check::of("tool", Err(warning));
        assert_eq!(
            (check.state, check.message.as_str(), check.remedy.as_deref()),
            (CheckState::Warning, "no x (reason: lost)", Some("get x"))
        );
        let fine = Check::of("disk", Ok("plenty".into()));
        assert_eq!(Checkup::of(String::new(), vec![fine.clone(), check, fine]).state, CheckState::Warning);
        assert_eq!(Checkup::of(String::new(), vec![]).state, CheckState::Ok);
    }
}
