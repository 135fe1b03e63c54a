//! Tests of the writer: any document is read back as it was, and plain text is text in YAML 1.1.

use proptest::{
    collection::{btree_map, vec},
    prelude::*,
};

use super::*;

/// Text that a version of YAML reads as something else, or that needs quotes.
const MISREAD: [&str; 63] = [
    "on",
    "On",
    "OFF",
    "off",
    "yes",
    "No",
    "y",
    "N",
    "true",
    "FALSE",
    "null",
    "NULL",
    "~",
    "",
    "0",
    "-1",
    "+1",
    "1_000",
    "0o17",
    "017",
    "0x1F",
    "0b10",
    "1:30",
    "190:20:30.15",
    "1.5",
    ".5",
    "5.",
    "1e3",
    "1.0e+3",
    "-.inf",
    ".Inf",
    ".nan",
    "2026-11-01",
    "2026-11-20T09:00:00.000Z",
    "=",
    "<<",
    "-",
    "- a",
    "? a",
    ": a",
    "a: b",
    "a:",
    "a #b",
    "#a",
    "&a",
    "*a",
    "!a",
    "|",
    ">",
    "%a",
    "@a",
    "`a`",
    "'a'",
    "\"a\"",
    "[a]",
    "{a}",
    "a, b",
    "a?b",
    " a",
    "a ",
    "a\u{85}b",
    "a\u{2028}b",
    "\u{feff}a",
];

/// Text of several lines, with the endings that a block can lose.
const LINES: [&str; 10] =
    ["a\nb", "a\nb\n", "a\nb\n\n", "\na", " a\nb", "a \nb", "a\n\nb", "\n", "a\r\nb", "a\n\tb"];

#[track_caller]
fn assert_read_back(document: &Value) {
    let text = yaml(document);
    let read: Value = yaml_serde::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(read, *document, "{text}");
}

#[test]
fn text_that_a_version_misreads_is_quoted_as_a_value_as_a_key_and_in_brackets() {
    for text in MISREAD {
        let written = yaml(&json!({ text: 1, "a": text, "enum": [text, "b"] }));
        let is_plain = |line: &&str| {
            let starts = ["a: ", "enum: [", "- "];
            let rest = starts.iter().find_map(|start| line.strip_prefix(start)).unwrap_or(line);
            !rest.starts_with(['\'', '"']) && !matches!(*line, "enum:" | "- b")
        };
        // These two mean something only inside braces and brackets.
        let is_plain = |line: &&str| {
            let is_in_block = !line.contains('[') && !line.contains('{');
            is_plain(line) && !(is_in_block && ["a, b", "a?b"].contains(&text))
        };
        assert_eq!(written.lines().find(is_plain), None, "{text:?}: {written}");
    }
}

#[test]
fn every_misread_text_and_every_kind_of_lines_is_read_back() {
    for text in MISREAD.into_iter().chain(LINES) {
        let map = json!({ "k": text, "type": [text, "x"], "flow": { "a": text }, "item": [text] });
        assert_read_back(&map);
        assert_read_back(&json!([text, [text], { "a": text, "b": { "c": text } }]));
        if !text.contains('\n') {
            assert_read_back(&json!({ text: { text: [] , "b": {} }, "c": [{ text: 1 }] }));
        }
    }
}

#[test]
fn a_number_with_an_exponent_has_a_point_and_a_sign() {
    for (value, written) in [
        (json!(1e300), "1.0e+300\n"),
        (json!(1.5e-9), "1.5e-9\n"),
        (json!(-1e-7), "-1.0e-7\n"),
        (json!(0.25), "0.25\n"),
        (json!(u64::MAX), "18446744073709551615\n"),
        (json!(true), "true\n"),
        (json!(null), "null\n"),
        (json!({}), "{}\n"),
        (json!([]), "[]\n"),
    ] {
        assert_eq!(yaml(&value), written);
        assert_read_back(&value);
    }
}

#[test]
fn short_maps_and_lists_stand_on_one_line_of_at_most_100_columns() {
    let document = json!({
        "parameters": [{ "name": "limit", "schema": { "type": "integer", "minimum": 1 } }],
        "long": { "a": "x".repeat(60), "b": "y".repeat(60) },
        "enum": (0..30).map(|at| format!("value_{at}")).collect::<Vec<_>>(),
        "security": [{}, { "token": [] }],
        "schema": { "oneOf": [{ "$ref": "#/a" }, { "type": "null" }] },
    });
    let text = yaml(&document);
    assert!(text.starts_with(
        "parameters:\n- { name: limit, schema: { type: integer, minimum: 1 } }\nlong:\n  a: x"
    ));
    assert!(text.contains("security: [{}, { token: [] }]\n"), "{text}");
    assert!(text.contains("schema: { oneOf: [{ $ref: '#/a' }, { type: 'null' }] }\n"), "{text}");
    assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
    assert_read_back(&document);
}

/// Any document of JSON, with many texts that need quotes.
fn document() -> impl Strategy<Value = Value> {
    let text = || {
        prop_oneof![
            any::<String>(),
            prop::sample::select([&MISREAD[..], &LINES].concat()).prop_map(str::to_owned),
            "[a-z,:#{}'\" \n-]{0,12}",
        ]
    };
    let key = prop_oneof![
        "[a-z$/*0-9:#-]{1,8}",
        prop::sample::select(&MISREAD[..]).prop_map(str::to_owned),
        prop::sample::select(&["type", "enum", "oneOf", "required"][..]).prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            btree_map(key.clone(), inner, 0..6)
                .prop_map(|it| Value::from(it.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #[test]
    fn any_document_is_read_back_as_it_was(document in document()) {
        assert_read_back(&document);
    }
}
