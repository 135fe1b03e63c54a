//! HTML reports: their templates and style sheet, and the escaping of text from outside.

/// The reports' style sheet, for pages with the same look.
pub const STYLE: &str = include_str!("style.css");
/// The macro that lays out a report table as HTML.
pub const TABLE_MACRO: &str = include_str!("macros.html");

/// Escapes text for HTML and SVG, in content and in quoted attributes.
pub fn escape(text: &str) -> String {
    minijinja::HtmlEscape(text).to_string()
}
