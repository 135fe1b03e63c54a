//! Forms of commands: their fields, values and refusals.

use super::*;
use crate::config;

fn command() -> CommandTarget {
    let source = r#"
        description = "a"
        program = "a"
        args = ["{tokens}", "{rate}", "{text}", "{fast}", "{kind}"]
        [params.tokens]
        type = "int"
        description = "a"
        min = 1
        max = 9
        [params.rate]
        type = "float"
        description = "a"
        min = 0.0
        max = 9.0
        [params.text]
        type = "string"
        description = "a"
        pattern = ".*"
        max_length = 9
        [params.fast]
        type = "flag"
        description = "a"
        on = "--fast"
        [params.kind]
        type = "enum"
        description = "a"
        values = ["x", "y"]
    "#;
    toml::from_str(source).unwrap()
}

fn sent(pairs: &[(&str, &str)]) -> Value {
    let fields = pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    call("go", &command(), &fields.collect())
}

#[test]
fn fields_become_values_of_their_types_and_empty_ones_defaults() {
    let fields = [
        ("param.tokens", " 4 "),
        ("param.rate", "2.5"),
        ("param.text", " a "),
        ("param.fast", "true"),
        ("param.kind", ""),
        ("gpus", "2"),
        ("session", ""),
    ];
    let params = json!({ "tokens": 4, "rate": 2.5, "text": " a ", "fast": true });
    assert_eq!(sent(&fields), json!({ "command": "go", "params": params, "gpus": 2 }));
}

#[test]
fn a_field_without_a_parameter_is_refused() {
    let fields = |name: &str| vec![(name.to_owned(), "1".to_owned())];
    assert!(check(&command(), &fields("param.rate")).is_ok());
    let refused = check(&command(), &fields("param.other")).unwrap_err();
    assert!(refused.message().starts_with("unknown field `param.other`;"));
}

#[test]
fn text_of_another_type_reaches_the_check_of_the_api() {
    let sent = sent(&[("param.tokens", "many"), ("param.rate", "fast"), ("param.fast", "no")]);
    assert_eq!(sent["params"], json!({ "tokens": "many", "rate": "fast", "fast": "no" }));
}

#[test]
fn a_call_fills_the_form_that_submits_it() {
    for (name, command) in config::example_targets().unwrap() {
        let params = command.params.iter();
        let params = params.filter_map(|(name, it)| Some((name.clone(), it.default()?)));
        let first = CommandCall {
            command: name.clone(),
            params: params.collect(),
            gpus: Some(1),
            session: None,
        };
        let again = call(&name, &command, &fields_of(&first));
        assert_eq!(again, serde_json::to_value(&first).unwrap());
    }
}
