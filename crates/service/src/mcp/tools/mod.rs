//! The catalog of tools, and the call of one by its name.
//!
//! A tool is a file: its arguments, its description for agents, and the calls of the API that it
//! makes.

mod cancel_run;
mod compare_runs;
mod describe;
mod figures;
mod find_runs;
mod ledger;
mod series;
mod source_of_figure;
mod submit_run;
mod table;
mod wait_for_run;

use rmcp::{
    model::{Tool, ToolAnnotations},
    schemars::JsonSchema,
};
use serde_json::{Map, Value, json};

use super::{
    answer::ToolAnswer,
    arguments::{parse, schema},
    service_api::{ApiRefusal, ServiceApi},
};

/// Headline figures, by their names in the API.
const FIGURES: [&str; 7] = ["ttft", "tpot", "wall", "tokens_per_s", "gpu_busy", "mfu", "energy"];

/// Effect of a tool on the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    Adds,
    /// Ends something; a second call changes nothing more.
    Ends,
}

/// All tools, in the order in which an agent needs them.
pub fn all() -> Vec<Tool> {
    vec![
        describe::tool(),
        submit_run::tool(),
        wait_for_run::tool(),
        cancel_run::tool(),
        find_runs::tool(),
        ledger::tool(),
        table::tool(),
        compare_runs::tool(),
        series::tool(),
        source_of_figure::tool(),
    ]
}

/// Calls a tool; `None` for an unknown name.
pub async fn call(
    api: &impl ServiceApi,
    name: &str,
    arguments: Map<String, Value>,
) -> Option<Result<ToolAnswer, ApiRefusal>> {
    macro_rules! by_name {
        ($($tool:ident),+) => {
            match name {
                $(stringify!($tool) => match parse(arguments) {
                    Ok(arguments) => $tool::call(api, arguments).await,
                    Err(refusal) => Err(refusal),
                },)+
                _ => return None,
            }
        };
    }
    Some(by_name!(
        describe,
        submit_run,
        wait_for_run,
        cancel_run,
        find_runs,
        ledger,
        table,
        compare_runs,
        series,
        source_of_figure
    ))
}

/// A tool with arguments `T`.
fn of<T: JsonSchema>(
    name: &'static str,
    title: &str,
    description: &'static str,
    effect: Effect,
) -> Tool {
    let hints = ToolAnnotations::with_title(title)
        .read_only(effect == Effect::Reads)
        .destructive(effect == Effect::Ends)
        .idempotent(effect != Effect::Adds)
        .open_world(false);
    Tool::new(name, description, schema::<T>()).with_title(title).with_annotations(hints)
}

/// The addresses of a run that a person can open, relative to the service.
fn links(run: &str) -> Value {
    json!({
        "page": format!("/ui/runs/{run}"),
        "report": format!("/runs/{run}/report"),
        "tables": format!("/runs/{run}/tables"),
        "files": format!("/runs/{run}/artifacts"),
    })
}

/// An object of those fields of `value` that are known.
fn known(value: &Value, names: &[&str]) -> Value {
    let field = |name: &&str| Some(((*name).to_owned(), value.get(*name)?.clone()));
    let fields = names.iter().filter_map(field).filter(|(_, value)| !is_empty(value));
    Value::Object(fields.collect())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The elements of a list in an answer of the API.
fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The text of a field; empty without it.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::service_api::ApiCall;

    /// A service without an answer.
    struct Silent;

    impl ServiceApi for Silent {
        async fn call(&self, call: ApiCall) -> Result<Vec<u8>, ApiRefusal> {
            Err(ApiRefusal::new(format!("no answer to {}", call.target())))
        }
    }

    #[tokio::test]
    async fn at_most_ten_tools_are_listed_and_each_can_be_called() {
        let tools = all();
        assert!(tools.len() <= 10);
        for tool in &tools {
            assert!(call(&Silent, &tool.name, Map::new()).await.is_some(), "{}", tool.name);
            assert!(tool.description.as_ref().is_some_and(|it| it.len() > 80), "{}", tool.name);
        }
        assert!(call(&Silent, "anything", Map::new()).await.is_none());
        let text = serde_json::to_string(&tools).unwrap();
        assert!(text.len() < 16 << 10, "the list fits a context: {}", text.len());
        assert!(!text.contains("$ref"), "{text}");
    }

    #[test]
    fn every_headline_figure_is_shown() {
        use llmprof_core::domain::headline::FigureName;
        assert_eq!(FigureName::ALL.iter().map(|it| it.as_str()).collect::<Vec<_>>(), FIGURES);
    }

    #[test]
    fn tools_that_change_something_say_so() {
        for tool in all() {
            let hints = tool.annotations.unwrap();
            let reads = !matches!(tool.name.as_ref(), "submit_run" | "cancel_run");
            assert_eq!(hints.read_only_hint, Some(reads), "{}", tool.name);
            assert_eq!(hints.destructive_hint, Some(tool.name == "cancel_run"), "{}", tool.name);
        }
    }
}
