//! The answer of a tool: a short text, and content of at most [`MAX_CONTENT`] bytes.
//!
//! Lists are ordered by importance, so what does not fit is cut from their ends, counted, and the
//! answer states how to get it. Nothing is dropped in silence.

use llmprof_core::domain::visible::{self, one_line};
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Map, Value, json};

use super::service_api::ApiRefusal;

/// Maximum size of an answer's structured content.
pub const MAX_CONTENT: usize = 16 << 10;
/// Maximum size of its text.
pub const MAX_TEXT: usize = 2 << 10;
/// Characters of one text inside the content.
const MAX_STRING: usize = 600;
/// Room for the note on what was left out.
const NOTE: usize = 1 << 10;

/// The answer of a tool.
#[derive(Debug, Default)]
pub struct ToolAnswer {
    lines: Vec<String>,
    content: Map<String, Value>,
    /// Lists of the content, each with a way to get the rest of it.
    rest: Vec<(&'static str, String)>,
    /// Elements of lists that are not in the content.
    left_out: Map<String, Value>,
}

impl ToolAnswer {
    /// A line of the text.
    pub fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// A field of the content; absent if it is null, since an unknown figure has no value.
    pub fn field(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        if !value.is_null() {
            self.content.insert(name.to_owned(), value);
        }
    }

    /// A list, most important elements first. `rest`: how to get those that are cut.
    pub fn list(&mut self, name: &'static str, values: Vec<Value>, rest: impl Into<String>) {
        self.content.insert(name.to_owned(), values.into());
        self.rest.push((name, rest.into()));
    }

    /// Counts elements of a list that the tool itself left out.
    pub fn leave_out(&mut self, name: &'static str, count: u64) {
        if count > 0 {
            let how = self.rest.iter().find(|it| it.0 == name).map(|it| it.1.as_str());
            let before = self.left_out.get(name).and_then(|it| it["count"].as_u64()).unwrap_or(0);
            let note = json!({ "count": before + count, "get_them_by": how });
            self.left_out.insert(name.to_owned(), note);
        }
    }

    /// The bounded content.
    fn bounded(mut self) -> (Vec<String>, Value) {
        self.content.values_mut().for_each(shorten);
        let mut size: usize = self.content.iter().map(|(name, it)| name.len() + 4 + len(it)).sum();
        while size + NOTE > MAX_CONTENT {
            let largest = self.rest.iter().map(|it| it.0).filter_map(|name| {
                let list = self.content.get(name)?.as_array().filter(|list| !list.is_empty())?;
                Some((len(&Value::from(list.clone())), name))
            });
            let Some((_, name)) = largest.max() else { break };
            let Some(Value::Array(list)) = self.content.get_mut(name) else { break };
            let Some(cut) = list.pop() else { break };
            size -= (len(&cut) + 1).min(size);
            self.leave_out(name, 1);
        }
        if !self.left_out.is_empty() {
            self.content.insert("left_out".into(), self.left_out.into());
        }
        (self.lines, self.content.into())
    }

    /// The result of the call. Clients of protocols without structured content get the content as a
    /// second text.
    pub fn result(self, is_structured: bool) -> CallToolResult {
        let (lines, content) = self.bounded();
        let left_out = content.get("left_out").and_then(Value::as_object);
        let note = left_out.map(|it| {
            let parts = it.iter().map(|(name, note)| format!("{} of {name}", note["count"]));
            format!("left out: {}; see left_out", parts.collect::<Vec<_>>().join(", "))
        });
        let text: Vec<String> = lines.into_iter().chain(note).map(|it| one_line(&it)).collect();
        let mut blocks = vec![ContentBlock::text(cut(&text.join("\n"), MAX_TEXT))];
        if !is_structured {
            blocks.push(ContentBlock::text(visible::json(&content.to_string())));
        }
        let mut result = CallToolResult::success(blocks);
        result.structured_content = is_structured.then_some(content);
        result
    }
}

/// The result of a call that failed: one line.
pub fn refused(refusal: &ApiRefusal, is_structured: bool) -> CallToolResult {
    let line = cut(&one_line(&refusal.to_string()), MAX_TEXT);
    let mut result = CallToolResult::error(vec![ContentBlock::text(line)]);
    let error =
        json!({ "error": { "code": refusal.code, "message": cut(&refusal.message, MAX_TEXT) } });
    result.structured_content = is_structured.then_some(error);
    result
}

fn len(value: &Value) -> usize {
    value.to_string().len()
}

/// At most `max` bytes of a text.
fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mark = " … (cut)";
    let end = text.floor_char_boundary(max - mark.len());
    format!("{}{mark}", &text[..end])
}

/// Cuts long texts inside a value, and states their length.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) => {
            let all = text.chars().count();
            if all > MAX_STRING {
                let kept: String = text.chars().take(MAX_STRING).collect();
                *text = format!("{kept}… ({all} characters)");
            }
        }
        Value::Array(list) => list.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_from_the_end_of_the_largest_list_and_counted() {
        let mut answer = ToolAnswer::default();
        answer.line("1000 rows");
        answer.field("run_id", "a");
        answer.field("unknown", Value::Null);
        let rows = (0..1000).map(|at| json!({ "at": at, "text": "x".repeat(50) })).collect();
        answer.list("rows", rows, "`where` or `columns`");
        answer.list("few", vec![json!(1)], "nothing");
        let result = answer.result(true);
        let content = result.structured_content.unwrap();
        assert!(len(&content) <= MAX_CONTENT, "{}", len(&content));
        let kept = content["rows"].as_array().unwrap();
        assert_eq!(kept[0]["at"], 0);
        assert!(kept.len() > 150, "the room is used: {}", kept.len());
        let note = &content["left_out"]["rows"];
        assert_eq!(note["count"], 1000 - kept.len());
        assert_eq!(note["get_them_by"], "`where` or `columns`");
        assert_eq!((&content["few"], content.get("unknown")), (&json!([1]), None));
        let text = serde_json::to_value(&result.content).unwrap()[0]["text"].to_string();
        assert!(text.contains("1000 rows\\nleft out: "), "{text}");
    }

    #[test]
    fn a_long_text_and_a_large_element_stay_within_the_limit() {
        let mut answer = ToolAnswer::default();
        answer.line("é".repeat(MAX_TEXT));
        answer.list("rows", vec![json!({ "a": vec!["y".repeat(500); 100] })], "`columns`");
        answer.field("note", "z".repeat(5000));
        let result = answer.result(true);
        let content = result.structured_content.unwrap();
        assert!(len(&content) <= MAX_CONTENT);
        assert_eq!(content["left_out"]["rows"]["count"], 1);
        assert!(content["note"].as_str().unwrap().ends_with("… (5000 characters)"));
        let text = serde_json::to_value(&result.content).unwrap();
        assert!(text[0]["text"].as_str().unwrap().len() <= MAX_TEXT);
    }

    #[test]
    fn a_client_without_structured_content_gets_it_as_text() {
        let mut answer = ToolAnswer::default();
        answer.field("state", "queued");
        let result = answer.result(false);
        let blocks = serde_json::to_value(&result.content).unwrap();
        assert_eq!(result.structured_content, None);
        assert_eq!(blocks[1]["text"], "{\"state\":\"queued\"}");
    }

    #[test]
    fn an_error_is_one_line() {
        let result = refused(&ApiRefusal::new("a\nb\u{1b}[31m"), true);
        let text = serde_json::to_value(&result.content).unwrap();
        let line = text[0]["text"].as_str();
        assert_eq!((result.is_error, line), (Some(true), Some("a b‹U+001B›[31m")));
    }
}
