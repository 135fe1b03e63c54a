//! The sources of the packages, as the checks of this folder read them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Folders in `crates/`.
pub const ALL: &[&str] = &["core", "analyze", "report", "service", "cli", "model-runner"];
/// Packages behind the command line.
pub const LIBRARY: &[&str] = &["core", "analyze", "report", "service"];

/// One file of a package.
pub struct Source {
    pub package: &'static str,
    /// Path from the package's `src/`.
    pub inside: PathBuf,
    /// Code without tests and comments.
    pub code: String,
}

impl Source {
    /// Path from the repository's root.
    pub fn path(&self) -> String {
        format!("crates/{}/src/{}", self.package, self.inside.display())
    }

    /// Module at the root of the package; `lib` is the root itself.
    pub fn module(&self) -> &str {
        let first = self.inside.iter().next().unwrap().to_str().unwrap();
        first.trim_end_matches(".rs")
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files in a folder, sorted.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The files of `packages` that are not tests.
pub fn sources(packages: &[&'static str]) -> Vec<Source> {
    let mut found = Vec::new();
    for &package in packages {
        let src = root().join("crates").join(package).join("src");
        let before = found.len();
        for path in rust_files(&src) {
            let inside = path.strip_prefix(&src).unwrap().to_owned();
            if inside.ends_with("tests.rs") || inside.iter().any(|it| it == "tests") {
                continue;
            }
            let code = without_tests(&fs::read_to_string(&path).unwrap());
            found.push(Source { package, inside, code });
        }
        assert!(found.len() > before + 10, "few files in {}: is this the tree?", src.display());
    }
    found
}

/// `text` without its module of tests and without lines of comments.
fn without_tests(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Names that `code` takes from the path `from`: `from::a::...` and `use from::{a, b::{c, d}}`.
pub fn names_after(code: &str, from: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(from) {
        if code[..at].ends_with(is_of_name) {
            continue;
        }
        let Some(after) = code[at + from.len()..].strip_prefix("::") else { continue };
        let Some(list) = after.strip_prefix('{') else {
            names.insert(word(after));
            continue;
        };
        let (mut depth, mut at_name) = (0, true);
        for (at, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => at_name = true,
                letter if at_name && (letter.is_alphabetic() || letter == '_') => {
                    names.insert(word(&list[at..]));
                    at_name = false;
                }
                _ => {}
            }
        }
    }
    names.remove("");
    names
}

/// Checks that `code` contains the path or macro `name`, not as the end of another name.
pub fn contains_name(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let after = &code[at + name.len()..];
        !code[..at].ends_with(is_of_name)
            && ["::", "!", ";", " as "].iter().any(|end| after.starts_with(end))
    })
}

fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn word(text: &str) -> String {
    text.chars().take_while(|letter| is_of_name(*letter)).collect()
}

#[test]
fn names_are_found_in_every_form() {
    let code = "use crate::{\n    domain::{ids::RunId, state::Step},\n    store::Store,\n}; \
                fn f() { crate::chain(&e); a_crate::other(); crates::others() }";
    let names = names_after(code, "crate");
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["chain", "domain", "store"]);
    assert!(contains_name("use rayon::prelude::*;", "rayon"));
    assert!(contains_name("let it = json!(1);", "json"));
    assert!(!contains_name("crayon::draw(); rayon_core::run(); // rayon", "rayon"));
}

#[test]
fn the_walk_visits_every_package_and_skips_tests() {
    let paths: BTreeSet<String> = sources(ALL).iter().map(Source::path).collect();
    for known in [
        "crates/core/src/domain/subject.rs",
        "crates/analyze/src/lib.rs",
        "crates/analyze/src/parse/nsys/open.rs",
        "crates/report/src/pipeline/mod.rs",
        "crates/service/src/measuring.rs",
        "crates/service/src/http/ui/view.rs",
        "crates/cli/src/command/serve/recovery.rs",
        "crates/model-runner/src/gpu/kernels.rs",
    ] {
        assert!(paths.contains(known), "{known} was not visited");
    }
    assert!(!paths.contains("crates/analyze/src/analysis/tests.rs"));
    assert_eq!(without_tests("a\n // b\nc\n#[cfg(test)]\nmod tests {\nd\n}\n"), "a\nc\n");
}
