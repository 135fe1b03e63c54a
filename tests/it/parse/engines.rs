//! `llmprof engines`: presets on the command line.

use std::process::{Command, Output};

use llmprof_core::trace::engines::{engines, step_examples};

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_llmprof")).arg("engines").args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn the_list_has_a_line_for_each_engine() {
    let (code, list, _) = run(&[]);
    assert_eq!(code, Some(0));
    for engine in engines() {
        assert!(list.lines().any(|line| line.starts_with(&engine.name)), "{list}");
    }
}

#[test]
fn each_engine_prints_its_commands_in_order_with_their_sources() {
    for engine in engines() {
        let (code, guide, _) = run(&[&engine.name]);
        assert_eq!(code, Some(0));
        let mut rest = guide.as_str();
        for command in &engine.capture {
            let first = command.command.trim().lines().next().unwrap();
            let at = rest.find(&command.source).unwrap_or_else(|| panic!("{guide}"));
            let after = rest[at..].find(first).unwrap_or_else(|| panic!("{guide}"));
            rest = &rest[at + after..];
        }
        assert!(step_examples(&engine.name).all(|example| guide.contains(example)));
        assert!(engine.ranges.iter().all(|ranges| guide.contains(ranges.as_str())));
    }
}

#[test]
fn an_unknown_engine_is_refused_with_the_nearest_name() {
    let (code, _, error) = run(&["vlm"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("unknown engine \"vlm\" (did you mean vllm?)"), "{error}");
}
