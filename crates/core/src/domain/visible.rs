//! Characters of text from outside that a reader would not see: they control a terminal, or change
//! the order or the lines in which the text around them is displayed.

use std::borrow::Cow;

use serde::Serialize;

/// Returns true for controls (C0, DEL, C1) except tab and line feed, for marks, embeddings,
/// overrides and isolates of the bidirectional algorithm, and for separators of lines and
/// paragraphs.
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && !matches!(c, '\t' | '\n'))
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}')
}

/// Text with its hidden characters as symbols (`‹U+202E›`), so that it is displayed in the order in
/// which it is stored and controls no terminal. A carriage return before a line feed stays.
pub fn visible(text: &str) -> Cow<'_, str> {
    with_hidden(text, |c| format!("‹U+{:04X}›", u32::from(c)))
}

/// The same on one line: tabs and ends of lines are spaces.
pub fn one_line(text: &str) -> String {
    visible(text).replace("\r\n", " ").replace(['\t', '\n'], " ")
}

/// A JSON text with its hidden characters escaped (`\u202e`); the value is the same, because they
/// stand in strings only.
pub fn json(text: &str) -> Cow<'_, str> {
    with_hidden(text, |c| format!("\\u{:04x}", u32::from(c)))
}

/// A value as indented JSON with its hidden characters escaped, and a line feed.
pub fn pretty_json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(json(&serde_json::to_string_pretty(value)?).into_owned() + "\n")
}

fn with_hidden(text: &str, symbol: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let is_line_end = c == '\r' && rest.peek() == Some(&'\n');
        match is_hidden(c) && !is_line_end {
            true => shown.push_str(&symbol(c)),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Every hidden character, for tests of each form in which text is shown.
#[cfg(any(test, feature = "testing"))]
pub fn hidden() -> impl Iterator<Item = char> {
    ('\0'..='\u{ffff}').filter(|c| is_hidden(*c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_control_and_change_of_direction_is_a_symbol() {
        let named = ['\0', '\u{1b}', '\r', '\u{7f}', '\u{9b}', '\u{61c}', '\u{200e}', '\u{200f}'];
        let named = named.into_iter().chain('\u{2028}'..='\u{2029}');
        let named = named.chain('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        for c in named {
            assert!(hidden().any(|it| it == c), "{c:?}");
        }
        for c in hidden() {
            let text = visible(&format!("a{c}b")).into_owned();
            assert_eq!(text, format!("a‹U+{:04X}›b", u32::from(c)));
            assert_eq!(visible(&text), text, "a second time changes nothing");
        }
        let shown = "a\tb\nü 漢 e\u{301} 👩\u{200d}🔬";
        assert_eq!(visible(shown), shown);
        assert_eq!(visible("a\r\nb\rc\u{1b}"), "a\r\nb‹U+000D›c‹U+001B›");
        assert_eq!(one_line("a\tb\nc\r\nd\u{1b}"), "a b c d‹U+001B›");
    }

    #[test]
    fn an_escaped_json_text_has_the_same_value() {
        let value: serde_json::Value = hidden().map(|c| format!("a{c}b")).collect();
        let text = value.to_string();
        let escaped = json(&text);
        assert!(!escaped.contains(is_hidden), "{escaped}");
        let pretty = pretty_json(&value).unwrap();
        assert!(!pretty.contains(is_hidden) && pretty.ends_with("]\n"), "{pretty}");
        for text in [&*escaped, pretty.as_str()] {
            assert_eq!(serde_json::from_str::<serde_json::Value>(text).unwrap(), value);
        }
    }
}
