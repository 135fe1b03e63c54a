//! Rules that select which ranges of a capture are stages, and which parts of it count.
//!
//! The names used by llmprof's runner are built in; the user names the stages of other programs.

mod shared_ranges;

use std::collections::BTreeSet;

use glob::Pattern;

pub use self::shared_ranges::{SharedRange, StageRulesError, check_stages, parse_stages};
use super::{
    engine_steps::{EngineStep, IDLE, MIXED, engine_step},
    event::{DECODE_STEP, STAGE_DOMAIN},
};

/// Label of kernels launched by warm-up repeats, and name of the warm-up ranges.
pub const WARMUP: &str = "warmup";
/// Stage that generates, and the usual name of its range.
const DECODE: &str = "decode_all";
/// Max range names listed by an [`UnknownRange`].
const MAX_LISTED: usize = 10;

/// Rules that map the ranges of a capture to stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageRules {
    /// In order of precedence: of two stages open at once, the first wins.
    pub stages: Vec<StageRule>,
    /// Only work inside ranges of these names counts; empty means all work.
    pub include_ranges: Vec<String>,
    /// Work inside ranges of these names does not count.
    pub exclude_ranges: Vec<String>,
    /// Name patterns of ranges reported as regions; empty means all.
    pub include_regions: Vec<Pattern>,
    /// Name patterns of ranges not reported as regions.
    pub exclude_regions: Vec<Pattern>,
    /// Number of leading `stages` that the user named.
    named: usize,
}

/// A range named in a rule but missing from the capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownRange {
    /// As written in the rule: `RANGE` or `RANGE@DOMAIN`.
    pub wanted: String,
    /// Names of the ranges in the capture, most similar first.
    pub available: Vec<String>,
}

impl std::error::Error for UnknownRange {}

impl std::fmt::Display for UnknownRange {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "no range named {:?}; ", self.wanted)?;
        if self.available.is_empty() {
            return f.write_str("the capture contains no ranges");
        }
        write!(
            f,
            "available: {}",
            self.available[..self.available.len().min(MAX_LISTED)].join(", ")
        )?;
        match self.available.len().saturating_sub(MAX_LISTED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A stage and the name of its ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageRule {
    pub stage: String,
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
    fn range_text(&self) -> String {
        self.domain
            .as_ref()
            .map_or_else(|| self.range.clone(), |domain| format!("{}@{domain}", self.range))
    }

    /// Returns true when a range is this stage.
    pub fn matches(&self, range: &str, domain: &str) -> bool {
        range == self.range && in_domain(self.domain.as_deref(), domain)
    }
}

/// True for a range that CCCL opens around one of its algorithms.
pub fn is_of_cccl(domain: &str, name: &str) -> bool {
    domain == "CCCL" || ["CCCL", "cub::", "thrust::"].iter().any(|it| name.starts_with(it))
}

/// Range names by similarity to `wanted`, most similar first, and ranges of CCCL last. The domain
/// is part of the name unless rules match it by default.
fn nearest(wanted: &str, ranges: &BTreeSet<(&str, &str)>) -> Vec<String> {
    let text = |(domain, name): &(&str, &str)| match in_domain(None, domain) {
        true => (*name).to_owned(),
        false => format!("{name}@{domain}"),
    };
    let names: BTreeSet<(bool, String)> = ranges
        .iter()
        .map(|it| (is_of_cccl(it.0, it.1), text(it)))
        .filter(|(_, name)| !name.is_empty())
        .collect();
    let mut names: Vec<(bool, f64, String)> = names
        .into_iter()
        .map(|(of_cccl, name)| (of_cccl, strsim::jaro_winkler(wanted, &name), name))
        .collect();
    names.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
    names.into_iter().map(|(.., name)| name).collect()
}

/// Returns true when `domain` is the named one; without a name, the stage or default domain.
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
        let (range, domain) =
            range.rsplit_once('@').map_or((range, None), |(range, domain)| (range, Some(domain)));
        if stage.trim().is_empty() || range.is_empty() {
            return Err(BadStage(text.into()));
        }
        Ok(Self { stage: stage.trim().into(), range: range.into(), domain: domain.map(Into::into) })
    }
}

impl Default for StageRules {
    /// The names used by llmprof's runner; `decode` is another common name of the second stage.
    fn default() -> Self {
        let rule = |stage: &str, range: &str| StageRule {
            stage: stage.into(),
            range: range.into(),
            domain: None,
        };
        let stages = vec![rule("prefill", "prefill"), rule(DECODE, DECODE), rule(DECODE, "decode")];
        Self {
            stages,
            include_ranges: vec![],
            exclude_ranges: vec![],
            include_regions: vec![],
            exclude_regions: vec![],
            named: 0,
        }
    }
}

impl StageRules {
    /// The standard rules preceded by `more`. A stage that `more` defines loses its standard name.
    pub fn with(
        more: Vec<StageRule>,
        include_ranges: Vec<String>,
        exclude_ranges: Vec<String>,
    ) -> Self {
        let standard = Self::default();
        let named = more.len();
        let redefined = |rule: &StageRule| more.iter().any(|it| it.stage == rule.stage);
        let kept: Vec<StageRule> =
            standard.stages.into_iter().filter(|rule| !redefined(rule)).collect();
        let stages = more.into_iter().chain(kept).collect();
        Self { stages, include_ranges, exclude_ranges, named, ..Self::default() }
    }

    /// Returns true when only a part of the capture counts.
    pub fn narrowed(&self) -> bool {
        !self.include_ranges.is_empty() || !self.exclude_ranges.is_empty()
    }

    /// Checks that each range named by the user is among `ranges` (domain, name). A stage with
    /// several rules needs one match.
    pub fn check<'a>(
        &self,
        ranges: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), UnknownRange> {
        if !self.names_ranges() {
            return Ok(());
        }
        let ranges: BTreeSet<(&str, &str)> = ranges.collect();
        let mut wanted = self.include_ranges.iter().chain(&self.exclude_ranges);
        let missing = wanted.find(|name| !ranges.iter().any(|(_, known)| known == name)).cloned();
        let exists =
            |rule: &StageRule| ranges.iter().any(|(domain, name)| rule.matches(name, domain));
        let named = &self.stages[..self.named];
        let found =
            |rule: &StageRule| named.iter().any(|other| other.stage == rule.stage && exists(other));
        let missing =
            missing.or_else(|| named.iter().find(|rule| !found(rule)).map(StageRule::range_text));
        match missing {
            None => Ok(()),
            Some(wanted) => Err(UnknownRange { available: nearest(&wanted, &ranges), wanted }),
        }
    }

    /// Returns true when the user named any range.
    pub fn names_ranges(&self) -> bool {
        self.named > 0 || self.narrowed()
    }

    /// The same rules, reporting as regions only names that match `include` and not `exclude`.
    pub fn with_regions(self, include: Vec<Pattern>, exclude: Vec<Pattern>) -> Self {
        Self { include_regions: include, exclude_regions: exclude, ..self }
    }

    /// Returns true when ranges of this name are reported as a region.
    pub fn is_region(&self, name: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|it| it.matches(name));
        (self.include_regions.is_empty() || any(&self.include_regions))
            && !any(&self.exclude_regions)
    }

    /// Names of the stages, without duplicates, in order.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for rule in &self.stages {
            if !names.contains(&rule.stage.as_str()) {
                names.push(&rule.stage);
            }
        }
        for stage in [MIXED, IDLE] {
            if !names.contains(&stage) {
                names.push(stage);
            }
        }
        names
    }

    /// The stage of a range; `None` for other ranges. Steps of known engines are stages by their
    /// names, unless the user names the stage's ranges.
    pub fn stage<'a>(&'a self, range: &'a str, domain: &str) -> Option<&'a str> {
        self.ruled_stage(range, domain).or_else(|| self.step(range)?.stage())
    }

    /// The stage of a range by a rule only.
    pub fn ruled_stage(&self, range: &str, domain: &str) -> Option<&str> {
        let rule = self.stages.iter().find(|rule| rule.matches(range, domain))?;
        Some(&rule.stage)
    }

    /// True for the range of one decode step, unless the user names other ranges of decode.
    pub fn is_decode_step(&self, range: &str, domain: &str) -> bool {
        let is_other = |rule: &StageRule| rule.stage == DECODE && rule.range != DECODE;
        range == DECODE_STEP
            && in_domain(None, domain)
            && !self.stages[..self.named].iter().any(is_other)
    }

    /// True for a range that is a stage, or a decode step.
    pub fn marks_stage(&self, range: &str, domain: &str) -> bool {
        self.stage(range, domain).is_some() || self.is_decode_step(range, domain)
    }

    /// The step of a known engine that a range is, unless the user names the ranges of its stage.
    pub fn step<'a>(&self, range: &'a str) -> Option<EngineStep<'a>> {
        let step = engine_step(range)?;
        let is_named =
            self.stages[..self.named].iter().any(|rule| Some(rule.stage.as_str()) == step.stage());
        (!is_named).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn patterns_include_and_exclude_regions() {
        let patterns =
            |texts: &[&str]| texts.iter().map(|it| Pattern::new(it).unwrap()).collect::<Vec<_>>();
        let rules = StageRules::default()
            .with_regions(patterns(&["decoder.*", "prefill"]), patterns(&["*.mlp"]));
        let names = ["prefill", "decoder.layers.0.self_attn", "decoder.layers.0.mlp", "decode_all"];
        assert_eq!(names.map(|it| rules.is_region(it)), [true, true, false, false]);
        assert!(StageRules::default().is_region("anything"));
    }

    #[test]
    fn an_unknown_range_is_reported_with_the_nearest_names() {
        let rules = |stage: &[&str], include: &[&str]| {
            let stages = stage.iter().map(|it| it.parse().unwrap()).collect();
            StageRules::with(stages, include.iter().map(|it| (*it).to_owned()).collect(), vec![])
        };
        let ranges =
            [("LLM", "measured"), ("LLM", "prefill"), ("vllm", "decode"), ("", "decode_step")];
        let check =
            |rules: &StageRules| rules.check(ranges.into_iter()).map_err(|error| error.to_string());
        assert_eq!(
            check(&rules(&[], &["measurd"])),
            Err("no range named \"measurd\"; available: measured, decode@vllm, decode_step, \
                 prefill"
                .into())
        );
        assert_eq!(
            check(&rules(&["decode=decode"], &[])),
            Err(
                "no range named \"decode\"; available: decode@vllm, decode_step, measured, prefill"
                    .into()
            )
        );
        assert_eq!(check(&rules(&["decode=decode@vllm", "decode=forward"], &["measured"])), Ok(()));
        assert_eq!(check(&StageRules::default()), Ok(()), "standard stages are optional");
        let many: Vec<String> = (0..15).map(|at| format!("range_{at:02}")).collect();
        let listed = rules(&[], &["x"])
            .check(many.iter().map(|it| ("", it.as_str())))
            .unwrap_err()
            .to_string();
        assert!(listed.ends_with(" and 5 more") && listed.len() < 200, "{listed}");
        let of_cccl = [("CCCL", "cub::DeviceScan"), ("", "cub::decod"), ("", "forward")];
        assert_eq!(
            rules(&[], &["cub::decode"]).check(of_cccl.into_iter()).unwrap_err().available,
            ["forward", "cub::decod", "cub::DeviceScan@CCCL"],
            "libraries open no stages"
        );
        assert_eq!(
            rules(&[], &["x"]).check([].into_iter()).unwrap_err().to_string(),
            "no range named \"x\"; the capture contains no ranges"
        );
    }

    #[test]
    fn a_step_of_an_engine_is_a_stage_unless_its_ranges_are_named() {
        let step = "execute_context_0(0)_generation_8(8)";
        let mixed = "execute_context_1(9)_generation_8(8)";
        let standard = StageRules::default();
        assert_eq!(
            [step, mixed].map(|name| standard.stage(name, "")),
            [Some("decode_all"), Some("mixed")]
        );
        let named = StageRules::with(vec!["decode_all=gen".parse().unwrap()], vec![], vec![]);
        assert_eq!([step, mixed].map(|name| named.stage(name, "")), [None, Some("mixed")]);
    }

    #[test]
    fn a_redefined_stage_loses_its_standard_name() {
        let rules = StageRules::with(vec!["prefill=ctx".parse().unwrap()], vec![], vec![]);
        assert_eq!(
            (rules.stage("ctx", "LLM"), rules.stage("prefill", "LLM")),
            (Some("prefill"), None)
        );
        assert_eq!(rules.stage("decode", ""), Some("decode_all"));
        assert_eq!(rules.stage("decode", "other"), None);
        assert_eq!(rules.names(), ["prefill", "decode_all", "mixed", "idle"]);
    }
}
