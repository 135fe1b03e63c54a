//! The only writer of YAML: JSON as YAML that parsers of version 1.1, such as PyYAML, and of
//! version 1.2 read alike, with short lists and maps on one line.
//!
//! Version 1.1 reads more plain text as booleans, numbers and times: `on`, `1:30`, `2026-11-01`.
//! Text that either version could read as something else is quoted, keys included.

mod scalar;
#[cfg(test)]
mod tests;

use serde::Serialize;
use serde_json::{Map, Value, json};

use self::scalar::{key, literal, scalar};

/// Columns of a line.
const WIDTH: usize = 100;
/// Fields of a map on one line.
const MAX_FIELDS: usize = 10;

/// Writes a document.
pub fn yaml(document: &Value) -> String {
    block(document, 0)
}

/// Writes a value whose serialization is JSON.
pub fn to_yaml(value: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_value(value).map(|document| yaml(&document))
}

/// A map or list over several lines, indented by `indent`.
fn block(value: &Value, indent: usize) -> String {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().map(|(name, it)| field(name, it, indent)).collect()
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|it| item(it, indent)).collect()
        }
        _ => scalar(value) + "\n",
    }
}

fn field(name: &str, value: &Value, indent: usize) -> String {
    let head = format!("{}{}:", spaces(indent), key(name));
    match value {
        Value::Array(items) if is_inline(name, items) => {
            return format!("{head} {}\n", wrapped(items, indent + 2));
        }
        _ => {}
    }
    if let Some(text) = one_line(name, value).filter(|it| fits(value, &head, it)) {
        return format!("{head} {text}\n");
    }
    match value {
        // Items stand below the key's first letter.
        Value::Array(_) => format!("{head}\n{}", block(value, indent)),
        Value::String(text) => match literal(text, indent + 2) {
            Some(lines) => format!("{head} {lines}\n"),
            None => format!("{head} {}\n", scalar(value)),
        },
        _ => format!("{head}\n{}", block(value, indent + 2)),
    }
}

fn item(value: &Value, indent: usize) -> String {
    let head = format!("{}-", spaces(indent));
    // A single field needs no braces.
    let is_flow = !matches!(value, Value::Object(fields) if fields.len() == 1);
    if let Some(text) = one_line("", value).filter(|it| is_flow && fits(value, &head, it)) {
        return format!("{head} {text}\n");
    }
    match value {
        Value::String(text) => match literal(text, indent + 2) {
            Some(lines) => format!("{head} {lines}\n"),
            None => format!("{head} {}\n", scalar(value)),
        },
        // The first line follows the dash.
        _ => format!("{head} {}", block(value, indent + 2).trim_start_matches(' ')),
    }
}

/// True unless a map or list would exceed the width.
fn fits(value: &Value, head: &str, text: &str) -> bool {
    let is_short = head.len() + 1 + text.len() <= WIDTH;
    is_short || !(value.is_object() || value.is_array())
}

/// The value of the field `name` on one line, if it may be on one.
fn one_line(name: &str, value: &Value) -> Option<String> {
    match value {
        Value::Object(fields) if fields.is_empty() => Some("{}".into()),
        Value::Array(items) if items.is_empty() => Some("[]".into()),
        Value::Object(fields) => flow_map(fields),
        Value::Array(items) if is_pair(name, value) => {
            let maps: Option<Vec<String>> = items.iter().map(|it| one_line("", it)).collect();
            Some(format!("[{}]", maps?.join(", ")))
        }
        Value::Array(items) => {
            let text = wrapped(items, 0);
            (is_inline(name, items) && !text.contains('\n')).then_some(text)
        }
        Value::String(text) if text.contains('\n') => None,
        _ => Some(scalar(value)),
    }
}

fn flow_map(fields: &Map<String, Value>) -> Option<String> {
    let flow = |(name, value): (&String, &Value)| {
        let (name_text, text) = (key(name), one_line(name, value)?);
        let is_safe = is_flow_safe(&name_text)
            && (is_flow_safe(&text) || value.is_object() || value.is_array());
        is_safe.then(|| format!("{name_text}: {text}"))
    };
    let fields: Option<Vec<String>> =
        (fields.len() <= MAX_FIELDS).then(|| fields.iter().map(flow).collect())?;
    Some(format!("{{ {} }}", fields?.join(", ")))
}

/// True for a scalar that means the same inside braces.
fn is_flow_safe(text: &str) -> bool {
    text.starts_with(['\'', '"']) || !text.contains([',', '?', '[', ']', '{', '}', '|', '>'])
}

/// True for a list of scalars that is written in brackets.
fn is_inline(name: &str, items: &[Value]) -> bool {
    let is_short = |it: &Value| !it.is_object() && !it.is_array() && is_flow_safe(&scalar(it));
    matches!(name, "type" | "required" | "enum" | "tags")
        && !items.is_empty()
        && items.iter().all(is_short)
}

/// True for two lists of maps that the contract has often: a schema or null, a token or none.
fn is_pair(name: &str, value: &Value) -> bool {
    let is_reference = || value[0]["$ref"].is_string() && value[0].as_object().is_some_and(is_one);
    match name {
        "security" => *value == json!([{}, { "token": [] }]),
        "oneOf" => value[1] == json!({ "type": "null" }) && value[2].is_null() && is_reference(),
        _ => false,
    }
}

fn is_one(fields: &Map<String, Value>) -> bool {
    fields.len() == 1
}

/// A list of scalars in brackets, wrapped at the width.
fn wrapped(items: &[Value], indent: usize) -> String {
    let (mut text, mut column) = ("[".to_owned(), indent + 10);
    for (at, item) in items.iter().enumerate() {
        let item = scalar(item);
        let end = if at + 1 == items.len() { "]" } else { "," };
        if at > 0 && column + item.len() + 2 > WIDTH {
            text += &format!("\n{}", spaces(indent));
            column = indent;
        } else if at > 0 {
            text.push(' ');
        }
        text += &item;
        text += end;
        column += item.len() + 2;
    }
    text
}

fn spaces(count: usize) -> String {
    " ".repeat(count)
}
