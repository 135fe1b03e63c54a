//! Scripts of the repository.

use std::{
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

use super::sources::root;

/// The scripts in a folder.
fn scripts(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_script =
        |it: &PathBuf| it.ends_with("run") || it.extension().is_some_and(|it| it == "sh");
    entries.filter(is_script).collect()
}

/// By `pipefail` the program before `grep -q` fails if it writes on after the first match.
#[test]
fn no_script_stops_to_read_a_pipe_that_is_still_written() {
    let folders = [".ci", "bench", "scripts", "tests/gpu"].map(|it| root().join(it));
    let all: Vec<PathBuf> = folders.iter().flat_map(|it| scripts(it)).collect();
    assert!(all.len() > 30, "only {} scripts found", all.len());
    let quiet = r"\|\s*[ef]?grep\b[^|;&\n]*\s(-[a-zA-Z]*q|--quiet|--silent)";
    let quiet = Regex::new(quiet).unwrap();
    for script in all {
        let text = fs::read_to_string(&script).unwrap();
        let found: Vec<&str> = quiet.find_iter(&text).map(|it| it.as_str()).collect();
        assert!(found.is_empty(), "{}: {found:?}", script.display());
    }
}
