//! Tests of submissions from files and options.

use std::io::Write as _;

use clap::Parser;
use serde_json::json;
use tempfile::NamedTempFile;

use super::*;

#[derive(Parser)]
struct OptionsOf {
    #[command(flatten)]
    options: SubmitOptions,
}

/// The submission of these options after a file with `body`, and its notes.
fn of(body: &Value, options: &[&str]) -> Result<(Value, Vec<String>)> {
    let mut file = NamedTempFile::new().unwrap();
    write!(file, "{body}").unwrap();
    let path = file.path().to_str().unwrap();
    let parsed = OptionsOf::try_parse_from([&["submit", path][..], options].concat())?;
    submission(&parsed.options)
}

#[test]
fn a_mode_option_drops_the_settings_of_another_mode_with_a_note_and_no_others() {
    let nsys = json!({ "nsys": { "delay_s": 2 } });
    let file = json!({ "model": "a", "mode": "deep", "profiling": nsys });
    let own = json!({ "ncu": { "max_launches": 3 } });
    for (options, profiling, is_noted) in [
        (&["--mode", "light"][..], Value::Null, true),
        (&["--mode", "light", "--set", "ncu.max_launches=3"], own, true),
        (&["--mode", "deep"], nsys.clone(), false),
        (&["--repeats", "5"], nsys.clone(), false),
    ] {
        let (body, notes) = of(&file, options).unwrap();
        assert_eq!(body["profiling"], profiling, "{options:?}");
        assert_eq!(notes.len(), usize::from(is_noted), "{options:?}");
        assert!(notes.iter().all(|note| note.contains("(nsys.delay_s=2)")), "{options:?}");
    }
    let of_any_mode = json!({ "model": "a", "profiling": nsys });
    let (body, notes) = of(&of_any_mode, &["--mode", "light"]).unwrap();
    assert_eq!((body["profiling"].clone(), notes), (nsys, vec![]), "the file states no mode");
}

#[test]
fn a_model_option_drops_the_resolved_values_of_another_model_with_a_note_and_no_others() {
    let resolved = json!({ "run_s": 60, "dtype": "f32", "model": { "name": "a" } });
    let file = json!({ "model": "a", "resolved": resolved });
    for (options, kept, is_noted) in [
        (&["--model", "b"][..], json!({ "run_s": 60 }), true),
        (&["--model", "a"], resolved.clone(), false),
        (&["--repeats", "5"], resolved.clone(), false),
    ] {
        let (body, notes) = of(&file, options).unwrap();
        assert_eq!(body["resolved"], kept, "{options:?}");
        assert_eq!(notes.len(), usize::from(is_noted), "{options:?}");
        assert!(notes.iter().all(|note| note.contains("(dtype, model)")), "{options:?}");
    }
}

#[test]
fn a_note_lists_some_dropped_settings_and_counts_the_others() {
    let Value::Object(dropped) = json!({ "a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7 })
    else {
        panic!("settings are an object")
    };
    let note = settings::dropped_note(&dropped, "light");
    assert!(note.contains("(a=1, b=2, c=3, d=4, e=5 and 2 more)"), "{note}");
}

#[test]
fn parameters_change_the_command_of_the_option_or_of_the_file() {
    let file = json!({ "target": { "command": "sleeper", "params": { "s": 3.0, "n": 1 } } });
    let call = |options: &[&str]| of(&file, options).map(|(body, _)| body["target"].clone());
    let changed = json!({ "command": "sleeper", "params": { "s": 2, "n": 1 } });
    assert_eq!(call(&["--param", "s=2"]).unwrap(), changed);
    let other = json!({ "command": "b", "params": { "s": 2 } });
    assert_eq!(call(&["--command", "b", "--param", "s=2"]).unwrap(), other);
    let bare = json!({ "target": { "command": "sleeper" } });
    let (body, _) = of(&bare, &["--param", "s=2"]).unwrap();
    assert_eq!(body["target"]["params"], json!({ "s": 2 }));
    for file in [json!({ "model": "a" }), json!({ "model": "a", "target": "decoder" })] {
        let refused = of(&file, &["--param", "s=2"]).unwrap_err().to_string();
        assert!(refused.contains("add --command"), "{refused}");
    }
}

#[test]
fn a_plan_has_one_repeat_or_several_repeats() {
    let steps = json!([{"step": "baseline", "repeats": 1}, {"step": "nsys", "repeats": 3}]);
    let answer = json!({"steps": steps, "duration": {"unknown_because": "no estimate"}});
    let text = plan(&serde_json::from_value(answer).unwrap());
    assert_eq!(text, "baseline       1 repeat\nnsys           3 repeats\nno estimate\n");
}
