//! HTML reports: their templates and style sheet, and the escaping of text from outside.

use minijinja::{Error, HtmlEscape, Output, State, escape_formatter, value::Value};

use super::format;

/// The reports' style sheet, for pages with the same look.
pub const STYLE: &str = include_str!("style.css");
/// The macro that lays out a report table as HTML.
pub const TABLE_MACRO: &str = include_str!("macros.html");

/// Escapes text for HTML and SVG, in content and in quoted attributes.
pub fn escape(text: &str) -> String {
    HtmlEscape(&format::visible(text)).to_string()
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
    use super::*;

    #[test]
    fn changes_of_direction_are_visible() {
        assert_eq!(escape("gemm\u{202e}<b>\u{2069}"), "gemm‹U+202E›&lt;b&gt;‹U+2069›");
    }

    #[test]
    fn code_is_escaped_and_a_backtick_without_another_stays() {
        assert_eq!(prose("a `b<i>` c` d"), "a <code>b&lt;i&gt;</code> c` d");
    }
}
