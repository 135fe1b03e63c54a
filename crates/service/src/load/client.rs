//! One request of a load: sent, read event by event, and timed. Never fails: a failure is a record.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use llmprof_core::trace::requests::{RequestFailure, RequestRecord};
use reqwest::{header, redirect};
use tokio_util::sync::CancellationToken;

use super::{
    exchange::ResponseRecord,
    plan::{LoadPlan, PreparedRequest},
};

/// Time limit of a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum size of a response, bytes.
const MAX_RESPONSE: usize = 256 << 20;
/// Maximum size of the response of a failed request, bytes; the rest is not read.
const MAX_ERROR: usize = 4096;

/// The client of one load.
#[derive(Debug)]
pub struct LoadClient {
    /// Reuses connections.
    pub http: reqwest::Client,
    /// Opens a connection for each request.
    pub fresh: reqwest::Client,
    pub plan: Arc<LoadPlan>,
    pub started: Instant,
}

/// Creates an HTTP client of a load, which keeps at most `max_idle` connections.
pub fn http_client(plan: &LoadPlan, max_idle: usize) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .tcp_nodelay(true)
        .connect_timeout(CONNECT)
        .timeout(plan.timeout)
        .pool_max_idle_per_host(max_idle)
        .build()
}

/// Nanoseconds since `started`.
pub fn since(started: Instant) -> i64 {
    i64::try_from(started.elapsed().as_nanos()).unwrap_or(i64::MAX)
}

impl LoadClient {
    /// Sends one request and reads its response.
    pub async fn send(
        &self,
        prepared: PreparedRequest,
        intended_ns: i64,
        stop: &CancellationToken,
    ) -> RequestRecord {
        let mut response = ResponseRecord::new(RequestRecord {
            request: prepared.request,
            intended_ns,
            sent_ns: since(self.started),
            requested_tokens: prepared.requested_tokens,
            ..RequestRecord::default()
        });
        let failed = tokio::select! {
            read = self.exchange(prepared, &mut response) => read.err(),
            () = stop.cancelled() => {
                Some((RequestFailure::Stopped, "the load was stopped".to_owned()))
            }
        };
        let ended_ns = since(self.started);
        response.finish(failed, ended_ns)
    }

    fn request(
        &self,
        http: &reqwest::Client,
        prepared: &PreparedRequest,
    ) -> reqwest::RequestBuilder {
        let request = http
            .post(self.plan.endpoint.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream")
            .header("x-request-id", format!("llmprof-{}", prepared.request))
            .body(prepared.body.clone());
        match &self.plan.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn exchange(
        &self,
        prepared: PreparedRequest,
        record: &mut ResponseRecord,
    ) -> Result<(), (RequestFailure, String)> {
        let mut response = match self.request(&self.http, &prepared).send().await {
            Ok(response) => response,
            // A server may close an idle connection at any time, also while a request is sent.
            Err(error) if error.is_request() && !error.is_connect() && !error.is_timeout() => {
                let again = self.request(&self.fresh, &prepared).send().await;
                again.map_err(|error| failure(&error))?
            }
            Err(error) => return Err(failure(&error)),
        };
        let status = response.status();
        record.status(status.as_u16());
        let kind = response.headers().get(header::CONTENT_TYPE);
        let is_json = kind.is_some_and(|it| it.as_bytes().starts_with(b"application/json"));
        if !status.is_success() || is_json {
            let mut text = Vec::new();
            while text.len() < MAX_ERROR
                && let Ok(Some(bytes)) = response.chunk().await
            {
                text.extend_from_slice(&bytes);
            }
            let text = super::chunk::excerpt(&text);
            return Err(if status.is_success() {
                (RequestFailure::NotAStream, format!("the response is JSON, not a stream: {text}"))
            } else {
                (RequestFailure::Status, format!("{status}: {text}"))
            });
        }
        let mut size = 0usize;
        loop {
            let bytes = match response.chunk().await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return record.end(),
                Err(error) if record.is_done() && !error.is_timeout() => return Ok(()),
                Err(error) => return Err(failure(&error)),
            };
            let now = since(self.started);
            size += bytes.len();
            if size > MAX_RESPONSE {
                let message = format!("the response exceeds {MAX_RESPONSE} bytes");
                return Err((RequestFailure::TooLarge, message));
            }
            record.read(&bytes, now)?;
            if record.is_done() {
                // The rest of the body is read, so that the connection can be used again.
                let rest = tokio::time::timeout(Duration::from_secs(1), response.chunk()).await;
                return if matches!(rest, Ok(Ok(None)) | Err(_)) { Ok(()) } else { record.end() };
            }
        }
    }
}

fn failure(error: &reqwest::Error) -> (RequestFailure, String) {
    let kind = if error.is_timeout() {
        RequestFailure::Timeout
    } else if error.is_body() || error.is_decode() {
        RequestFailure::EndedEarly
    } else {
        RequestFailure::Connection
    };
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        message = format!("{message}: {source}");
        cause = source.source();
    }
    (kind, super::chunk::excerpt(message.as_bytes()))
}
