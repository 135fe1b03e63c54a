//! The contract: the declarations of the handlers, completed with shared responses, security and
//! schemas that the derives cannot express. `contracts/profile.yaml` is a copy of it.

use serde_json::{Map, Value, json};
use utoipa::{OpenApi, openapi::OpenApi as Declarations};

use llmprof_core::domain::{
    command::{MAX_PARAMS, MAX_TEXT},
    sweep::MODEL_AXES,
};

use super::error::{ErrorBody, responses};
use crate::http::api::{events::RunEvent, sweeps::submit::MAX_AXES, tables::TableFilter};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "llmprof",
        description = "GPU profiling for LLM inference as a service: submit a run, follow it, \
                       read its report."
    ),
    components(schemas(ErrorBody, RunEvent, TableFilter)),
    tags(
        (name = "runs", description = "Submit, follow, list, cancel and delete runs"),
        (name = "artifacts", description = "Reports, tables and files of a run"),
        (name = "alignments",
            description = "Comparison of a layer with the same layer inside the whole model"),
        (name = "models", description = "Subjects that can be profiled"),
        (name = "service", description = "The service itself"),
    )
)]
struct Base;

/// Completes the declarations of the handlers.
pub fn complete(handlers: Declarations) -> Value {
    let mut declared = Base::openapi();
    declared.merge(handlers);
    let mut contract = serde_json::to_value(&declared).expect("a contract is plain data");
    if let Some(paths) = contract["paths"].as_object_mut() {
        // The router marks a parameter that may contain slashes by `*`; OpenAPI does not.
        *paths = std::mem::take(paths)
            .into_iter()
            .map(|(path, item)| (path.replace("{*", "{"), item))
            .collect();
    }
    for operation in operations(&mut contract) {
        complete_operation(operation);
    }
    let components = &mut contract["components"];
    components["responses"] = json!(responses::components());
    components["securitySchemes"]["token"] = json!({
        "type": "http", "scheme": "bearer",
        "description": "A token of `llmprof token create`. A service on a loopback address needs \
                        none until the first is created.",
    });
    // The text in an event's `data` is JSON of this schema.
    components["schemas"]["StreamedEvent"]["properties"]["data"]["contentSchema"] =
        json!({ "$ref": "#/components/schemas/RunEvent" });
    if let Some(schemas) = components["schemas"].as_object_mut() {
        declare_changes(schemas);
        declare_submissions(schemas);
        declare_subjects(schemas);
    }
    contract
}

/// Schemas of the passes' settings.
const SETTINGS: [&str; 7] = [
    "Profiling",
    "RunnerSettings",
    "NsysSettings",
    "GpuMetricsSettings",
    "NcuSettings",
    "GemmLogSettings",
    "NvmlSettings",
];

/// Declares changes of settings: the same schemas without required fields.
fn declare_changes(schemas: &mut Map<String, Value>) {
    if let Some(nsys) = schemas.get_mut("NsysSettings") {
        for list in ["trace", "trace_on_cpu"] {
            nsys["properties"][list]["contains"] = json!({ "const": "nvtx" });
        }
    }
    if let Some(runner) = schemas.get_mut("RunnerSettings") {
        for list in ["operators", "operator_ranges", "predictions"] {
            runner["properties"][list]["uniqueItems"] = json!(true);
        }
    }
    if let Some(metrics) = schemas.get_mut("GpuMetricsSettings") {
        let rates = &mut metrics["properties"]["rates_hz"];
        rates["uniqueItems"] = json!(true);
        (rates["items"]["minimum"], rates["items"]["maximum"]) = (json!(10), json!(200_000));
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

/// Declares bounds that attributes cannot express: names of parameters, and items of lists.
fn declare_submissions(schemas: &mut Map<String, Value>) {
    for name in ["CommandCall", "StartSession"] {
        let Some(call) = schemas.get_mut(name) else { continue };
        call["properties"]["params"]["propertyNames"] =
            json!({ "pattern": "^[a-z][a-z0-9_]{0,31}$" });
        call["properties"]["params"]["maxProperties"] = json!(MAX_PARAMS);
    }
    if let Some(sweep) = schemas.get_mut("SubmitSweep") {
        let axes = &mut sweep["properties"]["axes"];
        axes["minProperties"] = json!(1);
        axes["maxProperties"] = json!(MAX_AXES);
        let models: Vec<&str> = MODEL_AXES.iter().map(|(axis, _)| *axis).collect();
        let names = format!(r"^({}|params\.[a-z][a-z0-9_]{{0,31}})$", models.join("|"));
        axes["propertyNames"] = json!({ "pattern": names });
    }
    if let Some(axis) = schemas.get_mut("AxisValues") {
        axis["oneOf"][0]["minItems"] = json!(1);
    }
    // Not `oneOf`: an integer would match both the integer and the number.
    schemas.insert(
        "ParamValue".into(),
        json!({
            "description": "The value of a parameter.",
            "type": ["boolean", "number", "string"], "maxLength": MAX_TEXT,
            "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$",
        }),
    );
    if let Some(spec) = schemas.get_mut("AlignmentSpec") {
        for list in ["include_ranges", "exclude_ranges"] {
            spec["properties"][list]["items"] =
                json!({ "type": "string", "minLength": 1, "maxLength": 500 });
        }
        spec["properties"]["kernels"]["items"] =
            json!({ "type": "string", "minLength": 1, "maxLength": 500, "pattern": "[^*@ ]" });
    }
}

/// Moves each kind of subject into its own schema: client generators support `oneOf` of named
/// objects, but not `allOf` inside it.
fn declare_subjects(schemas: &mut Map<String, Value>) {
    let Some(mut subject) = schemas.remove("Subject") else { return };
    let mut mapping = Map::new();
    for variant in subject["oneOf"].as_array_mut().into_iter().flatten() {
        let (reference, kind) =
            (variant["allOf"][0].clone(), variant["allOf"][1]["properties"]["kind"].clone());
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
                    Value::String(to)
                        if key == "$ref"
                            && SETTINGS.iter().any(|name| to.ends_with(&format!("/{name}"))) =>
                    {
                        to.push_str("Change");
                    }
                    _ => refer_to_changes(value),
                }
            }
        }
        _ => {}
    }
}

/// Every operation.
fn operations(contract: &mut Value) -> impl Iterator<Item = &mut Value> {
    let items = contract["paths"].as_object_mut().into_iter().flatten();
    let parts = items.flat_map(|(_, item)| item.as_object_mut().into_iter().flatten());
    parts.map(|(_, operation)| operation).filter(|operation| operation["operationId"].is_string())
}

/// True for a media type whose content is text; any other content is bytes.
fn is_text(media_type: &str) -> bool {
    let texts = ["application/json", "application/yaml", "application/openmetrics-text"];
    media_type.starts_with("text/") || texts.contains(&media_type)
}

/// Adds the security of a guarded operation and the schema of files, and removes `null` from
/// parameters.
fn complete_operation(operation: &mut Value) {
    if operation["responses"]["401"].is_object() {
        operation["security"] = json!([{}, { "token": [] }]);
    }
    let responses = operation["responses"].as_object_mut().into_iter().flatten();
    let contents = responses.filter_map(|(_, it)| it.get_mut("content")?.as_object_mut()).flatten();
    for (_, content) in contents.filter(|(media_type, _)| !is_text(media_type)) {
        content["schema"] = json!({ "type": "string", "format": "binary" });
    }
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        if let Some(kind) = parameter.pointer_mut("/schema/type") {
            remove_null(kind);
        }
        // What is absent is false.
        if let Some(fields) = parameter.as_object_mut() {
            fields.retain(|name, value| name != "required" || *value != false);
        }
    }
}

/// Removes `null` from the type of an optional parameter, which is omitted rather than null.
fn remove_null(kind: &mut Value) {
    let others = kind
        .as_array()
        .map(|kinds| kinds.iter().filter(|kind| *kind != "null").cloned().collect::<Vec<_>>());
    if let Some([only]) = others.as_deref() {
        *kind = only.clone();
    }
}
