//! Checks the sources for work that grows with the size of files and cannot be stopped.

use std::{collections::BTreeSet, path::Path};

use super::architecture::library;

/// Calls whose work grows with the size of files, with the files that may have them and the reason.
/// Other code passes a `SlicedWork`, which stops inside a file.
const UNBOUNDED: &[(&str, &[&str])] = &[
    // Callers choose between `runtime::blocking` and `runtime::stoppable`.
    ("spawn_blocking", &["src/runtime.rs"]),
    // An entry of an upload, within its limits, in a child that ends with the service.
    ("io::copy(", &["src/artifact/inputs/archive.rs"]),
    (
        "fs::copy(",
        &[
            // An image of at most 64 MiB.
            "src/artifact/inputs/copies.rs",
            // Logs of at most `limits.log_bytes`.
            "src/scheduler/import_job.rs",
            "src/collect/passes/session.rs",
        ],
    ),
    (
        "remove_dir_all(",
        &[
            // Uploads of at most `limits.capture_bytes`; the folder of all is set aside at start.
            "src/http/state.rs",
            // Files of an inspection: two small ones.
            "src/scheduler/inspection.rs",
            // Temporary files of a child, which count towards its quota.
            "src/collect/process/orphans.rs",
            "src/collect/tools/permission.rs",
            "src/collect/host/doctor.rs",
            // Files of a job, in its process, which is killed after its grace period.
            "src/collect/passes/command.rs",
            "src/collect/passes/pass.rs",
            "src/collect/passes/gate.rs",
            "src/artifact/inputs/copies.rs",
            "src/artifact/finished_passes.rs",
        ],
    ),
    (
        ".sync_all(",
        &[
            // Behind `sync_in_slices` for large files.
            "src/artifact/durable.rs",
            // In a child that ends with the service.
            "src/artifact/import_staging.rs",
        ],
    ),
];

#[test]
fn work_that_grows_with_the_size_of_files_can_be_stopped() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut used) = (Vec::new(), BTreeSet::new());
    for (_, path, code) in library() {
        let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        for (call, allowed) in UNBOUNDED.iter().filter(|(call, _)| code.contains(call)) {
            match allowed.contains(&path.as_str()) {
                true => drop(used.insert((*call, path.clone()))),
                false => found.push(format!("{path}: {call}; use runtime::work::SlicedWork")),
            }
        }
    }
    assert_eq!(found, [""; 0]);
    let allowed =
        UNBOUNDED.iter().flat_map(|(call, files)| files.iter().map(move |it| (*call, *it)));
    let stale: Vec<_> =
        allowed.filter(|(call, it)| !used.contains(&(*call, (*it).to_owned()))).collect();
    assert_eq!(stale, [], "no longer needed");
}
