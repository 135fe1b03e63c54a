//! Errors as clients see them: one body for every status, a code from the contract, and the request's id.
//!
//! A 500 tells nothing but the id; what went wrong is in the log under the same id.

use axum::{
    Json,
    body::Body,
    http::{HeaderValue, Method, Response, StatusCode, Uri, header},
    response::IntoResponse,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::request;
use crate::store::StoreError;

/// The body of every error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    pub code: ErrorCode,
    /// For people: what was wrong, and what to do.
    pub message: String,
    /// Also in the header `x-request-id`, and in the service's log.
    pub request_id: String,
}

/// Declares every code with its status and an example of its message. Texts are `tt`, or the schema's derive would not see them.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $text:tt, $status:ident, $example:literal;)+) => {
        /// What was wrong, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        pub enum ErrorCode { $($(#[$doc])* #[serde(rename = $text)] $code),+ }

        impl ErrorCode {
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$code => StatusCode::$status),+ }
            }

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => $text),+ }
            }

            /// A message as this code comes with, for the contract.
            pub const fn example(self) -> &'static str {
                match self { $(Self::$code => $example),+ }
            }
        }
    };
}

codes! {
    MalformedBody = "malformed_body", BAD_REQUEST, "the body is not JSON: expected value at line 1 column 1";
    InvalidParameter = "invalid_parameter", BAD_REQUEST, "id \"7\" is no UUID";
    Unauthenticated = "unauthenticated", UNAUTHORIZED, "send the header authorization: Bearer llmprof_...; `llmprof token create` makes a token";
    Forbidden = "forbidden", FORBIDDEN, "this needs the role submitter, and the token \"ann\" has the role viewer";
    CrossOrigin = "cross_origin", FORBIDDEN, "a page of another site asks; list its origin in the setting access.origins to allow it";
    RouteNotFound = "route_not_found", NOT_FOUND, "there is no /run; the API is explained at /docs";
    RunNotFound = "run_not_found", NOT_FOUND, "there is no run 019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";
    AlignmentNotFound = "alignment_not_found", NOT_FOUND, "there is no alignment 019aa1c2-0f3b-7a60-8c1d-5b2e9d4f6a71";
    ArtifactNotFound = "artifact_not_found", NOT_FOUND, "the run left no report.pdf";
    TableNotFound = "table_not_found", NOT_FOUND, "the run has no table kernel; they are listed at /runs/{id}/tables";
    ModelNotFound = "model_not_found", NOT_FOUND, "there is no model deepseek-ocr-tin; did you mean deepseek-ocr-tiny?";
    PartNotFound = "part_not_found", NOT_FOUND, "target: \"decoder.layers.99\" is no part of deepseek-ocr-tiny: it has decoder.layers.0 to 3";
    CommandNotFound = "command_not_found", NOT_FOUND, "there is no command torch-generat; did you mean torch-generate?";
    DeviceNotFound = "device_not_found", NOT_FOUND, "no worker has the device cuda:7; there is cpu";
    InputsNotFound = "inputs_not_found", NOT_FOUND, "there is no pages.yaml in the inputs folder";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "PUT is not for /runs";
    NotAcceptable = "not_acceptable", NOT_ACCEPTABLE, "the report comes as text/html, text/markdown or application/json";
    BodyTimeout = "body_timeout", REQUEST_TIMEOUT, "the body did not arrive within 10 seconds";
    RequestContradictory = "request_contradictory", CONFLICT, "align_with: timelines are compared, and profiling.nsys.enabled is off in mode basic";
    IdempotencyKeyReused = "idempotency_key_reused", CONFLICT, "the idempotency key came before with another body";
    DtypeUnavailable = "dtype_unavailable", CONFLICT, "the cpu multiplies no bf16: ask for f32";
    ParamsUnfit = "params_unfit", CONFLICT, "target.params.tokens: 9000 is not between 1 and 4096";
    InputsUnfit = "inputs_unfit", CONFLICT, "inputs.yaml names images, and the model llama-tiny reads text only";
    RunNotCancellable = "run_not_cancellable", CONFLICT, "the run has ended: succeeded";
    RunActive = "run_active", CONFLICT, "the run has not ended: cancel it first";
    RunNotFinished = "run_not_finished", CONFLICT, "the run has not ended; follow it at /runs/{id}/events";
    ReportUnavailable = "report_unavailable", CONFLICT, "the run ended failed without a report; its logs are at /runs/{id}/artifacts";
    CaptureUnavailable = "capture_unavailable", CONFLICT, "run 019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10 left no timeline (nsys/run.sqlite): align runs whose nsys step succeeded";
    AlignmentActive = "alignment_active", CONFLICT, "the alignment is being computed: come again when it has ended";
    AlignmentNotFinished = "alignment_not_finished", CONFLICT, "the alignment has not ended; follow it at /alignments/{id}/events";
    MisdirectedRequest = "misdirected_request", MISDIRECTED_REQUEST, "this service is not asked as \"evil.example\"; list the name in the setting server.hosts to allow it";
    BodyTooLarge = "body_too_large", PAYLOAD_TOO_LARGE, "the body is larger than 1048576 bytes";
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "send the header content-type: application/json";
    RangeNotSatisfiable = "range_not_satisfiable", RANGE_NOT_SATISFIABLE, "the file has 512 bytes";
    InvalidRequest = "invalid_request", UNPROCESSABLE_ENTITY, "repeats: 0 is not between 1 and 100";
    CaptureInvalid = "capture_invalid", UNPROCESSABLE_ENTITY, "vllm.sqlite: an SQLite database, but no export of nsys";
    InputsInvalid = "inputs_invalid", UNPROCESSABLE_ENTITY, "image page.png: there is no such file";
    RateLimited = "rate_limited", TOO_MANY_REQUESTS, "too many requests; the header retry-after tells when to come again";
    TooManyQueued = "too_many_queued", TOO_MANY_REQUESTS, "200 runs of \"ann\" wait already: cancel some, or wait for their end";
    Internal = "internal", INTERNAL_SERVER_ERROR, "something went wrong here; the log tells more under this request id";
    Unavailable = "unavailable", SERVICE_UNAVAILABLE, "the database does not answer";
    Overloaded = "overloaded", SERVICE_UNAVAILABLE, "as many requests as the service handles at a time are under way: come again";
    DiskFull = "disk_full", INSUFFICIENT_STORAGE, "the disk of the runs has 104857600 bytes free, and 1073741824 (limits.free_bytes) have to be: delete runs";
    DiskQuota = "disk_quota", INSUFFICIENT_STORAGE, "the runs of \"ann\" take 50000000000 bytes, which is their share: delete some";
}

/// An error on its way to a client.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    retry_after_s: Option<u64>,
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after_s: None }
    }

    /// Says after how many seconds it is worth to ask again.
    pub fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    pub fn code(&self) -> ErrorCode {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Logs what went wrong here, and tells the client only that something did.
    pub fn internal(error: &dyn std::error::Error) -> Self {
        tracing::error!(request_id = request::id(), error = %crate::chain(error), "a request failed");
        Self::new(ErrorCode::Internal, ErrorCode::Internal.example())
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::internal(&error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let detail = ErrorDetail { code: self.code, message: self.message, request_id: request::id() };
        let mut response = (self.code.status(), Json(ErrorBody { error: detail })).into_response();
        if self.code == ErrorCode::Unauthenticated {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"llmprof\""));
        }
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

pub async fn no_route(uri: Uri) -> ApiError {
    ApiError::new(ErrorCode::RouteNotFound, format!("there is no {}; the API is explained at /docs", uri.path()))
}

pub async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(ErrorCode::MethodNotAllowed, format!("{method} is not for {}", uri.path()))
}

pub fn panicked(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    tracing::error!(request_id = request::id(), "a handler panicked");
    ApiError::new(ErrorCode::Internal, ErrorCode::Internal.example()).into_response()
}
