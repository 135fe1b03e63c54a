//! Checks the sources for work that grows with the size of files and cannot be stopped.

use std::collections::BTreeSet;

use super::sources::{LIBRARY, sources};

/// Calls whose work grows with the size of files, with the files that may have them and the reason.
/// Other code passes a `SlicedWork`, which stops inside a file.
const UNBOUNDED: &[(&str, &[&str])] = &[
    // Callers choose between `runtime::blocking` and `runtime::stoppable`.
    ("spawn_blocking", &["crates/service/src/runtime.rs"]),
    (
        "io::copy(",
        &[
            // An entry of an upload, within its limits, in a child that ends with the service.
            "crates/service/src/artifact/inputs/archive.rs",
            // A packed export, in the process of its analysis, killed after its grace period.
            "crates/analyze/src/parse/stored.rs",
            // A trace up to the place of an error, in the same process.
            "crates/analyze/src/parse/kineto/open.rs",
            // Logs of at most `limits.log_bytes`.
            "crates/service/src/collect/passes/session.rs",
        ],
    ),
    (
        "fs::copy(",
        &[
            // An image of at most 64 MiB.
            "crates/service/src/artifact/inputs/copies.rs",
            // Logs of at most `limits.log_bytes`.
            "crates/service/src/scheduler/import_job.rs",
        ],
    ),
    (
        "remove_dir_all(",
        &[
            // Uploads of at most `limits.capture_bytes`; the folder of all is set aside at start.
            "crates/service/src/http/state.rs",
            // Files of an inspection: two small ones.
            "crates/service/src/scheduler/inspection.rs",
            // Temporary files of a child, which count towards its quota.
            "crates/service/src/collect/tools/permission.rs",
            "crates/service/src/collect/host/doctor.rs",
        ],
    ),
    (
        ".sync_all(",
        &[
            // Behind `sync_in_slices` for large files.
            "crates/service/src/artifact/durable.rs",
            // In a child that ends with the service.
            "crates/service/src/artifact/import_staging.rs",
        ],
    ),
];

#[test]
fn work_that_grows_with_the_size_of_files_can_be_stopped() {
    let (mut found, mut used) = (Vec::new(), BTreeSet::new());
    for source in sources(LIBRARY) {
        let path = source.path();
        for (call, allowed) in UNBOUNDED.iter().filter(|(call, _)| source.code.contains(call)) {
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
