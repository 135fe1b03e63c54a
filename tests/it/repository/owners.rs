//! Checks that processes, SQL, HTTP and CUDA stay with their owners inside the packages.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use super::sources::{ALL, sources};

/// Owners of libraries that more than one module could use: start of the path in `crates/`.
const OWNERS: &[(&str, &[&str])] = &[
    ("Command::new", &["service/src/collect/"]),
    ("nvml_wrapper::", &["service/src/collect/gpu/"]),
    ("axum::", &["service/src/http/"]),
    ("sqlx::", &["service/src/store/"]),
    ("rusqlite::", &["analyze/src/parse/"]),
    (
        "reqwest::",
        &[
            "service/src/tasks/webhooks",
            // A server that collect has started is also queried there.
            "service/src/collect/passes/readiness.rs",
            "service/src/collect/passes/gate.rs",
            // A load is a process of its own.
            "service/src/load/",
            // Clients of a service.
            "cli/src/command/client/",
            "cli/src/command/quickstart.rs",
        ],
    ),
    (
        "rmcp::",
        &[
            "service/src/mcp/",
            // The transports of the tools.
            "service/src/http/mcp.rs",
            "cli/src/command/client/mcp.rs",
        ],
    ),
];

#[test]
fn libraries_are_used_by_their_owners_alone() {
    let (mut broken, mut used) = (Vec::new(), BTreeSet::new());
    for source in sources(ALL) {
        let path = source.path();
        for (word, owners) in OWNERS.iter().filter(|(word, _)| source.code.contains(word)) {
            match owners.iter().find(|owner| path["crates/".len()..].starts_with(**owner)) {
                Some(owner) => drop(used.insert((*word, *owner))),
                None => broken.push(format!("{path}: {word} belongs to {owners:?}")),
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let all = OWNERS.iter().flat_map(|(word, owners)| owners.iter().map(move |it| (*word, *it)));
    assert_eq!(all.filter(|it| !used.contains(it)).collect::<Vec<_>>(), [], "no longer needed");
}

/// Modules that read files of runs and of arguments, by `open_own` and `open_named`: start of the
/// path in `crates/`.
const READERS: &[&str] =
    &["analyze/src/parse/", "service/src/collect/", "service/src/job/", "cli/src/command/"];
/// Calls that follow a link, and block on a pipe until it has a writer.
const OPENS: &[&str] = &["File::open(", "fs::read(", "fs::read_to_string(", "fs::copy("];
/// Files of these modules that read other files.
const OTHER_FILES: &[&str] = &[
    // Files of the kernel.
    "service/src/collect/gpu/nvml.rs",
    "service/src/collect/host/checks.rs",
    "service/src/collect/host/checks/cpu_sampling.rs",
    "service/src/collect/host/load.rs",
    "service/src/collect/host/mod.rs",
    "service/src/collect/passes/server.rs",
    "service/src/collect/process/orphans.rs",
    "service/src/collect/process/ports.rs",
    "service/src/collect/process/stall.rs",
    "service/src/collect/tools/permission.rs",
    // Files of the command itself.
    "cli/src/command/backup.rs",
    "cli/src/command/client/download.rs",
    // Arguments that may be pipes.
    "cli/src/command/client/submit.rs",
    "cli/src/command/local_file.rs",
];

#[test]
fn files_of_runs_and_arguments_are_opened_without_waiting_for_a_writer() {
    let (mut broken, mut used) = (Vec::new(), BTreeSet::new());
    for source in sources(ALL) {
        let path = source.path();
        let inside = &path["crates/".len()..];
        if !READERS.iter().any(|reader| inside.starts_with(reader)) {
            continue;
        }
        for call in OPENS.iter().filter(|call| source.code.contains(**call)) {
            match OTHER_FILES.iter().find(|other| **other == inside) {
                Some(other) => drop(used.insert(*other)),
                None => broken.push(format!("{path}: {call}..): use open_own or open_named")),
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let unused = OTHER_FILES.iter().filter(|it| !used.contains(**it)).collect::<Vec<_>>();
    assert!(unused.is_empty(), "no longer needed: {unused:?}");
}

#[test]
fn yaml_is_written_by_one_writer_alone() {
    let calls = ["yaml_serde::to_string", "yaml_serde::to_writer", "yaml_serde::Serializer"];
    for source in sources(ALL) {
        let found = calls.iter().find(|call| source.code.contains(**call));
        assert_eq!(found, None, "{}: write YAML by domain::yaml", source.path());
    }
}

/// Files of the runner with their code.
fn runner() -> Vec<(PathBuf, String)> {
    let files = sources(&["model-runner"]).into_iter();
    files.map(|source| (source.inside, source.code)).collect()
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
    let lib = runner().into_iter().find(|(path, _)| path == Path::new("lib.rs")).unwrap().1;
    assert!(
        lib.contains("#[cfg(feature = \"cuda\")]\nmod gpu;"),
        "lib.rs must compile gpu/ only with the feature cuda"
    );
}

#[test]
fn kernels_are_loaded_and_launched_in_one_file() {
    let owner = Path::new("gpu/kernels.rs");
    for word in ["launch_kernel", "load_module", ".fatbin"] {
        let users: Vec<PathBuf> = runner()
            .into_iter()
            .filter(|(_, code)| code.contains(word))
            .map(|(path, _)| path)
            .collect();
        assert_eq!(users, [owner], "{word}");
    }
}
