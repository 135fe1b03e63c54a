//! Rules: a stage and the name of its ranges.

use super::{DECODE, in_domain, range_names::names_range};
use crate::trace::event::DECODE_STEP;

/// The name of a stage in tables: `decode` is short for `decode_all`.
pub fn stage_name(name: &str) -> &str {
    if name == "decode" { DECODE } else { name }
}

/// A stage and the name of its ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageRule {
    pub stage: String,
    /// The name, with `*` for a number: `step_*`.
    pub range: String,
    /// `None` matches the stage domain and the default domain.
    pub domain: Option<String>,
}

/// An invalid stage rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid stage {0:?}; expected NAME=RANGE or NAME=RANGE@DOMAIN")]
pub struct BadStage(String);

impl StageRule {
    /// The range as written in the rule.
    pub(super) fn range_text(&self) -> String {
        self.domain
            .as_ref()
            .map_or_else(|| self.range.clone(), |domain| format!("{}@{domain}", self.range))
    }

    /// True for a rule of decode steps, which are not a stage: their runs are decode.
    pub fn is_of_steps(&self) -> bool {
        self.stage == DECODE_STEP
    }

    /// The stage of the work in the ranges.
    pub fn stage_of_work(&self) -> &str {
        if self.is_of_steps() { DECODE } else { &self.stage }
    }

    /// Returns true when a range is this stage.
    pub fn matches(&self, range: &str, domain: &str) -> bool {
        names_range(&self.range, range) && in_domain(self.domain.as_deref(), domain)
    }
}

impl std::fmt::Display for StageRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let domain = self.domain.as_ref().map(|domain| format!("@{domain}")).unwrap_or_default();
        write!(f, "{}={}{domain}", self.stage, self.range)
    }
}

impl std::str::FromStr for StageRule {
    type Err = BadStage;

    /// Reads `NAME=RANGE[@DOMAIN]`.
    fn from_str(text: &str) -> Result<Self, BadStage> {
        let (stage, range) = text.split_once('=').ok_or_else(|| BadStage(text.into()))?;
        let (range, domain) =
            range.rsplit_once('@').map_or((range, None), |(range, domain)| (range, Some(domain)));
        if stage.trim().is_empty() || range.is_empty() {
            return Err(BadStage(text.into()));
        }
        let stage = stage_name(stage.trim()).to_owned();
        Ok(Self { stage, range: range.into(), domain: domain.map(Into::into) })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::StageRules, *};

    #[test]
    fn a_rule_matches_a_range_by_its_name_and_optional_domain() {
        let rule: StageRule = "prefill=forward pass@vllm".parse().unwrap();
        assert_eq!(
            (rule.stage.as_str(), rule.range.as_str(), rule.domain.as_deref()),
            ("prefill", "forward pass", Some("vllm"))
        );
        assert!(rule.matches("forward pass", "vllm") && !rule.matches("forward pass", ""));
        assert_eq!(rule.to_string(), "prefill=forward pass@vllm");
        assert_eq!(
            "prefill".parse::<StageRule>().unwrap_err().to_string(),
            "invalid stage \"prefill\"; expected NAME=RANGE or NAME=RANGE@DOMAIN"
        );
        assert!("=x".parse::<StageRule>().is_err() && "x=".parse::<StageRule>().is_err());
    }

    #[test]
    fn decode_is_one_stage_by_either_name_and_a_rule_of_steps_names_its_steps() {
        let rules = |texts: &[&str]| {
            let rules = texts.iter().map(|it| it.parse().unwrap()).collect();
            StageRules::with(rules, vec![], vec![])
        };
        assert_eq!(rules(&["decode=token_*"]), rules(&["decode_all=token_*"]));
        let of_steps = rules(&["decode_step=token_*"]);
        assert_eq!(of_steps.names(), rules(&[]).names(), "steps are not a stage");
        assert!(of_steps.is_decode_step("token_7", "") && of_steps.stage("token_7", "").is_none());
        assert!(!of_steps.is_decode_step("decode_step", "") && of_steps.marks_stage("token_7", ""));
        let both = rules(&["decode=generate", "decode_step=token_*"]);
        assert_eq!(both.stage("generate", ""), Some(DECODE));
        assert!(both.is_decode_step("token_7", "") && !both.is_decode_step("generate", ""));
        let works = both.stages[..2].iter().map(StageRule::stage_of_work);
        assert_eq!(works.collect::<Vec<_>>(), [DECODE, DECODE]);
    }
}
