//! Names of ranges in rules, in which `*` stands for a number, and numbered names as one pattern.

use std::collections::BTreeMap;

use super::{StageRules, in_domain};

/// Names of ranges of one domain: one name, or names that differ only in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeNames {
    /// The name, or its pattern: `step_*`.
    name: String,
    domain: String,
    /// Number of names.
    count: usize,
}

impl RangeNames {
    /// Groups pairs of domain and name. Returns the groups, and the group of each pair.
    pub fn grouped<'a>(
        ranges: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> (Vec<Self>, Vec<usize>) {
        let mut of_pattern: BTreeMap<(&str, String), usize> = BTreeMap::new();
        let mut names: Vec<(&str, String, Vec<&str>)> = Vec::new();
        let mut group_of = Vec::new();
        for (domain, name) in ranges {
            let domain = if in_domain(None, domain) { "" } else { domain };
            let pattern = pattern(name);
            let at = *of_pattern.entry((domain, pattern.clone())).or_insert(names.len());
            if at == names.len() {
                names.push((domain, pattern, Vec::new()));
            }
            names[at].2.push(name);
            group_of.push(at);
        }
        let group = |(domain, pattern, mut names): (&str, String, Vec<&str>)| {
            names.sort_unstable();
            names.dedup();
            let name = if names.len() > 1 { pattern } else { names.concat() };
            Self { name, domain: domain.to_owned(), count: names.len() }
        };
        (names.into_iter().map(group).collect(), group_of)
    }

    /// As a rule names it.
    pub fn in_rule(&self) -> String {
        name_in_rule(&self.name, &self.domain)
    }

    /// The same with the number of names of a pattern.
    pub fn text(&self) -> String {
        self.counted(self.in_rule())
    }

    /// The same for a sentence: the name is code, which is copied as it is.
    pub fn in_sentence(&self) -> String {
        self.counted(format!("`{}`", self.in_rule()))
    }

    fn counted(&self, name: String) -> String {
        match self.count {
            0 | 1 => name,
            count => format!("{name} ({count} names)"),
        }
    }
}

/// A name as rules have it: a domain is part of it unless rules match the domain by default.
pub(super) fn name_in_rule(name: &str, domain: &str) -> String {
    match in_domain(None, domain) {
        true => name.to_owned(),
        false => format!("{name}@{domain}"),
    }
}

/// The name with `*` for each number; a name that contains `*` is its own pattern.
fn pattern(name: &str) -> String {
    if name.contains('*') {
        return name.to_owned();
    }
    let mut pattern = String::with_capacity(name.len());
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if pattern.ends_with('*') => {}
            true => pattern.push('*'),
            false => pattern.push(c),
        }
    }
    pattern
}

/// True if a rule names a range: by its name, or by a pattern with `*` for each number.
pub(super) fn names_range(rule: &str, name: &str) -> bool {
    rule == name || (rule.contains('*') && is_numbered(rule, name))
}

fn is_numbered(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    for part in parts {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        if after.len() == rest.len() {
            return false;
        }
        let Some(after) = after.strip_prefix(part) else { return false };
        rest = after;
    }
    rest.is_empty()
}

/// True if a range can have both names.
pub(super) fn may_be_equal(a: &str, b: &str) -> bool {
    let example = |pattern: &str| pattern.replace('*', "0");
    names_range(a, b) || names_range(a, &example(b)) || names_range(b, &example(a))
}

impl StageRules {
    /// True if only work in some ranges counts, and this is one of them.
    pub fn includes(&self, range: &str) -> bool {
        self.include_ranges.iter().any(|rule| names_range(rule, range))
    }

    /// True if work in this range does not count.
    pub fn excludes(&self, range: &str) -> bool {
        self.exclude_ranges.iter().any(|rule| names_range(rule, range))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_stands_for_one_number() {
        for (rule, name, is_named) in [
            ("step_*", "step_17", true),
            ("step_*", "step_", false),
            ("step_*", "step_17_attention", false),
            ("step_*", "step_a", false),
            ("layers.*.mlp.*", "layers.0.mlp.12", true),
            ("*", "7", true),
            ("a*b", "a*b", true),
            ("step_17", "step_17", true),
            ("step_17", "step_1", false),
        ] {
            assert_eq!(names_range(rule, name), is_named, "{rule} {name}");
        }
        assert!(may_be_equal("step_*", "step_1*") && may_be_equal("step_3", "step_*"));
        assert!(!may_be_equal("step_*", "layer_*") && !may_be_equal("step_1", "step_2"));
    }

    #[test]
    fn numbered_names_are_one_pattern_with_their_number() {
        let names: Vec<String> = (0..120).map(|at| format!("step_{at}")).collect();
        let ranges = names.iter().map(|name| ("", name.as_str()));
        let requests = [("vllm", "request-00012"), ("vllm", "request-7")];
        let others = requests.into_iter().chain([("LLM", "layer_0"), ("", "a")]);
        let (groups, group_of) = RangeNames::grouped(ranges.chain(others));
        let texts: Vec<String> = groups.iter().map(RangeNames::text).collect();
        assert_eq!(texts, ["step_* (120 names)", "request-*@vllm (2 names)", "layer_0", "a"]);
        assert_eq!(group_of[119..], [0, 1, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn a_group_names_each_of_its_ranges(
            names in prop::collection::vec("[a-c*._]{0,3}[0-9]{0,2}[a-c]{0,2}[0-9]{0,2}", 1..20)
        ) {
            let ranges = names.iter().map(|name| ("", name.as_str()));
            let (groups, group_of) = RangeNames::grouped(ranges);
            for (name, at) in names.iter().zip(group_of) {
                prop_assert!(names_range(&groups[at].in_rule(), name), "{:?}: {name}", groups[at]);
            }
        }
    }
}
