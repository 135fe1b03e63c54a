//! Plan of a load: server, requests and pace, validated.

use std::time::Duration;

use llmprof_core::{domain::named_values::named_values, trace::requests::LoadHeader};
use reqwest::Url;
use serde_json::{Map, Value, json};

use super::schedule::{prompt_ids, prompt_words};

/// Maximum number of requests of a load.
pub const MAX_REQUESTS: u64 = 10_000_000;
/// Maximum number of tokens of a prompt or of an output.
pub const MAX_TOKENS: u32 = 1 << 20;
/// Maximum number of requests at the same time.
pub const MAX_CONCURRENCY: u32 = 8192;
/// Maximum arrivals per second.
pub const MAX_RATE: f64 = 100_000.0;

named_values! {
    /// Operation of OpenAI's API.
    #[derive(utoipa::ToSchema)]
    Api {
        /// `/v1/chat/completions`.
        Chat = "chat",
        /// `/v1/completions`.
        Completions = "completions",
    }
}

/// Pace of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Closed loop: requests at the same time.
    Concurrency(u32),
    /// Open loop: mean arrivals per second.
    Rate(f64),
}

/// Source of prompts.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompts {
    /// Random words, about one token each.
    Words(u32),
    /// Random ids of tokens below the size of the vocabulary: exact lengths, for
    /// [`Api::Completions`] only.
    Ids { tokens: u32, vocabulary: u32 },
    /// Given texts in turn, each with its own length of the output if it has one.
    Given(Vec<(String, Option<u32>)>),
}

/// A validated load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPlan {
    pub endpoint: Url,
    pub api: Api,
    pub model: Option<String>,
    pub prompts: Prompts,
    pub new_tokens: u32,
    pub pace: Pace,
    /// Number of requests; unlimited when absent.
    pub requests: Option<u64>,
    /// Time in which requests are sent; unlimited when absent.
    pub duration: Option<Duration>,
    pub seed: u64,
    /// Maximum time of one request.
    pub timeout: Duration,
    /// Fields of each request that override the plan's; `null` removes one.
    pub body: Map<String, Value>,
    pub api_key: Option<String>,
}

/// A plan that cannot be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("invalid URL {url:?}: {why}; expected http://HOST:PORT or http://HOST:PORT/v1")]
    Url { url: String, why: String },
    #[error("{field}: {value} is not between {min} and {max}")]
    Bounds { field: &'static str, value: String, min: String, max: String },
    #[error("a vocabulary needs --api completions: a chat has no prompt of token ids")]
    IdsInChat,
    #[error("the file of prompts has no prompt; write one per line")]
    NoPrompts,
    #[error("line {line} of the file of prompts: {why}")]
    Prompt { line: usize, why: String },
}

/// A request that is ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedRequest {
    pub request: u64,
    pub body: Vec<u8>,
    pub requested_tokens: u32,
}

/// The URL of an operation on a server given as `http://HOST:PORT`, with or without `/v1`.
pub fn endpoint(url: &str, api: Api) -> Result<Url, PlanError> {
    let failed = |why: String| PlanError::Url { url: url.to_owned(), why };
    let mut parsed = Url::parse(url).map_err(|error| failed(error.to_string()))?;
    if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
        return Err(failed("not a URL of HTTP".into()));
    }
    let path = parsed.path().trim_end_matches('/').to_owned();
    let operation = match api {
        Api::Chat => "chat/completions",
        Api::Completions => "completions",
    };
    let path = if path.ends_with("/completions") {
        path
    } else if path.ends_with("/v1") {
        format!("{path}/{operation}")
    } else {
        format!("{path}/v1/{operation}")
    };
    parsed.set_path(&path);
    Ok(parsed)
}

/// Reads a file of prompts: a text per line, or JSON objects `{"prompt": TEXT, "new_tokens": N}`.
pub fn parse_prompts(text: &str) -> Result<Vec<(String, Option<u32>)>, PlanError> {
    let mut prompts = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        if !line.starts_with('{') {
            prompts.push((line.to_owned(), None));
            continue;
        }
        let failed = |why: &str| PlanError::Prompt { line: at + 1, why: why.to_owned() };
        let value: Value =
            serde_json::from_str(line).map_err(|error| failed(&error.to_string()))?;
        let prompt = value["prompt"].as_str().ok_or_else(|| failed("no text \"prompt\""))?;
        let new_tokens = match &value["new_tokens"] {
            Value::Null => None,
            tokens => {
                let tokens = tokens.as_u64().and_then(|it| u32::try_from(it).ok());
                let tokens = tokens.filter(|it| (1..=MAX_TOKENS).contains(it));
                Some(tokens.ok_or_else(|| failed("\"new_tokens\" is not a number of tokens"))?)
            }
        };
        prompts.push((prompt.to_owned(), new_tokens));
    }
    if prompts.is_empty() { Err(PlanError::NoPrompts) } else { Ok(prompts) }
}

impl LoadPlan {
    /// Checks the bounds of all fields.
    pub fn check(&self) -> Result<(), PlanError> {
        let within = |field, value: f64, min: f64, max: f64| {
            if value >= min && value <= max {
                return Ok(());
            }
            let [value, min, max] = [value, min, max].map(|it| it.to_string());
            Err(PlanError::Bounds { field, value, min, max })
        };
        let (prompt_tokens, vocabulary) = match &self.prompts {
            Prompts::Words(words) => (*words, None),
            Prompts::Ids { tokens, vocabulary } => (*tokens, Some(*vocabulary)),
            Prompts::Given(_) => (1, None),
        };
        let max_tokens = f64::from(MAX_TOKENS);
        within("prompt-tokens", prompt_tokens.into(), 1.0, max_tokens)?;
        within("new-tokens", self.new_tokens.into(), 1.0, max_tokens)?;
        within("requests", self.requests.unwrap_or(1) as f64, 1.0, MAX_REQUESTS as f64)?;
        within("seconds", self.duration.map_or(1.0, |it| it.as_secs_f64()), 0.001, 86_400.0)?;
        within("timeout", self.timeout.as_secs_f64(), 0.001, 86_400.0)?;
        match self.pace {
            Pace::Concurrency(it) => {
                within("concurrency", it.into(), 1.0, MAX_CONCURRENCY.into())?;
            }
            Pace::Rate(rate) => within("rate", rate, 0.001, MAX_RATE)?,
        }
        if let Some(vocabulary) = vocabulary {
            within("vocabulary", vocabulary.into(), 4.0, f64::from(1 << 24))?;
            if self.api == Api::Chat {
                return Err(PlanError::IdsInChat);
            }
        }
        Ok(())
    }

    /// True if the request with this index is not sent, at this time of the load.
    pub fn is_over(&self, request: u64, at: Duration) -> bool {
        request >= self.requests.unwrap_or(MAX_REQUESTS)
            || self.duration.is_some_and(|duration| at >= duration)
    }

    /// The request with this index.
    pub fn request(&self, request: u64) -> PreparedRequest {
        let (prompt, own_tokens) = match &self.prompts {
            Prompts::Words(words) => (json!(prompt_words(self.seed, request, *words)), None),
            Prompts::Ids { tokens, vocabulary } => {
                (json!(prompt_ids(self.seed, request, *tokens, *vocabulary)), None)
            }
            Prompts::Given(prompts) => {
                let (text, tokens) = &prompts[(request % prompts.len() as u64) as usize];
                (json!(text), *tokens)
            }
        };
        let requested_tokens = own_tokens.unwrap_or(self.new_tokens);
        let mut body = json!({
            "stream": true,
            "stream_options": { "include_usage": true },
            "max_tokens": requested_tokens,
            "temperature": 0,
        });
        match self.api {
            Api::Chat => body["messages"] = json!([{ "role": "user", "content": prompt }]),
            Api::Completions => body["prompt"] = prompt,
        }
        if let Some(model) = &self.model {
            body["model"] = json!(model);
        }
        for (name, value) in &self.body {
            match (value, body.as_object_mut()) {
                (Value::Null, Some(body)) => drop(body.shift_remove(name)),
                (value, _) => body[name] = value.clone(),
            }
        }
        PreparedRequest { request, body: body.to_string().into_bytes(), requested_tokens }
    }

    /// The first line of the record of the load.
    pub fn header(&self, started_unix_ns: i64, started_monotonic_ns: i64) -> LoadHeader {
        let (concurrency, rate_per_s) = match self.pace {
            Pace::Concurrency(concurrency) => (Some(concurrency), None),
            Pace::Rate(rate) => (None, Some(rate)),
        };
        LoadHeader {
            url: self.endpoint.to_string(),
            model: self.model.clone(),
            concurrency,
            rate_per_s,
            seed: self.seed,
            started_unix_ns,
            started_monotonic_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> LoadPlan {
        LoadPlan {
            endpoint: endpoint("http://127.0.0.1:1", Api::Chat).unwrap(),
            api: Api::Chat,
            model: Some("m".into()),
            prompts: Prompts::Words(3),
            new_tokens: 8,
            pace: Pace::Concurrency(1),
            requests: Some(4),
            duration: None,
            seed: 1,
            timeout: Duration::from_secs(1),
            body: Map::new(),
            api_key: None,
        }
    }

    #[test]
    fn a_server_is_given_with_or_without_the_path_of_the_api() {
        for (url, path) in [
            ("http://h:1", "/v1/chat/completions"),
            ("http://h:1/", "/v1/chat/completions"),
            ("http://h:1/v1/", "/v1/chat/completions"),
            ("http://h:1/proxy/v1", "/proxy/v1/chat/completions"),
            ("http://h:1/x/chat/completions", "/x/chat/completions"),
        ] {
            assert_eq!(endpoint(url, Api::Chat).unwrap().path(), path, "{url}");
        }
        for url in ["h:1", "ftp://h/", "", "http://"] {
            assert!(endpoint(url, Api::Chat).is_err(), "{url}");
        }
    }

    #[test]
    fn fields_of_the_body_override_and_null_removes_them() {
        let Value::Object(body) =
            json!({ "stream_options": null, "ignore_eos": true, "temperature": 1 })
        else {
            unreachable!()
        };
        let request = LoadPlan { body, ..plan() }.request(2);
        let sent: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(sent.get("stream_options"), None);
        assert_eq!((&sent["ignore_eos"], &sent["temperature"]), (&json!(true), &json!(1)));
        assert_eq!((&sent["max_tokens"], &sent["model"]), (&json!(8), &json!("m")));
    }

    #[test]
    fn prompts_of_a_file_are_texts_or_objects_and_a_bad_line_is_named() {
        let read = parse_prompts("a b\n\n{\"prompt\":\"c\",\"new_tokens\":5}\n").unwrap();
        assert_eq!(read, [("a b".into(), None), ("c".into(), Some(5))]);
        let error = parse_prompts("a\n{\"text\":1}").unwrap_err();
        assert_eq!(error.to_string(), "line 2 of the file of prompts: no text \"prompt\"");
        assert_eq!(parse_prompts("\n"), Err(PlanError::NoPrompts));
        let plan = LoadPlan { prompts: Prompts::Given(read), ..plan() };
        let tokens: Vec<u32> = (0..3).map(|at| plan.request(at).requested_tokens).collect();
        assert_eq!(tokens, [8, 5, 8]);
    }

    #[test]
    fn impossible_plans_are_refused() {
        assert_eq!(plan().check(), Ok(()));
        let ids = Prompts::Ids { tokens: 4, vocabulary: 100 };
        assert_eq!(LoadPlan { prompts: ids, ..plan() }.check(), Err(PlanError::IdsInChat));
        for plan in [
            LoadPlan { pace: Pace::Rate(0.0), ..plan() },
            LoadPlan { pace: Pace::Rate(f64::NAN), ..plan() },
            LoadPlan { pace: Pace::Concurrency(0), ..plan() },
            LoadPlan { requests: Some(0), ..plan() },
            LoadPlan { new_tokens: 0, ..plan() },
        ] {
            assert!(plan.check().is_err(), "{plan:?}");
        }
    }
}
