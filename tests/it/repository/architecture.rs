//! Checks the sources against the rules of ARCHITECTURE.md that the borders of packages do not
//! hold: imports between modules, pure packages, lengths of files.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::sources::{LIBRARY, Source, names_after, root, rust_files, sources};

/// Allowed imports of each module, in its package and of others, beyond itself and [`SHARED`].
///
/// The packages `analyze` and `report` are one module each, without their readers of files: `parse`
/// and `pipeline`.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("layout", &["domain"]),
    ("trace", &["domain"]),
    ("parse", &["domain", "layout", "trace"]),
    ("analyze", &["domain", "trace"]),
    ("report", &["domain", "layout", "trace", "analyze"]),
    ("pipeline", &["domain", "layout", "trace", "parse", "analyze", "report"]),
    ("build", &[]),
    ("measuring", &[]),
    ("runtime", &["domain"]),
    ("config", &["domain", "trace"]),
    ("store", &["domain", "runtime", "config"]),
    ("artifact", &["domain", "layout", "parse", "runtime"]),
    ("load", &["domain", "trace"]),
    ("mcp", &["domain", "analyze", "report"]),
    ("collect", &["domain", "layout", "trace", "build", "runtime", "artifact", "config"]),
    (
        "job",
        &[
            "domain", "layout", "trace", "parse", "analyze", "pipeline", "runtime", "artifact",
            "config", "collect",
        ],
    ),
    (
        "scheduler",
        &[
            "domain",
            "layout",
            "parse",
            "analyze",
            "report",
            "pipeline",
            "measuring",
            "runtime",
            "artifact",
            "config",
            "store",
            "collect",
            "job",
        ],
    ),
    (
        "tasks",
        &["domain", "trace", "measuring", "runtime", "artifact", "config", "store", "collect"],
    ),
    (
        "http",
        &[
            "domain",
            "layout",
            "trace",
            "parse",
            "analyze",
            "report",
            "build",
            "measuring",
            "runtime",
            "artifact",
            "config",
            "store",
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
/// Functions of the root of `core`.
const SHARED: &[&str] = &["chain"];
/// Packages of arithmetic and text, with their modules that read files.
const PURE: &[(&str, &str)] = &[("core", ""), ("analyze", "parse"), ("report", "pipeline")];
/// Modules of `std` that reach outside the process.
const OUTSIDE: &[&str] = &["fs", "env", "process", "net"];
/// Calls that read files or a clock.
const IMPURE: &[&str] = &[
    "SystemTime",
    "Instant::now",
    "Timestamp::now",
    "File::open",
    ".exists()",
    ".is_file()",
    ".is_dir()",
];
const MAX_LINES: usize = 400;

/// The row of [`ARROWS`] of a package's module.
fn row(package: &str, module: &str) -> String {
    match (package, module) {
        ("analyze", "parse") | ("report", "pipeline") => module.to_owned(),
        ("analyze" | "report", _) => package.to_owned(),
        _ => module.to_owned(),
    }
}

/// The path from a file to the root of its package, in words of `super`; empty in the root.
fn upwards(inside: &Path) -> String {
    let folders = inside.iter().count() - 1;
    let file = inside.file_name().unwrap();
    let depth = folders + usize::from(file != "mod.rs" && file != "lib.rs");
    vec!["super"; depth].join("::")
}

/// The rows of [`ARROWS`] that a file imports.
fn imports(package: &str, inside: &Path, code: &str) -> BTreeSet<String> {
    let upwards = upwards(inside);
    let mut names: BTreeSet<String> =
        names_after(code, "crate").iter().map(|name| row(package, name)).collect();
    if upwards.is_empty() {
        // The root names its modules without a prefix.
        let of_own = ["parse", "pipeline"].into_iter().filter(|it| row(package, it) == *it);
        names.extend(of_own.filter(|it| !names_after(code, it).is_empty()).map(str::to_owned));
    } else {
        names.extend(names_after(code, &upwards).iter().map(|name| row(package, name)));
    }
    for other in LIBRARY {
        let taken = names_after(code, &format!("llmprof_{other}"));
        names.extend(taken.iter().map(|name| row(other, name)));
    }
    names
}

#[test]
fn imports_are_resolved_in_every_package() {
    let found = |package, inside: &str, code: &str| {
        imports(package, Path::new(inside), code).into_iter().collect::<Vec<_>>()
    };
    let code = "use llmprof_analyze::{Analysis, parse::journal}; use llmprof_core::trace::Trace;";
    assert_eq!(found("report", "tables/mod.rs", code), ["analyze", "parse", "trace"]);
    assert_eq!(found("report", "format.rs", "use crate::pipeline::load;"), ["pipeline"]);
    assert_eq!(
        found("report", "format.rs", "use super::{pipeline, html};"),
        ["pipeline", "report"]
    );
    assert_eq!(found("analyze", "power/energy.rs", "super::super::parse::nsys::f()"), ["parse"]);
    assert_eq!(found("analyze", "lib.rs", "use parse::nsys;"), ["parse"]);
    assert_eq!(found("service", "store/mod.rs", "crate::http::api::f()"), ["http"]);
}

#[test]
fn imports_follow_the_arrows() {
    let (mut broken, mut used) = (Vec::new(), BTreeSet::new());
    for source in sources(LIBRARY) {
        let module = row(source.package, source.module());
        // The roots of `core` and `service` declare their modules.
        if module == "lib" {
            continue;
        }
        let (_, allowed) = ARROWS
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("{module} has no arrows"));
        for import in imports(source.package, &source.inside, &source.code) {
            if import == module || SHARED.contains(&import.as_str()) {
                continue;
            }
            if !allowed.contains(&import.as_str()) {
                broken.push(format!("{}: {module} may not import {import}", source.path()));
            }
            used.insert((module.clone(), import));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let all = ARROWS.iter().flat_map(|(name, may)| may.iter().map(|it| (*name, *it)));
    let is_unused = |(name, it): &(&str, &str)| !used.contains(&((*name).into(), (*it).into()));
    assert_eq!(all.filter(is_unused).collect::<Vec<_>>(), [], "no longer needed");
}

/// The modules of `http` that a file of it imports, `super::` resolved by the file's path.
fn http_imports(in_http: &Path, code: &str) -> BTreeSet<String> {
    let mut names = names_after(code, "http");
    names.extend(names_after(code, &upwards(in_http)));
    names.retain(|name| HTTP_ARROWS.iter().any(|(module, _)| module == name));
    names
}

#[test]
fn http_modules_import_along_the_arrows() {
    let (mut broken, mut visited) = (Vec::new(), BTreeSet::new());
    for Source { inside, code, .. } in sources(&["service"]) {
        let Ok(in_http) = inside.strip_prefix("http") else { continue };
        let first = in_http.iter().next().unwrap();
        let module = first.to_str().unwrap().trim_end_matches(".rs");
        if module == "mod" {
            continue;
        }
        visited.insert(module.to_owned());
        let at = HTTP_ARROWS.iter().position(|(name, _)| *name == module);
        let at = at.unwrap_or_else(|| panic!("http::{module} has no arrows"));
        for import in http_imports(in_http, &code).iter().filter(|import| *import != module) {
            if !HTTP_ARROWS[at].1.contains(&import.as_str()) {
                broken.push(format!("{}: {module} may not import {import}", inside.display()));
            }
        }
        // Arrows lead to earlier modules only, so there is no cycle.
        for import in HTTP_ARROWS[at].1 {
            let earlier = HTTP_ARROWS[..at].iter().any(|(name, _)| name == import);
            assert!(earlier, "{module} -> {import} is against the order");
        }
    }
    assert_eq!(visited.len(), HTTP_ARROWS.len(), "not every module of http was visited");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Uses of files, network, environment, processes and clock in `code`.
fn impurities(code: &str) -> Vec<String> {
    let of_std = names_after(code, "std").into_iter().filter(|it| OUTSIDE.contains(&it.as_str()));
    let calls = IMPURE.iter().filter(|word| code.contains(**word)).map(|it| (*it).to_owned());
    of_std.chain(calls).collect()
}

#[test]
fn impurities_are_found_in_every_form() {
    assert_eq!(impurities("use std::{collections::BTreeMap, fs, path::Path};"), ["fs"]);
    assert_eq!(impurities("let at = std::time::SystemTime::now();"), ["SystemTime"]);
    assert_eq!(impurities("use std::{cmp, fmt::Write}; f(&envs)"), [""; 0]);
}

#[test]
fn pure_packages_use_no_files_clock_or_environment() {
    let (mut broken, mut readers) = (Vec::new(), 0);
    for (package, reader) in PURE {
        for source in sources(&[package]) {
            let found = impurities(&source.code);
            if source.module() == *reader {
                readers += usize::from(!found.is_empty());
            } else {
                broken.extend(found.iter().map(|it| format!("{}: {it}", source.path())));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(readers > 10, "only {readers} files of parse and pipeline read files");
}

#[test]
fn pages_are_rendered_without_http_files_or_a_clock() {
    let view = sources(&["service"]).into_iter().filter(|source| {
        source.inside.ends_with("http/ui/view.rs") || source.inside.ends_with("ui/submit_form.rs")
    });
    let code: Vec<String> = view.map(|source| source.code).collect();
    assert_eq!(code.len(), 2);
    for code in code {
        assert_eq!(impurities(&code), [""; 0]);
        for word in ["axum::", "tokio::", "sqlx::", "reqwest::", "crate::http::api"] {
            assert!(!code.contains(word), "{word}");
        }
    }
}

#[test]
fn a_write_that_returns_rows_is_executed_to_its_end() {
    // The first row comes before the commit, whose failure would be lost with the rest.
    for source in sources(&["service"]).iter().filter(|source| source.module() == "store") {
        let is_partial = source.code.contains("fetch_optional(&mut *writer)")
            || source.code.contains("fetch_one(&mut *writer)");
        assert!(!is_partial, "{}: use fetch_all", source.path());
    }
}

#[test]
fn only_config_reads_the_environment() {
    let (mut broken, mut reads) = (Vec::new(), 0);
    for source in sources(LIBRARY) {
        let code = &source.code;
        if !names_after(code, "std").contains("env") && !code.contains("env::var") {
            continue;
        }
        match (source.package, source.module()) {
            ("service", "config") => reads += 1,
            _ => broken.push(format!("{} reads the environment", source.path())),
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(reads > 0, "config was not found to read the environment");
}

#[test]
fn files_are_short_and_start_with_a_description() {
    let folders = ["src", "crates", "tests/it", "tests/simulator"];
    let files: Vec<PathBuf> =
        folders.iter().flat_map(|folder| rust_files(&root().join(folder))).collect();
    let files = files.into_iter().chain([root().join("build.rs")]).collect::<Vec<_>>();
    for known in ["src/main.rs", "crates/model-runner/build.rs", "crates/service/src/lib.rs"] {
        assert!(files.contains(&root().join(known)), "{known} was not visited");
    }
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().count() <= MAX_LINES,
            "{} is longer than {MAX_LINES} lines",
            path.display()
        );
        assert!(text.starts_with("//!"), "{} does not start with a description", path.display());
    }
}
