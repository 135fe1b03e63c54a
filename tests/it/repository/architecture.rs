//! Checks the sources against the rules of ARCHITECTURE.md: imports, pure modules, owners of
//! libraries, lengths of files.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Allowed imports of each module within the crate, beyond itself and [`SHARED`].
pub const ARROWS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("measuring", &[]),
    ("runtime", &["domain"]),
    ("trace", &["domain"]),
    ("config", &["domain", "trace"]),
    ("store", &["domain", "runtime", "config"]),
    ("artifact", &["domain", "runtime"]),
    ("parse", &["domain", "trace", "artifact"]),
    ("analyze", &["domain", "trace"]),
    ("report", &["domain", "trace", "analyze", "artifact"]),
    ("pipeline", &["domain", "trace", "artifact", "parse", "analyze", "report"]),
    ("load", &["domain", "trace"]),
    ("mcp", &["domain", "analyze", "report"]),
    ("collect", &["domain", "runtime", "trace", "artifact", "config"]),
    (
        "job",
        &[
            "domain", "runtime", "trace", "artifact", "config", "collect", "parse", "analyze",
            "report", "pipeline",
        ],
    ),
    (
        "scheduler",
        &[
            "domain",
            "measuring",
            "runtime",
            "artifact",
            "config",
            "store",
            "collect",
            "parse",
            "analyze",
            "report",
            "pipeline",
            "job",
        ],
    ),
    (
        "tasks",
        &["domain", "measuring", "runtime", "trace", "artifact", "config", "store", "collect"],
    ),
    (
        "http",
        &[
            "domain",
            "measuring",
            "runtime",
            "trace",
            "artifact",
            "config",
            "store",
            "parse",
            "analyze",
            "report",
            "mcp",
        ],
    ),
];
/// The imports that each module of `http` may have of `http`, beyond itself.
const HTTP_ARROWS: &[(&str, &[&str])] = &[
    ("request_id", &[]),
    ("traffic", &[]),
    ("error", &["request_id"]),
    ("extract", &["error"]),
    ("auth", &["request_id", "traffic", "error", "extract"]),
    ("connection", &["traffic"]),
    ("compression", &[]),
    ("state", &["auth"]),
    ("api", &["request_id", "traffic", "error", "extract", "auth", "state"]),
    ("ui", &["request_id", "error", "extract", "auth", "state", "api"]),
    ("contract", &["error", "api"]),
    ("mcp", &["error", "extract"]),
    (
        "router",
        &["request_id", "error", "auth", "state", "api", "ui", "mcp", "compression", "contract"],
    ),
    ("listen", &["connection", "state", "router"]),
];
/// Functions of the crate's root.
const SHARED: &[&str] = &["chain"];
/// Modules of arithmetic and text.
const PURE: &[&str] = &["domain", "trace", "analyze", "report"];
const IMPURE: &[&str] = &[
    "tokio::",
    "sqlx::",
    "rusqlite::",
    "std::fs",
    "std::env",
    "std::process",
    "std::net",
    "SystemTime",
    "Instant::now",
];
const MAX_LINES: usize = 400;

pub fn sources(folder: &Path) -> Vec<PathBuf> {
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

/// The library's files: top-level module, path, and code without tests and comments.
pub fn library() -> Vec<(String, PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for path in sources(&src) {
        let inside = path.strip_prefix(&src).unwrap();
        let first = inside.iter().next().unwrap().to_str().unwrap();
        if matches!(first, "bin" | "command" | "main.rs" | "lib.rs") || inside.ends_with("tests.rs")
        {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let code: String = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .flat_map(|line| [line, "\n"])
            .collect();
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
    let code = "use crate::{\n    domain::{ids::RunId, state::Step},\n    store::Store,\n}; \
                fn f() { crate::chain(&e) }";
    assert_eq!(imports(code).into_iter().collect::<Vec<_>>(), ["chain", "domain", "store"]);
}

#[test]
fn imports_follow_the_arrows() {
    let mut broken = Vec::new();
    for (module, path, code) in library() {
        let (_, allowed) = ARROWS
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("{module} has no arrows"));
        for import in imports(&code) {
            if import != module
                && !SHARED.contains(&import.as_str())
                && !allowed.contains(&import.as_str())
            {
                broken.push(format!("{}: {module} may not import {import}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The path of a file relative to `src/http`.
fn in_http(path: &Path) -> &Path {
    path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http")).unwrap()
}

/// The modules of `http` that a file of it imports, `super::` resolved by the file's path.
fn http_imports(path: &Path, code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for after in code.split("http::").skip(1) {
        names.extend(imports(&format!("crate::{after}")));
    }
    let mut folder: Vec<&str> = in_http(path).iter().map(|part| part.to_str().unwrap()).collect();
    let file = folder.pop().unwrap();
    let depth = folder.len() + usize::from(file != "mod.rs");
    for after in code.split(&"super::".repeat(depth)).skip(1) {
        names.extend(imports(&format!("crate::{after}")));
    }
    names.retain(|name| HTTP_ARROWS.iter().any(|(module, _)| module == name));
    names
}

#[test]
fn http_modules_import_along_the_arrows() {
    let mut broken = Vec::new();
    for (_, path, code) in library().into_iter().filter(|(module, ..)| module == "http") {
        let first = in_http(&path).iter().next().unwrap();
        let module = first.to_str().unwrap().trim_end_matches(".rs");
        if module == "mod" {
            continue;
        }
        let at = HTTP_ARROWS.iter().position(|(name, _)| *name == module);
        let at = at.unwrap_or_else(|| panic!("http::{module} has no arrows"));
        for import in http_imports(&path, &code).iter().filter(|import| *import != module) {
            if !HTTP_ARROWS[at].1.contains(&import.as_str()) {
                broken.push(format!("{}: {module} may not import {import}", path.display()));
            }
        }
        // Arrows lead to earlier modules only, so there is no cycle.
        for import in HTTP_ARROWS[at].1 {
            let earlier = HTTP_ARROWS[..at].iter().any(|(name, _)| name == import);
            assert!(earlier, "{module} -> {import} is against the order");
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn pure_modules_use_no_files_clock_or_environment() {
    let mut broken = Vec::new();
    for (module, path, code) in library() {
        if PURE.contains(&module.as_str()) {
            broken.extend(
                IMPURE
                    .iter()
                    .filter(|word| code.contains(**word))
                    .map(|word| format!("{}: {word}", path.display())),
            );
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn pages_are_rendered_without_http_files_or_a_clock() {
    let view = library().into_iter().filter(|(_, path, _)| {
        path.ends_with("http/ui/view.rs") || path.ends_with("http/ui/submit_form.rs")
    });
    let code: Vec<String> = view.map(|(_, _, code)| code).collect();
    assert_eq!(code.len(), 2);
    for word in IMPURE.iter().chain(&["axum::", "crate::http::api", "Timestamp::now"]) {
        assert!(code.iter().all(|code| !code.contains(word)), "{word}");
    }
}

#[test]
fn a_write_that_returns_rows_is_executed_to_its_end() {
    // The first row comes before the commit, whose failure would be lost with the rest.
    for (module, path, code) in library() {
        let is_partial = code.contains("fetch_optional(&mut *writer)")
            || code.contains("fetch_one(&mut *writer)");
        assert!(module != "store" || !is_partial, "{}: use fetch_all", path.display());
    }
}

#[test]
fn only_config_reads_the_environment() {
    let broken: Vec<String> = library()
        .into_iter()
        .filter(|(module, _, code)| {
            module != "config" && (code.contains("std::env") || code.contains("env::var"))
        })
        .map(|(module, path, _)| format!("{}: {module} reads the environment", path.display()))
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn libraries_are_used_by_their_owners_alone() {
    let mut broken = Vec::new();
    for (module, path, code) in library() {
        for (word, owner) in [
            ("Command::new", "collect"),
            ("axum::", "http"),
            ("sqlx::", "store"),
            ("rusqlite::", "parse"),
            ("reqwest::", "tasks"),
            ("rmcp::", "mcp"),
        ] {
            // A server that collect has started is also queried there; a load is a process of its
            // own.
            let to_targets = word == "reqwest::"
                && (path.ends_with("collect/passes/readiness.rs")
                    || path.ends_with("collect/passes/gate.rs")
                    || module == "load");
            // The transport of the tools over HTTP.
            let over_http = word == "rmcp::" && path.ends_with("http/mcp.rs");
            if code.contains(word) && module != owner && !to_targets && !over_http {
                broken.push(format!("{}: {word} belongs to {owner}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn only_the_model_runner_links_candle() {
    for (_, path, code) in library() {
        assert!(!code.contains("candle_"), "{}: the service must not link candle", path.display());
    }
}

/// Files of the runner with their code without comments.
fn runner() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/model-runner");
    let code = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .flat_map(|line| [line, "\n"])
            .collect::<String>()
    };
    sources(&folder)
        .into_iter()
        .map(|path| (path.strip_prefix(&folder).unwrap().to_owned(), code(&path)))
        .collect()
}

#[test]
fn only_gpu_uses_cuda_and_only_the_feature_compiles_gpu() {
    let mut broken = Vec::new();
    for (path, code) in runner().into_iter().filter(|(path, _)| !path.starts_with("gpu")) {
        let words = ["cudarc", "cuda_backend", "CudaDevice", "CudaStorage"];
        broken.extend(
            words
                .iter()
                .filter(|word| code.contains(**word))
                .map(|word| format!("{}: {word} belongs to gpu/", path.display())),
        );
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let main = runner().into_iter().find(|(path, _)| path == Path::new("main.rs")).unwrap().1;
    assert!(
        main.contains("#[cfg(feature = \"cuda\")]\nmod gpu;"),
        "main.rs must compile gpu/ only with the feature cuda"
    );
}

#[test]
fn kernels_are_loaded_and_launched_in_one_file() {
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
fn files_are_short_and_start_with_a_description() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in
        ["src", "tests/it", "tests/simulator"].iter().flat_map(|folder| sources(&root.join(folder)))
    {
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().count() <= MAX_LINES,
            "{} is longer than {MAX_LINES} lines",
            path.display()
        );
        assert!(text.starts_with("//!"), "{} does not start with a description", path.display());
    }
}
