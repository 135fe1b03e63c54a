//! Rules that select which ranges of a capture are stages, and which parts of it count.
//!
//! The names used by llmprof's runner are built in; the user names the stages of other programs.

mod range_names;
mod rule;
mod shared_ranges;

use std::collections::BTreeSet;

use glob::Pattern;

use self::range_names::{name_in_rule, names_range};
pub use self::{
    range_names::RangeNames,
    rule::{BadStage, StageRule, stage_name},
    shared_ranges::{SharedRange, StageRulesError, check_stages, parse_stages},
};
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
    /// Names of the ranges in the capture, most similar first; names that differ in numbers alone
    /// are one pattern.
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

/// True for a range that a library, a framework or a profiler opens: around an algorithm of CCCL, a
/// collective, an operator (`aten::to`) or a step of its own.
pub fn is_of_library(domain: &str, name: &str) -> bool {
    let is_lower = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    let namespace = name.split_once("::").map_or("", |it| it.0);
    (!namespace.is_empty() && namespace.bytes().all(is_lower))
        || ["CCCL", "NCCL"].contains(&domain)
        || ["CCCL", "FSDP::", "ProfilerStep"].iter().any(|it| name.starts_with(it))
}

/// Range names by similarity to `wanted`, most similar first, and ranges of libraries last.
fn nearest(wanted: &str, ranges: &BTreeSet<(&str, &str)>) -> Vec<String> {
    let named = || ranges.iter().filter(|(_, name)| !name.is_empty());
    let (groups, group_of) = RangeNames::grouped(named().copied());
    let mut names: Vec<(bool, f64, String)> =
        groups.iter().map(|it| (true, 0.0, it.text())).collect();
    for ((domain, name), at) in named().zip(group_of) {
        let (of_library, similarity, _) = &mut names[at];
        let in_rule = name_in_rule(name, domain);
        *of_library &= is_of_library(domain, name);
        *similarity = similarity.max(strsim::jaro_winkler(wanted, &in_rule));
    }
    names.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)).then_with(|| a.2.cmp(&b.2)));
    names.into_iter().map(|(.., name)| name).collect()
}

/// Returns true when `domain` is the named one; without a name, the stage or default domain.
fn in_domain(named: Option<&str>, domain: &str) -> bool {
    named.map_or(domain.is_empty() || domain == STAGE_DOMAIN, |named| named == domain)
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
        let missing = wanted.find(|rule| !ranges.iter().any(|it| names_range(rule, it.1))).cloned();
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
        for rule in self.stages.iter().filter(|it| !it.is_of_steps()) {
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
        let rule = self.rule(range, domain)?;
        (!rule.is_of_steps()).then_some(rule.stage.as_str())
    }

    fn rule(&self, range: &str, domain: &str) -> Option<&StageRule> {
        self.stages.iter().find(|rule| rule.matches(range, domain))
    }

    /// True for the range of one step inside a range of decode: by a rule, or by its name.
    pub fn is_step_in_decode(&self, range: &str, domain: &str) -> bool {
        match self.names_steps() {
            true => self.rule(range, domain).is_some_and(StageRule::is_of_steps),
            false => range == DECODE_STEP,
        }
    }

    fn names_steps(&self) -> bool {
        self.stages[..self.named].iter().any(StageRule::is_of_steps)
    }

    /// True for the range of one decode step, with or without a range of decode around it. If the
    /// user names other ranges of decode, a range named `decode_step` is one only inside them
    /// ([`Self::is_step_in_decode`]).
    pub fn is_decode_step(&self, range: &str, domain: &str) -> bool {
        if self.names_steps() {
            return self.is_step_in_decode(range, domain);
        }
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
        let many: Vec<String> = ('a'..='o').map(|at| format!("range_{at}")).collect();
        let listed = rules(&[], &["x"])
            .check(many.iter().map(|it| ("", it.as_str())))
            .unwrap_err()
            .to_string();
        assert!(listed.ends_with(" and 5 more") && listed.len() < 200, "{listed}");
        let numbered: Vec<String> = (0..120).map(|at| format!("step_{at}")).collect();
        let numbered = || numbered.iter().map(|it| ("vllm", it.as_str())).chain([("", "forward")]);
        let wanted = rules(&["decode_all=step_1"], &[]);
        assert_eq!(
            wanted.check(numbered()).unwrap_err().to_string(),
            "no range named \"step_1\"; available: step_*@vllm (120 names), forward"
        );
        for all in ["decode_all=step_*@vllm", "decode_all=step_7@vllm"] {
            assert_eq!(rules(&[all], &["step_*"]).check(numbered()), Ok(()), "{all}");
        }
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
