//! Errors of deserializers in words of the contract: the refused value and the accepted ones, no
//! names of types.
//!
//! Pure text.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// Words from a path and two groups of a pattern.
type Statement = fn(&str, [&str; 2]) -> String;

/// Maximum characters of a refused value.
const MAX_VALUE: usize = 40;

/// Patterns and their replacements, in order.
static WORDS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    let words = [
        (r"data did not match any variant of untagged enum \w+", "none of the accepted forms"),
        (
            r"\b(?:tuple |unit |newtype )?(?:struct|variant) [A-Z][\w:]*(?: with \d+ elements?)?",
            "an object",
        ),
        (r"\b(?:(?:internally|adjacently|externally) tagged )?enum [A-Z]\w*", "a known value"),
        (r"\bexpected i(?:8|16|32|64|128|size)\b", "expected an integer"),
        (r"\bexpected u32\b", "expected an integer between 0 and 4294967295"),
        (r"\bexpected u(?:8|16|64|128|size)\b", "expected an integer of 0 or more"),
        (r"\bexpected f(?:32|64)\b", "expected a number"),
        (r"\bexpected (?:a )?sequence\b", "expected a list"),
        (r"\bexpected (?:a )?map\b", "expected an object"),
        (r"\bexpected a JSON number\b", "expected a number"),
        (r"\binvalid type: sequence\b", "invalid type: list"),
        (r"\binvalid type: map\b", "invalid type: object"),
        (r"\binvalid type: unit value\b", "invalid type: null"),
        (
            "\\b(?:invalid digit found in string|cannot parse integer from empty string\
             |number too (?:large|small) to fit in target type)$",
            "expected an integer",
        ),
        ("\\bprovided string was not `true` or `false`$", "expected true or false"),
        (r"\bduplicate field (`[^`]*`)$", "$1 is given more than once"),
        (r"\bUUID parsing failed: .*$", "expected a UUID"),
        (r"\bexpected a formatted UUID string\b", "expected a UUID"),
    ];
    let compile = |(pattern, text): (&str, &'static str)| Some((Regex::new(pattern).ok()?, text));
    words.into_iter().filter_map(compile).collect()
});

/// Patterns of errors that are stated as the refused value and the accepted ones, each with its
/// statement from the path and the groups.
static STATED: LazyLock<Vec<(Regex, Statement)>> = LazyLock::new(|| {
    let stated: [(&str, Statement); 4] = [
        (r"unknown variant `(.*?)`, expected (.*)", |path, [value, known]| {
            invalid(path, &format!("{value:?}"), known)
        }),
        (r"unknown field `(.*?)`, expected (.*)", |path, [name, known]| {
            // The path ends with the field.
            let parent = path.strip_suffix(name).unwrap_or(path).trim_end_matches('.');
            let place = if parent.is_empty() { String::new() } else { format!("{parent}: ") };
            format!("{place}unknown field `{name}`; expected {known}")
        }),
        (r"invalid (?:type|value): (list|object|null), expected (.*)", |path, [kind, known]| {
            let value = if kind == "null" { kind.to_owned() } else { format!("({kind})") };
            invalid(path, &value, known)
        }),
        (
            r#"invalid (?:type|value): [a-z ]+ (["`].*["`]), expected (.*)"#,
            |path, [value, known]| invalid(path, &value.replace('`', ""), known),
        ),
    ];
    let compile = |(pattern, state): (&str, Statement)| {
        Some((Regex::new(&format!(r"^(?:([^\s:`]+): )?(?:{pattern})$")).ok()?, state))
    };
    stated.into_iter().filter_map(compile).collect()
});

/// The text of a deserializer's error without names of types. An error that starts with the path
/// of the refused value is stated as `invalid PATH VALUE; expected ...`.
pub fn plain_words(error: &str) -> String {
    let plain = |text: String, (pattern, words): &(Regex, &'static str)| {
        pattern.replace_all(&text, *words).into_owned()
    };
    let text = WORDS.iter().fold(error.to_owned(), plain);
    let stated = STATED.iter().find_map(|(pattern, state)| {
        let found = pattern.captures(&text)?;
        let group = |at| found.get(at).map_or("", |it| it.as_str());
        Some(state(group(1), [group(2), group(3)]))
    });
    stated.unwrap_or(text)
}

/// The same with the refused value, which `value` returns by its path, if the error lacks it.
pub fn with_value(error: &str, value: impl Fn(&str) -> Option<Value>) -> String {
    let text = plain_words(error);
    let found = text
        .split_once(": expected ")
        .and_then(|(path, known)| Some((path, value(path)?.to_string(), known)));
    found.map_or_else(|| text.clone(), |(path, value, known)| invalid(path, &value, known))
}

/// The statement of a refused value: its path, the value as it is printed, and the accepted ones.
pub fn invalid(path: &str, value: &str, known: &str) -> String {
    let name = if path.is_empty() { "value" } else { path };
    let cut = if value.chars().count() > MAX_VALUE { "..." } else { "" };
    format!("invalid {name} {value:.MAX_VALUE$}{cut}; expected {}", known.replace('`', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_do_not_name_types() {
        let cases = [
            (
                "samples[0].images[0]: invalid type: string \"a\", expected struct ManifestImage",
                "invalid samples[0].images[0] \"a\"; expected an object",
            ),
            (
                "invalid length 1, expected struct A with 2 elements",
                "invalid length 1, expected an object",
            ),
            ("invalid type: map, expected i32", "invalid value (object); expected an integer"),
            (
                "labels: invalid type: sequence, expected a map",
                "invalid labels (list); expected an object",
            ),
            (
                "repeats: invalid type: string \"3\", expected a JSON number",
                "invalid repeats \"3\"; expected a number",
            ),
            (
                "seed: invalid value: integer `-1`, expected u64",
                "invalid seed -1; expected an integer of 0 or more",
            ),
            (
                "pid: invalid value: integer `-1`, expected u32",
                "invalid pid -1; expected an integer between 0 and 4294967295",
            ),
            (
                "data did not match any variant of untagged enum AnyParam",
                "none of the accepted forms",
            ),
            ("expected internally tagged enum Load", "expected a known value"),
            ("x.y: invalid type: unit value, expected f64", "invalid x.y null; expected a number"),
            ("unknown variant `x`, expected `a` or `b`", "invalid value \"x\"; expected a or b"),
            (
                "kind: unknown variant `x`, expected one of `a`, `b`, `c`",
                "invalid kind \"x\"; expected one of a, b, c",
            ),
            ("unknown field `x`, expected `a` or `b`", "unknown field `x`; expected `a` or `b`"),
            ("x: unknown field `x`, expected `a`", "unknown field `x`; expected `a`"),
            ("t.x: unknown field `x`, expected `a`", "t: unknown field `x`; expected `a`"),
            ("duplicate field `limit`", "`limit` is given more than once"),
            ("limit: invalid digit found in string", "limit: expected an integer"),
            ("all: provided string was not `true` or `false`", "all: expected true or false"),
            ("missing field `model`", "missing field `model`"),
        ];
        for (error, expected) in cases {
            assert_eq!(plain_words(error), expected);
        }
        assert_eq!((WORDS.len(), STATED.len()), (18, 4), "every pattern compiles");
    }

    #[test]
    fn a_refused_value_is_printed_up_to_its_first_characters() {
        let stated = |error: &str, value: &str| {
            with_value(error, |path| (path == "run").then(|| Value::from(value)))
        };
        let failed = "run: UUID parsing failed: invalid length";
        assert_eq!(stated(failed, "x"), "invalid run \"x\"; expected a UUID");
        let long = stated(failed, &"x".repeat(50));
        assert_eq!(long, format!("invalid run \"{}...; expected a UUID", "x".repeat(39)));
        assert_eq!(stated("a: expected a list", "x"), "a: expected a list");
    }
}
