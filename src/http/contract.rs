//! The contract: what the routes declare, with the errors that each may answer and an example of everything.
//!
//! Examples are made from the types themselves, so they cannot go stale. `contracts/profile.yaml` is this, written down.

use std::sync::LazyLock;

use axum::{
    http::{Method, header},
    response::IntoResponse,
};
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::{
    access,
    error::{ErrorBody, ErrorCode, ErrorDetail},
    events::RunEvent,
    examples, routes,
};
use crate::run::command::{MOST_PARAMS, MOST_TEXT};

#[derive(OpenApi)]
#[openapi(
    info(title = "llmprof", description = "GPU profiling for LLM inference as a service: submit a run, follow it, read its report."),
    components(schemas(ErrorBody, RunEvent)),
    tags(
        (name = "runs", description = "Submit, follow, list, cancel and delete runs"),
        (name = "artifacts", description = "What a run left: its report, its files, all of them as one stream"),
        (name = "alignments", description = "Whether a layer alone launches what the whole model launches"),
        (name = "models", description = "What can be profiled"),
        (name = "service", description = "The service itself"),
    )
)]
struct Declared;

/// What each operation may answer besides success; 405 and 500 are everywhere.
fn errors(operation: &str) -> &'static [ErrorCode] {
    use ErrorCode as E;
    match operation {
        "submit_run" => &[
            E::MalformedBody,
            E::InvalidParameter,
            E::ModelNotFound,
            E::PartNotFound,
            E::CommandNotFound,
            E::DeviceNotFound,
            E::InputsNotFound,
            E::BodyTimeout,
            E::RequestContradictory,
            E::IdempotencyKeyReused,
            E::DtypeUnavailable,
            E::ParamsUnfit,
            E::InputsUnfit,
            E::BodyTooLarge,
            E::UnsupportedMediaType,
            E::InvalidRequest,
            E::InputsInvalid,
            E::TooManyQueued,
            E::DiskQuota,
            E::DiskFull,
        ],
        "submit_capture" => &[
            E::InvalidParameter,
            E::BodyTimeout,
            E::BodyTooLarge,
            E::UnsupportedMediaType,
            E::InvalidRequest,
            E::CaptureInvalid,
            E::IdempotencyKeyReused,
            E::TooManyQueued,
            E::Unavailable,
            E::DiskFull,
            E::DiskQuota,
        ],
        "list_runs" | "list_audit" => &[E::InvalidParameter],
        "get_run" | "follow_run" | "list_artifacts" => &[E::InvalidParameter, E::RunNotFound],
        "pin_run" | "unpin_run" => &[E::InvalidParameter, E::RunNotFound],
        "cancel_run" => &[E::InvalidParameter, E::RunNotFound, E::RunNotCancellable],
        "delete_run" => &[E::InvalidParameter, E::RunNotFound, E::RunActive],
        "get_artifact" => &[E::InvalidParameter, E::RunNotFound, E::ArtifactNotFound, E::RouteNotFound, E::RangeNotSatisfiable],
        "get_bundle" => &[E::InvalidParameter, E::RunNotFound, E::RunNotFinished],
        "get_report" => &[E::InvalidParameter, E::RunNotFound, E::NotAcceptable, E::RunNotFinished, E::ReportUnavailable],
        "list_tables" => &[E::InvalidParameter, E::RunNotFound, E::RunNotFinished, E::ReportUnavailable],
        "get_table" => &[
            E::InvalidParameter,
            E::RunNotFound,
            E::TableNotFound,
            E::RouteNotFound,
            E::NotAcceptable,
            E::RunNotFinished,
            E::ReportUnavailable,
        ],
        "diff_runs" => &[E::InvalidParameter, E::RunNotFound, E::NotAcceptable, E::RunNotFinished, E::ReportUnavailable],
        "get_cost" => &[
            E::InvalidParameter,
            E::ModelNotFound,
            E::InputsNotFound,
            E::NotAcceptable,
            E::InputsUnfit,
            E::InvalidRequest,
            E::InputsInvalid,
        ],
        "submit_alignment" => &[
            E::MalformedBody,
            E::InvalidParameter,
            E::RunNotFound,
            E::AlignmentNotFound,
            E::BodyTimeout,
            E::RequestContradictory,
            E::IdempotencyKeyReused,
            E::RunNotFinished,
            E::CaptureUnavailable,
            E::ReportUnavailable,
            E::BodyTooLarge,
            E::UnsupportedMediaType,
            E::InvalidRequest,
            E::TooManyQueued,
            E::DiskQuota,
        ],
        "list_alignments" => &[E::InvalidParameter],
        "get_alignment" | "follow_alignment" | "list_alignment_artifacts" => &[E::InvalidParameter, E::AlignmentNotFound],
        "delete_alignment" => &[E::InvalidParameter, E::AlignmentNotFound, E::AlignmentActive],
        "get_alignment_report" => {
            &[E::InvalidParameter, E::AlignmentNotFound, E::NotAcceptable, E::AlignmentNotFinished, E::ReportUnavailable]
        }
        "get_alignment_artifact" => {
            &[E::InvalidParameter, E::AlignmentNotFound, E::ArtifactNotFound, E::RouteNotFound, E::RangeNotSatisfiable]
        }
        "readyz" | "doctor" => &[E::Unavailable],
        _ => &[],
    }
}

/// The contract as JSON.
pub fn contract() -> &'static Value {
    static CONTRACT: LazyLock<Value> = LazyLock::new(|| {
        let mut declared = Declared::openapi();
        declared.merge(routes().into_openapi());
        let mut contract = serde_json::to_value(&declared).expect("a contract is plain data");
        if let Some(paths) = contract["paths"].as_object_mut() {
            // The router's word for a parameter that may hold slashes is not the contract's.
            *paths = std::mem::take(paths).into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
        }
        for (method, path, operation) in operations(&mut contract) {
            complete(operation, access::needs(&method, &path).is_some());
        }
        contract["components"]["securitySchemes"]["token"] = json!({
            "type": "http", "scheme": "bearer",
            "description": "A token of `llmprof token create`. A service that is reached from its own host alone asks for none until one is made.",
        });
        // What the derive cannot say: the text in an event's `data` is JSON, and of which kind.
        contract["components"]["schemas"]["StreamedEvent"]["properties"]["data"]["contentSchema"] =
            json!({ "$ref": "#/components/schemas/RunEvent" });
        if let Some(schemas) = contract["components"]["schemas"].as_object_mut() {
            declare_changes(schemas);
            declare_submissions(schemas);
            declare_subjects(schemas);
        }
        contract
    });
    &CONTRACT
}

/// The contract as `contracts/profile.yaml` holds it.
pub fn contract_yaml() -> String {
    yaml_serde::to_string(contract()).expect("a contract is plain data")
}

/// The settings of the passes, each a schema.
const SETTINGS: [&str; 5] = ["Profiling", "NsysSettings", "NcuSettings", "GemmLogSettings", "NvmlSettings"];

/// A request changes any part of the settings that a run has: the same schemas, with nothing required.
fn declare_changes(schemas: &mut Map<String, Value>) {
    if let Some(nsys) = schemas.get_mut("NsysSettings") {
        for list in ["trace", "trace_on_cpu"] {
            nsys["properties"][list]["contains"] = json!({ "const": "nvtx" });
        }
    }
    for name in SETTINGS {
        let mut change = schemas.get(name).cloned().unwrap_or_default();
        change.as_object_mut().map(|change| change.remove("required"));
        refer_to_changes(&mut change);
        schemas.insert(format!("{name}Change"), change);
    }
    for request in ["SubmitModel", "SubmitCommand"] {
        if let Some(request) = schemas.get_mut(request) {
            refer_to_changes(request);
        }
    }
}

/// What is required of several fields together, and of the texts in a list.
fn declare_submissions(schemas: &mut Map<String, Value>) {
    if let Some(call) = schemas.get_mut("CommandCall") {
        call["properties"]["params"]["propertyNames"] = json!({ "pattern": "^[a-z][a-z0-9_]{0,31}$" });
        call["properties"]["params"]["maxProperties"] = json!(MOST_PARAMS);
    }
    // A text is no number, but an integer is: one of several would be two of them.
    schemas.insert(
        "ParamValue".into(),
        json!({
            "description": "A value as its parameter takes it.", "type": ["boolean", "number", "string"],
            "maxLength": MOST_TEXT, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$",
        }),
    );
    if let Some(spec) = schemas.get_mut("AlignmentSpec") {
        for list in ["within", "without"] {
            spec["properties"][list]["items"] = json!({ "type": "string", "minLength": 1, "maxLength": 500 });
        }
        spec["properties"]["kernels"]["items"] =
            json!({ "type": "string", "minLength": 1, "maxLength": 500, "pattern": "[^*@ ]" });
    }
}

/// Puts each kind of subject into its own schema: generators of clients read a `oneOf` of named objects, and no `allOf` inside it.
fn declare_subjects(schemas: &mut Map<String, Value>) {
    let Some(mut subject) = schemas.remove("Subject") else { return };
    let mut mapping = Map::new();
    for variant in subject["oneOf"].as_array_mut().into_iter().flatten() {
        let (reference, kind) = (variant["allOf"][0].clone(), variant["allOf"][1]["properties"]["kind"].clone());
        let to = reference["$ref"].as_str().unwrap_or_default().to_owned();
        let name = to.rsplit('/').next().unwrap_or_default();
        if let (Some(schema), Some(word)) = (schemas.get_mut(name), kind["enum"][0].as_str()) {
            schema["properties"]["kind"] = kind.clone();
            if let Some(required) = schema["required"].as_array_mut() {
                required.insert(0, "kind".into());
            }
            mapping.insert(word.into(), to.clone().into());
        }
        *variant = reference;
    }
    subject["discriminator"] = json!({ "propertyName": "kind", "mapping": mapping });
    schemas.insert("Subject".into(), subject);
}

fn refer_to_changes(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(refer_to_changes),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(to) if key == "$ref" && SETTINGS.iter().any(|name| to.ends_with(&format!("/{name}"))) => {
                        to.push_str("Change");
                    }
                    _ => refer_to_changes(value),
                }
            }
        }
        _ => {}
    }
}

/// Every operation with its method and path.
fn operations(contract: &mut Value) -> Vec<(Method, String, &mut Value)> {
    let mut found = Vec::new();
    for (path, item) in contract["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            if let (Ok(method), true) = (method.to_uppercase().parse(), operation.is_object()) {
                found.push((method, path.clone(), operation));
            }
        }
    }
    found
}

/// Adds examples, errors and what must be shown to one operation.
fn complete(operation: &mut Value, guarded: bool) {
    let name = operation["operationId"].as_str().unwrap_or_default().to_owned();
    if let Some(content) = operation.pointer_mut("/requestBody/content").and_then(Value::as_object_mut) {
        for (kind, media) in content {
            media["examples"] = examples::request(&name, kind);
        }
    }
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(kind) = parameter.pointer_mut("/schema/type") {
            forbid_null(kind);
        }
    }
    let everywhere: &[ErrorCode] = if guarded {
        operation["security"] = json!([{}, { "token": [] }]);
        &[
            ErrorCode::MethodNotAllowed,
            ErrorCode::Internal,
            ErrorCode::Unauthenticated,
            ErrorCode::Forbidden,
            ErrorCode::CrossOrigin,
            ErrorCode::MisdirectedRequest,
            ErrorCode::RateLimited,
            ErrorCode::Overloaded,
        ]
    } else {
        &[ErrorCode::MethodNotAllowed, ErrorCode::Internal]
    };
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, response) in responses.iter_mut() {
        for (kind, media) in response.get_mut("content").and_then(Value::as_object_mut).into_iter().flatten() {
            media["example"] = examples::response(&name, status, kind);
        }
    }
    for code in errors(&name).iter().chain(everywhere) {
        let status = code.status();
        let response = responses.entry(status.as_str()).or_insert_with(|| {
            json!({
                "description": status.canonical_reason().unwrap_or("Error"),
                "content": { "application/json": { "schema": { "$ref": "#/components/schemas/ErrorBody" }, "examples": {} } },
            })
        });
        let detail = ErrorDetail {
            code: *code,
            message: code.example().into(),
            request_id: "019a9f3e-7b2a-7d31-8f64-0d6f1b2c3e4a".into(),
        };
        response["content"]["application/json"]["examples"][code.as_str()] = json!({ "value": ErrorBody { error: detail } });
    }
}

/// A parameter may be left out, but what is sent in it is a text: there is no null to send.
fn forbid_null(kind: &mut Value) {
    let kinds = kind.as_array().map(|kinds| kinds.iter().filter(|kind| *kind != "null").cloned().collect::<Vec<_>>());
    if let Some([only]) = kinds.as_deref() {
        *kind = only.clone();
    }
}

/// The contract, as JSON
#[utoipa::path(get, path = "/openapi.json", tag = "service", operation_id = "openapi_json",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json")))]
pub async fn openapi_json() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], contract().to_string())
}

/// The contract, as YAML
#[utoipa::path(get, path = "/openapi.yaml", tag = "service", operation_id = "openapi_yaml",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/yaml")))]
pub async fn openapi_yaml() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/yaml")], contract_yaml())
}
