//! The error responses of the contract: declared here once, listed by each handler.
//!
//! A family is a status with the codes that it comes with. Handlers name families in
//! `responses(...)`; the contract has each once, under `components/responses`, with its examples.

use std::collections::BTreeMap;

use serde_json::json;
use utoipa::{
    IntoResponses,
    openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder, example::ExampleBuilder},
};

use super::{ErrorBody, ErrorCode, ErrorDetail};

/// Declares families of errors: name, and codes of one status. A later family of a status replaces
/// an earlier one in a handler's list.
macro_rules! families {
    ($($(#[$doc:meta])* $name:ident: $($code:ident)+;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $name;

            impl IntoResponses for $name {
                fn responses() -> BTreeMap<String, RefOr<Response>> {
                    reference(stringify!($name), &[$(ErrorCode::$code),+])
                }
            }
        )+

        /// Every family by name, as the contract declares it.
        pub fn components() -> BTreeMap<&'static str, Response> {
            [$((stringify!($name), response(&[$(ErrorCode::$code),+]))),+].into()
        }
    };
}

families! {
    InvalidParameter: InvalidParameter;
    InvalidBody: MalformedBody InvalidParameter;
    Unauthenticated: Unauthenticated;
    Forbidden: Forbidden CrossOrigin;
    RunNotFound: RunNotFound;
    SessionNotFound: SessionNotFound;
    SweepNotFound: SweepNotFound;
    AlignmentNotFound: AlignmentNotFound;
    SeriesNotFound: SeriesNotFound;
    GateNotFound: RunNotFound BaselineNotFound;
    DeliveryNotFound: DeliveryNotFound;
    ArtifactNotFound: RunNotFound ArtifactNotFound RouteNotFound;
    AlignmentArtifactNotFound: AlignmentNotFound ArtifactNotFound RouteNotFound;
    TableNotFound: RunNotFound TableNotFound ColumnNotFound RouteNotFound;
    /// No run, or no earlier alignment.
    SideNotFound: RunNotFound AlignmentNotFound;
    ModelNotFound: ModelNotFound InputsNotFound;
    /// No model, mode, part, command, device or inputs of the name in a submission.
    SubjectNotFound: ModelNotFound ModeNotFound PartNotFound CommandNotFound DeviceNotFound
        InputsNotFound SessionNotFound;
    InputsNotFound: InputsNotFound;
    MethodNotAllowed: MethodNotAllowed;
    NotAcceptable: NotAcceptable;
    BodyTimeout: BodyTimeout;
    SubmissionConflict:
        RequestContradictory IdempotencyKeyReused DtypeUnavailable SamplingForbidden ParamsUnfit
        InputsUnfit SessionEnded;
    RequestConflict: RequestContradictory;
    IdempotencyConflict: IdempotencyKeyReused;
    AlignmentConflict:
        RequestContradictory IdempotencyKeyReused RunNotFinished CaptureUnavailable
        ReportUnavailable;
    SweepEnded: SweepEnded;
    SweepActive: SweepActive;
    RunNotCancellable: RunNotCancellable;
    RunActive: RunActive;
    RunNotFinished: RunNotFinished;
    ReportUnavailable: RunNotFinished ReportUnavailable;
    TableUnavailable: RunNotFinished ReportUnavailable FilterUnfit;
    AlignmentActive: AlignmentActive;
    InputsActive: InputsActive;
    AlignmentReportUnavailable: AlignmentNotFinished ReportUnavailable;
    InputsUnfit: InputsUnfit;
    BodyTooLarge: BodyTooLarge;
    UnsupportedMediaType: UnsupportedMediaType;
    RangeNotSatisfiable: RangeNotSatisfiable;
    MisdirectedRequest: MisdirectedRequest;
    InvalidRequest: InvalidRequest;
    InvalidInputs: InvalidRequest InputsInvalid;
    InvalidCapture: InvalidRequest CaptureInvalid;
    RateLimited: RateLimited;
    QueueLimit: RateLimited TooManyQueued TooManySessions;
    SweepLimit: RateLimited TooManyQueued TooManySweeps;
    UploadLimit: RateLimited TooManyQueued TooManyUploads;
    InputsUploadLimit: RateLimited TooManyUploads;
    Internal: Internal;
    StoredFile: Internal FileDamaged;
    Unready: Unavailable;
    Overloaded: Overloaded;
    Unavailable: Overloaded Unavailable;
    InsufficientStorage: DiskFull DiskQuota;
}

/// Declares lists of families that whole groups of handlers have.
macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident: $($family:ident)+;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $name;

            impl IntoResponses for $name {
                fn responses() -> BTreeMap<String, RefOr<Response>> {
                    [$($family::responses()),+].into_iter().flatten().collect()
                }
            }
        )+
    };
}

lists! {
    /// Errors of operations without authentication.
    OpenErrors: MethodNotAllowed Internal;
    /// Errors of operations behind authentication and rate limits.
    GuardedErrors:
        MethodNotAllowed Internal Unauthenticated Forbidden MisdirectedRequest RateLimited
        Overloaded;
    /// Errors of a request body.
    BodyErrors: BodyTimeout BodyTooLarge UnsupportedMediaType;
}

fn reference(name: &str, codes: &[ErrorCode]) -> BTreeMap<String, RefOr<Response>> {
    let status = codes.first().map_or_else(String::new, |code| code.status().as_str().to_owned());
    [(status, RefOr::Ref(Ref::from_response_name(name)))].into()
}

fn response(codes: &[ErrorCode]) -> Response {
    let reason = codes.first().and_then(|code| code.status().canonical_reason());
    let example = |code: &ErrorCode| {
        let error = ErrorDetail {
            code: *code,
            message: code.example().into(),
            request_id: "019a9f3e-7b2a-7d31-8f64-0d6f1b2c3e4a".into(),
        };
        let example = ExampleBuilder::new().value(Some(json!(ErrorBody { error }))).build();
        (code.as_str(), example)
    };
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("ErrorBody")))
        .examples_from_iter(codes.iter().map(example))
        .build();
    ResponseBuilder::new()
        .description(reason.unwrap_or("Error"))
        .content("application/json", content)
        .build()
}
