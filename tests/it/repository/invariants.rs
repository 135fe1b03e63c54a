//! `specs/invariants.md`: each invariant names tests that exist, or states that it has none.

use std::{collections::BTreeSet, fs};

use super::sources::root;

/// An invariant with its evidence: path and names of tests, or a sentence without a path.
struct Invariant {
    title: String,
    evidence: Vec<String>,
}

/// The items of `text`, each with its nested items; continued lines joined.
fn invariants(text: &str) -> Vec<Invariant> {
    let mut found: Vec<Invariant> = Vec::new();
    for line in text.lines() {
        if let Some(item) = line.strip_prefix("- ") {
            let title = item.split("**").nth(1).unwrap_or_default().to_owned();
            found.push(Invariant { title, evidence: Vec::new() });
        } else if let (Some(item), Some(last)) = (line.strip_prefix("  - "), found.last_mut()) {
            last.evidence.push(item.to_owned());
        } else if let (Some(more), Some(last)) =
            (line.strip_prefix("    "), found.last_mut().and_then(|last| last.evidence.last_mut()))
        {
            *last += &format!(" {more}");
        }
    }
    found
}

/// Path and names in code type: "`tests/it/a.rs`: `b`, `c`".
fn tests(evidence: &str) -> Option<(&str, Vec<&str>)> {
    let mut code = evidence.split('`').skip(1).step_by(2);
    let path = code.next()?;
    Some((path, code.collect()))
}

/// Names of the tests of `code`: of functions below an attribute for tests.
pub fn test_names(code: &str) -> BTreeSet<&str> {
    let (mut names, mut below) = (BTreeSet::new(), false);
    for line in code.lines().map(str::trim) {
        if line.starts_with("#[test") || line.starts_with("#[tokio::test") {
            below = true;
        } else if !line.starts_with(['#', '/']) {
            let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
            let name = function.and_then(|it| it.split('(').next());
            names.extend(name.filter(|_| below));
            below = false;
        }
    }
    names
}

#[test]
fn every_test_of_an_invariant_exists() {
    let text = fs::read_to_string(root().join("specs/invariants.md")).unwrap();
    let (mut named, mut without) = (0, 0);
    for Invariant { title, evidence } in invariants(&text) {
        assert!(!title.is_empty() && !evidence.is_empty(), "{title:?} has no evidence");
        for evidence in evidence {
            let Some((path, names)) = tests(&evidence) else {
                assert!(evidence.starts_with("No test "), "{title}: {evidence}");
                without += 1;
                continue;
            };
            let code = fs::read_to_string(root().join(path));
            let code = code.unwrap_or_else(|error| panic!("{title}: {path}: {error}"));
            assert!(!names.is_empty(), "{title}: {path} without a name");
            let tests = test_names(&code);
            for name in names {
                assert!(tests.contains(name), "{title}: {path} has no test {name}");
                named += 1;
            }
        }
    }
    assert!(named > 60 && without < 5, "{named} tests found, {without} invariants without one");
}

#[test]
fn only_functions_below_an_attribute_are_tests() {
    let code = "#[test]\nfn a_run_ends() {}\n\n#[tokio::test]\n// slow\nasync fn others_wait() {}\n\
                fn helper() {}\n";
    assert_eq!(test_names(code), BTreeSet::from(["a_run_ends", "others_wait"]));
    let text =
        "- **A run ends** (`x.rs`), in\n  time.\n  - `a.rs`:\n    `b`, `c`\n- **B**\n  - No test.";
    let found = invariants(text);
    assert_eq!(found.len(), 2);
    assert_eq!(tests(&found[0].evidence[0]), Some(("a.rs", vec!["b", "c"])));
    assert_eq!(tests(&found[1].evidence[0]), None);
}
