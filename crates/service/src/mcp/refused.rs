//! Messages of standard input that a parser drops or misreads: not JSON, too long, or with a field
//! more than once.

use llmprof_core::domain::unique_keys::UniqueKeys;
use serde_json::{Value, json};

use super::MAX_MESSAGE;

/// Codes of JSON-RPC.
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const INVALID_PARAMS: i32 = -32602;

/// The answer to a line that is refused; `None` for every other line.
pub fn refuse(line: &[u8]) -> Option<Value> {
    let message = line.trim_ascii();
    if message.is_empty() {
        return None;
    }
    if message.len() > MAX_MESSAGE {
        let text = format!("the message is longer than {} KiB", MAX_MESSAGE >> 10);
        return Some(answer(INVALID_REQUEST, &Value::Null, &text));
    }
    let mut reader = serde_json::Deserializer::from_slice(message);
    let read: Result<UniqueKeys, _> = serde_path_to_error::deserialize(&mut reader);
    let error = match read {
        Ok(_) => reader.end().err()?,
        Err(error) if error.inner().is_data() => {
            let error = error.to_string();
            let text = error.rsplit_once(" at line ").map_or(error.as_str(), |(text, _)| text);
            let parsed: Value = serde_json::from_slice(message).unwrap_or_default();
            return Some(answer(INVALID_PARAMS, &parsed["id"], text));
        }
        Err(error) => error.into_inner(),
    };
    Some(answer(PARSE_ERROR, &Value::Null, &format!("the message is not JSON: {error}")))
}

fn answer(code: i32, id: &Value, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_a_repeated_field_is_refused_with_its_id_and_the_field() {
        let nested = r#"{"id": 1, "params": {"a": 1, "b": {"a": 1}}}"#;
        for message in ["", "\n", "[]", "7", nested] {
            assert_eq!(refuse(message.as_bytes()), None, "{message}");
        }
        for (message, id, field) in [
            (r#"{"id": 3, "params": {"a": {"run": "x", "run": "y"}}}"#, json!(3), "`run`"),
            (r#"{"id": "x", "method": "a", "method": "b"}"#, json!("x"), "`method`"),
            (r#"[{"id": 1, "id": 2}]"#, Value::Null, "`id`"),
        ] {
            let answer = refuse(message.as_bytes()).unwrap();
            assert_eq!(answer["id"], id, "{answer}");
            let text = answer["error"]["message"].as_str().unwrap();
            assert!(text.contains(&format!("{field} is given more than once")), "{text}");
            assert!(!text.contains("at line"), "{text}");
        }
    }

    #[test]
    fn a_message_that_no_parser_reads_is_refused() {
        let long = format!("\"{}\"", "a".repeat(MAX_MESSAGE));
        let deep = "[".repeat(1_000);
        for (message, code) in [
            ("garbage", PARSE_ERROR),
            ("{", PARSE_ERROR),
            ("{} {}", PARSE_ERROR),
            (&deep, PARSE_ERROR),
            (&long, INVALID_REQUEST),
        ] {
            let answer = refuse(message.as_bytes()).unwrap();
            assert_eq!(answer["error"]["code"], code, "{answer}");
            assert_eq!(answer["id"], Value::Null);
        }
    }
}
