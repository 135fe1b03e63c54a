//! The codes of errors, each with its status and an example of its message.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Declares every code with its status and an example of its message. Texts are `tt`: the derive
/// of the schema reads literals only.
macro_rules! codes {
    ($($code:ident = $text:tt, $status:ident, $example:literal;)+) => {
        /// Code of an error, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        pub enum ErrorCode { $(#[serde(rename = $text)] $code),+ }

        impl ErrorCode {
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$code => StatusCode::$status),+ }
            }

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => $text),+ }
            }

            /// An example of the message that comes with this code.
            pub const fn example(self) -> &'static str {
                match self { $(Self::$code => $example),+ }
            }
        }
    };
}

codes! {
    MalformedBody = "malformed_body", BAD_REQUEST,
        "malformed JSON body: expected value at line 1 column 1";
    InvalidParameter = "invalid_parameter", BAD_REQUEST,
        "invalid id \"7\"; expected a UUID";
    Unauthenticated = "unauthenticated", UNAUTHORIZED,
        "no token; send the header authorization: Bearer llmprof_... \
         (create one with `llmprof token create`)";
    Forbidden = "forbidden", FORBIDDEN,
        "role submitter required; the token \"ann\" has the role viewer";
    CrossOrigin = "cross_origin", FORBIDDEN,
        "cross-origin request refused; add the origin to access.origins to allow it";
    RouteNotFound = "route_not_found", NOT_FOUND,
        "no route /run; the API is documented at /docs";
    RunNotFound = "run_not_found", NOT_FOUND,
        "no run 019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";
    SessionNotFound = "session_not_found", NOT_FOUND,
        "no session 019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45; see GET /sessions";
    SweepNotFound = "sweep_not_found", NOT_FOUND,
        "no sweep 019aa4c7-1f0d-7d29-b3a6-8e5f2c417b90; see GET /sweeps";
    AlignmentNotFound = "alignment_not_found", NOT_FOUND,
        "no alignment 019aa1c2-0f3b-7a60-8c1d-5b2e9d4f6a71";
    SeriesNotFound = "series_not_found", NOT_FOUND,
        "no series 5e884898da28047151d0e56f8dc62927";
    BaselineNotFound = "baseline_not_found", NOT_FOUND,
        "no baseline main; set it by POST /baselines";
    DeliveryNotFound = "delivery_not_found", NOT_FOUND,
        "no delivery 12";
    ArtifactNotFound = "artifact_not_found", NOT_FOUND,
        "no artifact report.pdf in this run; see /runs/{id}/artifacts";
    TableNotFound = "table_not_found", NOT_FOUND,
        "no table kernel in this run; see /runs/{id}/tables";
    ColumnNotFound = "column_not_found", NOT_FOUND,
        "table kernels has no column price; see /runs/{id}/tables";
    ModelNotFound = "model_not_found", NOT_FOUND,
        "no model deepseek-ocr-tin; did you mean deepseek-ocr-tiny?";
    ModeNotFound = "mode_not_found", NOT_FOUND,
        "no mode nightly; expected one of deep, light, basic";
    PartNotFound = "part_not_found", NOT_FOUND,
        "target: \"decoder.layers.99\" is not a part of deepseek-ocr-tiny: it has \
         decoder.layers.0 to 3";
    CommandNotFound = "command_not_found", NOT_FOUND,
        "no command torch-generat; did you mean torch-generate?";
    DeviceNotFound = "device_not_found", NOT_FOUND,
        "no worker for the device cuda:7; available: cpu";
    InputsNotFound = "inputs_not_found", NOT_FOUND,
        "there is no pages.yaml in the inputs folder; GET /inputs lists its manifests";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED,
        "method PUT is not allowed for /runs (allowed: GET, HEAD, POST)";
    NotAcceptable = "not_acceptable", NOT_ACCEPTABLE,
        "no acceptable representation; available: text/html, text/markdown, application/json";
    BodyTimeout = "body_timeout", REQUEST_TIMEOUT,
        "the body did not arrive within 10 seconds";
    RequestContradictory = "request_contradictory", CONFLICT,
        "align_with requires a timeline; enable profiling.nsys.enabled, which is off in mode basic";
    IdempotencyKeyReused = "idempotency_key_reused", CONFLICT,
        "Idempotency-Key was already used with another body; send a new key";
    DtypeUnavailable = "dtype_unavailable", CONFLICT,
        "bf16 is not supported on the CPU; use f32";
    SamplingForbidden = "sampling_forbidden", CONFLICT,
        "profiling.nsys.sample: system-wide sampling is not allowed on this host; request \
         process-tree, or ask the operator to set tools.system_wide_sampling = true";
    ParamsUnfit = "params_unfit", CONFLICT,
        "target.params.tokens: 9000 is not between 1 and 4096";
    FilterUnfit = "filter_unfit", CONFLICT,
        "column total_ms has numbers, and \"much\" is not a number or a range such as 1..10";
    InputsUnfit = "inputs_unfit", CONFLICT,
        "inputs.yaml contains images, but the model llama-tiny reads text only";
    SessionEnded = "session_ended", CONFLICT,
        "the session 019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45 is lost; start one by POST /sessions";
    SweepEnded = "sweep_ended", CONFLICT,
        "the sweep has ended: done";
    SweepActive = "sweep_active", CONFLICT,
        "the sweep has not ended; cancel it first";
    RunNotCancellable = "run_not_cancellable", CONFLICT,
        "the run has already ended: succeeded";
    RunActive = "run_active", CONFLICT,
        "the run has not ended; cancel it first";
    RunNotFinished = "run_not_finished", CONFLICT,
        "the run has not ended; follow it at /runs/{id}/events";
    ReportUnavailable = "report_unavailable", CONFLICT,
        "no report: the run ended failed; see its logs at /runs/{id}/artifacts";
    CaptureUnavailable = "capture_unavailable", CONFLICT,
        "run 019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10 has no timeline (nsys/run.sqlite); \
         align runs whose nsys step succeeded";
    InputsActive = "inputs_active", CONFLICT,
        "the run 019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10 needs the inputs; delete them when it has \
         ended";
    AlignmentActive = "alignment_active", CONFLICT,
        "the alignment is running; retry when it has ended";
    AlignmentNotFinished = "alignment_not_finished", CONFLICT,
        "the alignment has not ended; follow it at /alignments/{id}/events";
    MisdirectedRequest = "misdirected_request", MISDIRECTED_REQUEST,
        "host \"evil.example\" is not allowed; add it to server.hosts";
    BodyTooLarge = "body_too_large", PAYLOAD_TOO_LARGE,
        "the body is larger than 1048576 bytes";
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE,
        "unsupported content type; send the header content-type: application/json";
    RangeNotSatisfiable = "range_not_satisfiable", RANGE_NOT_SATISFIABLE,
        "range not satisfiable: the file has 512 bytes";
    InvalidRequest = "invalid_request", UNPROCESSABLE_ENTITY,
        "repeats: 0 is not between 1 and 100";
    CaptureInvalid = "capture_invalid", UNPROCESSABLE_ENTITY,
        "vllm.sqlite: an SQLite database, but not an nsys export";
    InputsInvalid = "inputs_invalid", UNPROCESSABLE_ENTITY,
        "image page.png: no such file";
    RateLimited = "rate_limited", TOO_MANY_REQUESTS,
        "rate limit exceeded; retry after the seconds in the header retry-after";
    TooManyQueued = "too_many_queued", TOO_MANY_REQUESTS,
        "queue limit reached: \"ann\" already has 200 queued runs; cancel some or retry later";
    TooManySessions = "too_many_sessions", TOO_MANY_REQUESTS,
        "session limit reached: \"ann\" already has 2 sessions (sessions.per_owner); end one";
    TooManySweeps = "too_many_sweeps", TOO_MANY_REQUESTS,
        "sweep limit reached: \"ann\" already has 4 active sweeps (sweeps.per_owner); cancel one";
    TooManyUploads = "too_many_uploads", TOO_MANY_REQUESTS,
        "upload limit reached: \"ann\" already has 4 active uploads; retry later";
    Internal = "internal", INTERNAL_SERVER_ERROR,
        "internal error; the service's log has the details under this request id";
    FileDamaged = "file_damaged", INTERNAL_SERVER_ERROR,
        "report.md: the stored file is missing; ask the operator to run `llmprof check`";
    Unavailable = "unavailable", SERVICE_UNAVAILABLE,
        "the database is unavailable; retry later";
    Overloaded = "overloaded", SERVICE_UNAVAILABLE,
        "too many concurrent requests; retry later";
    DiskFull = "disk_full", INSUFFICIENT_STORAGE,
        "low disk space: 104857600 bytes free, limits.free_bytes requires 1073741824; \
         delete some runs";
    DiskQuota = "disk_quota", INSUFFICIENT_STORAGE,
        "disk quota exceeded: \"ann\" stores 50000000000 bytes; delete some runs";
}
