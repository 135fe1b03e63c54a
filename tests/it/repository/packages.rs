//! The borders of the packages: which of them depend on which, what none of their dependencies may
//! bring along, and that each declared dependency is used.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use toml::{Table, Value};

use super::sources::{ALL, contains_name, root, rust_files, sources};

/// Folder in `crates/`, name, the packages of this repository that it names, and packages that
/// must not be among its dependencies at any depth.
const PACKAGES: &[(&str, &str, &[&str], &[&str])] = &[
    ("core", "llmprof-core", &[], &["rusqlite", "libsqlite3-sys"]),
    ("analyze", "llmprof-analyze", &["core"], &[]),
    ("report", "llmprof-report", &["core", "analyze"], &[]),
    ("service", "llmprof-service", &["core", "analyze", "report"], MODEL),
    ("cli", "llmprof-cli", &["core", "analyze", "report", "service"], MODEL),
    ("model-runner", "llmprof-runner", &["core"], &["rusqlite", "libsqlite3-sys"]),
];
/// Dependencies of the service that `core`, `analyze`, `report` and the runner lack.
const SERVICE: &[&str] = &["tokio", "axum", "sqlx", "sqlx-core", "hyper", "reqwest", "rmcp"];
/// Packages of the model runner, which no other program links.
const MODEL: &[&str] = &["candle-core", "candle-nn", "cudarc"];
/// Declared dependencies that no source names, by package, each with the reason in a comment.
const UNNAMED: &[(&str, &str)] = &[];

/// Names of `package` and of all its dependencies but those for tests and builds.
fn tree(package: &str, arguments: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root())
        .args(["tree", "--locked", "-e", "normal", "--prefix", "none"])
        .args(["-p", package])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{package}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let names: BTreeSet<String> =
        text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    assert!(names.contains(package), "{package} is not in its own tree");
    names
}

fn of_ours(names: &BTreeSet<String>) -> BTreeSet<String> {
    names.iter().filter(|name| name.starts_with("llmprof")).cloned().collect()
}

/// Names of the packages in `folders` with all that they depend on, by [`PACKAGES`].
fn closure(folders: &[&str]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (folder, name, direct, _) in PACKAGES {
        if folders.contains(folder) {
            names.insert((*name).to_owned());
            names.extend(closure(direct));
        }
    }
    names
}

fn manifest(folder: &Path) -> Table {
    fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap()
}

fn dependencies(manifest: &Table, section: &str) -> Vec<String> {
    let table = manifest.get(section).and_then(Value::as_table);
    table.into_iter().flat_map(|table| table.keys().cloned()).collect()
}

#[test]
fn every_package_is_in_the_table() {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let folders: BTreeSet<String> =
        folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(
        folders.iter().eq(PACKAGES.iter().map(|(folder, ..)| *folder).collect::<BTreeSet<_>>())
    );
    assert!(ALL.iter().eq(PACKAGES.iter().map(|(folder, ..)| folder)));
    for (folder, name, ..) in PACKAGES {
        let manifest = manifest(&root().join("crates").join(folder));
        assert_eq!(manifest["package"]["name"].as_str(), Some(*name));
    }
}

#[test]
fn packages_depend_on_each_other_along_the_table() {
    for (folder, name, direct, _) in PACKAGES {
        let declared = dependencies(&manifest(&root().join("crates").join(folder)), "dependencies");
        let ours: BTreeSet<&str> =
            declared.iter().filter_map(|it| it.strip_prefix("llmprof-")).collect();
        assert_eq!(ours, direct.iter().copied().collect(), "{folder}");
        assert_eq!(of_ours(&tree(name, &[])), closure(&[folder]), "{folder}");
    }
}

#[test]
fn the_architecture_has_the_table_of_packages() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| **")?.strip_suffix(" |"));
    let documented: BTreeMap<&str, BTreeSet<&str>> = rows
        .map(|row| {
            let (name, row) = row.split_once("**").unwrap();
            (name, row.rsplit(" | ").next().unwrap().split('`').skip(1).step_by(2).collect())
        })
        .collect();
    let tested: BTreeMap<&str, BTreeSet<&str>> =
        PACKAGES.iter().map(|(it, _, direct, _)| (*it, direct.iter().copied().collect())).collect();
    assert_eq!(documented, tested);
}

#[test]
fn no_package_brings_along_what_another_owns() {
    for (folder, name, _, forbidden) in PACKAGES {
        let features: &[&[&str]] = match *folder {
            "model-runner" => &[&[], &["--features", "cuda"]],
            _ => &[&[]],
        };
        for arguments in features {
            let tree = tree(name, arguments);
            let mut found: Vec<&str> = Vec::new();
            found.extend(forbidden.iter().filter(|it| tree.contains(**it)));
            if !["service", "cli"].contains(folder) {
                found.extend(SERVICE.iter().filter(|it| tree.contains(**it)));
            }
            if *folder != "model-runner" {
                found.extend(MODEL.iter().filter(|it| tree.contains(**it)));
            }
            assert_eq!(found, [""; 0], "{name} {arguments:?}");
        }
    }
    // The names are the ones of the lock: their owners have them.
    let (service, runner) =
        (tree("llmprof-service", &[]), tree("llmprof-runner", &["--features", "cuda"]));
    assert!(SERVICE.iter().chain(&["rusqlite", "libsqlite3-sys"]).all(|it| service.contains(*it)));
    assert!(MODEL.iter().all(|it| runner.contains(*it)));
}

#[test]
fn the_runner_for_cuda_is_built_without_the_service() {
    let alone = tree("llmprof", &["--no-default-features", "--features", "cuda"]);
    let mut expected = closure(&["model-runner"]);
    assert_eq!(expected, ["llmprof-core", "llmprof-runner"].map(str::to_owned).into());
    expected.insert("llmprof".to_owned());
    assert_eq!(of_ours(&alone), expected);
    let found: Vec<&&str> = SERVICE.iter().filter(|it| alone.contains(**it)).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// The dependencies among `declared` that `code` does not name.
fn unnamed<'a>(declared: &'a [String], code: &str) -> Vec<&'a str> {
    let is_named = |it: &&String| contains_name(code, &it.replace('-', "_"));
    declared.iter().filter(|it| !is_named(it)).map(String::as_str).collect()
}

#[test]
fn every_declared_dependency_is_used() {
    let mut checked = 0;
    let mut found = BTreeSet::new();
    for folder in ALL {
        let manifest = manifest(&root().join("crates").join(folder));
        let declared = dependencies(&manifest, "dependencies");
        let code: String = sources(&[folder]).into_iter().map(|source| source.code).collect();
        found.extend(unnamed(&declared, &code).into_iter().map(|it| (*folder, it.to_owned())));
        let for_tests = dependencies(&manifest, "dev-dependencies");
        let all = rust_files(&root().join("crates").join(folder)).into_iter();
        let all: String = all.map(|path| fs::read_to_string(path).unwrap()).collect();
        found.extend(unnamed(&for_tests, &all).into_iter().map(|it| (*folder, it.to_owned())));
        checked += declared.len() + for_tests.len();
    }
    let manifest = manifest(root());
    let programs = ["main.rs", "model-runner.rs"].map(|name| root().join("src").join(name));
    let programs: String = programs.map(|path| fs::read_to_string(path).unwrap()).concat();
    let declared = dependencies(&manifest, "dependencies");
    found.extend(unnamed(&declared, &programs).into_iter().map(|it| (".", it.to_owned())));
    let tests = ["tests", "bench"].iter().flat_map(|folder| rust_files(&root().join(folder)));
    let tests: String = tests.map(|path| fs::read_to_string(path).unwrap()).collect();
    let for_tests = dependencies(&manifest, "dev-dependencies");
    found.extend(unnamed(&for_tests, &tests).into_iter().map(|it| (".", it.to_owned())));
    checked += declared.len() + for_tests.len();
    assert!(checked > 100, "only {checked} dependencies found");
    let expected: BTreeSet<(&str, String)> =
        UNNAMED.iter().map(|(folder, it)| (*folder, (*it).to_owned())).collect();
    assert_eq!(found, expected, "remove them, or state in UNNAMED why they are needed");
}

#[test]
fn a_dependency_that_no_source_names_is_found() {
    let declared = ["tower-http", "glob", "serde"].map(str::to_owned);
    let code = "use tower_http::cors; #[derive(serde::Serialize)] struct A; globs::all();";
    assert_eq!(unnamed(&declared, code), ["glob"]);
}
