//! Which ranges of a capture are stages, and which parts of it count.
//!
//! A program of ours is known by the names in its domain; another one is told by whoever profiles it.

use std::collections::BTreeSet;

use glob::Pattern;

use super::event::STAGE_DOMAIN;

/// Label of kernels launched by warm-up repeats, and name of the ranges around these.
pub const WARMUP: &str = "warmup";
/// Names of ranges that an [`UnknownRange`] lists.
const MAX_LISTED: usize = 10;

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
    /// Of `stages`, those that the caller named: the first ones.
    named: usize,
}

/// A range that a rule names and the capture does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownRange {
    /// As the rule has it: `RANGE` or `RANGE@DOMAIN`.
    pub wanted: String,
    /// Names of the ranges that there are, the most similar first.
    pub available: Vec<String>,
}

impl std::error::Error for UnknownRange {}

impl std::fmt::Display for UnknownRange {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "no range named {:?}; ", self.wanted)?;
        if self.available.is_empty() {
            return f.write_str("the capture holds no ranges");
        }
        write!(f, "available: {}", self.available[..self.available.len().min(MAX_LISTED)].join(", "))?;
        match self.available.len().saturating_sub(MAX_LISTED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
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
    /// The range as the rule names it.
    fn range_text(&self) -> String {
        self.domain.as_ref().map_or_else(|| self.range.clone(), |domain| format!("{}@{domain}", self.range))
    }

    /// Says whether a range is this stage.
    pub fn matches(&self, range: &str, domain: &str) -> bool {
        range == self.range && in_domain(self.domain.as_deref(), domain)
    }
}

/// Names of ranges by their similarity to `wanted`, the most similar first; a domain that is not
/// looked at by itself is part of the name.
fn nearest(wanted: &str, ranges: &BTreeSet<(&str, &str)>) -> Vec<String> {
    let text = |(domain, name): &(&str, &str)| match in_domain(None, domain) {
        true => (*name).to_owned(),
        false => format!("{name}@{domain}"),
    };
    let names: BTreeSet<String> = ranges.iter().map(text).filter(|name| !name.is_empty()).collect();
    let mut names: Vec<(f64, String)> = names.into_iter().map(|it| (strsim::jaro_winkler(wanted, &it), it)).collect();
    names.sort_by(|a, b| b.0.total_cmp(&a.0));
    names.into_iter().map(|(_, name)| name).collect()
}

/// Says whether `domain` is the one that was named; the stage domain or none where none was.
fn in_domain(named: Option<&str>, domain: &str) -> bool {
    named.map_or(domain.is_empty() || domain == STAGE_DOMAIN, |named| named == domain)
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
        Self { stages, within: vec![], without: vec![], include: vec![], exclude: vec![], named: 0 }
    }
}

impl StageRules {
    /// The standard rules with `more` before them: a stage that is told anew is no longer known by its standard name.
    pub fn with(more: Vec<StageRule>, within: Vec<String>, without: Vec<String>) -> Self {
        let mut stages = more.clone();
        let told = |rule: &StageRule| more.iter().any(|it| it.stage == rule.stage);
        stages.extend(Self::default().stages.into_iter().filter(|rule| !told(rule)));
        Self { stages, within, without, include: vec![], exclude: vec![], named: more.len() }
    }

    /// Whether only a part of the capture counts.
    pub fn narrowed(&self) -> bool {
        !self.within.is_empty() || !self.without.is_empty()
    }

    /// Checks that each range which the caller named is in the capture, whose ranges are `domain`
    /// and name. A stage that several rules name needs one of them.
    pub fn check<'a>(&self, ranges: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), UnknownRange> {
        if !self.names_ranges() {
            return Ok(());
        }
        let ranges: BTreeSet<(&str, &str)> = ranges.collect();
        let mut wanted = self.within.iter().chain(&self.without);
        let missing = wanted.find(|name| !ranges.iter().any(|(_, known)| known == name)).cloned();
        let is = |rule: &StageRule| ranges.iter().any(|(domain, name)| rule.matches(name, domain));
        let named = &self.stages[..self.named];
        let found = |rule: &StageRule| named.iter().any(|other| other.stage == rule.stage && is(other));
        let missing = missing.or_else(|| named.iter().find(|rule| !found(rule)).map(StageRule::range_text));
        match missing {
            None => Ok(()),
            Some(wanted) => Err(UnknownRange { available: nearest(&wanted, &ranges), wanted }),
        }
    }

    /// Whether the caller named any range.
    pub fn names_ranges(&self) -> bool {
        self.named > 0 || self.narrowed()
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
        assert_eq!(rule.to_string(), "prefill=forward pass@vllm");
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
    fn a_name_that_the_capture_lacks_is_answered_with_the_nearest_ones() {
        let rules = |stage: &[&str], within: &[&str]| {
            let stages = stage.iter().map(|it| it.parse().unwrap()).collect();
            StageRules::with(stages, within.iter().map(|it| (*it).to_owned()).collect(), vec![])
        };
        let ranges = [("LLM", "measured"), ("LLM", "prefill"), ("vllm", "decode"), ("", "decode_step")];
        let check = |rules: &StageRules| rules.check(ranges.into_iter()).map_err(|error| error.to_string());
        assert_eq!(
            check(&rules(&[], &["measurd"])),
            Err("no range named \"measurd\"; available: measured, decode@vllm, decode_step, prefill".into())
        );
        assert_eq!(
            check(&rules(&["decode=decode"], &[])),
            Err("no range named \"decode\"; available: decode@vllm, decode_step, measured, prefill".into())
        );
        assert_eq!(check(&rules(&["decode=decode@vllm", "decode=forward"], &["measured"])), Ok(()));
        assert_eq!(check(&StageRules::default()), Ok(()), "a standard stage need not be there");
        let many: Vec<String> = (0..15).map(|at| format!("range_{at:02}")).collect();
        let listed = rules(&[], &["x"]).check(many.iter().map(|it| ("", it.as_str()))).unwrap_err().to_string();
        assert!(listed.ends_with(" and 5 more") && listed.len() < 200, "{listed}");
        assert_eq!(
            rules(&[], &["x"]).check([].into_iter()).unwrap_err().to_string(),
            "no range named \"x\"; the capture holds no ranges"
        );
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
