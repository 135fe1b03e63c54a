//! The templates' engine, and how text from outside is made harmless in each format.
//!
//! Escaping is the default for every value in both formats: a template cannot forget it.

use std::borrow::Cow;

use minijinja::{AutoEscape, Environment, UndefinedBehavior, escape_formatter, syntax::SyntaxConfig};

const MARKDOWN: AutoEscape = AutoEscape::Custom(Cow::Borrowed("markdown"));

/// Makes an engine that knows every template of the reports.
pub fn engine() -> Environment<'static> {
    let mut engine = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    engine.set_syntax(syntax.expect("the default delimiters differ from each other"));
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.set_auto_escape_callback(|name| if name.ends_with(".html") { AutoEscape::Html } else { MARKDOWN });
    engine.set_formatter(|out, state, value| {
        if *state.auto_escape() != MARKDOWN {
            return escape_formatter(out, state, value);
        }
        match value {
            // What strictness lets through is the empty side of an inline `if`.
            value if value.is_undefined() || value.is_none() => Ok(()),
            value if value.is_safe() => Ok(out.write_str(&value.to_string())?),
            value => Ok(out.write_str(&markdown(&value.to_string()))?),
        }
    });
    for (name, source) in TEMPLATES {
        engine.add_template(name, source).expect("the embedded templates parse: tests render each of them");
    }
    engine
}

const TEMPLATES: [(&str, &str); 14] = [
    ("macros.md", include_str!("templates/macros.md")),
    ("report.md", include_str!("templates/report.md")),
    ("stakeholder_summary.md", include_str!("templates/stakeholder_summary.md")),
    ("operators.md", include_str!("templates/operators.md")),
    ("gemms.md", include_str!("templates/gemms.md")),
    ("kernels.md", include_str!("templates/kernels.md")),
    ("align.md", include_str!("templates/align.md")),
    ("align.html", include_str!("templates/align.html")),
    ("diff.md", include_str!("templates/diff.md")),
    ("diff.html", include_str!("templates/diff.html")),
    ("cost.md", include_str!("templates/cost.md")),
    ("macros.html", include_str!("templates/macros.html")),
    ("report.html", include_str!("templates/report.html")),
    ("style.css", include_str!("templates/style.css")),
];

/// Text that Markdown shows as it is, in a paragraph, a list item or a table's cell.
pub fn markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    let mut before = ' ';
    let mut rest = text.trim().chars().peekable();
    let mut first = true;
    while let Some(mut c) = rest.next() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            c = ' ';
        }
        let within_word = before.is_alphanumeric() && rest.peek().is_some_and(|after| after.is_alphanumeric());
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '_' if within_word => escaped.push('_'),
            '\\' | '`' | '|' | '*' | '_' | '[' | ']' | '~' | '#' | '$' => escaped.extend(['\\', c]),
            // At the start of a line these would begin a list, a rule or a heading.
            '-' | '+' | '=' if first && !rest.peek().is_some_and(|after| after.is_alphanumeric()) => escaped.extend(['\\', c]),
            '.' | ')' if numbered(&escaped) && !rest.peek().is_some_and(|after| after.is_alphanumeric()) => {
                escaped.extend(['\\', c]);
            }
            _ => escaped.push(c),
        }
        before = c;
        first = false;
    }
    escaped
}

/// Says whether a line that begins so could become an item of a numbered list.
fn numbered(line: &str) -> bool {
    !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())
}

/// Text that HTML and SVG show as it is, in content and in quoted attributes.
pub fn html(text: &str) -> String {
    minijinja::HtmlEscape(text).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pulldown_cmark::{Event, Options, Parser, Tag};

    use super::*;

    /// The text of a document, and whether it was anything but text in `frame`'s own structure.
    fn read(document: &str) -> (String, bool) {
        let mut text = String::new();
        let mut plain = true;
        for event in Parser::new_ext(document, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH) {
            match event {
                Event::Text(part) => text.push_str(&part),
                Event::SoftBreak => text.push(' '),
                Event::End(_) | Event::Start(Tag::Paragraph | Tag::List(None) | Tag::Item) => {}
                Event::Start(Tag::Table(_) | Tag::TableHead | Tag::TableRow | Tag::TableCell) => {}
                _ => plain = false,
            }
        }
        (text, plain)
    }

    fn squeezed(text: &str) -> String {
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }

    fn reads_as_it_was(text: &str) -> Result<(), TestCaseError> {
        let escaped = markdown(text);
        let cell = format!("| head | next |\n| --- | --- |\n| {escaped} | end |\n");
        for (document, expected) in [
            (cell, format!("headnext{}end", squeezed(text))),
            (format!("- {escaped}\n"), squeezed(text)),
            (format!("{escaped}\n"), squeezed(text)),
        ] {
            let (shown, plain) = read(&document);
            prop_assert!(plain, "{:?} became more than text in {:?}", text, document);
            prop_assert_eq!(squeezed(&shown).replace(' ', ""), expected.replace(' ', ""), "{:?}", document);
        }
        Ok(())
    }

    #[test]
    fn names_of_modules_stay_readable() {
        assert_eq!(markdown("decoder.layers.*.self_attn.q_proj"), r"decoder.layers.\*.self_attn.q_proj");
    }

    #[test]
    fn numbers_stay_numbers() {
        assert_eq!((markdown("12.345").as_str(), markdown("-0.5").as_str()), ("12.345", "-0.5"));
    }

    #[test]
    fn known_attacks_read_as_text() {
        for text in
            ["<script>alert(1)</script>", "a|b\n|c", "`x`", "[a](b)", "![a](b)", "# h", "- a", "+", "1. a", "1)", "---", "&lt;"]
        {
            reads_as_it_was(text).unwrap();
        }
        for text in [
            "~~~", "=== ", "> q", "\\", "\\|", "__a__", "*a*", "<a@b.c>", "<!-- x", "***", "a\u{0}b", "\u{2028}", "[x]: y",
            "- - -",
        ] {
            reads_as_it_was(text).unwrap();
        }
    }

    proptest! {
        #[test]
        fn any_text_reads_as_it_was(text in "[-<>|`*_\\[\\]()#+.!~=&\\\\:a1 \n\t]{0,12}") {
            reads_as_it_was(&text)?;
        }
    }
}
