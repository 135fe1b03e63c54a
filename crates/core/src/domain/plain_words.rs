//! Errors of deserializers in words of the contract: no names of types.
//!
//! Pure text.

use std::sync::LazyLock;

use regex::Regex;

/// Patterns and their replacements, in order.
static WORDS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    let words = [
        (r"data did not match any variant of untagged enum \w+", "none of the accepted forms"),
        (
            r"\b(?:tuple |unit |newtype )?(?:struct|variant) [A-Z][\w:]*(?: with \d+ elements?)?",
            "an object",
        ),
        (r"\b(?:(?:internally|adjacently|externally) tagged )?enum [A-Z]\w*", "a known value"),
        (r"\bexpected [ui](?:8|16|32|64|128|size)\b", "expected an integer"),
        (r"\bexpected f(?:32|64)\b", "expected a number"),
        (r"\bexpected (?:a )?sequence\b", "expected a list"),
        (r"\bexpected (?:a )?map\b", "expected an object"),
        (r"\binvalid type: sequence\b", "invalid type: list"),
        (r"\binvalid type: map\b", "invalid type: object"),
        (r"\binvalid type: unit value\b", "invalid type: null"),
    ];
    let compile = |(pattern, text): (&str, &'static str)| Some((Regex::new(pattern).ok()?, text));
    words.into_iter().filter_map(compile).collect()
});

/// The text of a deserializer's error without names of types.
pub fn plain_words(error: &str) -> String {
    let plain = |text: String, (pattern, words): &(Regex, &'static str)| {
        pattern.replace_all(&text, *words).into_owned()
    };
    WORDS.iter().fold(error.to_owned(), plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_do_not_name_types() {
        let cases = [
            (
                "samples[0].images[0]: invalid type: string \"a\", expected struct ManifestImage",
                "samples[0].images[0]: invalid type: string \"a\", expected an object",
            ),
            (
                "invalid length 1, expected struct A with 2 elements",
                "invalid length 1, expected an object",
            ),
            ("invalid type: map, expected u32", "invalid type: object, expected an integer"),
            ("invalid type: sequence, expected a map", "invalid type: list, expected an object"),
            (
                "data did not match any variant of untagged enum AnyParam",
                "none of the accepted forms",
            ),
            ("expected internally tagged enum Load", "expected a known value"),
            ("invalid type: unit value, expected f64", "invalid type: null, expected a number"),
            (
                "unknown variant `x`, expected `a` or `b`",
                "unknown variant `x`, expected `a` or `b`",
            ),
            ("missing field `model`", "missing field `model`"),
        ];
        for (error, expected) in cases {
            assert_eq!(plain_words(error), expected);
        }
        assert_eq!(WORDS.len(), 10, "every pattern compiles");
    }
}
