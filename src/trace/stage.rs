//! Which ranges of a capture are stages, and which parts of it count.
//!
//! A program of ours is known by the names in its domain; another one is told by whoever profiles it.

use glob::Pattern;

use super::event::STAGE_DOMAIN;

/// How stages are found among the ranges of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageRules {
    /// In order: of two stages that are open at once, the first counts.
    pub stages: Vec<StageRule>,
    /// Only what lies in a range of one of these names counts; all does when there is none.
    pub within: Vec<String>,
    /// Nothing in a range of one of these names counts.
    pub without: Vec<String>,
    /// Names of ranges that are told as regions, as patterns; all are when there is none.
    pub include: Vec<Pattern>,
    /// Names of ranges that are not.
    pub exclude: Vec<Pattern>,
}

/// A stage, and the name of the ranges that are it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageRule {
    pub stage: String,
    pub range: String,
    /// The stage domain, or none, where the rule names no domain.
    pub domain: Option<String>,
}

/// A rule that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no stage: write NAME=RANGE or NAME=RANGE@DOMAIN")]
pub struct BadStage(String);

impl StageRule {
    /// Says whether a range is this stage.
    pub fn matches(&self, range: &str, domain: &str) -> bool {
        range == self.range && in_domain(self.domain.as_deref(), domain)
    }
}

/// Says whether `domain` is the one that was named; the stage domain or none where none was.
fn in_domain(named: Option<&str>, domain: &str) -> bool {
    named.map_or(domain.is_empty() || domain == STAGE_DOMAIN, |named| named == domain)
}

impl std::str::FromStr for StageRule {
    type Err = BadStage;

    /// Reads `NAME=RANGE[@DOMAIN]`.
    fn from_str(text: &str) -> Result<Self, BadStage> {
        let (stage, range) = text.split_once('=').ok_or_else(|| BadStage(text.into()))?;
        let (range, domain) = range.rsplit_once('@').map_or((range, None), |(range, domain)| (range, Some(domain)));
        if stage.trim().is_empty() || range.is_empty() {
            return Err(BadStage(text.into()));
        }
        Ok(Self { stage: stage.trim().into(), range: range.into(), domain: domain.map(Into::into) })
    }
}

impl Default for StageRules {
    /// The names that every program of ours gives its stages; `decode` is what others call the second one.
    fn default() -> Self {
        let rule = |stage: &str, range: &str| StageRule { stage: stage.into(), range: range.into(), domain: None };
        let stages = vec![rule("prefill", "prefill"), rule("decode_all", "decode_all"), rule("decode_all", "decode")];
        Self { stages, within: vec![], without: vec![], include: vec![], exclude: vec![] }
    }
}

impl StageRules {
    /// The standard rules with `more` before them: a stage that is told anew is no longer known by its standard name.
    pub fn with(more: Vec<StageRule>, within: Vec<String>, without: Vec<String>) -> Self {
        let mut stages = more.clone();
        let told = |rule: &StageRule| more.iter().any(|it| it.stage == rule.stage);
        stages.extend(Self::default().stages.into_iter().filter(|rule| !told(rule)));
        Self { stages, within, without, include: vec![], exclude: vec![] }
    }

    /// The same, telling as regions only what `include` lets through and `exclude` does not hold back.
    pub fn regions(self, include: Vec<Pattern>, exclude: Vec<Pattern>) -> Self {
        Self { include, exclude, ..self }
    }

    /// Says whether ranges of this name are told as a region.
    pub fn is_region(&self, name: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|it| it.matches(name));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }

    /// Names of the stages, each once, in order.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for rule in &self.stages {
            if !names.contains(&rule.stage.as_str()) {
                names.push(&rule.stage);
            }
        }
        names
    }

    /// The stage that a range is; `None` for any other range.
    pub fn stage(&self, range: &str, domain: &str) -> Option<&str> {
        self.stages.iter().find(|rule| rule.matches(range, domain)).map(|rule| rule.stage.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_told_by_its_range_and_perhaps_its_domain() {
        let rule: StageRule = "prefill=forward pass@vllm".parse().unwrap();
        assert_eq!((rule.stage.as_str(), rule.range.as_str(), rule.domain.as_deref()), ("prefill", "forward pass", Some("vllm")));
        assert!(rule.matches("forward pass", "vllm") && !rule.matches("forward pass", ""));
        assert_eq!(
            "prefill".parse::<StageRule>().unwrap_err().to_string(),
            "\"prefill\" is no stage: write NAME=RANGE or NAME=RANGE@DOMAIN"
        );
        assert!("=x".parse::<StageRule>().is_err() && "x=".parse::<StageRule>().is_err());
    }

    #[test]
    fn a_region_is_let_through_by_a_pattern_and_held_back_by_another() {
        let patterns = |texts: &[&str]| texts.iter().map(|it| Pattern::new(it).unwrap()).collect::<Vec<_>>();
        let rules = StageRules::default().regions(patterns(&["decoder.*", "prefill"]), patterns(&["*.mlp"]));
        let told = ["prefill", "decoder.layers.0.self_attn", "decoder.layers.0.mlp", "decode_all"].map(|it| rules.is_region(it));
        assert_eq!(told, [true, true, false, false]);
        assert!(StageRules::default().is_region("anything"));
    }

    #[test]
    fn a_stage_that_is_told_anew_is_not_known_by_its_old_name() {
        let rules = StageRules::with(vec!["prefill=ctx".parse().unwrap()], vec![], vec![]);
        assert_eq!((rules.stage("ctx", "LLM"), rules.stage("prefill", "LLM")), (Some("prefill"), None));
        assert_eq!(rules.stage("decode", ""), Some("decode_all"));
        assert_eq!(rules.stage("decode", "other"), None);
        assert_eq!(rules.names(), ["prefill", "decode_all"]);
    }
}
