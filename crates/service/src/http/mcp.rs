//! `POST /mcp`: the tools of agents over streamable HTTP.
//!
//! The guard checks a request like any other. Each call that a tool makes passes the guard again,
//! as the same caller: an agent may do what its token may, and the audit log has its changes. No
//! session is kept: a request is complete in itself in every version of the protocol.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    body::{Body, Bytes, to_bytes},
    extract::{ConnectInfo, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{
    http::{error::ErrorBody, extract::body::read_json},
    mcp::{AgentServer, ApiCall, ApiMethod, ApiRefusal, MAX_MESSAGE, ServiceApi, refuse},
};

/// Bytes of an answer that a tool reads.
const MAX_ANSWER: usize = 64 << 20;
/// Answers that all tools read at a time; further calls wait.
const MAX_CALLS: usize = 16;

/// Headers that identify the caller and its browser.
const OF_CALLER: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
    header::ORIGIN,
    HeaderName::from_static("sec-fetch-site"),
    HeaderName::from_static("x-forwarded-for"),
];

/// The API, and the end of the service.
#[derive(Debug, Clone)]
struct McpState {
    calls: Router,
    places: Arc<Semaphore>,
    closing: CancellationToken,
}

/// The API as one caller uses it.
#[derive(Debug, Clone)]
struct CallerApi {
    calls: Router,
    places: Arc<Semaphore>,
    headers: HeaderMap,
    peer: Option<ConnectInfo<SocketAddr>>,
}

/// The route of the tools, which make `calls`.
pub fn router(calls: Router, closing: CancellationToken) -> Router {
    let places = Arc::new(Semaphore::new(MAX_CALLS));
    Router::new().route("/mcp", post(serve)).with_state(McpState { calls, places, closing })
}

async fn serve(State(state): State<McpState>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = match read_json(&parts.headers, body, MAX_MESSAGE).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    if let Some(answer) = refuse(&body) {
        // A request with an id has its answer, as the error of any other request has.
        let has_id = !answer["id"].is_null();
        let status = if has_id { StatusCode::OK } else { StatusCode::BAD_REQUEST };
        return (status, Json(answer)).into_response();
    }
    // All lines of each: a proxy adds the client's address as the last one.
    let lines = |name: HeaderName| {
        let values: Vec<HeaderValue> = parts.headers.get_all(&name).iter().cloned().collect();
        values.into_iter().map(move |value| (name.clone(), value))
    };
    let api = CallerApi {
        calls: state.calls,
        places: state.places,
        headers: OF_CALLER.into_iter().flat_map(lines).collect(),
        peer: parts.extensions.get::<ConnectInfo<SocketAddr>>().copied(),
    };
    // Hosts and origins were checked by the guard.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts()
        .with_max_request_body_bytes(MAX_MESSAGE)
        .with_cancellation_token(state.closing.child_token());
    let sessions = Arc::new(NeverSessionManager::default());
    let server = move || Ok(AgentServer::new(api.clone()));
    let service = StreamableHttpService::new(server, sessions, config);
    service.handle(Request::from_parts(parts, Body::from(body))).await.map(Body::new)
}

impl CallerApi {
    fn request(&self, call: &ApiCall) -> Result<Request, axum::http::Error> {
        let method = match call.method {
            ApiMethod::Get => Method::GET,
            ApiMethod::Post => Method::POST,
        };
        let body = call.body.as_ref().map(|body| Body::from(body.to_string()));
        let mut request =
            Request::builder().method(method).uri(call.target()).body(body.unwrap_or_default())?;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().extend(self.headers.clone());
        request.headers_mut().insert(header::ACCEPT, json.clone());
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        Ok(request)
    }
}

impl ServiceApi for CallerApi {
    async fn call(&self, call: ApiCall) -> Result<Vec<u8>, ApiRefusal> {
        let request = self.request(&call);
        let request = request.map_err(|error| ApiRefusal::new(format!("invalid call: {error}")))?;
        // An error would mean that the semaphore is closed, which it never is.
        let _place = self.places.acquire().await.ok();
        let Ok(response) = self.calls.clone().oneshot(request).await;
        let (head, body) = response.into_parts();
        let Ok(body) = to_bytes(body, MAX_ANSWER).await else {
            let limit = MAX_ANSWER >> 20;
            let message = format!("the answer to {} is larger than {limit} MiB", call.path);
            return Err(ApiRefusal::new(message));
        };
        if head.status.is_success() {
            return Ok(body.into());
        }
        Err(refusal(&head.headers, &body).unwrap_or_else(|| {
            ApiRefusal::new(format!("the service answered {} to {}", head.status, call.path))
        }))
    }
}

/// The error of the API in a body.
fn refusal(headers: &HeaderMap, body: &Bytes) -> Option<ApiRefusal> {
    let error = serde_json::from_slice::<ErrorBody>(body).ok()?.error;
    let wait = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let wait = wait.map(|seconds| format!(" (retry after {seconds} s)"));
    let message = format!("{}{}", error.message, wait.unwrap_or_default());
    Some(ApiRefusal { code: Some(error.code.as_str().to_owned()), message })
}
