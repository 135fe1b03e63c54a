//! Refusal of stage rules that name one range for two stages: a range is one stage, so the second
//! rule would have no effect.

use super::{BadStage, StageRule, in_domain, range_names::may_be_equal};

/// Two rules of different stages that match the same range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("range {range:?} is named for two stages, {first} and {second}; name it for one of them")]
pub struct SharedRange {
    range: String,
    first: String,
    second: String,
}

/// Stage rules that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StageRulesError {
    #[error(transparent)]
    Bad(#[from] BadStage),
    #[error(transparent)]
    Shared(#[from] SharedRange),
}

/// Parses rules of the form `NAME=RANGE[@DOMAIN]`, and checks them together.
pub fn parse_stages(rules: &[String]) -> Result<Vec<StageRule>, StageRulesError> {
    let rules = rules.iter().map(|rule| rule.parse()).collect::<Result<Vec<StageRule>, _>>()?;
    check_stages(&rules)?;
    Ok(rules)
}

/// Refuses rules that name one range for two stages. Several ranges of one stage are valid.
pub fn check_stages(rules: &[StageRule]) -> Result<(), SharedRange> {
    for (at, second) in rules.iter().enumerate() {
        let is_shared = |first: &&StageRule| first.stage != second.stage && overlap(first, second);
        if let Some(first) = rules[..at].iter().find(is_shared) {
            return Err(SharedRange {
                range: second.range_text(),
                first: first.stage.clone(),
                second: second.stage.clone(),
            });
        }
    }
    Ok(())
}

/// True if a range can match both rules.
fn overlap(a: &StageRule, b: &StageRule) -> bool {
    let is_same_domain = match (&a.domain, &b.domain) {
        (None, None) => true,
        (Some(a), Some(b)) => a == b,
        (None, Some(domain)) | (Some(domain), None) => in_domain(None, domain),
    };
    may_be_equal(&a.range, &b.range) && is_same_domain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_for_two_stages_is_refused_with_the_range_and_both_stages() {
        let parsed = |rules: &[&str]| {
            let rules: Vec<String> = rules.iter().map(|it| (*it).to_owned()).collect();
            parse_stages(&rules).map(|rules| rules.len()).map_err(|error| error.to_string())
        };
        for (rules, range) in [
            (&["prefill=R", "decode_all=R"][..], "R"),
            (&["prefill=R", "prefill=other", "decode_all=R"], "R"),
            (&["prefill=R@vllm", "decode_all=R@vllm"], "R@vllm"),
            (&["prefill=R", "decode_all=R@LLM"], "R@LLM"),
            (&["prefill=R@LLM", "decode_all=R"], "R"),
            (&["prefill=step_*", "decode_all=step_0"], "step_0"),
        ] {
            let message = format!(
                "range {range:?} is named for two stages, prefill and decode_all; name it for one \
                 of them"
            );
            assert_eq!(parsed(rules), Err(message), "{rules:?}");
        }
        for rules in [
            &["prefill=R", "decode_all=S"][..],
            &["prefill=R", "prefill=R"],
            &["prefill=R", "decode_all=R@vllm"],
            &["prefill=R@a", "decode_all=R@b"],
            &[],
        ] {
            assert_eq!(parsed(rules), Ok(rules.len()), "{rules:?}");
        }
        assert!(parsed(&["prefill"]).unwrap_err().starts_with("invalid stage \"prefill\""));
    }
}
