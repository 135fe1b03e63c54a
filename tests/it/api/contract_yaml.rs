//! YAML as it is written: the contract in YAML 1.1 and 1.2, and any text of a configuration. The
//! tests with PyYAML are skipped without it, unless LLMPROF_REQUIRE_PYYAML=1.

use std::{fs, path::Path, process::Command};

use llmprof_core::domain::{mode::Mode, subject::RunSpec, yaml::yaml};
use llmprof_service::http;
use regex::Regex;
use serde_json::{Value, json};

/// Plain scalars that YAML 1.1 reads as booleans, null, numbers, times and special keys
/// (yaml.org/type), and those that YAML 1.2 adds.
const NOT_TEXT: [&str; 12] = [
    r"(?i)y|n|yes|no|true|false|on|off",
    r"(?i)~|null|",
    r"[-+]?0b[0-1_]+",
    r"[-+]?0[0-7_]+|0o[0-7]+",
    r"[-+]?(0|[1-9][0-9_]*)|[-+]?[0-9]+",
    r"[-+]?0x[0-9a-fA-F_]+",
    r"[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+",
    r"[-+]?([0-9][0-9_]*)?\.[0-9._]*([eE][-+]?[0-9]+)?|[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?",
    r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*",
    r"(?i)[-+]?\.inf|\.nan",
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?",
    r"=|<<",
];

/// The plain scalars of a written contract, keys and values.
fn plain_scalars(text: &str) -> Vec<String> {
    let quoted = Regex::new(r#"'(?:[^']|'')*'|"(?:[^"\\]|\\.)*""#).unwrap();
    let field = Regex::new(r"^(?:(?P<key>[^ ].*?):(?: |$))?(?P<value>.*)$").unwrap();
    let (mut scalars, mut literal, mut brackets) = (Vec::new(), None, 0);
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if literal.is_some_and(|of| line.is_empty() || indent > of) {
            continue;
        }
        let line = quoted.replace_all(line.trim_start(), "\u{1}");
        let content = line.trim_start_matches("- ");
        let is_block = content.ends_with(": |-") || content.ends_with(": |");
        literal = (is_block || content.ends_with(": |+")).then_some(indent);
        let parts = field.captures(content).unwrap();
        let is_flow = |text: &str| text.starts_with(['[', '{']);
        let (key, value) = match parts.name("key") {
            Some(key) if brackets == 0 && !is_flow(content) => {
                (Some(key.as_str()), &parts["value"])
            }
            _ => (None, content),
        };
        scalars.extend(key.map(str::to_owned));
        if literal.is_some() || value.is_empty() && key.is_some() {
            continue;
        }
        if brackets == 0 && !is_flow(value) {
            scalars.push(value.to_owned());
            continue;
        }
        brackets += value.matches(['[', '{']).count();
        brackets -= value.matches([']', '}']).count();
        let tokens = value.split([',', '[', ']', '{', '}']).flat_map(|it| it.split(": "));
        scalars.extend(tokens.map(|it| it.trim().to_owned()).filter(|it| !it.is_empty()));
    }
    scalars.retain(|it| it != "\u{1}");
    scalars
}

fn kept() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("contracts/profile.yaml");
    fs::read_to_string(path).unwrap()
}

/// The plain scalars that a version of YAML does not read as text or as a literal of JSON.
fn misread(text: &str) -> Vec<String> {
    let not_text: Vec<Regex> =
        NOT_TEXT.iter().map(|it| Regex::new(&format!("^(?:{it})$")).unwrap()).collect();
    // YAML 1.1 reads a number with an exponent only with a point and a sign.
    let number = Regex::new(r"^-?(0|[1-9][0-9]*)(\.[0-9]+(e[-+][0-9]+)?)?$").unwrap();
    let is_json =
        |it: &String| matches!(it.as_str(), "true" | "false" | "null") || number.is_match(it);
    let mut found = plain_scalars(text);
    found.retain(|it| !is_json(it) && not_text.iter().any(|of| of.is_match(it)));
    found
}

#[test]
fn every_plain_scalar_of_the_contract_is_text_or_a_literal_of_json() {
    let text = kept();
    assert_eq!(misread(&text), Vec::<String>::new());
    let scalars = plain_scalars(&text);
    for known in ["openapi", "/runs", "get", "list_runs", "queued", "integer", "maximum", "200"] {
        assert!(scalars.iter().any(|it| it == known), "{known}");
    }
    let lines = [
        "on:",
        "a: off",
        "- 2026-11-01",
        "- { a: 1:30, b: x }",
        "- a: 2026-11-20T09:00:00Z",
        "enum: [a, no]",
        "a: 0o17",
        "a: 1e3",
        "a: 1_000",
        "a: .inf",
        "n: {}",
        "a: { y: 1 }",
        "a: ~",
    ];
    for line in lines {
        assert_eq!(misread(line).len(), 1, "{line}: {:?}", plain_scalars(line));
    }
}

#[test]
fn files_are_strings_of_the_format_binary() {
    let mut files = 0;
    let contract = http::contract();
    for (path, item) in contract["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let answers = operation["responses"].as_object().into_iter().flatten();
            let bodies = answers.map(|it| it.1).chain([&operation["requestBody"]]);
            let contents = bodies.filter_map(|it| it["content"].as_object()).flatten();
            for (kind, content) in contents {
                let is_form = kind == "multipart/form-data";
                let has_text =
                    ["application/json", "application/yaml", "application/openmetrics-text"];
                if is_form || kind.starts_with("text/") || has_text.contains(&kind.as_str()) {
                    continue;
                }
                let schema = &content["schema"];
                let target = schema["$ref"].as_str().map(|it| it.trim_start_matches('#'));
                let schema = target.map_or(Some(schema), |it| contract.pointer(it)).unwrap();
                let found = (&schema["type"], &schema["format"]);
                assert_eq!(found, (&"string".into(), &"binary".into()), "{path}: {kind}");
                files += 1;
            }
        }
    }
    assert!(files >= 10, "{files}");
}

/// Python with PyYAML; `None` if it is missing and not required.
fn python() -> Option<&'static str> {
    let has_yaml = Command::new("python3").args(["-c", "import yaml"]).output();
    let is_installed = has_yaml.is_ok_and(|it| it.status.success());
    let required = std::env::var_os("LLMPROF_REQUIRE_PYYAML").is_some_and(|value| value == "1");
    assert!(is_installed || !required, "PyYAML is required here and not installed");
    is_installed.then_some("python3")
}

/// The differences that PyYAML finds between a document in YAML and in JSON; `None` without it.
fn differences(yaml: &str, json: &Value) -> Option<(Option<i32>, String)> {
    let python = python()?;
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/compare_contract.py");
    let paths = ["written.yaml", "written.json"].map(|name| folder.path().join(name));
    fs::write(&paths[0], yaml).unwrap();
    fs::write(&paths[1], json.to_string()).unwrap();
    let output = Command::new(python).arg(&script).args(&paths).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    Some((output.status.code(), text))
}

#[test]
fn pyyaml_reads_the_document_that_the_service_serves_as_json() {
    let Some(same) = differences(&kept(), http::contract()) else {
        eprintln!("skipped: PyYAML is not installed");
        return;
    };
    assert_eq!(same, (Some(0), String::new()));
    // The comparison finds a key, a value and a number that YAML 1.1 reads differently.
    let plain = kept().replace("'on'", "on").replace("'3.1.0'", "3.1");
    let (code, text) = differences(&plain, http::contract()).unwrap();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("/openapi: ") && text.contains("/properties: "), "{text}");
}

/// Texts that YAML 1.1 reads as something else if they are not quoted, in each case of letters.
fn yaml_1_1_words() -> Vec<String> {
    let words = "y n yes no true false on off null ~ 0 7 -1 +1 1_000 0b10 017 0o17 0x1f 1:30 \
                 190:20:30.15 1.5 .5 5. 1e3 1e-6 1.0e+3 .inf -.inf +.inf .nan 2026-11-01 \
                 2026-11-20T09:00:00.000Z = << - ? : #x &a *a !a | > %a @a `a ' \" [a] {a}";
    let with_spaces = ["", "a: b", "a #b", "a, b", " a", "a ", "2026-1-1 1:2:3", "a\nb", "\t"];
    let in_cases = |word: &str| {
        let (first, rest) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
        let title = format!("{}{rest}", first.to_uppercase());
        [word.to_owned(), word.to_uppercase(), title]
    };
    words.split(' ').chain(with_spaces).flat_map(in_cases).collect()
}

#[test]
fn pyyaml_reads_every_text_of_a_configuration_as_the_same_text() {
    let mut spec = RunSpec::tiny(Mode::LIGHT, 0, &[]);
    spec.common.labels = yaml_1_1_words();
    let mut configs = vec![Value::from(spec.submission().unwrap())];
    spec.common.labels.clear();
    for word in yaml_1_1_words() {
        spec.common.revision = Some(word.clone());
        let mut config = spec.submission().unwrap();
        config.insert("params".into(), json!({ "a": word, "list": [word], "float": 1e-6 }));
        if !word.contains(['\n', '\t']) {
            config.insert(word.clone(), json!({ "flow": { word: 1 } }));
        }
        configs.push(config.into());
    }
    let document = json!({ "configs": configs });
    match differences(&yaml(&document), &document) {
        Some(found) => assert_eq!(found, (Some(0), String::new())),
        None => eprintln!("skipped: PyYAML is not installed"),
    }
}
