//! Meaning of one event of a response of OpenAI's API: output, counts, the end, an error.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Meaning of one event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChunkMeaning {
    /// True if it has output: text, reasoning or a call of a tool.
    pub has_output: bool,
    pub finish: Option<String>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkEvent {
    Chunk(ChunkMeaning),
    /// `[DONE]`, the last event.
    Done,
    /// An error that the server reports within the stream.
    Error(String),
    /// An event that is not JSON of the API.
    Unreadable(String),
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
}

/// Maximum length of a message from a server, characters.
const MAX_MESSAGE: usize = 300;

/// Reads the data of one event.
pub fn read_event(data: &[u8], is_error: bool) -> ChunkEvent {
    if data == b"[DONE]" {
        return ChunkEvent::Done;
    }
    if is_error {
        return ChunkEvent::Error(excerpt(data));
    }
    let chunk: Chunk = match serde_json::from_slice(data) {
        Ok(chunk) => chunk,
        Err(error) => return ChunkEvent::Unreadable(format!("{error} in {:?}", excerpt(data))),
    };
    if let Some(error) = chunk.error.filter(|error| error.get() != "null") {
        return ChunkEvent::Error(excerpt(error.get().as_bytes()));
    }
    let some = |text: &Option<Cow<str>>| text.as_ref().is_some_and(|it| !it.is_empty());
    let has_output = chunk.choices.iter().any(|choice| {
        some(&choice.text)
            || choice.delta.as_ref().is_some_and(|delta| {
                some(&delta.content)
                    || some(&delta.reasoning_content)
                    || some(&delta.reasoning)
                    || delta.tool_calls.is_some_and(|calls| !matches!(calls.get(), "null" | "[]"))
            })
    });
    let finish = chunk.choices.iter().find_map(|choice| choice.finish_reason.as_deref());
    ChunkEvent::Chunk(ChunkMeaning {
        has_output,
        finish: finish.map(|it| excerpt(it.as_bytes())),
        prompt_tokens: chunk.usage.as_ref().and_then(|it| it.prompt_tokens),
        completion_tokens: chunk.usage.as_ref().and_then(|it| it.completion_tokens),
    })
}

/// The start of a server's text, in one line without control characters.
pub fn excerpt(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * MAX_MESSAGE)]);
    let plain = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    plain.take(MAX_MESSAGE).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> ChunkMeaning {
        match read_event(text.as_bytes(), false) {
            ChunkEvent::Chunk(meaning) => meaning,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn output_is_text_reasoning_or_a_call_and_not_a_role() {
        for output in [
            r#"{"choices":[{"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"delta":{"content":null,"reasoning_content":"\n"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"text":"a","finish_reason":null}]}"#,
        ] {
            assert!(chunk(output).has_output, "{output}");
        }
        for none in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[]}"#,
            r#"{"choices":[{"delta":{}}],"error":null}"#,
        ] {
            assert!(!chunk(none).has_output, "{none}");
        }
    }

    #[test]
    fn counts_ends_and_errors_are_read_and_garbage_is_named() {
        let text = r#"{"choices":[{"delta":{},"finish_reason":"length"}],
                       "usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}"#;
        let end = chunk(text);
        assert_eq!((end.prompt_tokens, end.completion_tokens), (Some(7), Some(3)));
        assert_eq!(end.finish.as_deref(), Some("length"));
        assert_eq!(read_event(b"[DONE]", false), ChunkEvent::Done);
        let error = read_event(br#"{"error":{"message":"out of\tmemory"}}"#, false);
        assert_eq!(error, ChunkEvent::Error(r#"{"message":"out of\tmemory"}"#.into()));
        assert_eq!(read_event(b"busy", true), ChunkEvent::Error("busy".into()));
        for garbage in ["<html>", "", "{\"choices\":3}", "\u{1}\u{2}"] {
            let read = read_event(garbage.as_bytes(), false);
            assert!(matches!(read, ChunkEvent::Unreadable(_)), "{garbage:?}: {read:?}");
        }
    }
}
