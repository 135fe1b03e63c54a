//! Holds the sources to the picture in ARCHITECTURE.md: who may import whom, what pure modules may not touch, how long files get.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Open to every module.
const WORDS: &[&str] = &["run", "runner", "model", "profiling", "config", "chain"];
/// What each module may import of ours, beyond itself and the words.
const ARROWS: &[(&str, &[&str])] = &[
    ("run", &[]),
    ("runner", &["run", "model"]),
    ("model", &["run"]),
    ("profiling", &[]),
    ("config", &["analyze", "model", "trace"]),
    ("samples", &[]),
    ("http", &["store", "artifact", "report", "trace", "analyze"]),
    ("store", &[]),
    ("worker", &["store", "collect", "parse", "trace", "analyze", "report", "artifact"]),
    ("collect", &["artifact", "trace"]),
    ("parse", &["trace", "artifact"]),
    ("trace", &[]),
    ("analyze", &["trace"]),
    ("report", &["trace", "analyze", "artifact"]),
    ("artifact", &[]),
];
/// Arithmetic and text only.
const PURE: &[&str] = &["run", "runner", "model", "profiling", "trace", "analyze", "report"];
const IMPURE: &[&str] =
    &["tokio::", "sqlx::", "rusqlite::", "std::fs", "std::env", "std::process", "std::net", "SystemTime", "Instant::now"];
const LONGEST: usize = 500;

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The library's files, each with the top-level module that it belongs to, and its code without tests and comments.
fn library() -> Vec<(String, PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for path in sources(&src) {
        let inside = path.strip_prefix(&src).unwrap();
        let first = inside.iter().next().unwrap().to_str().unwrap();
        if matches!(first, "bin" | "command" | "main.rs" | "lib.rs") || inside.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let code: String =
            code.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect();
        found.push((first.trim_end_matches(".rs").to_owned(), path.clone(), code));
    }
    assert!(found.len() > 40, "only {} files found: is this the source tree?", found.len());
    found
}

/// The top-level modules that `code` names: `crate::a::...` and `use crate::{a, b::{c, d}}`.
fn imports(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
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

fn word(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

#[test]
fn imports_are_found_in_every_form() {
    let code = "use crate::{\n    run::{RunId, Step},\n    store::Store,\n}; fn f() { crate::chain(&e) }";
    assert_eq!(imports(code).into_iter().collect::<Vec<_>>(), ["chain", "run", "store"]);
}

#[test]
fn nobody_imports_against_the_arrows() {
    let mut broken = Vec::new();
    for (module, path, code) in library() {
        let (_, allowed) = ARROWS.iter().find(|(name, _)| *name == module).unwrap_or_else(|| panic!("{module} has no arrows"));
        for import in imports(&code) {
            if import != module && !WORDS.contains(&import.as_str()) && !allowed.contains(&import.as_str()) {
                broken.push(format!("{}: {module} may not import {import}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn pure_modules_know_no_files_clock_or_environment() {
    let mut broken = Vec::new();
    for (module, path, code) in library() {
        if PURE.contains(&module.as_str()) {
            broken.extend(IMPURE.iter().filter(|word| code.contains(**word)).map(|word| format!("{}: {word}", path.display())));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_text_of_pages_is_made_without_http_files_or_a_clock() {
    let view = library()
        .into_iter()
        .filter(|(_, path, _)| path.ends_with("http/page/view.rs") || path.ends_with("http/page/entered.rs"));
    let code: Vec<String> = view.map(|(_, _, code)| code).collect();
    assert_eq!(code.len(), 2);
    for word in IMPURE.iter().chain(&["axum::", "crate::http", "Timestamp::now"]) {
        assert!(code.iter().all(|code| !code.contains(word)), "{word}");
    }
}

#[test]
fn only_collect_starts_processes_and_only_http_knows_http() {
    let mut broken = Vec::new();
    for (module, path, code) in library() {
        for (word, owner) in [
            ("Command::new", "collect"),
            ("axum::", "http"),
            ("sqlx::", "store"),
            ("rusqlite::", "parse"),
            ("reqwest::", "worker"),
        ] {
            // Whether a server of this host is ready is asked where it was started.
            let asks = word == "reqwest::" && path.ends_with("collect/ready.rs");
            if code.contains(word) && module != owner && !asks {
                broken.push(format!("{}: {word} belongs to {owner}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn candle_is_known_to_the_model_runner_alone() {
    for (_, path, code) in library() {
        assert!(!code.contains("candle_"), "{}: the service must not link candle", path.display());
    }
}

/// The files of the runner and their code without comments.
fn runner() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/model-runner");
    let code = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        text.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect::<String>()
    };
    sources(&folder).into_iter().map(|path| (path.strip_prefix(&folder).unwrap().to_owned(), code(&path))).collect()
}

#[test]
fn cuda_is_known_to_gpu_alone_and_gpu_to_the_feature_alone() {
    let mut broken = Vec::new();
    for (path, code) in runner().into_iter().filter(|(path, _)| !path.starts_with("gpu")) {
        let words = ["cudarc", "cuda_backend", "CudaDevice", "CudaStorage"];
        broken.extend(
            words.iter().filter(|word| code.contains(**word)).map(|word| format!("{}: {word} belongs to gpu/", path.display())),
        );
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let main = runner().into_iter().find(|(path, _)| path == Path::new("main.rs")).unwrap().1;
    assert!(main.contains("#[cfg(feature = \"cuda\")]\nmod gpu;"), "gpu/ is compiled without the feature cuda");
}

#[test]
fn a_kernel_is_loaded_and_launched_in_one_file() {
    for (path, code) in runner() {
        for word in ["launch_kernel", "load_module", ".fatbin"] {
            assert!(
                !code.contains(word) || path == Path::new("gpu/kernels.rs"),
                "{}: {word} belongs to gpu/kernels.rs",
                path.display()
            );
        }
    }
}

#[test]
fn every_file_is_short_and_says_what_it_is_for() {
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() <= LONGEST, "{} is longer than {LONGEST} lines", path.display());
        assert!(text.starts_with("//!"), "{} does not begin with what it is for", path.display());
    }
}
