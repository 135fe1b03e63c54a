//! Scalars: plain only if YAML 1.1 and YAML 1.2 both read the text as text.
//!
//! Quotes more than it has to: every text that starts as a number or a time does.

use serde_json::Value;

/// Words that YAML 1.1 reads as a boolean or as null, in any case.
const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
/// First characters of indicators, of null (`~`), and of special keys (`=`, `<<`).
const INDICATORS: &str = "-?:,[]{}#&*!|>'\"%@`~=<";

/// The key of a field.
pub fn key(name: &str) -> String {
    text(name)
}

/// A value that is not a map or a list, on one line.
pub fn scalar(value: &Value) -> String {
    match value {
        Value::String(it) => text(it),
        Value::Number(it) => number(&it.to_string()),
        other => other.to_string(),
    }
}

/// Text of several lines as a literal block, whose lines are indented by `indent`; `None` if it
/// has a single line, or cannot be such a block.
pub fn literal(text: &str, indent: usize) -> Option<String> {
    let head = match text {
        _ if text.ends_with("\n\n") => "|+",
        _ if text.ends_with('\n') => "|",
        _ => "|-",
    };
    let lines = text.strip_suffix('\n').unwrap_or(text);
    // Leading spaces would count as indentation.
    let is_block = text.contains('\n')
        && !text.starts_with([' ', '\n'])
        && lines.split('\n').all(|line| line.chars().all(is_printable) && !line.ends_with(' '));
    let indented = |line: &str| match line {
        "" => "\n".to_owned(),
        line => format!("\n{}{line}", " ".repeat(indent)),
    };
    is_block.then(|| head.to_owned() + &lines.split('\n').map(indented).collect::<String>())
}

fn text(text: &str) -> String {
    if is_plain(text) {
        text.to_owned()
    } else if text.chars().all(is_printable) {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        escaped(text)
    }
}

/// True for text that needs no quotes outside braces and brackets.
fn is_plain(text: &str) -> bool {
    let starts_as_text = text.chars().next().is_some_and(|first| {
        // Numbers and times start with a digit, a sign or a point.
        !first.is_ascii_digit() && !['+', '.', ' '].contains(&first) && !INDICATORS.contains(first)
    });
    starts_as_text
        && text.chars().all(is_printable)
        && !text.ends_with([' ', ':'])
        && ![": ", " #"].iter().any(|mark| text.contains(mark))
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Characters that either version accepts unescaped within a line.
fn is_printable(it: char) -> bool {
    let is_separator = matches!(it, '\u{2028}' | '\u{2029}' | '\u{feff}');
    matches!(it, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
        && !is_separator
}

/// Text in double quotes.
fn escaped(text: &str) -> String {
    let character = |it: char| match it {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\n' => "\\n".to_owned(),
        '\t' => "\\t".to_owned(),
        it if is_printable(it) => it.to_string(),
        it => format!("\\u{:04x}", u32::from(it)),
    };
    format!("\"{}\"", text.chars().map(character).collect::<String>())
}

/// A number of JSON. YAML 1.1 requires a point and a sign in front of an exponent.
fn number(text: &str) -> String {
    let Some((digits, exponent)) = text.split_once(['e', 'E']) else { return text.to_owned() };
    let point = if digits.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['-', '+']) { "" } else { "+" };
    format!("{digits}{point}e{sign}{exponent}")
}
