//! The template engine of the reports. It escapes every value by default: in HTML, in Markdown, and
//! for a terminal.

use std::{borrow::Cow, sync::LazyLock};

use llmprof_analyze::stages::in_sentence;
use llmprof_core::domain::visible::one_line;
use minijinja::{
    AutoEscape, Environment, State, UndefinedBehavior, syntax::SyntaxConfig, value::Value,
};

use super::{format::figure, html, markdown};

const MARKDOWN: AutoEscape = AutoEscape::Custom(Cow::Borrowed("markdown"));
const TERMINAL: AutoEscape = AutoEscape::Custom(Cow::Borrowed("terminal"));

/// The form of a template, which its imported macros have too.
fn form(template: &str) -> AutoEscape {
    match template.rsplit_once('.').map(|it| it.1) {
        Some("html") => AutoEscape::Html,
        Some("txt") => TERMINAL,
        _ => MARKDOWN,
    }
}

/// Text in one paragraph of a terminal, which shows marks of Markdown and HTML as they are.
fn paragraph(text: &str) -> String {
    one_line(text.replace('\r', " ").trim())
}

/// Renders an embedded template.
pub fn render(name: &str, page: Value) -> String {
    static ENGINE: LazyLock<Environment<'static>> = LazyLock::new(engine);
    ENGINE
        .get_template(name)
        .expect("the template is embedded: tests render each of them")
        .render(page)
        .expect("the template uses only fields of the page: tests render each of them")
}

/// Creates an engine with every template of the reports.
fn engine() -> Environment<'static> {
    let mut engine = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(true)
        .build();
    engine.set_syntax(syntax.expect("the default delimiters differ from each other"));
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.set_auto_escape_callback(form);
    engine.set_formatter(|out, state, value| {
        if *state.auto_escape() == AutoEscape::Html {
            return html::write_value(out, state, value);
        }
        let is_terminal = *state.auto_escape() == TERMINAL;
        match value {
            // The empty side of an inline `if` is undefined even in strict mode.
            value if value.is_undefined() || value.is_none() => Ok(()),
            value if value.is_safe() => Ok(out.write_str(&value.to_string())?),
            value if is_terminal => Ok(out.write_str(&paragraph(&value.to_string()))?),
            value => Ok(out.write_str(&markdown::escape(&value.to_string()))?),
        }
    });
    engine.add_filter("ended", ended);
    engine.add_filter("prose", |state: &State, text: &str| {
        Value::from_safe_string(match state.auto_escape() {
            AutoEscape::Html => html::prose(text),
            form if *form == TERMINAL => paragraph(text),
            _ => markdown::prose(text),
        })
    });
    engine.add_filter("in_sentence", |stage: &str| in_sentence(stage).to_owned());
    engine.add_filter("figure", figure);
    for (name, source) in TEMPLATES {
        engine
            .add_template(name, source)
            .expect("the embedded templates parse: tests render each of them");
    }
    engine
}

/// A text that others follow in its paragraph: with a full stop, if it has no end.
fn ended(text: &str) -> String {
    let is_end = text.trim_end().ends_with(['.', '!', '?', ':']);
    if is_end || text.is_empty() { text.to_owned() } else { format!("{}.", text.trim_end()) }
}

const TEMPLATES: [(&str, &str); 15] = [
    ("macros.md", include_str!("markdown/macros.md")),
    ("answer.txt", include_str!("markdown/answer.txt")),
    ("report.md", include_str!("markdown/report.md")),
    ("stakeholder_summary.md", include_str!("markdown/stakeholder_summary.md")),
    ("operators.md", include_str!("markdown/operators.md")),
    ("gemms.md", include_str!("markdown/gemms.md")),
    ("kernels.md", include_str!("markdown/kernels.md")),
    ("align.md", include_str!("markdown/align.md")),
    ("align.html", include_str!("html/align.html")),
    ("diff.md", include_str!("markdown/diff.md")),
    ("diff.html", include_str!("html/diff.html")),
    ("cost.md", include_str!("markdown/cost.md")),
    ("macros.html", include_str!("html/macros.html")),
    ("report.html", include_str!("html/report.html")),
    ("style.css", include_str!("html/style.css")),
];

#[cfg(test)]
mod tests {
    use llmprof_core::domain::visible::{hidden, is_hidden};

    use super::*;

    #[test]
    fn a_terminal_shows_text_as_it_is_but_characters_that_control_it() {
        let shown = |text: &str| paragraph(text);
        let names =
            ["token_*_processing", "cutlass::Kernel<Gemm<float>>", "< 0.1 %", "a `b|c` \\d"];
        for text in names {
            assert_eq!(shown(text), text);
        }
        assert_eq!(shown("a\nb\u{1b}[2J\u{202e}c\n"), "a b‹U+001B›[2J‹U+202E›c");
    }

    #[test]
    fn no_form_of_a_report_has_a_hidden_character() {
        let mut engine = engine();
        engine.add_template("text.txt", "{{ text }} {{ text|prose }}").unwrap();
        engine.add_template("text.md", "{{ text }} {{ text|prose }}").unwrap();
        engine.add_template("text.html", "{{ text }} {{ text|prose }}").unwrap();
        for c in hidden() {
            for name in ["text.txt", "text.md", "text.html"] {
                let page = minijinja::context! { text => format!("a{c}b `{c}`") };
                let shown = engine.get_template(name).unwrap().render(page).unwrap();
                assert!(!shown.contains(is_hidden), "{name} {c:?}: {shown:?}");
            }
        }
    }

    #[test]
    fn a_text_without_an_end_gets_a_full_stop() {
        assert_eq!(ended("no driver is loaded"), "no driver is loaded.");
        for text in ["Read the log.", "Is it?", "see:", ""] {
            assert_eq!(ended(text), text);
        }
    }
}
