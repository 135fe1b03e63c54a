//! Messages that the protocol's library drops or answers by a wrong code, by the rules of JSON-RPC
//! 2.0 and MCP for both transports.
//!
//! | fault | code |
//! |---|---|
//! | not JSON | -32700 |
//! | not a request, notification or response of JSON-RPC 2.0; a batch; too long or deep | -32600 |
//! | `params` that the method does not take | -32602 |
//!
//! An unknown method (-32601) and an unknown tool (-32602) are answered by the server; a wrong
//! argument of a tool is a result with `isError`, which an agent reads.

use llmprof_core::domain::{
    plain_words::{invalid, plain_words},
    unique_keys::{MAX_LEVELS, UniqueKeys, is_too_deep},
};
use rmcp::model::{
    CallToolRequestParams, ClientJsonRpcMessage, DiscoverRequestParams, InitializeRequestParams,
    PaginatedRequestParams,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::MAX_MESSAGE;

/// Codes of JSON-RPC.
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const INVALID_PARAMS: i32 = -32602;

/// The part of a message that identifies it.
#[derive(Deserialize)]
struct MessageHead {
    #[serde(default)]
    id: Value,
}

/// The answer to a message that is refused; `None` for every other message. Its id is null if the
/// message has no valid one.
pub fn refuse(message: &[u8]) -> Option<Value> {
    let message = message.trim_ascii();
    if message.len() > MAX_MESSAGE {
        let text = format!("the message is longer than {} KiB", MAX_MESSAGE >> 10);
        return Some(answer(INVALID_REQUEST, &Value::Null, &text));
    }
    let mut reader = serde_json::Deserializer::from_slice(message);
    let read: Result<UniqueKeys, _> = serde_path_to_error::deserialize(&mut reader);
    let error = match read {
        Ok(UniqueKeys(value)) => match reader.end() {
            Ok(()) => {
                let (code, text) = fault(&value)?;
                return Some(answer(code, &id(&value), &text));
            }
            Err(error) => error,
        },
        Err(error) if error.inner().is_data() => return Some(repeated_field(message, &error)),
        Err(error) => error.into_inner(),
    };
    if is_too_deep(&error) {
        let text = format!("the message has more than {MAX_LEVELS} levels of arrays and objects");
        return Some(answer(INVALID_REQUEST, &id_of_deep(message), &text));
    }
    Some(answer(PARSE_ERROR, &Value::Null, &format!("the message is not JSON: {error}")))
}

/// The id of a message with too many levels, which are not read.
fn id_of_deep(message: &[u8]) -> Value {
    let id = serde_json::from_slice(message).map(|MessageHead { id }| json!({ "id": id }));
    id.map_or(Value::Null, |it| self::id(&it))
}

/// The answer to a message with a field that is given more than once.
fn repeated_field(message: &[u8], error: &serde_path_to_error::Error<serde_json::Error>) -> Value {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let parsed: Value = serde_json::from_slice(message).unwrap_or_default();
    let id = if text.starts_with("`id` ") { Value::Null } else { id(&parsed) };
    let path = error.path().to_string();
    let is_in_params = path.split(['.', '[']).next() == Some("params");
    let code = if is_in_params && !id.is_null() { INVALID_PARAMS } else { INVALID_REQUEST };
    answer(code, &id, text)
}

/// The code and the text of a fault in a message.
fn fault(message: &Value) -> Option<(i32, String)> {
    let invalid_request = |text: String| Some((INVALID_REQUEST, text));
    let Value::Object(fields) = message else {
        return invalid_request(match message {
            Value::Array(_) => "batches are not supported; send each message alone".into(),
            _ => "the message is not an object".into(),
        });
    };
    if message["jsonrpc"] != "2.0" {
        return invalid_request(expected("jsonrpc", &message["jsonrpc"], "\"2.0\""));
    }
    // The response to a message that a client could not read has no id.
    let is_error = fields.contains_key("error") && message["id"].is_null();
    if fields.contains_key("id") && id(message).is_null() && !is_error {
        let known = "a string or an integer of 64 bits";
        return invalid_request(expected("id", &message["id"], known));
    }
    let method = message["method"].as_str();
    if fields.contains_key("method") && method.is_none() {
        return invalid_request(expected("method", &message["method"], "a string"));
    }
    if let Some(method) = method
        && fields.contains_key("id")
        && let Some(text) = invalid_params(method, &message["params"])
    {
        return Some((INVALID_PARAMS, text));
    }
    if serde_json::from_value::<ClientJsonRpcMessage>(message.clone()).is_err() {
        let text = "the message is not a request, a notification or a response of JSON-RPC 2.0";
        return invalid_request(text.into());
    }
    None
}

/// The fault of a request's parameters; `None` also for a method that the server lacks.
fn invalid_params(method: &str, params: &Value) -> Option<String> {
    let check = match method {
        "initialize" => error_of::<InitializeRequestParams>,
        "server/discover" => error_of::<DiscoverRequestParams>,
        "tools/call" => error_of::<CallToolRequestParams>,
        "tools/list" => error_of::<PaginatedRequestParams>,
        "ping" => error_of::<Map<String, Value>>,
        _ => return None,
    };
    let mut fields = match params {
        Value::Null if matches!(method, "tools/list" | "ping") => Map::new(),
        Value::Null => return Some("missing field `params`".into()),
        Value::Object(fields) => fields.clone(),
        params => return Some(expected("params", params, "an object")),
    };
    // It belongs to every request, and the types of parameters differ in whether they have it.
    match fields.remove("_meta") {
        None | Some(Value::Null | Value::Object(_)) => check(fields),
        Some(other) => Some(expected("params._meta", &other, "an object")),
    }
}

/// The error of parameters of type `P`.
fn error_of<P: DeserializeOwned>(params: Map<String, Value>) -> Option<String> {
    let read: Result<P, _> = serde_path_to_error::deserialize(Value::from(params));
    read.err().map(|error| plain_words(&error.to_string()))
}

fn expected(field: &str, value: &Value, known: &str) -> String {
    invalid(field, &value.to_string(), known)
}

/// The id of a message; null if it has no valid one.
fn id(message: &Value) -> Value {
    let id = &message["id"];
    if id.is_string() || id.is_i64() { id.clone() } else { Value::Null }
}

fn answer(code: i32, id: &Value, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

#[cfg(test)]
mod tests {
    use rmcp::model::ClientRequest;

    use super::*;

    /// A request with these parameters.
    fn request(method: &str, params: &str) -> String {
        format!(r#"{{"jsonrpc": "2.0", "id": 7, "method": "{method}", "params": {params}}}"#)
    }

    /// Asserts the answer to a message: its code, its id and a part of its text.
    fn assert_refused(message: &str, code: i32, id: &Value, part: &str) {
        let answer = refuse(message.as_bytes()).unwrap_or_else(|| panic!("accepted: {message}"));
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), id), "{message}");
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.contains(part), "{message}: {text}");
        assert!(!text.contains("at line") || code == PARSE_ERROR, "{text}");
    }

    #[test]
    fn a_message_without_the_form_of_a_request_is_refused_by_the_code_of_its_fault() {
        let (long, deep) = (format!("\"{}\"", "a".repeat(MAX_MESSAGE)), "[".repeat(1_000));
        let ping = r#"{"jsonrpc": "2.0", "id": 1, "method": "ping"}"#;
        let batch = format!("[{ping}, {ping}]");
        for (message, code, id, part) in [
            ("", PARSE_ERROR, Value::Null, "not JSON"),
            ("garbage", PARSE_ERROR, Value::Null, "not JSON"),
            ("{", PARSE_ERROR, Value::Null, "not JSON"),
            ("{} {}", PARSE_ERROR, Value::Null, "not JSON"),
            (&deep, INVALID_REQUEST, Value::Null, "more than 127 levels"),
            (&long, INVALID_REQUEST, Value::Null, "longer than 256 KiB"),
            (&batch, INVALID_REQUEST, Value::Null, "send each message alone"),
            ("[]", INVALID_REQUEST, Value::Null, "send each message alone"),
            ("7", INVALID_REQUEST, Value::Null, "not an object"),
            ("null", INVALID_REQUEST, Value::Null, "not an object"),
            ("{}", INVALID_REQUEST, Value::Null, "jsonrpc"),
            (r#"{"id": 1, "method": "ping"}"#, INVALID_REQUEST, json!(1), "jsonrpc"),
            (&request("no/such", "3"), INVALID_REQUEST, json!(7), "not a request"),
            (
                r#"{"jsonrpc": "1.0", "id": "a", "method": "ping"}"#,
                INVALID_REQUEST,
                json!("a"),
                r#"invalid jsonrpc "1.0"; expected "2.0""#,
            ),
            (
                r#"{"jsonrpc": "2.0", "id": null, "method": "ping"}"#,
                INVALID_REQUEST,
                Value::Null,
                "invalid id null; expected a string or an integer",
            ),
            (
                r#"{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}"#,
                INVALID_REQUEST,
                Value::Null,
                "invalid id 1.5",
            ),
            (
                r#"{"jsonrpc": "2.0", "id": [1], "method": "ping"}"#,
                INVALID_REQUEST,
                Value::Null,
                "invalid id [1]",
            ),
            (
                r#"{"jsonrpc": "2.0", "id": 1, "method": 3}"#,
                INVALID_REQUEST,
                json!(1),
                "invalid method 3; expected a string",
            ),
            (r#"{"jsonrpc": "2.0", "id": 1}"#, INVALID_REQUEST, json!(1), "not a request"),
            (
                r#"{"jsonrpc": "2.0", "id": 1, "method": "ping", "result": {}}"#,
                INVALID_REQUEST,
                json!(1),
                "not a request",
            ),
            (
                r#"{"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": ""}}"#,
                INVALID_REQUEST,
                json!(1),
                "not a request",
            ),
        ] {
            assert_refused(message, code, &id, part);
        }
    }

    #[test]
    fn a_message_with_too_many_levels_is_refused_by_its_id() {
        let nested = |levels: usize| {
            let value = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
            request("tools/call", &format!(r#"{{"name": "x", "arguments": {{"a": {value}}}}}"#))
        };
        // Around the value are the message, its parameters and its arguments.
        assert_eq!(refuse(nested(MAX_LEVELS - 3).as_bytes()), None);
        for levels in [MAX_LEVELS - 2, 415, 100_000] {
            assert_refused(&nested(levels), INVALID_REQUEST, &json!(7), "more than 127 levels");
        }
    }

    #[test]
    fn params_that_a_method_does_not_take_are_refused_by_name() {
        for (method, params, part) in [
            (
                "tools/call",
                r#"{"name": "table", "arguments": "x"}"#,
                r#"invalid arguments "x"; expected an object"#,
            ),
            (
                "tools/call",
                r#"{"name": "table", "arguments": [1]}"#,
                "invalid arguments (list); expected an object",
            ),
            ("tools/call", r#"{"name": "table", "arguments": 3}"#, "invalid arguments 3"),
            ("tools/call", r#"{"name": "table", "arguments": true}"#, "invalid arguments true"),
            ("tools/call", r#"{"name": 3}"#, "invalid name 3; expected a string"),
            ("tools/call", "{}", "missing field `name`"),
            ("tools/call", "null", "missing field `params`"),
            ("tools/call", "[]", "invalid params []; expected an object"),
            ("tools/call", r#"{"name": "table", "_meta": 3}"#, "invalid params._meta 3"),
            ("tools/list", r#"{"cursor": 3}"#, "invalid cursor 3; expected a string"),
            ("tools/list", r#""x""#, r#"invalid params "x""#),
            ("ping", "3", "invalid params 3; expected an object"),
            ("ping", r#"{"_meta": []}"#, "invalid params._meta []"),
            ("server/discover", "null", "missing field `params`"),
            ("initialize", "{}", "missing field `protocolVersion`"),
            ("initialize", r#"{"protocolVersion": 3}"#, "invalid protocolVersion 3"),
        ] {
            assert_refused(&request(method, params), INVALID_PARAMS, &json!(7), part);
        }
    }

    #[test]
    fn an_accepted_request_of_a_method_of_the_server_is_read_as_that_method() {
        let client = r#"{"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "a", "version": "1"}}"#;
        for (method, params) in [
            ("initialize", client),
            ("server/discover", r#"{"_meta": {}}"#),
            ("tools/call", r#"{"name": "table", "arguments": {"run_id": 3}}"#),
            ("tools/call", r#"{"name": "table", "arguments": null}"#),
            ("tools/call", r#"{"name": "no such tool", "_meta": {"progressToken": 1}}"#),
            ("tools/list", "{}"),
            ("tools/list", "null"),
            ("tools/list", r#"{"cursor": "a", "_meta": null}"#),
            ("ping", "{}"),
        ] {
            let message = request(method, params);
            assert_eq!(refuse(message.as_bytes()), None, "{message}");
            let read = serde_json::from_str(&message).unwrap();
            let ClientJsonRpcMessage::Request(read) = read else { panic!("{message}") };
            let is_custom = matches!(read.request, ClientRequest::CustomRequest(_));
            assert!(!is_custom && read.request.method() == method, "{message}");
        }
        for message in [
            r#"{"jsonrpc": "2.0", "id": "a", "method": "no/such", "params": {"b": 3}}"#,
            r#"{"jsonrpc": "2.0", "method": "notifications/initialized"}"#,
            r#"{"jsonrpc": "2.0", "method": "no/such", "params": {"b": 3}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#,
            r#"{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": ""}}"#,
        ] {
            assert_eq!(refuse(message.as_bytes()), None, "{message}");
        }
    }

    #[test]
    fn a_message_with_a_repeated_field_is_refused_with_its_id_and_the_field() {
        for (message, code, id, field) in [
            (
                r#"{"id": 3, "params": {"a": {"run": "x", "run": "y"}}}"#,
                INVALID_PARAMS,
                json!(3),
                "params.a: `run`",
            ),
            (r#"{"params": {"run": "x", "run": "y"}}"#, INVALID_REQUEST, Value::Null, "`run`"),
            (
                r#"{"id": "x", "method": "a", "method": "b"}"#,
                INVALID_REQUEST,
                json!("x"),
                "`method`",
            ),
            (r#"{"id": 1, "id": 2}"#, INVALID_REQUEST, Value::Null, "`id`"),
            (r#"[{"id": 1, "id": 2}]"#, INVALID_REQUEST, Value::Null, "`id`"),
        ] {
            assert_refused(message, code, &id, &format!("{field} is given more than once"));
        }
    }
}
