//! Names of ranges in rules, in which `*` stands for a number, and numbered names as one pattern.

use std::collections::BTreeMap;

use super::{StageRules, in_domain};

/// Names of ranges of one domain: one name, or names that differ only in numbers. Their pattern has
/// `*` for each number that differs or stands alone between separators: `h2d_layer_*`.
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
            let name = common_name(pattern, &names);
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

/// The name of all these names, which have one pattern: the name itself if it is one. A number that
/// is the same in all of them stays if it is a part of a word.
fn common_name(pattern: String, names: &[&str]) -> String {
    let [first, others @ ..] = names else { return pattern };
    if others.is_empty() {
        return (*first).to_owned();
    }
    if names.iter().any(|name| name.contains('*')) {
        return pattern;
    }
    let common: Vec<&str> = parts(first).collect();
    let mut differs = vec![false; common.len()];
    for name in others {
        for (at, part) in parts(name).enumerate() {
            differs[at] |= part != common[at];
        }
    }
    let is_of_word = |at: usize| {
        let before = at.checked_sub(1).and_then(|at| common[at].chars().next_back());
        let after = common.get(at + 1).and_then(|part| part.chars().next());
        before.is_some_and(char::is_alphanumeric) || after.is_some_and(char::is_alphanumeric)
    };
    let named = common.iter().enumerate().map(|(at, part)| {
        let is_number = part.starts_with(|c: char| c.is_ascii_digit());
        if is_number && (differs[at] || !is_of_word(at)) { "*" } else { *part }
    });
    named.collect()
}

/// The numbers of a name and the text between them, in order.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let is_number = rest.starts_with(|c: char| c.is_ascii_digit());
        let end = rest.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
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

    #[test]
    fn a_number_that_is_a_part_of_a_word_stays_unless_it_differs() {
        for (names, expected) in [
            (&["h2d_transfer_layer_0", "h2d_transfer_layer_1"][..], "h2d_transfer_layer_*"),
            (&["h2d_transfer_layer_0"], "h2d_transfer_layer_0"),
            (&["h2d_0", "h2d_1", "h3d_0"], "h*d_*"),
            (&["conv2d", "conv3d"], "conv*d"),
            (&["layers.0.mlp.1", "layers.0.mlp.2"], "layers.*.mlp.*"),
            (&["layer0.q8", "layer1.q8"], "layer*.q8"),
            (&["fp8 step 7", "fp8 step 12"], "fp8 step *"),
            (&["é2_1", "é2_2"], "é2_*"),
            (&["7", "12"], "*"),
            (&["step_*", "step_1"], "step_*"),
            (&["", ""], ""),
        ] {
            let (groups, _) = RangeNames::grouped(names.iter().map(|name| ("", *name)));
            let found: Vec<String> = groups.iter().map(RangeNames::in_rule).collect();
            assert_eq!(found, [expected], "{names:?}");
            for name in names {
                assert!(names_range(expected, name), "{expected} {name}");
            }
        }
    }

    proptest! {
        #[test]
        fn digits_that_all_names_have_in_a_word_stay(
            word in "[a-c]{1,3}[0-9]{1,2}[a-c]{0,2}",
            numbers in prop::collection::btree_set(0_u32..200, 2..9),
        ) {
            let names: Vec<String> = numbers.iter().map(|it| format!("{word}_{it}")).collect();
            let (groups, _) = RangeNames::grouped(names.iter().map(|name| ("", name.as_str())));
            prop_assert_eq!(groups.len(), 1);
            prop_assert_eq!(groups[0].in_rule(), format!("{word}_*"));
        }

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
