//! The facts that runs of a series share, in words: an identity has parts, commands and captures as
//! JSON.

use std::collections::BTreeMap;

use llmprof_core::domain::{command::CommandCall, headline::SeriesIdentity, subject};
use serde_json::Value;

const PART: &str = "part";
const COMMAND: &str = "command";
/// Facts of the list of series, in their order.
const LISTED: [&str; 7] =
    [COMMAND, "dtype", "prompt_tokens", "new_tokens", "seed", "decode_graph", "gpus"];

/// Name of a series for readers: a part is named with its model.
pub(super) fn title(name: &str, identity: &SeriesIdentity) -> String {
    let part = identity.get(PART).map(|part| path_and_changes(part).0.to_owned());
    subject::title(name.to_owned(), part)
}

/// All facts by their names.
pub(super) fn all(identity: &SeriesIdentity) -> BTreeMap<String, String> {
    identity.iter().map(|(name, fact)| (in_words(name), readable(name, fact))).collect()
}

/// The facts that distinguish series of one name, in a line.
pub(super) fn line(identity: &SeriesIdentity) -> String {
    let changes = identity.get(PART).map(|part| path_and_changes(part).1);
    let changes = changes.filter(|it| !it.is_empty()).map(|it| format!("with {}", text_of(it)));
    let fact = |name: &&str| {
        let fact = identity.get(*name)?;
        Some(match *name {
            COMMAND => readable(COMMAND, fact),
            name => format!("{} {fact}", in_words(name)),
        })
    };
    changes.into_iter().chain(LISTED.iter().filter_map(fact)).collect::<Vec<_>>().join(", ")
}

/// The path of a part, and the JSON of its changes, which may be empty.
fn path_and_changes(part: &str) -> (&str, &str) {
    part.find('{').map_or((part, ""), |at| part.split_at(at))
}

fn readable(name: &str, fact: &str) -> String {
    match name {
        PART => match path_and_changes(fact) {
            (path, "") => path.to_owned(),
            (path, changes) => format!("{path} with {}", text_of(changes)),
        },
        COMMAND => match serde_json::from_str::<CommandCall>(fact) {
            Ok(call) => {
                let params = call.params.iter().map(|(name, value)| format!(" {name}={value}"));
                call.command.clone() + &params.collect::<String>()
            }
            Err(_) => text_of(fact),
        },
        _ => text_of(fact),
    }
}

/// A JSON object in words; other text as it is.
fn text_of(fact: &str) -> String {
    match serde_json::from_str::<Value>(fact) {
        Ok(object @ Value::Object(_)) => words(&object),
        _ => fact.to_owned(),
    }
}

fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let known = fields.iter().filter(|(_, value)| !value.is_null());
            let known = known.map(|(name, value)| format!("{} {}", in_words(name), words(value)));
            known.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

fn in_words(name: &str) -> String {
    name.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(facts: &[(&str, &str)]) -> SeriesIdentity {
        facts.iter().map(|(name, fact)| ((*name).to_owned(), (*fact).to_owned())).collect()
    }

    #[test]
    fn a_part_is_named_with_its_model_and_its_changes_are_words() {
        let part = "decoder.layers.1{\"decode_graph\":true,\"dtype\":\"f16\"}";
        let of = identity(&[("name", "llama-tiny"), ("part", part), ("dtype", "f32")]);
        assert_eq!(title("llama-tiny", &of), "decoder.layers.1 of llama-tiny");
        let changes = "with decode graph true, dtype f16";
        assert_eq!(all(&of)["part"], format!("decoder.layers.1 {changes}"));
        assert_eq!(line(&of), format!("{changes}, dtype f32"));
        let whole = identity(&[("name", "llama-tiny"), ("prompt_tokens", "7")]);
        assert_eq!(title("llama-tiny", &whole), "llama-tiny");
        assert_eq!(all(&whole)["prompt tokens"], "7");
    }

    #[test]
    fn a_command_has_its_parameters_and_a_capture_its_fields_in_words() {
        let call = r#"{"command":"go","params":{"tokens":7,"text":"a b"}}"#;
        let import = r#"{"name":"a.sqlite","model":null,"stages":["prefill=p"]}"#;
        let of = identity(&[("command", call), ("import", import), ("gpus", "1")]);
        assert_eq!(line(&of), "go text=a b tokens=7, gpus 1");
        assert_eq!(all(&of)["import"], "name a.sqlite, stages prefill=p");
        let odd = identity(&[("command", "{<b>"), ("part", "a.{")]);
        assert_eq!((all(&odd)["command"].as_str(), title("m", &odd)), ("{<b>", "a. of m".into()));
    }
}
