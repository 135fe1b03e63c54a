//! Arguments of tools: their schema, and their values within its bounds.

use llmprof_core::domain::plain_words::plain_words;
use rmcp::schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::service_api::ApiRefusal;

/// The schema of a tool's arguments, without references.
pub fn schema<T: JsonSchema>() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|it| it.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    schema.remove("description");
    schema.as_object().cloned().unwrap_or_default()
}

/// Reads arguments; an error names the argument.
pub fn parse<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, ApiRefusal> {
    serde_path_to_error::deserialize(Value::from(arguments))
        .map_err(|error| invalid(plain_words(&error.to_string())))
}

/// The refusal of invalid arguments.
pub fn invalid(message: impl std::fmt::Display) -> ApiRefusal {
    let code = Some("invalid_arguments".to_owned());
    ApiRefusal { code, message: message.to_string() }
}

/// The path of a run, of an id that an agent gave.
pub fn run_path(id: &str) -> Result<String, ApiRefusal> {
    match id.parse::<uuid::Uuid>() {
        Ok(id) => Ok(format!("/runs/{id}")),
        Err(_) => {
            Err(invalid(format!("run {id:.60?} is not an id; find_runs lists the ids of runs")))
        }
    }
}

#[cfg(test)]
mod tests {
    use rmcp::schemars;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Example {
        /// Id of the run
        #[expect(dead_code, reason = "read by the deserializer")]
        run_id: String,
        #[serde(default)]
        #[schemars(length(max = 4))]
        labels: Vec<String>,
    }

    #[test]
    fn a_schema_lists_arguments_with_bounds_and_refuses_others() {
        let schema = schema::<Example>();
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"]["run_id"]["description"], "Id of the run");
        assert_eq!(schema["properties"]["labels"]["maxItems"], 4);
        assert_eq!(schema["required"], json!(["run_id"]));
    }

    #[test]
    fn an_invalid_argument_is_named_without_names_of_types() {
        let error = |value: Value| {
            let Value::Object(arguments) = value else { panic!("{value}") };
            parse::<Example>(arguments).unwrap_err().to_string()
        };
        let unknown = error(json!({ "run_id": "a", "run": 1 }));
        assert!(
            unknown.contains("unknown field `run`; expected `run_id` or `labels`"),
            "{unknown}"
        );
        let kind = error(json!({ "run_id": "a", "labels": 3 }));
        assert!(kind.ends_with("invalid labels 3; expected a list"), "{kind}");
        assert!(run_path("../models").is_err());
        let read: Example = parse(json!({"run_id": "a"}).as_object().unwrap().clone()).unwrap();
        assert!(read.labels.is_empty());
    }
}
