//! Calls of the service's API, as values: method, path, query and body. The router answers them
//! inside the service, a client elsewhere.

use llmprof_core::domain::uri::percent_encoded;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A service that answers calls of its API.
pub trait ServiceApi: Send + Sync + 'static {
    /// Returns the JSON text of the answer.
    fn call(&self, call: ApiCall) -> impl Future<Output = Result<Vec<u8>, ApiRefusal>> + Send;
}

/// Method of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiMethod {
    Get,
    Post,
}

/// A call of the API.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiCall {
    pub method: ApiMethod,
    /// Path of the contract, with its parameters filled in.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    /// Only `POST` has one.
    pub body: Option<Value>,
}

/// A call without a result: the code of the API's error, if there is one, and its text.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}{message}", code.as_ref().map(|code| format!("{code}: ")).unwrap_or_default())]
pub struct ApiRefusal {
    pub code: Option<String>,
    pub message: String,
}

impl ApiRefusal {
    /// A refusal that the API did not give.
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: None, message: message.into() }
    }
}

impl ApiCall {
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: ApiMethod::Get, path: path.into(), query: Vec::new(), body: None }
    }

    pub fn post(path: impl Into<String>, body: Value) -> Self {
        Self { method: ApiMethod::Post, body: Some(body), ..Self::get(path) }
    }

    /// Adds a parameter, unless it is absent.
    pub fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        self.query.extend(value.map(|value| (name, value.to_string())));
        self
    }

    /// Path and query of the request.
    pub fn target(&self) -> String {
        let pair = |(name, value): &(&str, String)| format!("{name}={}", percent_encoded(value));
        let query: Vec<String> = self.query.iter().map(pair).collect();
        match query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, query.join("&")),
        }
    }
}

/// Calls the API, and reads the answer as `T`.
pub async fn read<T: DeserializeOwned>(
    api: &impl ServiceApi,
    call: ApiCall,
) -> Result<T, ApiRefusal> {
    let path = call.path.clone();
    let text = api.call(call).await?;
    serde_json::from_slice(&text).map_err(|error| unreadable(&path, &error))
}

/// The refusal of an answer that this version cannot read.
pub fn unreadable(path: &str, error: &serde_json::Error) -> ApiRefusal {
    ApiRefusal::new(format!(
        "cannot read the answer to {path} ({error}); use the same version of llmprof as the \
         service"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_keeps_every_character() {
        let call = ApiCall::get("/runs/1/tables/kernels")
            .with("where", Some("name~a&b=c d"))
            .with("limit", Some(3))
            .with("q", None::<String>);
        assert_eq!(call.target(), "/runs/1/tables/kernels?where=name~a%26b%3Dc%20d&limit=3");
        assert_eq!(ApiCall::get("/models").target(), "/models");
    }

    #[test]
    fn a_refusal_starts_with_the_code_of_the_api() {
        let refusal = ApiRefusal { code: Some("run_not_found".into()), message: "no run".into() };
        assert_eq!(refusal.to_string(), "run_not_found: no run");
        assert_eq!(ApiRefusal::new("no answer").to_string(), "no answer");
    }
}
