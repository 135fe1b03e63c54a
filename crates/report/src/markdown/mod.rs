//! Markdown reports: their templates, and the escaping of text from outside.

use llmprof_core::domain::visible::visible;

/// Escapes text for a paragraph, a list item or a table's cell.
pub fn escape(text: &str) -> String {
    escape_but(text, |_| None)
}

/// The same; text between a pair of backticks is code.
pub fn prose(text: &str) -> String {
    escape_but(text, |rest| {
        let (code, _) = rest.split_once('`')?;
        let is_plain = |c: char| !c.is_control() && c != '|';
        (!code.trim().is_empty() && code.chars().all(is_plain)).then_some(code)
    })
}

/// Escapes text but the code that `code_of` finds after a backtick.
fn escape_but(text: &str, code_of: impl Fn(&str) -> Option<&str>) -> String {
    let text = visible(text);
    let mut escaped = String::with_capacity(text.len() + 8);
    let mut before = ' ';
    let mut rest = text.trim().chars();
    let mut first = true;
    while let Some(mut c) = rest.next() {
        if let Some(code) = code_of(rest.as_str()).filter(|_| c == '`') {
            escaped.extend(["`", code, "`"]);
            rest = rest.as_str()[code.len() + 1..].chars();
            (before, first) = ('`', false);
            continue;
        }
        let mut rest = rest.clone().peekable();
        if c.is_control() {
            c = ' ';
        }
        let within_word =
            before.is_alphanumeric() && rest.peek().is_some_and(|after| after.is_alphanumeric());
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '_' if within_word => escaped.push('_'),
            '\\' | '`' | '|' | '*' | '_' | '[' | ']' | '~' | '#' | '$' => escaped.extend(['\\', c]),
            // At the start of a line these would start a list, a rule or a heading.
            '-' | '+' | '='
                if first && !rest.peek().is_some_and(|after| after.is_alphanumeric()) =>
            {
                escaped.extend(['\\', c])
            }
            '.' | ')'
                if numbered(&escaped)
                    && !rest.peek().is_some_and(|after| after.is_alphanumeric()) =>
            {
                escaped.extend(['\\', c]);
            }
            _ => escaped.push(c),
        }
        before = c;
        first = false;
    }
    escaped
}

/// Returns true if a line with this start could become an item of a numbered list.
fn numbered(line: &str) -> bool {
    !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::visible::{hidden, is_hidden};
    use proptest::prelude::*;
    use pulldown_cmark::{Event, Options, Parser, Tag};

    use super::*;

    /// The text of a document, and true if it contains nothing but text, lists and tables.
    fn read(document: &str) -> (String, bool) {
        let mut text = String::new();
        let mut plain = true;
        for event in
            Parser::new_ext(document, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
        {
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
        text.split(|c: char| c.is_whitespace() || c.is_control())
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn is_unchanged(text: &str) -> Result<(), TestCaseError> {
        let escaped = escape(text);
        let text = &visible(text);
        let cell = format!("| head | next |\n| --- | --- |\n| {escaped} | end |\n");
        for (document, expected) in [
            (cell, format!("headnext{}end", squeezed(text))),
            (format!("- {escaped}\n"), squeezed(text)),
            (format!("{escaped}\n"), squeezed(text)),
        ] {
            let (shown, plain) = read(&document);
            prop_assert!(plain, "{:?} became more than text in {:?}", text, document);
            prop_assert_eq!(
                squeezed(&shown).replace(' ', ""),
                expected.replace(' ', ""),
                "{:?}",
                document
            );
        }
        Ok(())
    }

    #[test]
    fn names_of_modules_stay_readable() {
        assert_eq!(
            escape("decoder.layers.*.self_attn.q_proj"),
            r"decoder.layers.\*.self_attn.q_proj"
        );
    }

    #[test]
    fn hidden_characters_are_visible() {
        assert_eq!(escape("a\u{202e}b\u{1b}[2J"), "a‹U+202E›b‹U+001B›\\[2J");
        for c in hidden() {
            let text = format!("a{c}b `c{c}d`");
            assert!(![escape(&text), prose(&text)].concat().contains(is_hidden), "{c:?}");
            is_unchanged(&text).unwrap();
        }
    }

    #[test]
    fn numbers_stay_numbers() {
        assert_eq!((escape("12.345").as_str(), escape("-0.5").as_str()), ("12.345", "-0.5"));
    }

    #[test]
    fn known_attacks_stay_text() {
        for text in [
            "<script>alert(1)</script>",
            "a|b\n|c",
            "`x`",
            "[a](b)",
            "![a](b)",
            "# h",
            "- a",
            "+",
            "1. a",
            "1)",
            "---",
            "&lt;",
        ] {
            is_unchanged(text).unwrap();
        }
        for text in [
            "~~~", "=== ", "> q", "\\", "\\|", "__a__", "*a*", "<a@b.c>", "<!-- x", "***",
            "a\u{0}b", "\u{2028}", "[x]: y", "- - -",
        ] {
            is_unchanged(text).unwrap();
        }
    }

    proptest! {
        #[test]
        fn any_text_stays_text(text in "[-<>|`*_\\[\\]()#+.!~=&\\\\:a1 \n\t]{0,12}") {
            is_unchanged(&text)?;
        }
    }
}
