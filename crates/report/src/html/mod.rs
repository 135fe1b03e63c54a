//! HTML reports: their templates and style sheet, and the escaping of text from outside.

use llmprof_core::domain::visible::visible;
use minijinja::{Error, HtmlEscape, Output, State, escape_formatter, value::Value};

/// The reports' style sheet, for pages with the same look.
pub const STYLE: &str = include_str!("style.css");
/// The macro that lays out a report table as HTML.
pub const TABLE_MACRO: &str = include_str!("macros.html");

/// Escapes text for HTML and SVG, in content and in quoted attributes.
pub fn escape(text: &str) -> String {
    HtmlEscape(&visible(text)).to_string()
}

/// The same; text between a pair of backticks is code.
pub fn prose(text: &str) -> String {
    let escaped = escape(text);
    let mut parts = escaped.split('`');
    let mut html = parts.next().unwrap_or_default().to_owned();
    while let Some(code) = parts.next() {
        match parts.next() {
            Some(after) => html.extend(["<code>", code, "</code>", after]),
            None => html.extend(["`", code]),
        }
    }
    html
}

/// Writes a value of a template: text as by [`escape`], except HTML that was built from such text.
pub fn write_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str().filter(|_| !value.is_safe()) {
        Some(text) => Ok(out.write_str(&escape(text))?),
        None => escape_formatter(out, state, value),
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::visible::{hidden, is_hidden};

    use super::*;

    #[test]
    fn hidden_characters_are_visible() {
        assert_eq!(escape("gemm\u{202e}<b>\u{1b}[2J"), "gemm‹U+202E›&lt;b&gt;‹U+001B›[2J");
        for c in hidden() {
            let text = format!("a{c}b `c{c}d`");
            assert!(![escape(&text), prose(&text)].concat().contains(is_hidden), "{c:?}");
        }
    }

    #[test]
    fn code_is_escaped_and_a_backtick_without_another_stays() {
        assert_eq!(prose("a `b<i>` c` d"), "a <code>b&lt;i&gt;</code> c` d");
    }
}
