//! Text of the pages: templates, formats of values, style and script.
//!
//! Pure. Every value is escaped, except HTML that is built here from escaped values.

use std::sync::LazyLock;

use jiff::Timestamp;
use llmprof_analyze::stages::in_sentence;
use llmprof_report::format;
use minijinja::{
    AutoEscape, Environment, Error, HtmlEscape, UndefinedBehavior, context,
    syntax::SyntaxConfig,
    value::{Serde, Value, ValueKind},
};
use serde::Serialize;

/// The style sheets: of reports and of pages.
pub const STYLES: [&str; 2] = [llmprof_report::html::STYLE, include_str!("templates/page.css")];
pub const SCRIPT: &str = include_str!("templates/page.js");
pub const ICON: &str = include_str!("templates/icon.svg");

const TEMPLATES: [(&str, &str); 25] = [
    ("macros.html", llmprof_report::html::TABLE_MACRO),
    ("layout.html", include_str!("templates/layout.html")),
    ("parts.html", include_str!("templates/parts.html")),
    ("home.html", include_str!("templates/home.html")),
    ("submit.html", include_str!("templates/submit.html")),
    ("run.html", include_str!("templates/run.html")),
    ("alignments.html", include_str!("templates/alignments.html")),
    ("alignment.html", include_str!("templates/alignment.html")),
    ("commands.html", include_str!("templates/commands.html")),
    ("command.html", include_str!("templates/command.html")),
    ("import.html", include_str!("templates/import.html")),
    ("inputs.html", include_str!("templates/inputs.html")),
    ("stored_inputs.html", include_str!("templates/stored_inputs.html")),
    ("sessions.html", include_str!("templates/sessions.html")),
    ("sweeps.html", include_str!("templates/sweeps.html")),
    ("sweep.html", include_str!("templates/sweep.html")),
    ("series_list.html", include_str!("templates/series_list.html")),
    ("series.html", include_str!("templates/series.html")),
    ("baselines.html", include_str!("templates/baselines.html")),
    ("storage.html", include_str!("templates/storage.html")),
    ("table.html", include_str!("templates/table.html")),
    ("diff.html", include_str!("templates/diff.html")),
    ("doctor.html", include_str!("templates/doctor.html")),
    ("login.html", include_str!("templates/login.html")),
    ("error.html", include_str!("templates/error.html")),
];

/// Renders a template, which reads its frame as `frame` and its values as `page`.
pub fn render(
    template: &str,
    frame: impl Serialize,
    page: impl Serialize,
) -> Result<String, Error> {
    static ENGINE: LazyLock<Environment> = LazyLock::new(engine);
    let values = context! { frame => Value::from(Serde(frame)), page => Value::from(Serde(page)) };
    ENGINE.get_template(template)?.render(values)
}

fn engine() -> Environment<'static> {
    let mut engine = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    engine.set_syntax(syntax.expect("the default delimiters differ from each other"));
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.set_auto_escape_callback(|_| AutoEscape::Html);
    engine.set_formatter(llmprof_report::html::write_value);
    engine.add_filter("prose", |text: &str| {
        Value::from_safe_string(llmprof_report::html::prose(text))
    });
    engine.add_filter("in_sentence", |stage: &str| in_sentence(stage).to_owned());
    engine.add_filter("time", |text: &str| time(text));
    engine.add_filter("duration", |from: &str, to: Option<&str>| duration(from, to));
    engine.add_filter("bytes", format::bytes);
    engine.add_filter("count", format::count);
    engine.add_filter("short", |id: String| {
        id.get(id.len().saturating_sub(12)..).unwrap_or(&id).to_owned()
    });
    engine.add_filter("cut", |text: &str, max: usize| cut(text, max));
    engine.add_filter("figure", format::figure);
    engine.add_filter("cell", |value: Value| cell(&value));
    for (name, source) in TEMPLATES {
        engine
            .add_template(name, source)
            .expect("the embedded templates parse: a test renders each of them");
    }
    engine
}

/// A time for readers, with its RFC 3339 form for programs.
fn time(rfc3339: &str) -> Value {
    let Ok(at) = rfc3339.parse::<Timestamp>() else { return Value::from(rfc3339) };
    let (machine, text) = (HtmlEscape(rfc3339).to_string(), at.strftime("%Y-%m-%d %H:%M:%S UTC"));
    Value::from_safe_string(format!("<time datetime=\"{machine}\">{text}</time>"))
}

/// The time between two instants; empty without an end.
fn duration(from: &str, to: Option<&str>) -> String {
    let seconds =
        |text: &str| text.parse::<Timestamp>().ok().map(|at| at.as_millisecond() as f64 / 1e3);
    let Some((from, to)) = seconds(from).zip(to.and_then(seconds)) else { return String::new() };
    let seconds = (to - from).max(0.0);
    if seconds < 100.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    if whole < 3600 {
        format!("{} min {} s", whole / 60, whole % 60)
    } else {
        format!("{} h {} min", whole / 3600, whole / 60 % 60)
    }
}

/// A cell of a data table: numbers with significant digits only, an unknown value as a dash.
fn cell(value: &Value) -> String {
    match value.kind() {
        ValueKind::None | ValueKind::Undefined => format::UNKNOWN.to_owned(),
        ValueKind::Number if value.is_integer() => match u64::try_from(value.clone()) {
            Ok(whole) => format::count(whole),
            Err(_) => value.to_string(),
        },
        ValueKind::Number => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), digits)
        }
        _ => value.to_string(),
    }
}

/// The first `max` characters, with a mark if there are more.
fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
        None => text.to_owned(),
    }
}

/// At least four significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || !size.is_finite() => value.to_string(),
        size if size < 1e-4 => format!("{value:.3e}"),
        size if size < 0.1 => format::decimals(value, 6),
        size if size < 10_000.0 => format::decimals(value, 3),
        size if size < 1e15 => format::decimals(value, 0),
        _ => format!("{value:.4e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_formatted_and_other_text_is_unchanged() {
        let time_element = time("2026-11-20T09:00:00.123Z");
        assert_eq!(
            time_element.to_string(),
            "<time datetime=\"2026-11-20T09:00:00.123Z\">2026-11-20 09:00:00 UTC</time>"
        );
        assert!(!time("<b>").is_safe());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!((cut("åäö", 3), cut("åä öx", 3)), ("åäö".into(), "åä…".into()));
    }

    #[test]
    fn the_unit_of_a_duration_follows_its_length() {
        let from = "2026-11-20T09:00:00Z";
        let cases = [
            ("2026-11-20T09:00:01.500Z", "1.5 s"),
            ("2026-11-20T09:05:07Z", "5 min 7 s"),
            ("2026-11-20T12:30:00Z", "3 h 30 min"),
        ];
        for (to, expected) in cases {
            assert_eq!(duration(from, Some(to)), expected);
        }
        assert_eq!(
            (
                duration(from, None),
                duration("soon", Some(from)),
                duration(from, Some("2026-11-19T09:00:00Z"))
            ),
            (String::new(), String::new(), "0.0 s".into())
        );
    }

    #[test]
    fn a_cell_has_significant_digits_only() {
        let of = |value: serde_json::Value| cell(&Value::from(Serde(value)));
        let cells: Vec<String> = [
            1_234_567.into(),
            (-5).into(),
            0.0.into(),
            0.012_345_678.into(),
            0.000_001.into(),
            1234.5678.into(),
            2.5e7.into(),
            9e20.into(),
        ]
        .map(of)
        .into();
        assert_eq!(
            cells,
            [
                "1,234,567",
                "-5",
                "0",
                "0.012346",
                "1.000e-6",
                "1,234.568",
                "25,000,000",
                "9.0000e20"
            ]
        );
        assert_eq!((of(serde_json::Value::Null), of("a<b".into())), ("–".into(), "a<b".into()));
    }
}
