//! A client of a service's API, for subcommands that talk to a service by its URL.
//!
//! An error of the service becomes one line. A token is read from the environment, never from an
//! option, which other users of the host can read.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use reqwest::{
    RequestBuilder, Response,
    header::{self, HeaderMap, HeaderValue},
};
use serde_json::Value;

/// Variable with the URL of the service.
pub const SERVER: &str = "LLMPROF_SERVER";
/// Variable with the caller's token.
pub const TOKEN: &str = "LLMPROF_TOKEN";
/// URL of a service on this host.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// Time in which a connection must be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before a stream of events that broke off is opened again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// A service with the caller's token.
#[derive(Debug, Clone)]
pub struct ServiceClient {
    base: String,
    http: reqwest::Client,
}

impl ServiceClient {
    /// A client of the service at `server`, with the token of the environment.
    pub fn new(server: &str) -> Result<Self> {
        let mut headers = HeaderMap::new();
        if let Ok(token) = std::env::var(TOKEN) {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .with_context(|| format!("{TOKEN} is not a token"))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self { base: server.trim_end_matches('/').to_owned(), http })
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        self.send(self.http.get(format!("{}{path}", self.base))).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.send(self.http.post(format!("{}{path}", self.base)).json(body)).await
    }

    /// Follows the events of a run until it has ended; returns the run.
    pub async fn wait_for_end(&self, run: &str) -> Result<Value> {
        loop {
            let events = self.http.get(format!("{}/runs/{run}/events", self.base));
            let mut response = refuse_errors(self.answer(events).await?).await?;
            // The stream ends with the run, or breaks off.
            while let Ok(Some(_)) = response.chunk().await {}
            let found = self.get(&format!("/runs/{run}")).await?;
            if found["ended_at"].is_string() {
                return Ok(found);
            }
            tokio::time::sleep(RECONNECT_DELAY).await;
        }
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Response> {
        request.send().await.with_context(|| format!("no answer from {}", self.base))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value> {
        let response = refuse_errors(self.answer(request).await?).await?;
        response.json().await.with_context(|| format!("{} did not answer with JSON", self.base))
    }
}

/// Turns an error body into one line.
async fn refuse_errors(response: Response) -> Result<Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body: Value = response.json().await.unwrap_or_default();
    let message = body["error"]["message"].as_str().unwrap_or("no reason given");
    bail!("the service answered {status}: {message}")
}
