//! Traces with Python stacks.

use super::*;

const FRAME: &str = r#"{"ph": "X", "cat": "python_function", "name": "model.py(7): forward",
    "pid": 5, "tid": 6, "ts": 0.5, "dur": 5, "args": {"Python id": 1}}"#;

#[test]
fn recorded_python_stacks_are_a_finding_by_their_events_or_the_header() {
    let message = |header: &str, events: &[&str]| {
        let events = events.join(",");
        let read = read_text(&format!(r#"{{{header}"traceEvents": [{events}]}}"#)).unwrap();
        let mut found = read.findings.iter().filter(|it| it.id == "trace_stacks_recorded");
        found.next().map(|it| {
            let advice = it.advice.as_deref().unwrap();
            assert!(advice.starts_with("Record without with_stack"), "{advice}");
            it.message.clone()
        })
    };
    let other = FRAME.replace("forward", "generate");
    let cases: [(&str, &[&str], Option<&str>); 5] = [
        ("", &[CALL, KERNEL], None),
        ("\"with_stack\": 0,", &[CALL, KERNEL], None),
        ("\"with_stack\": 1,", &[CALL, KERNEL], Some("Python stacks: ")),
        ("", &[CALL, KERNEL, FRAME], Some("stacks (1 call of a function): ")),
        ("\"with_stack\": 1,", &[KERNEL, FRAME, &other], Some("(2 calls of functions): ")),
    ];
    for (header, events, has) in cases {
        let found = message(header, events);
        let is_as_expected = match (&found, has) {
            (Some(found), Some(part)) => found.contains(part),
            (found, has) => found.is_none() && has.is_none(),
        };
        assert!(is_as_expected, "{header} {has:?}: {found:?}");
    }
}
